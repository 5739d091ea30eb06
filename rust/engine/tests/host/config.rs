//! Hyper-parameters: absurd, missing or wrongly typed ones; tensors that do not fit them.
use onegraph::arch::{self, ARCHITECTURES};
use onegraph::config::{Config, RopeScaling};
use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};

use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

fn config(w: &Writer) -> onegraph::Result<Config> {
    let gguf = Gguf::parse(&w.bytes())?;
    Config::new(&gguf, gguf.tensors.iter())
}

#[track_caller]
fn refused(key: &str, value: Value, parts: &[&str]) {
    let mut w = tiny("llama");
    w.set(key, value);
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &[&[key][..], parts].concat());
}

#[test]
fn numbers_out_of_range() {
    for (key, range, wrong) in [
        ("block_count", "1 to 1024", [0, 1025]),
        ("embedding_length", "1 to 1048576", [0, 1 << 21]),
        ("feed_forward_length", "1 to 1048576", [0, 1 << 21]),
        ("attention.head_count", "1 to 4096", [0, 5000]),
        ("attention.head_count_kv", "1 to 2", [0, 3]),
        ("attention.key_length", "1 to 1024", [0, 1025]),
        ("attention.value_length", "1 to 1024", [0, 1025]),
        ("rope.dimension_count", "2 to 4", [0, 5]),
        ("context_length", "1 to 1073741824", [0, (1 << 30) + 1]),
    ] {
        let key = format!("llama.{key}");
        for n in wrong.into_iter().chain([1 << 32, 1 << 63, u64::MAX]) {
            refused(&key, Value::U64(n), &[&n.to_string(), range]);
        }
        refused(&key, Value::I32(-1), &["-1", "non-negative"]);
    }
}

#[test]
fn floats_out_of_range() {
    const NEVER: [f32; 4] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0];
    for (key, wrong) in [
        ("attention.layer_norm_rms_epsilon", [0.0, 2.0]),
        ("rope.freq_base", [0.0, 1e30]),
        ("rope.scaling.factor", [1e-5, 1e30]),
        ("rope.scale_linear", [1e-5, 1e30]),
    ] {
        let key = format!("llama.{key}");
        for x in wrong.into_iter().chain(NEVER) {
            refused(&key, Value::F32(x), &["expected"]);
        }
        refused(&key, Value::F64(f64::MAX), &["expected"]);
        refused(&key, Value::F64(f64::MIN_POSITIVE), &["expected"]);
        refused(&key, Value::U32(1), &["a finite float"]);
    }
    for (key, wrong) in [
        ("yarn_attn_factor", [0.0, 1e3]),
        ("attn_factor", [0.0, 1e3]),
        ("yarn_beta_fast", [0.0, 1e5]),
        ("yarn_beta_slow", [0.0, 1e5]),
        ("yarn_ext_factor", [0.0, 0.5]),
    ] {
        for x in wrong.into_iter().chain(NEVER) {
            let key = format!("llama.rope.scaling.{key}");
            let mut w = tiny("llama");
            w.set("llama.rope.scaling.type", Value::String("yarn".into()));
            w.set(&key, Value::F32(x));
            let text = message(load(&w.bytes()), Kind::Model);
            says(&text, &[&key, "expected"]);
        }
    }
}

#[test]
fn numbers_that_contradict_each_other() {
    refused(
        "llama.attention.head_count",
        Value::U32(3),
        &["3", "divisor", "8"],
    );
    let mut w = tiny("llama");
    w.set("llama.attention.head_count", Value::U32(4));
    w.set("llama.attention.head_count_kv", Value::U32(3));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["head_count_kv", "3", "divisor of the 4"]);

    refused("llama.attention.key_length", Value::U32(5), &["5", "even"]);
    let mut w = tiny("llama");
    w.remove("llama.rope.dimension_count");
    w.set("llama.attention.head_count", Value::U32(8));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["llama.attention.key_length", "1 (8 heads", "even"]);
    refused("llama.attention.value_length", Value::U32(6), &["6", "4"]);
    refused("llama.rope.dimension_count", Value::U32(3), &["3", "even"]);

    let mut w = tiny("llama");
    w.set("llama.rope.scaling.type", Value::String("yarn".into()));
    w.set("llama.rope.scaling.yarn_beta_slow", Value::F32(64.0));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["yarn_beta_slow", "64", "yarn_beta_fast, 32"]);

    let tokens = ["a", "b"].into_iter().collect();
    let tokens = Value::Array(Array::String(tokens));
    refused(
        "tokenizer.ggml.tokens",
        tokens,
        &["2 strings", "6, the rows"],
    );
}

#[test]
fn what_changes_the_mathematics_is_not_ignored() {
    let mut w = tiny("llama");
    w.set("llama.expert_count", Value::U32(8));
    w.set("llama.expert_used_count", Value::U32(2));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["llama.expert_count", "8", "mixtures of experts"]);
    refused(
        "llama.attention.causal",
        Value::Bool(false),
        &["false", "bidirectional"],
    );
    let mut w = tiny("llama");
    w.set("llama.expert_count", Value::U32(8));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["expert_used_count", "missing", "1 to 8"]);
    let longrope = Value::String("longrope".into());
    refused(
        "llama.rope.scaling.type",
        longrope,
        &["longrope", "none, linear or yarn"],
    );
    let mut w = tiny("llama");
    w.set("llama.expert_count", Value::U32(0));
    w.set("llama.attention.causal", Value::Bool(true));
    load(&w.bytes()).unwrap();
}

#[test]
fn wrong_types() {
    let string = || Value::String("2".into());
    let array = || Value::Array(Array::U32(vec![2]));
    for key in ["block_count", "embedding_length", "attention.head_count_kv"] {
        let key = format!("llama.{key}");
        refused(&key, string(), &["\"2\"", "non-negative integer"]);
        refused(
            &key,
            array(),
            &["an array of 1 u32", "non-negative integer"],
        );
        refused(&key, Value::F32(2.0), &["2.0", "non-negative integer"]);
        refused(&key, Value::Bool(true), &["true", "non-negative integer"]);
    }
    refused("general.architecture", Value::U32(1), &["1", "a string"]);
    refused("general.name", Value::U32(1), &["1", "a string"]);
    refused("llama.rope.scaling.type", Value::U32(1), &["1", "a string"]);
    refused(
        "tokenizer.ggml.tokens",
        string(),
        &["\"2\"", "an array of strings"],
    );
    refused(
        "tokenizer.ggml.tokens",
        array(),
        &["1 u32", "an array of strings"],
    );
}

#[test]
fn missing_keys() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let mut w = tiny("llama");
        w.remove(key);
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[key, "missing", "expected"]);
    }
    let mut w = tiny("llama");
    for key in [
        "general.name",
        "llama.rope.freq_base",
        "llama.rope.dimension_count",
    ] {
        w.remove(key);
        load(&w.bytes()).unwrap();
    }
}

#[test]
fn other_architectures_are_listed() {
    let mut w = tiny("gpt2");
    w.remove("gpt2.attention.layer_norm_rms_epsilon");
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &[
            "architecture \"gpt2\" is not supported",
            "llama, qwen2, qwen3, qwen3moe, gpt-oss, qwen35, qwen35moe, qwen3next, gemma3, \
             gemma4, granite, lfm2, lfm2moe, mistral3, muse-glimmer, olmo2, smollm3, ernie4_5, \
             seed_oss, hunyuan-dense, glm4, exaone4, glm4moe, phi3, cohere2, command-r, \
             laguna, nemotron_h, nemotron_h_moe, granitehybrid, deepseek2, qwen4exp, bert, \
             nomic-bert, nomic-bert-moe, gemma-embedding",
        ],
    );
}

#[test]
fn missing_tensors_and_wrong_shapes() {
    for arch in ARCHITECTURES {
        for i in 0..tiny(arch.name).tensors.len() {
            let mut w = tiny(arch.name);
            let gone = w.tensors.remove(i).name;
            let text = message(load(&w.bytes()), Kind::Model);
            says(
                &text,
                &[&format!("tensor {gone}"), "found nothing", "fetch it again"],
            );

            let mut shapes = Vec::new();
            let shape = tiny(arch.name).tensors[i].shape.clone();
            for d in 0..shape.len() {
                shapes.push(shape.clone());
                shapes[d][d] += 2;
            }
            shapes.push(shape.iter().map(|n| n + 1).collect());
            shapes.push([&shape[..], &[2]].concat());
            shapes.push(vec![shape.iter().product::<u64>() + 1]);
            if shape.len() == 2 && shape[0] != shape[1] {
                shapes.push(shape.iter().rev().copied().collect());
            }
            for wrong in shapes {
                let mut w = tiny(arch.name);
                // Without it the vocabulary's length speaks first.
                w.remove("tokenizer.ggml.tokens");
                let t = w.tensors.remove(i);
                w.tensor(&t.name, &wrong, t.ty.id);
                let is_table = arch.name == "qwen4exp" && t.name.starts_with("per_layer");
                if is_table && wrong.len() == 2 && wrong[0] == shape[0] {
                    continue; // More rows than hashes reach are no contradiction.
                }
                let expected = if t.name != "token_embd.weight" {
                    format!("{shape:?}")
                } else if wrong.len() == 2 && wrong[0] == shape[0] {
                    continue; // Another vocabulary is no contradiction.
                } else {
                    // Its second dimension is what says how large the vocabulary is.
                    format!("[{}, {}]", shape[0], wrong.get(1).unwrap_or(&1))
                };
                let text = message(load(&w.bytes()), Kind::Model);
                let found = format!("the shape {wrong:?}");
                says(&text, &[&t.name, &found, &expected, "disagree"]);
            }
        }
    }
}

#[test]
fn tensors_that_no_op_reads_are_not_ignored() {
    for (arch, name) in [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("qwen2", "blk.2.attn_norm.weight"),
        ("qwen3", "extra\n"),
        ("gemma3", "dense_2.weight"),
        ("gemma4", "blk.0.post_norm.weight"),
        ("granite", "blk.0.attn_q_norm.weight"),
        // With this one guesses about the meaning of a text, not its next token.
        ("lfm2", "dense_2.weight"),
        ("lfm2moe", "blk.0.exp_probs_b.bias"),
        ("muse-glimmer", "blk.0.attn_sinks.weight"),
        ("olmo2", "blk.0.attn_norm.weight"),
    ] {
        let mut w = tiny(arch);
        w.tensor(name, &[4], 0);
        let text = message(load(&w.bytes()), Kind::Model);
        let name = name.replace('\n', "\\n");
        let arch = format!("no such tensor in a {arch} model");
        says(&text, &[&format!("tensor {name}:"), &arch, "variant"]);
    }
    let mut w = tiny("llama");
    w.tensor("blk.0.attn_rot_embd.weight", &[2], 0);
    w.tensor("rope_freqs.weight", &[2], 0);
    w.tensor("output.weight", &[8, 6], 1);
    w.tensor("blk.1.attn_q.bias", &[8], 0);
    load(&w.bytes()).unwrap();
}

#[test]
fn a_vocabulary_only_file_has_no_config_and_says_why() {
    let mut w = tiny("llama");
    w.tensors.clear();
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &["token_embd.weight", "found nothing", "vocabulary only"],
    );
}

#[test]
fn values_are_read_as_written() {
    let mut w = tiny("llama");
    w.set("llama.attention.key_length", Value::U64(4));
    w.set("llama.rope.freq_base", Value::F64(5e5));
    let c = config(&w).unwrap();
    assert_eq!(
        (c.arch.as_str(), c.name.as_deref()),
        ("llama", Some("tiny"))
    );
    assert_eq!((c.n_layer, c.n_embd, c.n_ff, c.n_vocab), (2, 8, 12, 6));
    assert_eq!((c.n_head, c.n_head_kv, c.head_dim), (2, 1, 4));
    assert_eq!((c.n_ctx_train, c.rope_dim), (32, 4));
    assert_eq!((c.rms_eps, c.rope_base), (1e-5, 5e5));
    assert_eq!(c.rope_scaling, RopeScaling::None);
    assert_eq!(c.tensors.len(), w.tensors.len());
    assert!(arch::plan(&c).is_ok());
}

#[test]
fn rope_scaling_is_read_in_all_its_spellings() {
    let scaling = |pairs: &[(&str, Value)]| {
        let mut w = tiny("llama");
        for (key, value) in pairs {
            w.set(&format!("llama.rope.{key}"), value.clone());
        }
        config(&w).unwrap().rope_scaling
    };
    let kind = |s: &str| ("scaling.type", Value::String(s.into()));
    let factor = |x| ("scaling.factor", Value::F32(x));
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(scaling(&[factor(4.0)]), linear);
    assert_eq!(scaling(&[kind("linear"), factor(4.0)]), linear);
    assert_eq!(scaling(&[("scale_linear", Value::F32(4.0))]), linear);
    assert_eq!(scaling(&[kind("linear"), factor(0.0)]), RopeScaling::None);
    assert_eq!(scaling(&[kind("none"), factor(4.0)]), RopeScaling::None);
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_ctx: 32,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(scaling(&[kind("yarn"), factor(4.0)]), yarn);
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_ctx: 16,
        attn_factor: 0.5,
        beta_fast: 16.0,
        beta_slow: 2.0,
    };
    let all = [
        kind("yarn"),
        factor(4.0),
        ("scaling.original_context_length", Value::U32(16)),
        ("scaling.attn_factor", Value::F32(0.5)),
        ("scaling.yarn_ext_factor", Value::F32(1.0)),
        ("scaling.yarn_beta_fast", Value::F32(16.0)),
        ("scaling.yarn_beta_slow", Value::F32(2.0)),
    ];
    assert_eq!(scaling(&all), yarn);
}
