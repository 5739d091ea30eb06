//! Keys of Mamba-2's layers.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::ops::RangeInclusive;

use super::{out_of_range, Config, Keys};
use crate::error::Result;

/// Architectures whose recurrent layers are these: their keys are those of other ones too.
const ARCHITECTURES: [&str; 3] = ["nemotron_h", "nemotron_h_moe", "granitehybrid"];

/// Layers of Mamba-2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Config {
    /// Tokens that the convolution sees.
    pub conv_kernel: usize,
    pub n_head: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Groups of heads that share what is written and read.
    pub n_group: usize,
    /// Numbers of the state of each value.
    pub d_state: usize,
}

impl Config {
    /// Whether layers without heads of keys, or of no width, are ones of Mamba-2.
    pub(super) fn has_mamba2(arch: &str) -> bool {
        ARCHITECTURES.contains(&arch)
    }

    /// What `ssm.conv_kernel` and its neighbours say, where the architecture has such layers.
    pub(super) fn mamba2(keys: &Keys<'_>) -> Result<Option<Mamba2Config>> {
        if !Self::has_mamba2(keys.arch) {
            return Ok(None);
        }
        let need = |key: &str, range: RangeInclusive<usize>| {
            let expected = format!("{} to {}", range.start(), range.end());
            keys.need(key, keys.uint(key, range)?, &expected)
        };
        let conv_kernel = need("ssm.conv_kernel", 2..=16)?;
        let d_state = need("ssm.state_size", 1..=1024)?;
        let n_group = need("ssm.group_count", 1..=1024)?;
        let n_head = need("ssm.time_step_rank", 1..=4096)?;
        let inner = need("ssm.inner_size", 1..=1 << 20)?;
        let head_dim = inner.checked_div(n_head).unwrap_or(0);
        if head_dim.checked_mul(n_head) != Some(inner) || !(1..=256).contains(&head_dim) {
            return Err(out_of_range(
                format!("{}.ssm.inner_size", keys.arch),
                inner,
                format!("{n_head} heads of up to 256 values"),
            ));
        }
        if n_head.checked_rem(n_group) != Some(0) {
            return Err(out_of_range(
                format!("{}.ssm.group_count", keys.arch),
                n_group,
                format!("a divisor of the {n_head} heads"),
            ));
        }
        Ok(Some(Mamba2Config {
            conv_kernel,
            n_head,
            head_dim,
            n_group,
            d_state,
        }))
    }
}
