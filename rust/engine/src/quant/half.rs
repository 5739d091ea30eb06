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
pub fn half_at<A: super::Arithmetic, const N: usize>(block: &[u8; N], at: usize) -> f32 {
    A::half(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The largest finite half.
pub const HALF_MAX: f32 = 65504.0;

/// The nearest finite half's bits; `x` is no NaN.
pub fn half_from_f32(x: f32) -> u16 {
    half::f16::from_f32(x.clamp(-HALF_MAX, HALF_MAX)).to_bits()
}

/// The half for a scale of which a whole number up to `steps` (or down to it, if negative) times
/// the scale is to reach `value`: the nearest one, or the next larger where that would fall short
/// by half a step, as it can among the coarse subnormal halves.
pub fn half_scale(value: f32, steps: f32) -> u16 {
    let nearest = half_from_f32(value / steps);
    let short = value.abs() > half_to_f32(nearest).abs() * (steps.abs() + 0.5);
    nearest + u16::from(short && nearest & 0x7fff < 0x7bff)
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
