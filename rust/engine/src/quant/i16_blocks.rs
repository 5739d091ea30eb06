//! Keys and values as 16-bit block fixed point, for caches alone: no file has it. A block is up to 64
//! consecutive values of a head, in `1 + 2 n` bytes: `B`, then `n` signed 16-bit integers `k`; value =
//! `k u` with the unit `u = 2^(B - 127)`. So `B` is the unit's exponent field, and zero bytes are zeros.

use super::{saturated, KernelType, KvKernel, QuantType};

/// Values that share a unit; those at the end of a head may be fewer.
pub const GROUP: usize = 64;

/// Bytes of a block of `n` values.
const fn block_bytes(n: usize) -> usize {
    1 + 2 * n
}

/// Biased exponents of a block's largest magnitude: below the first the unit stays, what would be above
/// the second is saturated.
const FIELDS: (u32, u32) = (15, 176);

/// Exponent field of the largest magnitude less that of the unit.
const BITS: u32 = 14;

/// 32767 units of the largest block.
const LARGEST: f32 = 32767.0 * (1u64 << 35) as f32;

/// The row of what the table of weights has not. Its number is none that a file could name.
pub static I16: QuantType = QuantType {
    id: u32::MAX,
    name: "I16",
    block_elems: GROUP,
    block_bytes: block_bytes(GROUP),
    row_bytes,
    dequantize,
    quantize: Some(quantize),
    largest: LARGEST,
    integers: false,
    kernel: KernelType {
        header: "",
        text: "",
        unit_bytes: 0,
        kv: Some(KvKernel::Fixed),
    },
};

/// Bytes of a head of `n` values.
fn row_bytes(n: usize) -> Option<usize> {
    n.checked_mul(2)?.checked_add(n.div_ceil(GROUP))
}

/// A block's unit and its integers, as the bytes lie.
#[inline(always)]
pub fn parts(block: &[u8]) -> (f32, &[[u8; 2]]) {
    match block.split_first() {
        Some((b, rest)) => (f32::from_bits(u32::from(*b) << 23), rest.as_chunks().0),
        None => (0.0, &[]),
    }
}

/// The blocks of a head.
#[inline(always)]
pub fn blocks(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.chunks(block_bytes(GROUP))
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (block, out) in blocks(src).zip(dst.chunks_mut(GROUP)) {
        let (unit, integers) = parts(block);
        for (k, x) in integers.iter().zip(out) {
            *x = f32::from(i16::from_le_bytes(*k)) * unit;
        }
    }
}

fn quantize(src: &[f32], dst: &mut [u8]) {
    for (values, block) in src.chunks(GROUP).zip(dst.chunks_mut(block_bytes(GROUP))) {
        let values = values.iter().map(|x| saturated(*x, LARGEST));
        let bits = values.clone().map(|x| x.abs().to_bits());
        let most = bits.max().unwrap_or(0);
        let field = (most >> 23).clamp(FIELDS.0, FIELDS.1);
        // 2^(141 - field): the largest is below 2^15 then.
        let scale = f32::from_bits((2 * 127 + BITS - field) << 23);
        let Some((b, rest)) = block.split_first_mut() else {
            continue;
        };
        *b = (field - BITS) as u8;
        for (x, k) in values.zip(rest.as_chunks_mut().0) {
            let rounded = (x * scale).round_ties_even().clamp(-32767.0, 32767.0);
            *k = (rounded as i16).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(x: &[f32]) -> (u8, Vec<f32>) {
        let mut bytes = vec![0xa5; row_bytes(x.len()).unwrap()];
        quantize(x, &mut bytes);
        let mut out = vec![f32::NAN; x.len()];
        dequantize(&bytes, &mut out);
        (bytes[0], out)
    }

    #[test]
    fn errors_are_half_a_unit_and_the_largest_keeps_its_place() {
        for n in [1, 16, 63, 64] {
            for exponent in [-149, -126, -112, -111, -40, 0, 49] {
                let most = 1.75 * 2f64.powi(exponent);
                let x: Vec<f32> = (0..n)
                    .map(|i| (most * (1.0 - 0.7 * f64::from(i))) as f32)
                    .map(|v| v.clamp(-most as f32, most as f32))
                    .collect();
                let (b, found) = round_trip(&x);
                let unit = f64::from(f32::from_bits(u32::from(b) << 23));
                for (x, y) in x.iter().zip(&found) {
                    let error = (f64::from(*x) - f64::from(*y)).abs();
                    assert!(error <= unit / 2.0, "{n} {exponent}: {x} {y}");
                }
                let wanted = (1.75 * 2f64.powi(exponent - 14)).max(2f64.powi(-126));
                assert!(unit <= wanted, "{n} {exponent}: {unit}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_the_largest() {
        let (b, found) = round_trip(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, LARGEST, 3e38]);
        assert_eq!(u32::from(b), FIELDS.1 - BITS);
        assert_eq!(found, [LARGEST, -LARGEST, 0.0, LARGEST, LARGEST]);
        // Near the next power of two 2^15 units would not fit 16 bits.
        let (_, found) = round_trip(&[f32::from_bits(0x3fff_ffff)]);
        assert_eq!(found, [32767.0 / 16384.0]);
        let (_, found) = round_trip(&[0.0; 80]);
        assert_eq!(found, [0.0; 80]);
    }

    #[test]
    fn zero_bytes_are_zeros_and_heads_have_any_width() {
        let mut out = [1.0; 80];
        dequantize(&[0; 162], &mut out);
        assert_eq!(out, [0.0; 80]);
        let sizes = [1, 64, 80, 128, 256].map(|n| I16.kv_head_bytes(n).unwrap());
        assert_eq!(sizes, [3, 129, 162, 258, 516]);
        assert_eq!(I16.kv_head_bytes(usize::MAX), None);
    }
}
