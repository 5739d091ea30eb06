//! OLMo 2 and 3: norms behind each block and none before it, QK-norm over whole rows; in OLMo 3 three
//! layers that see a window to one that sees all.

use super::build::{Builder, Scores};
use crate::config::{Config, RopeScaling};
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

/// The last layer of each so many sees all, where the file does not say.
const PERIOD: usize = 4;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let global = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let local = match c.window {
        // Their positions are never far apart, so that they need no scaling.
        Some(_) => {
            let base = c.rope_base_window.unwrap_or(c.rope_base);
            b.rope_table(c.rope_dim, base, &RopeScaling::None)?
        }
        None => global,
    };
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let window = c.window.as_ref().and_then(|w| w.of(layer, PERIOD));
        let table = if window.is_some() { local } else { global };
        let heads = b.heads_under(layer, None, x, c.n_head, b.kv())?;
        for (x, name, n_head) in [
            (heads.q, "attn_q_norm", heads.n_head),
            (heads.k, "attn_k_norm", heads.kv.n_head_kv),
        ] {
            let width = n_head * heads.kv.head_dim;
            b.norm_parts(x, &format!("blk.{layer}.{name}.weight"), width)?;
        }
        b.rotate(heads, table, RopeStyle::Halves);
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
