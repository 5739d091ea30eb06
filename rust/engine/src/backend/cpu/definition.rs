//! The sum of [`crate::plan::Op::MatVec`] over weights that are small integers, word for word: what
//! every faster way to compute it is tested against.

use crate::plan::parts::parts;
use crate::quant::{
    Arithmetic, Integers, Offsets, Plain, Scale, Sink, BLOCKS, COLUMNS, MINS, SUBS, WORDS,
};

/// The exponent of a float32: `|x| < 2^exponent(x)`.
fn exponent(x: f32) -> i32 {
    (x.abs().to_bits() >> 23) as i32 - 126
}

/// `x` rounded to a multiple of `2^unit`, ties to even.
fn rounded(x: f64, unit: i32) -> f64 {
    (x * f64::from(-unit).exp2()).round_ties_even() * f64::from(unit).exp2()
}

/// H of each column in 2^-20, and the exponent `e`.
fn block_fixed_point(x: &[f32]) -> (Vec<i64>, i32) {
    let exponent_of = |block: &[f32]| {
        let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        exponent(largest).clamp(24 - 126, 243 - 126)
    };
    let e = x.chunks(32).map(exponent_of).max().unwrap_or_default();
    let integers = x.chunks(32).flat_map(|block| {
        let e_b = exponent_of(block);
        block.iter().map(move |x| {
            let z = rounded(f64::from(*x) * f64::from(14 - e_b).exp2(), 0);
            // The unit of 11 significant bits, as z is below 2^exponent(z).
            let x = rounded(z, (exponent(z as f32) - 11).max(0));
            (x * f64::from(e_b - e + 20).exp2()).round_ties_even() as i64
        })
    });
    (integers.collect(), e)
}

/// `2^-24 M` of the `S_j` and the minimums.
fn minimum(sums: &[f64], mins: &[i64]) -> f64 {
    let largest = sums.iter().fold(0.0f64, |most, s| most.max(s.abs()));
    let e = exponent(largest as f32).max(-2);
    let integers = sums
        .iter()
        .map(|s| rounded(*s, e - 14) * f64::from(14 - e).exp2());
    let sum: i64 = integers.zip(mins).map(|(s, m)| s as i64 * m).sum();
    sum as f64 * f64::from(e - 14 - 24).exp2()
}

/// A superblock of one row.
pub struct Superblock {
    pub q: [i8; COLUMNS],
    pub mins: [i64; SUBS],
    d: [f32; SUBS],
    m: [f32; BLOCKS],
    steps: [i8; SUBS],
    scale: Scale,
}

impl Superblock {
    /// Missing blocks are zeros.
    pub fn new<B: Integers>(blocks: &[u8]) -> Self {
        let mut words = [[0]; WORDS];
        for (word, bytes) in words.as_flattened_mut().iter_mut().zip(blocks.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_le_bytes(four);
        }
        let mut new = Self {
            q: [0; COLUMNS],
            mins: [0; SUBS],
            d: [0.0; SUBS],
            m: [0.0; BLOCKS],
            steps: [1; SUBS],
            scale: B::SCALE,
        };
        B::integers(&words, blocks.len() / B::BYTES, &mut new);
        new
    }

    /// `d s` of sub-block `j`.
    pub fn scale<B: Integers>(&self, j: usize) -> f32 {
        self.d[if B::HAS_STEPS { 0 } else { j }] * B::D_UNIT * f32::from(self.steps[j])
    }

    /// The offset of sub-block `j`, or what all share.
    pub fn offset<B: Integers>(&self, j: usize) -> f32 {
        self.m[j * B::SUB / B::ELEMS]
    }
}

impl Sink<[u32; 1]> for Superblock {
    fn q(&mut self, i: usize, [q]: [u32; 1]) {
        self.q[4 * i..4 * i + 4].copy_from_slice(&q.to_le_bytes().map(|q| q as i8));
    }

    fn d(&mut self, i: usize, [d]: [u32; 1]) {
        self.d[i] = match self.scale {
            Scale::Half => Plain::half(d as u16),
            Scale::Power => (f64::from(d as u8) - 128.0).exp2() as f32,
            Scale::Float8 => match (d as u8, d >> 3 & 15, d & 7) {
                (127, _, _) => 0.0,
                (_, 0, mantissa) => mantissa as f32 / 1024.0,
                (_, e, mantissa) => (8 + mantissa) as f32 * (e as f32 - 11.0).exp2(),
            },
        };
    }

    fn m(&mut self, i: usize, [m]: [u32; 1]) {
        self.m[i] = Plain::half(m as u16);
    }

    fn steps(&mut self, i: usize, [s]: [u32; 1]) {
        self.steps[4 * i..4 * i + 4].copy_from_slice(&s.to_le_bytes().map(|s| s as i8));
    }

    fn mins(&mut self, i: usize, [m]: [u32; 1]) {
        let [first, second] = MINS[i];
        (self.mins[first], self.mins[second]) = (i64::from(m & 0xffff), i64::from(m >> 16));
    }
}

/// `weight · x`, `weight` one row of blocks.
pub fn product<B: Integers>(row: &[u8], x: &[f32]) -> f32 {
    let superblocks: Vec<_> = row.chunks(B::SUPERBLOCK).zip(x.chunks(COLUMNS)).collect();
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

fn add_superblock<B: Integers>(blocks: &[u8], x: &[f32], y: f32) -> f32 {
    let w = Superblock::new::<B>(blocks);
    let (mut h, e) = block_fixed_point(x);
    h.resize(COLUMNS, 0);
    let unit = f64::from(-20).exp2();
    let subs = || w.q.chunks(B::SUB).zip(h.chunks(B::SUB));
    let t = subs().map(|(q, h)| q.iter().zip(h).map(|(q, h)| i64::from(*q) * h).sum::<i64>());
    let sums: Vec<f64> = subs()
        .map(|(_, h)| h.iter().sum::<i64>() as f64 * unit)
        .collect();
    let small = |x: f64| (x * f64::from(-24).exp2()) as f32;

    let mut p = match B::OFFSETS {
        Offsets::Shared { .. } => -(w.offset::<B>(0) * minimum(&sums, &w.mins) as f32),
        _ => 0.0,
    };
    for (j, t) in t.enumerate() {
        let t = f64::from(t as f32) * unit;
        p = w.scale::<B>(j).mul_add(small(t), p);
        if B::OFFSETS == Offsets::Own {
            p = w.offset::<B>(j).mul_add(small(sums[j]), p);
        }
    }
    ((e + 10) as f32).exp2().mul_add(p, y)
}
