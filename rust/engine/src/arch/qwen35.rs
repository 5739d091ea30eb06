//! Qwen3.5: three layers of the gated delta rule to one of attention whose output has a gate, then
//! SwiGLU.

use super::build::Builder;
use super::delta::Mixer;
use crate::config::Config;
use crate::error::Result;
use crate::plan::Plan;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let mixer = Mixer::new(&mut b, false)?;
    let x = b.embed(1.0)?;
    for layer in 0..config.n_layer {
        mixer.add(&mut b, layer, x)?;
        let delta = b.swiglu_under(layer, Some("post_attention_norm"), x, config.n_ff)?;
        b.add(delta, x);
    }
    b.logits(x)
}
