//! The choice of blocks of tokens that attention sees.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::Interpreter;
use crate::backend::cpu::kv::Part;
use crate::backend::cpu::memory::vector;
use crate::backend::cpu::product;
use crate::backend::cpu::reserve::filled;
use crate::backend::cpu::rowwise::{CosSin, RmsNorm};
use crate::backend::cpu::simd::{self, Isa, Task};
use crate::backend::{Batch, PAGE_TOKENS};
use crate::error::Result;
use crate::plan::{Choice, RopeStyle, WORD_TOKENS};
use crate::quant::dispatch_kv;
use crate::quant::kv::{KvBlock, KvVisitor};

/// What a block's key gives with the heads of one row.
struct Score<'a> {
    key: &'a [f32],
    /// Side by side.
    q: &'a [f32],
}

impl Task for Score<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<I: Isa>(self) -> f32 {
        let mut score = 0.0;
        for (h, q) in self.q.chunks_exact(self.key.len()).enumerate() {
            let d = product::dot::<I>(self.key, q);
            let d = if d > 0.0 { d } else { 0.0 };
            score = if h == 0 { d } else { score + d };
        }
        if score.is_nan() {
            0.0
        } else {
            score
        }
    }
}

/// Keys of a page as numbers.
struct Expand<'a> {
    stored: &'a [u8],
    head_bytes: usize,
    /// `[tokens][dim]`.
    keys: &'a mut [f32],
    dim: usize,
}

impl KvVisitor for Expand<'_> {
    type Out = ();

    fn visit<B: KvBlock>(self) {
        let heads = self.stored.chunks_exact(self.head_bytes);
        for (head, key) in heads.zip(self.keys.chunks_exact_mut(self.dim)) {
            for (block, key) in B::blocks(head).zip(key.chunks_mut(B::GROUP)) {
                let (scale, integers) = B::parts(block);
                let integers = integers.chunks_exact(B::BYTES).map(B::integer);
                for (key, integer) in key.iter_mut().zip(integers) {
                    // Exact.
                    *key = f32::from(integer) * scale;
                }
            }
        }
    }
}

impl Interpreter {
    pub(super) fn choice(&mut self, op: &Choice, batch: &Batch<'_>) -> Result<()> {
        match *op {
            Choice::Scores { out, n, .. } => {
                let mut scores = self.take(out);
                let mut first = 0;
                for rows in batch.slots.chunk_by(|a, b| a == b) {
                    let of = first..first + rows.len();
                    let scores = &mut scores[of.start * n..of.end * n];
                    let positions = &batch.positions[of.clone()];
                    self.score(op, (rows[0] as usize, positions, of.start), scores)?;
                    first = of.end;
                }
                self.buffers[out.0] = scores;
            }
            Choice::Blocks {
                scores,
                out,
                ratio,
                top_k,
                n,
            } => {
                let words = self.plan.buffer(out).width;
                let mut chosen = self.take(out);
                let scores = self.buffers[scores.0].par_chunks_exact(n);
                let rows = chosen.par_chunks_exact_mut(words).zip(scores);
                rows.zip(batch.positions)
                    .for_each(|((words, scores), position)| {
                        choose(scores, *position as usize + 1, [ratio, top_k], words);
                    });
                self.buffers[out.0] = chosen;
            }
        }
        Ok(())
    }

    /// Scores of the rows of one sequence, which stand at these positions, from row `first` on.
    fn score(
        &self,
        op: &Choice,
        (slot, positions, first): (usize, &[u32], usize),
        scores: &mut [f32],
    ) -> Result<()> {
        let Choice::Scores {
            q,
            weight,
            layer,
            n_head,
            table,
            ratio,
            n,
            eps,
            ..
        } = *op
        else {
            return Ok(());
        };
        let dim = self.plan.buffer(q).width / n_head;
        let seen = |position: u32| (position as usize + 1).min(self.kv.n_ctx()) / ratio;
        let most = positions.iter().map(|p| seen(*p)).max().unwrap_or(0).min(n);
        let starts: Vec<u32> = (0..most).map(|block| (block * ratio) as u32).collect();
        let mut angles = CosSin::default();
        angles.set(
            &starts,
            &self.angles[table].inv_freq,
            &self.plan.ropes[table],
        )?;
        let what = "the keys of blocks";
        let mut keys = filled(most * dim, 0.0, what)?;
        let weight = vector(&self.plan, &self.vectors, weight)?;
        let (level, ty, of_page) = (self.level, self.kv.pages.ty, PAGE_TOKENS / ratio);
        let head_bytes = self.kv.pages.layers[layer].head_bytes;
        let pages = keys.par_chunks_mut(of_page * dim).enumerate();
        pages.try_for_each(|(page, keys)| {
            let n = keys.len() / dim * ratio;
            let stored = self.kv.head_page(layer, slot, page, Part::K, 0, n);
            let Some(stored) = stored else { return Ok(()) };
            let mut values = filled(PAGE_TOKENS * dim, 0.0, what)?;
            let expand = Expand {
                stored,
                head_bytes,
                keys: &mut values,
                dim,
            };
            if let Err(Expand { stored, keys, .. }) = dispatch_kv(ty, expand) {
                product::expand(ty, level, stored, keys);
            }
            let blocks = values.chunks_exact(ratio * dim);
            for (i, (key, tokens)) in keys.chunks_exact_mut(dim).zip(blocks).enumerate() {
                for (t, token) in tokens.chunks_exact(dim).enumerate() {
                    for (key, value) in key.iter_mut().zip(token) {
                        *key = if t == 0 { *value } else { *key + value };
                    }
                }
                let share = 1.0 / ratio as f32;
                key.iter_mut().for_each(|key| *key *= share);
                let norm = RmsNorm {
                    values: key,
                    weight: Some(weight),
                    eps,
                };
                simd::run(level, norm);
                angles.rotate(level, page * of_page + i, key, dim, RopeStyle::Halves);
            }
            Ok(())
        })?;
        let width = n_head * dim;
        let queries = self.buffers[q.0][first * width..].par_chunks_exact(width);
        let rows = scores.par_chunks_exact_mut(n).zip(queries).zip(positions);
        rows.for_each(|((scores, q), position)| {
            let keys = keys.chunks_exact(dim).take(seen(*position));
            for (score, key) in scores.iter_mut().zip(keys) {
                *score = simd::run(level, Score { key, q });
            }
        });
        Ok(())
    }
}

/// The bits of a row that sees `tokens` tokens.
fn choose(scores: &[f32], tokens: usize, [ratio, top_k]: [usize; 2], words: &mut [f32]) {
    let whole = (tokens / ratio).min(scores.len());
    let of_word = WORD_TOKENS / ratio;
    let mut bits = vec![0u32; words.len()];
    let mut set = |block: usize| {
        if let Some(word) = bits.get_mut(block / of_word) {
            *word |= 1 << (block % of_word);
        }
    };
    let most = top_k / ratio;
    let mut blocks: Vec<usize> = (0..whole).collect();
    if whole > most {
        let larger = |a: &usize, b: &usize| {
            let by_score = scores[*b].partial_cmp(&scores[*a]);
            by_score.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        blocks.sort_by(larger);
        blocks.truncate(most);
    }
    blocks.into_iter().for_each(&mut set);
    if !tokens.is_multiple_of(ratio) {
        set(tokens / ratio);
    }
    for (word, bits) in words.iter_mut().zip(bits) {
        *word = bits as f32;
    }
}
