//! EXAONE 4: norms behind each block and none before it, QK-norm; in 32B three layers that see a window
//! to one that sees all and is not rotated.

use super::build::{Builder, Scores};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

/// The last layer of each so many sees all, where the file does not say.
const PERIOD: usize = 4;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let window = c.window.as_ref().and_then(|w| w.of(layer, PERIOD));
        let heads = b.heads_under(layer, None, x, c.n_head, b.kv())?;
        b.norm_heads(layer, heads)?;
        if window.is_some() || c.window.is_none() {
            b.rotate(heads, table, RopeStyle::Halves);
        }
        let scores = Scores {
            window,
            ..heads.scores()
        };
        let delta = b.attend(layer, heads, scores)?;
        b.norm_delta(layer, delta, "post_attention_norm")?;
        b.add(delta, x);
        let delta = b.swiglu_under(layer, None, x, c.n_ff)?;
        b.norm_delta(layer, delta, "post_ffw_norm")?;
        b.add(delta, x);
    }
    b.logits(x)
}
