//! Keys of attention over latent rows (multi-head latent attention), and of groups of experts.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::ops::RangeInclusive;

use super::{out_of_range, Config, Keys};
use crate::error::Result;

/// Keys and values that each head makes of one row of a token, of which the cache keeps that row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Numbers of the row that keys and values are made of.
    pub rank: usize,
    /// Numbers of the row that queries are made of, where there is one.
    pub q_rank: Option<usize>,
    /// Of a head, the rotated ones included.
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Groups of experts, of which a row goes to some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertGroups {
    pub count: usize,
    pub used: usize,
}

impl Config {
    /// What `attention.kv_lora_rank` and its neighbours say, where they are: the cache has heads of
    /// `head_dim` numbers.
    pub(super) fn latent(keys: &Keys<'_>, head_dim: usize) -> Result<Option<LatentConfig>> {
        const MOST: RangeInclusive<usize> = 1..=1024;
        const RANK: &str = "attention.kv_lora_rank";
        let Some(rank) = keys.uint(RANK, MOST)? else {
            return Ok(None);
        };
        let need = |key: &str| {
            let expected = "1 to 1024: files without it are of an early converter, which left \
                            attn_kv_b in one piece; fetch one with attn_k_b and attn_v_b, or \
                            convert the model again";
            keys.need(key, keys.uint(key, MOST)?, expected)
        };
        let key_dim = need("attention.key_length_mla")?;
        let value_dim = need("attention.value_length_mla")?;
        let rotated = keys.uint("rope.dimension_count", 2..=1024)?.unwrap_or(0);
        if rotated == 0 || rotated >= key_dim || rank.checked_add(rotated) != Some(head_dim) {
            return Err(out_of_range(
                format!("{}.attention.key_length", keys.arch),
                head_dim,
                format!(
                    "attention.kv_lora_rank {rank} and rope.dimension_count {rotated} together, \
                     of which the latter is above 0 and below attention.key_length_mla {key_dim}"
                ),
            ));
        }
        let q_rank = keys.uint("attention.q_lora_rank", 0..=1 << 20)?;
        Ok(Some(LatentConfig {
            rank,
            q_rank: q_rank.filter(|n| *n > 0),
            key_dim,
            value_dim,
        }))
    }

    pub(super) fn groups(
        keys: &Keys<'_>,
        n_expert: usize,
        n_used: usize,
    ) -> Result<Option<ExpertGroups>> {
        const COUNT: &str = "expert_group_count";
        const USED: &str = "expert_group_used_count";
        let count = keys.uint(COUNT, 0..=32)?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        let size = n_expert.checked_div(count).unwrap_or(0);
        if size < 2 || n_expert.checked_rem(count) != Some(0) {
            return Err(out_of_range(
                format!("{}.{COUNT}", keys.arch),
                count,
                format!("a number that {n_expert} experts can be cut by, two or more a group"),
            ));
        }
        let expected = format!("1 to {count}, the number of groups");
        let used = keys.need(USED, keys.uint(USED, 1..=count)?, &expected)?;
        match size.checked_mul(used).is_some_and(|most| n_used <= most) {
            true => Ok(Some(ExpertGroups { count, used })),
            false => Err(out_of_range(
                format!("{}.{USED}", keys.arch),
                used,
                format!("groups that have the {n_used} experts of a row, {size} each"),
            )),
        }
    }
}
