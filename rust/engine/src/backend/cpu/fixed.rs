//! Activations as block fixed point: integers with one exponent for 32 columns of a row, and with
//! grids that 256 columns share, as [`crate::plan::Op::MatVec`] defines them.

use super::simd::{pair, Factors, Isa, Word};
use crate::quant::{COLUMNS, MINS, MIN_WORDS, OFFSET_SUBS, SUBS, X_BLOCK};

/// Blocks of 32 columns of a superblock.
const X_BLOCKS: usize = COLUMNS / X_BLOCK;

/// What minimums multiply: sums of H over sub-blocks as 16-bit integers, in the order of [`MINS`].
#[derive(Clone)]
pub struct SharedSums<const N: usize> {
    pub sums: [Word; N],
    /// What 1 of them stands for in the 2^24 that a superblock counts in.
    pub unit: f32,
}

impl<const N: usize> SharedSums<N> {
    const ZERO: Self = Self {
        sums: [0; N],
        unit: 0.0,
    };

    /// Of so many sums in 2^24, twice as many as there are words.
    #[inline(always)]
    fn of(sums: &[f32]) -> Self {
        let field = largest(sums).max(LEAST_SUM) >> EXPONENT;
        // With E = field - 102: 2^(38 - E) and 2^(E - 38).
        let steps = f32::from_bits((267 - field) << EXPONENT);
        let sum = |j: usize| rint(sums[j] * steps).0;
        Self {
            sums: std::array::from_fn(|i| pair(sum(MINS[i][0]), sum(MINS[i][1]))),
            unit: f32::from_bits((field - 13) << EXPONENT),
        }
    }
}

/// One superblock of a row of x.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Fixed {
    /// The integers X' of the columns.
    pub factors: Factors,
    /// What sums of products start from, with sub-blocks of 16 and of 32 columns.
    starts: ([i32; SUBS], [i32; OFFSET_SUBS]),
    /// What 1 of the integers of each block stands for in the 2^24 that a superblock counts in.
    pub units: [f32; X_BLOCKS],
    /// The sum of H over 32 columns each, in those.
    pub sums: [f32; OFFSET_SUBS],
    pub sums_of_32: SharedSums<{ OFFSET_SUBS / 2 }>,
    pub sums_of_16: SharedSums<MIN_WORDS>,
    /// What a superblock counts in.
    pub unit: f32,
}

/// The smallest and the largest biased exponent of a block's largest magnitude. Below the first the
/// grid is fixed; above the second (2^117 and more, infinite, NaN) there is no grid.
const FIELDS: (u32, u32) = (24, 243);

/// The bits of 2^-27: sums that are less count as finely as this one.
const LEAST_SUM: u32 = 100 << EXPONENT;

/// Where a float32's exponent stands.
const EXPONENT: u32 = 23;

/// Binades below the largest block's from which on a block's integers lose places.
const SHARED: u32 = 20;

/// Places of a float32 more than of a float16.
const LESS: u32 = 13;

/// What is added to it, up to 2^22 in size, is rounded to an integer, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// `x`, up to 2^22 in size, rounded to an integer, ties to even; as a float32 too.
#[inline(always)]
fn rint(x: f32) -> (i32, f32) {
    let sum = x + ROUNDER;
    let integer = sum.to_bits().wrapping_sub(ROUNDER.to_bits());
    (integer as i32, sum - ROUNDER)
}

/// `x` rounded to as many places as a float16 has, ties to even.
#[inline(always)]
fn short(x: f32) -> f32 {
    let bits = x.to_bits();
    let half = (1 << (LESS - 1)) - 1 + (bits >> LESS & 1);
    f32::from_bits((bits + half) >> LESS << LESS)
}

/// The bits of the largest magnitude.
#[inline(always)]
fn largest(x: &[f32]) -> u32 {
    x.iter()
        .fold(0, |most, x| most.max(x.to_bits() & (u32::MAX >> 1)))
}

impl Fixed {
    /// Zeros.
    pub const ZERO: Self = Self {
        factors: Factors::ZERO,
        starts: ([0; SUBS], [0; OFFSET_SUBS]),
        units: [0.0; X_BLOCKS],
        sums: [0.0; OFFSET_SUBS],
        sums_of_32: SharedSums::ZERO,
        sums_of_16: SharedSums::ZERO,
        unit: 0.0,
    };

    /// The sums of no columns of sub-block `sub`, which has so many.
    #[inline(always)]
    pub fn start<I: Isa>(&self, columns: usize, sub: usize) -> I::Sums {
        I::start(match columns {
            16 => self.starts.0[sub % SUBS],
            _ => self.starts.1[sub % OFFSET_SUBS],
        })
    }

    /// Sets it to up to 256 columns; those that are missing are zeros. Says whether x has a grid.
    #[inline(always)]
    #[must_use]
    pub fn set<I: Isa>(&mut self, x: &[f32]) -> bool {
        let mut columns = [0.0; COLUMNS];
        columns[..x.len()].copy_from_slice(x);
        let blocks = columns.as_chunks::<X_BLOCK>().0;
        let (mut fields, mut most) = ([0; X_BLOCKS], 0);
        for (field, x) in fields.iter_mut().zip(blocks) {
            *field = (largest(x) >> EXPONENT).max(FIELDS.0);
            most = most.max(*field);
        }
        if most > FIELDS.1 {
            return false;
        }
        // With e = most - 126: 2^(e + 10).
        self.unit = f32::from_bits((most + 11) << EXPONENT);

        let mut integers = [0i32; COLUMNS];
        let mut of_16 = [0; SUBS];
        for (b, (x, integers)) in blocks
            .iter()
            .zip(integers.as_chunks_mut::<X_BLOCK>().0)
            .enumerate()
        {
            let below = most - fields[b];
            // With e_b = fields[b] - 126: 2^(14 - e_b).
            let steps = f32::from_bits((267 - fields[b]) << EXPONENT);
            // From 126 places on nothing is left of 15.
            let lost = f32::from_bits((127 - below.saturating_sub(SHARED).min(126)) << EXPONENT);
            for (x, integer) in x.iter().zip(&mut *integers) {
                *integer = rint(short(rint(x * steps).1) * lost).0;
            }
            self.units[b] = f32::from_bits((103 - below.min(SHARED)) << EXPONENT);
        }
        for (sum, integers) in of_16.iter_mut().zip(integers.as_chunks::<16>().0) {
            *sum = integers.iter().sum();
        }
        I::factors(&integers, &mut self.factors);
        let of_32: [i32; OFFSET_SUBS] = std::array::from_fn(|i| of_16[2 * i] + of_16[2 * i + 1]);
        self.starts = (
            of_16.map(|sum| -I::BIAS * sum),
            of_32.map(|sum| -I::BIAS * sum),
        );
        self.sums = std::array::from_fn(|i| of_32[i] as f32 * self.units[i]);
        let of_16: [f32; SUBS] = std::array::from_fn(|i| of_16[i] as f32 * self.units[i / 2]);
        self.sums_of_32 = SharedSums::of(&self.sums);
        self.sums_of_16 = SharedSums::of(&of_16);
        true
    }
}
