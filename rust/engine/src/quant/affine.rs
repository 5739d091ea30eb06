//! What Q4_K and Q5_K share: a superblock of 8 sub-blocks of 32 weights, each with a 6-bit scale
//! and a 6-bit minimum in units of two halfs: weight = (d sc) q - (dmin m).

/// Sub-blocks of a superblock.
pub const SUBS: usize = 8;

/// Unpacks the 12 bytes from `at` that hold eight 6-bit scales and eight 6-bit minima.
///
/// Bytes 0..4 hold scales 0..4 in their low six bits, bytes 4..8 minima 0..4; bytes 8..12 hold the
/// low four bits of scales 4..8 (low half) and of minima 4..8 (high half), whose upper two bits
/// are the top bits of bytes 0..4 and 4..8. Four bytes are worked on at once.
#[inline(always)]
pub fn unpack_scales<const N: usize>(block: &[u8; N], at: usize) -> ([u8; SUBS], [u8; SUBS]) {
    let word = |at| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (scale, min, low) = (word(at), word(at + 4), word(at + 8));
    let join = |first: u32, second: u32| {
        (u64::from(first & 0x3f3f_3f3f) | u64::from(second | ((first >> 2) & 0x3030_3030)) << 32)
            .to_le_bytes()
    };
    (
        join(scale, low & 0x0f0f_0f0f),
        join(min, (low >> 4) & 0x0f0f_0f0f),
    )
}
