//! Attention over a cache of integers, as [`crate::plan::Op::Attention`] states it: unit by unit of a
//! sequence, each read once for all rows and query heads that share it.

use super::attention::Attention;
use super::kv::Part;
use super::memory::filled;
use super::simd::{pair, Isa, Task, Word, LANES};
use crate::backend::PAGE_TOKENS;
use crate::error::Result;
use crate::quant::i16_blocks::{blocks, parts, GROUP};
use crate::sampler::math;

/// Tokens of a unit: a page.
const UNIT: usize = PAGE_TOKENS;

/// Units up to which each is a split, and the most splits.
const MOST_SPLITS: usize = 32;

/// A row's head of q below 24 and above 176: see step 1.
const FIELDS: (u32, u32) = (24, 176);

/// Bits of a value's weight, and of its share of the sum of weights.
const WEIGHT_BITS: i32 = 16;
const SHARE_BITS: i32 = 22;

/// Bits of the lower limb of Q, and of a weight.
const Q_LIMB: u32 = 9;
const W_LIMB: u32 = 8;

/// `2^n`, zero below 2^-126.
#[inline(always)]
fn fade(n: f32) -> f32 {
    if n < -126.0 {
        0.0
    } else {
        f32::from_bits((((n as i32) + 127) << 23) as u32)
    }
}

/// Units of a split of a sequence of `n` tokens.
fn split_units(n: usize) -> usize {
    n.div_ceil(UNIT * MOST_SPLITS).next_power_of_two()
}

/// A head's query in limbs, `Q = 512 hi + lo`: words of two dimensions, a group of words a block.
struct Query {
    hi: Vec<[Word; LANES]>,
    lo: Vec<[Word; LANES]>,
    /// What a score is multiplied by.
    factor: f32,
    /// Whether it has a fixed point.
    is_number: bool,
}

impl Query {
    fn new(q: &[f32], c: f32) -> Result<Self> {
        let what = "the queries of attention";
        let most = q.iter().fold(0, |most, x| x.abs().to_bits().max(most));
        let field = (most >> 23).max(FIELDS.0);
        let n_blocks = q.len().div_ceil(GROUP);
        let mut query = Self {
            hi: filled(n_blocks, [0; LANES], what)?,
            lo: filled(n_blocks, [0; LANES], what)?,
            factor: 0.0,
            is_number: field <= FIELDS.1,
        };
        if !query.is_number {
            return Ok(query);
        }
        // 2^(18 - e) and 2^(e - 18), e = field - 126.
        let scale = f32::from_bits((271 - field) << 23);
        query.factor = c * f32::from_bits((field - 17) << 23);
        let limbs = |x: f32| {
            let x = (x * scale).round_ties_even() as i32;
            let hi = (x + (1 << (Q_LIMB - 1))) >> Q_LIMB;
            (hi, x - (hi << Q_LIMB))
        };
        for (b, block) in q.chunks(GROUP).enumerate() {
            for (i, two) in block.chunks(2).enumerate() {
                let first = limbs(two[0]);
                let second = two.get(1).map_or((0, 0), |x| limbs(*x));
                query.hi[b][i] = pair(first.0, second.0);
                query.lo[b][i] = pair(first.1, second.1);
            }
        }
        Ok(query)
    }
}

/// Weighted values of some tokens: their largest score rounded up, the sum of weights, and of values.
struct Sums {
    most: f32,
    weight: f32,
    /// `[head_dim]`.
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
}

/// One query's sums on the way.
struct State {
    unit: Sums,
    split: Sums,
    total: Sums,
}

/// Groups of a block's keys.
const BLOCK_KEYS: usize = UNIT / LANES * GROUP / 2;

/// In each lane the sum of its pairs, of every `step`-th group, times the pairs of integers
/// `2^bits hi + lo`, rounded once. Sums of either limb are below 2^31.
#[inline(always)]
fn dot<I: Isa>(
    groups: &[[Word; LANES]],
    step: usize,
    hi: &[Word],
    lo: &[Word],
    bits: u32,
) -> [f32; LANES] {
    const { assert!(I::STRIPS <= 4) };
    let mut sums = [[I::no_words(); 2]; 4];
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
    let unit = f64::from(1u32 << bits);
    let mut rounded = [0.0; LANES];
    for ((sum, hi), lo) in rounded.iter_mut().zip(&limbs[0]).zip(&limbs[1]) {
        *sum = (f64::from(*hi as i32) * unit + f64::from(*lo as i32)) as f32;
    }
    rounded
}

/// The keys and values of a unit of one KV head.
struct Unit {
    /// `[pair of dimensions][32 tokens]`, words of two dimensions; blocks are whole.
    keys: Vec<[Word; LANES]>,
    /// `[pair of tokens][32 dimensions]`, words of two tokens.
    values: Vec<[Word; LANES]>,
    /// `[block][token]`.
    key_units: Vec<[f32; UNIT]>,
    value_units: Vec<[f32; UNIT]>,
}

impl Unit {
    fn new(dim: usize) -> Result<Self> {
        let what = "the keys and values of attention";
        let n_blocks = dim.div_ceil(GROUP);
        let lanes = dim.div_ceil(LANES);
        Ok(Self {
            keys: filled(BLOCK_KEYS * n_blocks, [0; LANES], what)?,
            values: filled(UNIT / 2 * lanes, [0; LANES], what)?,
            key_units: filled(n_blocks, [0.0; UNIT], what)?,
            value_units: filled(n_blocks, [0.0; UNIT], what)?,
        })
    }

    #[inline(always)]
    fn set_keys(&mut self, stored: &[u8], head_bytes: usize) {
        for (t, head) in stored.chunks_exact(head_bytes).enumerate() {
            for (b, block) in blocks(head).enumerate() {
                let (unit, integers) = parts(block);
                self.key_units[b][t] = unit;
                let pairs = self.keys[b * BLOCK_KEYS..].chunks_exact_mut(UNIT / LANES);
                for (pair, two) in pairs.zip(integers.chunks(2)) {
                    let [x, y] = [two[0], two.get(1).copied().unwrap_or_default()];
                    pair[t / LANES][t % LANES] = u32::from_le_bytes([x[0], x[1], y[0], y[1]]);
                }
            }
        }
    }

    #[inline(always)]
    fn set_values(&mut self, stored: &[u8], head_bytes: usize) {
        let lanes = self.values.len() / (UNIT / 2);
        for (t, head) in stored.chunks_exact(head_bytes).enumerate() {
            let shift = t % 2 * 16;
            let keep = 0xffff_0000u32 >> shift;
            for (b, block) in blocks(head).enumerate() {
                let (unit, integers) = parts(block);
                self.value_units[b][t] = unit;
                for (i, some) in integers.chunks(LANES).enumerate() {
                    let words = &mut self.values[t / 2 * lanes + b * (GROUP / LANES) + i];
                    for (word, v) in words.iter_mut().zip(some) {
                        *word = *word & keep | u32::from(u16::from_le_bytes(*v)) << shift;
                    }
                }
            }
        }
    }

    /// `y` of all tokens, of those that were set.
    #[inline(always)]
    fn scores<I: Isa>(&self, q: &Query) -> [f32; UNIT] {
        let mut y = [0.0f32; UNIT];
        for (b, units) in self.key_units.iter().enumerate() {
            let keys = &self.keys[b * BLOCK_KEYS..];
            let tokens = y.chunks_mut(LANES).zip(units.chunks(LANES));
            for (i, (y, units)) in tokens.enumerate() {
                let sums = dot::<I>(&keys[i..], UNIT / LANES, &q.hi[b], &q.lo[b], Q_LIMB);
                for ((y, sum), unit) in y.iter_mut().zip(sums).zip(units) {
                    *y = sum.mul_add(*unit, *y);
                }
            }
        }
        for y in &mut y {
            *y *= q.factor;
        }
        y
    }

    /// Steps 2 to 4 for the first `n` tokens.
    #[inline(always)]
    fn sums<I: Isa>(&self, q: &Query, n: usize, out: &mut Sums) {
        let mut p = self.scores::<I>(q);
        p[n..].fill(0.0);
        let most = p[..n]
            .iter()
            .fold(f32::NEG_INFINITY, |most, y| most.max(*y));
        out.most = most.ceil();
        let mut share = 0;
        for p in &mut p[..n] {
            *p = math::exp2_down(*p - out.most);
            share += (*p * (1 << SHARE_BITS) as f32).round_ties_even() as i32;
        }
        out.weight = share as f32 * fade(-SHARE_BITS as f32);
        out.is_empty = false;
        let lanes = self.values.len() / (UNIT / 2);
        for (b, units) in self.value_units.iter().enumerate() {
            let mut v = [0.0; UNIT];
            let mut largest = 0.0f32;
            for ((v, p), unit) in v.iter_mut().zip(p).zip(units).take(n) {
                *v = p * unit;
                largest = largest.max(*v);
            }
            let field = (largest.to_bits() >> 23).max(FIELDS.0);
            // 2^(16 - E) and 2^(E - 16), E = field - 126.
            let scale = f32::from_bits((269 - field) << 23);
            let unit = f32::from_bits((field - 15) << 23);
            let mut w = [[0i32; 2]; UNIT / 2];
            for (w, v) in w.as_flattened_mut().iter_mut().zip(v) {
                *w = ((v * scale).round_ties_even() as i32).min((1 << WEIGHT_BITS) - 1);
            }
            let low = (1 << W_LIMB) - 1;
            let hi = w.map(|w| pair(w[0] >> W_LIMB, w[1] >> W_LIMB));
            let lo = w.map(|w| pair(w[0] & low, w[1] & low));
            let dims = &mut out.values[b * GROUP..];
            for (i, dims) in dims.chunks_mut(LANES).take(GROUP / LANES).enumerate() {
                let values = &self.values[b * (GROUP / LANES) + i..];
                let pairs = n.div_ceil(2);
                let sums = dot::<I>(values, lanes, &hi[..pairs], &lo[..pairs], W_LIMB);
                for (o, sum) in dims.iter_mut().zip(sums) {
                    *o = sum * unit;
                }
            }
        }
    }
}

/// The query heads of some rows of one sequence that share a KV head.
pub struct Heads<'a, 'b> {
    pub op: &'a Attention<'a>,
    /// The first of the rows.
    pub first: usize,
    /// The KV head.
    pub head: usize,
    /// `[group * head_dim]` for each row.
    pub out: Vec<&'b mut [f32]>,
}

/// Bytes of a job of [`Heads`] with so many queries.
pub fn scratch_bytes(dim: usize, queries: usize) -> usize {
    let group = size_of::<[Word; LANES]>();
    let n_blocks = dim.div_ceil(GROUP);
    let unit = (BLOCK_KEYS * n_blocks + UNIT / 2 * dim.div_ceil(LANES)) * group
        + 2 * n_blocks * size_of::<[f32; UNIT]>();
    let query = size_of::<Query>() + 2 * n_blocks * group;
    let state = size_of::<State>() + 3 * dim * size_of::<f32>();
    unit.saturating_add(queries.saturating_mul(query.saturating_add(state)))
}

impl Task for Heads<'_, '_> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Result<()> {
        let Self {
            op,
            first,
            head,
            mut out,
        } = self;
        let kv = op.kv;
        let (dim, n_head_kv) = (kv.pages.shape.head_dim, kv.pages.shape.n_head_kv);
        let head_bytes = kv.pages.head_bytes;
        let group = op.n_head / n_head_kv;
        let slot = op.batch.slots[first] as usize;
        let c = (f64::from(op.scale) * std::f64::consts::LOG2_E) as f32;
        // [rows, group]
        let mut queries = Vec::new();
        for row in 0..out.len() {
            let row = (first + row) * n_head_kv + head;
            for q in op.q[row * group * dim..][..group * dim].chunks_exact(dim) {
                let sums = || Sums::new(dim);
                let state = State {
                    unit: sums()?,
                    split: sums()?,
                    total: sums()?,
                };
                queries.push((Query::new(q, c)?, state));
            }
        }
        // Tokens that each row sees. A position past the cache was refused by the scatter; here it
        // must only not be read.
        let seen: Vec<usize> = op.batch.positions[first..][..out.len()]
            .iter()
            .map(|p| (*p as usize).saturating_add(1).min(kv.n_ctx()))
            .collect();
        let most = seen.iter().copied().max().unwrap_or(0);
        let mut unit = Unit::new(dim)?;
        for page in 0..most.div_ceil(UNIT) {
            let begin = page * UNIT;
            let stored = |part| kv.head_page(op.layer, slot, page, part, head, most - begin);
            let (Some(keys), Some(values)) = (stored(Part::K), stored(Part::V)) else {
                continue;
            };
            unit.set_keys(keys, head_bytes);
            unit.set_values(values, head_bytes);
            for (n, queries) in seen.iter().zip(queries.chunks_exact_mut(group)) {
                if *n <= begin {
                    continue;
                }
                let ends = (page + 1) % split_units(*n) == 0 || *n <= begin + UNIT;
                for (q, state) in queries {
                    unit.sums::<I>(q, UNIT.min(n - begin), &mut state.unit);
                    state.split.join(&mut state.unit);
                    if ends {
                        state.total.join(&mut state.split);
                    }
                }
            }
        }
        let queries = queries.chunks_exact(group);
        for (out, queries) in out.iter_mut().zip(queries) {
            for (out, (q, state)) in out.chunks_exact_mut(dim).zip(queries) {
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
