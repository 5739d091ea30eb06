//! Dot products of floats and float32 activations: of weights that are floats, and of keys, values
//! and scores. (Weights that are small integers: [`super::exact`].)
//!
//! The sum is specified, so every way to compute it gives the same bits: lane `j` of 32 adds the
//! products at `j, j + 32, …` in order, each with one fused multiply-add; then the lanes are folded
//! in halves, 16, 8, 4, 2, 1.

use std::marker::PhantomData;

use super::simd::{self, Group, Isa, Level, Task, LANES};
use crate::quant::{self, Block, QuantType, Visitor};

/// The longest block of any type.
const MAX_BLOCK: usize = 256;

/// Weight rows of a tile.
pub const PANEL: usize = 4;

/// `acc[j] += w[j] * x[j]`.
#[inline(always)]
fn multiply_add<I: Isa>(acc: &mut I::Acc, w: &Group, x: &Group) {
    for (strip, acc) in acc.as_mut().iter_mut().enumerate() {
        *acc = I::fma(I::load(w, strip), I::load(x, strip), *acc);
    }
}

/// Adds the products of the last, partial group of lanes: zeros elsewhere add nothing.
#[inline(always)]
fn multiply_add_tail<I: Isa>(acc: &mut I::Acc, w: &[f32], x: &[f32]) {
    if !w.is_empty() {
        multiply_add::<I>(acc, &padded(w), &padded(x));
    }
}

/// Part of a group, and zeros.
#[inline(always)]
fn padded(part: &[f32]) -> Group {
    let mut group = [0.0; LANES];
    group[..part.len()].copy_from_slice(part);
    group
}

/// Adds the products of equally long slices.
#[inline(always)]
fn accumulate<I: Isa>(acc: &mut I::Acc, w: &[f32], x: &[f32]) {
    let (ws, w_tail) = w.as_chunks::<LANES>();
    let (xs, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in ws.iter().zip(xs) {
        multiply_add::<I>(acc, w, x);
    }
    multiply_add_tail::<I>(acc, w_tail, x_tail);
}

/// `w · x`.
#[inline(always)]
pub fn dot<I: Isa>(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = I::zeros();
    accumulate::<I>(&mut acc, w, x);
    I::fold(acc)
}

/// Takes the weights of a row, some whole groups of lanes at a time; the last part may end with
/// part of a group. (A closure would not do: where it is not inlined, it is compiled without the
/// instruction set.)
trait Sink<I> {
    /// Must be `#[inline(always)]`. `w` are the weights from number `at` on.
    fn take(&mut self, at: usize, w: &[f32]);
}

/// Feeds the weights of a row to `sink`.
///
/// They are expanded into an array of their own, which nothing else can point to: only so does the
/// compiler vectorize each block well.
#[inline(always)]
fn for_weights<I: Isa, B: Block>(row: &[u8], sink: &mut impl Sink<I>) {
    let mut w = [0.0; MAX_BLOCK];
    let (elems, bytes) = if B::ELEMS < LANES {
        // Small blocks: as many as fill the lanes.
        (LANES, LANES / B::ELEMS * B::BYTES)
    } else {
        (B::ELEMS, B::BYTES)
    };
    let mut chunks = row.chunks_exact(bytes);
    let mut at = 0;
    for chunk in &mut chunks {
        expand_blocks::<I, B>(chunk, &mut w[..elems]);
        sink.take(at, &w[..elems]);
        at += elems;
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let n = rest.len() / B::BYTES * B::ELEMS;
        expand_blocks::<I, B>(rest, &mut w[..n]);
        sink.take(at, &w[..n]);
    }
}

#[inline(always)]
fn expand_blocks<I: Isa, B: Block>(blocks: &[u8], out: &mut [f32]) {
    for (block, out) in blocks
        .chunks_exact(B::BYTES)
        .zip(out.chunks_exact_mut(B::ELEMS))
    {
        B::expand::<I>(block, out);
    }
}

/// Expands whole blocks of `ty`, with the instructions of `level`.
pub fn expand(ty: &QuantType, level: Level, blocks: &[u8], out: &mut [f32]) {
    /// With the type known and the instructions not yet.
    struct Typed<'a, B>(&'a [u8], &'a mut [f32], PhantomData<B>);

    impl<B: Block> Task for Typed<'_, B> {
        type Out = ();

        #[inline(always)]
        fn run<I: Isa>(self) {
            for_weights::<I, B>(self.0, &mut Copy(self.1));
        }
    }

    struct Untyped<'a>(Level, &'a [u8], &'a mut [f32]);

    impl Visitor for Untyped<'_> {
        type Out = ();

        fn visit<B: Block>(self) {
            simd::run(self.0, Typed::<B>(self.1, self.2, PhantomData));
        }
    }

    struct Copy<'a>(&'a mut [f32]);

    impl<I: Isa> Sink<I> for Copy<'_> {
        #[inline(always)]
        fn take(&mut self, at: usize, w: &[f32]) {
            self.0[at..at + w.len()].copy_from_slice(w);
        }
    }

    quant::dispatch(ty, Untyped(level, blocks, out));
}

/// `out[i][c] = rows[i] · x[c]`: each weight is expanded once, in registers, for a few rows of x.
#[inline(always)]
pub fn matvec<I: Isa, B: Block, const C: usize>(rows: &[u8], x: [&[f32]; C], out: &mut [[f32; C]]) {
    struct Sums<'a, I: Isa, const C: usize> {
        acc: [I::Acc; C],
        x: [&'a [f32]; C],
    }

    impl<I: Isa, const C: usize> Sink<I> for Sums<'_, I, C> {
        #[inline(always)]
        fn take(&mut self, at: usize, w: &[f32]) {
            for (acc, x) in self.acc.iter_mut().zip(self.x) {
                accumulate::<I>(acc, w, &x[at..at + w.len()]);
            }
        }
    }

    let row_bytes = x[0].len() / B::ELEMS * B::BYTES;
    for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
        let mut sums = Sums::<I, C> {
            acc: [I::zeros(); C],
            x,
        };
        for_weights::<I, B>(row, &mut sums);
        for (out, acc) in out.iter_mut().zip(sums.acc) {
            *out = I::fold(acc);
        }
    }
}

/// Groups that hold `n` numbers.
pub fn groups(n: usize) -> usize {
    n.div_ceil(LANES)
}

/// Expands up to [`PANEL`] rows of `n_in` weights side by side: `panel[g][r]` is group `g` of row
/// `r`, zeros past the end of a row. Rows that are missing keep what was there.
#[inline(always)]
pub fn expand_panel<I: Isa, B: Block>(rows: &[u8], n_in: usize, panel: &mut [[Group; PANEL]]) {
    struct Place<'a> {
        row: usize,
        panel: &'a mut [[Group; PANEL]],
    }

    impl<I: Isa> Sink<I> for Place<'_> {
        #[inline(always)]
        fn take(&mut self, at: usize, w: &[f32]) {
            interleave(w, self.row, &mut self.panel[at / LANES..]);
        }
    }

    let row_bytes = n_in / B::ELEMS * B::BYTES;
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
        for_weights::<I, B>(bytes, &mut Place { row, panel });
    }
}

/// Puts a row, or part of one, in place `c` of `out[g]`, group by group; a partial group ends with
/// zeros.
#[inline(always)]
pub fn interleave<const C: usize>(row: &[f32], c: usize, out: &mut [[Group; C]]) {
    for (out, group) in out.iter_mut().zip(row.chunks(LANES)) {
        if let Ok(group) = group.try_into() {
            out[c] = group;
        } else {
            out[c] = padded(group);
        }
    }
}

/// The sums of a panel of weight rows with `C` rows of x, as [`dot`] adds them up: the accumulators
/// of some lanes stay in registers along the whole row, then come the other lanes.
#[inline(always)]
pub fn tile<I: Isa, const C: usize>(
    panel: &[[Group; PANEL]],
    x: &[[Group; C]],
) -> [[f32; C]; PANEL] {
    let mut sums = [[I::zeros(); C]; PANEL];
    for strip in 0..I::STRIPS {
        let mut acc = [[I::splat(0.0); C]; PANEL];
        for (w, x) in panel.iter().zip(x) {
            let x: [I::Vector; C] = std::array::from_fn(|c| I::load(&x[c], strip));
            for (acc, w) in acc.iter_mut().zip(w) {
                let w = I::load(w, strip);
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = I::fma(w, x, *acc);
                }
            }
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            for (sum, acc) in sums.iter_mut().zip(acc) {
                sum.as_mut()[strip] = acc;
            }
        }
    }
    // Loops, not closures: a closure that is not inlined is compiled without the instruction set.
    let mut out = [[0.0; C]; PANEL];
    for (out, sums) in out.iter_mut().zip(&sums) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = I::fold(*sum);
        }
    }
    out
}

/// `out += sum_t p[t] * values[t]`, in order; `values` is `[p.len(), out.len()]`.
#[inline(always)]
pub fn weighted_sum<I: Isa>(p: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let (groups, tail) = out.as_chunks_mut::<LANES>();
    let whole = groups.len() * LANES;
    // Two groups at a time: enough sums in flight to hide the latency of one.
    let (pairs, last) = groups.as_chunks_mut::<2>();
    let mut at = 0;
    for pair in pairs {
        weighted_groups::<I, 2>(p, values, dim, at, pair);
        at += 2 * LANES;
    }
    if let [last] = last {
        weighted_groups::<I, 1>(p, values, dim, at, std::array::from_mut(last));
    }
    if !tail.is_empty() {
        for (p, v) in p.iter().zip(values.chunks_exact(dim)) {
            for (out, v) in tail.iter_mut().zip(&v[whole..]) {
                *out = p.mul_add(*v, *out);
            }
        }
    }
}

/// The `N` groups from column `at` on.
#[inline(always)]
fn weighted_groups<I: Isa, const N: usize>(
    p: &[f32],
    values: &[f32],
    dim: usize,
    at: usize,
    out: &mut [Group; N],
) {
    let mut sums = [I::zeros(); N];
    for (sum, out) in sums.iter_mut().zip(&*out) {
        for (strip, sum) in sum.as_mut().iter_mut().enumerate() {
            *sum = I::load(out, strip);
        }
    }
    for (p, v) in p.iter().zip(values.chunks_exact(dim)) {
        let p = I::splat(*p);
        let (v, _) = v[at..at + N * LANES].as_chunks::<LANES>();
        for (sum, v) in sums.iter_mut().zip(v) {
            for (strip, sum) in sum.as_mut().iter_mut().enumerate() {
                *sum = I::fma(p, I::load(v, strip), *sum);
            }
        }
    }
    for (sum, out) in sums.iter().zip(out) {
        for (strip, sum) in sum.as_ref().iter().enumerate() {
            I::store(*sum, out, strip);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::simd::{self, Level, Task};
    use super::*;
    use crate::quant;
    use proptest::prelude::*;

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl Task for Dot<'_> {
        type Out = f32;

        #[inline(always)]
        fn run<I: Isa>(self) -> f32 {
            dot::<I>(self.0, self.1)
        }
    }

    /// The rows of w and x, three each, in one tile.
    struct Tile<'a>([&'a [f32]; 3], [&'a [f32]; 3]);

    impl Task for Tile<'_> {
        type Out = [[f32; 3]; PANEL];

        #[inline(always)]
        fn run<I: Isa>(self) -> Self::Out {
            let n = groups(self.0[0].len());
            let mut panel = vec![[[0.0; LANES]; PANEL]; n];
            let mut x = vec![[[0.0; LANES]; 3]; n];
            for i in 0..3 {
                interleave(self.0[i], i, &mut panel);
                interleave(self.1[i], i, &mut x);
            }
            tile::<I, 3>(&panel, &x)
        }
    }

    /// Numbers from -1 to 1: xorshift, the same for a seed.
    pub fn noise(seed: u32) -> impl FnMut() -> f32 {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        }
    }

    fn row(n: usize, seed: u32) -> Vec<f32> {
        let mut next = noise(seed);
        (0..n).map(|_| next() * 1e3).collect()
    }

    /// The sum as it is defined.
    fn by_definition(w: &[f32], x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, (w, x)) in w.iter().zip(x).enumerate() {
            lanes[i % LANES] = w.mul_add(*x, lanes[i % LANES]);
        }
        let mut n = LANES;
        while n > 1 {
            n /= 2;
            for j in 0..n {
                lanes[j] += lanes[j + n];
            }
        }
        lanes[0]
    }

    proptest! {
        /// Every instruction set, row by row or in tiles, gives the bits of the definition.
        #[test]
        fn sums_are_those_of_the_definition(n in 1usize..700, seed: u32) {
            let w = [1, 2, 3].map(|i| row(n, seed ^ i));
            let x = [4, 5, 6].map(|i| row(n, seed ^ i));
            for level in Level::all() {
                let tile = simd::run(level, Tile(
                    [&w[0], &w[1], &w[2]],
                    [&x[0], &x[1], &x[2]],
                ));
                for (w, tile) in w.iter().zip(tile) {
                    for (x, found) in x.iter().zip(tile) {
                        let wanted = by_definition(w, x);
                        prop_assert_eq!(found.to_bits(), wanted.to_bits());
                        let dot = simd::run(level, Dot(w, x));
                        prop_assert_eq!(dot.to_bits(), wanted.to_bits());
                    }
                }
            }
        }

        /// The definition is near the exact sum.
        #[test]
        fn sums_are_near_exact(n in 1usize..700, seed: u32) {
            let (w, x) = (row(n, seed), row(n, !seed));
            let products = || w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = products().map(f64::abs).sum();
            let sum = f64::from(by_definition(&w, &x));
            prop_assert!((sum - products().sum::<f64>()).abs() <= 4e-6 * size);
        }

        /// Instruction sets may convert halves and multiply in their own way; blocks of any bytes
        /// expand to the values that plain code gives.
        #[test]
        fn every_instruction_set_expands_alike(bytes in prop::collection::vec(any::<u8>(), 1024)) {
            for ty in quant::TYPES {
                let blocks = &bytes[..bytes.len() / ty.block_bytes * ty.block_bytes];
                let mut wanted = vec![0.0; blocks.len() / ty.block_bytes * ty.block_elems];
                (ty.dequantize)(blocks, &mut wanted);
                for level in Level::all() {
                    let mut found = vec![0.0; wanted.len()];
                    expand(ty, level, blocks, &mut found);
                    for (found, wanted) in found.iter().zip(&wanted) {
                        let same = found.to_bits() == wanted.to_bits();
                        prop_assert!(same || found.is_nan() && wanted.is_nan(), "{ty:?}");
                    }
                }
            }
        }

        #[test]
        fn weighted_sums_go_in_order(n in 0usize..40, dim in 1usize..200, seed: u32) {
            let (p, values, start) = (row(n, seed), row(n * dim, !seed), row(dim, seed ^ 7));
            let mut wanted = start.clone();
            for (p, v) in p.iter().zip(values.chunks_exact(dim)) {
                for (y, v) in wanted.iter_mut().zip(v) {
                    *y = p.mul_add(*v, *y);
                }
            }
            for level in Level::all() {
                struct Sum<'a>(&'a [f32], &'a [f32], &'a mut [f32]);
                impl Task for Sum<'_> {
                    type Out = ();

                    #[inline(always)]
                    fn run<I: Isa>(self) {
                        weighted_sum::<I>(self.0, self.1, self.2);
                    }
                }
                let mut found = start.clone();
                simd::run(level, Sum(&p, &values, &mut found));
                for (found, wanted) in found.iter().zip(&wanted) {
                    prop_assert_eq!(found.to_bits(), wanted.to_bits());
                }
            }
        }
    }
}
