//! Random numbers without state: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011), and Gumbel noise from its words.

use super::math;

/// The cipher: 128 bits of counter, 64 bits of key, 128 random bits.
#[inline(always)]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for round in 0..10 {
        if round > 0 {
            k0 = k0.wrapping_add(0x9e37_79b9);
            k1 = k1.wrapping_add(0xbb67_ae85);
        }
        let a = u64::from(c0) * 0xd251_1f53;
        let b = u64::from(c2) * 0xcd9e_8d57;
        c0 = (b >> 32) as u32 ^ c1 ^ k0;
        c2 = (a >> 32) as u32 ^ c3 ^ k1;
        c1 = b as u32;
        c3 = a as u32;
    }
    [c0, c1, c2, c3]
}

/// The random words of the tokens `4 * group .. 4 * group + 4` at generated token `index`.
#[inline(always)]
pub fn words(seed: u64, index: u32, group: u32) -> [u32; 4] {
    philox4x32_10([group, index, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// Gumbel noise `-ln(-ln u)`, `u = (word + 1/2) / 2^32`, between -3.1 and 22.9.
///
/// The large values that decide a draw come from `u` near 1, where float32 has no digits left; so
/// there `-ln u` is taken as `-ln(1 - v)` of the complement `v`.
#[inline(always)]
pub fn gumbel(word: u32) -> f32 {
    const SCALE: f32 = 1.0 / 4_294_967_296.0;
    const HALF: f32 = SCALE / 2.0;
    let exponential = if word < 0xc000_0000 {
        -math::ln((word as f32).mul_add(SCALE, HALF))
    } else {
        let v = ((!word) as f32).mul_add(SCALE, HALF);
        -math::ln_1p_reduced(-v)
    };
    -math::ln(exponential)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        // Random123, tests/kat_vectors, the rows "philox4x32 10".
        let known = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in known {
            assert_eq!(philox4x32_10(counter, key), words);
        }
    }

    #[test]
    fn gumbel_follows_its_definition_at_every_scale() {
        let exact = |word: u32| {
            let v = (f64::from(!word) + 0.5) / 4_294_967_296.0;
            -(-(-v).ln_1p()).ln()
        };
        let ends = (0..1000).flat_map(|i| [i, u32::MAX - i, 0xc000_0000 - 500 + i]);
        for word in ends.chain((0..=u32::MAX).step_by(65_521)) {
            let (ours, exact) = (f64::from(gumbel(word)), exact(word));
            let tolerance = 3e-7 * exact.abs().max(1.0);
            assert!((ours - exact).abs() <= tolerance, "{word}: {ours} {exact}");
        }
        assert!(gumbel(0) > -3.2 && gumbel(u32::MAX) < 22.9);
    }
}
