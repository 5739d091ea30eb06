//! Attention over the paged cache. The sum over tokens goes in order, whatever the batch.

use std::ops::Range;

use rayon::prelude::*;

use super::exact_attention;
use super::gates::exp_down;
use super::heads::{Attention, Heads};
use super::kv::Part;
use super::product;
use super::reserve::filled;
use super::simd::{self, Isa, Level, Task};
use crate::backend::PAGE_TOKENS;
use crate::error::Result;
use crate::plan::KvShape;
use crate::quant::{dispatch_kv, QuantType};

/// Rows of one sequence that share an expanded page.
const ROWS: usize = 16;

/// Bytes that attention works on.
pub struct ScratchBytes {
    pub per_thread: usize,
    /// The list of what the threads do.
    pub shared: usize,
}

/// For `rows` rows that see up to `n_ctx` tokens in a cache of `ty`.
pub fn scratch_bytes(
    kv: KvShape,
    ty: &QuantType,
    n_head: usize,
    n_ctx: usize,
    rows: usize,
) -> ScratchBytes {
    let queries = ROWS.min(rows).saturating_mul(n_head / kv.n_head_kv.max(1));
    let scores = queries
        .saturating_mul(n_ctx)
        .saturating_mul(size_of::<f32>());
    let values = PAGE_TOKENS * kv.head_dim * size_of::<f32>();
    let sums = queries.saturating_mul(size_of::<f64>());
    ScratchBytes {
        per_thread: match ty.sums_kv_exactly() {
            true => exact_attention::scratch_bytes(kv.head_dim, ty.block_elems, queries),
            false => scores.saturating_add(values).saturating_add(sums),
        },
        shared: rows
            .saturating_mul(n_head)
            .saturating_mul(size_of::<&mut [f32]>()),
    }
}

impl Attention<'_> {
    /// Writes `out`, `[rows, n_head]` values.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn run(&self, level: Level, out: &mut [f32]) -> Result<()> {
        let kv = self.kv.pages.layers[self.layer].shape;
        let (n_kv, width) = (kv.n_head_kv, self.n_head * kv.value_dim());
        let mut work: Vec<(usize, usize, Vec<&mut [f32]>)> = Vec::new();
        let mut rest = out;
        let mut first = 0;
        for rows in self.batch.slots.chunk_by(|a, b| a == b) {
            for rows in rows.chunks(ROWS) {
                let (part, more) = rest.split_at_mut(rows.len() * width);
                rest = more;
                let mut heads: Vec<Vec<&mut [f32]>> = (0..n_kv).map(|_| Vec::new()).collect();
                for (i, head) in part.chunks_exact_mut(width / n_kv).enumerate() {
                    heads[i % n_kv].push(head);
                }
                work.extend(
                    heads
                        .into_iter()
                        .enumerate()
                        .map(|(h, out)| (first, h, out)),
                );
                first += rows.len();
            }
        }
        let ty = self.kv.pages.ty;
        work.into_par_iter().try_for_each(|(first, head, out)| {
            let heads = Heads {
                op: self,
                level,
                first,
                head,
                out,
            };
            match dispatch_kv(ty, heads) {
                Ok(result) => result,
                Err(heads) => simd::run(level, FloatHeads(heads)),
            }
        })
    }
}

/// The query heads of some rows of one sequence that share a KV head, in floats: keys and values of
/// a page are expanded before they are used, so this is compiled once for all their types.
struct FloatHeads<'a, 'b>(Heads<'a, 'b>);

impl Task for FloatHeads<'_, '_> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Result<()> {
        let Heads {
            op,
            level,
            first,
            head,
            mut out,
        } = self.0;
        let kv = op.kv;
        let shape = kv.pages.layers[op.layer].shape;
        let (n_head_kv, dim, value_dim) = (shape.n_head_kv, shape.head_dim, shape.value_dim());
        let group = op.n_head / n_head_kv;
        let slot = op.batch.slots[first] as usize;
        let q = |row: usize| {
            let row = (first + row) * n_head_kv + head;
            &op.q[row * group * dim..][..group * dim]
        };
        let seen = op.seen(first, out.len());
        let pages = Attention::pages(&seen);
        let end = seen.iter().map(|tokens| tokens.end).max().unwrap_or(0);
        // Entries of a page that are among the tokens.
        let in_page = |tokens: &Range<usize>, page: usize| {
            let at = |token: usize| token.saturating_sub(page * PAGE_TOKENS).min(PAGE_TOKENS);
            at(tokens.start)..at(tokens.end)
        };

        // [rows, group, most], from the first page on
        let base = pages.start * PAGE_TOKENS;
        let most = end - base.min(end);
        let what = "the scores of attention";
        let mut scores = filled(out.len() * group * most, f32::NEG_INFINITY, what)?;
        let mut values = filled(PAGE_TOKENS * dim, 0.0, what)?;
        for page in pages.clone() {
            let n = in_page(&(0..end), page).end;
            let stored = kv.head_page(op.layer, slot, page, Part::K, head, n);
            let Some(stored) = stored else { continue };
            product::expand(kv.pages.ty, level, stored, &mut values);
            for (row, tokens) in seen.iter().enumerate() {
                let entries = in_page(tokens, page);
                let chosen = op.chosen(first + row, page);
                let first = page * PAGE_TOKENS - base + entries.start;
                let scores = &mut scores[row * group * most..][..group * most];
                for (q, scores) in q(row).chunks_exact(dim).zip(scores.chunks_exact_mut(most)) {
                    let keys = values.chunks_exact(dim).skip(entries.start);
                    let scores = scores.iter_mut().skip(first).take(entries.len());
                    let chosen = chosen.iter().skip(entries.start);
                    for ((score, k), _) in scores.zip(keys).zip(chosen).filter(|(_, is)| **is) {
                        *score = product::dot::<I>(k, q) * op.scale;
                    }
                }
            }
        }
        // [rows, group]
        let mut sums = filled(out.len() * group, 0.0f64, what)?;
        for (i, (scores, sum)) in scores.chunks_exact_mut(most).zip(&mut sums).enumerate() {
            let tokens = &seen[i / group];
            let scores = &mut scores[tokens.start - base..tokens.end - base];
            let sink = op.sink(head, group, i % group);
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let top = sink.map_or(most, |logit| logit.max(most));
            for s in &mut *scores {
                *s = exp_down(*s - top);
            }
            for p in scores {
                *sum += f64::from(*p);
            }
            // Beside an infinite query a sink would have all the weight, and hide it.
            *sum += match sink {
                None => 0.0,
                Some(_) if most == f32::NEG_INFINITY => f64::NAN,
                Some(logit) => f64::from(exp_down(logit - top)),
            };
        }
        for out in &mut out {
            out.fill(0.0);
        }
        for page in pages {
            let n = in_page(&(0..end), page).end;
            let stored = kv.head_page(op.layer, slot, page, Part::V, head, n);
            let Some(stored) = stored else { continue };
            product::expand(kv.pages.ty, level, stored, &mut values);
            if value_dim < dim {
                // What is of values alone, side by side.
                for entry in 1..n {
                    values.copy_within(entry * dim..entry * dim + value_dim, entry * value_dim);
                }
            }
            for (row, (tokens, out)) in seen.iter().zip(&mut out).enumerate() {
                let entries = in_page(tokens, page);
                let first = page * PAGE_TOKENS - base + entries.start;
                for (g, out) in out.chunks_exact_mut(value_dim).enumerate() {
                    if !entries.is_empty() {
                        let p = &scores[(row * group + g) * most + first..][..entries.len()];
                        let values = &values[entries.start * value_dim..entries.end * value_dim];
                        product::weighted_sum::<I>(p, values, out);
                    }
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums.chunks_exact(group)) {
            for (out, sum) in out.chunks_exact_mut(value_dim).zip(sums) {
                let scale = (1.0 / sum) as f32;
                out.iter_mut().for_each(|y| *y *= scale);
            }
        }
        Ok(())
    }
}
