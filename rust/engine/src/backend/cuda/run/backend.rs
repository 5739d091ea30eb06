//! Sequences on the card. Position, token, sampler and finished flag live in device memory; a
//! decode step is one graph replay, which advances them and appends the drawn tokens to a ring in
//! mapped host memory. The host queues steps ahead and reads the ring; it never waits between
//! tokens.

mod feed;
mod follow;
mod loading;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use super::cache::{Key, Purpose};
use super::card::LoadTimes;
use super::decoder::Decoder;
use super::dispatch::Dispatch;
use super::prefill::{check_chunk, logits, Chunks, LOGIT_ROWS};
use super::ready::Way;
use super::sequences::{Round, Sequences};
use crate::backend::cuda::driver::ahead::Ahead;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::{
    Backend, Draft, Event, GpuOptions, GraphMode, Inspect, Kind, Limits, LogitsPath, Needs, Part,
    RunnerOptions, SharedStats, SlotRequest, Storage, TextPart, Weights, MOST_GUESSED, STEPS_AHEAD,
};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::sampler::Allowed;

/// For what no buffer holds: kernels, graphs, and what the driver keeps of both.
const RESERVE: u64 = 64 << 20;

/// Decodes on a card.
pub struct CudaBackend {
    pub(in crate::backend::cuda) decoder: Decoder,
    pub(in crate::backend::cuda) dispatch: Dispatch,
    pub(in crate::backend::cuda) chunks: Chunks,
    pub(super) limits: Limits,
    sequences: Sequences,
    /// Whether the last step asked for had no sequence to decode.
    idle: bool,
    /// A step that was queued up to its draw, and slot and request of its rows.
    undrawn: Option<(Key, Vec<(usize, u64)>)>,
    load_times: LoadTimes,
    /// Compiles on the side for as long as this lives.
    _ahead: Option<Ahead>,
}

/// Receives the phase of a load, how much is done and of how much; may cancel it.
pub type Progress<'a> = &'a dyn Fn(String, u64, u64) -> Result<()>;

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
        backend.load(weights, options, progress)?;
        Ok(backend)
    }

    /// The same on a card that is only described: what it takes there, and the kernels that it
    /// runs, are those of the real one.
    ///
    /// # Errors
    /// What is wrong with the options.
    pub fn described(
        info: DeviceInfo,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
    ) -> Result<Self> {
        Self::on(&Context::described(info), plan, weights, options)
    }

    /// All the memory that is ever taken at once, on a card that may be only described.
    ///
    /// # Errors
    /// As [`CudaBackend::new`].
    pub(super) fn on(
        context: &Arc<Context>,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let GpuOptions {
            mode,
            ref batch_sizes,
            max_batch,
            padding,
            prefill_chunk,
            ..
        } = options.gpu;
        check_chunk(prefill_chunk)?;
        let n_slots = options.n_slots;
        let max_rows = n_slots.max(prefill_chunk);
        let max_out = n_slots.max(LOGIT_ROWS);
        let decoder = Decoder::new(context, plan, weights, options, max_rows, max_out)?;
        let most = max_batch.unwrap_or(n_slots);
        let backend = Self {
            dispatch: Dispatch::new(mode, batch_sizes.as_deref(), most, n_slots, padding),
            chunks: Chunks {
                most: prefill_chunk,
                way: match mode {
                    GraphMode::None => Way::Eager,
                    _ => Way::Full,
                },
                max_out,
            },
            limits: Limits {
                device: context.info.device(),
                n_vocab: decoder.n_vocab(),
                n_slots,
                n_ctx: options.n_ctx,
                n_pages: options.n_pages,
                windows: options.windows,
            },
            sequences: Sequences::new(n_slots),
            idle: false,
            undrawn: None,
            load_times: LoadTimes::default(),
            _ahead: None,
            decoder,
        };
        if context.is_described() {
            backend.decoder.card.load(weights, &[], &|_, _| Ok(()))?;
        }
        Ok(backend)
    }

    /// Whether it has texts in whole and no steps.
    fn looks_ahead(&self) -> bool {
        self.decoder.card.plan().looks_ahead()
    }

    /// What it takes of the card.
    pub fn needs(&self) -> Needs {
        let card = &self.decoder.card;
        let weights = card.weight_bytes() as u64;
        let kv = card.kv.bytes() as u64;
        let activations = card.activation_bytes() as u64;
        let all = card.context.most_mapped() as u64 + RESERVE;
        Needs {
            weights,
            kv,
            windows: card.kv.pages.bytes_of_kind(Kind::Windowed) as u64,
            activations,
            scratch: all.saturating_sub(weights + kv + activations),
        }
    }

    /// Bytes of all buffers on the card now, and the most that there were at once.
    pub fn taken(&self) -> (usize, usize) {
        self.decoder.card.context.taken()
    }

    /// How long the parts of loading took.
    pub fn load_times(&self) -> LoadTimes {
        self.load_times
    }

    /// Why kernels that were compiled are not kept for the next load; none where all are.
    pub fn unkept_kernels(&self) -> Option<String> {
        self.decoder.card.unkept_kernels().map(str::to_owned)
    }

    /// What became of decode steps so far.
    pub fn stats(&self) -> &Arc<SharedStats> {
        self.dispatch.stats()
    }

    /// Every captured step, ascending.
    pub fn captured(&self) -> Vec<Key> {
        let steps = self.decoder.lists.keys();
        let captured = steps.filter(|k| k.purpose == Purpose::Step && k.way != Way::Eager);
        let mut keys: Vec<Key> = captured.collect();
        keys.sort_unstable_by_key(|key| key.rows);
        keys
    }

    /// Has a step ready: captured, or as a list.
    ///
    /// # Errors
    /// As [`Decoder::prepare`].
    pub fn prepare(&mut self, key: Key) -> Result<()> {
        if let Some(captured) = self.decoder.prepare(key)? {
            self.dispatch.note(captured);
        }
        Ok(())
    }

    /// Reads every finished step; with `wait`, the oldest one for sure.
    fn read_ring(&mut self, wait: bool) -> Result<()> {
        if wait {
            let Decoder { ring, card, .. } = &self.decoder;
            ring.await_oldest(&card.stream)?;
        }
        while self.read_step()? {}
        self.decoder.card.kv.take_error().map_or(Ok(()), Err)
    }

    /// Reads the oldest step, if it is finished.
    fn read_step(&mut self) -> Result<bool> {
        let Self {
            decoder, sequences, ..
        } = self;
        let Some(step) = decoder.ring.pop() else {
            return Ok(false);
        };
        let logits = |row| {
            let mut logits = vec![0.0; decoder.n_vocab()];
            decoder.read_logits(row, &mut logits)?;
            Ok(logits)
        };
        let overflow = |slot, until| decoder.card.take_overflow(slot, until);
        sequences.collect(&step, &decoder.ring, logits, overflow)?;
        Ok(true)
    }

    /// Queues a step, or its draw, of `live`, slots and requests.
    fn queue(&mut self, key: Key, live: &[(usize, u64)]) -> Result<()> {
        self.prepare(key)?;
        let slots = live.iter().map(|(slot, _)| *slot as u32).collect();
        self.decoder.set_row_slots(slots, key.rows)?;
        self.decoder.run(key)
    }

    /// Says what `rows` rows from `first` on may draw, where `slot` is constrained.
    fn allow_rows(&mut self, first: usize, slot: usize, epoch: u64, rows: usize) -> Result<()> {
        let allowed = self.sequences.take_allowed(slot, epoch, rows)?;
        let mut rows = (first..).zip(&allowed);
        rows.try_for_each(|(row, allowed)| self.decoder.sampling.allow(row, allowed))
    }

    /// Reads every queued step: the host is about to use a buffer that they use.
    ///
    /// # Errors
    /// What became of a step.
    pub fn finish_queued(&mut self) -> Result<()> {
        while !self.decoder.ring.is_empty() {
            self.read_ring(true)?;
        }
        Ok(())
    }
}

impl Backend for CudaBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        let card = &mut self.decoder.card;
        let stream = &card.stream;
        card.kv.map_pages(kind, slot, first, pages, stream)
    }

    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        let card = &self.decoder.card;
        card.kv.copy_page(kind, from, to, &card.stream)
    }

    fn storage(&mut self) -> Option<&mut dyn Storage> {
        Some(self)
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        request.sampling.validate(self.limits.n_vocab)?;
        if slot >= self.limits.n_slots {
            let n_slots = self.limits.n_slots;
            return Err(Error::Internal(format!("slot {slot} of {n_slots}")));
        }
        let Decoder { sampling, card, .. } = &mut self.decoder;
        sampling.start(slot, request, &card.stream)?;
        self.sequences.start(slot, request)
    }

    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        self.sequences.allow(slot, rows)
    }

    fn feed(&mut self, parts: &[Part<'_>], step: bool) -> Result<Vec<(usize, Error)>> {
        self.feed_parts(parts, step)
    }

    fn slice(&self, rest: usize, rows: Option<usize>, stepping: usize) -> usize {
        match self.looks_ahead() {
            true => rest.min(self.chunks.most),
            false => self.chunks.slice(rest, rows, stepping),
        }
    }

    fn steps_beside_prompts(&self, sequences: usize) -> bool {
        self.chunks.have_room_beside(sequences)
    }

    fn decode(&mut self) -> Result<()> {
        let live = self.sequences.live();
        if live.is_empty() {
            // Every sequence has ended; the caller learns it from the events that wait for it.
            self.idle = true;
            return Ok(());
        }
        let mut key = self.dispatch.choose(live.len());
        let constrained = self.sequences.are_constrained();
        if constrained {
            key.purpose = Purpose::Undrawn;
        }
        self.queue(key, &live)?;
        match constrained {
            true => self.undrawn = Some((key, live)),
            false => self.decoder.ring.push(live, true),
        }
        Ok(())
    }

    fn awaits_draw(&self) -> bool {
        self.undrawn.is_some()
    }

    fn draw(&mut self) -> Result<()> {
        let Some((key, rows)) = self.undrawn.take() else {
            return Ok(());
        };
        // The draw before it reads the same masks.
        if !self.decoder.ring.is_empty() {
            return Err(Error::Internal(
                "a draw behind one that was not read".into(),
            ));
        }
        for (row, (slot, epoch)) in rows.iter().enumerate() {
            self.allow_rows(row, *slot, *epoch, 1)?;
        }
        let purpose = Purpose::Draw;
        self.queue(Key { purpose, ..key }, &rows)?;
        self.decoder.ring.push(rows, true);
        Ok(())
    }

    fn decode_drafted(&mut self, drafts: &[Draft]) -> Result<()> {
        self.queue_drafted(drafts)
    }

    fn most_guessed(&self) -> usize {
        self.decoder.drafts.as_ref().map_or(0, |_| MOST_GUESSED)
    }

    fn decode_guessed(&mut self, tokens: usize) -> Result<()> {
        self.queue_guessed(tokens)
    }

    fn lags(&self) -> bool {
        self.decoder.drafts.as_ref().is_some_and(|d| d.lags)
    }

    fn follow(&mut self, parts: Vec<Part<'_>>) -> Result<()> {
        self.follow_parts(parts.into())
    }

    fn row_cost(&self) -> f32 {
        // Up to eight rows read the weights once; what is left is attention and the draw.
        0.1
    }

    fn is_settled(&self) -> bool {
        let nothing_queued = self.decoder.ring.is_empty() && self.undrawn.is_none();
        nothing_queued && !self.sequences.has_events()
    }

    fn drain(&mut self, wait: bool) -> Result<Vec<Event>> {
        self.idle = false;
        self.read_ring(wait && !self.sequences.has_events())?;
        Ok(self.sequences.take_events())
    }

    fn may_queue(&self) -> bool {
        // Log-probabilities are read from the logits, which the next step overwrites.
        let most = match self.sequences.wants_logprobs() {
            true => 1,
            // One runs, one waits.
            false => STEPS_AHEAD,
        };
        let has_room = self.undrawn.is_none() && self.decoder.ring.decode_steps() < most;
        !self.idle && has_room
    }

    fn set_paused(&mut self, slot: usize, paused: bool) {
        self.sequences.set_paused(slot, paused);
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        let Decoder { sampling, card, .. } = &mut self.decoder;
        if self.sequences.end(slot) {
            sampling.stop(slot, &card.stream)?;
        }
        card.forget(slot)
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }

    fn saturated(&self, slot: usize) -> bool {
        self.decoder.card.kv.saturated(slot)
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
        logits(&mut self.decoder, slot, tokens, start, path)
    }

    fn hidden(&mut self, parts: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>> {
        self.chunks.hidden(&mut self.decoder, parts)
    }
}
