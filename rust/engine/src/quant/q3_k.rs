//! Q3_K: 256 weights in 110 bytes. 32 bytes of top bits, 64 bytes of 2-bit lows, 12 bytes of packed
//! 6-bit scales (one for 16 weights), `f16 d`; weight = (d (sc - 32)) (q - 4).
//! Each half of the superblock takes 32 low bytes for its four runs of 32 weights: run `r` has its low
//! bits at bit 2 r of them, and, in half `h`, its top bits at bit 4 h + r of the 32 top bytes. Scale `j`
//! has its low four bits in byte `j % 8`, scales 8 and later in the high half, and its upper two at bit
//! 2 (j / 4) of byte `8 + j % 4`.
//! In sums: sub-blocks of 16, integers `q - 4`, scales `d (sc - 32)`.

use super::half::{half_at, HALF_MAX};
use super::integers::{four, less, nibbles};
use super::{arrays, saturate, search};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Q3K;

/// `q` runs from -4 to this.
const TOP: u8 = 3;

/// Scales run from minus this to one less.
const STEPS: i8 = 32;

/// The 16 scales, above [`STEPS`], of the 12 bytes from 96 on.
#[inline(always)]
fn unpack_scales(block: &[u8; 110]) -> [u8; 16] {
    std::array::from_fn(|j| {
        let low = block[96 + j % 8] >> (j / 8 * 4) & 15;
        low | (block[104 + j % 4] >> (j / 4 * 2) & 3) << 4
    })
}

impl Block for Q3K {
    const ELEMS: usize = 256;
    const BYTES: usize = 110;
    const LARGEST: f32 = (TOP as f32 + 1.0) * STEPS as f32 * HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<110, 256, _>(block, out);
        let d = half_at::<A, _>(block, 108);
        let scales = unpack_scales(block).map(|s| d * f32::from(s as i8 - STEPS));
        for (run, out) in out.chunks_exact_mut(32).enumerate() {
            let lows = &block[32 + 32 * (run / 4)..];
            for i in 0..32 {
                let low = lows[i] >> (2 * (run % 4)) & 3;
                let q = low | (block[i] >> run & 1) << 2;
                out[i] = scales[2 * run + i / 16] * f32::from(q as i8 - 4);
            }
        }
    }
}

impl Integers for Q3K {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = TOP as i64 + 1;
    const SCALE_BITS: u32 = 6;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[27]);
        let [first, third] = nibbles(words[24]);
        let [second, fourth] = nibbles(words[25]);
        for (i, low) in [first, second, third, fourth].into_iter().enumerate() {
            let top = words[26].right(2 * i as u32).and(four(3)).left(4);
            out.steps(i, less(low.or(top), STEPS as u8));
        }
        for run in 0..8 {
            for i in 0..8 {
                let low = words[8 + 8 * (run / 4) + i].right(2 * (run % 4) as u32);
                let top = words[i].right(run as u32).and(four(1)).left(2);
                out.q(8 * run + i, less(low.and(four(3)).or(top), 4));
            }
        }
    }
}

impl super::Quantizer for Q3K {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x: [f32; 256] = saturate(x, Self::LARGEST);
        if x.iter().all(|x| *x == 0.0) {
            // A zero scale, whatever the rest.
            return block.fill(0);
        }
        let fit = search::sixteen_scales(&x, TOP, -STEPS);
        block.fill(0);
        block[108..].copy_from_slice(&fit.d.to_le_bytes());
        for (j, scale) in fit.scales.into_iter().enumerate() {
            let scale = (scale + STEPS) as u8;
            block[96 + j % 8] |= (scale & 15) << (j / 8 * 4);
            block[104 + j % 4] |= scale >> 4 << (j / 4 * 2);
        }
        for (run, q) in fit.q.chunks_exact(32).enumerate() {
            for (i, q) in q.iter().enumerate() {
                block[i] |= q >> 2 << run;
                block[32 + 32 * (run / 4) + i] |= (q & 3) << (2 * (run % 4));
            }
        }
    }
}
