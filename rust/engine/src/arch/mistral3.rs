//! Ministral 3, Devstral 2, Mistral Small and Medium 3: Llama whose queries count more the later their
//! token, with another factor of YaRN; experts by a softmax where the file has them.

use super::build::{Builder, Router};
use crate::config::{Config, Experts, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{Gating, Op, Plan, RopeStyle, Temperature};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let router = c.experts.map(|experts| Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        // An expert is as wide as the whole of a model without.
        experts: Experts {
            n_ff: c.n_ff,
            ..experts
        },
        gating: Gating::Softmax,
        renormalize: true,
    });
    let tables = tables(&mut b)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        b.rotate_apart(heads, tables, RopeStyle::Interleaved);
        let delta = b.attend(layer, heads, heads.scores())?;
        b.add(delta, x);
        let delta = match &router {
            Some(router) => b.experts(layer, x, router)?,
            None => b.swiglu(layer, x, c.n_ff)?,
        };
        b.add(delta, x);
    }
    b.logits(x)
}

/// The tables of queries and of keys. A factor of queries that goes by their position is one of the
/// cosines and sines, which rotate all of a head.
fn tables(b: &mut Builder<'_>) -> Result<[usize; 2]> {
    let c = b.config;
    let keys = b.rope_table(c.rope_dim, c.rope_base, &scaling(c))?;
    let Some(temperature) = c.temperature else {
        return Ok([keys, keys]);
    };
    if c.rope_dim != c.head_dim {
        return Err(Error::Metadata {
            key: format!("{}.rope.dimension_count", c.arch),
            value: c.rope_dim.to_string(),
            expected: format!(
                "{}, all of a head, where there is an attention.temperature_scale",
                c.head_dim
            ),
        });
    }
    let temperature = Temperature {
        by: temperature.scale,
        every: temperature.every,
    };
    Ok([b.rope_table_at(keys, temperature)?, keys])
}

/// Of YaRN's factor, `1 + 0.1 ln(factor)`, this family takes back `1 + 0.1 m ln(factor)` for a log
/// multiplier `m`.
fn scaling(c: &Config) -> RopeScaling {
    let mut scaling = c.rope_scaling.clone();
    if let RopeScaling::Yarn {
        factor,
        attn_factor,
        ..
    } = &mut scaling
    {
        *attn_factor /= 1.0 + 0.1 * c.yarn_log_multiplier * factor.max(1.0).ln();
    }
    scaling
}
