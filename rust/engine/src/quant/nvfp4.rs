//! NVFP4: 64 weights in 36 bytes. Four bytes `e`, a scale for 16 weights each, then as many runs of
//! eight bytes of 4-bit codes; weight = d q, `q` the integer of `codes::E2M1` that the code numbers and
//! `d` half of the E4M3 number of the lower 7 bits of `e`; where `e` is 127, NaN, `d` is 0, as in the
//! gguf package. Byte `i` of a run holds weight `i` in its low half and weight `i + 8` in its high half.
//! In sums: four sub-blocks of 16, integers `q`, a scale `d` each.

use super::half::{half_from_f32, half_to_f32};
use super::integers::Scale;
use super::{arrays, codes, pack_nibbles, reciprocal, saturate};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Nvfp4;

/// What NaN is; below it scales ascend.
const NAN: u8 = 0x7f;

/// Half of an E4M3 number: a half has an exponent that is 8 more, and 7 more bits of mantissa.
#[inline(always)]
fn scale(e: u8) -> f32 {
    let bits = if e == NAN { 0 } else { e & 0x7f };
    half_to_f32(u16::from(bits) << 7) * 128.0
}

impl Block for Nvfp4 {
    const ELEMS: usize = 64;
    const BYTES: usize = 36;
    const LARGEST: f32 = 12.0 * 224.0;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<36, 64, _>(block, out);
        for s in 0..4 {
            let d = scale(block[s]);
            for i in 0..8 {
                let [low, high] = codes::pair(&codes::E2M1, block[4 + 8 * s + i]);
                out[16 * s + i] = d * low;
                out[16 * s + 8 + i] = d * high;
            }
        }
    }
}

impl Integers for Nvfp4 {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = 12;
    const SCALE_BITS: u32 = 1;
    const SCALE: Scale = Scale::Float8;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        for (b, block) in words.as_chunks::<9>().0.iter().enumerate() {
            if b >= blocks {
                break;
            }
            for s in 0..4 {
                out.d(4 * b + s, block[0].right(8 * s as u32));
                for i in 0..2 {
                    let [low, high] = codes::words(&codes::E2M1, block[1 + 2 * s + i]);
                    out.q(16 * b + 4 * s + i, low);
                    out.q(16 * b + 4 * s + 2 + i, high);
                }
            }
        }
    }
}

impl super::Quantizer for Nvfp4 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x = saturate::<64>(x, Self::LARGEST);
        for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            // The largest is tried as 12 and as 8 of its scales, and as all between.
            let below = |d: f32| (half_from_f32(d / 128.0) >> 7) as u8;
            let (mut least, mut best) = (f32::INFINITY, 0);
            for e in below(most / 12.0)..=below(most / 8.0).saturating_add(1) {
                let e = e.min(NAN - 1);
                let (d, steps) = (scale(e), reciprocal(scale(e)));
                let error = x.iter().map(|x| {
                    let q = codes::E2M1[usize::from(codes::nearest_e2m1(x * steps))];
                    (d * f32::from(q) - x).powi(2)
                });
                let error = error.sum();
                if error < least {
                    (least, best) = (error, e);
                }
            }
            block[s] = best;
            let steps = reciprocal(scale(best));
            let q = x.map(|x| codes::nearest_e2m1(x * steps));
            pack_nibbles(&q, &mut block[4 + 8 * s..12 + 8 * s]);
        }
    }
}
