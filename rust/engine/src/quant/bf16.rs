//! BF16: the upper half of a float32.

use super::arrays;

/// The block format; a block is one number.
pub struct BF16;

impl super::Block for BF16 {
    const ELEMS: usize = 1;
    const BYTES: usize = 2;

    #[inline(always)]
    fn expand<A: super::Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<2, 1, _>(block, out);
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
    }
}

impl super::Quantizer for BF16 {
    fn quantize(x: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&::half::bf16::from_f32(x[0]).to_le_bytes());
    }
}
