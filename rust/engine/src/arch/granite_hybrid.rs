//! Granite 4 H: layers of Mamba-2, some of attention in their place, with Granite's factors; behind each
//! SwiGLU, or experts beside one that is every row's.

use super::build::{Builder, Router};
use super::granite;
use crate::config::{Config, Experts};
use crate::error::Result;
use crate::plan::{BufferId, Gating, Op, Plan};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let (c, factors) = (config, config.factors);
    let mamba2 = b.mamba2_of_file()?;
    let residual = factors.residual.unwrap_or(1.0);
    let router = c.experts.map(|experts| Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: Experts {
            n_ff: c.n_ff,
            // What a block adds is multiplied by it: so each weight is.
            scale: experts.scale * residual,
            ..experts
        },
        gating: Gating::Softmax,
        renormalize: true,
    });
    let table = match c.rope_finetuned {
        true => Some(b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?),
        false => None,
    };
    let x = b.embed(factors.embedding.unwrap_or(1.0))?;
    for layer in 0..c.n_layer {
        let n_head_kv = c.n_head_kv_of.get(layer).copied().unwrap_or(0);
        let delta = match n_head_kv {
            0 => b.mamba2(layer, x, mamba2)?,
            _ => granite::attention(&mut b, layer, x, n_head_kv, table)?,
        };
        b.scale(delta, residual);
        b.add(delta, x);
        match &router {
            None => {
                let delta = b.swiglu(layer, x, c.n_ff)?;
                b.scale(delta, residual);
                b.add(delta, x);
            }
            Some(router) => experts(&mut b, layer, x, router, residual)?,
        }
    }
    granite::logits(b, x)
}

fn experts(
    b: &mut Builder,
    layer: usize,
    x: BufferId,
    router: &Router,
    residual: f32,
) -> Result<()> {
    let shared = match router.experts.n_ff_shared {
        Some(_) => Some(b.shared_expert(layer, x, router, false)?),
        None => None,
    };
    let delta = b.experts(layer, x, router)?;
    b.add(delta, x);
    if let Some(shared) = shared {
        let delta = b.gate_shared(layer, shared)?;
        b.scale(delta, residual);
        b.add(delta, x);
    }
    Ok(())
}
