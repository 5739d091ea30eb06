//! Granite 3 and its successors without experts: Llama with a factor on the embedding, the scores,
//! what a block adds, and the logits.

use super::build::Builder;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{Op, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let (c, factors) = (config, config.factors);
    let Some(divisor) = factors.logits else {
        return Err(Error::Metadata {
            key: format!("{}.logit_scale", c.arch),
            value: "missing".into(),
            expected: "what the logits are divided by, 1e-9 to 1e9".into(),
        });
    };
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let residual = factors.residual.unwrap_or(1.0);
    let x = b.embed(factors.embedding.unwrap_or(1.0))?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        if c.rope_finetuned {
            b.rotate(heads, table, RopeStyle::Interleaved);
        }
        let mut scores = heads.scores();
        scores.scale = factors.attention.unwrap_or(scores.scale);
        let delta = b.attend(layer, heads, scores)?;
        b.scale(delta, residual);
        b.add(delta, x);
        let delta = b.swiglu(layer, x, c.n_ff)?;
        b.scale(delta, residual);
        b.add(delta, x);
    }
    let mut plan = b.logits(x)?;
    plan.ops.push(Op::Scale {
        x: plan.logits,
        factor: 1.0 / divisor,
    });
    Ok(plan)
}
