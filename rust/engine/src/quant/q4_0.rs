//! Q4_0: 32 weights in 18 bytes. `f16 d`, then 16 bytes of 4-bit `q`; weight = (q - 8) d.
//! Byte `i` holds weight `i` in its low half and weight `i + 16` in its high half.

use super::{arrays, half::half_at};

/// The block format.
pub struct Q4_0;

impl super::Block for Q4_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 18;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<18, 32>(block, out);
        let d = half_at(block, 0);
        for i in 0..16 {
            let q = block[2 + i];
            out[i] = d * f32::from((q & 15) as i8 - 8);
            out[i + 16] = d * f32::from((q >> 4) as i8 - 8);
        }
    }
}
