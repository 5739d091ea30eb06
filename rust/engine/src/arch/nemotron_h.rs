//! Nemotron-H and Nemotron 3: each layer is one block under one norm, of Mamba-2, of attention without
//! rotation, or a feed-forward part by the square of what is positive, with experts or without
//! (<https://arxiv.org/abs/2504.03624>).

use super::build::{Builder, Choice};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{BufferId, Gating, Plan};

/// The norm of each layer.
const NORM: &str = "attn_norm";

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let mamba2 = b.mamba2_of_file()?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let of = |each: &[usize]| each.get(layer).copied().unwrap_or(0);
        let (n_ff, n_head_kv) = (of(&c.n_ff_of), of(&c.n_head_kv_of));
        if n_ff > 0 {
            feed_forward(&mut b, layer, x, n_ff)?;
            continue;
        }
        let delta = match n_head_kv {
            0 => b.mamba2(layer, x, mamba2)?,
            _ => attention(&mut b, layer, x, n_head_kv)?,
        };
        b.add(delta, x);
    }
    b.logits(x)
}

fn attention(b: &mut Builder, layer: usize, x: BufferId, n_head_kv: usize) -> Result<BufferId> {
    let c = b.config;
    let mut kv = b.kv();
    kv.n_head_kv = n_head_kv;
    let n_head = c.n_head_of.get(layer).copied().unwrap_or(c.n_head);
    let heads = b.heads_under(layer, Some(NORM), x, n_head, kv)?;
    let mut scores = heads.scores();
    scores.scale = c.factors.attention.unwrap_or(scores.scale);
    b.attend(layer, heads, scores)
}

/// Adds what a dense layer gives, or experts that a bias helps to choose and one that every row goes to.
fn feed_forward(b: &mut Builder, layer: usize, x: BufferId, n_ff: usize) -> Result<()> {
    let c = b.config;
    let norm = Some(b.norm(&format!("blk.{layer}.{NORM}.weight"), c.n_embd)?);
    let Some(experts) = c.experts else {
        let act = b.squared(layer, (x, norm), "ffn_up", n_ff)?;
        let delta = b.buffer("delta", c.n_embd);
        b.product(act, None, layer, "ffn_down", &[n_ff, c.n_embd], delta)?;
        b.add(delta, x);
        return Ok(());
    };
    let choice = Choice {
        experts,
        gating: Gating::Sigmoid,
        renormalize: experts.renormalizes,
        bias: Some(b.selection(layer, experts.n_expert)?),
    };
    let n_ff = experts.n_ff_shared.unwrap_or(experts.n_ff);
    let shared = b.squared(layer, (x, norm), "ffn_up_shexp", n_ff)?;
    let delta = b.squared_experts(layer, (x, norm), &choice)?;
    b.add(delta, x);
    let delta = b.buffer("delta", c.n_embd);
    b.product(
        shared,
        None,
        layer,
        "ffn_down_shexp",
        &[n_ff, c.n_embd],
        delta,
    )?;
    b.add(delta, x);
    Ok(())
}
