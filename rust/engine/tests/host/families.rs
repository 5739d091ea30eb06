//! What families say of themselves beside sizes: windows, tables of angles, factors.
use onegraph::arch;
use onegraph::config::{Config, TensorSpec};
use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};
use onegraph::plan::{Gating, Op};
use onegraph::quant;

use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

pub fn config(w: &Writer) -> onegraph::Result<Config> {
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
    let numbers = |each: &[u32]| Value::Array(Array::U32(each.to_vec()));
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
        ("attn_logit_softcapping", Value::F32(50.0), "softcapping"),
        ("rope.scaling.alpha", Value::F32(1000.0), "rope.freq_base"),
        ("final_logit_softcapping", Value::F32(30.0), "softcapping"),
        ("attention.key_length_swa", Value::U32(5), "even"),
        ("attention.value_length_swa", Value::U32(4), "of the keys"),
        ("attention.shared_kv_layers", Value::U32(3), "0 to 2"),
        ("feed_forward_length", numbers(&[12, 0]), "or 2 of them"),
        ("feed_forward_length", numbers(&[12]), "or 2 of them"),
        ("attention.head_count_kv", numbers(&[1, 3]), "1 to 2"),
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

/// The bases of the tables of angles, the table of each rotation, the window of each layer.
pub fn tables(w: &Writer) -> (Vec<f64>, Vec<usize>, Vec<Option<usize>>) {
    let plan = arch::plan(&config(w).unwrap()).unwrap();
    let rotation = |op: &Op| op.signature().rotation.map(|rotation| rotation.table);
    let bases = plan.ropes.iter().map(|r| r.inv_freq[1].powi(-2).round());
    let rotated = plan.ops.iter().filter_map(rotation).collect();
    let attends = |op: &&Op| op.signature().attends().is_some();
    let attentions = plan.ops.iter().filter(attends);
    let windows = attentions.map(|op| op.signature().window).collect();
    (bases.collect(), rotated, windows)
}

#[test]
fn gemma_rotates_its_kinds_of_layers_by_tables_of_their_own() {
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
    assert!(plan.ops.iter().all(|op| op.signature().rotation.is_none()));
}

#[test]
fn lfm2_convolves_where_a_layer_has_no_heads_of_keys() {
    for arch in ["lfm2", "lfm2moe"] {
        let key = format!("{arch}.attention.head_count_kv");
        let plan = |w: &Writer| arch::plan(&config(w)?);
        let found = plan(&tiny(arch)).unwrap();
        let convolves = |op: &&Op| matches!(op, Op::GatedConv { .. });
        assert_eq!(found.ops.iter().filter(convolves).count(), 1);
        assert_eq!(
            found.kv.iter().map(|kv| kv.n_head_kv).collect::<Vec<_>>(),
            [0, 1]
        );
        // Two tokens of 8 values.
        assert_eq!(found.state_bytes(), 2 * 8 * 4);
        for (heads, said) in [
            (vec![0, 0], "at least one attention layer"),
            (vec![0], "from 0 to 2, or 2 of them"),
            (vec![0, 3], "from 0 to 2, or 2 of them"),
            (vec![0, -1], "from 0 to 2, or 2 of them"),
        ] {
            let mut w = tiny(arch);
            w.set(&key, Value::Array(Array::I32(heads)));
            let text = message(load(&w.bytes()), Kind::Model);
            says(&text, &[&key, said]);
        }
        // Where nothing convolves, every layer attends.
        let taps = format!("{arch}.shortconv.l_cache");
        let mut w = tiny(arch);
        w.remove(&taps);
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&key, "from 1 to 2, or 2 of them"]);
        w.set(&key, Value::U32(1));
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&taps, "missing", "2 to 16"]);
        for n in [1, 17] {
            w.set(&taps, Value::U32(n));
            let text = message(load(&w.bytes()), Kind::Model);
            says(&text, &[&taps, "2 to 16"]);
        }
    }
}

#[test]
fn lfm2_attends_in_the_window_that_its_file_says() {
    let window = |w: &Writer| {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let mut attends = plan.ops.iter().map(Op::signature);
        attends.find(|op| op.attends().is_some()).unwrap().window
    };
    let mut w = tiny("lfm2");
    assert_eq!(window(&w), None);
    w.set("lfm2.attention.sliding_window", Value::U32(4));
    assert_eq!(window(&w), Some(4));
}

#[test]
fn lfm2moe_has_experts_behind_its_dense_layers_by_the_gates_that_its_file_says() {
    let gates = |w: &Writer| -> Vec<_> {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let route = |op: &Op| match *op {
            Op::Route {
                gating,
                renormalize,
                bias,
                ..
            } => Some((gating, renormalize, bias.is_some())),
            _ => None,
        };
        plan.ops.iter().filter_map(route).collect()
    };
    let key = "lfm2moe.expert_gating_func";
    let mut w = tiny("lfm2moe");
    assert_eq!(gates(&w), [(Gating::Sigmoid, true, true)]);
    for (number, gating) in [(1, Gating::Softmax), (3, Gating::SelectedSoftmax)] {
        w.set(key, Value::U32(number));
        assert_eq!(gates(&w), [(gating, true, true)]);
    }
    w.set(key, Value::U32(4));
    says(&message(load(&w.bytes()), Kind::Model), &[key, "0 to 3"]);
    w.remove(key);
    says(&message(load(&w.bytes()), Kind::Model), &[key, "missing"]);
    let key = "lfm2moe.leading_dense_block_count";
    let mut w = tiny("lfm2moe");
    w.set(key, Value::U32(3));
    says(&message(load(&w.bytes()), Kind::Model), &[key, "0 to 2"]);
    // Its experts were too many then.
    w.set(key, Value::U32(2));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["blk.1.ffn_gate.weight", "found nothing"]);
}

#[test]
fn mistral3_rotates_queries_by_a_table_that_grows_with_their_position() {
    let plan = |w: &Writer| arch::plan(&config(w).unwrap()).unwrap();
    let mut w = tiny("mistral3");
    assert_eq!(plan(&w).ropes.len(), 1);
    w.set("mistral3.rope.dimension_count", Value::U32(2));
    assert_eq!(plan(&w).ropes.len(), 1);
    w.set("mistral3.attention.temperature_scale", Value::F32(0.5));
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &["mistral3.rope.dimension_count", "4, all of a head"],
    );
    w.set("mistral3.rope.dimension_count", Value::U32(4));
    // The context of training where no other is named.
    for (context, key) in [(32, None), (8, Some("original_context_length"))] {
        if let Some(key) = key {
            w.set(&format!("mistral3.rope.scaling.{key}"), Value::U32(context));
        }
        let plan = plan(&w);
        let rotation = |op: &Op| op.signature().rotation.map(|rotation| rotation.table);
        let rotated: Vec<_> = plan.ops.iter().filter_map(rotation).collect();
        assert_eq!(rotated, [1, 0, 1, 0]);
        let [keys, queries] = &plan.ropes[..] else {
            panic!("{} tables", plan.ropes.len())
        };
        assert_eq!(queries.inv_freq, keys.inv_freq);
        assert_eq!(queries.scale_at(context - 1), 1.0);
        for (times, position) in [(2.0, context), (3.0, 3 * context - 1)] {
            assert_eq!(queries.scale_at(position), 1.0 + 0.5 * f64::ln(times));
        }
        assert_eq!(keys.scale_at(1000), 1.0);
    }
    w.set("mistral3.attention.temperature_scale", Value::F32(0.0));
    assert_eq!(plan(&w).ropes.len(), 1);
}

#[test]
fn a_log_multiplier_takes_back_a_part_of_yarns_factor() {
    let scale = |arch: &str, multiplier: f32, factor: f32| {
        let mut w = tiny(arch);
        for (key, value) in [
            ("type", Value::String("yarn".into())),
            ("factor", Value::F32(factor)),
            ("yarn_log_multiplier", Value::F32(multiplier)),
        ] {
            w.set(&format!("{arch}.rope.scaling.{key}"), value);
        }
        arch::plan(&config(&w).unwrap()).unwrap().ropes[0].scale
    };
    let log = 0.1 * f64::ln(16.0);
    assert_eq!(scale("mistral3", 0.0, 16.0), 1.0 + log);
    assert_eq!(scale("mistral3", 1.0, 16.0), 1.0);
    let half = scale("mistral3", 0.5, 16.0);
    assert!((half - (1.0 + log) / (1.0 + log / 2.0)).abs() < 1e-15);
    // Nothing is squeezed where positions are spread.
    assert_eq!(scale("mistral3", 0.5, 0.5), 1.0);
    // Older files of other families have it too, and count without.
    assert_eq!(scale("llama", 1.0, 16.0), 1.0 + log);
}

#[test]
fn muse_glimmer_rotates_where_it_sees_a_window() {
    let mut w = tiny("muse-glimmer");
    let kinds = Value::Array(Array::Bool(vec![true, false]));
    w.set("muse-glimmer.attention.sliding_window_pattern", kinds);
    assert_eq!(tables(&w), (vec![1e4], vec![0, 0], vec![Some(4), None]));
    w.set("muse-glimmer.rope.freq_base_swa", Value::F32(100.0));
    assert_eq!(tables(&w).0, vec![100.0]);
    for key in [
        "logit_scale",
        "final_logit_softcapping",
        "attention.sliding_window",
    ] {
        let (mut w, key) = (tiny("muse-glimmer"), format!("muse-glimmer.{key}"));
        w.remove(&key);
        says(&message(load(&w.bytes()), Kind::Model), &[&key, "missing"]);
    }
}

#[test]
fn olmo_scales_the_angles_of_layers_that_see_all() {
    let mut w = tiny("olmo2");
    let kinds = Value::Array(Array::Bool(vec![true, false]));
    w.set("olmo2.attention.sliding_window_pattern", kinds);
    w.set(
        "olmo2.rope.scaling.type",
        Value::String("linear".to_owned()),
    );
    w.set("olmo2.rope.scaling.factor", Value::F32(4.0));
    let (local, global) = (Some(4), None);
    // A fourth of the angle of pair 1, which its base's square root divides.
    let found = tables(&w);
    assert_eq!(
        found,
        (vec![1.6e5, 1e4], vec![1, 1, 0, 0], vec![local, global])
    );
    w.remove("olmo2.attention.sliding_window");
    assert_eq!(tables(&w), (vec![1.6e5], vec![0; 4], vec![None; 2]));
}

#[test]
fn olmo_names_the_whole_of_yarns_factor() {
    let scale = |arch: &str, named: Option<(&str, f32)>| {
        let mut w = tiny(arch);
        let key = |part: &str| format!("{arch}.rope.scaling.{part}");
        w.set(&key("type"), Value::String("yarn".to_owned()));
        w.set(&key("factor"), Value::F32(8.0));
        if let Some((name, factor)) = named {
            w.set(&key(name), Value::F32(factor));
        }
        arch::plan(&config(&w).unwrap()).unwrap().ropes[0].scale
    };
    let whole = 1.0 + 0.1 * f64::ln(8.0);
    assert_eq!(scale("olmo2", None), whole);
    for (arch, name) in [
        ("olmo2", "attn_factor"),
        ("olmo2", "yarn_attn_factor"),
        ("llama", "yarn_attn_factor"),
    ] {
        assert!((scale(arch, Some((name, 1.25))) - 1.25).abs() < 1e-15);
    }
    assert_eq!(scale("llama", Some(("attn_factor", 1.25))), 1.25 * whole);
}

#[test]
fn mistral3_has_experts_as_wide_as_its_file_says_of_all() {
    let mut w = tiny("mistral3");
    for (key, n) in [("expert_count", 3), ("expert_used_count", 2)] {
        w.set(&format!("mistral3.{key}"), Value::U32(n));
    }
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["blk.0.ffn_gate_inp.weight", "found nothing"]);
    w.tensors
        .retain(|t| !t.name.contains("ffn_") || t.name.contains("ffn_norm"));
    for layer in 0..2 {
        for (name, shape, ty) in [
            ("gate_inp", &[8, 3][..], 0),
            ("gate_exps", &[8, 12, 3], 1),
            ("up_exps", &[8, 12, 3], 1),
            ("down_exps", &[12, 8, 3], 1),
        ] {
            w.tensor(&format!("blk.{layer}.ffn_{name}.weight"), shape, ty);
        }
    }
    load(&w.bytes()).unwrap();
}

#[test]
fn gemma_4_has_layers_of_two_kinds_and_layers_that_store_nothing() {
    let mut w = tiny("gemma4");
    // Local heads of 2 numbers, two of them of keys; the third and fourth layers read what the first
    // two have stored.
    for (key, n) in [
        ("block_count", 4),
        ("attention.key_length", 4),
        ("attention.key_length_swa", 2),
        ("rope.dimension_count_swa", 2),
        ("attention.shared_kv_layers", 2),
    ] {
        w.set(&format!("gemma4.{key}"), Value::U32(n));
    }
    let heads = Array::I32(vec![2, 1, 2, 1]);
    w.set("gemma4.attention.head_count_kv", Value::Array(heads));
    let widths = Array::I32(vec![12, 12, 16, 16]);
    w.set("gemma4.feed_forward_length", Value::Array(widths));
    let local = Array::Bool(vec![true, false, true, false]);
    let key = "gemma4.attention.sliding_window_pattern";
    w.set(key, Value::Array(local));
    w.set("gemma4.final_logit_softcapping", Value::F32(30.0));
    let mut config = config(&w).unwrap();
    let spec = |shape: &[usize], ty| TensorSpec {
        shape: shape.to_vec(),
        ty: quant::by_name(ty).unwrap(),
    };
    for (part, shape) in [
        ("attn_q.weight", [8, 4]),
        ("attn_v.weight", [8, 4]),
        ("attn_output.weight", [4, 8]),
    ] {
        let name = format!("blk.0.{part}");
        config.tensors.insert(name, spec(&shape, "F16"));
    }
    for part in ["attn_q_norm.weight", "attn_k_norm.weight"] {
        config
            .tensors
            .insert(format!("blk.0.{part}"), spec(&[2], "F32"));
    }
    for (name, mut spec) in config.tensors.clone() {
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|n| n.split_once('.')) else {
            continue;
        };
        if part.starts_with("ffn_") {
            let wide = spec.shape.iter_mut().filter(|n| **n == 12);
            wide.for_each(|n| *n = 16);
        }
        // Those that make keys may be there or not.
        if layer == "1" && part.starts_with("attn_k") {
            continue;
        }
        let layer = layer.parse::<usize>().unwrap() + 2;
        config.tensors.insert(format!("blk.{layer}.{part}"), spec);
    }
    let scale = "blk.3.layer_output_scale.weight".to_owned();
    config.tensors.insert(scale, spec(&[1], "F32"));
    let plan = arch::plan(&config).unwrap();
    plan.check().unwrap();

    let shapes: Vec<_> = plan
        .kv
        .iter()
        .map(|kv| (kv.n_head_kv, kv.head_dim))
        .collect();
    assert_eq!(shapes, [(2, 2), (1, 4), (0, 0), (0, 0)]);
    let attentions = plan.ops.iter().filter_map(|op| match op {
        Op::Attention {
            layer,
            window,
            scale,
            ..
        } => Some((*layer, *window, *scale)),
        _ => None,
    });
    let (local, global) = ((0, Some(4), 1.0), (1, None, 1.0));
    assert_eq!(
        attentions.collect::<Vec<_>>(),
        [local, global, local, global]
    );
    let tables = plan
        .ropes
        .iter()
        .map(|r| (r.inv_freq.len(), r.factors.is_some()));
    assert_eq!(tables.collect::<Vec<_>>(), [(2, true), (1, false)]);
    let rotated = plan.ops.iter().filter_map(|op| op.signature().rotation);
    let rotated: Vec<_> = rotated.map(|rotation| rotation.table).collect();
    assert_eq!(rotated, [1, 1, 0, 0, 1, 0]);
    // Values are normalized: in the first layer those of a product, in the second its keys.
    let values = plan.ops.iter().filter_map(|op| match op {
        Op::RmsNorm {
            x,
            weight: None,
            out,
            ..
        } => Some((
            plan.buffer(*x).name.as_str(),
            plan.buffer(*out).name.as_str(),
        )),
        _ => None,
    });
    assert_eq!(values.collect::<Vec<_>>(), [("v", "v"), ("k", "v")]);
    let scaled = |op: &&Op| matches!(op, Op::ScaleBy { .. });
    assert_eq!(plan.ops.iter().filter(scaled).count(), 1);
    assert!(matches!(plan.ops.last(), Some(Op::SoftCap { cap, .. }) if *cap == 30.0));

    // The last that store must be one of each kind, and with as many heads.
    let sharing = |change: fn(&mut Config)| {
        let mut config = config.clone();
        change(&mut config);
        message(arch::plan(&config), Kind::Model)
    };
    for text in [
        sharing(|c| c.n_layer_shared_kv = 3),
        sharing(|c| c.n_layer_shared_kv = 4),
        sharing(|c| c.n_head_kv_of[2] = 1),
    ] {
        says(&text, &["shared_kv_layers", "a layer with a window, then"]);
    }
}

#[test]
fn gemma_4_says_which_layers_see_a_window() {
    for value in [None, Some(Value::U32(6))] {
        let mut w = tiny("gemma4");
        let key = "gemma4.attention.sliding_window_pattern";
        w.remove(key);
        if let Some(value) = value {
            w.set(key, value);
        }
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[key, "2 bools", "which layers see a window"]);
    }
    let mut w = tiny("gemma4");
    w.set("gemma4.rope.dimension_count_swa", Value::U32(6));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["rope.dimension_count_swa", "6", "at most 4"]);
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

#[test]
fn glm4moe_has_the_experts_that_its_file_says() {
    let routed = |w: &Writer| {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let route = plan.ops.iter().find_map(|op| match op {
            Op::Route {
                gating,
                renormalize,
                scale,
                ..
            } => Some((*gating, *renormalize, *scale)),
            _ => None,
        });
        let shared = plan.weights.iter().filter(|w| w.name.contains("shexp"));
        (route.unwrap(), shared.count())
    };
    let mut w = tiny("glm4moe");
    assert_eq!(routed(&w), ((Gating::Sigmoid, true, 1.0), 3));
    w.remove("glm4moe.expert_gating_func");
    w.remove("glm4moe.expert_weights_norm");
    w.set("glm4moe.expert_weights_scale", Value::F32(2.5));
    w.set("glm4moe.expert_shared_count", Value::U32(0));
    w.tensors.retain(|t| !t.name.contains("shexp"));
    assert_eq!(routed(&w), ((Gating::Sigmoid, false, 2.5), 0));
    w.set("glm4moe.expert_gating_func", Value::U32(1));
    assert_eq!(routed(&w).0, (Gating::Softmax, false, 2.5));
}
