//! The sum of [`crate::plan::Op::MatVec`] over weights that are small integers, word for word: what
//! every faster way to compute it is tested against.

use crate::plan::parts::parts;
use crate::quant::{
    Arithmetic, Integers, Offsets, Plain, Scale, Sink, BLOCKS, COLUMNS, MINS, SUBS, WIDE_UNIT,
    WORDS,
};

/// `x` as integers, and the exponent `e`.
fn block_fixed_point(x: &[f32]) -> (Vec<i64>, i32) {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let field = (largest.to_bits() >> 23).clamp(24, 245);
    let e = field as i32 - 126;
    let integer = |x: &f32| (f64::from(*x) * f64::from(23 - e).exp2()).round_ties_even() as i64;
    (x.iter().map(integer).collect(), e)
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

fn add_superblock<B: Integers>(blocks: &[u8], x: &[f32], mut y: f32) -> f32 {
    let w = Superblock::new::<B>(blocks);
    let (mut x, e) = block_fixed_point(x);
    x.resize(COLUMNS, 0);
    let q: Vec<i64> = w.q.iter().map(|q| i64::from(*q)).collect();
    let subs = || q.chunks(B::SUB).zip(x.chunks(B::SUB));
    let t: Vec<f32> = subs()
        .map(|(q, x)| q.iter().zip(x).map(|(q, x)| q * x).sum::<i64>() as f32)
        .collect();
    // In what sums count.
    let unit = if B::SCALE.is_wide() { WIDE_UNIT } else { 1.0 };
    let sums: Vec<i64> = subs().map(|(_, x)| x.iter().sum()).collect();

    for chain in 0..4 {
        let mut p = 0.0;
        if let (0, Offsets::Shared { .. }) = (chain, B::OFFSETS) {
            let m = sums.iter().zip(w.mins).map(|(s, m)| s * m);
            p = -(w.offset::<B>(0) * m.sum::<i64>() as f32);
        }
        for j in (chain..t.len()).step_by(4) {
            p = w.scale::<B>(j).mul_add(t[j] / unit, p);
            if B::OFFSETS == Offsets::Own {
                p = w.offset::<B>(j).mul_add(sums[j] as f32, p);
            }
        }
        y = (((e - 23) as f32).exp2() * unit).mul_add(p, y);
    }
    y
}
