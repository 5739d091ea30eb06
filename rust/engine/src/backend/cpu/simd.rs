//! Dot products, compiled once for each instruction set and chosen at run time.
//!
//! The sum is specified, so every instruction set gives the same bits: lane `j` of 32 adds the
//! products at `j, j + 32, …` in order, each with one fused multiply-add; then the lanes are folded
//! in halves, 16, 8, 4, 2, 1.

use std::sync::OnceLock;

use crate::quant::Block;

/// Accumulators of one dot product.
pub const LANES: usize = 32;

/// Weights expanded at a time; a multiple of every type's block and of [`LANES`].
const CHUNK: usize = 256;

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

#[inline(always)]
fn multiply_add(acc: &mut [f32; LANES], w: &[f32], x: &[f32]) {
    for j in 0..LANES {
        acc[j] = w[j].mul_add(x[j], acc[j]);
    }
}

#[inline(always)]
fn fold(mut acc: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            acc[j] += acc[j + half];
        }
        half /= 2;
    }
    acc[0]
}

/// Adds the products of the last, partial group of lanes.
#[inline(always)]
fn multiply_add_tail(acc: &mut [f32; LANES], w: &[f32], x: &[f32]) {
    for (j, (w, x)) in w.iter().zip(x).enumerate() {
        acc[j] = w.mul_add(*x, acc[j]);
    }
}

/// `w · x`.
#[inline(always)]
pub fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    let (ws, xs) = (w.chunks_exact(LANES), x.chunks_exact(LANES));
    let (w_tail, x_tail) = (ws.remainder(), xs.remainder());
    for (w, x) in ws.zip(xs) {
        multiply_add(&mut acc, w, x);
    }
    multiply_add_tail(&mut acc, w_tail, x_tail);
    fold(acc)
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
pub fn matvec<B: Block>(rows: &[u8], x: &[f32], out: &mut [f32]) {
    let row_bytes = x.len() / B::ELEMS * B::BYTES;
    let chunk_bytes = CHUNK / B::ELEMS * B::BYTES;
    let mut w = [0.0f32; CHUNK];
    for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
        let mut acc = [0.0; LANES];
        let mut x_chunks = x.chunks_exact(CHUNK);
        let mut row_chunks = row.chunks_exact(chunk_bytes);
        for (bytes, x) in (&mut row_chunks).zip(&mut x_chunks) {
            expand_row::<B>(bytes, &mut w);
            for i in 0..CHUNK / LANES {
                multiply_add(&mut acc, &w[i * LANES..][..LANES], &x[i * LANES..][..LANES]);
            }
        }
        let x_rest = x_chunks.remainder();
        let w = &mut w[..x_rest.len()];
        expand_row::<B>(row_chunks.remainder(), w);
        let (ws, xs) = (w.chunks_exact(LANES), x_rest.chunks_exact(LANES));
        let (w_tail, x_tail) = (ws.remainder(), xs.remainder());
        for (w, x) in ws.zip(xs) {
            multiply_add(&mut acc, w, x);
        }
        multiply_add_tail(&mut acc, w_tail, x_tail);
        *out = fold(acc);
    }
}

/// The same sums for many rows of `x`: `out[i * m + r] = rows[i] · x[r]`, `m` rows of `n_in`.
/// `scratch` holds one expanded weight row.
#[inline(always)]
pub fn matmul<B: Block>(rows: &[u8], x: &[f32], n_in: usize, out: &mut [f32], scratch: &mut [f32]) {
    let row_bytes = n_in / B::ELEMS * B::BYTES;
    let m = x.len() / n_in;
    for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(m)) {
        expand_row::<B>(row, scratch);
        let mut tiles = out.chunks_exact_mut(TILE);
        let mut xs = x.chunks_exact(TILE * n_in);
        for (out, x) in (&mut tiles).zip(&mut xs) {
            let mut acc = [[0.0; LANES]; TILE];
            let whole = n_in / LANES * LANES;
            let mut i = 0;
            while i < whole {
                let w = &scratch[i..i + LANES];
                for (r, acc) in acc.iter_mut().enumerate() {
                    multiply_add(acc, w, &x[r * n_in + i..][..LANES]);
                }
                i += LANES;
            }
            for (r, (acc, out)) in acc.iter_mut().zip(out).enumerate() {
                multiply_add_tail(acc, &scratch[whole..], &x[r * n_in + whole..(r + 1) * n_in]);
                *out = fold(*acc);
            }
        }
        for (out, x) in tiles
            .into_remainder()
            .iter_mut()
            .zip(xs.remainder().chunks_exact(n_in))
        {
            *out = dot(scratch, x);
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
    fn run(self) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<T: Task>(task: T) -> T::Out {
    task.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<T: Task>(task: T) -> T::Out {
    task.run()
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
        _ => task.run(),
    }
}
