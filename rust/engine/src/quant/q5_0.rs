//! Q5_0: 32 weights in 22 bytes. `f16 d`, four bytes of fifth bits, then 16 bytes of nibbles (see
//! `fifth_bit`); weight = (q - 16) d. Byte `i` holds weight `i` in its low half and weight `i + 16`
//! in its high half. In sums: one sub-block, its integers `q - 16`, its scale `d`.

use super::half::half_at;
use super::integers::{across, less};
use super::{arrays, fifth_bit, lone_scale, Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Q5_0;

impl Block for Q5_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 22;
    const LARGEST: f32 = lone_scale::largest_centred(16);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<22, 32, _>(block, out);
        let d = half_at::<A, _>(block, 0);
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        for i in 0..16 {
            let [low, upper] = fifth_bit::pair(high, block[6 + i], i);
            out[i] = d * f32::from(low as i8 - 16);
            out[i + 16] = d * f32::from(upper as i8 - 16);
        }
    }
}

impl Integers for Q5_0 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 16;
    const SCALE_BITS: u32 = 1;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        // Every second block begins in the middle of a word.
        for (i, two) in words.as_chunks::<11>().0.iter().enumerate() {
            let b = 2 * i;
            if b >= blocks {
                break;
            }
            out.d(b, two[0]);
            out.d(b + 1, two[5].right(16));
            for j in 0..4 {
                let first = (b, across(two[0], two[1]), across(two[1 + j], two[2 + j]));
                for (b, high, nibbles) in [first, (b + 1, two[6], two[7 + j])] {
                    let [low, upper] = fifth_bit::words(high, nibbles, j);
                    out.q(8 * b + j, less(low, 16));
                    out.q(8 * b + 4 + j, less(upper, 16));
                }
            }
        }
    }
}

impl super::Quantizer for Q5_0 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = lone_scale::centred(x, 16, block);
        fifth_bit::pack(&q, &mut block[2..]);
    }
}
