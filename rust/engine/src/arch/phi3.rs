//! Phi-3, 3.5 and 4: Llama with one matrix for queries, keys and values, and one for gate and up; in
//! some all layers see a window, in some long contexts have angles of their own.

use super::build::{Builder, Scores};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{LongFactors, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = table(&mut b)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads_fused(layer, x, c.n_head, b.kv())?;
        b.rotate(heads, table, RopeStyle::Halves);
        let scores = Scores {
            window: c.window.as_ref().map(|w| w.tokens),
            ..heads.scores()
        };
        let delta = b.attend(layer, heads, scores)?;
        b.add(delta, x);
        let delta = b.swiglu_fused(layer, x, c.n_ff)?;
        b.add(delta, x);
    }
    b.logits(x)
}

/// Angles, by LongRoPE's factors where the file has them.
fn table(b: &mut Builder<'_>) -> Result<usize> {
    const NAMES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
    let c = b.config;
    if !NAMES.iter().any(|name| c.tensors.contains_key(*name)) {
        return b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling);
    }
    let [short, long] = NAMES.map(|name| b.weight(name, &[c.rope_dim / 2]));
    let table = b.rope_table_by(c.rope_dim, c.rope_base, &c.rope_scaling, Some(short?));
    let long = LongFactors {
        factors: long?,
        above: c.n_ctx_original,
    };
    b.lengthen(table, long, c.rope_attn_factor)?;
    Ok(table)
}
