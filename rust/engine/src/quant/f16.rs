//! F16: IEEE half precision.

use half::f16;

/// The block format; a block is one number.
pub struct F16;

impl super::Block for F16 {
    const ELEMS: usize = 1;
    const BYTES: usize = 2;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        out[0] = f16::from_le_bytes([block[0], block[1]]).to_f32();
    }
}

/// Rounds to nearest, ties to even.
pub fn quantize(src: &[f32], dst: &mut [u8]) {
    for (x, out) in src.iter().zip(dst.chunks_exact_mut(2)) {
        out.copy_from_slice(&f16::from_f32(*x).to_le_bytes());
    }
}
