//! Products of weights that are small integers: the sum that [`crate::plan::Op::MatVec`] defines,
//! in multiply-adds of 16-bit integers or bytes. Integers add up exactly in any order, so only what
//! follows them, a few float32 operations for each sub-block, has an order to keep;
//! `definition.rs` says the same in plain words, and the tests compare the bits.
//!
//! Lanes are rows of weights. Rows are taken apart, as many as there are lanes, and put side by
//! side: a sum has no lanes to be folded, and what follows it is vectors too. That pays even where
//! each weight is used once.

use std::ops::Range;

use super::fixed::{Fixed, QUADS};
use super::simd::{Group, Isa, Word, LANES};
use crate::quant::{Integers, Offsets, Superblock, BLOCKS, COLUMNS, OFFSET_SUBS, SUBS, SUM_BITS};

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

/// A superblock of as many rows as there are lanes, side by side.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Panel {
    /// Four columns a word.
    quads: [[Word; LANES]; QUADS],
    /// `d s` of each sub-block.
    scales: [Group; SUBS],
    /// [`Offsets::Own`]: each sub-block's; [`Offsets::Shared`]: the first is `dmin`.
    offsets: [Group; OFFSET_SUBS],
    /// The minimums of two sub-blocks a word.
    mins: [[Word; LANES]; OFFSET_SUBS / 2],
    /// Sub-blocks that there are; the last superblock of a row may miss some.
    subs: usize,
}

/// The rows of a panel, taken apart one by one.
pub type Apart = [Superblock; LANES];

/// Where the parts of a [`Superblock`] are among its pieces.
mod piece {
    use super::*;

    pub const D: usize = COLUMNS / 16;
    pub const M: usize = D + 2 * BLOCKS / 16;
    pub const MINS: usize = M + 2 * BLOCKS / 16;
    pub const STEPS: usize = MINS + 2 * OFFSET_SUBS / 16;
}

impl Panel {
    /// No weights.
    pub const ZERO: Self = Self {
        quads: [[[0; 4]; LANES]; QUADS],
        scales: [[0.0; LANES]; SUBS],
        offsets: [[0.0; LANES]; OFFSET_SUBS],
        mins: [[[0; 4]; LANES]; OFFSET_SUBS / 2],
        subs: 0,
    };

    /// Takes superblock `s` of up to [`LANES`] rows of `n_in`, by way of `apart`; lanes without a
    /// row hold what no one reads. The same of the `next` rows is asked for: row by row is no order
    /// that a processor foresees.
    #[inline(always)]
    pub fn take<I: Isa, B: Integers>(
        &mut self,
        apart: &mut Apart,
        rows: &[u8],
        ahead: &[u8],
        n_in: usize,
        s: usize,
    ) {
        let bytes = Superblock::bytes::<B>();
        let row_bytes = row_bytes::<B>(n_in);
        let blocks = s * bytes..row_bytes.min((s + 1) * bytes);
        self.subs = blocks.len() / B::BYTES * (B::ELEMS / B::SUB);
        let mut ahead = ahead.chunks(bytes);
        for (row, apart) in rows.chunks_exact(row_bytes).zip(&mut *apart) {
            apart.take::<B>(&row[blocks.clone()]);
            I::prefetch(ahead.next().unwrap_or_default());
        }
        for (i, quads) in self.quads.as_chunks_mut().0.iter_mut().enumerate() {
            I::interleave::<true>(apart, i, quads);
        }
        self.take_scales::<I, B>(apart);
        if B::OFFSETS != Offsets::None {
            self.take_offsets::<I, B>(apart);
        }
    }

    #[inline(always)]
    fn take_scales<I: Isa, B: Integers>(&mut self, apart: &Apart) {
        let (mut d, mut steps) = ([[[0; 4]; LANES]; 4], [[[0; 4]; LANES]; 4]);
        I::interleave::<false>(apart, piece::D, &mut d);
        if B::HAS_STEPS {
            I::interleave::<false>(apart, piece::STEPS, &mut steps);
        }
        for strip in 0..I::STRIPS {
            for j in 0..COLUMNS / B::SUB {
                let mut scale = half::<I, B>(&d, strip, j);
                if B::HAS_STEPS {
                    let steps = I::words(&steps[j / 4], strip);
                    scale = I::multiply(scale, I::bytes(steps, j % 4));
                }
                I::store(scale, &mut self.scales[j], strip);
            }
        }
    }

    #[inline(always)]
    fn take_offsets<I: Isa, B: Integers>(&mut self, apart: &Apart) {
        let mut m = [[[0; 4]; LANES]; 4];
        I::interleave::<false>(apart, piece::M, &mut m);
        let units = if B::OFFSETS.is_shared() {
            I::interleave::<false>(apart, piece::MINS, &mut self.mins);
            1
        } else {
            OFFSET_SUBS
        };
        for strip in 0..I::STRIPS {
            for j in 0..units {
                I::store(half::<I, B>(&m, strip, j), &mut self.offsets[j], strip);
            }
        }
    }
}

/// The half of sub-block `j`.
#[inline(always)]
fn half<I: Isa, B: Integers>(halves: &[[Word; LANES]; 4], strip: usize, j: usize) -> I::Vector {
    let block = Superblock::block_of::<B>(j);
    I::halves(I::words(&halves[block / 2], strip), block % 2 == 1)
}

/// What the sum of a panel needs to know about its type.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Columns of a sub-block: the `SUB` of [`tile`].
    pub sub: usize,
    offsets: Offsets,
    is_narrow: bool,
}

impl Shape {
    pub fn of<B: Integers>() -> Self {
        Self {
            sub: B::SUB,
            offsets: B::OFFSETS,
            is_narrow: B::IS_NARROW,
        }
    }
}

/// Adds one part of the rows' sums to `totals`, or makes it their first: `panels` are its
/// superblocks, `x` the same ones of `C` rows of x.
#[inline(always)]
pub fn tile<I: Isa, const SUB: usize, const C: usize>(
    shape: Shape,
    panels: &[Panel],
    x: &[[Fixed; C]],
    is_first: bool,
    totals: &mut [Group; C],
) {
    let mut y = [[0.0; LANES]; C];
    for (w, x) in panels.iter().zip(x) {
        add_superblock::<I, SUB, C>(shape, w, x, &mut y);
    }
    for (total, y) in totals.iter_mut().zip(&y) {
        for strip in 0..I::STRIPS {
            let mut sum = I::load(y, strip);
            if !is_first {
                sum = I::add(I::load(total, strip), sum);
            }
            I::store(sum, total, strip);
        }
    }
}

/// `y` and one superblock.
#[inline(always)]
fn add_superblock<I: Isa, const SUB: usize, const C: usize>(
    shape: Shape,
    w: &Panel,
    x: &[Fixed; C],
    y: &mut [Group; C],
) {
    for strip in 0..I::STRIPS {
        for t in 0..4 {
            let mut p = [I::splat(0.0); C];
            if t == 0 && shape.offsets.is_shared() {
                let unit = I::load(&w.offsets[0], strip);
                for (p, x) in p.iter_mut().zip(x) {
                    *p = I::negated_product(unit, minimum::<I>(w, x, strip));
                }
            }
            for sub in (t..w.subs).step_by(4) {
                let sums = sub_block::<I, SUB, C>(w, x, strip, sub, shape.is_narrow);
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
                let sum = I::fma(I::splat(x.unit), p, I::load(y, strip));
                I::store(sum, y, strip);
            }
        }
    }
}

/// The sums of sub-block `sub`, its integers rounded once.
#[inline(always)]
fn sub_block<I: Isa, const SUB: usize, const C: usize>(
    w: &Panel,
    x: &[Fixed; C],
    strip: usize,
    sub: usize,
    is_narrow: bool,
) -> [I::Vector; C] {
    // Numbers that the compiler knows to be in bounds.
    let sub = sub % (COLUMNS / SUB);
    let quads = sub * SUB / 4..(sub + 1) * SUB / 4;
    let starts = if SUB == COLUMNS / SUBS { 0 } else { SUBS };
    let mut sums = [I::start(&[0; 3]); C];
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum = I::start(&x.limbs.starts[starts + sub]);
    }
    for i in quads.clone() {
        let w = I::words(&w.quads[i], strip);
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = I::dot(w, &x.limbs.words[i], *sum);
        }
    }
    let mut rounded = [I::splat(0.0); C];
    for ((rounded, sum), x) in rounded.iter_mut().zip(sums).zip(x) {
        let mut sum = sum;
        if x.limbs.has_carry {
            sum = add_carry::<I>(w, x, strip, quads.clone(), sum);
        }
        *rounded = I::rounded(sum, is_narrow);
    }
    rounded
}

/// `sum` and the products of the carry.
#[inline(always)]
fn add_carry<I: Isa>(
    w: &Panel,
    x: &Fixed,
    strip: usize,
    quads: Range<usize>,
    mut sum: I::Sums,
) -> I::Sums {
    for i in quads {
        sum = I::dot_carry(I::words(&w.quads[i], strip), &x.limbs.words[i], sum);
    }
    sum
}

/// The sum of minimums times sums of x, rounded once.
#[inline(always)]
fn minimum<I: Isa>(w: &Panel, x: &Fixed, strip: usize) -> I::Vector {
    let (mut upper, mut lower) = (I::no_words(), I::no_words());
    let words = |sums: &[i16; OFFSET_SUBS]| -> [Word; OFFSET_SUBS / 2] { bytemuck::cast(*sums) };
    let x = words(&x.upper).into_iter().zip(words(&x.lower));
    for (mins, (x_upper, x_lower)) in w.mins.iter().zip(x) {
        let mins = I::words(mins, strip);
        upper = I::dot_pairs(mins, I::word(x_upper), upper);
        lower = I::dot_pairs(mins, I::word(x_lower), lower);
    }
    I::fma(I::floats(upper), I::splat(UPPER), I::floats(lower))
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::super::product::tests::noise;
    use super::super::simd::{self, Level, Plain, Task};
    use super::*;
    use crate::plan::parts::{longest_part, parts};
    use crate::quant::{self, Block, QuantType, SumsVisitor};
    use proptest::prelude::*;

    /// `weight` by `x`, rows of `n_in`, in every way: by definition, a row of x at a time, and in
    /// tiles.
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
                let each = self.x.chunks(1).flat_map(|x| {
                    let tile = Tiled::<B, 1>::new(&self, x);
                    simd::run(level, tile)
                });
                found.push((format!("{}, one by one", level.name()), transposed(each)));
                let tiles = self.x.chunks(3).flat_map(|x| {
                    let tile = Tiled::<B, 3>::new(&self, x);
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

    /// `[superblocks][C]` of rows of x.
    #[inline(always)]
    fn fixed<I: Isa, const C: usize>(x: [&[f32]; C]) -> Vec<[Fixed; C]> {
        let mut out = vec![[const { Fixed::ZERO }; C]; superblocks(x[0].len())];
        for (c, x) in x.into_iter().enumerate() {
            for (out, x) in out.iter_mut().zip(x.chunks(COLUMNS)) {
                assert!(out[c].set::<I>(x));
            }
        }
        out
    }

    /// All rows, [`LANES`] at a time, with up to `C` rows of x.
    struct Tiled<'a, B, const C: usize> {
        weight: &'a [u8],
        n_in: usize,
        x: [&'a [f32]; C],
        wanted: usize,
        block: std::marker::PhantomData<B>,
    }

    impl<'a, B, const C: usize> Tiled<'a, B, C> {
        fn new(ways: &Ways<'a>, x: &'a [Vec<f32>]) -> Self {
            Self {
                weight: ways.weight,
                n_in: ways.n_in,
                x: std::array::from_fn(|c| x[c % x.len()].as_slice()),
                wanted: x.len(),
                block: std::marker::PhantomData,
            }
        }
    }

    impl<B: Integers, const C: usize> Task for Tiled<'_, B, C> {
        type Out = Vec<Vec<u32>>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<Vec<u32>> {
            let mut out = vec![Vec::new(); self.wanted];
            let n = superblocks(self.n_in);
            let (shape, x) = (Shape::of::<B>(), fixed::<I, C>(self.x));
            let mut apart = [Superblock::ZERO; LANES];
            let mut panels = vec![Panel::ZERO; longest_part(n)];
            for rows in self.weight.chunks(LANES * row_bytes::<B>(self.n_in)) {
                let mut totals = [[0.0; LANES]; C];
                for (i, part) in parts(n).enumerate() {
                    for (panel, s) in panels.iter_mut().zip(part.clone()) {
                        panel.take::<I, B>(&mut apart, rows, &[], self.n_in, s);
                    }
                    let (panels, x) = (&panels[..part.len()], &x[part]);
                    match B::SUB {
                        16 => tile::<I, 16, C>(shape, panels, x, i == 0, &mut totals),
                        _ => tile::<I, 32, C>(shape, panels, x, i == 0, &mut totals),
                    }
                }
                let n_rows = rows.len() / row_bytes::<B>(self.n_in);
                for (out, totals) in out.iter_mut().zip(&totals) {
                    out.extend(totals[..n_rows].iter().map(|y| y.to_bits()));
                }
            }
            out
        }
    }

    /// Numbers of one scale, of all scales, with outliers, tiny ones, large ones, ones just below and
    /// near a power of two, where the upper byte of X is full, none.
    fn values(n: usize, kind: u32, seed: u32) -> Vec<f32> {
        let mut next = noise(seed);
        let value = |_| match kind {
            0 => next(),
            1 => next() * (next() * 80.0).exp2(),
            2 => next() * if next() > 0.98 { 1000.0 } else { 1.0 },
            3 => next() * 1e-38,
            4 => next() * 6e35,
            5 => 2f32.next_down().copysign(next()),
            6 => 1.0 - next().abs() / 64.0,
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
            kind in 0u32..8,
            seed: u32,
        ) {
            for ty in quant::TYPES {
                let most = if ty.block_elems == COLUMNS { 12 } else { 40 };
                let n_in = (blocks_in_row % most + 1) * ty.block_elems;
                let weight: Vec<u8> = (0..rows as u32)
                    .flat_map(|r| blocks(ty, n_in, seed ^ r))
                    .collect();
                let x: Vec<_> = (0..n_x as u32)
                    .map(|c| values(n_in, (kind + c) % 8, !seed ^ c))
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
            w.take::<B>(self.0);
            let weight = |(i, q): (usize, &i8)| {
                let sub = i / B::SUB;
                let scaled = f64::from(definition::scale::<B>(&w, sub)) * f64::from(*q);
                let offset = |j| f64::from(definition::offset::<B>(&w, j));
                scaled
                    + match B::OFFSETS {
                        Offsets::None => 0.0,
                        Offsets::Shared { .. } => -offset(0) * f64::from(w.mins[sub]),
                        Offsets::Own => offset(sub),
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
            assert!(Fixed::ZERO.clone().set::<Plain>(&x));
            x[95] = bad;
            assert!(!Fixed::ZERO.clone().set::<Plain>(&x), "{bad}");
            x[95] = -most;
            assert!(Fixed::ZERO.clone().set::<Plain>(&x));
        }
    }
}
