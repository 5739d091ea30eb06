//! Sequences on the card. Position, token, sampler and finished flag live in device memory; a decode
//! step is one graph replay, which advances them and appends the drawn tokens to a ring in mapped
//! host memory. The host queues steps ahead and reads the ring; it never waits between tokens.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compile::Variant;
use super::device::{Context, DeviceBuffer, HostBuffer};
use super::dispatch::{Dispatch, StepKey, Way};
use super::graph::Graph;
use super::launch::{run_all, Launch, Spec};
use super::model::{CudaModel, Inputs, LoadTimes, Options, Path, RowBuffers};
use super::prefill::{check_chunk, Passes};
use super::sample::{Record, Sampling, RING_STEPS};
use super::steps::{capture, capture_failure, step_name, Step, Steps};
use crate::backend::{
    Backend, Event, Finish, GoOn, GpuOptions, GraphCheck, GraphMode, GraphProfile, GraphQuestion,
    Limits, LogitsPath, RunnerOptions, SharedStats, SlotRequest, StepCheck, Weights,
};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::sampler;

/// Decode steps queued before their tokens are read: one runs, one waits.
const QUEUE_DEPTH: usize = 2;

/// Rows of one pass where all give logits, which take much memory.
const LOGIT_ROWS: usize = 64;

/// How long a step may take before it is taken for hung.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Decodes on a card.
pub struct CudaBackend {
    // Graphs go first: they use what the others own.
    pub(super) steps: Steps,
    one_row: Option<Graph>,
    pub(super) passes: Passes,
    pub(super) limits: Limits,
    pub(super) sampling: Sampling,
    /// Rows of decode steps.
    rows: RowBuffers,
    /// What `rows.state_slots` holds.
    row_slots: Vec<u32>,
    ring: HostBuffer,
    step: DeviceBuffer,
    /// Number of the last step queued.
    pub(super) number: u32,
    /// Number of the last request started.
    epoch: u64,
    queued: VecDeque<Queued>,
    slots: Vec<Option<Sequence>>,
    events: Vec<Event>,
    /// Whether the last step asked for had no sequence to decode.
    idle: bool,
    load_times: LoadTimes,
    pub(super) model: CudaModel,
}

/// A step whose tokens were not read.
struct Queued {
    number: u32,
    /// Slot and request of each row; rows behind them are padding.
    rows: Vec<(usize, u64)>,
    decode: bool,
}

/// What the host knows of a slot; the card knows more.
struct Sequence {
    /// Which request this is: records of an earlier one are dropped.
    epoch: u64,
    generated: usize,
    /// Whether the last record read left it decoding.
    live: bool,
    logprobs: Option<usize>,
}

/// Is told what loading does, how much is done and how much there is; may break it off.
pub type Progress<'a> = &'a dyn Fn(String, u64, u64) -> Result<()>;

/// Runs of a step before it is captured: what a first launch sets up is no part of a capture.
const WARM_UPS: usize = 2;

impl CudaBackend {
    /// Uploads the model and captures the step of one row.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Memory`], [`Error::Tensor`], [`Error::Argument`].
    pub fn new(
        ordinal: usize,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let context = Context::new(ordinal)?;
        let mut backend = Self::on(&context, plan, weights, options)?;
        let keys = backend.steps.at_load(options.gpu.warmup);
        let mut specs = Vec::new();
        for key in &keys {
            specs.extend(backend.step_specs(key.rows)?);
        }
        let told = |done, total| progress("weights".into(), done, total);
        backend.load_times = backend.model.load(weights, &specs, &told)?;
        let total = keys.len() as u64;
        for (done, key) in (0..).zip(keys) {
            let gib = backend.model.context.memory()?.0 as f64 / f64::from(1 << 30);
            let stage = format!("capture batch {}, {gib:.1} GiB free", key.rows);
            progress(stage, done, total)?;
            backend.prepare(key)?;
        }
        Ok(backend)
    }

    /// All the memory that is ever taken at once, on a card that may be only described.
    pub(super) fn on(
        context: &Arc<Context>,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let GpuOptions {
            mode,
            fuse,
            pdl,
            ref nvrtc_folders,
            ref batch_sizes,
            max_batch,
            padding,
            prefill_chunk,
            ..
        } = options.gpu;
        check_chunk(prefill_chunk)?;
        let max_rows = options.n_slots.max(prefill_chunk);
        let max_out = options.n_slots.max(LOGIT_ROWS);
        let n_vocab = plan.buffer(plan.logits).width;
        let model = CudaModel::new(
            context,
            plan,
            weights,
            Options {
                n_slots: options.n_slots,
                n_ctx: options.n_ctx,
                n_pages: options.n_pages,
                kv_type: options.kv_type,
                max_rows,
                max_out,
                fuse,
                pdl,
                nvrtc_folders: nvrtc_folders.clone(),
            },
        )?;
        let sampling = Sampling::new(
            context,
            &model.stream,
            options.n_slots,
            n_vocab,
            options.n_ctx,
            max_out,
        )?;
        let step = DeviceBuffer::new(context, 4)?;
        // The first step is number 1: zero is an empty place of the ring.
        step.write(0, &[0u32], &model.stream)?;
        let n_slots = options.n_slots;
        let most = max_batch.unwrap_or(n_slots);
        let dispatch = Dispatch::new(mode, batch_sizes.as_deref(), most, n_slots, padding);
        let limits = Limits {
            device: format!("cuda:{} ({})", context.info.ordinal, context.info.name),
            n_vocab,
            n_slots: options.n_slots,
            n_ctx: options.n_ctx,
            n_pages: options.n_pages,
            queue_depth: QUEUE_DEPTH,
        };
        let rows = RowBuffers::new(context, max_out)?;
        // Every logit row is wanted, in order.
        let in_order: Vec<u32> = (0..max_out as u32).collect();
        rows.out_rows.write(0, &in_order, &model.stream)?;
        let backend = Self {
            steps: Steps::new(mode, dispatch),
            one_row: None,
            passes: Passes::new(prefill_chunk, mode != GraphMode::None),
            sampling,
            rows,
            row_slots: Vec::new(),
            ring: HostBuffer::new(context, RING_STEPS * max_out * 8)?,
            step,
            number: 0,
            epoch: 0,
            queued: VecDeque::new(),
            slots: (0..limits.n_slots).map(|_| None).collect(),
            events: Vec::new(),
            idle: false,
            load_times: LoadTimes::default(),
            limits,
            model,
        };
        if context.is_described() {
            backend.model.load(weights, &[], &|_, _| Ok(()))?;
        }
        Ok(backend)
    }

    pub(super) fn draw_specs(&self, rows: usize, row_slots: u64) -> Vec<Spec> {
        let logits = self.model.buffer(self.model.plan.logits).address();
        self.sampling.specs(
            logits,
            row_slots,
            rows,
            self.ring.address(),
            self.step.address(),
        )
    }

    /// A decode step of `bucket` rows, drawing included.
    pub(super) fn step_specs(&self, bucket: usize) -> Result<Vec<Spec>> {
        let inputs = Inputs {
            state: self.sampling.state_address(),
            ..self.rows.inputs()
        };
        let mut specs = self.model.step_specs(bucket, &inputs)?;
        specs.extend(self.draw_specs(bucket, inputs.state_slots));
        Ok(specs)
    }

    /// Every kernel that loading, prompts and steps may run.
    pub(super) fn variants(&self) -> Result<Vec<Variant>> {
        let mut specs = self.prompt_specs()?;
        // A step of more rows has the kernels of eight.
        for rows in 1..=self.limits.n_slots.min(8) {
            specs.extend(self.step_specs(rows)?);
        }
        let used = specs.into_iter().map(|s| s.variant);
        Ok(used.chain(self.model.repack_variants()).collect())
    }

    /// Bytes of weights, and of keys and values.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let model = &self.model;
        (model.weight_bytes() as u64, model.kv.bytes() as u64)
    }

    /// Bytes of all buffers on the card now, and the most that there were at once.
    pub fn taken(&self) -> (usize, usize) {
        self.model.context.taken()
    }

    /// How long the parts of loading took.
    pub fn load_times(&self) -> LoadTimes {
        self.load_times
    }

    /// Has a step ready: captured, or as a list.
    pub(super) fn prepare(&mut self, key: StepKey) -> Result<()> {
        if self.steps.get(key).is_some() {
            return Ok(());
        }
        let begun = Instant::now();
        let launches = self.model.compile(self.step_specs(key.rows)?)?;
        if key.way != Way::Eager {
            let free = self.model.context.memory()?.0;
            self.warm_up(&launches, key.rows)
                .map_err(|e| capture_failure(e, &step_name(key.rows), free))?;
        }
        self.steps.add(key, launches, begun, &self.model.stream)
    }

    /// Queues a step that is ready.
    pub(super) fn run_step(&self, key: StepKey) -> Result<()> {
        let Some(step) = self.steps.get(key) else {
            return Err(Error::Internal(format!("{key:?} is not ready")));
        };
        if cfg!(debug_assertions) {
            self.check_unmoved(step, key.rows)?;
        }
        step.run(&self.model.stream)
    }

    /// A graph holds the addresses of its capture: a buffer that was moved since would be read where
    /// it was.
    fn check_unmoved(&self, step: &Step, rows: usize) -> Result<()> {
        let now = self.step_specs(rows)?;
        let moved = step
            .launches()
            .into_iter()
            .zip(now)
            .find(|(launch, now)| launch.spec != *now);
        match moved {
            None => Ok(()),
            Some((launch, _)) => Err(Error::Internal(format!(
                "{} was captured with other addresses than it has now",
                launch.spec.label
            ))),
        }
    }

    /// Runs a step of padding alone, which changes nothing but the number of the step.
    fn warm_up(&mut self, launches: &[Launch], rows: usize) -> Result<()> {
        self.set_row_slots(Vec::new(), rows)?;
        for _ in 0..WARM_UPS {
            run_all(launches, &self.model.stream)?;
            self.next_number();
        }
        // A kernel that fails is this step's.
        self.model.stream.synchronize()
    }

    /// Says which slots the rows of the next steps are; the rest of `rows` is padding.
    pub(super) fn set_row_slots(&mut self, mut slots: Vec<u32>, rows: usize) -> Result<()> {
        slots.resize(rows, self.limits.n_slots as u32);
        if slots != self.row_slots {
            // In stream order: queued steps still see the old rows.
            self.rows.state_slots.write(0, &slots, &self.model.stream)?;
            self.row_slots = slots;
        }
        Ok(())
    }

    fn sequence(&mut self, slot: usize) -> Result<&mut Sequence> {
        self.slots
            .get_mut(slot)
            .and_then(Option::as_mut)
            .ok_or_else(|| Error::Internal(format!("slot {slot} has no sequence")))
    }

    /// Waits for all that is queued on the card; a refused token is an error.
    pub(super) fn settle(&self) -> Result<()> {
        self.model.stream.synchronize()?;
        self.model.kv.take_error().map_or(Ok(()), Err)
    }

    pub(super) fn next_number(&mut self) -> u32 {
        // 2^32 steps take months; the ring would only miss a step then.
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// The record of row `row` of step `number`, once it is there.
    fn record(&self, number: u32, row: usize) -> Option<Record> {
        let place = number as usize % RING_STEPS * self.model.max_out() + row;
        let record = Record::new(self.ring.words().get(place)?.load(Ordering::Acquire));
        (record.step == number).then_some(record)
    }

    /// Waits for the records of the oldest queued step.
    fn await_oldest(&self) -> Result<()> {
        let Some(step) = self.queued.front() else {
            return Ok(());
        };
        let begun = Instant::now();
        for row in 0..step.rows.len() {
            let mut turns = 0u32;
            while self.record(step.number, row).is_none() {
                turns = turns.wrapping_add(1);
                if !turns.is_multiple_of(1024) {
                    std::hint::spin_loop();
                    continue;
                }
                // A failed kernel never writes its record.
                if self.model.stream.is_idle()? && self.record(step.number, row).is_none() {
                    return Err(Error::Internal(format!(
                        "decode step {} ended without the token of row {row}",
                        step.number
                    )));
                }
                if begun.elapsed() > STEP_TIMEOUT {
                    return Err(Error::Device {
                        what: self.limits.device.clone(),
                        reason: format!("a decode step took more than {STEP_TIMEOUT:?}"),
                        remedy: "check the card with nvidia-smi; restart the process".into(),
                    });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Turns the records of a finished step into events.
    fn collect(&mut self, step: &Queued) -> Result<()> {
        for (row, (slot, epoch)) in step.rows.iter().enumerate() {
            let Some(record) = self.record(step.number, row) else {
                continue;
            };
            let current = self.slots.get_mut(*slot).and_then(Option::as_mut);
            // A record of an earlier request, or of a step after the sequence had ended.
            let Some(sequence) = current.filter(|s| s.epoch == *epoch && record.live) else {
                continue;
            };
            let Record { token, finish, .. } = record;
            let index = sequence.generated;
            sequence.generated += 1;
            sequence.live = finish.is_none();
            let wanted = sequence.logprobs;
            let logprobs = match wanted {
                Some(n) if !matches!(finish, Some(Finish::Failed(_))) => {
                    Some(sampler::logprobs(&self.logits_row(row)?, token, n)?)
                }
                _ => None,
            };
            self.events.push(Event {
                slot: *slot,
                index,
                token,
                finish,
                logprobs,
            });
        }
        Ok(())
    }

    fn logits_row(&self, row: usize) -> Result<Vec<f32>> {
        let mut logits = vec![0.0; self.limits.n_vocab];
        let buffer = self.model.buffer(self.model.plan.logits);
        buffer.read(row * logits.len() * 4, &mut logits, &self.model.stream)?;
        Ok(logits)
    }

    fn wants_logprobs(&self) -> bool {
        self.slots
            .iter()
            .flatten()
            .any(|s| s.live && s.logprobs.is_some())
    }

    /// Reads every finished step; with `wait`, the oldest one for sure.
    fn read_ring(&mut self, wait: bool) -> Result<()> {
        if wait {
            self.await_oldest()?;
        }
        while let Some(step) = self.queued.front() {
            if (0..step.rows.len()).any(|row| self.record(step.number, row).is_none()) {
                break;
            }
            if let Some(step) = self.queued.pop_front() {
                self.collect(&step)?;
            }
        }
        self.model.kv.take_error().map_or(Ok(()), Err)
    }

    /// Reads every queued step: the host is about to use a buffer that they use.
    pub(super) fn finish_queued(&mut self) -> Result<()> {
        while !self.queued.is_empty() {
            self.read_ring(true)?;
        }
        Ok(())
    }
}

impl Backend for CudaBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        self.model
            .kv
            .map_pages(slot, first, pages, &self.model.stream)
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        request.sampling.validate(self.limits.n_vocab)?;
        let n_slots = self.slots.len();
        if slot >= n_slots {
            return Err(Error::Internal(format!("slot {slot} of {n_slots}")));
        }
        self.sampling.start(slot, request, &self.model.stream)?;
        self.epoch += 1;
        self.slots[slot] = Some(Sequence {
            epoch: self.epoch,
            generated: 0,
            live: false,
            logprobs: request.sampling.logprobs,
        });
        Ok(())
    }

    fn prefill(&mut self, slot: usize, tokens: &[u32], start: usize, sample: bool) -> Result<()> {
        let epoch = self.sequence(slot)?.epoch;
        self.feed(slot, tokens, start, sample)?;
        if !sample || tokens.is_empty() {
            return self.settle();
        }
        let number = self.next_number();
        self.queued.push_back(Queued {
            number,
            rows: vec![(slot, epoch)],
            decode: false,
        });
        self.sequence(slot)?.live = true;
        // The first token decides whether there is anything to decode; its logits may be wanted.
        self.settle()?;
        self.finish_queued()
    }

    fn slice(&self, rest: usize, rows: Option<usize>) -> usize {
        self.passes.slice(rest, rows)
    }

    fn decode(&mut self) -> Result<()> {
        let live: Vec<(usize, u64)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, s)| s.as_ref().filter(|s| s.live).map(|s| (slot, s.epoch)))
            .collect();
        if live.is_empty() {
            // Every sequence has ended; the caller learns it from the events that wait for it.
            self.idle = true;
            return Ok(());
        }
        let key = self.steps.choose(live.len());
        self.prepare(key)?;
        let slots = live.iter().map(|(slot, _)| *slot as u32).collect();
        self.set_row_slots(slots, key.rows)?;
        self.run_step(key)?;
        let number = self.next_number();
        self.queued.push_back(Queued {
            number,
            rows: live,
            decode: true,
        });
        Ok(())
    }

    fn drain(&mut self, wait: bool) -> Result<Vec<Event>> {
        self.idle = false;
        self.read_ring(wait && self.events.is_empty())?;
        Ok(std::mem::take(&mut self.events))
    }

    fn queued(&self) -> usize {
        let queued = self.queued.iter().filter(|s| s.decode).count();
        // Log-probabilities are read from the logits, which the next step overwrites.
        let full = self.idle || (queued > 0 && self.wants_logprobs());
        if full {
            QUEUE_DEPTH
        } else {
            queued
        }
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.events.retain(|e| e.slot != slot);
        if self.slots.get_mut(slot).and_then(Option::take).is_some() {
            self.sampling.stop(slot, &self.model.stream)?;
        }
        self.model.kv.forget_saturated(slot, &self.model.stream)
    }

    fn verify_graph(
        &mut self,
        slots: &[usize],
        check: &GraphCheck,
        go_on: GoOn<'_>,
    ) -> Result<Vec<StepCheck>> {
        self.verify(slots, check, go_on)
    }

    fn profile_graph(&mut self, slots: &[usize], question: &GraphQuestion) -> Result<GraphProfile> {
        self.profile(slots, question)
    }

    fn graph_stats(&self) -> Option<Arc<SharedStats>> {
        Some(self.steps.stats().clone())
    }

    fn saturated(&self, slot: usize) -> bool {
        self.model.kv.saturated(slot)
    }

    fn sampling_time(&self) -> Duration {
        Duration::ZERO
    }

    fn logits(
        &mut self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        path: LogitsPath,
    ) -> Result<Vec<f32>> {
        self.finish_queued()?;
        let width = self.limits.n_vocab;
        let mut logits = vec![0.0f32; tokens.len() * width];
        let rows = match path {
            LogitsPath::Prefill => LOGIT_ROWS,
            LogitsPath::Decode => 1,
        };
        for (i, chunk) in tokens.chunks(rows).enumerate() {
            match path {
                LogitsPath::Prefill => self.logits_pass(slot, chunk, start + i * rows)?,
                LogitsPath::Decode => {
                    self.set_rows(slot, chunk, start + i, 1, 1)?;
                    if self.one_row.is_none() {
                        let inputs = self.model.rows.inputs();
                        let list =
                            self.model
                                .launches(1, 1, &inputs, Path::Decode { bucket: 1 })?;
                        let what = "the step that logits are forced through";
                        self.one_row = Some(capture(&self.model.stream, &list, what)?);
                    }
                    if let Some(graph) = &self.one_row {
                        graph.replay(&self.model.stream)?;
                    }
                }
            }
            let out = &mut logits[i * rows * width..][..chunk.len() * width];
            let buffer = self.model.buffer(self.model.plan.logits);
            buffer.read(0, out, &self.model.stream)?;
            self.settle()?;
        }
        Ok(logits)
    }
}
