//! Q2_K: 256 weights in 84 bytes. 16 bytes of 4-bit scales and minimums (one of each for 16 weights,
//! the scale in the low half), 64 bytes of 2-bit `q`, `f16 d`, `f16 dmin`;
//! weight = (d sc) q - (dmin m).
//! Each half of the superblock takes 32 bytes for its four runs of 32 weights, run `r` at bit 2 r.
//! In sums: sub-blocks of 16, integers `q`, scales `d sc`, shared minimums `m` in units of `dmin`.

use super::integers::{four, nibbles};
use super::{affine, arrays, half::half_at};
use super::{Arithmetic, Integers, Offsets, Sink, Words, WORDS};

/// The block format.
pub struct Q2K;

/// The largest `q`.
const TOP: u8 = 3;

/// The largest scale or minimum.
const STEPS: u8 = 15;

impl super::Block for Q2K {
    const ELEMS: usize = 256;
    const BYTES: usize = 84;
    const LARGEST: f32 = affine::largest(STEPS, TOP);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<84, 256, _>(block, out);
        let (d, dmin) = (half_at::<A, _>(block, 80), half_at::<A, _>(block, 82));
        for (run, out) in out.chunks_exact_mut(32).enumerate() {
            let lows = &block[16 + 32 * (run / 4)..];
            for part in 0..2 {
                let both = block[2 * run + part];
                let (scale, min) = (d * f32::from(both & 15), dmin * f32::from(both >> 4));
                for i in 16 * part..16 * part + 16 {
                    let q = lows[i] >> (2 * (run % 4)) & 3;
                    out[i] = A::multiply_add(scale, f32::from(q), -min);
                }
            }
        }
    }
}

impl Integers for Q2K {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = TOP as i64;
    const SCALE_BITS: u32 = STEPS.ilog2() + 1;
    const OFFSETS: Offsets = Offsets::Shared { most: STEPS as i64 };

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[20]);
        out.m(0, words[20].right(16));
        for (i, both) in words[..4].iter().enumerate() {
            let [scales, mins] = nibbles(*both);
            out.steps(i, scales);
            out.mins(2 * i, mins.and(0x00ff_00ff));
            out.mins(2 * i + 1, mins.right(8).and(0x00ff_00ff));
        }
        for run in 0..8 {
            for i in 0..8 {
                let low = words[4 + 8 * (run / 4) + i].right(2 * (run % 4) as u32);
                out.q(8 * run + i, low.and(four(3)));
            }
        }
    }
}

impl super::Quantizer for Q2K {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let fit = affine::fit::<16>(x, TOP, STEPS);
        block.fill(0);
        for ((both, scale), min) in block.iter_mut().zip(fit.scales).zip(fit.mins) {
            *both = scale | min << 4;
        }
        for (run, q) in fit.q.chunks_exact(32).enumerate() {
            for (i, q) in q.iter().enumerate() {
                block[16 + 32 * (run / 4) + i] |= q << (2 * (run % 4));
            }
        }
        block[80..82].copy_from_slice(&fit.d.to_le_bytes());
        block[82..].copy_from_slice(&fit.dmin.to_le_bytes());
    }
}
