//! Q4_1: 32 weights in 20 bytes. `f16 d`, `f16 m`, then 16 bytes of 4-bit `q`; weight = q d + m.
//! Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.

use super::{arrays, half::half_at};

/// The block format.
pub struct Q4_1;

impl super::Block for Q4_1 {
    const ELEMS: usize = 32;
    const BYTES: usize = 20;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<20, 32>(block, out);
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for i in 0..16 {
            let q = block[4 + i];
            out[i] = d * f32::from(q & 15) + m;
            out[i + 16] = d * f32::from(q >> 4) + m;
        }
    }
}
