//! The ops on single rows.

use rayon::prelude::*;

use super::attention::exp_down;
use super::memory::reserve;
use super::simd::{self, Isa, Level, Task};
use crate::error::Result;
use crate::plan::RopeStyle;

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

/// Normalizes groups of `weight.len()` values in place.
pub fn rms_norm(values: &mut [f32], weight: &[f32], eps: f32) {
    const LANES: usize = 8;
    for values in values.chunks_exact_mut(weight.len()) {
        // In float64 the sum is exact enough in any order; lanes make it quick.
        let mut lanes = [0.0f64; LANES];
        let (groups, tail) = values.as_chunks::<LANES>();
        for group in groups {
            for (lane, v) in lanes.iter_mut().zip(group) {
                *lane += f64::from(*v) * f64::from(*v);
            }
        }
        for (lane, v) in lanes.iter_mut().zip(tail) {
            *lane += f64::from(*v) * f64::from(*v);
        }
        let mean = lanes.iter().sum::<f64>() / weight.len() as f64;
        let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
        for (v, w) in values.iter_mut().zip(weight) {
            *v = *v * scale * w;
        }
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
    /// Angles `positions[r] * inv_freq[i]`; both are multiplied by `scale`.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn set(&mut self, positions: &[u32], inv_freq: &[f64], scale: f64) -> Result<()> {
        self.half = inv_freq.len();
        self.cos_sin.clear();
        let n = positions.len().saturating_mul(self.half);
        reserve(&mut self.cos_sin, n, "the angles of the rows")?;
        self.cos_sin.extend(positions.iter().flat_map(|position| {
            inv_freq.iter().map(|f| {
                let (sin, cos) = (f64::from(*position) * f).sin_cos();
                ((cos * scale) as f32, (sin * scale) as f32)
            })
        }));
        Ok(())
    }

    /// Rotates the first values of each head of `dim` of a row.
    pub fn rotate(&self, row: usize, values: &mut [f32], dim: usize, style: RopeStyle) {
        let cos_sin = &self.cos_sin[row * self.half..][..self.half];
        for head in values.chunks_exact_mut(dim) {
            match style {
                RopeStyle::Interleaved => {
                    let (pairs, _) = head.as_chunks_mut::<2>();
                    for ([u, v], angle) in pairs.iter_mut().zip(cos_sin) {
                        (*u, *v) = rotated(*u, *v, *angle);
                    }
                }
                RopeStyle::Halves => {
                    let (first, rest) = head.split_at_mut(self.half);
                    for ((u, v), angle) in first.iter_mut().zip(rest).zip(cos_sin) {
                        (*u, *v) = rotated(*u, *v, *angle);
                    }
                }
            }
        }
    }
}

fn rotated(u: f32, v: f32, (cos, sin): (f32, f32)) -> (f32, f32) {
    (u * cos - v * sin, u * sin + v * cos)
}

/// `out = gate / (1 + exp(-gate)) * up`.
pub fn swiglu(level: Level, gate: &[f32], up: &[f32], out: &mut [f32]) {
    const PART: usize = PARALLEL / 4;
    let run = |((out, gate), up): ((&mut [f32], &[f32]), &[f32])| {
        simd::run(level, SwiGlu { gate, up, out });
    };
    if out.len() < PARALLEL {
        run(((out, gate), up));
    } else {
        out.par_chunks_mut(PART)
            .zip(gate.par_chunks(PART))
            .zip(up.par_chunks(PART))
            .for_each(run);
    }
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Task for SwiGlu<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self { gate, up, out } = self;
        for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
            // Only ever exp of a negative number: it cannot overflow.
            let e = exp_down(-g.abs());
            let top = if *g < 0.0 { e } else { 1.0 };
            *out = g * (top / (1.0 + e)) * up;
        }
    }
}
