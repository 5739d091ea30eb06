//! Q8_0: 32 weights in 34 bytes. `f16 d`, then 32 signed bytes `q`; weight = q d.
//! In sums: one sub-block, its integers `q`, its scale `d`.

use super::half::{half_at, half_bits, half_from_f32, HALF_MAX};
use super::{arrays, saturate, Arithmetic, Block, Integers, Parts};

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
    fn integers(block: &[u8], out: Parts<'_>) {
        let (block, q) = arrays::<34, 32, _>(block, out.q);
        let block = *block;
        *out.d = half_bits(&block, 0);
        for i in 0..32 {
            q[i] = block[2 + i] as i8;
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
