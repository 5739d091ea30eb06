//! Activations as block fixed point: integers with one exponent for 256 columns of a row, as
//! [`crate::plan::Op::MatVec`] defines them.

use crate::quant::{COLUMNS, OFFSET_SUBS, SUM_BITS};

/// Pairs of columns that a limb's plane holds: half of the columns.
pub const PAIRS: usize = COLUMNS / 4;

/// Two columns, for instructions that multiply two 16-bit integers by two others and add up.
pub type Pair = [i16; 2];

/// One superblock of a row of x. `X = hi * 4096 + lo`.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Fixed {
    /// `hi` of the even columns, of the odd ones, `lo` of the even ones, of the odd ones: bytes of
    /// weights become 16-bit integers fastest where even and odd ones go apart.
    pub limbs: [[Pair; PAIRS]; 4],
    /// The sum of X over 32 columns each, rounded once.
    pub sums: [f32; OFFSET_SUBS],
    /// The same sums exactly, `upper << SUM_BITS` plus `lower`.
    pub upper: [i16; OFFSET_SUBS],
    pub lower: [i16; OFFSET_SUBS],
    /// What 1 of X stands for.
    pub unit: f32,
}

/// The smallest and the largest biased exponent of a superblock's largest magnitude. Below the
/// first the grid is fixed; above the second (2^119 and more, infinite, NaN) there is no grid.
const FIELDS: (u32, u32) = (24, 245);

/// Where a float32's exponent stands.
const EXPONENT: u32 = 23;

/// Adding and subtracting it rounds numbers up to 2^22 to integers, ties to even.
const ROUNDER: f32 = 12_582_912.0;

#[inline(always)]
fn rint(x: f32) -> f32 {
    (x + ROUNDER) - ROUNDER
}

impl Fixed {
    /// Zeros.
    pub const ZERO: Self = Self {
        limbs: [[[0; 2]; PAIRS]; 4],
        sums: [0.0; OFFSET_SUBS],
        upper: [0; OFFSET_SUBS],
        lower: [0; OFFSET_SUBS],
        unit: 0.0,
    };

    /// Sets it to up to 256 columns; those that are missing are zeros. Says whether x has a grid.
    #[inline(always)]
    #[must_use]
    pub fn set(&mut self, x: &[f32]) -> bool {
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

        let (mut hi, mut lo) = ([0i16; COLUMNS], [0i16; COLUMNS]);
        for ((x, hi), lo) in columns.iter().zip(&mut hi).zip(&mut lo) {
            let z = x * steps;
            let upper = rint(z);
            *hi = upper as i32 as i16;
            *lo = rint((z - upper) * 4096.0) as i32 as i16;
        }
        for (i, hi) in hi.as_chunks::<4>().0.iter().enumerate() {
            self.limbs[0][i] = [hi[0], hi[2]];
            self.limbs[1][i] = [hi[1], hi[3]];
        }
        for (i, lo) in lo.as_chunks::<4>().0.iter().enumerate() {
            self.limbs[2][i] = [lo[0], lo[2]];
            self.limbs[3][i] = [lo[1], lo[3]];
        }
        for i in 0..OFFSET_SUBS {
            let mut sums = [0i32; 2];
            for (hi, lo) in hi[32 * i..32 * i + 32].iter().zip(&lo[32 * i..32 * i + 32]) {
                sums[0] += i32::from(*hi);
                sums[1] += i32::from(*lo);
            }
            let sum = (sums[0] << 12) + sums[1];
            self.sums[i] = sum as f32;
            let upper = (sum + (1 << (SUM_BITS - 1))) >> SUM_BITS;
            self.upper[i] = upper as i16;
            self.lower[i] = (sum - (upper << SUM_BITS)) as i16;
        }
        true
    }
}
