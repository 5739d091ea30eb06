//! MXFP4: 32 weights in 17 bytes. A byte `e`, then 16 bytes of 4-bit codes; weight = 2^(e - 128) q, `q`
//! the integer of `codes::E2M1` that the code numbers: twice a sign, two bits of exponent and one of
//! mantissa. Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.
//!
//! Every `e` is a scale: 0 and 1 are float32 subnormals, and 255, which the OCP's format has for NaN, is
//! 2^127, as in the gguf package. From 2^124 on the largest weights are infinite.
//! In sums: one sub-block, its integers `q`, its scale 2^(e - 128), a power of two of any size.

use super::{arrays, codes, pack_nibbles, reciprocal, saturate};
use super::{Arithmetic, Block, Integers, Scale, Sink, Words, WORDS};

/// The block format.
pub struct Mxfp4;

/// 2^(e - 128).
#[inline(always)]
fn power(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 1 << (21 + e) } else { (e - 1) << 23 })
}

impl Block for Mxfp4 {
    const ELEMS: usize = 32;
    const BYTES: usize = 17;
    // The scale of the largest numbers is 2^124.
    const LARGEST: f32 = 12.0 * (1u128 << 124) as f32;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<17, 32, _>(block, out);
        let d = power(block[0]);
        for i in 0..16 {
            let [low, high] = codes::pair(&codes::E2M1, block[1 + i]);
            out[i] = d * low;
            out[i + 16] = d * high;
        }
    }
}

impl Integers for Mxfp4 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 12;
    const SCALE_BITS: u32 = 1;
    const SCALE: Scale = Scale::Power;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        // Block `b` begins at byte 17 b, so that of every four one begins at each byte of a word.
        for b in 0..8 {
            if b >= blocks {
                break;
            }
            let first = 17 * b / 4;
            let begin = 8 * (b as u32 % 4);
            out.d(b, words[first].right(begin));
            for j in 0..4 {
                let word = match begin {
                    24 => words[first + 1 + j],
                    _ => {
                        let rest = words[first + 1 + j].left(24 - begin);
                        words[first + j].right(begin + 8).or(rest)
                    }
                };
                let [low, high] = codes::words(&codes::E2M1, word);
                out.q(8 * b + j, low);
                out.q(8 * b + 4 + j, high);
            }
        }
    }
}

impl super::Quantizer for Mxfp4 {
    /// The bits of the gguf package: the largest power of two that is no larger than the farthest
    /// number stands for 8, so that what is above 12 of its scales becomes 12.
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x = saturate::<32>(x, Self::LARGEST);
        let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        // A logarithm just below a whole number is rounded to it.
        let log = f64::from(most).log2() as f32;
        let e = (log.floor() - 2.0 + 127.0).clamp(0.0, 252.0) as u8;
        block[0] = e;
        let steps = reciprocal(power(e));
        pack_nibbles(&x.map(|x| codes::nearest_e2m1(x * steps)), &mut block[1..]);
    }
}
