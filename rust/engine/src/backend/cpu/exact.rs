//! Products of weights that are small integers: the sum that [`crate::plan::Op::MatVec`] defines,
//! in multiply-adds of 16-bit integers or bytes. Integers add up exactly in any order, so only what
//! follows them, a few float32 operations for each sub-block, has an order to keep;
//! `definition.rs` is the same sum written plainly, and the tests compare the bits.
//!
//! Lanes are rows of weights. Rows are put side by side, as many as there are lanes, and taken apart
//! all at once: a sum has no lanes to be folded, and what follows it is vectors too. That pays even
//! where each weight is used once.

use std::marker::PhantomData;

use super::fixed::{Fixed, SharedSums};
use super::simd::{Group, Isa, Word, LANES, QUADS};
use crate::quant::{
    Integers, Offsets, Scale, Sink, COLUMNS, MIN_WORDS, OFFSET_SUBS, SUBS, WORDS, X_BLOCK,
};

/// Words of four columns that have one unit.
const X_QUADS: usize = X_BLOCK / 4;

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
    mins: [[Word; LANES]; MIN_WORDS],
    /// Number of sub-blocks; the last superblock of a row may miss some.
    subs: usize,
}

impl Panel {
    /// No weights.
    pub const ZERO: Self = Self {
        quads: [[0; LANES]; QUADS],
        scales: [[0.0; LANES]; SUBS],
        offsets: [[0.0; LANES]; OFFSET_SUBS],
        mins: [[0; LANES]; MIN_WORDS],
        subs: 0,
    };

    /// Takes superblock `s` of the first `n` of `rows`, of `n_in` each, by way of `words`; lanes
    /// without a row hold what no one reads. Rows that come later are asked for: one after another
    /// in each of many rows is no order that a processor foresees.
    #[inline(always)]
    pub fn take<I: Isa, B: Integers>(
        &mut self,
        words: &mut [I::Words; WORDS],
        (rows, n): (&[u8], usize),
        n_in: usize,
        s: usize,
    ) {
        const { B::PROOF };
        let (width, row_bytes) = (LANES / I::STRIPS, row_bytes::<B>(n_in));
        let first = s * B::SUPERBLOCK;
        let bytes = B::SUPERBLOCK.min(row_bytes - first);
        let blocks = bytes / B::BYTES;
        self.subs = blocks * (B::ELEMS / B::SUB);
        let later = LANES * (row_bytes + first);
        let mut later = rows[later.min(rows.len())..].chunks(16 * PIECES * width);
        for strip in 0..n.div_ceil(width) {
            let rows = &rows[strip * width * row_bytes..];
            let from = &rows[first..];
            let pieces = &mut words.as_chunks_mut().0[..bytes.div_ceil(16)];
            if (width - 1) * row_bytes + 16 * pieces.len() <= from.len() {
                for (i, pieces) in pieces.chunks_mut(PIECES).enumerate() {
                    I::interleave(&from[16 * PIECES * i..], row_bytes, pieces);
                    I::prefetch(later.next().unwrap_or_default());
                }
            } else {
                // Too few rows, or the last ones: nothing past their end may be read.
                let mut padded = [[0; 4 * WORDS]; LANES];
                for (padded, row) in padded.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                    padded[..bytes].copy_from_slice(&row[first..][..bytes]);
                }
                I::interleave(padded.as_flattened(), 4 * WORDS, pieces);
            }
            let mut place = Place::<I, B> {
                panel: self,
                strip,
                d: I::splat(0.0),
                block: PhantomData,
            };
            B::integers(words, blocks, &mut place);
        }
    }
}

/// Pieces of 16 bytes of each row that are read before more is asked for.
const PIECES: usize = 4;

/// The rows of one vector in a panel.
struct Place<'a, I: Isa, B> {
    panel: &'a mut Panel,
    strip: usize,
    /// Where scales have steps.
    d: I::Vector,
    block: PhantomData<B>,
}

impl<I: Isa, B: Integers> Sink<I::Words> for Place<'_, I, B> {
    #[inline(always)]
    fn q(&mut self, i: usize, q: I::Words) {
        I::store_words(I::weights(q), &mut self.panel.quads[i % QUADS], self.strip);
    }

    #[inline(always)]
    fn d(&mut self, i: usize, d: I::Words) {
        self.d = match B::SCALE {
            Scale::Half => I::halves(d),
            Scale::Power => I::powers(d),
            Scale::Float8 => I::halved_floats8(d),
        };
        if B::D_UNIT != 1.0 {
            self.d = I::multiply(self.d, I::splat(B::D_UNIT));
        }
        if !B::HAS_STEPS {
            I::store(self.d, &mut self.panel.scales[i % SUBS], self.strip);
        }
    }

    #[inline(always)]
    fn m(&mut self, i: usize, m: I::Words) {
        I::store(
            I::halves(m),
            &mut self.panel.offsets[i % OFFSET_SUBS],
            self.strip,
        );
    }

    #[inline(always)]
    fn steps(&mut self, i: usize, s: I::Words) {
        for j in 0..4 {
            let scale = I::multiply(self.d, I::bytes(s, j));
            I::store(
                scale,
                &mut self.panel.scales[(4 * i + j) % SUBS],
                self.strip,
            );
        }
    }

    #[inline(always)]
    fn mins(&mut self, i: usize, m: I::Words) {
        I::store_words(m, &mut self.panel.mins[i % MIN_WORDS], self.strip);
    }
}

/// What the sum of a panel needs to know about its type.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The `N` of [`tile`].
    pub quads: usize,
    offsets: Offsets,
}

impl Shape {
    pub fn of<B: Integers>() -> Self {
        Self {
            quads: B::SUB / 4,
            offsets: B::OFFSETS,
        }
    }
}

/// Adds one part of the rows' sums to `totals`, or makes it their first: `panels` are its
/// superblocks, `x` the same ones of `C` rows of x. Sub-blocks have `N` times four columns.
#[inline(always)]
pub fn tile<I: Isa, const N: usize, const C: usize>(
    shape: Shape,
    panels: &[Panel],
    x: &[[Fixed; C]],
    is_first: bool,
    totals: &mut [Group; C],
) {
    let mut y = [[0.0; LANES]; C];
    for (w, x) in panels.iter().zip(x) {
        for strip in 0..I::STRIPS {
            add_superblock::<I, N, C>(shape, w, x, strip, &mut y);
        }
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

/// `y` and one superblock, in the lanes of vector `strip`.
#[inline(always)]
fn add_superblock<I: Isa, const N: usize, const C: usize>(
    shape: Shape,
    w: &Panel,
    x: &[Fixed; C],
    strip: usize,
    y: &mut [Group; C],
) {
    let mut p = [I::splat(0.0); C];
    if shape.offsets.is_shared() {
        let unit = I::load(&w.offsets[0], strip);
        for (p, x) in p.iter_mut().zip(x) {
            let minimum = if QUADS / N == SUBS {
                minimum::<I, MIN_WORDS>(w, &x.sums_of_16, strip)
            } else {
                minimum::<I, { OFFSET_SUBS / 2 }>(w, &x.sums_of_32, strip)
            };
            *p = I::negated_product(unit, minimum);
        }
    }
    for sub in 0..w.subs {
        // A number that the compiler knows to be in bounds.
        let sub = sub % (QUADS / N);
        let sums = sub_block::<I, N, C>(w, x, strip, sub);
        let scale = I::load(&w.scales[sub], strip);
        for ((p, sum), x) in p.iter_mut().zip(sums).zip(x) {
            let unit = I::splat(x.units[sub * N / X_QUADS]);
            *p = I::fma(scale, I::multiply(I::floats(sum), unit), *p);
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

/// The sums of sub-block `sub`.
#[inline(always)]
fn sub_block<I: Isa, const N: usize, const C: usize>(
    w: &Panel,
    x: &[Fixed; C],
    strip: usize,
    sub: usize,
) -> [I::Words; C] {
    let mut sums: [_; C] = std::array::from_fn(|c| x[c].start::<I>(4 * N, sub));
    let w: &[_; N] = &w.quads.as_chunks().0[sub];
    for (i, w) in w.iter().enumerate() {
        let q = I::words(w, strip);
        for (sum, x) in sums.iter_mut().zip(x) {
            let x: &[_; N] = &x.factors.words.as_chunks().0[sub];
            *sum = I::dot(q, &x[i], *sum);
        }
    }
    sums.map(I::whole)
}

/// The sum of minimums times sums of x, in the 2^24 that a superblock counts in.
#[inline(always)]
fn minimum<I: Isa, const N: usize>(w: &Panel, x: &SharedSums<N>, strip: usize) -> I::Vector {
    let mut sum = I::no_words();
    for (mins, x) in w.mins.iter().zip(&x.sums) {
        sum = I::dot_pairs(I::words(mins, strip), I::word(*x), sum);
    }
    I::multiply(I::floats(sum), I::splat(x.unit))
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
            let mut words = [I::no_words(); WORDS];
            let mut panels = vec![Panel::ZERO; longest_part(n)];
            let row_bytes = row_bytes::<B>(self.n_in);
            let mut rest = self.weight;
            while !rest.is_empty() {
                let n_rows = LANES.min(rest.len() / row_bytes);
                let mut totals = [[0.0; LANES]; C];
                for (i, part) in parts(n).enumerate() {
                    for (panel, s) in panels.iter_mut().zip(part.clone()) {
                        panel.take::<I, B>(&mut words, (rest, n_rows), self.n_in, s);
                    }
                    let (panels, x) = (&panels[..part.len()], &x[part]);
                    match shape.quads {
                        4 => tile::<I, 4, C>(shape, panels, x, i == 0, &mut totals),
                        _ => tile::<I, 8, C>(shape, panels, x, i == 0, &mut totals),
                    }
                }
                rest = &rest[n_rows * row_bytes..];
                for (out, totals) in out.iter_mut().zip(&totals) {
                    out.extend(totals[..n_rows].iter().map(|y| y.to_bits()));
                }
            }
            out
        }
    }

    /// Binades that blocks of x are below others, around those where integers lose places and where
    /// nothing is left of them.
    const BELOW: [i32; 8] = [0, 3, 20, 21, 22, 34, 35, 36];

    /// Kinds of [`values`].
    const KINDS: u32 = 11;

    /// Numbers of one scale, of all scales, with outliers, tiny ones, large ones beside blocks of the
    /// tiniest, ones just below and near a power of two, which integers are rounded up to, blocks far
    /// below others and of nothing, of any numbers and of those between two integers, or between two
    /// of 11 bits, large ones that cancel each other; none.
    fn values(n: usize, kind: u32, seed: u32) -> Vec<f32> {
        let (mut next, mut last) = (noise(seed), 0.0);
        let value = |i: usize| {
            let block = i / X_BLOCK + seed as usize % 64;
            let below = match block % 9 {
                8 => 0.0,
                i => (-BELOW[5 * i % 8] as f32).exp2(),
            };
            match kind {
                0 => next(),
                1 => next() * (next() * 80.0).exp2(),
                2 => next() * if next() > 0.98 { 1000.0 } else { 1.0 },
                3 => next() * 1e-38,
                4 => next() * [1.6e35, 1.6e35, 1e-39][block % 3],
                5 => 2f32.next_down().copysign(next()),
                6 => 1.0 - next().abs() / 64.0,
                7 => next() * below,
                8 => f32::from_bits(next().to_bits() >> 12 << 12 | 1 << 12) * below,
                9 if i % 2 == 1 && below > 1e-3 => -last,
                9 => {
                    last = next() * below;
                    last
                }
                _ => 0.0,
            }
        };
        (0..n).map(value).collect()
    }

    /// Blocks of any bits but for scales that are no finite numbers.
    fn blocks(ty: &QuantType, n: usize, seed: u32) -> Vec<u8> {
        let mut bytes = vec![0; ty.row_bytes(n).unwrap_or(0)];
        if let Some(quantize) = ty.quantize {
            quantize(&values(n, seed % 3, seed), &mut bytes);
            return bytes;
        }
        let (mut next, mut found) = (noise(seed), vec![f32::NAN; ty.block_elems]);
        for block in bytes.chunks_exact_mut(ty.block_bytes) {
            found.fill(f32::NAN);
            while !found.iter().all(|weight| weight.is_finite()) {
                block.fill_with(|| (next() * 256.0) as i32 as u8);
                (ty.dequantize)(block, &mut found);
            }
        }
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
            kind in 0..KINDS,
            seed: u32,
        ) {
            for ty in quant::TYPES {
                let most = if ty.block_elems == COLUMNS { 12 } else { 40 };
                let n_in = (blocks_in_row % most + 1) * ty.block_elems;
                let weight: Vec<u8> = (0..rows as u32)
                    .flat_map(|r| blocks(ty, n_in, seed ^ r))
                    .collect();
                let x: Vec<_> = (0..n_x as u32)
                    .map(|c| values(n_in, (kind + c) % KINDS, !seed ^ c))
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

    #[test]
    fn blocks_of_any_bits_give_the_sums_of_the_definition() {
        for ty in quant::TYPES.iter().filter(|ty| ty.integers) {
            for seed in 0..12 {
                // Scales of every size, of no number too.
                let mut next = noise(seed);
                let n_in = 3 * COLUMNS;
                let bytes = 7 * ty.row_bytes(n_in).unwrap_or(0);
                let weight: Vec<u8> = (0..bytes).map(|_| (next() * 1e6) as i32 as u8).collect();
                let x: Vec<_> = (0..4)
                    .map(|c| values(n_in, (seed + c) % KINDS, c))
                    .collect();
                let ways = Ways {
                    weight: &weight,
                    x: &x,
                    n_in,
                };
                let (wanted, found) = quant::dispatch_sums(ty, ways).unwrap_or_default();
                let canonical = |out: &Out| -> Vec<u32> {
                    let of = |y: &u32| if f32::from_bits(*y).is_nan() { !0 } else { *y };
                    out.iter().flatten().map(of).collect()
                };
                for (way, found) in found {
                    assert_eq!(canonical(&found), canonical(&wanted), "{ty:?}, {way}");
                }
            }
        }
    }

    /// `d s q + offsets` as [`Block::expand`] gives the weights.
    struct Apart<'a>(&'a [u8]);

    impl SumsVisitor for Apart<'_> {
        type Out = Option<Vec<f64>>;

        fn integers<B: Integers>(self) -> Self::Out {
            let w = definition::Superblock::new::<B>(self.0);
            let weight = |(i, q): (usize, &i8)| {
                let sub = i / B::SUB;
                let scaled = f64::from(w.scale::<B>(sub)) * f64::from(*q);
                let offset = |j| f64::from(w.offset::<B>(j));
                scaled
                    + match B::OFFSETS {
                        Offsets::None => 0.0,
                        Offsets::Shared { .. } => -offset(0) * w.mins[sub] as f64,
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
        let most = f32::from_bits((244 << 23) - 1);
        for bad in [
            f32::NAN,
            f32::INFINITY,
            -f32::INFINITY,
            2f32.powi(117),
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
