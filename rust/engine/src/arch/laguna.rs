//! Laguna: layers that see all, each before three that see a window, with heads and a rotation of their
//! own; QK-norm; softplus of a gate, one a head or one a number, times what attention gives; experts as
//! those of GLM-4.5.

use super::build::{Builder, Router, Scores};
use super::glm4moe;
use crate::config::{Config, Experts, RopeScaling};
use crate::error::Result;
use crate::plan::{BufferId, Op, Plan, RopeStyle};

/// The first layer of each so many sees all, where the file does not say.
const PERIOD: usize = 4;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let experts = b.experts_of_file()?;
    let shared = experts.n_ff * experts.n_shared.max(1);
    let router = Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: Experts {
            n_ff_shared: experts.n_ff_shared.or(Some(shared)),
            ..experts
        },
        gating: glm4moe::gating(&experts),
        renormalize: experts.renormalizes,
    };
    let all = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let base = c.rope_base_window.unwrap_or(c.rope_base);
    let dims = c.local.rope_dim.unwrap_or(c.rope_dim);
    let local = match c.window {
        Some(_) => b.rope_table(dims, base, &RopeScaling::None)?,
        None => all,
    };
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let windows = c.window.as_ref();
        let window = windows.and_then(|w| w.of_but_first(layer, PERIOD));
        let n_head = c.n_head_of.get(layer).copied().unwrap_or(c.n_head);
        let heads = b.heads(layer, x, n_head, b.kv())?;
        let gate = gate(&mut b, layer, x, n_head)?;
        b.norm_heads(layer, heads)?;
        let table = if window.is_some() { local } else { all };
        b.rotate(heads, table, RopeStyle::Halves);
        let scores = Scores {
            window,
            ..heads.scores()
        };
        let let_through = |[x, gate, out]: [BufferId; 3]| Op::SoftplusMul { x, gate, out };
        let delta = b.attend_gated(layer, heads, scores, gate, let_through)?;
        b.add(delta, x);
        glm4moe::feed_forward(&mut b, layer, x, &router, true)?;
    }
    b.logits(x)
}

/// The gate of what attention gives: as wide as the file has it, one number a head or one a value.
fn gate(b: &mut Builder, layer: usize, x: BufferId, n_head: usize) -> Result<BufferId> {
    let c = b.config;
    let tensor = c.tensors.get(&format!("blk.{layer}.attn_gate.weight"));
    let n_q = n_head * c.head_dim;
    let width = match tensor.is_some_and(|t| t.shape == [c.n_embd, n_q]) {
        true => n_q,
        false => n_head,
    };
    let out = b.buffer("q_gates", width);
    let norm = Some(b.norm(&format!("blk.{layer}.attn_norm.weight"), c.n_embd)?);
    b.product(x, norm, layer, "attn_gate", &[c.n_embd, width], out)?;
    Ok(out)
}
