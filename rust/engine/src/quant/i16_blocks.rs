//! Keys and values as 16-bit block fixed point, for caches alone: no file has it. A block is up to 128
//! consecutive values of a head, in `2 + 2 n` bytes: the scale `u` as the upper half of a float32 (a
//! bfloat16), then `n` signed 16-bit integers `k`; value = `k u`, without rounding. Zero bytes are zeros.

use super::{saturated, KernelType, KvBlock, KvKernel, QuantType};

/// Values that share a scale; those at the end of a head may be fewer.
const GROUP: usize = 128;

/// Bytes of a block of `n` values.
const fn block_bytes(n: usize) -> usize {
    2 + 2 * n
}

/// The largest integer: there is no -32768.
const MOST: f32 = 32767.0;

/// The smallest scale, 2^-126, as it is stored: its reciprocal is a number.
const LEAST_SCALE: u32 = 0x0080;

/// The largest scale's largest value.
const LARGEST: f32 = MOST * (1u64 << 35) as f32;

/// Its number is none that a file could name.
pub const I16_ID: u32 = u32::MAX;

/// The row of what the table of weights has not.
pub static I16: QuantType = QuantType {
    id: I16_ID,
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
        tile_bytes: 0,
        in_bytes: false,
        kv: Some(KvKernel::of::<I16Blocks>()),
    },
};

/// Bytes of a head of `n` values.
fn row_bytes(n: usize) -> Option<usize> {
    n.checked_mul(2)?
        .checked_add(n.div_ceil(GROUP).checked_mul(2)?)
}

/// The block format.
pub struct I16Blocks;

impl KvBlock for I16Blocks {
    const GROUP: usize = GROUP;
    const BYTES: usize = 2;
    const KERNEL: &'static str = "KvFixed";

    /// A bfloat16.
    #[inline(always)]
    fn scale(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn integer(bytes: &[u8]) -> i16 {
        match bytes.first_chunk() {
            Some(bytes) => i16::from_le_bytes(*bytes),
            None => 0,
        }
    }
}

fn dequantize(src: &[u8], dst: &mut [f32]) {
    for (block, out) in I16Blocks::blocks(src).zip(dst.chunks_mut(GROUP)) {
        let (scale, integers) = I16Blocks::parts(block);
        for (k, x) in integers.chunks(2).zip(out) {
            *x = f32::from(I16Blocks::integer(k)) * scale;
        }
    }
}

fn quantize(src: &[f32], dst: &mut [u8]) {
    // 1.5 * 2^52: a float64 sum has no room for a fraction, and the product before it is exact.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    for (values, block) in src.chunks(GROUP).zip(dst.chunks_mut(block_bytes(GROUP))) {
        let values = values.iter().map(|x| saturated(*x, LARGEST));
        let most = values.clone().fold(0.0, |most: f32, x| most.max(x.abs()));
        // Rounded up, so that the largest has no more than 32767 scales.
        let bits = ((most / MOST).to_bits() + 0xffff) >> 16;
        let bits = bits.max(LEAST_SCALE) as u16;
        let inverse = f64::from(1.0 / I16Blocks::scale(bits));
        let Some((scale, rest)) = block.split_first_chunk_mut() else {
            continue;
        };
        *scale = bits.to_le_bytes();
        for (x, k) in values.zip(rest.as_chunks_mut().0) {
            let rounded = (f64::from(x) * inverse + ROUND) - ROUND;
            *k = (rounded.clamp(-f64::from(MOST), f64::from(MOST)) as i16).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(x: &[f32]) -> (f32, Vec<f32>) {
        let mut bytes = vec![0xa5; row_bytes(x.len()).unwrap()];
        quantize(x, &mut bytes);
        let mut out = vec![f32::NAN; x.len()];
        dequantize(&bytes, &mut out);
        (I16Blocks::parts(&bytes).0, out)
    }

    #[test]
    fn errors_are_half_a_scale_and_scales_as_small_as_can_be() {
        for n in [1, 16, 127, 128] {
            for exponent in [-149, -126, -112, -111, -40, 0, 49] {
                for part in [1.0, 1.25, 1.75, 1.996] {
                    let most = part * 2f64.powi(exponent);
                    let x: Vec<f32> = (0..n)
                        .map(|i| (most * (1.0 - 0.7 * f64::from(i))) as f32)
                        .map(|v| v.clamp(-most as f32, most as f32))
                        .collect();
                    let (scale, found) = round_trip(&x);
                    // The reciprocal of the scale is rounded: 32767 of its last places.
                    let bar = f64::from(scale) * (0.5 + 32767.0 / f64::from(1 << 24));
                    for (x, y) in x.iter().zip(&found) {
                        let error = (f64::from(*x) - f64::from(*y)).abs();
                        assert!(error <= bar, "{n} {most}: {x} {y}");
                    }
                    let wanted = most / 32767.0 * (1.0 + 2f64.powi(-7));
                    let wanted = wanted.max(2f64.powi(-126));
                    assert!(f64::from(scale) <= wanted, "{n} {most}: {scale}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_the_largest() {
        let (scale, found) =
            round_trip(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, LARGEST, 3e38]);
        assert_eq!(scale, 2f32.powi(35));
        assert_eq!(found, [LARGEST, -LARGEST, 0.0, LARGEST, LARGEST]);
        // One place more than 32767 scales, of which the next larger scale has fewer.
        let (scale, found) = round_trip(&[f32::from_bits(32767.0f32.to_bits() + 1)]);
        assert_eq!((scale, found[0]), (1.0 + 1.0 / 128.0, 32513.0 * scale));
        let (_, found) = round_trip(&[0.0; 144]);
        assert_eq!(found, [0.0; 144]);
    }

    #[test]
    fn ties_go_to_even() {
        let (scale, found) = round_trip(&[32767.0, 0.5, 1.5, -2.5, 32766.5]);
        assert_eq!(scale, 1.0);
        assert_eq!(found, [32767.0, 0.0, 2.0, -2.0, 32766.0]);
    }

    #[test]
    fn zero_bytes_are_zeros_and_heads_have_any_width() {
        let mut out = [1.0; 144];
        dequantize(&[0; 292], &mut out);
        assert_eq!(out, [0.0; 144]);
        let sizes = [1, 64, 80, 128, 192, 256].map(|n| I16.kv_head_bytes(n).unwrap());
        assert_eq!(sizes, [4, 130, 162, 258, 388, 516]);
        assert_eq!(I16.kv_head_bytes(usize::MAX), None);
    }
}
