//! Mamba-2's scan: each sequence's rows in order, sequences and heads in parallel.

use rayon::prelude::*;

use super::gates::{exp_down, softplus, Gate, SwiGlu};
use super::recurrence::{States, Update};
use super::simd::{self, Isa, Level, Task};
use crate::backend::Batch;
use crate::error::{Error, Result};
use crate::plan;

/// Most values of a head.
const MOST_HEAD_DIM: usize = 256;

/// Chains of a sum over the rows of a state.
const CHAINS: usize = 16;

/// [`plan::Mamba2`].
pub struct Mamba2<'a> {
    pub op: &'a plan::Mamba2,
    /// `[rows][z, channels, n_head]`.
    pub projected: &'a [f32],
    /// `[rows][x, B, C]`.
    pub convolved: &'a [f32],
    /// `[n_head]`, as the next.
    pub a: &'a [f32],
    pub dt: &'a [f32],
    pub d: &'a [f32],
}

/// One head of the rows of one sequence.
struct Head<'a, 'b> {
    of: &'a Mamba2<'a>,
    head: usize,
    first: usize,
    /// `[d_state][head_dim]`.
    state: &'b mut [f32],
    /// `[rows][head_dim]`.
    out: Vec<&'b mut [f32]>,
    /// Of a round, an [`Update`] a row; else empty.
    kept: Vec<&'b mut [f32]>,
}

impl Mamba2<'_> {
    /// Writes `out`, `[rows][n_head][head_dim]`.
    ///
    /// # Errors
    /// As [`States::of`]; [`Error::Internal`] for heads that are too wide.
    pub fn run(
        &self,
        level: Level,
        states: &mut States,
        batch: &Batch<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let plan::Mamba2 {
            n_head,
            head_dim,
            d_state,
            ..
        } = *self.op;
        if head_dim > MOST_HEAD_DIM {
            return Err(Error::Internal(format!("a scan of {head_dim} values")));
        }
        out.fill(0.0);
        // By row and head.
        let mut outs: Vec<Option<&mut [f32]>> = out.chunks_exact_mut(head_dim).map(Some).collect();
        let mut heads = Vec::new();
        let (runs, kept) = states.of(self.op.state.0, batch)?;
        let of_head = d_state + head_dim + 1;
        let mut kept: Vec<Option<&mut [f32]>> = kept.chunks_exact_mut(of_head).map(Some).collect();
        for (run, state) in runs {
            for (head, state) in state.chunks_exact_mut(d_state * head_dim).enumerate() {
                let rows = (run.first..run.first + run.rows).map(|row| row * n_head + head);
                let kept = rows.clone().filter_map(|at| kept.get_mut(at)?.take());
                heads.push(Head {
                    of: self,
                    head,
                    first: run.first,
                    state,
                    kept: kept.collect(),
                    out: rows.filter_map(|at| outs[at].take()).collect(),
                });
            }
        }
        heads
            .into_par_iter()
            .for_each(|head| simd::run(level, head));
        Ok(())
    }
}

impl Task for Head<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            of,
            head,
            first,
            state,
            out,
            kept,
        } = self;
        let plan::Mamba2 {
            n_head,
            n_group,
            head_dim,
            d_state,
            ..
        } = *of.op;
        let (inner, channels) = (of.op.inner(), of.op.channels());
        let projected = inner + channels + n_head;
        let b_at = inner + head / (n_head / n_group) * d_state;
        let c_at = b_at + n_group * d_state;
        let mut copy = Vec::new();
        let state = match kept.is_empty() {
            true => state,
            false => {
                copy.extend_from_slice(state);
                &mut copy
            }
        };
        let mut kept = kept.into_iter();
        let mut u = [0.0; MOST_HEAD_DIM];
        for (row, out) in (first..).zip(out) {
            let convolved = &of.convolved[row * channels..][..channels];
            let projected = &of.projected[row * projected..][..projected];
            let x = &convolved[head * head_dim..][..head_dim];
            let z = &projected[head * head_dim..][..head_dim];
            // NaN of an infinite sum.
            let step = softplus(projected[inner + channels + head] + of.dt[head]);
            let exponent = of.a[head] * step;
            let g = if exponent > 0.0 {
                1.0
            } else {
                exp_down(exponent)
            };
            for (u, x) in u.iter_mut().zip(x) {
                *u = step * x;
            }
            let update = Update {
                k: &convolved[b_at..][..d_state],
                w: &u[..head_dim],
                g,
            };
            if let Some(kept) = kept.next() {
                update.keep(kept);
            }
            advance(state, &update, &convolved[c_at..][..d_state], out);
            for ((y, x), z) in out.iter_mut().zip(x).zip(z) {
                *y = SwiGlu::of(*z, of.d[head].mul_add(*x, *y));
            }
        }
    }
}

/// Brings a state forward, and what `c` then finds of each column.
#[inline(always)]
fn advance(state: &mut [f32], update: &Update<'_>, c: &[f32], out: &mut [f32]) {
    let mut chains = [[0.0f32; MOST_HEAD_DIM]; CHAINS];
    let rows = state
        .chunks_exact_mut(out.len())
        .zip(update.k.iter().zip(c));
    for (i, (row, (k, c))) in rows.enumerate() {
        let chain = chains[i % CHAINS].iter_mut();
        for ((s, w), y) in row.iter_mut().zip(update.w).zip(chain) {
            *s = k.mul_add(*w, update.g * *s);
            *y = s.mul_add(*c, *y);
        }
    }
    for (i, y) in out.iter_mut().enumerate() {
        let four = |at: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| chains[4 * at + j][i]);
            (a + b) + (c + d)
        };
        *y = (four(0) + four(1)) + (four(2) + four(3));
    }
}
