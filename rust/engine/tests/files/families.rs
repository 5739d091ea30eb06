//! What families say of themselves beside sizes: windows, tables of angles, factors.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};
use onegraph::plan::Op;

use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

fn config(w: &Writer) -> onegraph::Result<Config> {
    let gguf = Gguf::parse(&w.bytes())?;
    Config::new(&gguf, gguf.tensors.iter())
}

#[test]
fn a_window_is_of_the_layers_that_the_file_or_the_architecture_says() {
    let local = |pairs: &[(&str, Value)], period| {
        let mut w = tiny("llama");
        for (key, value) in pairs {
            w.set(
                &format!("llama.attention.sliding_window{key}"),
                value.clone(),
            );
        }
        let window = config(&w).unwrap().window;
        window.map(|w| (0..5).map(|layer| w.of(layer, period)).collect::<Vec<_>>())
    };
    let (tokens, some) = (("", Value::U32(7)), Some(7));
    let period = |n| ("_pattern", Value::U32(n));
    let each = |layers: &[bool]| ("_pattern", Value::Array(Array::Bool(layers.to_vec())));
    let all_but_last = vec![some, some, None, some, some];
    let found = local(std::slice::from_ref(&tokens), 3);
    assert_eq!(found, Some(all_but_last.clone()));
    assert_eq!(local(&[tokens.clone(), period(3)], 6), Some(all_but_last));
    assert_eq!(local(&[tokens.clone(), period(1)], 6), Some(vec![None; 5]));
    assert_eq!(local(&[tokens.clone(), period(0)], 6), Some(vec![some; 5]));
    let first = vec![some, None, None, None, None];
    assert_eq!(local(&[tokens, each(&[true, false])], 6), Some(first));
    assert_eq!(local(&[], 6), None);
    assert_eq!(local(&[("", Value::U32(0)), period(3)], 6), None);
}

#[test]
fn windows_factors_and_caps_that_make_no_sense_are_refused() {
    let bools = |n| Value::Array(Array::Bool(vec![true; n]));
    for (key, value, said) in [
        ("attention.sliding_window", Value::I32(-1), "non-negative"),
        (
            "attention.sliding_window",
            Value::U64(1 << 31),
            "1073741824",
        ),
        ("attention.sliding_window_pattern", Value::U32(2000), "1024"),
        ("attention.sliding_window_pattern", bools(3), "or 2 bools"),
        ("rope.freq_base_swa", Value::F32(1.0), "2 to"),
        ("embedding_scale", Value::F32(-1.0), "0 to"),
        ("residual_scale", Value::F32(1e-12), "0 for none, or 1e-9"),
        ("logit_scale", Value::F32(1e12), "1000000000"),
        ("attention.scale", Value::F32(f32::NAN), "finite"),
        ("attn_logit_softcapping", Value::F32(50.0), "caps of scores"),
        (
            "final_logit_softcapping",
            Value::F32(30.0),
            "caps of scores",
        ),
    ] {
        let mut w = tiny("llama");
        w.set("llama.attention.sliding_window", Value::U32(8));
        w.set(&format!("llama.{key}"), value);
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&format!("llama.{key}"), said]);
    }
    let mut w = tiny("granite");
    w.remove("granite.logit_scale");
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["granite.logit_scale", "missing", "divided by"]);
}

#[test]
fn gemma_turns_its_kinds_of_layers_by_tables_of_their_own() {
    let tables = |w: &Writer| {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let turn = |op: &Op| op.signature().turn.map(|turn| turn.table);
        let bases = plan.ropes.iter().map(|r| r.inv_freq[1].powi(-2).round());
        let turned: Vec<_> = plan.ops.iter().filter_map(turn).collect();
        let attends = |op: &&Op| op.signature().attends().is_some();
        let attentions = plan.ops.iter().filter(attends);
        let windows: Vec<_> = attentions.map(|op| op.signature().window).collect();
        (bases.collect::<Vec<_>>(), turned, windows)
    };
    let mut w = tiny("gemma3");
    w.set("gemma3.rope.freq_base", Value::F32(1e6));
    w.set("gemma3.attention.sliding_window_pattern", Value::U32(2));
    let (local, global) = (Some(4), None);
    let found = tables(&w);
    assert_eq!(
        found,
        (vec![1e6, 1e4], vec![1, 1, 0, 0], vec![local, global])
    );
    w.set("gemma3.rope.freq_base_swa", Value::F32(500.0));
    assert_eq!(tables(&w).0, [1e6, 500.0]);
    w.remove("gemma3.attention.sliding_window");
    assert_eq!(tables(&w), (vec![1e6], vec![0; 4], vec![None; 2]));
}

#[test]
fn the_largest_gemma_scales_scores_by_the_width_of_the_model() {
    let scale = |n_layer| {
        let mut config = config(&tiny("gemma3")).unwrap();
        // One head of 4, for which the model has 8.
        (config.n_layer, config.n_head) = (n_layer, 1);
        for (name, spec) in &mut config.tensors {
            if name.ends_with("attn_q.weight") {
                spec.shape = vec![8, 4];
            }
            if name.ends_with("attn_output.weight") {
                spec.shape = vec![4, 8];
            }
        }
        // The other layers are as the first.
        for layer in 2..n_layer {
            let tensors = config.tensors.clone().into_iter();
            let alike = tensors.filter_map(|(name, spec)| {
                let part = name.strip_prefix("blk.0.")?;
                Some((format!("blk.{layer}.{part}"), spec))
            });
            config.tensors.extend(alike.collect::<Vec<_>>());
        }
        let ops = arch::plan(&config).unwrap().ops;
        let scales = ops.iter().filter_map(|op| match op {
            Op::Attention { scale, .. } => Some(*scale),
            _ => None,
        });
        scales.collect::<Vec<_>>()
    };
    assert_eq!(scale(3), [0.5; 3]);
    assert_eq!(scale(62), [1.0 / 8f32.sqrt(); 62]);
}

#[test]
fn granite_multiplies_what_its_file_says() {
    let scales = |pairs: &[(&str, f32)]| {
        let mut w = tiny("granite");
        for (key, factor) in pairs {
            w.set(&format!("granite.{key}"), Value::F32(*factor));
        }
        let ops = arch::plan(&config(&w).unwrap()).unwrap().ops;
        let factor = |op: &Op| match op {
            Op::Embed { scale, .. } => Some(("embedding", *scale)),
            Op::Attention { scale, .. } => Some(("scores", *scale)),
            Op::Scale { factor, .. } => Some(("rows", *factor)),
            _ => None,
        };
        ops.iter().filter_map(factor).collect::<Vec<_>>()
    };
    let given = [
        ("embedding_scale", 12.0),
        ("residual_scale", 0.25),
        ("attention.scale", 0.125),
        ("logit_scale", 4.0),
    ];
    let layer = [("scores", 0.125), ("rows", 0.25), ("rows", 0.25)];
    let wanted = [
        &[("embedding", 12.0)][..],
        &layer,
        &layer,
        &[("rows", 0.25)],
    ]
    .concat();
    assert_eq!(scales(&given), wanted);
    let found = scales(&[("embedding_scale", 0.0)]);
    assert_eq!(found[..2], [("embedding", 1.0), ("scores", 0.5)]);
    let mut w = tiny("granite");
    w.set("granite.rope.scaling.finetuned", Value::Bool(false));
    let plan = arch::plan(&config(&w).unwrap()).unwrap();
    assert!(plan.ops.iter().all(|op| op.signature().turn.is_none()));
}

#[test]
fn an_expert_of_every_row_has_its_own_width_and_one_row_for_a_gate() {
    const KEY: &str = "qwen35moe.expert_shared_feed_forward_length";
    let mut w = tiny("qwen35moe");
    // All of it is experts: converters write no other width.
    w.remove("qwen35moe.feed_forward_length");
    let found = config(&w).unwrap();
    assert_eq!(found.n_ff, 0);
    assert_eq!(found.experts.unwrap().n_ff_shared, Some(10));
    arch::plan(&found).unwrap();
    // A vector may be written as a matrix of one row.
    let mut two = found.clone();
    let name = "blk.1.ffn_gate_inp_shexp.weight";
    two.tensors.get_mut(name).unwrap().shape = vec![8, 1];
    arch::plan(&two).unwrap();
    two.tensors.get_mut(name).unwrap().shape = vec![8, 2];
    says(&message(arch::plan(&two), Kind::Model), &[name, "[8, 2]"]);
    // Without a word on it, the width of models without experts; without that, none.
    w.remove(KEY);
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &[KEY, "missing", "every row goes to"]);
    w.set("qwen35moe.feed_forward_length", Value::U32(10));
    load(&w.bytes()).unwrap();
    // Experts that do not say how wide they are share that width.
    w.remove("qwen35moe.expert_feed_forward_length");
    w.remove("qwen35moe.feed_forward_length");
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["qwen35moe.feed_forward_length", "missing"]);
}

#[test]
fn products_have_the_scales_that_the_file_has() {
    const F32: u32 = 0;
    let mut w = tiny("qwen35moe");
    w.tensor("output.weight", &[8, 6], F32);
    let of_one = ["output", "blk.1.attn_q", "blk.0.ssm_out"];
    for name in of_one {
        w.tensor(&format!("{name}.scale"), &[1], F32);
        // What a product's input is scaled by where it is rounded to four bits, which none is here.
        w.tensor(&format!("{name}.input_scale"), &[1], F32);
    }
    w.tensor("blk.1.ffn_up_exps.scale", &[3], F32);
    let plan = arch::plan(&config(&w).unwrap()).unwrap();
    let scaled = |op: &Op| match op {
        Op::MatVec { weight, scale, .. } | Op::ExpertMatVec { weight, scale, .. } => {
            let (weight, scale) = (plan.weight(*weight), plan.weight((*scale)?));
            let name = weight.name.trim_end_matches(".weight");
            assert_eq!(scale.name, format!("{name}.scale"));
            assert_eq!((scale.n_in, scale.n_out), (1, 1));
            assert_eq!(scale.n_expert, weight.n_expert);
            Some(name)
        }
        _ => None,
    };
    let found: Vec<_> = plan.ops.iter().filter_map(scaled).collect();
    let wanted = [
        "blk.0.ssm_out",
        "blk.1.attn_q",
        "blk.1.ffn_up_exps",
        "output",
    ];
    assert_eq!(found, wanted);
    load(&w.bytes()).unwrap();
    for (name, shape) in [
        ("blk.1.attn_k.scale", 2),
        ("blk.1.ffn_down_exps.scale", 1),
        // Of what no product is multiplied by.
        ("blk.1.ffn_gate_inp.scale", 1),
    ] {
        let mut w = tiny("qwen35moe");
        w.tensor(name, &[shape], F32);
        says(&message(load(&w.bytes()), Kind::Model), &[name]);
    }
}
