//! Q5_1: 32 weights in 24 bytes. `f16 d`, `f16 m`, four bytes of fifth bits, then 16 bytes of nibbles
//! (see `fifth_bit`); weight = q d + m. Byte `i` holds weight `i` in its low half and weight `i + 16`
//! in its high half. In sums: one sub-block, its integers `q`, its scale `d`, its own offset `m`.

use super::half::half_at;
use super::{
    arrays, fifth_bit, lone_scale, Arithmetic, Block, Integers, Offsets, Sink, Words, WORDS,
};

/// The block format.
pub struct Q5_1;

impl Block for Q5_1 {
    const ELEMS: usize = 32;
    const BYTES: usize = 24;
    const LARGEST: f32 = lone_scale::largest_affine(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<24, 32, _>(block, out);
        let (d, m) = (half_at::<A, _>(block, 0), half_at::<A, _>(block, 2));
        let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        for i in 0..16 {
            let [low, upper] = fifth_bit::pair(high, block[8 + i], i);
            out[i] = A::multiply_add(d, f32::from(low), m);
            out[i + 16] = A::multiply_add(d, f32::from(upper), m);
        }
    }
}

impl Integers for Q5_1 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 31;
    const SCALE_BITS: u32 = 1;
    const OFFSETS: Offsets = Offsets::Own;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        for (b, block) in words.as_chunks::<6>().0.iter().enumerate() {
            if b >= blocks {
                break;
            }
            out.d(b, block[0]);
            out.m(b, block[0].right(16));
            for j in 0..4 {
                let [low, upper] = fifth_bit::words(block[1], block[2 + j], j);
                out.q(8 * b + j, low);
                out.q(8 * b + 4 + j, upper);
            }
        }
    }
}

impl super::Quantizer for Q5_1 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = lone_scale::affine(x, 31, block);
        fifth_bit::pack(&q, &mut block[4..]);
    }
}
