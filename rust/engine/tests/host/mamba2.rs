//! Families with layers of Mamba-2: which layers these are, and what stands around them.
use onegraph::arch;
use onegraph::error::Kind;
use onegraph::gguf::{Array, Value};
use onegraph::plan::{Gating, Op, Plan};

use crate::families::config;
use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

fn plan(w: &Writer) -> Plan {
    arch::plan(&config(w).unwrap()).unwrap()
}

/// The products of a plan, each with its norm.
fn products(plan: &Plan) -> Vec<String> {
    let name = |id| {
        let name = &plan.weight(id).name;
        name.trim_end_matches(".weight").to_owned()
    };
    let product = |op: &Op| match op {
        Op::MatVec { norm, weight, .. } | Op::ExpertMatVec { norm, weight, .. } => {
            let norm = norm.map(|norm| format!(" under {}", name(norm.weight)));
            Some(name(*weight) + &norm.unwrap_or_default())
        }
        _ => None,
    };
    plan.ops.iter().filter_map(product).collect()
}

const MIXERS: [&str; 6] = [
    "blk.0.ssm_in under blk.0.attn_norm",
    "blk.0.ssm_out",
    "blk.1.attn_q under blk.1.attn_norm",
    "blk.1.attn_k under blk.1.attn_norm",
    "blk.1.attn_v under blk.1.attn_norm",
    "blk.1.attn_output",
];

#[test]
fn each_layer_of_nemotron_h_is_one_block() {
    let found = plan(&tiny("nemotron_h"));
    let dense = ["blk.2.ffn_up under blk.2.attn_norm", "blk.2.ffn_down"];
    let head = ["token_embd under output_norm"];
    assert_eq!(
        products(&found),
        [&MIXERS[..], &dense, &head].concat(),
        "{found}"
    );
    let of = |is: fn(&Op) -> bool| found.ops.iter().filter(|op| is(op)).count();
    assert_eq!(of(|op| matches!(op, Op::Rope { .. })), 0);
    assert_eq!(of(|op| matches!(op, Op::Mamba2(_))), 1);
    assert_eq!(of(|op| matches!(op, Op::ReluSquared { .. })), 1);
    // The groups of a scan's output.
    assert_eq!(of(|op| matches!(op, Op::RmsNorm { group: 16, .. })), 1);
    assert_eq!(of(|op| matches!(op, Op::RmsNorm { .. })), 1);
}

#[test]
fn experts_of_nemotron_3_may_be_of_narrower_rows() {
    let mut w = tiny("nemotron_h_moe");
    let found = plan(&w);
    let wide = " under blk.2.attn_norm";
    let experts = [
        &format!("blk.2.ffn_up_shexp{wide}"),
        &format!("blk.2.ffn_latent_down{wide}"),
        &format!("blk.2.ffn_gate_inp{wide}"),
        "blk.2.ffn_up_exps",
        "blk.2.ffn_down_exps",
        "blk.2.ffn_latent_up",
        "blk.2.ffn_down_shexp",
    ];
    let head = ["token_embd under output_norm"];
    assert_eq!(products(&found), [&MIXERS[..], &experts, &head].concat());
    let routes = found.ops.iter().find_map(|op| match op {
        Op::Route {
            gating,
            renormalize,
            bias,
            ..
        } => Some((*gating, *renormalize, bias.is_some())),
        _ => None,
    });
    assert_eq!(routes, Some((Gating::Sigmoid, true, true)));
    // Without, they are of rows.
    w.remove("nemotron_h_moe.moe_latent_size");
    let text = message(load(&w.bytes()), Kind::Model);
    says(
        &text,
        &["blk.2.ffn_up_exps.weight", "[5, 6, 3]", "[8, 6, 3]"],
    );
}

#[test]
fn layers_that_guess_further_tokens_are_no_part_of_nemotron() {
    let mut w = tiny("nemotron_h_moe");
    let found = plan(&w);
    w.set("nemotron_h_moe.block_count", Value::U32(4));
    w.set("nemotron_h_moe.nextn_predict_layers", Value::U32(1));
    let each = |n: &[i32]| Value::Array(Array::I32(n.to_vec()));
    w.set("nemotron_h_moe.feed_forward_length", each(&[0, 0, 12, 12]));
    w.set(
        "nemotron_h_moe.attention.head_count_kv",
        each(&[0, 1, 0, 1]),
    );
    w.tensor("blk.3.nextn.eh_proj.weight", &[16, 8], 1);
    assert_eq!(plan(&w).ops, found.ops);
}

#[test]
fn granite_4_h_is_rotated_where_the_file_says_so() {
    let mut w = tiny("granitehybrid");
    let rotated = |w: &Writer| {
        let plan = plan(w);
        let rotates = |op: &&Op| matches!(op, Op::Rope { .. });
        (plan.ropes.len(), plan.ops.iter().filter(rotates).count())
    };
    assert_eq!(rotated(&w), (1, 2));
    let key = "granitehybrid.rope.scaling.finetuned";
    w.set(key, Value::Bool(false));
    assert_eq!(rotated(&w), (0, 0));
    w.remove("granitehybrid.logit_scale");
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["granitehybrid.logit_scale", "missing", "divided"]);
}

#[test]
fn what_granite_4_h_adds_is_multiplied_by_its_factor() {
    let mut w = tiny("granitehybrid");
    w.set("granitehybrid.residual_scale", Value::F32(0.25));
    let scaled = |op: &&Op| matches!(op, Op::Scale { factor: 0.25, .. });
    assert_eq!(plan(&w).ops.iter().filter(scaled).count(), 4);
    // Of experts each weight is.
    for (key, n) in [
        ("count", 3),
        ("used_count", 2),
        ("shared_feed_forward_length", 10),
    ] {
        w.set(&format!("granitehybrid.expert_{key}"), Value::U32(n));
    }
    w.tensors
        .retain(|t| !t.name.contains("ffn_gate") && !t.name.contains("ffn_up"));
    w.tensors.retain(|t| !t.name.contains("ffn_down"));
    for layer in 0..2 {
        for (name, shape) in [
            ("ffn_gate_inp", &[8, 3][..]),
            ("ffn_gate_exps", &[8, 12, 3]),
            ("ffn_up_exps", &[8, 12, 3]),
            ("ffn_down_exps", &[12, 8, 3]),
            ("ffn_gate_shexp", &[8, 10]),
            ("ffn_up_shexp", &[8, 10]),
            ("ffn_down_shexp", &[10, 8]),
        ] {
            w.tensor(&format!("blk.{layer}.{name}.weight"), shape, 1);
        }
    }
    let found = plan(&w);
    let routes = |op: &&Op| matches!(op, Op::Route { scale: 0.25, .. });
    assert_eq!(found.ops.iter().filter(routes).count(), 2);
    assert_eq!(found.ops.iter().filter(scaled).count(), 4);
}

#[test]
fn the_norm_of_one_group_is_part_of_the_product_whatever_its_shape() {
    for shape in [&[32, 1][..], &[32]] {
        let mut w = tiny("granitehybrid");
        w.set("granitehybrid.ssm.group_count", Value::U32(1));
        w.tensors.retain(|t| !t.name.starts_with("blk.0.ssm_"));
        for name in ["ssm_a", "ssm_d"] {
            w.tensor(&format!("blk.0.{name}"), &[1, 2], 0);
        }
        for (name, shape) in [
            ("ssm_dt.bias", &[2][..]),
            ("ssm_conv1d.bias", &[40]),
            ("ssm_conv1d.weight", &[3, 40]),
            ("ssm_norm.weight", shape),
            ("ssm_in.weight", &[8, 74]),
            ("ssm_out.weight", &[32, 8]),
        ] {
            w.tensor(&format!("blk.0.{name}"), shape, 0);
        }
        assert_eq!(products(&plan(&w))[1], "blk.0.ssm_out under blk.0.ssm_norm");
    }
}

#[test]
fn shapes_of_a_scan_that_contradict_each_other() {
    for (key, n, parts) in [
        ("ssm.inner_size", 33, ["33", "2 heads of up to 256"]),
        ("ssm.inner_size", 514, ["514", "2 heads of up to 256"]),
        ("ssm.group_count", 3, ["3", "a divisor of the 2 heads"]),
        ("ssm.state_size", 0, ["0", "1 to 1024"]),
        ("ssm.conv_kernel", 1, ["1", "2 to 16"]),
    ] {
        let mut w = tiny("nemotron_h");
        let key = format!("nemotron_h.{key}");
        w.set(&key, Value::U32(n));
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&[&key[..]][..], &parts].concat());
        w.remove(&key);
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[&key, "missing"]);
    }
    let mut w = tiny("nemotron_h");
    let none = Value::Array(Array::I32(vec![0; 3]));
    w.set("nemotron_h.attention.head_count_kv", none);
    let text = message(load(&w.bytes()), Kind::Model);
    says(&text, &["head_count_kv", "at least one attention layer"]);
}
