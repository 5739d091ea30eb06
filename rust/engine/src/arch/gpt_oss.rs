//! gpt-oss: every other layer sees a window, all heads have a sink, all products a bias; experts by the
//! softmax of those chosen, with a SwiGLU that is clamped.

use super::build::{Builder, Router, Scores};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Gating, Op, Plan, RopeStyle};

/// The last layer of each so many sees all, where the file does not say.
const PERIOD: usize = 2;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let router = Router {
        norm: Some("post_attention_norm"),
        activation: |[gate, up, out]| Op::ClampedSwiGlu { gate, up, out },
        experts: b.experts_of_file()?,
        gating: Gating::SelectedSoftmax,
        renormalize: false,
    };
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let local = match c.rope_base_window {
        Some(base) => b.rope_table(c.rope_dim, base, &c.rope_scaling)?,
        None => table,
    };
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let window = c.window.as_ref().and_then(|w| w.of(layer, PERIOD));
        let sinks = b.weight(&format!("blk.{layer}.attn_sinks.weight"), &[c.n_head])?;
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        let table = if window.is_some() { local } else { table };
        b.rotate(heads, table, RopeStyle::Halves);
        let scores = Scores {
            window,
            sinks: Some(sinks),
            ..heads.scores()
        };
        let delta = b.attend(layer, heads, scores)?;
        b.add(delta, x);
        let delta = b.experts(layer, x, &router)?;
        b.add(delta, x);
    }
    b.logits(x)
}
