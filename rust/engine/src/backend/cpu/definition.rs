//! The sum of [`crate::plan::Op::MatVec`] over weights that are small integers, word for word: what
//! every faster way to compute it is tested against.

use crate::plan::parts::parts;
use crate::quant::{Arithmetic, Integers, Offsets, Plain, Superblock, COLUMNS};

/// `x` as integers, and the exponent `e`.
fn block_fixed_point(x: &[f32]) -> (Vec<i64>, i32) {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let field = (largest.to_bits() >> 23).clamp(24, 245);
    let e = field as i32 - 126;
    let integer = |x: &f32| (f64::from(*x) * f64::from(23 - e).exp2()).round_ties_even() as i64;
    (x.iter().map(integer).collect(), e)
}

/// `d s` of sub-block `j`.
pub fn scale<B: Integers>(w: &Superblock, j: usize) -> f32 {
    let d = Plain::half(w.d[Superblock::block_of::<B>(j)]);
    if B::HAS_STEPS {
        d * f32::from(w.steps[j])
    } else {
        d
    }
}

/// The offset of sub-block `j`; of the first one, what they share.
pub fn offset<B: Integers>(w: &Superblock, j: usize) -> f32 {
    Plain::half(w.m[Superblock::block_of::<B>(j)])
}

/// `weight · x`, `weight` one row of blocks.
pub fn product<B: Integers>(row: &[u8], x: &[f32]) -> f32 {
    let superblocks: Vec<_> = row
        .chunks(Superblock::bytes::<B>())
        .zip(x.chunks(COLUMNS))
        .collect();
    let mut total = None;
    for part in parts(superblocks.len()) {
        let mut y = 0.0f32;
        for (blocks, x) in &superblocks[part] {
            y = add_superblock::<B>(blocks, x, y);
        }
        total = Some(total.map_or(y, |total: f32| total + y));
    }
    total.unwrap_or(0.0)
}

fn add_superblock<B: Integers>(blocks: &[u8], x: &[f32], mut y: f32) -> f32 {
    let mut w = Superblock::ZERO;
    w.take::<B>(blocks);
    let (mut x, e) = block_fixed_point(x);
    x.resize(COLUMNS, 0);
    let q: Vec<i64> = w.q.iter().map(|q| i64::from(*q)).collect();
    let subs = || q.chunks(B::SUB).zip(x.chunks(B::SUB));
    let t: Vec<f32> = subs()
        .map(|(q, x)| q.iter().zip(x).map(|(q, x)| q * x).sum::<i64>() as f32)
        .collect();
    let sums: Vec<i64> = subs().map(|(_, x)| x.iter().sum()).collect();

    for chain in 0..4 {
        let mut p = 0.0;
        if let (0, Offsets::Shared { .. }) = (chain, B::OFFSETS) {
            let m = sums.iter().zip(w.mins).map(|(s, m)| s * i64::from(m));
            p = -(offset::<B>(&w, 0) * m.sum::<i64>() as f32);
        }
        for j in (chain..t.len()).step_by(4) {
            p = scale::<B>(&w, j).mul_add(t[j], p);
            if B::OFFSETS == Offsets::Own {
                p = offset::<B>(&w, j).mul_add(sums[j] as f32, p);
            }
        }
        y = ((e - 23) as f32).exp2().mul_add(p, y);
    }
    y
}
