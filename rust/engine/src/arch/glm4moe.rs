//! GLM-4.5: rotation of a part of each head; behind the first layers experts that sigmoids and a bias
//! choose, beside one that is every row's.

use super::build::{Builder, Router};
use crate::config::{Config, Experts};
use crate::error::Result;
use crate::plan::{BufferId, Gating, Op, Plan, RopeStyle};

/// The norm before the feed-forward part: named as if it stood behind attention.
const NORM: &str = "post_attention_norm";

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let experts = b.experts_of_file()?;
    let router = Router {
        norm: Some(NORM),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: Experts {
            n_ff_shared: Some(experts.n_ff * experts.n_shared),
            ..experts
        },
        gating: gating(&experts),
        renormalize: experts.renormalizes,
    };
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        // The largest has them.
        let name = format!("blk.{layer}.attn_q_norm.weight");
        if c.tensors.contains_key(&name) {
            b.norm_heads(layer, heads)?;
        }
        b.rotate(heads, table, RopeStyle::Halves);
        let delta = b.attend(layer, heads, heads.scores())?;
        b.add(delta, x);
        feed_forward(&mut b, layer, x, &router, experts.n_shared > 0)?;
    }
    b.logits(x)
}

/// How logits become weights: by sigmoids, where the file does not say.
pub fn gating(experts: &Experts) -> Gating {
    match experts.gating {
        Some(1) => Gating::Softmax,
        Some(3) => Gating::SelectedSoftmax,
        _ => Gating::Sigmoid,
    }
}

/// Adds what a dense layer gives, or experts that a bias helps to choose and one that every row goes to.
pub fn feed_forward(
    b: &mut Builder,
    layer: usize,
    x: BufferId,
    router: &Router,
    is_shared: bool,
) -> Result<()> {
    feed_forward_by(b, layer, x, router, (Builder::experts_by_bias, is_shared))
}

/// How experts are chosen.
pub type Chosen<'a> = fn(&mut Builder<'a>, usize, BufferId, &Router) -> Result<BufferId>;

/// The same where experts are chosen so.
pub fn feed_forward_by<'a>(
    b: &mut Builder<'a>,
    layer: usize,
    x: BufferId,
    router: &Router,
    (chosen, is_shared): (Chosen<'a>, bool),
) -> Result<()> {
    if layer < router.experts.n_layer_dense {
        let delta = b.swiglu_under(layer, router.norm, x, b.config.n_ff)?;
        b.add(delta, x);
        return Ok(());
    }
    let shared = match is_shared {
        true => Some(b.shared_expert(layer, x, router, false)?),
        false => None,
    };
    let delta = chosen(b, layer, x, router)?;
    b.add(delta, x);
    if let Some(shared) = shared {
        let delta = b.gate_shared(layer, shared)?;
        b.add(delta, x);
    }
    Ok(())
}
