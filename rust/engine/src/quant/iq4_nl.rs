//! IQ4_NL: 32 weights in 18 bytes. `f16 d`, then 16 bytes of 4-bit codes; weight = d q, `q` the
//! integer of `codes::IQ4` that the code numbers. Byte `i` holds weight `i` in its low half and weight
//! `i + 16` in its high half.
//! In sums: one sub-block, its integers `q`, its scale `d`.

use super::half::{half_at, half_scale, half_to_f32, HALF_MAX};
use super::integers::across;
use super::{arrays, codes, pack_nibbles, reciprocal, saturate, search};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq4Nl;

impl Block for Iq4Nl {
    const ELEMS: usize = 32;
    const BYTES: usize = 18;
    const LARGEST: f32 = 127.0 * HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<18, 32, _>(block, out);
        let d = half_at::<A, _>(block, 0);
        for i in 0..16 {
            let [low, high] = codes::pair(&codes::IQ4, block[2 + i]);
            out[i] = d * low;
            out[i + 16] = d * high;
        }
    }
}

impl Integers for Iq4Nl {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 127;
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
                    let [low, high] = codes::words(&codes::IQ4, word);
                    out.q(8 * b + j, low);
                    out.q(8 * b + 4 + j, high);
                }
            }
        }
    }
}

impl super::Quantizer for Iq4Nl {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x: [f32; 32] = saturate(x, Self::LARGEST);
        let best = codes::scale_iq4(&x, &search::importance(&x));
        let bits = half_scale(best * 127.0, 127.0);
        block[..2].copy_from_slice(&bits.to_le_bytes());
        let steps = reciprocal(half_to_f32(bits));
        pack_nibbles(&x.map(|x| codes::nearest_iq4(x * steps)), &mut block[2..]);
    }
}
