//! Attention over a cache of integers, as [`crate::plan::Op::Attention`] states it: token block by token
//! block of a sequence, each read once for all rows and query heads that share it.

use std::ops::Range;

use super::heads::{Attention, Heads};
use super::kv::Part;
use super::reserve::{filled, reserve};
use super::simd::{self, pair, Isa, Task, Word, LANES};
use crate::backend::{KvLayer, PAGE_TOKENS};
use crate::error::Result;
use crate::quant::kv::{KvBlock, KvVisitor};
use crate::sampler::math;

/// Tokens of a token block: those of a page.
const TOKEN_BLOCK: usize = PAGE_TOKENS;

/// Token blocks up to which each is a split, and the most splits.
const MOST_SPLITS: usize = 32;

/// Exponent fields: of a query's largest, none above; of a block's largest weight, none below.
const MOST_FIELD: u32 = 176;
const LEAST_FIELD: u32 = 24;

/// The largest of Q, two balanced limbs, and of the weights.
const Q_MOST: f32 = 32639.0;
const W_MOST: f32 = 65535.0;

/// Bits of the lower limb of Q, and of a weight.
const LIMB: u32 = 8;

/// `log2(e) / 64`: what a sink is multiplied by.
const SINK: f32 = (std::f64::consts::LOG2_E / 64.0) as f32;

/// 2^-100, the least of what a query's largest is taken for.
const LEAST_QUERY: f32 = f32::from_bits(27 << 23);

/// 2^23, from which on 64ths of a largest score are too large for weights of others.
const SCORE_END: f32 = 8_388_608.0;

/// 1.5 * 2^23, and 2^23 for what is not negative: a sum has no room for a fraction.
const ROUND: f32 = 12_582_912.0;
const ROUND_POSITIVE: f32 = 8_388_608.0;

/// `2^n`, zero below 2^-126.
#[inline(always)]
fn fade(n: f32) -> f32 {
    if n < -126.0 {
        0.0
    } else {
        f32::from_bits((((n as i32) + 127) << 23) as u32)
    }
}

/// The token blocks that tokens are in, and how many of them are a split.
fn split(tokens: &Range<usize>) -> (Range<usize>, usize) {
    let token_blocks = tokens.start / TOKEN_BLOCK..tokens.end.div_ceil(TOKEN_BLOCK);
    let of_split = token_blocks.len().div_ceil(MOST_SPLITS).max(1);
    (token_blocks, of_split)
}

/// `x scale`, not negative and below 2^23, rounded to an integer.
#[inline(always)]
fn rounded(x: f32, scale: f32) -> u32 {
    let sum = x.mul_add(scale, ROUND_POSITIVE);
    sum.to_bits().wrapping_sub(ROUND_POSITIVE.to_bits())
}

/// The larger one; `a` beside what is no number.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a {
        b
    } else {
        a
    }
}

/// The largest: in halves, whose lanes are compared side by side.
#[inline(always)]
fn largest(mut x: [f32; TOKEN_BLOCK]) -> f32 {
    let mut n = TOKEN_BLOCK / 2;
    while n > 0 {
        let (low, high) = x.split_at_mut(n);
        for (low, high) in low.iter_mut().zip(high) {
            *low = larger(*low, *high);
        }
        n /= 2;
    }
    x[0]
}

/// A head's query in limbs, `Q = 256 hi + lo`: words of two dimensions.
struct Query {
    hi: Vec<Word>,
    lo: Vec<Word>,
    /// What a score is multiplied by, for 64ths of powers of two.
    factor: f32,
    /// Whether it has a fixed point.
    is_number: bool,
}

impl Query {
    fn new(q: &[f32], c: f32) -> Result<Self> {
        let what = "the queries of attention";
        let most = q.iter().fold(0, |most, x| x.abs().to_bits().max(most));
        let n_pairs = q.len().div_ceil(2);
        let mut query = Self {
            hi: filled(n_pairs, 0, what)?,
            lo: filled(n_pairs, 0, what)?,
            factor: 0.0,
            is_number: most >> 23 <= MOST_FIELD,
        };
        if !query.is_number {
            return Ok(query);
        }
        let most = f32::from_bits(most).max(LEAST_QUERY);
        let scale = Q_MOST / most;
        query.factor = c * most;
        let limbs = |x: f32| {
            let x = (x.mul_add(scale, ROUND) - ROUND) as i32;
            let hi = (x + (1 << (LIMB - 1))) >> LIMB;
            (hi, x - (hi << LIMB))
        };
        let words = query.hi.iter_mut().zip(&mut query.lo);
        for ((hi, lo), two) in words.zip(q.chunks(2)) {
            let first = limbs(two[0]);
            let second = two.get(1).map_or((0, 0), |x| limbs(*x));
            *hi = pair(first.0, second.0);
            *lo = pair(first.1, second.1);
        }
        Ok(query)
    }
}

/// Weighted values of some tokens: their largest score rounded up, the sum of weights, and of values.
struct Sums {
    most: f32,
    weight: f32,
    /// Of a head.
    values: Vec<f32>,
    is_empty: bool,
}

impl Sums {
    fn new(dim: usize) -> Result<Self> {
        Ok(Self {
            most: 0.0,
            weight: 0.0,
            values: filled(dim, 0.0, "the sums of attention")?,
            is_empty: true,
        })
    }

    /// Step 5: these and the `next`, which is empty then.
    #[inline(always)]
    fn join(&mut self, next: &mut Self) {
        if self.is_empty {
            std::mem::swap(self, next);
        } else {
            let most = self.most.max(next.most);
            let (f, f1) = (fade(self.most - most), fade(next.most - most));
            self.most = most;
            self.weight = next.weight.mul_add(f1, self.weight * f);
            for (o, o1) in self.values.iter_mut().zip(&next.values) {
                *o = o1.mul_add(f1, *o * f);
            }
        }
        next.is_empty = true;
    }

    /// Step 6: a score that has no value.
    fn join_sink(&mut self, logit: f32) {
        let s = logit * SINK;
        let top = (s * 64.0).ceil();
        let z = match top.abs() >= SCORE_END {
            true => 1.0,
            false => s + top.mul_add(-1.0 / 64.0, 1.0),
        };
        let share = rounded(math::exp2_unit(z.clamp(0.0, 1.0)), (1u32 << 22) as f32);
        let most = if self.is_empty {
            top
        } else {
            self.most.max(top)
        };
        let (f, f1) = (fade(self.most - most), fade(top - most));
        self.most = most;
        self.weight = weight(share, top).mul_add(f1, self.weight * f);
        self.values.iter_mut().for_each(|o| *o *= f);
        self.is_empty = false;
    }
}

/// `rint(p 2^22)`, summed up, as a weight of step 3.
#[inline(always)]
fn weight(share: u32, most: f32) -> f32 {
    match most.is_finite() {
        true => share as f32 * (W_MOST * fade(-38.0)),
        false => f32::NAN,
    }
}

/// One query's sums on the way.
struct State {
    block: Sums,
    split: Sums,
    total: Sums,
}

/// In each lane the sum of its pairs, of every `step`-th group, times the pairs of integers
/// `256 hi + lo`, rounded once. Sums of either limb are below 2^31.
#[inline(always)]
fn dot<I: Isa>(groups: &[[Word; LANES]], step: usize, hi: &[Word], lo: &[Word]) -> [f32; LANES] {
    const { assert!(I::STRIPS <= 8) };
    let mut sums = [[I::no_words(); 2]; 8];
    for ((group, hi), lo) in groups.iter().step_by(step).zip(hi).zip(lo) {
        let (hi, lo) = (I::word(*hi), I::word(*lo));
        for (strip, sums) in sums.iter_mut().enumerate().take(I::STRIPS) {
            let words = I::words(group, strip);
            *sums = [
                I::dot_pairs(words, hi, sums[0]),
                I::dot_pairs(words, lo, sums[1]),
            ];
        }
    }
    let mut limbs = [[0; LANES]; 2];
    for (strip, sums) in sums.into_iter().enumerate().take(I::STRIPS) {
        I::store_words(sums[0], &mut limbs[0], strip);
        I::store_words(sums[1], &mut limbs[1], strip);
    }
    let base = f64::from(1u32 << LIMB);
    let mut rounded = [0.0; LANES];
    for ((sum, hi), lo) in rounded.iter_mut().zip(&limbs[0]).zip(&limbs[1]) {
        *sum = (f64::from(*hi as i32) * base + f64::from(*lo as i32)) as f32;
    }
    rounded
}

/// A word of two integers, or of the last one.
#[inline(always)]
fn words<B: KvBlock>(bytes: &[u8]) -> Word {
    let mut integers = bytes.chunks(B::BYTES).map(B::integer).map(i32::from);
    let first = integers.next().unwrap_or(0);
    pair(first, integers.next().unwrap_or(0))
}

/// The keys and values of a token block of one KV head.
struct TokenBlock {
    /// `[pair of dimensions][64 tokens]`, words of two dimensions.
    keys: Vec<[Word; LANES]>,
    /// `[pair of tokens][32 dimensions]`, words of two tokens.
    values: Vec<[Word; LANES]>,
    /// `[block][token]`.
    key_scales: Vec<[f32; TOKEN_BLOCK]>,
    value_scales: Vec<[f32; TOKEN_BLOCK]>,
}

impl TokenBlock {
    fn new<B: KvBlock>(dim: usize, value_dim: usize) -> Result<Self> {
        let what = "the keys and values of attention";
        let n_blocks = dim.div_ceil(B::GROUP);
        let lanes = value_dim.div_ceil(LANES);
        Ok(Self {
            keys: filled(dim.div_ceil(2) * (TOKEN_BLOCK / LANES), [0; LANES], what)?,
            values: filled(TOKEN_BLOCK / 2 * lanes, [0; LANES], what)?,
            key_scales: filled(n_blocks, [0.0; TOKEN_BLOCK], what)?,
            value_scales: filled(value_dim.div_ceil(B::GROUP), [0.0; TOKEN_BLOCK], what)?,
        })
    }

    #[inline(always)]
    fn set_keys<B: KvBlock>(&mut self, stored: &[u8], head_bytes: usize) {
        for (t, head) in stored.chunks_exact(head_bytes).enumerate() {
            for (b, block) in B::blocks(head).enumerate() {
                let (scale, integers) = B::parts(block);
                self.key_scales[b][t] = scale;
                let of_block = self.keys.chunks_exact_mut(TOKEN_BLOCK / LANES);
                let mut pairs = of_block.skip(b * (B::GROUP / 2));
                let twos = integers.chunks_exact(2 * B::BYTES);
                let last = twos.remainder();
                for (two, pair) in twos.zip(&mut pairs) {
                    pair[t / LANES][t % LANES] = words::<B>(two);
                }
                if let (false, Some(pair)) = (last.is_empty(), pairs.next()) {
                    pair[t / LANES][t % LANES] = words::<B>(last);
                }
            }
        }
    }

    #[inline(always)]
    fn set_values<B: KvBlock>(&mut self, stored: &[u8], head_bytes: usize) {
        let lanes = self.values.len() / (TOKEN_BLOCK / 2);
        for (t, head) in stored.chunks_exact(head_bytes).enumerate() {
            let shift = t % 2 * 16;
            let keep = 0xffff_0000u32 >> shift;
            // Of keys the first blocks are values.
            for (b, block) in B::blocks(head).enumerate().take(self.value_scales.len()) {
                let (scale, integers) = B::parts(block);
                self.value_scales[b][t] = scale;
                let first = b * (B::GROUP / LANES);
                let groups = integers.chunks(LANES * B::BYTES).take(lanes - first);
                for (i, some) in groups.enumerate() {
                    let words = &mut self.values[t / 2 * lanes + first + i];
                    for (word, v) in words.iter_mut().zip(some.chunks_exact(B::BYTES)) {
                        *word = *word & keep | u32::from(B::integer(v) as u16) << shift;
                    }
                }
            }
        }
    }

    /// Step 2, for all tokens that were set.
    #[inline(always)]
    fn scores<I: Isa, B: KvBlock>(&self, q: &Query) -> [f32; TOKEN_BLOCK] {
        let pairs = B::GROUP / 2;
        let mut s = [0.0f32; TOKEN_BLOCK];
        let limbs = q.hi.chunks(pairs).zip(q.lo.chunks(pairs));
        let keys = self.keys.chunks(pairs * (TOKEN_BLOCK / LANES));
        for ((scales, keys), (hi, lo)) in self.key_scales.iter().zip(keys).zip(limbs) {
            let tokens = s.chunks_mut(LANES).zip(scales.chunks(LANES));
            for (i, (s, scales)) in tokens.enumerate() {
                let sums = dot::<I>(&keys[i..], TOKEN_BLOCK / LANES, hi, lo);
                for ((s, sum), scale) in s.iter_mut().zip(sums).zip(scales) {
                    *s = sum.mul_add(*scale, *s);
                }
            }
        }
        s
    }

    /// Steps 2 to 4 for these tokens. The others may hold anything, also what is no number.
    #[inline(always)]
    fn sums<I: Isa, B: KvBlock>(
        &self,
        q: &Query,
        tokens: Range<usize>,
        chosen: &[bool; TOKEN_BLOCK],
        out: &mut Sums,
    ) {
        let scores = self.scores::<I, B>(q);
        let seen: [bool; TOKEN_BLOCK] = std::array::from_fn(|t| tokens.contains(&t) && chosen[t]);
        let mut of_seen = scores;
        for (s, is_seen) in of_seen.iter_mut().zip(seen) {
            *s = if is_seen { *s } else { f32::NEG_INFINITY };
        }
        let top = largest(of_seen);
        let most = (top * q.factor * 64.0).ceil();
        let is_far = most.abs() >= SCORE_END;
        let offset = most.mul_add(-1.0 / 64.0, 1.0);
        let mut p = [0.0; TOKEN_BLOCK];
        let mut share = 0;
        for ((p, s), is_seen) in p.iter_mut().zip(scores).zip(seen) {
            let z = larger(0.0, s.mul_add(q.factor, offset));
            let z = if z < 1.0 { z } else { 1.0 };
            let far = if s == top { 1.0 } else { 0.0 };
            let weight = math::exp2_unit(if is_far { far } else { z });
            *p = if is_seen { weight } else { 0.0 };
            share += rounded(*p, (1u32 << 22) as f32);
        }
        out.most = most;
        out.weight = weight(share, most);
        out.is_empty = false;
        let lanes = self.values.len() / (TOKEN_BLOCK / 2);
        for (b, scales) in self.value_scales.iter().enumerate() {
            let mut v = [0.0; TOKEN_BLOCK];
            for (((v, p), scale), is_seen) in v.iter_mut().zip(p).zip(scales).zip(seen) {
                *v = if is_seen { p * scale } else { 0.0 };
            }
            // Of its size alone: a page that was read from a file may hold any bits.
            let field = (largest(v).to_bits() >> 23 & 0xff).max(LEAST_FIELD);
            // 65535 2^-E and 2^(E - 16), E = field - 126.
            let to_integers = f32::from_bits((269 - field) << 23) * (W_MOST / 65536.0);
            let step = f32::from_bits((field - 15) << 23);
            let w = v.map(|v| rounded(v, to_integers));
            let (mut hi, mut lo) = ([0; TOKEN_BLOCK / 2], [0; TOKEN_BLOCK / 2]);
            for ((hi, lo), [first, second]) in hi.iter_mut().zip(&mut lo).zip(w.as_chunks().0) {
                let two = first | second << 16;
                *hi = two >> LIMB & 0x00ff_00ff;
                *lo = two & 0x00ff_00ff;
            }
            let dims = &mut out.values[b * B::GROUP..];
            for (i, dims) in dims.chunks_mut(LANES).take(B::GROUP / LANES).enumerate() {
                let values = &self.values[b * (B::GROUP / LANES) + i..];
                let pairs = tokens.end.div_ceil(2);
                let sums = dot::<I>(values, lanes, &hi[..pairs], &lo[..pairs]);
                for (o, sum) in dims.iter_mut().zip(sums) {
                    *o = sum * step;
                }
            }
        }
    }
}

/// Bytes of a job of [`Heads`] with so many queries over blocks of `block` dimensions.
pub fn scratch_bytes(dim: usize, block: usize, queries: usize) -> usize {
    let group = size_of::<[Word; LANES]>();
    let n_blocks = dim.div_ceil(block);
    let (n_pairs, lanes) = (dim.div_ceil(2), dim.div_ceil(LANES));
    let loaded = (n_pairs * (TOKEN_BLOCK / LANES) + TOKEN_BLOCK / 2 * lanes) * group
        + 2 * n_blocks * size_of::<[f32; TOKEN_BLOCK]>();
    let query = size_of::<Query>() + 2 * n_pairs * size_of::<Word>();
    let state = size_of::<State>() + 3 * dim * size_of::<f32>();
    loaded.saturating_add(queries.saturating_mul(query.saturating_add(state)))
}

impl KvVisitor for Heads<'_, '_> {
    type Out = Result<()>;

    fn visit<B: KvBlock>(self) -> Result<()> {
        simd::run(self.level, OfBlocks::<B>(self, std::marker::PhantomData))
    }
}

struct OfBlocks<'a, 'b, B>(Heads<'a, 'b>, std::marker::PhantomData<B>);

impl<B: KvBlock> Task for OfBlocks<'_, '_, B> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Result<()> {
        let Heads {
            op,
            first,
            head,
            mut out,
            ..
        } = self.0;
        let kv = op.kv;
        let KvLayer {
            shape, head_bytes, ..
        } = kv.pages.layers[op.layer];
        let (dim, value_dim, n_head_kv) = (shape.head_dim, shape.value_dim(), shape.n_head_kv);
        let group = op.n_head / n_head_kv;
        let slot = op.batch.slots[first] as usize;
        let c = f64::from(op.scale) * std::f64::consts::LOG2_E;
        let c = (c / f64::from(64.0 * Q_MOST)) as f32;
        // [rows, group]
        let mut queries = Vec::new();
        reserve(&mut queries, out.len() * group, "the queries of attention")?;
        for row in 0..out.len() {
            let row = (first + row) * n_head_kv + head;
            for q in op.q[row * group * dim..][..group * dim].chunks_exact(dim) {
                let sums = || Sums::new(value_dim);
                let state = State {
                    block: sums()?,
                    split: sums()?,
                    total: sums()?,
                };
                queries.push((Query::new(q, c)?, state));
            }
        }
        let seen = op.seen(first, out.len());
        let end = seen.iter().map(|tokens| tokens.end).max().unwrap_or(0);
        let mut loaded = TokenBlock::new::<B>(dim, value_dim)?;
        for page in Attention::pages(&seen) {
            let begin = page * TOKEN_BLOCK;
            let stored = |part| kv.head_page(op.layer, slot, page, part, head, end - begin);
            let (Some(keys), Some(values)) = (stored(Part::K), stored(Part::V)) else {
                continue;
            };
            loaded.set_keys::<B>(keys, head_bytes);
            loaded.set_values::<B>(values, head_bytes);
            let rows = seen.iter().zip(queries.chunks_exact_mut(group));
            for (row, (tokens, queries)) in rows.enumerate() {
                let (seen, of_split) = split(tokens);
                if !seen.contains(&page) {
                    continue;
                }
                let next = page + 1;
                let ends = (next - seen.start).is_multiple_of(of_split) || next == seen.end;
                let at = |token: usize| token.saturating_sub(begin).min(TOKEN_BLOCK);
                let chosen = op.chosen(first + row, page);
                let sees_some = chosen.contains(&true);
                for (q, state) in queries {
                    if sees_some {
                        let tokens = at(tokens.start)..at(tokens.end);
                        loaded.sums::<I, B>(q, tokens, &chosen, &mut state.block);
                        state.split.join(&mut state.block);
                    }
                    if ends && !state.split.is_empty {
                        state.total.join(&mut state.split);
                    }
                }
            }
        }
        for (i, (_, state)) in queries.iter_mut().enumerate() {
            if let Some(logit) = op.sink(head, group, i % group) {
                state.total.join_sink(logit);
            }
        }
        let queries = queries.chunks_exact(group);
        for (out, queries) in out.iter_mut().zip(queries) {
            for (out, (q, state)) in out.chunks_exact_mut(value_dim).zip(queries) {
                for (y, o) in out.iter_mut().zip(&state.total.values) {
                    *y = if q.is_number {
                        o / state.total.weight
                    } else {
                        f32::NAN
                    };
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;
    use crate::quant::i16_blocks::I16Blocks;

    const DIM: usize = 32;

    /// Sums over a page of these bytes.
    struct Summed(Vec<u8>);

    impl Task for Summed {
        type Out = ();

        #[inline(always)]
        fn run<I: Isa>(self) {
            let query = Query::new(&[1.0; DIM], 1e-6).unwrap();
            let mut block = TokenBlock::new::<I16Blocks>(DIM, DIM).unwrap();
            block.set_keys::<I16Blocks>(&self.0, 2 + 2 * DIM);
            block.set_values::<I16Blocks>(&self.0, 2 + 2 * DIM);
            let mut sums = Sums::new(DIM).unwrap();
            block.sums::<I, I16Blocks>(&query, 0..TOKEN_BLOCK, &[true; TOKEN_BLOCK], &mut sums);
        }
    }

    #[test]
    fn a_page_of_any_bits_is_summed_without_an_overflow() {
        for scale in (0..=u16::MAX).step_by(61) {
            let head = [&scale.to_le_bytes()[..], &[0x5a; 2 * DIM]].concat();
            simd::run(Level::detect(), Summed(head.repeat(TOKEN_BLOCK)));
        }
    }
}
