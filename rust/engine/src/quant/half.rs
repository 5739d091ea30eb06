//! Half precision to float32 without a call or a branch, so that block expansions inline and
//! vectorize. (The `half` crate asks the processor for its features on every call.)

/// The float32 of an IEEE half's bits; exact for every input, NaN payloads kept.
#[inline(always)]
pub fn half_to_f32(bits: u16) -> f32 {
    const TOP: u32 = 31 << 23;
    const REBIAS: u32 = (127 - 15) << 23;
    const ONE: u32 = 1 << 23;
    let sign = (u32::from(bits) & 0x8000) << 16;
    let magnitude = (u32::from(bits) & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    // Infinity and NaN take the exponent to the top: the rebias once more.
    let special = normal + REBIAS;
    // A subnormal has no hidden one: give it one and subtract it. One multiplication by 2^112
    // would do for both, but its operand would be a float32 subnormal, which costs some
    // processors a hundred cycles, and the scales of small weights are often subnormal halves.
    let subnormal = f32::from_bits(magnitude + REBIAS + ONE) - f32::from_bits(REBIAS + ONE);
    let value = if magnitude & TOP == 0 {
        subnormal.to_bits()
    } else {
        normal
    };
    let value = if magnitude & TOP == TOP {
        special
    } else {
        value
    };
    f32::from_bits(sign | value)
}

/// The half at byte `at` of a block, as float32.
#[inline(always)]
pub fn half_at<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[cfg(test)]
mod tests {
    use super::half_to_f32;

    #[test]
    fn every_half_converts_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let ours = half_to_f32(bits);
            let theirs = half::f16::from_bits(bits).to_f32();
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} is not {theirs}"
            );
        }
    }
}
