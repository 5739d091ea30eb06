//! Activations as block fixed point: integers with one exponent for 256 columns of a row, as
//! [`crate::plan::Op::MatVec`] defines them.

use super::simd::{pair, Isa, Limbs, Word};
use crate::quant::{COLUMNS, MINS, MIN_WORDS, OFFSET_SUBS, SUBS, SUM_BITS};

/// Sums of X over sub-blocks, `upper << SUM_BITS` plus `lower`, 16 bits each, in the order of [`MINS`].
#[derive(Clone)]
pub struct SumParts<const N: usize> {
    pub upper: [Word; N],
    pub lower: [Word; N],
}

impl<const N: usize> SumParts<N> {
    const ZERO: Self = Self {
        upper: [0; N],
        lower: [0; N],
    };

    /// Of so many sums, twice as many as there are words.
    #[inline(always)]
    fn of(sums: &[i32]) -> Self {
        let upper = |j: usize| (sums[j] + (1 << (SUM_BITS - 1))) >> SUM_BITS;
        let lower = |j: usize| sums[j] - (upper(j) << SUM_BITS);
        Self {
            upper: std::array::from_fn(|i| pair(upper(MINS[i][0]), upper(MINS[i][1]))),
            lower: std::array::from_fn(|i| pair(lower(MINS[i][0]), lower(MINS[i][1]))),
        }
    }
}

/// One superblock of a row of x.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Fixed {
    pub limbs: Limbs,
    /// The sum of X over 32 columns each, rounded once.
    pub sums: [f32; OFFSET_SUBS],
    /// The same sums exactly, and those over 16 columns.
    pub parts_of_32: SumParts<{ OFFSET_SUBS / 2 }>,
    pub parts_of_16: SumParts<MIN_WORDS>,
    /// What 1 of X stands for.
    pub unit: f32,
}

/// The smallest and the largest biased exponent of a superblock's largest magnitude. Below the
/// first the grid is fixed; above the second (2^119 and more, infinite, NaN) there is no grid.
const FIELDS: (u32, u32) = (24, 245);

/// Where a float32's exponent stands.
const EXPONENT: u32 = 23;

/// What is added to it, up to 2^22 in size, is rounded to an integer, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// `x`, up to 2^22 in size, rounded to an integer, ties to even; as a float32 too.
#[inline(always)]
fn rint(x: f32) -> (i32, f32) {
    let sum = x + ROUNDER;
    let integer = sum.to_bits().wrapping_sub(ROUNDER.to_bits());
    (integer as i32, sum - ROUNDER)
}

impl Fixed {
    /// Zeros.
    pub const ZERO: Self = Self {
        limbs: Limbs::ZERO,
        sums: [0.0; OFFSET_SUBS],
        parts_of_32: SumParts::ZERO,
        parts_of_16: SumParts::ZERO,
        unit: 0.0,
    };

    /// Sets it to up to 256 columns; those that are missing are zeros. Says whether x has a grid.
    #[inline(always)]
    #[must_use]
    pub fn set<I: Isa>(&mut self, x: &[f32]) -> bool {
        let mut columns = [0.0; COLUMNS];
        columns[..x.len()].copy_from_slice(x);
        let largest = columns
            .iter()
            .fold(0, |most, x| most.max(x.to_bits() & (u32::MAX >> 1)));
        let field = largest >> EXPONENT;
        if field > FIELDS.1 {
            return false;
        }
        let field = field.max(FIELDS.0);
        // With e = field - 126: 2^(11 - e) and 2^(e - 23).
        let steps = f32::from_bits((264 - field) << EXPONENT);
        self.unit = f32::from_bits((field - 22) << EXPONENT);

        let mut integers = [0i32; COLUMNS];
        for (x, integer) in columns.iter().zip(&mut integers) {
            let z = x * steps;
            let (hi, upper) = rint(z);
            let (lo, _) = rint((z - upper) * 4096.0);
            *integer = (hi << 12) + lo;
        }
        I::limbs(&integers, &mut self.limbs);
        let of_16: [i32; SUBS] = std::array::from_fn(|i| integers[16 * i..][..16].iter().sum());
        let of_32: [i32; OFFSET_SUBS] = std::array::from_fn(|i| of_16[2 * i] + of_16[2 * i + 1]);
        self.sums = of_32.map(|sum| sum as f32);
        self.parts_of_32 = SumParts::of(&of_32);
        self.parts_of_16 = SumParts::of(&of_16);
        true
    }
}
