//! F16: IEEE half precision.

use super::half::HALF_MAX;
use super::{arrays, Arithmetic};

/// The block format; a block is one number.
pub struct F16;

impl super::Block for F16 {
    const ELEMS: usize = 1;
    const BYTES: usize = 2;
    const LARGEST: f32 = HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<2, 1, _>(block, out);
        out[0] = A::half(u16::from_le_bytes(*block));
    }
}

impl super::Quantizer for F16 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&::half::f16::from_f32(x[0]).to_le_bytes());
    }
}
