//! Q6_K: 256 weights in 210 bytes. 128 bytes of low halves, 64 bytes of 2-bit tops, 16 signed
//! scales (one for 16 weights), `f16 d`; weight = (d sc) (q - 32).
//! Each half of the superblock takes 64 low bytes and 32 top bytes for its four runs of 32
//! weights: runs 0 and 1 are the low halves, runs 2 and 3 the high halves, and run `r` has its
//! top bits at bit 2 r.

use super::{arrays, half::half_at};

/// The block format.
pub struct Q6K;

impl super::Block for Q6K {
    const ELEMS: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    fn expand(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<210, 256>(block, out);
        let d = half_at(block, 208);
        for (half, out) in out.chunks_exact_mut(128).enumerate() {
            let low = &block[64 * half..64 * half + 64];
            let top = &block[128 + 32 * half..160 + 32 * half];
            let scale = &block[192 + 8 * half..200 + 8 * half];
            for part in 0..2 {
                let at = 16 * part;
                let d = [0, 2, 4, 6].map(|run| d * f32::from(scale[run + part] as i8));
                for i in at..at + 16 {
                    let weight = |q: u8| f32::from(q as i8 - 32);
                    out[i] = d[0] * weight(low[i] & 15 | (top[i] & 3) << 4);
                    out[i + 32] = d[1] * weight(low[i + 32] & 15 | (top[i] & 12) << 2);
                    out[i + 64] = d[2] * weight(low[i] >> 4 | top[i] & 48);
                    out[i + 96] = d[3] * weight(low[i + 32] >> 4 | (top[i] & 192) >> 2);
                }
            }
        }
    }
}
