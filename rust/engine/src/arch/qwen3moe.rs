//! Qwen3 with experts: Qwen3's attention; of each layer's experts a softmax over all chooses some, whose
//! weights are divided by their sum.

use super::build::{Builder, Router};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Gating, Op, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let router = Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: b.experts_of_file()?,
        gating: Gating::Softmax,
        renormalize: true,
    };
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        b.norm_heads(layer, heads)?;
        b.rotate(heads, table, RopeStyle::Halves);
        let delta = b.attend(layer, heads, heads.scores())?;
        b.add(delta, x);
        let delta = b.experts(layer, x, &router)?;
        b.add(delta, x);
    }
    b.logits(x)
}
