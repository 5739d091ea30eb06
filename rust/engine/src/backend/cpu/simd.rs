//! Dot products, compiled once for each instruction set and chosen at run time.
//!
//! The sum is specified, so every instruction set gives the same bits: lane `j` of 32 adds the
//! products at `j, j + 32, …` in order, each with one fused multiply-add; then the lanes are folded
//! in halves, 16, 8, 4, 2, 1.

use std::sync::OnceLock;

use crate::quant::Block;

/// Accumulators of one dot product.
pub const LANES: usize = 32;

/// The longest block of any type.
const MAX_BLOCK: usize = 256;

/// Rows of activations multiplied with one expanded weight row at a time.
const TILE: usize = 4;

/// An instruction set that the product was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Scalar,
    Avx2,
    Avx512,
}

impl Level {
    /// The best one of this processor; `ONEGRAPH_CPU` = `scalar` or `avx2` asks for less.
    pub fn detect() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let most = std::env::var("ONEGRAPH_CPU").unwrap_or_default();
            let fits = |level: Level| {
                level.is_available()
                    && (most != "scalar" && (most != "avx2" || level == Level::Avx2))
            };
            [Level::Avx512, Level::Avx2]
                .into_iter()
                .find(|l| fits(*l))
                .unwrap_or(Level::Scalar)
        })
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

type Group = [f32; LANES];

/// The sum's arithmetic in one instruction set. The compiler vectorizes block expansion well by
/// itself, but not an accumulator that lives across a loop: those are spelled out.
pub trait Isa {
    /// [`LANES`] accumulators.
    type Acc: Copy;
    fn zero() -> Self::Acc;
    /// `acc[j] = fma(w[j], x[j], acc[j])`.
    fn multiply_add(acc: &mut Self::Acc, w: &Group, x: &Group);
    fn to_array(acc: Self::Acc) -> Group;
    /// Folds 32 lanes into 8, then those as [`fold`] does.
    fn fold(acc: Self::Acc) -> f32 {
        let mut acc = Self::to_array(acc);
        for half in [16, 8] {
            for j in 0..half {
                acc[j] += acc[j + half];
            }
        }
        fold_8([
            acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7],
        ])
    }
}

#[inline(always)]
fn fold_8(a: [f32; 8]) -> f32 {
    let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
    (b[0] + b[2]) + (b[1] + b[3])
}

/// Plain code: whatever the target was compiled for.
pub struct Plain;

impl Isa for Plain {
    type Acc = Group;

    #[inline(always)]
    fn zero() -> Group {
        [0.0; LANES]
    }

    #[inline(always)]
    fn multiply_add(acc: &mut Group, w: &Group, x: &Group) {
        for j in 0..LANES {
            acc[j] = w[j].mul_add(x[j], acc[j]);
        }
    }

    #[inline(always)]
    fn to_array(acc: Group) -> Group {
        acc
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{fold_8, Group, Isa};

    /// Eight floats a register.
    pub struct Avx2;

    impl Isa for Avx2 {
        type Acc = [__m256; 4];

        #[inline(always)]
        fn zero() -> Self::Acc {
            // SAFETY: this code is inlined into functions compiled for AVX2 only.
            unsafe { [_mm256_setzero_ps(); 4] }
        }

        #[inline(always)]
        fn multiply_add(acc: &mut Self::Acc, w: &Group, x: &Group) {
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: as above; `8 * i + 8 <= 32`.
                *acc = unsafe {
                    let w = _mm256_loadu_ps(w.as_ptr().add(8 * i));
                    _mm256_fmadd_ps(w, _mm256_loadu_ps(x.as_ptr().add(8 * i)), *acc)
                };
            }
        }

        #[inline(always)]
        fn to_array(acc: Self::Acc) -> Group {
            let mut out = [0.0; 32];
            for (i, acc) in acc.iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * i), *acc) };
            }
            out
        }

        #[inline(always)]
        fn fold(acc: Self::Acc) -> f32 {
            let mut out = [0.0; 8];
            // SAFETY: as above.
            unsafe {
                let low = _mm256_add_ps(acc[0], acc[2]);
                let high = _mm256_add_ps(acc[1], acc[3]);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
            fold_8(out)
        }
    }

    /// Sixteen floats a register.
    pub struct Avx512;

    impl Isa for Avx512 {
        type Acc = [__m512; 2];

        #[inline(always)]
        fn zero() -> Self::Acc {
            // SAFETY: this code is inlined into functions compiled for AVX-512 only.
            unsafe { [_mm512_setzero_ps(); 2] }
        }

        #[inline(always)]
        fn multiply_add(acc: &mut Self::Acc, w: &Group, x: &Group) {
            for (i, acc) in acc.iter_mut().enumerate() {
                // SAFETY: as above; `16 * i + 16 <= 32`.
                *acc = unsafe {
                    let w = _mm512_loadu_ps(w.as_ptr().add(16 * i));
                    _mm512_fmadd_ps(w, _mm512_loadu_ps(x.as_ptr().add(16 * i)), *acc)
                };
            }
        }

        #[inline(always)]
        fn to_array(acc: Self::Acc) -> Group {
            let mut out = [0.0; 32];
            for (i, acc) in acc.iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(16 * i), *acc) };
            }
            out
        }

        #[inline(always)]
        fn fold(acc: Self::Acc) -> f32 {
            let mut out = [0.0; 8];
            // SAFETY: as above.
            unsafe {
                let sum = _mm512_add_ps(acc[0], acc[1]);
                let low = _mm512_castps512_ps256(sum);
                let high = _mm512_extractf32x8_ps::<1>(sum);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
            fold_8(out)
        }
    }
}

/// Adds the products of the last, partial group of lanes: zeros elsewhere add nothing.
#[inline(always)]
fn multiply_add_tail<I: Isa>(acc: &mut I::Acc, w: &[f32], x: &[f32]) {
    if w.is_empty() {
        return;
    }
    let (mut w_group, mut x_group) = ([0.0; LANES], [0.0; LANES]);
    w_group[..w.len()].copy_from_slice(w);
    x_group[..x.len()].copy_from_slice(x);
    I::multiply_add(acc, &w_group, &x_group);
}

/// Adds the products of equally long slices.
#[inline(always)]
fn accumulate<I: Isa>(acc: &mut I::Acc, w: &[f32], x: &[f32]) {
    let (ws, w_tail) = w.as_chunks::<LANES>();
    let (xs, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in ws.iter().zip(xs) {
        I::multiply_add(acc, w, x);
    }
    multiply_add_tail::<I>(acc, w_tail, x_tail);
}

/// `w · x`.
#[inline(always)]
pub fn dot<I: Isa>(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = I::zero();
    accumulate::<I>(&mut acc, w, x);
    I::fold(acc)
}

/// Expands whole blocks.
#[inline(always)]
pub fn expand_row<B: Block>(row: &[u8], out: &mut [f32]) {
    for (block, out) in row
        .chunks_exact(B::BYTES)
        .zip(out.chunks_exact_mut(B::ELEMS))
    {
        B::expand(block, out);
    }
}

/// `out[i] = rows[i] · x` for as many whole rows as `out` has values.
#[inline(always)]
pub fn matvec<I: Isa, B: Block>(rows: &[u8], x: &[f32], out: &mut [f32]) {
    let row_bytes = x.len() / B::ELEMS * B::BYTES;
    for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
        let mut acc = I::zero();
        if B::ELEMS < LANES {
            // Small blocks: as many as fill the lanes.
            let (xs, x_tail) = x.as_chunks::<LANES>();
            let mut groups = row.chunks_exact(LANES / B::ELEMS * B::BYTES);
            let mut w = [0.0; LANES];
            for (bytes, x) in (&mut groups).zip(xs) {
                expand_row::<B>(bytes, &mut w);
                I::multiply_add(&mut acc, &w, x);
            }
            expand_row::<B>(groups.remainder(), &mut w);
            multiply_add_tail::<I>(&mut acc, &w[..x_tail.len()], x_tail);
        } else {
            let mut w = [0.0; MAX_BLOCK];
            for (block, x) in row.chunks_exact(B::BYTES).zip(x.chunks_exact(B::ELEMS)) {
                let w = &mut w[..B::ELEMS];
                B::expand(block, w);
                accumulate::<I>(&mut acc, w, x);
            }
        }
        *out = I::fold(acc);
    }
}

/// The same sums for many rows of `x`: `out[i * m + r] = rows[i] · x[r]`, `m` rows of `n_in`.
/// `scratch` holds one expanded weight row.
#[inline(always)]
pub fn matmul<I: Isa, B: Block>(
    rows: &[u8],
    x: &[f32],
    n_in: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let row_bytes = n_in / B::ELEMS * B::BYTES;
    let m = x.len() / n_in;
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(m)) {
        expand_row::<B>(row, scratch);
        let (ws, w_tail) = scratch.as_chunks::<LANES>();
        let mut tiles = out.chunks_exact_mut(TILE);
        let mut xs = x.chunks_exact(TILE * n_in);
        for (out, x) in (&mut tiles).zip(&mut xs) {
            let (x0, rest) = x.split_at(n_in);
            let (x1, rest) = rest.split_at(n_in);
            let (x2, x3) = rest.split_at(n_in);
            let chunks = [x0, x1, x2, x3].map(|x| x.as_chunks::<LANES>());
            let mut acc = [I::zero(); TILE];
            let [(c0, _), (c1, _), (c2, _), (c3, _)] = chunks;
            for ((((w, c0), c1), c2), c3) in ws.iter().zip(c0).zip(c1).zip(c2).zip(c3) {
                I::multiply_add(&mut acc[0], w, c0);
                I::multiply_add(&mut acc[1], w, c1);
                I::multiply_add(&mut acc[2], w, c2);
                I::multiply_add(&mut acc[3], w, c3);
            }
            for ((acc, out), (_, x_tail)) in acc.iter_mut().zip(out).zip(chunks) {
                multiply_add_tail::<I>(acc, w_tail, x_tail);
                *out = I::fold(*acc);
            }
        }
        for (out, x) in tiles
            .into_remainder()
            .iter_mut()
            .zip(xs.remainder().chunks_exact(n_in))
        {
            *out = dot::<I>(scratch, x);
        }
    }
}

/// `acc += p * v`.
#[inline(always)]
pub fn axpy(p: f32, v: &[f32], acc: &mut [f32]) {
    for (a, v) in acc.iter_mut().zip(v) {
        *a = p.mul_add(*v, *a);
    }
}

/// Work to be compiled once for each instruction set.
pub trait Task {
    /// What it gives.
    type Out;
    /// Must be `#[inline(always)]`, or it is compiled for the lowest common instruction set.
    fn run<I: Isa>(self) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<T: Task>(task: T) -> T::Out {
    task.run::<x86::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<T: Task>(task: T) -> T::Out {
    task.run::<x86::Avx512>()
}

/// Runs `task` compiled for `level`.
pub fn run<T: Task>(level: Level, task: T) -> T::Out {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level is used only where `is_available` said that the processor has it.
        Level::Avx2 => unsafe { run_avx2(task) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { run_avx512(task) },
        _ => task.run::<Plain>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Dot<'a>(&'a [f32], &'a [f32]);

    impl Task for Dot<'_> {
        type Out = f32;

        #[inline(always)]
        fn run<I: Isa>(self) -> f32 {
            dot::<I>(self.0, self.1)
        }
    }

    proptest! {
        /// Every instruction set of this machine gives the bits of plain code, at every length.
        #[test]
        fn instruction_sets_agree(
            pairs in prop::collection::vec((-1e3f32..1e3, -1e3f32..1e3), 0..700)
        ) {
            let (w, x): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let plain = run(Level::Scalar, Dot(&w, &x));
            let exact: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let size: f64 = w.iter().zip(&x).map(|(w, x)| f64::from((*w * *x).abs())).sum();
            prop_assert!((f64::from(plain) - exact).abs() <= 4e-6 * size);
            for level in [Level::Avx2, Level::Avx512].into_iter().filter(|l| l.is_available()) {
                prop_assert_eq!(run(level, Dot(&w, &x)).to_bits(), plain.to_bits());
            }
        }
    }
}
