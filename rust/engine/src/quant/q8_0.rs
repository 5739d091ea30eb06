//! Q8_0: 32 weights in 34 bytes. `f16 d`, then 32 signed bytes `q`; weight = q d.
//! In sums: one sub-block, its integers `q`, its scale `d`.

use super::half::{half_at, half_from_f32, half_to_f32, HALF_MAX};
use super::integers::across;
use super::{arrays, saturate, Arithmetic, Block, Integers, KvBlock, Sink, Words, WORDS};

/// The block format.
pub struct Q8_0;

impl Block for Q8_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 34;
    const LARGEST: f32 = 127.0 * HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<34, 32, _>(block, out);
        let d = half_at::<A, _>(block, 0);
        for i in 0..32 {
            out[i] = d * f32::from(block[2 + i] as i8);
        }
    }
}

impl Integers for Q8_0 {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 128;
    const SCALE_BITS: u32 = 1;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>) {
        // Every second block begins in the middle of a word.
        for (i, two) in words.as_chunks::<17>().0.iter().enumerate() {
            let b = 2 * i;
            if b >= blocks {
                break;
            }
            out.d(b, two[0]);
            out.d(b + 1, two[8].right(16));
            for j in 0..8 {
                out.q(8 * b + j, across(two[j], two[j + 1]));
                out.q(8 * b + 8 + j, two[9 + j]);
            }
        }
    }
}

impl super::Quantizer for Q8_0 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x = saturate::<32>(x, Self::LARGEST);
        let d = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
        let steps = super::reciprocal(d);
        block[..2].copy_from_slice(&half_from_f32(d).to_le_bytes());
        for (x, q) in x.iter().zip(&mut block[2..]) {
            *q = (x * steps).round() as i8 as u8;
        }
    }
}

impl KvBlock for Q8_0 {
    const GROUP: usize = 32;
    const BYTES: usize = 1;
    const KERNEL: &'static str = "KvBytes";

    #[inline(always)]
    fn scale(bits: u16) -> f32 {
        half_to_f32(bits)
    }

    #[inline(always)]
    fn integer(bytes: &[u8]) -> i16 {
        match bytes.first() {
            Some(byte) => i16::from(*byte as i8),
            None => 0,
        }
    }
}
