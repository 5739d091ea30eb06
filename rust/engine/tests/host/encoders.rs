//! What families of encoders say: what rows see, which texts tokens are of, which layers have experts.
use onegraph::arch;
use onegraph::error::Kind;
use onegraph::gguf::Value;
use onegraph::plan::{Op, Plan, TableRow};

use crate::families::{config, tables};
use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

fn plan(w: &Writer) -> Plan {
    arch::plan(&config(w).unwrap()).unwrap()
}

#[test]
fn gemma_embedding_sees_a_window_around_a_row_but_in_every_sixth_layer() {
    let mut w = tiny("gemma-embedding");
    w.set("gemma-embedding.rope.freq_base", Value::F32(1e6));
    assert_eq!(tables(&w).2, [Some(4), Some(4)]);
    let key = "gemma-embedding.attention.sliding_window_pattern";
    w.set(key, Value::U32(2));
    let found = tables(&w);
    assert_eq!(
        found,
        (vec![1e6, 1e4], vec![1, 1, 0, 0], vec![Some(4), None])
    );
    let attends = |op: &Op| match op {
        Op::Attention { layer, causal, .. } => Some((*layer, *causal)),
        _ => None,
    };
    let attended: Vec<_> = plan(&w).ops.iter().filter_map(attends).collect();
    assert_eq!(attended, [(0, false); 2]);
    // Nothing is let go of a text that is looked at both ways.
    assert_eq!(plan(&w).windows(), [None; 2]);
}

#[test]
fn dense_layers_are_of_gemma_embedding_alone() {
    for (arch, is_read) in [
        ("gemma-embedding", true),
        ("gemma3", false),
        ("bert", false),
    ] {
        let mut w = tiny(arch);
        w.tensor("dense_2.weight", &[8, 8], 1);
        assert_eq!(arch::plan(&config(&w).unwrap()).is_ok(), is_read, "{arch}");
    }
}

#[test]
fn a_document_is_of_the_second_type_where_bert_ranks() {
    for (n_types, pooling, wanted) in [
        (2, 4, TableRow::Type),
        (1, 4, TableRow::First),
        (2, 1, TableRow::First),
    ] {
        let mut w = tiny("bert");
        w.tensor("token_types.weight", &[8, n_types], 0);
        w.set("bert.pooling_type", Value::U32(pooling));
        let added = |op: &Op| match op {
            Op::AddRow { row, .. } => Some(*row),
            _ => None,
        };
        let added: Vec<_> = plan(&w).ops.iter().filter_map(added).collect();
        assert_eq!(added, [wanted, TableRow::Position], "{n_types} {pooling}");
    }
}

#[test]
fn the_second_of_so_many_layers_of_nomic_bert_moe_has_experts() {
    const KEY: &str = "nomic-bert-moe.moe_every_n_layers";
    let mut w = tiny("nomic-bert-moe");
    let routes = |op: &&Op| matches!(op, Op::Route { .. });
    assert_eq!(plan(&w).ops.iter().filter(routes).count(), 1);
    w.set(KEY, Value::U32(1));
    says(&message(load(&w.bytes()), Kind::Model), &[KEY, "2 to 1024"]);
    w.remove(KEY);
    says(&message(load(&w.bytes()), Kind::Model), &[KEY, "missing"]);
}
