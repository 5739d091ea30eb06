//! Products of weights that are small integers: the sum that [`crate::plan::Op::MatVec`] defines,
//! in 16-bit multiply-adds. Integers add up exactly in any order, so only what follows them, a few
//! float32 operations for each sub-block, has an order to keep; `definition.rs` says the same
//! in plain words, and the tests compare the bits.

use std::ops::Range;

use super::fixed::{Fixed, Pair, PAIRS};
use super::simd::{Group, Isa, LANES};
use crate::plan::parts::parts;
use crate::quant::{Integers, Offsets, Superblock, COLUMNS, OFFSET_SUBS, SUBS, SUM_BITS};

/// What a unit of the upper parts of the sums of x stands for in X.
const UPPER: f32 = (1 << SUM_BITS) as f32;

/// Superblocks of a row of `n_in`.
pub fn superblocks(n_in: usize) -> usize {
    n_in.div_ceil(COLUMNS)
}

/// Bytes of a row of `n_in`.
fn row_bytes<B: Integers>(n_in: usize) -> usize {
    n_in / B::ELEMS * B::BYTES
}

/// `out[i][c] = rows[i] · x[c]`, `x[c]` of `n_in` columns: lanes are columns, and each superblock
/// is taken apart once for a few rows of x.
#[inline(always)]
pub fn matvec<I: Isa, B: Integers, const C: usize>(
    rows: &[u8],
    n_in: usize,
    x: [&[Fixed]; C],
    out: &mut [[f32; C]],
) {
    let bytes = Superblock::bytes::<B>();
    let mut w = Superblock::ZERO;
    for (row, out) in rows.chunks_exact(row_bytes::<B>(n_in)).zip(out) {
        for (i, run) in parts(superblocks(n_in)).enumerate() {
            let mut y = [0.0; C];
            let blocks = row[run.start * bytes..].chunks(bytes);
            for (s, blocks) in run.zip(blocks) {
                w.take::<I, B>(blocks);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = superblock::<I, B>(&w, &x[s], *y);
                }
            }
            for (out, y) in out.iter_mut().zip(y) {
                *out = if i == 0 { y } else { *out + y };
            }
        }
    }
}

/// `y` and one superblock.
#[inline(always)]
fn superblock<I: Isa, B: Integers>(w: &Superblock, x: &Fixed, y: f32) -> f32 {
    let sums = I::sub_sums(&w.q, &x.limbs, B::SUB);
    let mut p = [0.0; 4];
    if let Offsets::Shared { .. } = B::OFFSETS {
        let (mut upper, mut lower) = (0i32, 0i32);
        for i in 0..OFFSET_SUBS {
            let m = i32::from(w.mins[i]);
            upper = upper.wrapping_add(m.wrapping_mul(i32::from(x.upper[i])));
            lower = lower.wrapping_add(m.wrapping_mul(i32::from(x.lower[i])));
        }
        p[0] = -(w.offsets[0] * (upper as f32).mul_add(UPPER, lower as f32));
    }
    // Loops, not closures: a closure that is not inlined is compiled without the instruction set.
    let (scales, sums) = (w.scales.as_chunks().0, sums.as_chunks().0);
    let (offsets, x_sums) = (w.offsets.as_chunks().0, x.sums.as_chunks().0);
    for i in 0..COLUMNS / B::SUB / 4 {
        p = I::fma_4(scales[i], sums[i], p);
        if B::OFFSETS == Offsets::Own {
            p = I::fma_4(offsets[i], x_sums[i], p);
        }
    }
    let mut y = y;
    for p in p {
        y = x.unit.mul_add(p, y);
    }
    y
}

/// A superblock of as many rows as there are lanes, side by side.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Panel {
    /// Pair `i` of the even columns of each row, then of the odd ones, in the order of
    /// [`Fixed::limbs`].
    pairs: [[[Pair; LANES]; 2]; PAIRS],
    /// `d s` of each sub-block.
    scales: [Group; SUBS],
    /// What [`Superblock::offsets`] holds.
    offsets: [Group; OFFSET_SUBS],
    /// The minimums of two sub-blocks each.
    mins: [[Pair; LANES]; OFFSET_SUBS / 2],
}

impl Panel {
    /// No weights.
    pub const ZERO: Self = Self {
        pairs: [[[[0; 2]; LANES]; 2]; PAIRS],
        scales: [[0.0; LANES]; SUBS],
        offsets: [[0.0; LANES]; OFFSET_SUBS],
        mins: [[[0; 2]; LANES]; OFFSET_SUBS / 2],
    };

    /// Takes superblock `s` of up to [`LANES`] rows of `n_in`; lanes without a row keep what was
    /// there.
    #[inline(always)]
    pub fn take<I: Isa, B: Integers>(&mut self, rows: &[u8], n_in: usize, s: usize) {
        /// Rows that are interleaved at once.
        const ROWS: usize = 8;
        let bytes = Superblock::bytes::<B>();
        let mut w = [const { Superblock::ZERO }; ROWS];
        let row_bytes = row_bytes::<B>(n_in);
        for (i, rows) in rows.chunks(ROWS * row_bytes).enumerate() {
            let first = i * ROWS;
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                let w = &mut w[r];
                w.take::<I, B>(row[s * bytes..].chunks(bytes).next().unwrap_or_default());
                for (out, scale) in self.scales.iter_mut().zip(w.scales) {
                    out[first + r] = scale;
                }
                if B::OFFSETS != Offsets::None {
                    for (out, offset) in self.offsets.iter_mut().zip(w.offsets) {
                        out[first + r] = offset;
                    }
                    for (out, mins) in self.mins.iter_mut().zip(w.mins.as_chunks().0) {
                        out[first + r] = *mins;
                    }
                }
            }
            I::interleave(w.each_ref().map(|w| &w.q), first, &mut self.pairs);
        }
    }
}

/// What the sum of a panel needs to know about its type.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Columns of a sub-block.
    sub: usize,
    offsets: Offsets,
}

impl Shape {
    pub fn of<B: Integers>() -> Self {
        Self {
            sub: B::SUB,
            offsets: B::OFFSETS,
        }
    }
}

/// Adds one part of the rows' sums to `totals`, or makes it their first: `panels` are its
/// superblocks, `x` the same ones of `C` rows of x. Lanes are rows of weights.
#[inline(always)]
pub fn tile<I: Isa, const C: usize>(
    shape: Shape,
    panels: &[Panel],
    x: &[[Fixed; C]],
    first: bool,
    totals: &mut [Group; C],
) {
    for strip in 0..I::STRIPS {
        let mut y = [I::splat(0.0); C];
        for (w, x) in panels.iter().zip(x) {
            add_superblock::<I, C>(shape, w, x, strip, &mut y);
        }
        for (total, y) in totals.iter_mut().zip(y) {
            let sum = if first {
                y
            } else {
                I::add(I::load(total, strip), y)
            };
            I::store(sum, total, strip);
        }
    }
}

#[inline(always)]
fn add_superblock<I: Isa, const C: usize>(
    shape: Shape,
    w: &Panel,
    x: &[Fixed; C],
    strip: usize,
    y: &mut [I::Vector; C],
) {
    let subs = COLUMNS / shape.sub;
    for t in 0..4 {
        let mut p = [I::splat(0.0); C];
        if let (0, Offsets::Shared { .. }) = (t, shape.offsets) {
            let unit = I::load(&w.offsets[0], strip);
            for (p, x) in p.iter_mut().zip(x) {
                *p = I::negated_product(unit, minimum::<I>(w, x, strip));
            }
        }
        for sub in (t..subs).step_by(4) {
            let pairs = sub * shape.sub / 4..(sub + 1) * shape.sub / 4;
            let sums = sub_block::<I, C>(w, x, strip, pairs);
            let scale = I::load(&w.scales[sub % SUBS], strip);
            for (p, sum) in p.iter_mut().zip(sums) {
                *p = I::fma(scale, sum, *p);
            }
            if shape.offsets == Offsets::Own {
                let offset = I::load(&w.offsets[sub % OFFSET_SUBS], strip);
                for (p, x) in p.iter_mut().zip(x) {
                    *p = I::fma(offset, I::splat(x.sums[sub % OFFSET_SUBS]), *p);
                }
            }
        }
        for ((y, p), x) in y.iter_mut().zip(p).zip(x) {
            *y = I::fma(I::splat(x.unit), p, *y);
        }
    }
}

/// The sums of a sub-block, its integers rounded once: pairs `pairs` of its even and odd columns.
#[inline(always)]
fn sub_block<I: Isa, const C: usize>(
    w: &Panel,
    x: &[Fixed; C],
    strip: usize,
    pairs: Range<usize>,
) -> [I::Vector; C] {
    let mut hi = [I::no_ints(); C];
    let mut lo = [I::no_ints(); C];
    for i in pairs {
        // A number that the compiler knows to be in bounds.
        let i = i % PAIRS;
        for odd in 0..2 {
            let w = I::pairs(&w.pairs[i][odd], strip);
            for ((hi, lo), x) in hi.iter_mut().zip(&mut lo).zip(x) {
                *hi = I::dot(w, I::pair(x.limbs[odd][i]), *hi);
                *lo = I::dot(w, I::pair(x.limbs[2 + odd][i]), *lo);
            }
        }
    }
    let mut sums = [I::splat(0.0); C];
    for ((sum, hi), lo) in sums.iter_mut().zip(hi).zip(lo) {
        *sum = I::fma(I::floats(hi), I::splat(4096.0), I::floats(lo));
    }
    sums
}

/// The sum of minimums times sums of x, rounded once.
#[inline(always)]
fn minimum<I: Isa>(w: &Panel, x: &Fixed, strip: usize) -> I::Vector {
    let (mut upper, mut lower) = (I::no_ints(), I::no_ints());
    let x = x.upper.as_chunks().0.iter().zip(x.lower.as_chunks().0);
    for (mins, (x_upper, x_lower)) in w.mins.iter().zip(x) {
        let mins = I::pairs(mins, strip);
        upper = I::dot(mins, I::pair(*x_upper), upper);
        lower = I::dot(mins, I::pair(*x_lower), lower);
    }
    I::fma(I::floats(upper), I::splat(UPPER), I::floats(lower))
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::super::product::tests::noise;
    use super::super::simd::{self, Level, Task};
    use super::*;
    use crate::plan::parts::longest_part;
    use crate::quant::{self, Block, QuantType, SumsVisitor};
    use proptest::prelude::*;

    /// `weight` by `x`, rows of `n_in`, in every way: by definition, a few rows of x at a time, and
    /// in tiles.
    struct Ways<'a> {
        weight: &'a [u8],
        x: &'a [Vec<f32>],
        n_in: usize,
    }

    /// `[rows][x]` of one way.
    type Out = Vec<Vec<u32>>;

    impl SumsVisitor for Ways<'_> {
        type Out = Option<(Out, Vec<(String, Out)>)>;

        fn integers<B: Integers>(self) -> Self::Out {
            let rows = self.weight.chunks_exact(row_bytes::<B>(self.n_in));
            let wanted = rows
                .map(|row| {
                    let product = |x: &Vec<f32>| definition::product::<B>(row, x).to_bits();
                    self.x.iter().map(product).collect()
                })
                .collect();
            let mut found = Vec::new();
            for level in Level::all() {
                let each = (0..self.x.len()).map(|c| simd::run(level, Few::<B>::new(&self, c)));
                found.push((format!("{}, one", level.name()), transposed(each)));
                let tiles = self.x.chunks(3).flat_map(|x| {
                    let tile = Tiled::<B>::new(&self, x);
                    simd::run(level, tile)
                });
                found.push((format!("{}, tiles", level.name()), transposed(tiles)));
            }
            Some((wanted, found))
        }

        fn floats<B: Block>(self) -> Self::Out {
            None
        }
    }

    fn transposed(columns: impl Iterator<Item = Vec<u32>>) -> Out {
        let columns: Vec<_> = columns.collect();
        (0..columns[0].len())
            .map(|r| columns.iter().map(|c| c[r]).collect())
            .collect()
    }

    fn fixed(x: &[f32]) -> Vec<Fixed> {
        let set = |x: &[f32]| {
            let mut fixed = Fixed::ZERO;
            assert!(fixed.set(x));
            fixed
        };
        x.chunks(COLUMNS).map(set).collect()
    }

    /// All rows with row `c` of x and its two neighbours.
    struct Few<'a, B> {
        weight: &'a [u8],
        n_in: usize,
        x: [Vec<Fixed>; 3],
        block: std::marker::PhantomData<B>,
    }

    impl<'a, B> Few<'a, B> {
        fn new(ways: &Ways<'a>, c: usize) -> Self {
            let x = |i: usize| fixed(&ways.x[(c + i) % ways.x.len()]);
            Self {
                weight: ways.weight,
                n_in: ways.n_in,
                x: [x(0), x(1), x(2)],
                block: std::marker::PhantomData,
            }
        }
    }

    impl<B: Integers> Task for Few<'_, B> {
        type Out = Vec<u32>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<u32> {
            let rows = self.weight.len() / row_bytes::<B>(self.n_in);
            let (mut three, mut one) = (vec![[0.0; 3]; rows], vec![[0.0; 1]; rows]);
            let [a, b, c] = &self.x;
            matvec::<I, B, 3>(self.weight, self.n_in, [a, b, c], &mut three);
            matvec::<I, B, 1>(self.weight, self.n_in, [a], &mut one);
            for (three, one) in three.iter().zip(&one) {
                assert_eq!(three[0].to_bits(), one[0].to_bits());
            }
            one.iter().map(|y| y[0].to_bits()).collect()
        }
    }

    /// All rows, [`LANES`] at a time, with up to three rows of x.
    struct Tiled<'a, B> {
        weight: &'a [u8],
        n_in: usize,
        x: Vec<[Fixed; 3]>,
        wanted: usize,
        block: std::marker::PhantomData<B>,
    }

    impl<'a, B> Tiled<'a, B> {
        fn new(ways: &Ways<'a>, x: &[Vec<f32>]) -> Self {
            let rows: Vec<_> = x.iter().map(|x| fixed(x)).collect();
            let at = |s: usize| std::array::from_fn(|c| rows[c % rows.len()][s].clone());
            Self {
                weight: ways.weight,
                n_in: ways.n_in,
                x: (0..superblocks(ways.n_in)).map(at).collect(),
                wanted: x.len(),
                block: std::marker::PhantomData,
            }
        }
    }

    impl<B: Integers> Task for Tiled<'_, B> {
        type Out = Vec<Vec<u32>>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<Vec<u32>> {
            let mut out = vec![Vec::new(); self.wanted];
            let n = superblocks(self.n_in);
            let mut panels = vec![Panel::ZERO; longest_part(n)];
            for rows in self.weight.chunks(LANES * row_bytes::<B>(self.n_in)) {
                let mut totals = [[0.0; LANES]; 3];
                for (i, part) in parts(n).enumerate() {
                    for (panel, s) in panels.iter_mut().zip(part.clone()) {
                        panel.take::<I, B>(rows, self.n_in, s);
                    }
                    let panels = &panels[..part.len()];
                    tile::<I, 3>(Shape::of::<B>(), panels, &self.x[part], i == 0, &mut totals);
                }
                let n_rows = rows.len() / row_bytes::<B>(self.n_in);
                for (out, totals) in out.iter_mut().zip(&totals) {
                    out.extend(totals[..n_rows].iter().map(|y| y.to_bits()));
                }
            }
            out
        }
    }

    /// Numbers of one scale, of all scales, with outliers, tiny ones, none.
    fn values(n: usize, kind: u32, seed: u32) -> Vec<f32> {
        let mut next = noise(seed);
        let value = |_| match kind {
            0 => next(),
            1 => next() * (next() * 80.0).exp2(),
            2 => next() * if next() > 0.98 { 1000.0 } else { 1.0 },
            3 => next() * 1e-38,
            4 => next() * 6e35,
            _ => 0.0,
        };
        (0..n).map(value).collect()
    }

    /// Blocks of any bits but for scales that are no finite numbers.
    fn blocks(ty: &QuantType, n: usize, seed: u32) -> Vec<u8> {
        let Some(quantize) = ty.quantize else {
            unreachable!("every type has one")
        };
        let mut bytes = vec![0; ty.row_bytes(n).unwrap_or(0)];
        quantize(&values(n, seed % 3, seed), &mut bytes);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Every type, instruction set and way gives the bits of the definition.
        #[test]
        fn sums_are_those_of_the_definition(
            blocks_in_row in 1usize..40,
            rows in 1usize..40,
            n_x in 1usize..5,
            kind in 0u32..6,
            seed: u32,
        ) {
            for ty in quant::TYPES {
                let most = if ty.block_elems == COLUMNS { 12 } else { 40 };
                let n_in = (blocks_in_row % most + 1) * ty.block_elems;
                let weight: Vec<u8> = (0..rows as u32)
                    .flat_map(|r| blocks(ty, n_in, seed ^ r))
                    .collect();
                let x: Vec<_> = (0..n_x as u32)
                    .map(|c| values(n_in, (kind + c) % 6, !seed ^ c))
                    .collect();
                let ways = Ways { weight: &weight, x: &x, n_in };
                let Some((wanted, found)) = quant::dispatch_sums(ty, ways) else {
                    prop_assert!(!ty.integers);
                    continue;
                };
                for (way, found) in found {
                    prop_assert_eq!(&found, &wanted, "{:?}, {}", ty, way);
                }
            }
        }
    }

    /// `d s q + offsets` as [`Block::expand`] gives the weights.
    struct Apart<'a>(&'a [u8]);

    impl SumsVisitor for Apart<'_> {
        type Out = Option<Vec<f64>>;

        fn integers<B: Integers>(self) -> Self::Out {
            let mut w = Superblock::ZERO;
            w.take::<quant::Plain, B>(self.0);
            let weight = |(i, q): (usize, &i8)| {
                let sub = i / B::SUB;
                let scaled = f64::from(w.scales[sub]) * f64::from(*q);
                scaled
                    + match B::OFFSETS {
                        Offsets::None => 0.0,
                        Offsets::Shared { .. } => -f64::from(w.offsets[0]) * f64::from(w.mins[sub]),
                        Offsets::Own => f64::from(w.offsets[sub]),
                    }
            };
            Some(w.q.iter().enumerate().map(weight).collect())
        }

        fn floats<B: Block>(self) -> Self::Out {
            None
        }
    }

    #[test]
    fn integers_and_scales_are_the_weights() {
        for ty in quant::TYPES.iter().filter(|ty| ty.integers) {
            for seed in 0..20 {
                let bytes = blocks(ty, COLUMNS, seed);
                let mut wanted = [0.0; COLUMNS];
                (ty.dequantize)(&bytes, &mut wanted);
                let found = quant::dispatch_sums(ty, Apart(&bytes));
                let found: Vec<f32> = found.iter().flatten().map(|w| *w as f32).collect();
                assert_eq!(found, wanted, "{ty:?}");
            }
        }
    }

    #[test]
    fn what_has_no_grid_is_found() {
        let most = f32::from_bits((246 << 23) - 1);
        for bad in [
            f32::NAN,
            f32::INFINITY,
            -f32::INFINITY,
            2f32.powi(119),
            f32::MAX,
        ] {
            let mut x = vec![1.0; 96];
            assert!(Fixed::ZERO.clone().set(&x));
            x[95] = bad;
            assert!(!Fixed::ZERO.clone().set(&x), "{bad}");
            x[95] = -most;
            assert!(Fixed::ZERO.clone().set(&x));
        }
    }
}
