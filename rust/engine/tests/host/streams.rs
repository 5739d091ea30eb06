//! Families with hyper-connections: what stands between streams and blocks, embeddings of n-grams, and how
//! long a context may be.
use onegraph::arch;
use onegraph::error::Kind;
use onegraph::gguf::{Array, Value};
use onegraph::plan::{Choice, Ngram, Op, Plan, Streams};

use crate::families::config;
use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

const ARCH: &str = "qwen4exp";

fn plan(w: &Writer) -> Plan {
    arch::plan(&config(w).unwrap()).unwrap()
}

fn set(key: &str, value: Value) -> Writer {
    let mut w = tiny(ARCH);
    w.set(&format!("{ARCH}.{key}"), value);
    w
}

#[test]
fn a_block_reads_the_streams_and_is_added_to_each() {
    let found = plan(&tiny(ARCH));
    let count = |is: fn(&Op) -> bool| found.ops.iter().filter(|op| is(op)).count();
    // Of two layers two each, and of the head.
    assert_eq!(
        count(|op| matches!(op, Op::Streams(Streams::Mean { n: 2, .. }))),
        5
    );
    assert_eq!(
        count(|op| matches!(op, Op::Streams(Streams::Inject { n: 2, .. }))),
        4
    );
    assert_eq!(
        count(|op| matches!(op, Op::Streams(Streams::Gate { .. }))),
        1
    );
    assert_eq!(count(|op| matches!(op, Op::Ngram(Ngram::Rows { .. }))), 1);
    assert_eq!(
        count(|op| matches!(op, Op::ShortConv { dilation: 3, .. })),
        1
    );
    let norms = |op: &Op| match op {
        Op::MatVec { norm, .. } | Op::ExpertMatVec { norm, .. } => norm.is_some(),
        _ => false,
    };
    assert!(!found.ops.iter().any(norms), "{found}");
    // Of the convolution of the rule, of the rule, of the n-grams' convolution, and of their tokens.
    let widths: Vec<usize> = found.states.iter().map(|state| state.width).collect();
    assert_eq!(widths, [2, 3 * 16, 2 * 64, 2 * 16 * 16]);
}

#[test]
fn a_model_may_be_without_ngrams() {
    let mut w = set("ple.layers", Value::Array(Array::I32(Vec::new())));
    w.tensors
        .retain(|t| !t.name.contains("ple_") && !t.name.starts_with("per_layer"));
    let found = plan(&w);
    assert!(!found.ops.iter().any(|op| matches!(op, Op::Ngram(_))));
}

#[test]
fn a_layer_sees_the_blocks_that_it_chooses() {
    let found = plan(&tiny(ARCH));
    let at = |is: fn(&Op) -> bool| found.ops.iter().position(is).unwrap();
    let stores = at(|op| matches!(op, Op::KvScatter { k, v, layer: 2 } if k == v));
    let scores = at(|op| {
        matches!(
            op,
            Op::Choice(Choice::Scores {
                layer: 2,
                ratio: 4,
                n: 8,
                ..
            })
        )
    });
    let blocks = at(|op| matches!(op, Op::Choice(Choice::Blocks { top_k: 16, .. })));
    let attends = at(|op| {
        let Op::Attention { chosen, .. } = op else {
            return false;
        };
        chosen.is_some_and(|of| (of.words, of.ratio) == (1, 4))
    });
    assert!(
        stores < scores && scores < blocks && blocks < attends,
        "{found}"
    );
    // Its keys have a cache behind those of the layers.
    assert_eq!(found.kv.len(), 3);
    assert_eq!(found.kv[2].values_in_keys, Some(6));
}

#[test]
fn keys_that_make_no_model_are_refused() {
    let u64s = |list: &[u64]| Value::Array(Array::U64(list.to_vec()));
    for (key, value, expected) in [
        ("hyper_connection.count", Value::U32(3), "2, 4 or 8"),
        ("hyper_connection.count", Value::U32(1), "2 to 8"),
        ("hyper_connection.low_rank", Value::U32(0), "1 to"),
        ("attention.indexer.top_k", Value::U32(3), "4 to"),
        (
            "attention.indexer.top_k",
            Value::U32(18),
            "a multiple of the 4 tokens",
        ),
        ("attention.indexer.key_length", Value::U32(3), "4 to 256"),
        (
            "attention.compress_ratios",
            Value::Array(Array::I32(vec![0, 6])),
            "4, 8, 16",
        ),
        (
            "attention.compress_ratios",
            Value::Array(Array::I32(vec![8, 4])),
            "one number",
        ),
        (
            "ple.layers",
            Value::Array(Array::I32(vec![2])),
            "one layer of 2",
        ),
        (
            "ple.layers",
            Value::Array(Array::I32(vec![0, 1])),
            "one layer of 2",
        ),
        (
            "ple.layers",
            Value::Array(Array::I32(vec![-1])),
            "non-negative",
        ),
        ("ple.ngram_size", Value::U32(9), "2 to 8"),
        ("ple.heads_per_ngram", Value::U32(33), "at most 64 heads"),
        (
            "ple.layer_multipliers",
            u64s(&[1, 2]),
            "3 non-negative integers",
        ),
        ("ple.head_vocab_sizes", u64s(&[3, 0]), "0 rows from row 3"),
        ("ple.head_offsets", u64s(&[0, u64::MAX]), "from row 0 to"),
        ("ple.eos_token_id", Value::U32(1 << 24), "0 to"),
    ] {
        let text = message(config(&set(key, value)), Kind::Model);
        says(&text, &[ARCH, expected]);
    }
    // More rows than the table has.
    let text = message(
        load(&set("ple.head_vocab_sizes", u64s(&[3, 8])).bytes()),
        Kind::Model,
    );
    says(&text, &["per_layer_token_embd.weight", "[4, 11]"]);
}
