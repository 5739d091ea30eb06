//! What families say of the heads of their layers: how many there are, which are rotated, and by what.
use onegraph::arch;
use onegraph::error::Kind;
use onegraph::gguf::{Array, Value};
use onegraph::plan::{KvShape, Op, RopeStyle};

use crate::families::{config, tables};
use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

#[test]
fn deepseeks_values_are_in_its_keys_and_early_files_are_refused_with_the_reason() {
    let w = tiny("deepseek2");
    let plan = arch::plan(&config(&w).unwrap()).unwrap();
    let wanted = KvShape {
        values_in_keys: Some(6),
        ..KvShape::new(1, 10)
    };
    assert_eq!(plan.kv, [wanted; 2]);
    let scale = plan.ops.iter().find_map(|op| match op {
        Op::Attention { scale, .. } => Some(*scale),
        _ => None,
    });
    assert_eq!(scale, Some((1.0 / 7f64.sqrt()) as f32));
    for (key, value, wanted) in [
        ("attention.key_length_mla", None, "attn_k_b and attn_v_b"),
        ("attention.value_length_mla", None, "attn_k_b and attn_v_b"),
        ("attention.kv_lora_rank", None, "value_length"),
        (
            "attention.kv_lora_rank",
            Some(4),
            "attention.kv_lora_rank 4",
        ),
        (
            "attention.key_length_mla",
            Some(4),
            "below attention.key_length_mla 4",
        ),
        (
            "attention.value_length",
            Some(10),
            "6, attention.kv_lora_rank",
        ),
        (
            "attention.head_count_kv",
            Some(2),
            "others are not supported",
        ),
    ] {
        let (key, mut w) = (format!("deepseek2.{key}"), tiny("deepseek2"));
        w.remove(&key);
        if let Some(n) = value {
            w.set(&key, Value::U32(n));
        }
        says(&message(load(&w.bytes()), Kind::Model), &[wanted]);
    }
    let mut w = tiny("deepseek2");
    w.set("deepseek2.attention.temperature_scale", Value::F32(0.1));
    says(
        &message(load(&w.bytes()), Kind::Model),
        &["temperature_scale"],
    );
}

#[test]
fn yarn_of_deepseek_is_a_factor_of_scores() {
    let of = |multiplier: Option<f32>| {
        let mut w = tiny("deepseek2");
        let yarn = Value::String("yarn".into());
        w.set("deepseek2.rope.scaling.type", yarn);
        w.set("deepseek2.rope.scaling.factor", Value::F32(40.0));
        if let Some(by) = multiplier {
            w.set("deepseek2.rope.scaling.yarn_log_multiplier", Value::F32(by));
        }
        let plan = arch::plan(&config(&w).unwrap()).unwrap();
        let scale = plan.ops.iter().find_map(|op| match op {
            Op::Attention { scale, .. } => Some(f64::from(*scale)),
            _ => None,
        });
        (plan.ropes[0].scale, scale.unwrap() * 7f64.sqrt())
    };
    let log = 40f64.ln();
    for (multiplier, angles, scores) in [
        (None, 1.0 + 0.1 * log, 1.0 + 0.1 * log),
        (Some(0.0707), 1.0, 1.0 + 0.0707 * log),
        (Some(0.1), 1.0, 1.0 + 0.1 * log),
    ] {
        let found = of(multiplier);
        assert!((found.0 - angles).abs() < 1e-6, "{found:?}");
        assert!((found.1 - scores * scores).abs() < 1e-5, "{found:?}");
    }
}

#[test]
fn groups_of_experts_are_cut_evenly() {
    let groups = |arch: &str, n_expert: u32, count: u32, used: u32| {
        let mut w = tiny(arch);
        w.set(&format!("{arch}.expert_count"), Value::U32(n_expert));
        w.set(&format!("{arch}.expert_group_count"), Value::U32(count));
        w.set(&format!("{arch}.expert_group_used_count"), Value::U32(used));
        config(&w).map(|config| config.experts.unwrap().groups)
    };
    let some = groups("deepseek2", 8, 4, 2).unwrap().unwrap();
    assert_eq!((some.count, some.used), (4, 2));
    assert_eq!(groups("deepseek2", 8, 1, 1).unwrap(), None);
    for (n_expert, count, used, wanted) in [
        (9, 4, 2, "9 experts can be cut by"),
        (4, 4, 2, "two or more a group"),
        (8, 4, 5, "expert_group_used_count"),
        (8, 33, 1, "expert_group_count"),
    ] {
        let found = groups("deepseek2", n_expert, count, used);
        let text = found.unwrap_err().to_string();
        assert!(text.contains(wanted), "{text}");
    }
    // Its router is another.
    let mut w = tiny("gemma4");
    for (key, n) in [
        ("count", 4),
        ("used_count", 2),
        ("feed_forward_length", 6),
        ("group_count", 2),
        ("group_used_count", 1),
    ] {
        w.set(&format!("gemma4.expert_{key}"), Value::U32(n));
    }
    for layer in 0..2 {
        let mut t = |name: &str, shape: &[u64]| {
            w.tensor(&format!("blk.{layer}.{name}"), shape, 0);
        };
        t("ffn_gate_inp.weight", &[8, 4]);
        t("ffn_gate_inp.scale", &[8]);
        t("ffn_gate_up_exps.weight", &[8, 12, 4]);
        t("ffn_down_exps.weight", &[6, 8, 4]);
        for norm in ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"] {
            t(&format!("{norm}.weight"), &[8]);
        }
    }
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["gemma4.expert_group_count", "not supported"]);
    w.remove("gemma4.expert_group_count");
    load(&w.bytes()).unwrap();
}

#[test]
fn exaone_4_rotates_layers_that_see_a_window_or_all_where_none_does() {
    let rotated = |w: &Writer| {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let rotates = |op: &&Op| matches!(op, Op::Rope { .. });
        plan.ops.iter().filter(rotates).count()
    };
    let mut w = tiny("exaone4");
    let pattern = Value::Array(Array::Bool(vec![true, false]));
    w.set("exaone4.attention.sliding_window_pattern", pattern);
    assert_eq!(rotated(&w), 2);
    w.remove("exaone4.attention.sliding_window");
    assert_eq!(rotated(&w), 4);
}

#[test]
fn cohere_rotates_layers_that_see_a_window_or_all_without_any() {
    let mut w = tiny("cohere2");
    let pattern = Value::Array(Array::Bool(vec![true, false]));
    w.set("cohere2.attention.sliding_window_pattern", pattern);
    // Windows have no base of their own.
    w.set("cohere2.rope.freq_base_swa", Value::F32(500.0));
    assert_eq!(tables(&w), (vec![1e4], vec![0, 0], vec![Some(4), None]));
    assert_eq!(tables(&tiny("command-r")).1, [0; 4]);
    w.remove("cohere2.attention.sliding_window");
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["cohere2.attention.sliding_window", "missing"]);
    for arch in ["cohere2", "command-r"] {
        let (key, mut w) = (format!("{arch}.logit_scale"), tiny(arch));
        let last = arch::plan(&config(&w).unwrap()).unwrap().ops.pop();
        assert!(matches!(last, Some(Op::Scale { factor: 0.25, .. })));
        w.remove(&key);
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&key, "missing", "multiplied by"]);
    }
}

#[test]
fn a_norm_of_each_head_of_command_r_plus_is_refused() {
    let mut w = tiny("command-r");
    w.tensor("blk.0.attn_q_norm.weight", &[4, 2], 0);
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &["attn_q_norm", "no such tensor in a command-r model"],
    );
}

#[test]
fn lagunas_layers_have_heads_a_rotation_and_a_gate_of_their_own() {
    let mut w = tiny("laguna");
    let (local, global) = (Some(4), None);
    let pairs = |w: &Writer| {
        let plan = arch::plan(&config(w).unwrap()).unwrap();
        let pairs = plan.ropes.iter().map(|table| table.inv_freq.len());
        let heads = plan.attentions().map(|(n_head, _)| n_head);
        let gates = plan
            .weights
            .iter()
            .filter(|w| w.name.ends_with("attn_gate.weight"));
        (
            pairs.collect(),
            heads.collect(),
            gates.map(|w| w.n_out).collect(),
        )
    };
    let found: (Vec<usize>, Vec<usize>, Vec<usize>) = pairs(&w);
    assert_eq!(found, (vec![2, 1], vec![2, 3], vec![2, 3]));
    w.set("laguna.rope.dimension_count_swa", Value::U32(4));
    assert_eq!(
        tables(&w),
        (vec![1e4, 500.0], vec![0, 0, 1, 1], vec![global, local])
    );
    let pattern = Value::Array(Array::Bool(vec![true, false]));
    w.set("laguna.attention.sliding_window_pattern", pattern);
    assert_eq!(tables(&w).2, [local, global]);
    w.remove("laguna.attention.sliding_window");
    assert_eq!(tables(&w), (vec![1e4], vec![0; 4], vec![None; 2]));
    // A number for each value.
    let name = "blk.1.attn_gate.weight";
    w.tensors.retain(|t| t.name != name);
    w.tensor(name, &[8, 12], 1);
    assert_eq!(pairs(&w).2, [2, 12]);
}

#[test]
fn other_architectures_have_as_many_heads_in_each_layer() {
    let mut w = tiny("llama");
    let heads = |each: &[i32]| Value::Array(Array::I32(each.to_vec()));
    w.set("llama.attention.head_count", heads(&[2, 2]));
    arch::plan(&config(&w).unwrap()).unwrap();
    w.set("llama.attention.key_length", Value::U32(4));
    w.set("llama.attention.head_count", heads(&[2, 4]));
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["blk.0.attn_q.weight", "[8, 8]", "[8, 16]"]);
}

#[test]
fn phi_3_has_other_angles_in_contexts_that_may_be_long() {
    let mut w = tiny("phi3");
    let plan = arch::plan(&config(&w).unwrap()).unwrap();
    let [table] = &plan.ropes[..] else {
        panic!("{} tables", plan.ropes.len())
    };
    assert_eq!(table.scale, 1.25);
    let name = |n_ctx| &plan.weight(table.factors_in(n_ctx).unwrap()).name[..];
    assert_eq!(
        [16, 17].map(name),
        ["rope_factors_short.weight", "rope_factors_long.weight"]
    );
    assert_eq!([16, 17].map(|n_ctx| plan.is_long(n_ctx)), [false, true]);
    w.tensors.retain(|t| t.name != "rope_factors_long.weight");
    says(
        &message(load(&w.bytes()), Kind::Model),
        &["rope_factors_long.weight", "nothing"],
    );
    w.tensors.retain(|t| t.name != "rope_factors_short.weight");
    let plan = arch::plan(&config(&w).unwrap()).unwrap();
    assert_eq!(
        (plan.ropes[0].factors_in(17), plan.ropes[0].scale),
        (None, 1.0)
    );
}

#[test]
fn glm_4_rotates_halves_where_positions_have_parts() {
    let style = |sections: Option<[i32; 4]>| {
        let mut w = tiny("glm4");
        if let Some(sections) = sections {
            let sections = Value::Array(Array::I32(sections.to_vec()));
            w.set("glm4.rope.dimension_sections", sections);
        }
        let plan = arch::plan(&config(&w).unwrap()).unwrap();
        plan.ops.iter().find_map(|op| match op {
            Op::Rope { style, .. } => Some(*style),
            _ => None,
        })
    };
    assert_eq!(style(None), Some(RopeStyle::Interleaved));
    assert_eq!(style(Some([2, 0, 0, 0])), Some(RopeStyle::Interleaved));
    assert_eq!(style(Some([1, 1, 0, 0])), Some(RopeStyle::Halves));
}

#[test]
fn qwen3_next_has_its_heads_of_values_in_groups() {
    let grouped = |w: &Writer| -> onegraph::Result<Option<bool>> {
        let plan = arch::plan(&config(w)?)?;
        Ok(plan.ops.iter().find_map(|op| match op {
            Op::DeltaNet { grouped, .. } => Some(*grouped),
            _ => None,
        }))
    };
    let mut w = tiny("qwen3next");
    assert_eq!(grouped(&w), Ok(Some(true)));
    assert_eq!(grouped(&tiny("qwen35moe")), Ok(Some(false)));
    // What early converters wrote is another order of the same numbers.
    w.tensors.retain(|t| {
        !matches!(
            t.name.as_str(),
            "blk.0.attn_qkv.weight" | "blk.0.attn_gate.weight"
        )
    });
    w.tensor("blk.0.ssm_in.weight", &[8, 96], 1);
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &[
            "blk.0.ssm_in.weight",
            "early converter",
            "fetch the model again",
        ],
    );
}
