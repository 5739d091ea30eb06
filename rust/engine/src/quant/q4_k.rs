//! Q4_K: 256 weights in 144 bytes. `f16 d`, `f16 dmin`, 12 bytes of packed 6-bit scales and
//! minima (see `affine`), then 128 bytes of 4-bit `q`; weight = (d sc) q - (dmin m).
//! Each run of 32 bytes holds one sub-block in its low halves and the next in its high halves.
//! In sums: sub-blocks of 32, integers `q`, scales `d sc`, shared minimums `m` in units of `dmin`.

use super::{affine, arrays, half::half_at, integers::nibbles, pack_nibbles};
use super::{Arithmetic, Integers, Offsets, Sink, Words, WORDS};

/// The block format.
pub struct Q4K;

impl super::Block for Q4K {
    const ELEMS: usize = 256;
    const BYTES: usize = 144;
    const LARGEST: f32 = affine::largest(affine::STEPS, 15);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<144, 256, _>(block, out);
        let (d, dmin) = (half_at::<A, _>(block, 0), half_at::<A, _>(block, 2));
        let (sc, m) = affine::unpack_scales(block, 4);
        let runs = block[16..].chunks_exact(32).zip(out.chunks_exact_mut(64));
        for (pair, (q, out)) in runs.enumerate() {
            let (low, high) = (2 * pair, 2 * pair + 1);
            let (d0, m0) = (d * f32::from(sc[low]), dmin * f32::from(m[low]));
            let (d1, m1) = (d * f32::from(sc[high]), dmin * f32::from(m[high]));
            for i in 0..32 {
                out[i] = A::multiply_add(d0, f32::from(q[i] & 15), -m0);
                out[i + 32] = A::multiply_add(d1, f32::from(q[i] >> 4), -m1);
            }
        }
    }
}

impl Integers for Q4K {
    const SUB: usize = affine::SUB;
    const LARGEST_Q: i64 = 15;
    const SCALE_BITS: u32 = affine::STEP_BITS;
    const OFFSETS: Offsets = affine::OFFSETS;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        affine::take_scales(words, out);
        for run in 0..4 {
            for i in 0..8 {
                let [low, high] = nibbles(words[4 + 8 * run + i]);
                out.q(16 * run + i, low);
                out.q(16 * run + 8 + i, high);
            }
        }
    }
}

impl super::Quantizer for Q4K {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = affine::quantize(x, 15, block);
        for (q, out) in q.chunks_exact(64).zip(block[16..].chunks_exact_mut(32)) {
            pack_nibbles(q, out);
        }
    }
}
