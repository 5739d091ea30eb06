//! What Q4_K and Q5_K share: a superblock of 8 sub-blocks of 32 weights, each with a 6-bit scale
//! and a 6-bit minimum in units of two halfs: weight = (d sc) q - (dmin m). And how such weights are
//! fitted, whatever the number of sub-blocks.

use super::half::{half_scale, half_to_f32, HALF_MAX};
use super::integers::{four, nibbles};
use super::{reciprocal, saturate, search, Offsets, Sink, Words, COLUMNS, WORDS};

/// Weights of a sub-block.
pub const SUB: usize = 32;

/// Sub-blocks of a superblock.
pub const SUBS: usize = 8;

/// Unpacks the 12 bytes from `at` that hold eight 6-bit scales and eight 6-bit minima.
///
/// Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minima 0..4; bytes 8..12 hold the
/// low four bits of scales 4..8 (low half) and of minima 4..8 (high half), whose upper two bits
/// are the top bits of bytes 0..4 and 4..8. Four bytes are worked on at once.
#[inline(always)]
pub fn unpack_scales<const N: usize>(block: &[u8; N], at: usize) -> ([u8; SUBS], [u8; SUBS]) {
    let word = |at| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (scale, min, low) = (word(at), word(at + 4), word(at + 8));
    let join = |first: u32, second: u32| {
        (u64::from(first & 0x3f3f_3f3f) | u64::from(second | ((first >> 2) & 0x3030_3030)) << 32)
            .to_le_bytes()
    };
    (
        join(scale, low & 0x0f0f_0f0f),
        join(min, (low >> 4) & 0x0f0f_0f0f),
    )
}

/// The first four words of a superblock: the scales, the minimums, and their units. As
/// [`unpack_scales`], with eight rows or more at once.
#[inline(always)]
pub fn take_scales<W: Words>(words: &[W; WORDS], out: &mut impl Sink<W>) {
    out.d(0, words[0]);
    out.m(0, words[0].right(16));
    let (scale, min, low) = (words[1], words[2], words[3]);
    let top = |word: W| word.right(2).and(four(48));
    let [low_scales, low_mins] = nibbles(low);
    out.steps(0, scale.and(four(63)));
    out.steps(1, low_scales.or(top(scale)));
    for (i, mins) in [min.and(four(63)), low_mins.or(top(min))]
        .into_iter()
        .enumerate()
    {
        out.mins(2 * i, mins.and(0x00ff_00ff));
        out.mins(2 * i + 1, mins.right(8).and(0x00ff_00ff));
    }
}

/// The inverse of [`unpack_scales`]; every number is below 64.
fn pack_scales(scales: &[u8; SUBS], mins: &[u8; SUBS], packed: &mut [u8]) {
    for i in 0..4 {
        packed[i] = scales[i] | scales[i + 4] >> 4 << 6;
        packed[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
}

/// Largest 6-bit scale or minimum.
pub const STEPS: u8 = 63;

/// Bits of one.
pub const STEP_BITS: u32 = STEPS.ilog2() + 1;

/// The minimums of a superblock.
pub const OFFSETS: Offsets = Offsets::Shared { most: STEPS as i64 };

/// The largest magnitude that a `q` of up to `top` reaches, with scales of up to `steps`.
pub const fn largest(steps: u8, top: u8) -> f32 {
    steps as f32 * top as f32 * HALF_MAX
}

/// Writes `d`, `dmin` and the packed scales to the first 16 bytes of `block` and returns every
/// weight's `q`, 0 to `top`.
pub fn quantize(x: &[f32], top: u8, block: &mut [u8]) -> [u8; COLUMNS] {
    let fit = fit::<SUBS>(x, top, STEPS);
    block[..2].copy_from_slice(&fit.d.to_le_bytes());
    block[2..4].copy_from_slice(&fit.dmin.to_le_bytes());
    pack_scales(&fit.scales, &fit.mins, &mut block[4..16]);
    fit.q
}

/// A superblock of `N` sub-blocks.
pub struct Fit<const N: usize> {
    /// The units of the scales and of the minimums, a float16's bits each.
    pub d: u16,
    pub dmin: u16,
    pub scales: [u8; N],
    pub mins: [u8; N],
    pub q: [u8; COLUMNS],
}

/// `q` from 0 to `top`, scales and minimums up to `steps`; zeros give zeros.
///
/// Each sub-block gets the scale and minimum of a weighted least-squares search; then all are
/// rounded to so many steps, and of the neighbours of each rounded pair the best is taken.
pub fn fit<const N: usize>(x: &[f32], top: u8, steps: u8) -> Fit<N> {
    let x: [f32; COLUMNS] = saturate(x, largest(steps, top));
    let mut found = Fit {
        d: 0,
        dmin: 0,
        scales: [0; N],
        mins: [0; N],
        q: [0; COLUMNS],
    };
    if x.iter().all(|x| *x == 0.0) {
        return found;
    }
    let weights = search::importance(&x);
    let sub = COLUMNS / N;
    let subs = || x.chunks_exact(sub).zip(weights.chunks_exact(sub));
    let mut fits = [(0.0, 0.0); N];
    for (fit, (x, w)) in fits.iter_mut().zip(subs()) {
        *fit = search::affine(x, w, top);
    }
    let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
    found.d = half_scale(most(|f| f.0), f32::from(steps));
    found.dmin = half_scale(most(|f| f.1), f32::from(steps));
    let (d, dmin) = (half_to_f32(found.d), half_to_f32(found.dmin));

    for (s, (x, w)) in subs().enumerate() {
        let around = |value: f32, unit: f32| {
            let nearest = (value * reciprocal(unit) + 0.5) as u8;
            nearest.saturating_sub(1).min(steps)..=nearest.saturating_add(1).min(steps)
        };
        let mut least = f32::INFINITY;
        for scale in around(fits[s].0, d) {
            for min in around(fits[s].1, dmin) {
                let (a, b) = (d * f32::from(scale), dmin * f32::from(min));
                let error = search::error(x, w, a, b, top);
                if error < least {
                    (least, found.scales[s], found.mins[s]) = (error, scale, min);
                }
            }
        }
        let scale = d * f32::from(found.scales[s]);
        let min = dmin * f32::from(found.mins[s]);
        search::round(x, scale, min, top, &mut found.q[s * sub..][..sub]);
    }
    found
}
