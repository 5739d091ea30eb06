//! Q6_K: 256 weights in 210 bytes. 128 bytes of low halves, 64 bytes of 2-bit tops, 16 signed
//! scales (one for 16 weights), `f16 d`; weight = (d sc) (q - 32).
//! Each half of the superblock takes 64 low bytes and 32 top bytes for its four runs of 32
//! weights: runs 0 and 1 are the low halves, runs 2 and 3 the high halves, and run `r` has its
//! top bits at bit 2 r.
//! In sums: sub-blocks of 16, integers `q - 32`, scales `d sc`.

use super::half::{half_at, HALF_MAX};
use super::integers::{four, less, nibbles};
use super::{arrays, saturate, search};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Q6K;

impl Block for Q6K {
    const ELEMS: usize = 256;
    const BYTES: usize = 210;
    const LARGEST: f32 = 32.0 * 128.0 * HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<210, 256, _>(block, out);
        let d = half_at::<A, _>(block, 208);
        for (half, out) in out.chunks_exact_mut(128).enumerate() {
            let low = &block[64 * half..64 * half + 64];
            let top = &block[128 + 32 * half..160 + 32 * half];
            let scale = &block[192 + 8 * half..200 + 8 * half];
            for part in 0..2 {
                let at = 16 * part;
                let d = [0, 2, 4, 6].map(|run| d * f32::from(scale[run + part] as i8));
                for i in at..at + 16 {
                    let weight = |q: u8| f32::from(q as i8 - 32);
                    out[i] = d[0] * weight(low[i] & 15 | (top[i] & 3) << 4);
                    out[i + 32] = d[1] * weight(low[i + 32] & 15 | (top[i] & 12) << 2);
                    out[i + 64] = d[2] * weight(low[i] >> 4 | top[i] & 48);
                    out[i + 96] = d[3] * weight(low[i + 32] >> 4 | (top[i] & 192) >> 2);
                }
            }
        }
    }
}

impl Integers for Q6K {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = 32;
    const SCALE_BITS: u32 = 8;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[52]);
        for i in 0..4 {
            out.steps(i, words[48 + i]);
        }
        for half in 0..2 {
            for i in 0..8 {
                let top = words[32 + 8 * half + i];
                let [a, c] = nibbles(words[16 * half + i]);
                let [b, d] = nibbles(words[16 * half + 8 + i]);
                let q = [
                    a.or(top.and(four(3)).left(4)),
                    b.or(top.and(four(12)).left(2)),
                    c.or(top.and(four(48))),
                    d.or(top.and(four(192)).right(2)),
                ];
                for (run, q) in q.into_iter().enumerate() {
                    out.q(32 * half + 8 * run + i, less(q, 32));
                }
            }
        }
    }
}

/// `q` runs from -32 to this.
const TOP: u8 = 31;

impl super::Quantizer for Q6K {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x: [f32; 256] = saturate(x, Self::LARGEST);
        if x.iter().all(|x| *x == 0.0) {
            // Zero scales, whatever q.
            return block.fill(0);
        }
        // Of the signed bytes, the scale farthest from 0 becomes -128.
        let fit = search::sixteen_scales(&x, TOP, i8::MIN);
        block[208..].copy_from_slice(&fit.d.to_le_bytes());
        block[192..208].copy_from_slice(&fit.scales.map(|s| s as u8));
        let (lows, tops) = block.split_at_mut(128);
        for (half, q) in fit.q.chunks_exact(128).enumerate() {
            for i in 0..32 {
                let run = [q[i], q[i + 32], q[i + 64], q[i + 96]];
                lows[64 * half + i] = run[0] & 15 | run[2] << 4;
                lows[64 * half + 32 + i] = run[1] & 15 | run[3] << 4;
                tops[32 * half + i] =
                    run[0] >> 4 | run[1] >> 4 << 2 | run[2] >> 4 << 4 | run[3] >> 4 << 6;
            }
        }
    }
}
