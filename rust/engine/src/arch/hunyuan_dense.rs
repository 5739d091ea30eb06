//! Hunyuan without experts: Qwen3 whose heads are normalized behind the rotation.

use super::build::Builder;
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        b.rotate(heads, table, RopeStyle::Halves);
        b.norm_heads(layer, heads)?;
        let delta = b.attend(layer, heads, heads.scores())?;
        b.add(delta, x);
        let delta = b.swiglu(layer, x, c.n_ff)?;
        b.add(delta, x);
    }
    b.logits(x)
}
