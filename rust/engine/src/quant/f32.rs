//! F32: plain little-endian floats.

use super::arrays;

/// The block format; a block is one number.
pub struct F32;

impl super::Block for F32 {
    const ELEMS: usize = 1;
    const BYTES: usize = 4;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<4, 1>(block, out);
        out[0] = f32::from_le_bytes(*block);
    }
}

/// Writes the floats as they are.
pub fn quantize(src: &[f32], dst: &mut [u8]) {
    for (x, out) in src.iter().zip(dst.chunks_exact_mut(4)) {
        out.copy_from_slice(&x.to_le_bytes());
    }
}
