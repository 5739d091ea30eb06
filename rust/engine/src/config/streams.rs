//! Keys of hyper-connections, of attention to chosen blocks, and of embeddings of n-grams.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::ops::RangeInclusive;

use super::{out_of_range, Config, Keys};
use crate::error::Result;
use crate::gguf::{Array, Value};

/// The family that these keys are read of.
const ARCHITECTURE: &str = "qwen4exp";

/// Parallel streams that stand in the place of a model's rows and norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamsConfig {
    pub count: usize,
    /// Width of what their gates are made of.
    pub rank: usize,
}

/// The choice of blocks of tokens that attention sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceConfig {
    /// Tokens of the blocks that are chosen: a context of no more is seen whole.
    pub top_k: usize,
    /// Tokens of a block.
    pub ratio: usize,
    /// Heads of the queries that choose, and the width of one.
    pub n_head: usize,
    pub head_dim: usize,
}

/// Embeddings of n-grams, which one layer adds to the streams.
#[derive(Debug, Clone, PartialEq)]
pub struct NgramConfig {
    pub layer: usize,
    /// Tokens of the longest n-grams.
    pub size: usize,
    /// Tokens that the convolution of what the embeddings give sees, so many apart as `size`.
    pub conv_kernel: usize,
    /// The token that ends texts.
    pub eos: u32,
    pub multipliers: Vec<u64>,
    /// Of each head the first of its rows, and how many.
    pub heads: Vec<(u64, u64)>,
    /// Values of a row.
    pub width: usize,
}

impl Config {
    /// What `hyper_connection.count` and its neighbours say, where the architecture has them.
    pub(super) fn streams(keys: &Keys<'_>) -> Result<Option<StreamsConfig>> {
        if keys.arch != ARCHITECTURE {
            return Ok(None);
        }
        const COUNT: &str = "hyper_connection.count";
        let need = |key: &str, range: RangeInclusive<usize>| {
            let expected = format!("{} to {}", range.start(), range.end());
            keys.need(key, keys.uint(key, range)?, &expected)
        };
        let count = need(COUNT, 2..=8)?;
        if !count.is_power_of_two() {
            return Err(out_of_range(
                format!("{}.{COUNT}", keys.arch),
                count,
                "2, 4 or 8 streams",
            ));
        }
        Ok(Some(StreamsConfig {
            count,
            rank: need("hyper_connection.low_rank", 1..=1 << 16)?,
        }))
    }

    /// What `attention.indexer.top_k` and its neighbours say, where the architecture has them: layers that
    /// attend have all one number of tokens a block.
    pub(super) fn choice(keys: &Keys<'_>, rope_dim: usize) -> Result<Option<ChoiceConfig>> {
        if keys.arch != ARCHITECTURE {
            return Ok(None);
        }
        const RATIOS: &str = "attention.compress_ratios";
        const TOP_K: &str = "attention.indexer.top_k";
        const EXPECTED: &str = "one number for all layers that attend: 4, 8, 16, 32 or 64";
        let found = keys.need(RATIOS, Self::numbers(keys, RATIOS)?, EXPECTED)?;
        let mut ratios = found.iter().copied().filter(|n| *n > 0);
        let first = ratios.next();
        let is_one = ratios.all(|other| Some(other) == first);
        let ratio = first.filter(|n| is_one && [4, 8, 16, 32, 64].contains(n));
        let Some(ratio) = ratio.and_then(|n| usize::try_from(n).ok()) else {
            let key = format!("{}.{RATIOS}", keys.arch);
            return Err(out_of_range(key, format!("{found:?}"), EXPECTED));
        };
        let need = |key: &str, range: RangeInclusive<usize>| {
            let expected = format!("{} to {}", range.start(), range.end());
            keys.need(key, keys.uint(key, range)?, &expected)
        };
        let top_k = need(TOP_K, ratio..=1 << 30)?;
        if top_k.checked_rem(ratio) != Some(0) {
            return Err(out_of_range(
                format!("{}.{TOP_K}", keys.arch),
                top_k,
                format!("a multiple of the {ratio} tokens of a block"),
            ));
        }
        Ok(Some(ChoiceConfig {
            top_k,
            ratio,
            n_head: need("attention.indexer.head_count", 1..=64)?,
            // Of which as many are rotated as of other heads.
            head_dim: need("attention.indexer.key_length", rope_dim..=256)?,
        }))
    }

    /// What `ple.layers` and its neighbours say, where they are.
    pub(super) fn ngrams(keys: &Keys<'_>, n_layer: usize) -> Result<Option<NgramConfig>> {
        const LAYERS: &str = "ple.layers";
        let listed = match keys.arch == ARCHITECTURE {
            true => Self::numbers(keys, LAYERS)?,
            false => None,
        };
        let layer = match listed.as_deref() {
            None | Some([]) => return Ok(None),
            Some([layer]) => usize::try_from(*layer).ok().filter(|n| *n < n_layer),
            Some(_) => None,
        };
        let Some(layer) = layer else {
            return Err(out_of_range(
                format!("{}.{LAYERS}", keys.arch),
                format!("{:?}", listed.unwrap_or_default()),
                format!("one layer of {n_layer}"),
            ));
        };
        let need = |key: &str, range: RangeInclusive<usize>| {
            let expected = format!("{} to {}", range.start(), range.end());
            keys.need(key, keys.uint(key, range)?, &expected)
        };
        let size = need("ple.ngram_size", 2..=8)?;
        let per_length = need("ple.heads_per_ngram", 1..=64)?;
        let n_head = per_length.saturating_mul(size.saturating_sub(1));
        if n_head > 64 {
            return Err(out_of_range(
                format!("{}.ple.heads_per_ngram", keys.arch),
                per_length,
                "at most 64 heads of n-grams of all lengths",
            ));
        }
        let list = |key: &str, n: usize| {
            let found = Self::numbers(keys, key)?.filter(|each| each.len() >= n);
            let expected = format!("{n} non-negative integers");
            let mut found = keys.need(key, found, &expected)?;
            found.truncate(n);
            Ok(found)
        };
        let multipliers = list("ple.layer_multipliers", size)?;
        let offsets = list("ple.head_offsets", n_head)?;
        let sizes = list("ple.head_vocab_sizes", n_head)?;
        let heads: Vec<(u64, u64)> = offsets.into_iter().zip(sizes).collect();
        let most = 1 << 40;
        let is_odd = |(offset, size): &&(u64, u64)| *size == 0 || *size > most || *offset > most;
        if let Some((offset, size)) = heads.iter().find(is_odd) {
            return Err(out_of_range(
                format!("{}.ple.head_vocab_sizes", keys.arch),
                format!("{size} rows from row {offset} on"),
                format!("1 to {most} rows, from row 0 to {most}"),
            ));
        }
        let eos = need("ple.eos_token_id", 0..=(1 << 24) - 2)?;
        Ok(Some(NgramConfig {
            layer,
            size,
            conv_kernel: need("ple.conv_kernel", 2..=16)?,
            eos: u32::try_from(eos).unwrap_or(u32::MAX),
            multipliers,
            heads,
            width: need("embedding_length_per_layer_input", 1..=1 << 16)?,
        }))
    }

    /// An array of non-negative integers.
    fn numbers(keys: &Keys<'_>, key: &str) -> Result<Option<Vec<u64>>> {
        let key = format!("{}.{key}", keys.arch);
        let Some(value) = keys.gguf.get(&key) else {
            return Ok(None);
        };
        let signed = |n: i64| u64::try_from(n).ok();
        let found: Option<Vec<u64>> = match value {
            Value::Array(Array::U64(each)) => Some(each.clone()),
            Value::Array(Array::U32(each)) => Some(each.iter().map(|n| (*n).into()).collect()),
            Value::Array(Array::I64(each)) => each.iter().map(|n| signed(*n)).collect(),
            Value::Array(Array::I32(each)) => each.iter().map(|n| signed((*n).into())).collect(),
            _ => None,
        };
        match found {
            Some(found) => Ok(Some(found)),
            None => Err(out_of_range(
                key,
                value.describe(),
                "an array of non-negative integers",
            )),
        }
    }
}
