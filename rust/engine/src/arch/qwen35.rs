//! Qwen3.5: three layers of the gated delta rule to one of attention whose output has a gate, then
//! SwiGLU.

use super::build::Builder;
use super::delta::Mixer;
use crate::config::Config;
use crate::error::Result;
use crate::plan::{BufferId, Plan};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let mixer = Mixer::new(&mut b, false)?;
    let x = b.embed(1.0)?;
    for n in 0..config.n_layer {
        layer(&mut b, &mixer, n, x)?;
    }
    b.logits(x)
}

fn layer(b: &mut Builder<'_>, mixer: &Mixer<'_>, layer: usize, x: BufferId) -> Result<()> {
    mixer.add(b, layer, x)?;
    let delta = b.swiglu_under(layer, Some("post_attention_norm"), x, b.config.n_ff)?;
    b.add(delta, x);
    Ok(())
}

/// The layer behind the others that guesses further tokens.
pub fn drafts(b: &mut Builder<'_>, x: BufferId) -> Result<()> {
    let mixer = Mixer::new(b, false)?;
    layer(b, &mixer, b.config.n_layer, x)
}
