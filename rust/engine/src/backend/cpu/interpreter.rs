//! The interpreter: each op as it is defined, rows and heads in parallel, sums in the order
//! that [`super::product`] specifies. No result depends on how rows are cut into batches.

mod choice;
#[cfg(test)]
mod fusion;
mod products;
mod sequences;
#[cfg(test)]
mod sharing;
mod streams;

use std::sync::Arc;

use super::experts::{self, Gathered};
use super::gates::{
    relu_squared, ClampedSwiGlu, Gate, GeGlu, Gelu, Sigmoid, SoftCap, Softplus, SwiGlu,
};
use super::heads::Attention;
use super::kv::KvCache;
use super::mamba2::Mamba2;
use super::matvec::Scratch;
use super::memory::{most_rows, vector};
use super::recurrence::{DeltaNet, States};
use super::reserve::{filled, reserve};
use super::rowwise::{self, CosSin, LayerNorm, Normed, RmsNorm};
use super::simd::{self, Level};
use crate::backend::{no_drafter, no_hidden, Batch, Kind, KvPages, Runner, RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, RopeTable, TableRow, WeightId};

/// What the plan's buffers hold, in messages.
const ACTIVATIONS: &str = "the activations of the rows";

/// What heads are rotated by.
struct Angles {
    inv_freq: Vec<f64>,
    /// Of the rows of the pass.
    of_rows: CosSin,
}

/// Runs the ops of one plan.
pub struct Interpreter {
    plan: Arc<Plan>,
    weights: Arc<dyn Weights>,
    /// Weights of one row (norms, biases), expanded; `None` for matrices.
    vectors: Vec<Option<Vec<f32>>>,
    buffers: Vec<Vec<f32>>,
    scratch: Scratch,
    normed: Normed,
    gathered: Gathered,
    pub kv: KvCache,
    pub states: States,
    /// What a pass for hidden states runs, and where they then are.
    hidden: Option<(Arc<[Op]>, BufferId)>,
    /// By the plan's tables.
    angles: Vec<Angles>,
    /// Whether any op rotates.
    rotates: bool,
    /// Of the pass, the first of each sequence that could not go on in it.
    failures: Vec<(usize, Error)>,
    pool: Arc<rayon::ThreadPool>,
    level: Level,
}

impl Interpreter {
    /// Checks every weight and takes the memory: that of [`super::needs`], but for the scratch.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a missing weight, [`Error::Memory`], [`Error::Argument`].
    pub fn new(
        plan: Arc<Plan>,
        weights: Arc<dyn Weights>,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let mut vectors = Vec::with_capacity(plan.weights.len());
        for w in &plan.weights {
            weights.of(w)?;
            vectors.push(if w.n_out == 1 {
                let mut v = filled(w.vector_len(), 0.0, "the norms and biases")?;
                weights.vector(w, &mut v)?;
                Some(v)
            } else {
                None
            });
        }
        let angles = |table: &RopeTable| Angles {
            inv_freq: table.frequencies(
                table
                    .factors_in(options.n_ctx)
                    .and_then(|id| vectors[id.0].as_deref()),
            ),
            of_rows: CosSin::default(),
        };
        let angles = plan.ropes.iter().map(angles).collect();
        let kv = KvCache::new(KvPages::new(&plan, options)?)?;
        let states = States::new(&plan, options.n_slots)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("onegraph-cpu-{i}"))
            .build()
            .map_err(|e| Error::Device {
                what: format!("{} CPU threads", options.threads),
                reason: e.to_string(),
                remedy: "ask for fewer threads".into(),
            })?;
        // Taken now, so that no prompt finds less; what is not used costs addresses only.
        let rows = most_rows(&plan, options);
        let mut buffers = vec![Vec::new(); plan.buffers.len()];
        for (buffer, values) in plan.buffers.iter().zip(&mut buffers) {
            let n = buffer.rows.of(rows, options.n_slots);
            reserve(values, n.saturating_mul(buffer.width), ACTIVATIONS)?;
        }
        let level = Level::detect();
        let rotates = plan.ops.iter().any(|op| op.signature().rotation.is_some());
        let hidden = plan.hidden().map(|end| {
            let norm = end.op(plan.buffer(end.x).width);
            let ops = plan.ops[..end.after].iter().cloned().chain(norm);
            (ops.collect(), end.x)
        });
        Ok(Self {
            plan,
            weights,
            vectors,
            buffers,
            scratch: Scratch::default(),
            normed: Normed::default(),
            gathered: Gathered::default(),
            kv,
            states,
            hidden,
            angles,
            rotates,
            failures: Vec::new(),
            pool: Arc::new(pool),
            level,
        })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Which instruction set the products use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Number of worker threads.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `f` on the worker threads.
    pub(super) fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }

    /// As [`States::commit`], of the last pass.
    pub fn commit(&mut self, slot: usize, first: usize, rows: usize) {
        let (pool, level) = (self.pool.clone(), self.level);
        pool.install(|| self.states.commit(level, slot, first, rows));
    }

    /// The rows of a buffer after a step.
    pub fn buffer(&self, id: BufferId) -> &[f32] {
        &self.buffers[id.0]
    }

    /// The logits of the last step, `[out rows, n_vocab]`.
    pub fn logits(&self) -> &[f32] {
        self.buffer(self.plan.logits)
    }

    /// The sequences that could not go on in the last pass, by slot, with the reason. Those beside them
    /// are a token further.
    pub fn take_failures(&mut self) -> Vec<(usize, Error)> {
        std::mem::take(&mut self.failures)
    }

    /// Keeps the error of a sequence, where it is about one; returns whether any of the
    /// batch can.
    fn fail(&mut self, error: Error, batch: &Batch<'_>) -> Result<bool> {
        let Some(slot) = error.slot() else {
            return Err(error);
        };
        if !self.has_failed(slot) {
            self.failures.push((slot, error));
        }
        Ok(!batch
            .slots
            .iter()
            .all(|slot| self.has_failed(*slot as usize)))
    }

    /// The first reason: a later error of the same sequence may only follow from it.
    fn first_failure(&self) -> Result<()> {
        match self.failures.first() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn has_failed(&self, slot: usize) -> bool {
        self.failures.iter().any(|(its, _)| *its == slot)
    }

    /// Runs every op on the rows of `batch`.
    ///
    /// # Errors
    /// [`Error::KvBounds`] where a position is outside the cache, [`Error::KvValues`] where a key or value
    /// is not finite, [`Error::Activations`] where a product has no such rows (the other sequences' rows
    /// are computed and stored, see [`Interpreter::take_failures`]), [`Error::Argument`] for a token that
    /// does not exist, [`Error::Memory`].
    pub fn forward(&mut self, batch: &Batch<'_>) -> Result<()> {
        let plan = self.plan.clone();
        self.run(&plan.ops, batch)
    }

    /// Runs a pass for the hidden states of all rows.
    ///
    /// # Errors
    /// As [`Interpreter::forward`]; [`Error::Internal`] of a plan without.
    pub fn hidden(&mut self, batch: &Batch<'_>) -> Result<()> {
        let (ops, _) = self.hidden.clone().ok_or_else(no_hidden)?;
        self.run(&ops, batch)
    }

    /// The hidden states of the last pass, which was for those, `[rows, n_embd]`.
    pub fn states(&self) -> &[f32] {
        self.hidden.as_ref().map_or(&[], |(_, x)| self.buffer(*x))
    }

    /// Runs the drafter's ops behind a pass, of the same rows; `tokens` are those that follow.
    ///
    /// # Errors
    /// Those of no sequence: what ails one is its drafts' alone.
    pub fn follow(&mut self, batch: &Batch<'_>) -> Result<()> {
        let plan = self.plan.clone();
        match &plan.drafter {
            Some(drafter) => self.draft(&drafter.follow.ops, batch),
            None => Ok(()),
        }
    }

    /// Logits of the tokens behind those of the batch, of which the drafter has [`Drafter::hidden`].
    ///
    /// # Errors
    /// As [`Interpreter::follow`]; [`Error::Internal`] of a plan without a drafter.
    pub fn guess(&mut self, batch: &Batch<'_>) -> Result<&[f32]> {
        let plan = self.plan.clone();
        let drafter = plan.drafter.as_ref().ok_or_else(no_drafter)?;
        self.draft(&drafter.guess.ops, batch)?;
        Ok(self.buffer(drafter.guess.logits))
    }

    fn draft(&mut self, ops: &[Op], batch: &Batch<'_>) -> Result<()> {
        let done = self.run(ops, batch);
        self.failures.clear();
        done.or_else(|e| e.slot().map(drop).ok_or(e))
    }

    /// Sets the rows of a buffer for the next pass.
    pub fn set(&mut self, id: BufferId, rows: &[f32]) {
        self.buffers[id.0].clear();
        self.buffers[id.0].extend_from_slice(rows);
    }

    fn run(&mut self, ops: &[Op], batch: &Batch<'_>) -> Result<()> {
        let rows = batch.tokens.len();
        if batch.positions.len() != rows || batch.slots.len() != rows {
            return Err(Error::Internal(format!(
                "a batch of {rows} tokens, {} positions, {} slots",
                batch.positions.len(),
                batch.slots.len()
            )));
        }
        if let Some(row) = batch.out_rows.iter().find(|r| **r as usize >= rows) {
            return Err(Error::Internal(format!(
                "row {row} of a batch of {rows} is wanted"
            )));
        }
        for (buffer, values) in self.plan.buffers.iter().zip(&mut self.buffers) {
            let n = buffer.rows.of(rows, batch.out_rows.len());
            let n = n.saturating_mul(buffer.width);
            reserve(values, n, ACTIVATIONS)?;
            values.resize(n, 0.0);
        }
        // On a worker thread from end to end: the others look for work between the ops and need
        // not be woken for each.
        let pool = self.pool.clone();
        pool.install(|| self.step(ops, batch))
    }

    fn step(&mut self, ops: &[Op], batch: &Batch<'_>) -> Result<()> {
        let plan = self.plan.clone();
        if self.rotates {
            for (a, table) in self.angles.iter_mut().zip(&plan.ropes) {
                a.of_rows.set(batch.positions, &a.inv_freq, table)?;
            }
        }
        self.failures.clear();
        let mut at = 0;
        while let Some(op) = ops.get(at) {
            at += match op {
                Op::MatVec { .. } => self.products(&ops[at..], batch)?,
                Op::ExpertMatVec { .. } => {
                    self.expert_products(op, batch)?;
                    1
                }
                _ => {
                    // Nothing was written for that row; the step ends as on a device, where the error
                    // word is seen afterwards.
                    if let Err(e) = self.single(op, batch) {
                        self.fail(e, batch)?;
                    }
                    1
                }
            };
        }
        self.first_failure()
    }

    fn vector(&self, id: WeightId) -> Result<&[f32]> {
        vector(&self.plan, &self.vectors, id)
    }

    /// A buffer taken out, so that others may be read while it is written.
    fn take(&mut self, id: BufferId) -> Vec<f32> {
        std::mem::take(&mut self.buffers[id.0])
    }

    fn single(&mut self, op: &Op, batch: &Batch<'_>) -> Result<()> {
        match op {
            Op::MatVec { .. } | Op::ExpertMatVec { .. } => {
                Err(Error::Internal(format!("{op:?} is a product")))
            }
            Op::Route {
                logits,
                bias,
                out,
                gating,
                renormalize,
                scale,
                groups,
            } => {
                let mut routes = self.take(*out);
                let route = experts::Route {
                    bias: bias.map(|id| self.vector(id)).transpose()?,
                    gating: *gating,
                    renormalize: *renormalize,
                    scale: *scale,
                    groups: *groups,
                };
                let (n, k2) = (
                    self.plan.buffer(*logits).width,
                    self.plan.buffer(*out).width,
                );
                let rows = self.buffers[logits.0].chunks_exact(n);
                for (logits, out) in rows.zip(routes.chunks_exact_mut(k2)) {
                    route.row(logits, out);
                }
                self.buffers[out.0] = routes;
                Ok(())
            }
            Op::Gather(_) => Err(Error::Internal("one card's part of a plan".into())),
            Op::RouteAll { out } => {
                let width = self.plan.buffer(*out).width;
                let rows = self.buffers[out.0].chunks_exact_mut(width);
                rows.for_each(experts::route_all);
                Ok(())
            }
            Op::MixExperts { x, routes, out } => {
                let mut mixed = self.take(*out);
                let rows = |id: &BufferId| {
                    let values = self.buffers[id.0].as_slice();
                    (values, self.plan.buffer(*id).width)
                };
                let width = self.plan.buffer(*out).width;
                experts::each_pair(rows(x), rows(routes), (&mut mixed, width), experts::mix);
                self.buffers[out.0] = mixed;
                Ok(())
            }
            Op::Embed { weight, out, scale } => self.embed(*weight, *out, *scale, batch.tokens),
            Op::RmsNorm {
                x,
                weight,
                out,
                group,
                eps,
            } => self.rms_norm(*x, *weight, *out, *group, *eps),
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                eps,
            } => {
                let mut normed = self.take(*out);
                if x != out {
                    normed.copy_from_slice(&self.buffers[x.0]);
                }
                let weight = self.vector(*weight)?;
                let bias = bias.map(|id| self.vector(id)).transpose()?;
                let (level, eps) = (self.level, *eps);
                rowwise::each_row(&mut normed, weight.len(), |_, values| {
                    let norm = LayerNorm {
                        values,
                        weight,
                        bias,
                        eps,
                    };
                    simd::run(level, norm);
                });
                self.buffers[out.0] = normed;
                Ok(())
            }
            Op::AddRow { x, table, row } => {
                let width = self.plan.buffer(*x).width;
                let table = vector(&self.plan, &self.vectors, *table)?;
                rowwise::each_row(&mut self.buffers[x.0], width, |r, values| {
                    let at = match row {
                        TableRow::First => 0,
                        TableRow::Position => batch.positions[r] as usize,
                        TableRow::Type => batch.types.get(r).map_or(0, |of| *of as usize),
                    };
                    match table.chunks_exact(width).nth(at) {
                        Some(row) => values.iter_mut().zip(row).for_each(|(v, t)| *v += t),
                        None => values.fill(f32::NAN),
                    }
                });
                Ok(())
            }
            Op::Rope {
                x,
                n_head,
                table,
                style,
            } => {
                let width = self.plan.buffer(*x).width;
                let (dim, level) = (width / n_head, self.level);
                let cos_sin = &self.angles[*table].of_rows;
                rowwise::each_row(&mut self.buffers[x.0], width, |row, values| {
                    cos_sin.rotate(level, row, values, dim, *style);
                });
                Ok(())
            }
            Op::KvScatter { k, v, layer } => self.kv_scatter(*k, *v, *layer, batch),
            Op::Attention {
                q,
                out,
                layer,
                n_head,
                scale,
                window,
                sinks,
                causal,
                chosen,
            } => {
                let mut heads = self.take(*out);
                let task = Attention {
                    kv: &self.kv,
                    q: &self.buffers[q.0],
                    layer: *layer,
                    n_head: *n_head,
                    scale: *scale,
                    window: *window,
                    causal: *causal,
                    sinks: sinks.map(|id| self.vector(id)).transpose()?,
                    chosen: chosen.map(|of| (self.buffers[of.blocks.0].as_slice(), of)),
                    batch,
                };
                let done = task.run(self.level, &mut heads);
                self.buffers[out.0] = heads;
                done
            }
            Op::Add { x, out } => {
                let mut sum = self.take(*out);
                sum.iter_mut()
                    .zip(&self.buffers[x.0])
                    .for_each(|(o, x)| *o += x);
                self.buffers[out.0] = sum;
                Ok(())
            }
            Op::SwiGlu { gate, up, out } => self.gated::<SwiGlu>([*gate, *up, *out]),
            Op::GeGlu { gate, up, out } => self.gated::<GeGlu>([*gate, *up, *out]),
            Op::ClampedSwiGlu { gate, up, out } => self.gated::<ClampedSwiGlu>([*gate, *up, *out]),
            Op::SigmoidMul { x, gate, out } => self.gated::<Sigmoid>([*gate, *x, *out]),
            Op::SoftplusMul { x, gate, out } => self.gated::<Softplus>([*gate, *x, *out]),
            Op::Slice {
                x,
                out,
                n,
                first,
                of,
            } => {
                let width = self.plan.buffer(*out).width / n;
                let mut slice = self.take(*out);
                let parts = self.buffers[x.0].chunks_exact(*of);
                for (out, part) in slice.chunks_exact_mut(width).zip(parts) {
                    out.copy_from_slice(&part[*first..][..width]);
                }
                self.buffers[out.0] = slice;
                Ok(())
            }
            Op::Concat { x, y, out } => {
                let width = self.plan.buffer(*x).width;
                self.join([*x, *y, *out], [width; 2])
            }
            Op::Join { x, y, out, of, .. } => self.join([*x, *y, *out], *of),
            Op::ShortConv { .. } | Op::GatedConv { .. } => self.short_conv(op, batch),
            Op::Streams(op) => self.streams(op),
            Op::Choice(op) => self.choice(op, batch),
            Op::Ngram(op) => self.ngram(op, batch),
            Op::Mamba2(op) => {
                let mut heads = self.take(op.out);
                let vector = |id| vector(&self.plan, &self.vectors, id);
                let task = Mamba2 {
                    op,
                    projected: &self.buffers[op.projected.0],
                    convolved: &self.buffers[op.convolved.0],
                    a: vector(op.a)?,
                    dt: vector(op.dt)?,
                    d: vector(op.d)?,
                };
                let done = task.run(self.level, &mut self.states, batch, &mut heads);
                self.buffers[op.out.0] = heads;
                done
            }
            Op::DeltaNet {
                qkv,
                alpha,
                beta,
                a,
                dt,
                state,
                out,
                n_head,
                n_head_k,
                grouped,
                head_dim,
                eps,
            } => {
                let mut heads = self.take(*out);
                let task = DeltaNet {
                    qkv: &self.buffers[qkv.0],
                    alpha: &self.buffers[alpha.0],
                    beta: &self.buffers[beta.0],
                    a: vector(&self.plan, &self.vectors, *a)?,
                    dt: vector(&self.plan, &self.vectors, *dt)?,
                    n_head: *n_head,
                    n_head_k: *n_head_k,
                    grouped: *grouped,
                    head_dim: *head_dim,
                    eps: *eps,
                };
                let done = task.run(self.level, &mut self.states, state.0, batch, &mut heads);
                self.buffers[out.0] = heads;
                done
            }
            Op::Gelu { x } => {
                let (width, level) = (self.plan.buffer(*x).width, self.level);
                rowwise::each_row(&mut self.buffers[x.0], width, |_, values| {
                    simd::run(level, Gelu(values));
                });
                Ok(())
            }
            Op::ReluSquared { x } => {
                self.buffers[x.0].iter_mut().for_each(relu_squared);
                Ok(())
            }
            Op::Scale { x, factor } => {
                self.buffers[x.0].iter_mut().for_each(|v| *v *= factor);
                Ok(())
            }
            Op::ScaleBy { x, weight } => {
                let factor = self.vector(*weight)?[0];
                self.buffers[x.0].iter_mut().for_each(|v| *v *= factor);
                Ok(())
            }
            Op::ScaleRanks { routes, weight } => {
                let width = self.plan.buffer(*routes).width;
                let scales = vector(&self.plan, &self.vectors, *weight)?;
                for row in self.buffers[routes.0].chunks_exact_mut(width) {
                    experts::scale_ranks(row, scales);
                }
                Ok(())
            }
            Op::SoftCap { x, cap } => {
                let (width, level) = (self.plan.buffer(*x).width, self.level);
                rowwise::each_row(&mut self.buffers[x.0], width, |_, values| {
                    simd::run(level, SoftCap { values, cap: *cap });
                });
                Ok(())
            }
            Op::SelectRows { x, out } => {
                let width = self.plan.buffer(*x).width;
                let mut selected = self.take(*out);
                for (row, out) in batch.out_rows.iter().zip(selected.chunks_exact_mut(width)) {
                    out.copy_from_slice(&self.buffers[x.0][*row as usize * width..][..width]);
                }
                self.buffers[out.0] = selected;
                Ok(())
            }
        }
    }

    fn join(&mut self, [x, y, out]: [BufferId; 3], of: [usize; 2]) -> Result<()> {
        let mut both = self.take(out);
        let parts = self.buffers[x.0].chunks_exact(of[0]);
        let parts = parts.zip(self.buffers[y.0].chunks_exact(of[1]));
        for (out, (x, y)) in both.chunks_exact_mut(of[0] + of[1]).zip(parts) {
            let (first, second) = out.split_at_mut(of[0]);
            first.copy_from_slice(x);
            second.copy_from_slice(y);
        }
        self.buffers[out.0] = both;
        Ok(())
    }

    fn gated<G: Gate>(&mut self, [gate, x, out]: [BufferId; 3]) -> Result<()> {
        let mut product = self.take(out);
        let (gate, x) = (&self.buffers[gate.0], &self.buffers[x.0]);
        rowwise::gated::<G>(self.level, gate, x, &mut product);
        self.buffers[out.0] = product;
        Ok(())
    }

    fn embed(&mut self, weight: WeightId, out: BufferId, scale: f32, tokens: &[u32]) -> Result<()> {
        let w = self.plan.weight(weight);
        let table = self.weights.bytes(&w.name)?;
        let row_bytes = table.len() / w.n_out;
        for (token, out) in tokens
            .iter()
            .zip(self.buffers[out.0].chunks_exact_mut(w.n_in))
        {
            let token = *token as usize;
            if token >= w.n_out {
                return Err(Error::Argument {
                    name: "token",
                    value: token.to_string(),
                    reason: format!("the vocabulary has {} tokens", w.n_out),
                });
            }
            (w.ty.dequantize)(&table[token * row_bytes..][..row_bytes], out);
            out.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: BufferId,
        weight: Option<WeightId>,
        out: BufferId,
        group: usize,
        eps: f32,
    ) -> Result<()> {
        let mut normed = self.take(out);
        if x != out {
            normed.copy_from_slice(&self.buffers[x.0]);
        }
        let weight = weight.map(|id| self.vector(id)).transpose()?;
        let level = self.level;
        rowwise::each_row(&mut normed, group, |at, values| {
            let norm = RmsNorm {
                values,
                weight: weight.map(|of| &of[at * group % of.len()..][..group]),
                eps,
            };
            simd::run(level, norm);
        });
        self.buffers[out.0] = normed;
        Ok(())
    }

    fn kv_scatter(
        &mut self,
        k: BufferId,
        v: BufferId,
        layer: usize,
        batch: &Batch<'_>,
    ) -> Result<()> {
        let width = self.plan.buffer(k).width;
        let keys = self.take(k);
        // Of some layers the same.
        let values = (v != k).then(|| self.take(v));
        let rows = keys.chunks_exact(width);
        let rows = rows.zip(values.as_ref().unwrap_or(&keys).chunks_exact(width));
        let places = batch.positions.iter().zip(batch.slots);
        let done = rows.zip(places).try_for_each(|((k, v), (position, slot))| {
            let (position, slot) = (*position as usize, *slot as usize);
            match self.kv.scatter(layer, slot, position, k, v) {
                Ok(()) => Ok(()),
                // Every sequence has its own.
                Err(e) => self.fail(e, batch).map(drop),
            }
        });
        self.buffers[k.0] = keys;
        if let Some(values) = values {
            self.buffers[v.0] = values;
        }
        done
    }
}

impl Runner for Interpreter {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        self.kv.map_pages(Kind::Whole, slot, first, pages)
    }

    fn write(&mut self, id: BufferId, rows: &[f32]) -> Result<()> {
        self.set(id, rows);
        Ok(())
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<()> {
        Interpreter::forward(self, batch)
    }

    fn read(&mut self, id: BufferId) -> Result<Vec<f32>> {
        Ok(self.buffer(id).to_vec())
    }

    fn saturated(&self, slot: usize) -> bool {
        self.kv.saturated(slot)
    }

    fn read_kv(&mut self) -> Result<Vec<u8>> {
        Ok(self.kv.raw().to_vec())
    }

    fn read_state(&mut self, slot: usize) -> Result<Vec<f32>> {
        self.states.read(slot)
    }

    fn write_state(&mut self, slot: usize, values: &[f32]) -> Result<()> {
        self.states.write(slot, values)
    }

    fn write_kv(&mut self, bytes: &[u8]) -> Result<()> {
        let pool = self.kv.raw_mut();
        if pool.len() != bytes.len() {
            return Err(Error::Argument {
                name: "kv",
                value: format!("{} bytes", bytes.len()),
                reason: format!("the pool has {} bytes", pool.len()),
            });
        }
        pool.copy_from_slice(bytes);
        Ok(())
    }
}
