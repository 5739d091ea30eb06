//! Codes of four bits that stand for the integers of a table, and the choice of a scale for them.

use super::search::NOTHING;
use super::{reciprocal, Words};

/// The integers of IQ4_NL and IQ4_XS, as the GGUF format numbers them.
pub const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The integers of byte `i` of 16: its low half, its high half.
#[inline(always)]
pub fn pair(table: &[i8; 16], byte: u8) -> [f32; 2] {
    [byte & 15, byte >> 4].map(|code| f32::from(table[usize::from(code)]))
}

/// The integers of four bytes: of their low halves, of the high ones.
#[inline(always)]
pub fn words<W: Words>(table: &[i8; 16], of: W) -> [W; 2] {
    let [low, high] = super::integers::nibbles(of);
    [low.look_up_bytes(table), high.look_up_bytes(table)]
}

/// The code of [`IQ4`]'s integer nearest to `x`.
#[inline(always)]
pub fn nearest_iq4(x: f32) -> u8 {
    /// By `floor(2 x) + 256`, for twice a middle of two integers is an integer.
    const CODES: [u8; 512] = {
        let mut codes = [0; 512];
        let mut i = 0;
        while i < 512 {
            let mut code = 0;
            while code < 15 && i as i32 - 256 >= IQ4[code] as i32 + IQ4[code + 1] as i32 {
                code += 1;
            }
            codes[i] = code as u8;
            i += 1;
        }
        codes
    };
    CODES[(2.0 * x + 256.0).clamp(0.0, 511.0) as usize % 512]
}

/// [`IQ4`]'s integer nearest to `x`.
#[inline(always)]
fn rounded_iq4(x: f32) -> f32 {
    f32::from(IQ4[usize::from(nearest_iq4(x) % 16)])
}

/// Where the number farthest from 0 is tried, from either end of the table: as far as half its widest
/// gap.
const OFFSETS: [f32; 13] = [
    -12.0, -10.0, -8.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0,
];

/// The scale, of either sign, for which its products with [`IQ4`]'s integers are nearest to `x`.
pub fn scale_iq4(x: &[f32], w: &[f32]) -> f32 {
    let far = x
        .iter()
        .fold(0.0f32, |far, x| if x.abs() > far.abs() { *x } else { far });
    if far.abs() < NOTHING {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for end in [IQ4[0], IQ4[15]] {
        for offset in OFFSETS {
            let steps = (f32::from(end) + offset) / far;
            let (mut sxq, mut sqq) = (0.0f32, 0.0f32);
            for (x, w) in x.iter().zip(w) {
                let q = rounded_iq4(x * steps);
                sxq += w * x * q;
                sqq += w * q * q;
            }
            // The error is Σ w x² - sxq² / sqq.
            let gain = sxq * sxq * reciprocal(sqq);
            if gain > most {
                (most, best) = (gain, sxq * reciprocal(sqq));
            }
        }
    }
    best
}

/// The weighted square error of the best integers of [`IQ4`] for `scale`.
pub fn error_iq4(x: &[f32], w: &[f32], scale: f32) -> f32 {
    let steps = reciprocal(scale);
    let of = |(x, w): (&f32, &f32)| {
        let off = scale * rounded_iq4(x * steps) - x;
        w * off * off
    };
    x.iter().zip(w).map(of).sum()
}

/// Twice the numbers of four bits, a sign, two of exponent and one of mantissa, of MXFP4; minus zero
/// counts as zero.
pub const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The code of [`E2M1`]'s integer nearest to `x`; from a middle towards zero.
#[inline(always)]
pub fn nearest_e2m1(x: f32) -> u8 {
    const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = MIDDLES.map(|middle| u8::from(x.abs() > middle));
    let magnitude = magnitude.iter().sum::<u8>();
    let is_negative = x < 0.0 && magnitude > 0;
    magnitude | u8::from(is_negative) << 3
}
