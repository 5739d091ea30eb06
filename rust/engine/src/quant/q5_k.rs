//! Q5_K: 256 weights in 176 bytes. `f16 d`, `f16 dmin`, 12 bytes of packed 6-bit scales and
//! minima (see `affine`), 32 bytes of high bits, then 128 bytes of low halves;
//! weight = (d sc) q - (dmin m). Bit `s` of high byte `i` is bit 4 of weight `i` of sub-block `s`;
//! each run of 32 low bytes holds one sub-block in its low halves and the next in its high halves.
//! In sums: sub-blocks of 32, integers `q`, scales `d sc`, shared minimums `m` in units of `dmin`.

use super::integers::{four, nibbles};
use super::{affine, arrays, half::half_at, pack_nibbles};
use super::{Arithmetic, Integers, Offsets, Sink, Words, WORDS};

/// The block format.
pub struct Q5K;

impl super::Block for Q5K {
    const ELEMS: usize = 256;
    const BYTES: usize = 176;
    const LARGEST: f32 = affine::largest(affine::STEPS, 31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<176, 256, _>(block, out);
        let (d, dmin) = (half_at::<A, _>(block, 0), half_at::<A, _>(block, 2));
        let (sc, m) = affine::unpack_scales(block, 4);
        let top = &block[16..48];
        let runs = block[48..].chunks_exact(32).zip(out.chunks_exact_mut(64));
        for (pair, (q, out)) in runs.enumerate() {
            let (low, high) = (2 * pair, 2 * pair + 1);
            let (d0, m0) = (d * f32::from(sc[low]), dmin * f32::from(m[low]));
            let (d1, m1) = (d * f32::from(sc[high]), dmin * f32::from(m[high]));
            for i in 0..32 {
                let top = top[i] >> low;
                out[i] = A::multiply_add(d0, f32::from(q[i] & 15 | (top & 1) << 4), -m0);
                out[i + 32] = A::multiply_add(d1, f32::from(q[i] >> 4 | (top & 2) << 3), -m1);
            }
        }
    }
}

impl Integers for Q5K {
    const SUB: usize = affine::SUB;
    const LARGEST_Q: i64 = 31;
    const SCALE_BITS: u32 = affine::STEP_BITS;
    const OFFSETS: Offsets = affine::OFFSETS;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        affine::take_scales(words, out);
        for run in 0..4 {
            for i in 0..8 {
                let top = |sub: usize| words[4 + i].right(sub as u32).and(four(1)).left(4);
                let [low, high] = nibbles(words[12 + 8 * run + i]);
                out.q(16 * run + i, low.or(top(2 * run)));
                out.q(16 * run + 8 + i, high.or(top(2 * run + 1)));
            }
        }
    }
}

impl super::Quantizer for Q5K {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = affine::quantize(x, 31, block);
        let (tops, lows) = block[16..].split_at_mut(32);
        tops.fill(0);
        for (s, q) in q.chunks_exact(32).enumerate() {
            for (q, top) in q.iter().zip(&mut *tops) {
                *top |= q >> 4 << s;
            }
        }
        for (q, out) in q
            .map(|q| q & 15)
            .chunks_exact(64)
            .zip(lows.chunks_exact_mut(32))
        {
            pack_nibbles(q, out);
        }
    }
}
