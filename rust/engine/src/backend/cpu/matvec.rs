//! Mat-vecs of a step, cut into jobs for the threads. The cut changes no bit: a sum belongs to one
//! job, and its order to [`super::simd`].

use rayon::prelude::*;

use super::simd::{self, Isa, Level, Task};
use crate::plan::BufferId;
use crate::quant::{self, Block, QuantType, Visitor};

/// One weight matrix to be multiplied with the rows of `x`.
pub struct Product<'a> {
    /// `[n_out, n_in]` in its file encoding.
    pub weight: &'a [u8],
    pub ty: &'static QuantType,
    pub n_out: usize,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    pub out: BufferId,
}

/// Jobs a thread gets, so that a late one is made up for.
const JOBS_PER_THREAD: usize = 4;

/// Weights a job should have at least: a few microseconds of work.
const MIN_JOB_WEIGHTS: usize = 1 << 14;

/// Computes all `products` into `out`: each product's `[n_out, m]`, one after another, `m` the rows
/// of `x`, `[m, n_in]`.
pub fn run(level: Level, products: &[Product<'_>], x: &[f32], n_in: usize, out: &mut Vec<f32>) {
    let m = x.len() / n_in;
    let n_out: usize = products.iter().map(|p| p.n_out).sum();
    out.resize(n_out * m, 0.0);
    let jobs = rayon::current_num_threads() * JOBS_PER_THREAD;
    let rows_per_job = n_out.div_ceil(jobs).max(MIN_JOB_WEIGHTS.div_ceil(n_in));
    let mut work = Vec::new();
    let mut rest = out.as_mut_slice();
    for product in products {
        let mut first = 0;
        while first < product.n_out {
            let rows = rows_per_job.min(product.n_out - first);
            let (part, more) = rest.split_at_mut(rows * m);
            rest = more;
            work.push((product, first, part));
            first += rows;
        }
    }
    work.into_par_iter().for_each(|(product, first, part)| {
        let row_bytes = product.weight.len() / product.n_out;
        let rows = &product.weight[first * row_bytes..][..part.len() / m * row_bytes];
        quant::dispatch(
            product.ty,
            Job {
                level,
                rows,
                x,
                n_in,
                out: part,
            },
        );
        if let Some(bias) = product.bias {
            for (bias, out) in bias[first..].iter().zip(part.chunks_exact_mut(m)) {
                out.iter_mut().for_each(|y| *y += bias);
            }
        }
    });
}

/// `[n_out, m]` → `[m, n_out]`.
pub fn transpose(columns: &[f32], m: usize, rows: &mut [f32]) {
    if m == 1 {
        return rows.copy_from_slice(columns);
    }
    let n_out = columns.len() / m;
    for (r, row) in rows.chunks_exact_mut(n_out).enumerate() {
        for (y, column) in row.iter_mut().zip(columns.chunks_exact(m)) {
            *y = column[r];
        }
    }
}

struct Job<'a> {
    level: Level,
    rows: &'a [u8],
    x: &'a [f32],
    n_in: usize,
    out: &'a mut [f32],
}

impl Visitor for Job<'_> {
    type Out = ();

    fn visit<B: Block>(self) {
        let level = self.level;
        if self.x.len() == self.n_in {
            simd::run(level, MatVec::<B>(self, std::marker::PhantomData));
        } else {
            simd::run(level, MatMul::<B>(self, std::marker::PhantomData));
        }
    }
}

struct MatVec<'a, B>(Job<'a>, std::marker::PhantomData<B>);

impl<B: Block> Task for MatVec<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        simd::matvec::<I, B>(self.0.rows, self.0.x, self.0.out);
    }
}

struct MatMul<'a, B>(Job<'a>, std::marker::PhantomData<B>);

impl<B: Block> Task for MatMul<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Job {
            rows, x, n_in, out, ..
        } = self.0;
        simd::matmul::<I, B>(rows, x, n_in, out, &mut vec![0.0; n_in]);
    }
}
