//! GLM-4: a norm before and one behind each block, rotation of a part of each head, one matrix for gate
//! and up.

use super::build::Builder;
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    // Of models that see images converters have put the halves of queries and keys apart.
    let style = match c.rope_sections {
        true => RopeStyle::Halves,
        false => RopeStyle::Interleaved,
    };
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        b.rotate(heads, table, style);
        let delta = b.attend(layer, heads, heads.scores())?;
        b.norm_delta(layer, delta, "post_attention_norm")?;
        b.add(delta, x);
        let delta = b.swiglu_fused(layer, x, c.n_ff)?;
        b.norm_delta(layer, delta, "post_ffw_norm")?;
        b.add(delta, x);
    }
    b.logits(x)
}
