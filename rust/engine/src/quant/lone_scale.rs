//! The scales of blocks of 32 weights with no superblock above them, as the gguf package chooses them;
//! its bits.

use super::half::{half_from_f32, HALF_MAX};
use super::{reciprocal, saturate};

/// The largest magnitude of `(q - half) d`.
pub const fn largest_centred(half: u8) -> f32 {
    half as f32 * HALF_MAX
}

/// The largest magnitude of `q d + m`, `q` up to `top`.
pub const fn largest_affine(top: u8) -> f32 {
    (top as f32 + 1.0) * HALF_MAX
}

/// Writes `d` to the first two bytes of `block`; the `q`, 0 to `2 half - 1`, of weights
/// `(q - half) d`.
pub fn centred(x: &[f32], half: u8, block: &mut [u8]) -> [u8; 32] {
    let x = saturate::<32>(x, largest_centred(half));
    // The number farthest from 0 becomes q = 0, that is -half d: the scale takes its sign.
    let far = x
        .iter()
        .fold(0.0f32, |far, x| if x.abs() > far.abs() { *x } else { far });
    let d = far / -f32::from(half);
    let steps = reciprocal(d);
    block[..2].copy_from_slice(&half_from_f32(d).to_le_bytes());
    let middle = f32::from(half) + 0.5;
    x.map(|x| (x * steps + middle) as u8)
        .map(|q| q.min(2 * half - 1))
}

/// Writes `d` and `m` to the first four bytes of `block`; the `q`, 0 to `top`, of weights `q d + m`.
pub fn affine(x: &[f32], top: u8, block: &mut [u8]) -> [u8; 32] {
    let x = saturate::<32>(x, largest_affine(top));
    let most = f32::from(top);
    let min = x
        .iter()
        .fold(f32::INFINITY, |a, x| a.min(*x))
        .clamp(-HALF_MAX, HALF_MAX);
    let max = x
        .iter()
        .fold(min, |a, x| a.max(*x))
        .min(min + most * HALF_MAX);
    let d = (max - min) / most;
    let steps = reciprocal(d);
    block[..2].copy_from_slice(&half_from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&half_from_f32(min).to_le_bytes());
    x.map(|x| ((x - min) * steps + 0.5) as u8)
        .map(|q| q.min(top))
}
