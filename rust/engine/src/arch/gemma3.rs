//! Gemma 3: a norm before and one behind each block, five layers that see a window to one that sees
//! all, each kind with angles of its own, QK-norm, GeGLU.

use super::build::{Builder, Scores};
use crate::config::{Config, RopeScaling};
use crate::error::Result;
use crate::plan::{BufferId, Plan, RopeStyle};

/// The last layer of each so many is global, where the file does not say.
const PERIOD: usize = 6;

/// What the largest model, 27B, is known by: its queries are scaled for heads of `n_embd / n_head`
/// dimensions, which are more than they have.
const LAYERS_OF_27B: usize = 62;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let x = layers(&mut b, true)?;
    b.logits(x)
}

/// The rows that all layers have added to: of rows that see none behind them, or of a whole text, whose
/// layers share a cache.
pub fn layers(b: &mut Builder, causal: bool) -> Result<BufferId> {
    let c = b.config;
    let global = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let local = match c.window {
        // Their positions are never far apart, so that they need no scaling.
        Some(_) => {
            let base = c.rope_base_window.unwrap_or(10_000.0);
            b.rope_table(c.rope_dim, base, &RopeScaling::None)?
        }
        None => global,
    };
    let x = b.embed((c.n_embd as f32).sqrt())?;
    for layer in 0..c.n_layer {
        let window = c.window.as_ref().and_then(|w| w.of(layer, PERIOD));
        let table = if window.is_some() { local } else { global };
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        let mut scores = Scores {
            window,
            causal,
            ..heads.scores()
        };
        if c.n_layer == LAYERS_OF_27B {
            scores.scale = 1.0 / ((c.n_embd / c.n_head) as f32).sqrt();
        }
        b.norm_heads(layer, heads)?;
        b.rotate(heads, table, RopeStyle::Halves);
        let cache = if causal { layer } else { 0 };
        let delta = b.attend_in(cache, layer, heads, scores)?;
        b.norm_delta(layer, delta, "post_attention_norm")?;
        b.add(delta, x);
        let delta = b.geglu(layer, x, c.n_ff)?;
        b.norm_delta(layer, delta, "post_ffw_norm")?;
        b.add(delta, x);
    }
    Ok(x)
}
