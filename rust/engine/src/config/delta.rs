//! Keys of the layers of the gated delta rule.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::ops::RangeInclusive;

use serde::Serialize;

use super::{out_of_range, Config, Keys};
use crate::error::Result;
use crate::gguf::{Array, Value};

/// Layers of the gated delta rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeltaConfig {
    /// Whether each layer is one; the others attend.
    pub is_recurrent: Vec<bool>,
    /// Tokens that the convolution sees.
    pub conv_kernel: usize,
    /// Numbers of a head of queries, keys or values.
    pub head_dim: usize,
    /// Heads of queries and keys.
    pub n_head_k: usize,
    /// Heads of values.
    pub n_head_v: usize,
}

impl Config {
    /// What `ssm.conv_kernel` and its neighbours say, where they are, and not of Mamba-2.
    pub(super) fn delta(keys: &Keys<'_>, n_layer: usize) -> Result<Option<DeltaConfig>> {
        let taps = keys.uint("ssm.conv_kernel", 2..=16)?;
        let Some(conv_kernel) = taps.filter(|_| !Self::has_mamba2(keys.arch)) else {
            return Ok(None);
        };
        let need = |key: &str, range: RangeInclusive<usize>| {
            let expected = format!("{} to {}", range.start(), range.end());
            keys.need(key, keys.uint(key, range)?, &expected)
        };
        let head_dim = need("ssm.state_size", 16..=256)?;
        let n_head_k = need("ssm.group_count", 1..=1024)?;
        let n_head_v = need("ssm.time_step_rank", 1..=1024)?;
        let inner = need("ssm.inner_size", 1..=1 << 20)?;
        if head_dim.checked_mul(n_head_v) != Some(inner) {
            return Err(out_of_range(
                format!("{}.ssm.inner_size", keys.arch),
                inner,
                format!("{n_head_v} heads of {head_dim} values"),
            ));
        }
        if n_head_v.checked_rem(n_head_k) != Some(0) {
            return Err(out_of_range(
                format!("{}.ssm.group_count", keys.arch),
                n_head_k,
                format!("a divisor of the {n_head_v} heads of values"),
            ));
        }
        Ok(Some(DeltaConfig {
            is_recurrent: Self::recurrent_layers(keys, n_layer)?,
            conv_kernel,
            head_dim,
            n_head_k,
            n_head_v,
        }))
    }

    /// Each layer by `attention.recurrent_layers`, or all but every so manieth.
    fn recurrent_layers(keys: &Keys<'_>, n_layer: usize) -> Result<Vec<bool>> {
        const KEY: &str = "attention.recurrent_layers";
        let key = format!("{}.{KEY}", keys.arch);
        let Some(value) = keys.gguf.get(&key) else {
            let interval = keys.uint("full_attention_interval", 1..=1024)?.unwrap_or(4);
            let attends = |layer: usize| layer.saturating_add(1).checked_rem(interval) == Some(0);
            return Ok((0..n_layer).map(|layer| !attends(layer)).collect());
        };
        // The layers behind `n_layer` may be counted too.
        match value {
            Value::Array(Array::Bool(layers)) if layers.len() >= n_layer => {
                Ok(layers.iter().copied().take(n_layer).collect())
            }
            _ => Err(out_of_range(
                key,
                value.describe(),
                format!("an array of {n_layer} booleans, one a layer"),
            )),
        }
    }
}
