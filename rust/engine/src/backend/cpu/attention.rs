//! Attention over the paged cache, a row and a KV head at a time. The sum over tokens goes in
//! order, whatever the batch.

use rayon::prelude::*;

use super::kv::{KvCache, Part};
use super::simd::{self, Isa, Level, Task};
use crate::backend::{Batch, PAGE_TOKENS};
use crate::quant::{self, Block, Visitor};

/// One attention op on the rows of a batch.
pub struct Attention<'a> {
    pub kv: &'a KvCache,
    /// `[rows, n_head * head_dim]`.
    pub q: &'a [f32],
    pub layer: usize,
    pub n_head: usize,
    pub scale: f32,
    pub batch: &'a Batch<'a>,
}

impl Attention<'_> {
    /// Writes `out`, `[rows, n_head * head_dim]`.
    pub fn run(&self, level: Level, out: &mut [f32]) {
        let group = self.n_head / self.kv.shape.n_head_kv;
        let width = group * self.kv.shape.head_dim;
        out.par_chunks_exact_mut(width)
            .enumerate()
            .for_each(|(i, out)| {
                quant::dispatch(
                    self.kv.ty,
                    Head {
                        op: self,
                        level,
                        index: i,
                        out,
                    },
                );
            });
    }
}

/// The query heads of one row that share a KV head.
struct Head<'a> {
    op: &'a Attention<'a>,
    level: Level,
    /// `row * n_head_kv + kv head`.
    index: usize,
    /// `[group * head_dim]`.
    out: &'a mut [f32],
}

impl Visitor for Head<'_> {
    type Out = ();

    fn visit<B: Block>(self) {
        simd::run(self.level, TypedHead::<B>(self, std::marker::PhantomData));
    }
}

struct TypedHead<'a, B>(Head<'a>, std::marker::PhantomData<B>);

impl<B: Block> Task for TypedHead<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Head { op, index, out, .. } = self.0;
        let n_kv = op.kv.shape.n_head_kv;
        let dim = op.kv.shape.head_dim;
        let (row, head) = (index / n_kv, index % n_kv);
        let group = op.n_head / n_kv;
        let q = &op.q[(row * n_kv + head) * group * dim..][..group * dim];
        let slot = op.batch.slots[row] as usize;
        // A position past the cache was refused by the scatter; here it must only not be read.
        let n = (op.batch.positions[row] as usize)
            .saturating_add(1)
            .min(op.kv.n_ctx());

        // [group, n]
        let mut scores = vec![f32::NEG_INFINITY; group * n];
        let mut page_values = vec![0.0; PAGE_TOKENS * dim];
        let pages = n.div_ceil(PAGE_TOKENS);
        for page in 0..pages {
            let tokens = (n - page * PAGE_TOKENS).min(PAGE_TOKENS);
            let bytes = op.kv.head_page(op.layer, slot, page, Part::K, head, tokens);
            let Some(bytes) = bytes else { continue };
            simd::expand_row::<B>(bytes, &mut page_values);
            for (g, q) in q.chunks_exact(dim).enumerate() {
                let scores = &mut scores[g * n + page * PAGE_TOKENS..][..tokens];
                for (score, k) in scores.iter_mut().zip(page_values.chunks_exact(dim)) {
                    *score = simd::dot::<I>(k, q) * op.scale;
                }
            }
        }
        let mut sums = vec![0.0f64; group];
        for (scores, sum) in scores.chunks_exact_mut(n).zip(&mut sums) {
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for s in scores {
                *s = (*s - most).exp();
                *sum += f64::from(*s);
            }
        }
        out.fill(0.0);
        for page in 0..pages {
            let tokens = (n - page * PAGE_TOKENS).min(PAGE_TOKENS);
            let bytes = op.kv.head_page(op.layer, slot, page, Part::V, head, tokens);
            let Some(bytes) = bytes else { continue };
            simd::expand_row::<B>(bytes, &mut page_values);
            for (g, out) in out.chunks_exact_mut(dim).enumerate() {
                let scores = &scores[g * n + page * PAGE_TOKENS..][..tokens];
                for (p, v) in scores.iter().zip(page_values.chunks_exact(dim)) {
                    simd::axpy(*p, v, out);
                }
            }
        }
        for (out, sum) in out.chunks_exact_mut(dim).zip(&sums) {
            let scale = (1.0 / sum) as f32;
            out.iter_mut().for_each(|y| *y *= scale);
        }
    }
}
