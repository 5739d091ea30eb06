//! Q4_1: 32 weights in 20 bytes. `f16 d`, `f16 m`, then 16 bytes of 4-bit `q`; weight = q d + m.
//! Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.
//! In sums: one sub-block, its integers `q`, its scale `d`, its own offset `m`.

use super::half::half_at;
use super::integers::nibbles;
use super::{
    arrays, lone_scale, pack_nibbles, Arithmetic, Block, Integers, Offsets, Sink, Words, WORDS,
};

/// The block format.
pub struct Q4_1;

impl Block for Q4_1 {
    const ELEMS: usize = 32;
    const BYTES: usize = 20;
    const LARGEST: f32 = lone_scale::largest_affine(15);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<20, 32, _>(block, out);
        let (d, m) = (half_at::<A, _>(block, 0), half_at::<A, _>(block, 2));
        for i in 0..16 {
            let q = block[4 + i];
            out[i] = A::multiply_add(d, f32::from(q & 15), m);
            out[i + 16] = A::multiply_add(d, f32::from(q >> 4), m);
        }
    }
}

impl Integers for Q4_1 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 15;
    const SCALE_BITS: u32 = 1;
    const OFFSETS: Offsets = Offsets::Own;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        for (b, block) in words.as_chunks::<5>().0.iter().enumerate() {
            if b >= blocks {
                break;
            }
            out.d(b, block[0]);
            out.m(b, block[0].right(16));
            for (j, word) in block[1..].iter().enumerate() {
                let [low, high] = nibbles(*word);
                out.q(8 * b + j, low);
                out.q(8 * b + 4 + j, high);
            }
        }
    }
}

impl super::Quantizer for Q4_1 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = lone_scale::affine(x, 15, block);
        pack_nibbles(&q, &mut block[4..]);
    }
}
