//! Ops that take a state from token to token: each sequence's rows in order, sequences and heads in
//! parallel.

use rayon::prelude::*;

use super::gates::{exp_down, finite_sigmoid, sigmoid, softplus};
use super::reserve::filled;
use super::rowwise::{root_factor, sum_of_squares};
use super::simd::{self, Isa, Level, Task};
use crate::backend::storage::check_bytes;
use crate::backend::{check_state, not_below, Batch, ROUND_ROWS};
use crate::error::{Error, Result};
use crate::plan::{Op, Plan, RowPart};

/// Most numbers of a head of the delta rule.
pub const MOST_HEAD_DIM: usize = 256;

/// The states of all sequences.
pub struct States {
    /// By the plan's states, `[n_slots][width]`.
    values: Vec<Vec<f32>>,
    n_slots: usize,
    /// By the plan's states, what a round keeps of its rows, `[ROUND_ROWS][width]`: of a convolution its
    /// inputs; of a matrix a head what [`Update`] has, `[n_head][rows + columns + 1]`.
    kept: Vec<Vec<f32>>,
    /// By the plan's states, rows and columns of a head's matrix, where there are heads.
    matrices: Vec<Option<[usize; 2]>>,
    /// Whether passes leave the states as they are and keep what [`States::commit`] needs.
    pub is_round: bool,
}

/// The rows of one sequence in a batch.
pub struct Run {
    slot: usize,
    pub first: usize,
    pub rows: usize,
    /// Whether the sequence begins with them.
    is_start: bool,
}

/// Sequences of a batch, each with its state.
pub type Runs<'a> = Vec<(Run, &'a mut [f32])>;

impl States {
    /// Takes their memory.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(plan: &Plan, n_slots: usize) -> Result<Self> {
        let zeros = |width: usize, n: usize| filled(width.saturating_mul(n), 0.0, "the states");
        let values = plan.states.iter().map(|s| zeros(s.width, n_slots));
        let kept = plan.kept_widths().into_iter();
        let kept = kept.map(|width| zeros(width, ROUND_ROWS));
        let mut matrices = vec![None; plan.states.len()];
        for op in &plan.ops {
            match op {
                Op::DeltaNet {
                    state, head_dim, ..
                } => matrices[state.0] = Some([*head_dim; 2]),
                Op::Mamba2(op) => matrices[op.state.0] = Some([op.d_state, op.head_dim]),
                _ => {}
            }
        }
        Ok(Self {
            values: values.collect::<Result<_>>()?,
            n_slots,
            kept: kept.collect::<Result<_>>()?,
            matrices,
            is_round: false,
        })
    }

    /// Brings the states of `slot` forward by so many of its `rows` of the round's pass, from the row
    /// `first` of that on: the bits are those of passes over these rows alone.
    pub fn commit(&mut self, level: Level, slot: usize, first: usize, rows: usize) {
        let both = self.values.iter_mut().zip(&self.kept);
        for ((values, kept), matrix) in both.zip(&self.matrices) {
            let width = values.len() / self.n_slots.max(1);
            let state = &mut values[slot * width..(slot + 1) * width];
            let kept_width = kept.len() / ROUND_ROWS;
            let rows = &kept[first * kept_width..(first + rows) * kept_width];
            if let Some([keys, columns]) = *matrix {
                let heads = state.par_chunks_exact_mut(keys * columns).enumerate();
                heads.for_each(|(head, state)| {
                    let rows = rows.chunks_exact(kept_width);
                    let width = keys + columns + 1;
                    let of_head = head * width..(head + 1) * width;
                    let rows = rows.map(|row| &row[of_head.clone()]).collect();
                    simd::run(level, Updates { state, keys, rows });
                });
            } else {
                let newest = rows.len().min(width);
                state.copy_within(newest.., 0);
                state[width - newest..].copy_from_slice(&rows[rows.len() - newest..]);
            }
        }
    }

    /// The states of `slot`, one after another.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot that does not exist.
    pub fn read(&self, slot: usize) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for values in &self.values {
            let width = values.len() / self.n_slots.max(1);
            let state = values.get(slot * width..(slot + 1) * width);
            all.extend_from_slice(state.ok_or_else(|| not_below("slot", slot, self.n_slots))?);
        }
        Ok(all)
    }

    /// Gives `slot` states that [`States::read`] gave, of any slot.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot that does not exist or another number of values.
    pub fn write(&mut self, slot: usize, values: &[f32]) -> Result<()> {
        if slot >= self.n_slots {
            return Err(not_below("slot", slot, self.n_slots));
        }
        let n_slots = self.n_slots;
        let widths = self.values.iter().map(|values| values.len() / n_slots);
        check_state(values.len(), widths.sum())?;
        let mut rest = values;
        for values in &mut self.values {
            let width = values.len() / n_slots;
            let (state, more) = rest.split_at(width);
            values[slot * width..(slot + 1) * width].copy_from_slice(state);
            rest = more;
        }
        Ok(())
    }

    /// The bytes of the states of `slot`, one after another.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot that does not exist, [`Error::Internal`] for another number of
    /// bytes.
    pub fn read_bytes(&self, slot: usize, to: &mut [u8]) -> Result<()> {
        let states = self.read(slot)?;
        let bytes: &[u8] = bytemuck::cast_slice(&states);
        check_bytes("state", to.len(), bytes.len())?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    /// The reverse of [`States::read_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn write_bytes(&mut self, slot: usize, from: &[u8]) -> Result<()> {
        self.write(slot, &bytemuck::pod_collect_to_vec::<u8, f32>(from))
    }

    /// The states numbered `at` of the sequences of a batch, with their rows; padding has none. And of a
    /// round, where to keep what of its rows.
    ///
    /// # Errors
    /// [`Error::Internal`] where rows of a sequence are apart, or too many for a round.
    pub fn of(&mut self, at: usize, batch: &Batch<'_>) -> Result<(Runs<'_>, &mut [f32])> {
        if self.is_round && batch.slots.len() > ROUND_ROWS {
            let rows = batch.slots.len();
            return Err(Error::Internal(format!("a round of {rows} rows")));
        }
        let mut runs = Vec::new();
        let mut first = 0;
        for rows in batch.slots.chunk_by(|a, b| a == b) {
            let run = Run {
                slot: rows[0] as usize,
                first,
                rows: rows.len(),
                is_start: batch.positions[first] == 0,
            };
            first += rows.len();
            if run.slot < self.n_slots {
                runs.push(run);
            }
        }
        runs.sort_by_key(|run| run.slot);
        if let Some(twice) = runs.windows(2).find(|two| two[0].slot == two[1].slot) {
            return Err(Error::Internal(format!(
                "rows of slot {} stand apart in a batch",
                twice[0].slot
            )));
        }
        let values = &mut self.values[at];
        let width = (values.len() / self.n_slots.max(1)).max(1);
        let mut runs = runs.into_iter().peekable();
        let mut found = Vec::new();
        for (slot, state) in values.chunks_exact_mut(width).enumerate() {
            if let Some(run) = runs.next_if(|run| run.slot == slot) {
                if run.is_start {
                    state.fill(0.0);
                }
                found.push((run, state));
            }
        }
        let kept = match self.is_round {
            true => &mut self.kept[at][..],
            false => &mut [],
        };
        Ok((found, kept))
    }
}

/// What stands around a short convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Around {
    Nothing,
    /// [`crate::plan::Op::ShortConv`] with `silu`.
    Silu,
    /// [`crate::plan::Op::GatedConv`].
    Gates,
}

/// [`crate::plan::Op::ShortConv`] and [`crate::plan::Op::GatedConv`].
pub struct ShortConv<'a> {
    /// `[rows][channels]`; with gates `[rows][3][channels]`.
    pub x: &'a [f32],
    /// Where the channels are in a row of x, where that has more.
    pub part: Option<RowPart>,
    /// `[channels][taps]`.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    pub taps: usize,
    pub around: Around,
    /// Tokens from one tap to the next.
    pub dilation: usize,
}

impl ShortConv<'_> {
    /// Writes `out`, `[rows][channels]`.
    ///
    /// # Errors
    /// As [`States::of`].
    pub fn run(
        &self,
        level: Level,
        states: &mut States,
        at: usize,
        batch: &Batch<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let channels = self.weight.len() / self.taps;
        let width = match (self.around, self.part) {
            (Around::Gates, _) => 3 * channels,
            (_, Some(part)) => part.of,
            (_, None) => channels,
        };
        out.fill(0.0);
        let (runs, kept) = states.of(at, batch)?;
        for (run, state) in runs {
            let (first, end) = (run.first * channels, (run.first + run.rows) * channels);
            let mut copy = Vec::new();
            let kept = kept.get_mut(first..end);
            let task = Convolution {
                op: self,
                x: &self.x[width * run.first..width * (run.first + run.rows)],
                width,
                state: match kept.is_some() {
                    true => {
                        copy.extend_from_slice(state);
                        &mut copy
                    }
                    false => state,
                },
                kept: kept.unwrap_or_default(),
                out: &mut out[first..end],
            };
            simd::run(level, task);
        }
        Ok(())
    }
}

/// The rows of one sequence.
struct Convolution<'a, 'b> {
    op: &'a ShortConv<'a>,
    /// `[rows][width]`.
    x: &'a [f32],
    width: usize,
    /// `[(taps - 1) * dilation][channels]`.
    state: &'b mut [f32],
    /// Takes the inputs of a round, `[rows][channels]`; else empty.
    kept: &'b mut [f32],
    /// Zeros.
    out: &'b mut [f32],
}

impl Task for Convolution<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            op,
            x,
            width,
            state,
            kept,
            out,
        } = self;
        let mut kept = kept.chunks_exact_mut(op.weight.len() / op.taps);
        let channels = op.weight.len() / op.taps;
        let newest = state.len() - channels;
        let first = op.part.map_or(0, |part| part.first);
        let rows = x.chunks_exact(width).map(|row| &row[first..]);
        for (row, out) in rows.zip(out.chunks_exact_mut(channels)) {
            if let Some(bias) = op.bias {
                out.copy_from_slice(bias);
            }
            let mut add = |j: usize, inputs: &[f32]| {
                let weights = op.weight.chunks_exact(op.taps);
                for ((y, x), w) in out.iter_mut().zip(inputs).zip(weights) {
                    *y = w[j].mul_add(*x, *y);
                }
            };
            let before = state.chunks_exact(channels).step_by(op.dilation);
            let before = before.enumerate();
            before.for_each(|(j, inputs)| add(j, inputs));
            state.copy_within(channels.., 0);
            let inputs = &mut state[newest..];
            if op.around == Around::Gates {
                let (b, u) = (&row[..channels], &row[2 * channels..]);
                for ((input, b), u) in inputs.iter_mut().zip(b).zip(u) {
                    *input = b * u;
                }
            } else {
                inputs.copy_from_slice(&row[..channels]);
            }
            add(op.taps - 1, inputs);
            if let Some(kept) = kept.next() {
                kept.copy_from_slice(inputs);
            }
            match op.around {
                Around::Nothing => {}
                Around::Silu => out.iter_mut().for_each(|y| *y *= sigmoid(*y)),
                Around::Gates => {
                    for (y, c) in out.iter_mut().zip(&row[channels..]) {
                        *y *= c;
                    }
                }
            }
        }
    }
}

/// [`crate::plan::Op::DeltaNet`].
pub struct DeltaNet<'a> {
    /// `[rows][2 * n_head_k + n_head][head_dim]`.
    pub qkv: &'a [f32],
    /// `[rows][n_head]`.
    pub alpha: &'a [f32],
    /// The same.
    pub beta: &'a [f32],
    /// `[n_head]`.
    pub a: &'a [f32],
    /// The same.
    pub dt: &'a [f32],
    pub n_head: usize,
    pub n_head_k: usize,
    pub grouped: bool,
    pub head_dim: usize,
    pub eps: f32,
}

/// One head of the rows of one sequence.
struct Head<'a, 'b> {
    op: &'a DeltaNet<'a>,
    head: usize,
    first: usize,
    /// `[head_dim][head_dim]`.
    state: &'b mut [f32],
    /// `[rows][head_dim]`.
    out: Vec<&'b mut [f32]>,
    /// Of a round, `[rows][2 * head_dim + 1]`; else empty.
    kept: Vec<&'b mut [f32]>,
}

/// The updates of a head's state by rows that were kept.
struct Updates<'a> {
    /// `[keys][columns]`.
    state: &'a mut [f32],
    keys: usize,
    /// Of each [`Update`] one number after another.
    rows: Vec<&'a [f32]>,
}

/// How a row brings a head's state forward: by [`crate::plan::Op::DeltaNet`]'s `K`, `w` and `g`, or
/// [`crate::plan::Mamba2`]'s `B`, `u` and `g`.
#[derive(Clone, Copy)]
pub struct Update<'a> {
    pub k: &'a [f32],
    pub w: &'a [f32],
    pub g: f32,
}

impl Task for Updates<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let (k, rest) = row.split_at(self.keys);
            let (w, g) = rest.split_at(rest.len() - 1);
            Update { k, w, g: g[0] }.apply(self.state);
        }
    }
}

impl Update<'_> {
    /// `S[i][c] = fma(K[i], w[c], g * S[i][c])`.
    #[inline(always)]
    fn apply(&self, state: &mut [f32]) {
        let Self { k, w, g } = *self;
        for (row, k) in state.chunks_exact_mut(w.len()).zip(k) {
            for (s, w) in row.iter_mut().zip(w) {
                *s = k.mul_add(*w, g * *s);
            }
        }
    }

    /// Where a round keeps it.
    #[inline(always)]
    pub fn keep(&self, to: &mut [f32]) {
        let (k, rest) = to.split_at_mut(self.k.len());
        let (w, g) = rest.split_at_mut(self.w.len());
        k.copy_from_slice(self.k);
        w.copy_from_slice(self.w);
        g[0] = self.g;
    }
}

impl DeltaNet<'_> {
    /// Writes `out`, `[rows][n_head][head_dim]`.
    ///
    /// # Errors
    /// As [`States::of`]; [`Error::Internal`] for heads that are too wide.
    pub fn run(
        &self,
        level: Level,
        states: &mut States,
        at: usize,
        batch: &Batch<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let dim = self.head_dim;
        if dim > MOST_HEAD_DIM {
            return Err(Error::Internal(format!("a delta rule of {dim} numbers")));
        }
        out.fill(0.0);
        // By row and head.
        let mut outs: Vec<Option<&mut [f32]>> = out.chunks_exact_mut(dim).map(Some).collect();
        let mut heads = Vec::new();
        let (runs, kept) = states.of(at, batch)?;
        let mut kept: Vec<Option<&mut [f32]>> =
            kept.chunks_exact_mut(2 * dim + 1).map(Some).collect();
        for (run, state) in runs {
            for (head, state) in state.chunks_exact_mut(dim * dim).enumerate() {
                let rows = (run.first..run.first + run.rows).map(|row| row * self.n_head + head);
                let kept = rows.clone().filter_map(|at| kept.get_mut(at)?.take());
                heads.push(Head {
                    op: self,
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

    /// `(g, b)` of a row and head.
    #[inline(always)]
    fn gates(&self, row: usize, head: usize) -> (f32, f32) {
        let at = row * self.n_head + head;
        // Of an infinite sum none: a state that stays whole, or not at all, would hide it.
        let exponent = self.a[head] * softplus(self.alpha[at] + self.dt[head]);
        let g = if exponent > 0.0 {
            1.0
        } else {
            exp_down(exponent)
        };
        (g, finite_sigmoid(self.beta[at]))
    }
}

/// Chains of a sum over the rows of a state.
const CHAINS: usize = 4;

/// `sum_i S[i][c] x[i]` for each column `c`.
#[inline(always)]
fn weighted_rows(state: &[f32], dim: usize, x: &[f32], out: &mut [f32; MOST_HEAD_DIM]) {
    let mut chains = [[0.0f32; MOST_HEAD_DIM]; CHAINS];
    for (i, (row, x)) in state.chunks_exact(dim).zip(x).enumerate() {
        for (y, s) in chains[i % CHAINS].iter_mut().zip(row) {
            *y = s.mul_add(*x, *y);
        }
    }
    let [a, b, c, d] = &chains;
    for (i, y) in out.iter_mut().enumerate().take(dim) {
        *y = (a[i] + b[i]) + (c[i] + d[i]);
    }
}

/// `x` times `factor / sqrt(sum of squares + eps)`.
#[inline(always)]
fn direction(x: &[f32], eps: f32, factor: f32, out: &mut [f32; MOST_HEAD_DIM]) {
    let f = root_factor(sum_of_squares(x) + eps);
    let f = f * factor;
    for (y, x) in out.iter_mut().zip(x) {
        *y = x * f;
    }
}

impl Task for Head<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            op,
            head,
            first,
            state,
            out,
            kept,
        } = self;
        let dim = op.head_dim;
        let mut copy = Vec::new();
        let state = match kept.is_empty() {
            true => state,
            false => {
                copy.extend_from_slice(state);
                &mut copy
            }
        };
        let mut kept = kept.into_iter();
        let key = match op.grouped {
            true => head / (op.n_head / op.n_head_k),
            false => head % op.n_head_k,
        };
        let scale = (1.0 / (dim as f64).sqrt()) as f32;
        let mut q = [0.0; MOST_HEAD_DIM];
        let mut k = [0.0; MOST_HEAD_DIM];
        let mut sums = [0.0; MOST_HEAD_DIM];
        for (row, out) in (first..).zip(out) {
            let heads = 2 * op.n_head_k + op.n_head;
            let part = |at: usize| &op.qkv[(row * heads + at) * dim..][..dim];
            direction(part(key), op.eps, scale, &mut q);
            direction(part(op.n_head_k + key), op.eps, 1.0, &mut k);
            let v = part(2 * op.n_head_k + head);
            let (g, b) = op.gates(row, head);
            weighted_rows(state, dim, &k, &mut sums);
            for (w, v) in sums.iter_mut().zip(v) {
                *w = (-g).mul_add(*w, *v) * b;
            }
            let update = Update {
                k: &k[..dim],
                w: &sums[..dim],
                g,
            };
            if let Some(kept) = kept.next() {
                update.keep(kept);
            }
            update.apply(state);
            weighted_rows(state, dim, &q, &mut sums);
            out.copy_from_slice(&sums[..dim]);
        }
    }
}
