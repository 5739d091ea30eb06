//! Granite 3 and its successors without experts: Llama with a factor on the embedding, the scores,
//! what a block adds, and the logits.

use super::build::Builder;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let (c, factors) = (config, config.factors);
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let table = c.rope_finetuned.then_some(table);
    let residual = factors.residual.unwrap_or(1.0);
    let x = b.embed(factors.embedding.unwrap_or(1.0))?;
    for layer in 0..c.n_layer {
        let delta = attention(&mut b, layer, x, c.n_head_kv, table)?;
        b.scale(delta, residual);
        b.add(delta, x);
        let delta = b.swiglu(layer, x, c.n_ff)?;
        b.scale(delta, residual);
        b.add(delta, x);
    }
    logits(b, x)
}

/// Attention of x under `attn_norm`, rotated where there is a table of angles: what is to be added to x.
pub fn attention(
    b: &mut Builder<'_>,
    layer: usize,
    x: BufferId,
    n_head_kv: usize,
    table: Option<usize>,
) -> Result<BufferId> {
    let c = b.config;
    let mut kv = b.kv();
    kv.n_head_kv = n_head_kv;
    let heads = b.heads(layer, x, c.n_head, kv)?;
    if let Some(table) = table {
        b.rotate(heads, table, RopeStyle::Interleaved);
    }
    let mut scores = heads.scores();
    scores.scale = c.factors.attention.unwrap_or(scores.scale);
    b.attend(layer, heads, scores)
}

/// The end of the model, whose logits are divided by a number.
///
/// # Errors
/// [`Error::Metadata`] where the file does not say it.
pub fn logits(b: Builder<'_>, x: BufferId) -> Result<Plan> {
    let c = b.config;
    let Some(divisor) = c.factors.logits else {
        return Err(Error::Metadata {
            key: format!("{}.logit_scale", c.arch),
            value: "missing".into(),
            expected: "what the logits are divided by, 1e-9 to 1e9".into(),
        });
    };
    let mut plan = b.logits(x)?;
    plan.ops.push(Op::Scale {
        x: plan.logits,
        factor: 1.0 / divisor,
    });
    Ok(plan)
}
