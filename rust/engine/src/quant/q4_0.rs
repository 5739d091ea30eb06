//! Q4_0: 32 weights in 18 bytes. `f16 d`, then 16 bytes of 4-bit `q`; weight = (q - 8) d.
//! Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.
//! In sums: one sub-block, its integers `q - 8`, its scale `d`.

use super::half::half_at;
use super::integers::{across, less, nibbles};
use super::{arrays, lone_scale, pack_nibbles, Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Q4_0;

impl Block for Q4_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 18;
    const LARGEST: f32 = lone_scale::largest_centred(8);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<18, 32, _>(block, out);
        let d = half_at::<A, _>(block, 0);
        for i in 0..16 {
            let q = block[2 + i];
            out[i] = d * f32::from((q & 15) as i8 - 8);
            out[i + 16] = d * f32::from((q >> 4) as i8 - 8);
        }
    }
}

impl Integers for Q4_0 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 8;
    const SCALE_BITS: u32 = 1;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        // Every second block begins in the middle of a word.
        for (i, two) in words.as_chunks::<9>().0.iter().enumerate() {
            let b = 2 * i;
            if b >= blocks {
                break;
            }
            out.d(b, two[0]);
            out.d(b + 1, two[4].right(16));
            for j in 0..4 {
                for (b, word) in [(b, across(two[j], two[j + 1])), (b + 1, two[5 + j])] {
                    let [low, high] = nibbles(word);
                    out.q(8 * b + j, less(low, 8));
                    out.q(8 * b + 4 + j, less(high, 8));
                }
            }
        }
    }
}

impl super::Quantizer for Q4_0 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let q = lone_scale::centred(x, 8, block);
        pack_nibbles(&q, &mut block[2..]);
    }
}
