//! Q8_0: 32 weights in 34 bytes. `f16 d`, then 32 signed bytes `q`; weight = q d.

use super::{arrays, half::half_at};

/// The block format.
pub struct Q8_0;

impl super::Block for Q8_0 {
    const ELEMS: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<34, 32>(block, out);
        let d = half_at(block, 0);
        for i in 0..32 {
            out[i] = d * f32::from(block[2 + i] as i8);
        }
    }
}
