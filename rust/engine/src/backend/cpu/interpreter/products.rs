//! The products of a plan, of one matrix and of experts.

use super::Interpreter;
use crate::backend::cpu::experts::{ExpertProduct, Gathered};
use crate::backend::cpu::matvec::{self, Product, Scratch};
use crate::backend::cpu::rowwise::Normed;
use crate::backend::Batch;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Norm, Op, Rows, WeightId};

impl Interpreter {
    /// Runs the mat-vecs at the front of `ops` that form a group ([`matvec::group_len`]); returns how many
    /// they were.
    pub(super) fn products(&mut self, ops: &[Op], batch: &Batch<'_>) -> Result<usize> {
        let ops = &ops[..matvec::group_len(ops)];
        let Some(Op::MatVec { x, norm, .. }) = ops.first() else {
            return Err(Error::Internal(
                "a mat-vec that overwrites its input".into(),
            ));
        };
        if self.buffers[x.0].is_empty() {
            // No row's logits are wanted: the outputs have no rows either.
            return Ok(ops.len());
        }
        // Taken out, so that all else may be read while they are written.
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut normed = std::mem::take(&mut self.normed);
        let done = self.until_fit(*x, batch, |this| {
            this.multiply(ops, *x, *norm, batch, &mut scratch, &mut normed)
        });
        let m = self.buffers[x.0].len() / self.plan.buffer(*x).width;
        let mut from = 0;
        for (out, n_out) in done.iter().flatten() {
            scratch.take(from, m, &mut self.buffers[out.0]);
            from += n_out;
        }
        self.scratch = scratch;
        self.normed = normed;
        done.map(|_| ops.len())
    }

    /// What `product` of the rows of `x` gives once it takes them: again without those of a sequence
    /// that it refuses, for a sequence that has a state cannot take the whole step twice.
    fn until_fit<R>(
        &mut self,
        x: BufferId,
        batch: &Batch<'_>,
        mut product: impl FnMut(&Self) -> Result<R>,
    ) -> Result<R> {
        loop {
            match product(self) {
                Err(e @ Error::Activations { .. }) => match self.fail(e, batch)? {
                    true => self.clear_failed(x, batch),
                    false => self.first_failure()?,
                },
                done => return done,
            }
        }
    }

    /// Zeros in the place of the rows of sequences that cannot go on.
    fn clear_failed(&mut self, x: BufferId, batch: &Batch<'_>) {
        let (width, rows) = (self.plan.buffer(x).width, self.plan.buffer(x).rows);
        let mut values = self.take(x);
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            let row = match rows {
                Rows::Batch => row,
                Rows::Out => batch.out_rows[row] as usize,
            };
            if self.has_failed(batch.slots[row] as usize) {
                values.fill(0.0);
            }
        }
        self.buffers[x.0] = values;
    }

    /// Computes mat-vecs of the rows of one `x` under one norm into `scratch`; returns where the sums
    /// go, and how many of a row.
    fn multiply(
        &self,
        ops: &[Op],
        x: BufferId,
        norm: Option<Norm>,
        batch: &Batch<'_>,
        scratch: &mut Scratch,
        normed: &mut Normed,
    ) -> Result<Vec<(BufferId, usize)>> {
        let mut products: Vec<Product<'_>> = Vec::new();
        let mut first = WeightId(0);
        for op in ops {
            let Op::MatVec {
                weight,
                scale,
                bias,
                out,
                ..
            } = op
            else {
                break;
            };
            let w = self.plan.weight(*weight);
            if products.is_empty() {
                first = *weight;
            }
            products.push(Product {
                weight: self.weights.of(w)?,
                ty: w.ty,
                n_out: w.n_out,
                scale: scale.map(|id| self.vector(id)).transpose()?.map(|s| s[0]),
                bias: bias.map(|id| self.vector(id)).transpose()?,
                out: *out,
            });
        }
        let (values, factors) = self.normed(x, norm, normed)?;
        let rows = matvec::Rows {
            x: values,
            n_in: self.plan.buffer(x).width,
            factors,
        };
        let absurd = |row: usize| {
            let values = &values[row * rows.n_in..][..rows.n_in];
            self.absurd(first, x, values, row, batch)
        };
        scratch.run(self.level, &products, rows, absurd)?;
        Ok(products.iter().map(|p| (p.out, p.n_out)).collect())
    }

    /// Computes the products by experts that `op` is.
    pub(super) fn expert_products(&mut self, op: &Op, batch: &Batch<'_>) -> Result<()> {
        let Op::ExpertMatVec { x, out, .. } = op else {
            return Err(Error::Internal(format!("{op:?} is no product by experts")));
        };
        if self.buffers[x.0].is_empty() {
            return Ok(());
        }
        let mut values = self.take(*out);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut normed = std::mem::take(&mut self.normed);
        let mut gathered = std::mem::take(&mut self.gathered);
        let done = self.until_fit(*x, batch, |this| {
            let work = (&mut scratch, &mut normed, &mut gathered);
            this.multiply_by_experts(op, batch, work, &mut values)
        });
        self.buffers[out.0] = values;
        (self.scratch, self.normed, self.gathered) = (scratch, normed, gathered);
        done
    }

    fn multiply_by_experts(
        &self,
        op: &Op,
        batch: &Batch<'_>,
        (scratch, normed, gathered): (&mut Scratch, &mut Normed, &mut Gathered),
        out: &mut [f32],
    ) -> Result<()> {
        let &Op::ExpertMatVec {
            x,
            ranked,
            norm,
            routes,
            weight,
            scale,
            bias,
            ..
        } = op
        else {
            return Err(Error::Internal(format!("{op:?} is no product by experts")));
        };
        let w = self.plan.weight(weight);
        let file = self.weights.of(w)?;
        let product = ExpertProduct {
            weight: &file,
            ty: w.ty,
            n_expert: w.n_expert,
            n_out: w.n_out,
            scale: scale.map(|id| self.vector(id)).transpose()?,
            bias: bias.map(|id| self.vector(id)).transpose()?,
            routes: &self.buffers[routes.0],
            ranks: self.plan.buffer(routes).width / 2,
            ranked,
        };
        let (values, factors) = self.normed(x, norm, normed)?;
        let rows = matvec::Rows {
            x: values,
            n_in: w.n_in,
            factors,
        };
        let absurd = |at: usize| {
            let row = if ranked { at / product.ranks } else { at };
            let values = &values[at * w.n_in..][..w.n_in];
            self.absurd(weight, x, values, row, batch)
        };
        product.run(self.level, rows, scratch, gathered, out, absurd)
    }

    /// The rows of `x` as products under `norm` take them, and the factors of their sums.
    fn normed<'a>(
        &'a self,
        x: BufferId,
        norm: Option<Norm>,
        normed: &'a mut Normed,
    ) -> Result<(&'a [f32], Option<&'a [f32]>)> {
        let values = &self.buffers[x.0];
        let Some(Norm { weight, eps }) = norm else {
            return Ok((values, None));
        };
        normed.set(self.level, values, self.vector(weight)?, eps)?;
        Ok((&normed.x, Some(&normed.factors)))
    }

    /// The error of `values`, a row that the product with the tensor `weight` has no block fixed point
    /// for: row `row` of its `x`, or of that times the weight of its norm.
    fn absurd(
        &self,
        weight: WeightId,
        x: BufferId,
        values: &[f32],
        row: usize,
        batch: &Batch<'_>,
    ) -> Error {
        let buffer = self.plan.buffer(x);
        let row = match buffer.rows {
            Rows::Batch => row,
            Rows::Out => batch.out_rows[row] as usize,
        };
        // NaN is the largest here, as in the test that found it.
        let size = |v: &f32| v.abs().to_bits();
        let worst = values.iter().copied().max_by_key(size).unwrap_or_default();
        Error::Activations {
            tensor: self.plan.weight(weight).name.clone(),
            slot: batch.slots[row] as usize,
            position: u64::from(batch.positions[row]),
            value: worst.to_string(),
        }
    }
}
