//! The ops on single rows.

use rayon::prelude::*;

use super::gates::{Gate, Gated};
use super::reserve::reserve;
use super::simd::{self, Isa, Level, Task};
use crate::error::Result;
use crate::plan::{RopeStyle, RopeTable};

/// Numbers below which an op is not worth a second thread.
const PARALLEL: usize = 1 << 14;

/// Calls `f` with the number and the values of each row of `width`.
pub fn each_row(values: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if values.len() < PARALLEL {
        let rows = values.chunks_exact_mut(width).enumerate();
        rows.for_each(|(row, values)| f(row, values));
    } else {
        let rows = values.par_chunks_exact_mut(width).enumerate();
        rows.for_each(|(row, values)| f(row, values));
    }
}

/// Normalizes a group of values in place.
pub struct RmsNorm<'a> {
    pub values: &'a mut [f32],
    /// As many, or none.
    pub weight: Option<&'a [f32]>,
    pub eps: f32,
}

impl Task for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let factor = factor(self.values, self.eps);
        match self.weight {
            Some(weight) => {
                for (v, w) in self.values.iter_mut().zip(weight) {
                    *v = *v * factor * w;
                }
            }
            None => self.values.iter_mut().for_each(|v| *v *= factor),
        }
    }
}

/// Normalizes a row in place, as [`crate::plan::Op::LayerNorm`] states it.
pub struct LayerNorm<'a> {
    pub values: &'a mut [f32],
    /// As many, both; no bias is one of zeros.
    pub weight: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub eps: f32,
}

impl Task for LayerNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let n = self.values.len() as f32;
        let mean = chained(self.values, |v, sum| v + sum) / n;
        self.values.iter_mut().for_each(|v| *v -= mean);
        let factor = factor(self.values, self.eps);
        let weighted = self.values.iter_mut().zip(self.weight);
        match self.bias {
            Some(bias) => {
                for ((v, weight), bias) in weighted.zip(bias) {
                    *v = (*v * factor).mul_add(*weight, *bias);
                }
            }
            None => weighted.for_each(|(v, weight)| *v = (*v * factor).mul_add(*weight, 0.0)),
        }
    }
}

/// `1 / rms`, as [`crate::plan::Op::RmsNorm`] states it.
#[inline(always)]
fn factor(values: &[f32], eps: f32) -> f32 {
    let mean = sum_of_squares(values) / values.len() as f32;
    root_factor(mean + eps)
}

/// `1 / sqrt(x)`, and NaN where `x` is infinite: a zero would hide numbers whose squares are too large.
#[inline(always)]
pub fn root_factor(x: f32) -> f32 {
    let factor = 1.0 / x.sqrt();
    if factor > 0.0 {
        factor
    } else {
        f32::NAN
    }
}

/// In the order that [`crate::plan::Op::RmsNorm`] states.
#[inline(always)]
pub fn sum_of_squares(values: &[f32]) -> f32 {
    chained(values, |v, sum| v.mul_add(v, sum))
}

/// The sum of the products of two rows in the same order.
#[inline(always)]
pub fn sum_of_products(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = 0.0;
    for (i, (a, b)) in a.chunks(SUPERBLOCK).zip(b.chunks(SUPERBLOCK)).enumerate() {
        let mut chains = [0.0f32; CHAINS];
        let both = a.chunks(CHAIN).zip(b.chunks(CHAIN));
        for (chain, (a, b)) in chains.iter_mut().zip(both) {
            for (a, b) in a.iter().zip(b) {
                *chain = a.mul_add(*b, *chain);
            }
        }
        let superblock = folded(chains);
        sum = if i == 0 { superblock } else { sum + superblock };
    }
    sum
}

/// The same of what `add` makes of a value and the sum before it.
#[inline(always)]
fn chained(values: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sum = 0.0;
    for (i, superblock) in values.chunks(SUPERBLOCK).enumerate() {
        let mut chains = [0.0f32; CHAINS];
        for (chain, values) in chains.iter_mut().zip(superblock.chunks(CHAIN)) {
            for v in values {
                *chain = add(*v, *chain);
            }
        }
        let superblock = folded(chains);
        sum = if i == 0 { superblock } else { sum + superblock };
    }
    sum
}

/// The chains of a superblock, and the values of one.
const CHAINS: usize = 32;
const CHAIN: usize = 8;
const SUPERBLOCK: usize = CHAINS * CHAIN;

/// The sum of a superblock's chains.
#[inline(always)]
fn folded(mut chains: [f32; CHAINS]) -> f32 {
    let mut half = CHAINS / 2;
    while half > 0 {
        for j in 0..half {
            chains[j] += chains[j + half];
        }
        half /= 2;
    }
    chains[0]
}

/// Rows as products with a norm take them ([`crate::plan::Op::MatVec`]).
#[derive(Default)]
pub struct Normed {
    /// Each value times its column's weight: `[rows, width]`.
    pub x: Vec<f32>,
    /// What the sums of each row are multiplied by: `[rows]`.
    pub factors: Vec<f32>,
}

impl Normed {
    /// Bytes of `rows` rows of `width`.
    pub fn bytes(width: usize, rows: usize) -> usize {
        rows.saturating_mul(width.saturating_add(1))
            .saturating_mul(size_of::<f32>())
    }

    /// Sets it to the rows of `x` under a norm of this weight and epsilon.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn set(&mut self, level: Level, x: &[f32], weight: &[f32], eps: f32) -> Result<()> {
        const WHAT: &str = "the rows that are normalized";
        let rows = x.len() / weight.len();
        reserve(&mut self.x, x.len(), WHAT)?;
        reserve(&mut self.factors, rows, WHAT)?;
        self.x.resize(x.len(), 0.0);
        self.factors.resize(rows, 0.0);
        let run = |((out, x), factor): ((&mut [f32], &[f32]), &mut f32)| {
            let scaled = Scaled {
                x,
                weight,
                eps,
                out,
            };
            *factor = simd::run(level, scaled);
        };
        let (width, factors) = (weight.len(), &mut self.factors);
        if x.len() < PARALLEL {
            let rows = self.x.chunks_exact_mut(width).zip(x.chunks_exact(width));
            rows.zip(factors).for_each(run);
        } else {
            let rows = self.x.par_chunks_exact_mut(width);
            let rows = rows.zip(x.par_chunks_exact(width));
            rows.zip(factors).for_each(run);
        }
        Ok(())
    }
}

/// A row times the weight of a norm; gives the norm's factor.
struct Scaled<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Task for Scaled<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<I: Isa>(self) -> f32 {
        for ((out, x), w) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * w;
        }
        factor(self.x, self.eps)
    }
}

/// Cosine and sine of each frequency's angle at each row's position.
#[derive(Default)]
pub struct CosSin {
    /// `[rows, inv_freq.len()]`.
    cos_sin: Vec<(f32, f32)>,
    half: usize,
}

impl CosSin {
    /// Angles `positions[r] * inv_freq[i]`; both are multiplied by `table`'s factor of the position.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn set(&mut self, positions: &[u32], inv_freq: &[f64], table: &RopeTable) -> Result<()> {
        self.half = inv_freq.len();
        self.cos_sin.clear();
        let n = positions.len().saturating_mul(self.half);
        reserve(&mut self.cos_sin, n, "the angles of the rows")?;
        self.cos_sin.extend(positions.iter().flat_map(|position| {
            let scale = table.scale_at(*position);
            let at = f64::from(*position) + f64::from(table.ahead);
            inv_freq.iter().map(move |f| {
                let (sin, cos) = (at * f).sin_cos();
                ((cos * scale) as f32, (sin * scale) as f32)
            })
        }));
        Ok(())
    }

    /// Rotates the first values of each head of `dim` of a row.
    pub fn rotate(
        &self,
        level: Level,
        row: usize,
        values: &mut [f32],
        dim: usize,
        style: RopeStyle,
    ) {
        let cos_sin = &self.cos_sin[row * self.half..][..self.half];
        let rotation = Rotation {
            values,
            cos_sin,
            dim,
            style,
        };
        simd::run(level, rotation);
    }
}

struct Rotation<'a> {
    values: &'a mut [f32],
    cos_sin: &'a [(f32, f32)],
    dim: usize,
    style: RopeStyle,
}

impl Task for Rotation<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for head in self.values.chunks_exact_mut(self.dim) {
            match self.style {
                RopeStyle::Interleaved => {
                    let (pairs, _) = head.as_chunks_mut::<2>();
                    for ([u, v], angle) in pairs.iter_mut().zip(self.cos_sin) {
                        (*u, *v) = rotated(*u, *v, *angle);
                    }
                }
                RopeStyle::Halves => {
                    let (first, rest) = head.split_at_mut(self.cos_sin.len());
                    for ((u, v), angle) in first.iter_mut().zip(rest).zip(self.cos_sin) {
                        (*u, *v) = rotated(*u, *v, *angle);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotated(u: f32, v: f32, (cos, sin): (f32, f32)) -> (f32, f32) {
    (u.mul_add(cos, -(v * sin)), u.mul_add(sin, v * cos))
}

/// `out[i] = G(gate[i / share], x[i])`, where there are `share` values to a number of the gate; parts of
/// many on several threads.
pub fn gated<G: Gate>(level: Level, gate: &[f32], x: &[f32], out: &mut [f32]) {
    let share = (out.len() / gate.len().max(1)).max(1);
    let run = |gate, x, out| simd::run(level, Gated::<G>::new(gate, x, out, share));
    if out.len() < PARALLEL {
        run(gate, x, out);
    } else {
        let gates = (PARALLEL / 4).div_ceil(share);
        let values = gates * share;
        out.par_chunks_mut(values)
            .zip(gate.par_chunks(gates))
            .zip(x.par_chunks(values))
            .for_each(|((out, gate), x)| run(gate, x, out));
    }
}
