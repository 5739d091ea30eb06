//! What families say of the heads of their layers: how many there are, which are rotated, and by what.
use onegraph::arch;
use onegraph::error::Kind;
use onegraph::gguf::{Array, Value};
use onegraph::plan::{Op, RopeStyle};

use crate::families::{config, tables};
use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

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
