//! What goes by the tokens before a row: convolutions, and embeddings of n-grams.

use super::Interpreter;
use crate::backend::cpu::memory::vector;
use crate::backend::cpu::recurrence::{Around, ShortConv};
use crate::backend::Batch;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Ngram, NgramTable, Op, StateId, WeightId};

impl Interpreter {
    pub(super) fn short_conv(&mut self, op: &Op, batch: &Batch<'_>) -> Result<()> {
        let (x, weight, bias, state, out, taps, around, part, dilation) = match *op {
            Op::ShortConv {
                x,
                weight,
                bias,
                state,
                out,
                taps,
                silu,
                part,
                dilation,
            } => {
                let around = match silu {
                    true => Around::Silu,
                    false => Around::Nothing,
                };
                (x, weight, bias, state, out, taps, around, part, dilation)
            }
            Op::GatedConv {
                x,
                weight,
                state,
                out,
                taps,
            } => (x, weight, None, state, out, taps, Around::Gates, None, 1),
            _ => return Err(Error::Internal(format!("{op:?} is no convolution"))),
        };
        let mut convolved = self.take(out);
        let vector = |id| vector(&self.plan, &self.vectors, id);
        let task = ShortConv {
            x: &self.buffers[x.0],
            part,
            weight: vector(weight)?,
            bias: bias.map(vector).transpose()?,
            taps,
            around,
            dilation,
        };
        let done = task.run(self.level, &mut self.states, state.0, batch, &mut convolved);
        self.buffers[out.0] = convolved;
        done
    }

    pub(super) fn ngram(&mut self, op: &Ngram, batch: &Batch<'_>) -> Result<()> {
        match *op {
            Ngram::Tokens { out } => {
                let numbered = self.buffers[out.0].iter_mut().zip(batch.tokens);
                numbered.for_each(|(out, token)| *out = token.saturating_add(1) as f32);
                Ok(())
            }
            Ngram::Recent { x, state, out, n } => self.recent([x, out], state, n, batch),
            Ngram::Rows {
                recent,
                weight,
                out,
                ref table,
            } => self.ngram_rows([recent, out], weight, table),
        }
    }

    fn recent(
        &mut self,
        [x, out]: [BufferId; 2],
        state: StateId,
        n: usize,
        batch: &Batch<'_>,
    ) -> Result<()> {
        let width = self.plan.buffer(x).width;
        let mut rows = self.take(out);
        rows.fill(0.0);
        let x = &self.buffers[x.0];
        let (runs, kept) = self.states.of(state.0, batch)?;
        for (run, state) in runs {
            // The oldest first.
            let mut last = state.to_vec();
            for r in run.first..run.first + run.rows {
                let newest = &x[r * width..][..width];
                let (first, others) = rows[r * n * width..][..n * width].split_at_mut(width);
                first.copy_from_slice(newest);
                let before = last.chunks_exact(width).rev();
                for (out, row) in others.chunks_exact_mut(width).zip(before) {
                    out.copy_from_slice(row);
                }
                last.copy_within(width.., 0);
                let end = last.len() - width;
                last[end..].copy_from_slice(newest);
                if let Some(kept) = kept.get_mut(r * width..(r + 1) * width) {
                    kept.copy_from_slice(newest);
                }
            }
            if kept.is_empty() {
                state.copy_from_slice(&last);
            }
        }
        self.buffers[out.0] = rows;
        Ok(())
    }

    fn ngram_rows(
        &mut self,
        [recent, out]: [BufferId; 2],
        weight: WeightId,
        table: &NgramTable,
    ) -> Result<()> {
        let plan = self.plan.clone();
        let weights = self.weights.clone();
        let w = plan.weight(weight);
        let bytes = weights.bytes(&w.name)?;
        let row_bytes = bytes.len() / w.n_out;
        let each = (w.n_in / table.width) as u64;
        let heads = table.heads.len();
        let mut stored = vec![0.0; w.n_in];
        let mut rows = self.take(out);
        let tokens = self.buffers[recent.0].chunks_exact(table.multipliers.len());
        for (tokens, out) in tokens.zip(rows.chunks_exact_mut(heads * table.width)) {
            let chosen = table.chosen(tokens);
            for (row, out) in chosen.zip(out.chunks_exact_mut(table.width)) {
                let at = (row / each) as usize * row_bytes;
                (w.ty.dequantize)(&bytes[at..at + row_bytes], &mut stored);
                let first = (row % each) as usize * table.width;
                out.copy_from_slice(&stored[first..first + table.width]);
            }
        }
        self.buffers[out.0] = rows;
        Ok(())
    }
}
