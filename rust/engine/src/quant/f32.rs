//! F32: plain little-endian floats.

use super::arrays;

/// The block format; a block is one number.
pub struct F32;

impl super::Block for F32 {
    const ELEMS: usize = 1;
    const BYTES: usize = 4;

    #[inline(always)]
    fn expand<A: super::Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<4, 1, _>(block, out);
        out[0] = f32::from_le_bytes(*block);
    }
}

impl super::Quantizer for F32 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&x[0].to_le_bytes());
    }
}
