//! Q4_0: 32 weights in 18 bytes. `f16 d`, then 16 bytes of 4-bit `q`; weight = (q - 8) d.
//! Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.
//! In sums: one sub-block, its integers `q - 8`, its scale `d`.

use super::half::{half_at, half_bits, half_from_f32, HALF_MAX};
use super::{arrays, pack_nibbles, saturate, Arithmetic, Block, Integers, Parts};

/// The block format.
pub struct Q4_0;

impl Block for Q4_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 18;
    const LARGEST: f32 = 8.0 * HALF_MAX;

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
    fn integers(block: &[u8], out: Parts<'_>) {
        let (block, q) = arrays::<18, 32, _>(block, out.q);
        let block = *block;
        *out.d = half_bits(&block, 0);
        for i in 0..16 {
            q[i] = (block[2 + i] & 15) as i8 - 8;
            q[i + 16] = (block[2 + i] >> 4) as i8 - 8;
        }
    }
}

impl super::Quantizer for Q4_0 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x = saturate::<32>(x, Self::LARGEST);
        // The number farthest from 0 becomes q = 0, that is -8 d: the scale takes its sign.
        let far = x
            .iter()
            .fold(0.0f32, |far, x| if x.abs() > far.abs() { *x } else { far });
        let d = far / -8.0;
        let steps = super::reciprocal(d);
        block[..2].copy_from_slice(&half_from_f32(d).to_le_bytes());
        pack_nibbles(
            &x.map(|x| (x * steps + 8.5) as u8).map(|q| q.min(15)),
            &mut block[2..],
        );
    }
}
