//! One attention op: what each row of a batch sees, and the share of one KV head.

use std::ops::Range;

use super::kv::KvCache;
use super::simd::Level;
use crate::backend::{Batch, PAGE_TOKENS};
use crate::plan::Chosen;

/// One attention op on the rows of a batch.
pub struct Attention<'a> {
    pub kv: &'a KvCache,
    /// `[rows, n_head * head_dim]`.
    pub q: &'a [f32],
    pub layer: usize,
    pub n_head: usize,
    pub scale: f32,
    /// Tokens that a row sees, where these are not all.
    pub window: Option<usize>,
    /// Whether a row sees none behind it.
    pub causal: bool,
    /// `[n_head]`, where there are any.
    pub sinks: Option<&'a [f32]>,
    /// The blocks of tokens that a row sees, where not all: `[rows, words]`, and as the op says.
    pub chosen: Option<(&'a [f32], Chosen)>,
    pub batch: &'a Batch<'a>,
}

/// The query heads of some rows of one sequence that share a KV head.
pub struct Heads<'a, 'b> {
    pub op: &'a Attention<'a>,
    pub level: Level,
    /// The first of the rows.
    pub first: usize,
    /// The KV head.
    pub head: usize,
    /// `[group]` values for each row.
    pub out: Vec<&'b mut [f32]>,
}

impl Attention<'_> {
    /// The tokens that each of `n` rows of a sequence, from `first` on, sees. A position past the cache was refused by
    /// the scatter; here it must only not be read.
    pub fn seen(&self, first: usize, n: usize) -> Vec<Range<usize>> {
        let of_row = |p: &u32| {
            let end = (*p as usize).saturating_add(1).min(self.kv.n_ctx());
            end.saturating_sub(self.window.unwrap_or(end))..end
        };
        let positions = &self.batch.positions[first..];
        if self.causal {
            return positions[..n].iter().map(of_row).collect();
        }
        let slots = &self.batch.slots[first..];
        let is_its = |(slot, _): &(&u32, &u32)| **slot == slots[0];
        let its = slots.iter().zip(positions).take_while(is_its);
        let last = its.map(|(_, position)| position).last();
        let end = last.map_or(0, |position| of_row(position).end);
        let around = |p: &u32| match self.window.map(|window| window / 2) {
            Some(half) => {
                let p = *p as usize;
                p.saturating_sub(half)..end.min(p.saturating_add(half).saturating_add(1))
            }
            None => 0..end,
        };
        positions[..n].iter().map(around).collect()
    }

    /// Whether row `row` of the batch sees each token of a page, where not all that its range has.
    #[inline(always)]
    pub fn chosen(&self, row: usize, page: usize) -> [bool; PAGE_TOKENS] {
        let Some((words, of)) = self.chosen else {
            return [true; PAGE_TOKENS];
        };
        let word = words[row * of.words..][..of.words].get(page);
        let bits = word.map_or(0, |word| *word as u32);
        std::array::from_fn(|t| bits >> (t / of.ratio) & 1 == 1)
    }

    /// The sink of query head `g` of those that share a KV head.
    pub fn sink(&self, head: usize, group: usize, g: usize) -> Option<f32> {
        Some(self.sinks?[head * group + g])
    }

    /// The pages that rows look at which see these tokens.
    pub fn pages(seen: &[Range<usize>]) -> Range<usize> {
        let first = seen.iter().map(|tokens| tokens.start).min().unwrap_or(0);
        let end = seen.iter().map(|tokens| tokens.end).max().unwrap_or(0);
        first / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS)
    }
}
