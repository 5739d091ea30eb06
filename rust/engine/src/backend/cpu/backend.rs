//! Sequences on the interpreter: which row comes next in each slot, and what is drawn from it.

mod drafter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::interpreter::Interpreter;
use super::memory::{self, MAX_ROWS};
use super::reserve::reserve;
use super::simd::{self, Isa, Task};
use crate::backend::parts::{known, no_step_beside, passes, take, take_failed, Part, TextPart};
use crate::backend::{
    slice_of, Backend, Batch, Draft, Event, Finish, Kind, Limits, LogitsPath, RunnerOptions,
    SlotRequest, Storage, Weights,
};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::sampler::{self, Allowed, Logprobs, Sampler};

/// Decodes on the CPU. Every call does its work before it returns.
pub struct CpuBackend {
    interpreter: Interpreter,
    limits: Limits,
    slots: Vec<Option<Sequence>>,
    events: Vec<Event>,
    queued: bool,
    /// The rows of a step that stopped before its draw, and the slots of it that failed.
    undrawn: Option<(Vec<Rows>, Vec<usize>)>,
    /// Whether the round that runs is of guesses.
    guesses: bool,
    sampling: Duration,
    /// Of a pass.
    most_rows: usize,
}

/// What a slot decodes.
struct Sequence {
    sampler: Sampler,
    logprobs: Option<usize>,
    stop_tokens: Vec<u32>,
    max_tokens: usize,
    /// Tokens in the cache.
    position: usize,
    generated: usize,
    /// Drawn, not yet fed; `None` before the first draw and after the last.
    next: Option<u32>,
    /// Of a model with a drafter, what the guess behind that token goes by.
    hidden: Vec<f32>,
    /// Of a constrained sequence, what each row of its next draw may choose among.
    allowed: Option<Vec<Allowed>>,
    paused: bool,
}

/// The rows of a sequence in a pass: of one that decodes the token drawn last, and those drafted to follow
/// it; else of a prompt.
struct Rows {
    slot: usize,
    tokens: Vec<u32>,
    position: usize,
    /// How many of them, the last ones, are drawn from.
    drawn: usize,
    /// Of a prompt the token behind it, where that is known.
    behind: Option<u32>,
}

impl Rows {
    /// Of a part of a prompt.
    fn of(part: &Part<'_>) -> Self {
        Self {
            slot: part.slot,
            tokens: part.tokens.to_vec(),
            position: part.start,
            drawn: usize::from(part.last),
            behind: part.next,
        }
    }

    /// The tokens of the rows that are drawn from.
    fn drawn(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.drawn..]
    }
}

/// What a row's logits gave.
type Drawn = Result<(u32, Option<Logprobs>)>;

/// One draw, compiled for the instruction set: the sampler is all fused multiply-adds.
struct Draw<'a> {
    sequence: &'a mut Sequence,
    logits: &'a [f32],
    allowed: Option<&'a Allowed>,
}

impl Task for Draw<'_> {
    type Out = Drawn;

    #[inline(always)]
    fn run<I: Isa>(self) -> Drawn {
        let Sequence {
            sampler,
            logprobs,
            generated,
            ..
        } = self.sequence;
        let token = sampler.sample_among(self.logits, *generated as u32, self.allowed)?;
        let logprobs = logprobs
            .map(|n| sampler::logprobs(self.logits, token, n))
            .transpose()?;
        Ok((token, logprobs))
    }
}

impl Sequence {
    /// Appends a drawn token to its sequence; returns the event for the engine.
    fn advance(&mut self, slot: usize, drawn: Drawn, n_ctx: usize) -> Event {
        let index = self.generated;
        let (token, logprobs) = match drawn {
            Ok(drawn) => drawn,
            Err(e) => return self.fail(slot, e),
        };
        self.generated += 1;
        let finish = if self.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else if self.generated >= self.max_tokens || self.position + 1 >= n_ctx {
            Some(Finish::Length)
        } else {
            None
        };
        self.next = finish.is_none().then_some(token);
        Event {
            slot,
            index,
            token,
            finish,
            logprobs,
            row: 0,
            drafted: 0,
        }
    }

    fn fail(&mut self, slot: usize, error: Error) -> Event {
        self.next = None;
        Event {
            slot,
            index: self.generated,
            token: 0,
            finish: Some(Finish::Failed(error)),
            logprobs: None,
            row: 0,
            drafted: 0,
        }
    }
}

/// A draw of a constrained slot without a set, or a set for a slot that is not.
fn unconstrained(slot: usize) -> Error {
    Error::Internal(format!(
        "the tokens that slot {slot} may draw are not said as it draws them"
    ))
}

/// Where the tokens of all rows stand: positions and slots.
fn places(rows: &[Rows]) -> (Vec<u32>, Vec<u32>) {
    let (mut positions, mut slots) = (Vec::new(), Vec::new());
    for own in rows {
        positions.extend((own.position as u32..).take(own.tokens.len()));
        slots.resize(positions.len(), own.slot as u32);
    }
    (positions, slots)
}

impl CpuBackend {
    /// Takes the memory for `options.n_slots` sequences; `n_vocab` is the width of the logits.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a missing weight, [`Error::Memory`], [`Error::Argument`].
    pub fn new(
        plan: Arc<Plan>,
        weights: Arc<dyn Weights>,
        options: &RunnerOptions,
    ) -> Result<Self> {
        let n_vocab = plan.n_vocab();
        let most_rows = memory::most_rows(&plan, options);
        let interpreter = Interpreter::new(plan, weights, options)?;
        let threads = interpreter.threads();
        let limits = Limits {
            device: format!(
                "cpu ({threads} thread{}, {})",
                if threads == 1 { "" } else { "s" },
                interpreter.level().name()
            ),
            n_vocab,
            n_slots: options.n_slots,
            n_ctx: options.n_ctx,
            n_pages: options.n_pages,
            windows: options.windows,
        };
        Ok(Self {
            interpreter,
            slots: (0..limits.n_slots).map(|_| None).collect(),
            limits,
            events: Vec::new(),
            queued: false,
            undrawn: None,
            guesses: false,
            sampling: Duration::ZERO,
            most_rows,
        })
    }

    fn sequence(&mut self, slot: usize) -> Result<&mut Sequence> {
        self.slots
            .get_mut(slot)
            .and_then(Option::as_mut)
            .ok_or_else(|| Error::Internal(format!("slot {slot} has no sequence")))
    }

    /// One pass of `tokens` of one slot, from position `start` on; logits of the `wanted` last.
    fn pass_of(&mut self, slot: usize, tokens: &[u32], start: usize, wanted: usize) -> Result<()> {
        let n = tokens.len() as u32;
        let positions: Vec<u32> = (0..n).map(|i| start as u32 + i).collect();
        let out_rows: Vec<u32> = (n - wanted as u32..n).collect();
        self.interpreter.forward(&Batch {
            tokens,
            positions: &positions,
            slots: &vec![slot as u32; tokens.len()],
            types: &[],
            out_rows: &out_rows,
        })
    }

    /// Draws from the logits of the last pass, in the order of `rows`, but for slots that have `failed`.
    /// Slots ascend; the cache has the first token of each that is drawn from.
    fn draw_rows(&mut self, rows: &[Rows], failed: &[usize]) {
        let started = Instant::now();
        let level = self.interpreter.level();
        let (n_vocab, n_ctx) = (self.limits.n_vocab.max(1), self.limits.n_ctx);
        let mut logits = self.interpreter.logits();
        let mut sequences = self.slots.iter_mut().enumerate();
        let mut tasks = Vec::with_capacity(rows.len());
        for own in rows {
            let (its, rest) = logits.split_at(logits.len().min(own.drawn * n_vocab));
            logits = rest;
            let found = sequences.find(|(slot, _)| *slot == own.slot);
            let sequence = found.and_then(|(_, sequence)| sequence.as_mut());
            // Of a prompt that is cut, only its last part takes what it may draw.
            let draws = own.drawn > 0 && !failed.contains(&own.slot);
            if let Some(sequence) = sequence.filter(|_| draws) {
                tasks.push((own, sequence, its));
            }
        }
        let run = |(own, sequence, logits): &mut (&Rows, &mut Sequence, &[f32])| {
            let mut events = Vec::with_capacity(1);
            let allowed = sequence.allowed.as_mut().map(std::mem::take);
            for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                let sequence = &mut **sequence;
                let drawn = match allowed.as_ref().map(|rows| rows.get(row)) {
                    Some(None) => Err(unconstrained(own.slot)),
                    allowed => {
                        let allowed = allowed.flatten();
                        let draw = Draw {
                            sequence,
                            logits,
                            allowed,
                        };
                        simd::run(level, draw)
                    }
                };
                let event = Event {
                    row,
                    drafted: own.drawn.saturating_sub(1),
                    ..sequence.advance(own.slot, drawn, n_ctx)
                };
                // The next row is of this token only where it was drafted.
                let goes_on =
                    event.finish.is_none() && own.drawn().get(row + 1) == Some(&event.token);
                events.push(event);
                if !goes_on {
                    break;
                }
                sequence.position += 1;
            }
            events
        };
        let drawn: Vec<Vec<Event>> = if tasks.len() == 1 {
            tasks.iter_mut().map(run).collect()
        } else {
            self.interpreter
                .install(|| tasks.par_iter_mut().map(run).collect())
        };
        self.events.extend(drawn.into_iter().flatten());
        self.sampling += started.elapsed();
    }

    /// The rows of a step: of every slot that decodes the token drawn last, then its draft.
    fn rows(&self, drafts: &[Draft]) -> Vec<Rows> {
        let mut rows = Vec::new();
        for (slot, sequence) in self.slots.iter().enumerate() {
            let running = sequence.as_ref().filter(|s| !s.paused);
            if let Some((sequence, token)) = running.and_then(|s| Some((s, s.next?))) {
                let draft = drafts.iter().find(|draft| draft.slot == slot);
                let mut tokens = vec![token];
                tokens.extend(draft.iter().flat_map(|draft| &draft.tokens));
                rows.push(Rows {
                    slot,
                    drawn: tokens.len(),
                    tokens,
                    position: sequence.position,
                    behind: None,
                });
            }
        }
        rows
    }

    /// Whether a sequence that decodes is constrained.
    fn is_constrained(&self, rows: &[Rows]) -> bool {
        let constrained = |slot: usize| {
            self.slots[slot]
                .as_ref()
                .is_some_and(|s| s.allowed.is_some())
        };
        rows.iter().any(|own| constrained(own.slot))
    }

    /// Computes `rows` and draws from them. Returns the slots that failed with a draft: of nothing that
    /// was drawn for them is known whether it is the draft's fault, so that nothing was.
    fn decode_rows(&mut self, rows: &[Rows]) -> Result<Vec<usize>> {
        let (failed, with_draft) = self.compute_rows(rows)?;
        self.draw_rows(rows, &failed);
        self.follow_step(rows)?;
        Ok(with_draft)
    }

    /// [`CpuBackend::decode_rows`], of rows some of which may not count: the states go forward by the others.
    fn decode_round(&mut self, rows: &[Rows]) -> Result<Vec<usize>> {
        self.interpreter.states.is_round = true;
        let undrawn = self.decode_rows(rows);
        self.interpreter.states.is_round = false;
        let mut first = 0;
        for own in rows {
            let fed = self.sequence(own.slot)?.position - own.position;
            self.interpreter.commit(own.slot, first, fed);
            first += own.tokens.len();
        }
        undrawn
    }

    /// Computes `rows`; returns the slots that failed, and those of them that had a draft.
    fn compute_rows(&mut self, rows: &[Rows]) -> Result<(Vec<usize>, Vec<usize>)> {
        let (mut failed, mut undrawn) = (Vec::new(), Vec::new());
        for (slot, error) in self.forward(rows)? {
            let drafted = |own: &Rows| own.slot == slot && own.tokens.len() > 1;
            if rows.iter().any(drafted) {
                undrawn.push(slot);
            } else {
                let event = self.sequence(slot)?.fail(slot, error);
                self.events.push(event);
            }
            failed.push(slot);
        }
        for own in rows.iter().filter(|own| !failed.contains(&own.slot)) {
            self.sequence(own.slot)?.position += 1;
        }
        Ok((failed, undrawn))
    }

    /// One pass over `rows`; the sequences that could not go on, by slot, each with why.
    fn forward(&mut self, rows: &[Rows]) -> Result<Vec<(usize, Error)>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let (positions, slots) = places(rows);
        let mut tokens = Vec::new();
        let mut out_rows = Vec::new();
        for own in rows {
            tokens.extend(&own.tokens);
            let end = tokens.len() as u32;
            out_rows.extend(end - own.drawn as u32..end);
        }
        let done = self.interpreter.forward(&Batch {
            tokens: &tokens,
            positions: &positions,
            slots: &slots,
            types: &[],
            out_rows: &out_rows,
        });
        let failed = self.interpreter.take_failures();
        // What some sequences met with is theirs; any other error is one of all.
        let of_sequence = |e: &Error| e.slot().is_some();
        if failed.is_empty() || !done.as_ref().is_err_and(of_sequence) {
            done?;
        }
        Ok(failed)
    }

    /// A pass over parts of prompts and, beside them, a step's rows; the slots whose part failed.
    fn feed_pass(&mut self, parts: &[Part<'_>], step: Vec<Rows>) -> Result<Vec<(usize, Error)>> {
        let mut rows: Vec<Rows> = parts.iter().map(Rows::of).collect();
        rows.extend(step);
        rows.sort_unstable_by_key(|own| own.slot);
        let is_fed = |slot: usize| parts.iter().any(|part| part.slot == slot);
        let (mut failed, mut refused) = (Vec::new(), Vec::new());
        for (slot, error) in self.forward(&rows)? {
            failed.push(slot);
            if is_fed(slot) {
                refused.push((slot, error));
            } else {
                let event = self.sequence(slot)?.fail(slot, error);
                self.events.push(event);
            }
        }
        for own in rows.iter().filter(|own| !failed.contains(&own.slot)) {
            self.sequence(own.slot)?.position = own.position + own.tokens.len();
        }
        self.draw_rows(&rows, &failed);
        self.follow_rows(&rows)?;
        Ok(refused)
    }
}

impl Storage for CpuBackend {
    fn layout(&self) -> &'static str {
        match self.interpreter.plan().is_long(self.limits.n_ctx) {
            true => "cpu, long",
            false => "cpu",
        }
    }

    fn page_bytes(&self, kind: Kind) -> usize {
        self.interpreter.kv.pages.page_bytes(kind)
    }

    fn state_bytes(&self) -> usize {
        self.interpreter.plan().state_bytes()
    }

    fn read_page(&mut self, kind: Kind, page: u32, to: &mut [u8]) -> Result<()> {
        self.interpreter.kv.read_page(kind, page, to)
    }

    fn write_page(&mut self, kind: Kind, page: u32, from: &[u8]) -> Result<()> {
        self.interpreter.kv.write_page(kind, page, from)
    }

    fn read_state(&mut self, slot: usize, to: &mut [u8]) -> Result<()> {
        self.interpreter.states.read_bytes(slot, to)
    }

    fn write_state(&mut self, slot: usize, from: &[u8]) -> Result<()> {
        self.interpreter.states.write_bytes(slot, from)
    }
}

impl Backend for CpuBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        self.interpreter.kv.map_pages(kind, slot, first, pages)
    }

    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        self.interpreter.kv.copy_page(kind, from, to)
    }

    fn storage(&mut self) -> Option<&mut dyn Storage> {
        Some(self)
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        let sampler = Sampler::new(
            request.sampling.clone(),
            self.limits.n_vocab,
            &request.prompt,
        )?;
        let n_slots = self.slots.len();
        let place = self
            .slots
            .get_mut(slot)
            .ok_or_else(|| Error::Internal(format!("slot {slot} of {n_slots}")))?;
        *place = Some(Sequence {
            sampler,
            logprobs: request.sampling.logprobs,
            stop_tokens: request.stop_tokens.clone(),
            max_tokens: request.max_tokens,
            position: 0,
            generated: 0,
            next: None,
            hidden: Vec::new(),
            allowed: request.constrained.then(Vec::new),
            paused: false,
        });
        Ok(())
    }

    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        let words = Allowed::words_of(self.limits.n_vocab);
        let fits = rows.iter().all(|allowed| allowed.words().len() == words);
        match &mut self.sequence(slot)?.allowed {
            Some(allowed) if fits => {
                *allowed = rows;
                Ok(())
            }
            _ => Err(unconstrained(slot)),
        }
    }

    fn feed(&mut self, parts: &[Part<'_>], step: bool) -> Result<Vec<(usize, Error)>> {
        if step && !self.is_settled() {
            return Err(no_step_beside(self.rows(&[]).len(), false));
        }
        for part in parts {
            self.sequence(part.slot)?;
        }
        let (mut rest, mut failed) = known(parts, self.limits.n_vocab);
        let mut rows = match step {
            true => self.rows(&[]),
            false => Vec::new(),
        };
        while !rest.is_empty() || !rows.is_empty() {
            let taken = take(&mut rest, self.most_rows.saturating_sub(rows.len()));
            let refused = self.feed_pass(&taken, std::mem::take(&mut rows))?;
            rest.retain(|part| refused.iter().all(|(slot, _)| part.slot != *slot));
            failed.extend(refused);
        }
        let fed: Vec<usize> = parts.iter().map(|part| part.slot).collect();
        failed.extend(take_failed(&mut self.events, &fed));
        self.queued |= step;
        Ok(failed)
    }

    fn steps_beside_prompts(&self, _sequences: usize) -> bool {
        true
    }

    fn decode(&mut self) -> Result<()> {
        let rows = self.rows(&[]);
        if self.is_constrained(&rows) {
            let (failed, _) = self.compute_rows(&rows)?;
            self.undrawn = Some((rows, failed));
            return Ok(());
        }
        self.queued = true;
        self.decode_rows(&rows).map(|_| ())
    }

    fn awaits_draw(&self) -> bool {
        self.undrawn.is_some()
    }

    fn draw(&mut self) -> Result<()> {
        if let Some((rows, failed)) = self.undrawn.take() {
            self.queued = true;
            self.draw_rows(&rows, &failed);
            self.follow_step(&rows)?;
        }
        Ok(())
    }

    fn decode_drafted(&mut self, drafts: &[Draft]) -> Result<()> {
        let mut rows = self.rows(drafts);
        let all: usize = rows.iter().map(|own| own.tokens.len()).sum();
        self.check_round(drafts, all)?;
        self.queued = true;
        let undrawn = self.decode_round(&rows)?;
        rows.retain_mut(|own| {
            own.tokens.truncate(1);
            own.drawn = 1;
            undrawn.contains(&own.slot)
        });
        // Once more as if nothing had been drafted.
        self.decode_rows(&rows).map(|_| ())
    }

    fn most_guessed(&self) -> usize {
        self.most_guessed()
    }

    fn decode_guessed(&mut self, tokens: usize) -> Result<()> {
        let drafts = self.guess(tokens)?;
        self.guesses = true;
        let done = self.decode_drafted(&drafts);
        self.guesses = false;
        done
    }

    fn lags(&self) -> bool {
        self.lags()
    }

    fn follow(&mut self, parts: Vec<Part<'_>>) -> Result<()> {
        self.follow_parts(parts)
    }

    fn row_cost(&self) -> f32 {
        // Measured: benches/prompt_lookup.py, 135M, two threads. Larger models' rows cost less.
        0.45
    }

    fn is_settled(&self) -> bool {
        !self.queued && self.undrawn.is_none()
    }

    fn drain(&mut self, _wait: bool) -> Result<Vec<Event>> {
        self.queued = false;
        Ok(std::mem::take(&mut self.events))
    }

    fn may_queue(&self) -> bool {
        !self.queued && self.undrawn.is_none()
    }

    fn set_paused(&mut self, slot: usize, paused: bool) {
        if let Some(Some(sequence)) = self.slots.get_mut(slot) {
            sequence.paused = paused;
        }
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.events.retain(|e| e.slot != slot);
        if let Some(place) = self.slots.get_mut(slot) {
            *place = None;
        }
        self.interpreter.kv.forget_saturated(slot);
        Ok(())
    }

    fn saturated(&self, slot: usize) -> bool {
        self.interpreter.kv.saturated(slot)
    }

    fn sampling_time(&self) -> Duration {
        self.sampling
    }

    fn logits(
        &mut self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        path: LogitsPath,
    ) -> Result<Vec<f32>> {
        let rows = match path {
            LogitsPath::Prefill => MAX_ROWS,
            LogitsPath::Decode => 1,
        };
        let mut logits = Vec::new();
        let n = tokens.len().saturating_mul(self.limits.n_vocab);
        reserve(&mut logits, n, "the logits asked for")?;
        for (i, chunk) in tokens.chunks(rows).enumerate() {
            self.pass_of(slot, chunk, start + i * rows, chunk.len())?;
            logits.extend_from_slice(self.interpreter.logits());
        }
        Ok(logits)
    }

    fn slice(&self, rest: usize, rows: Option<usize>, stepping: usize) -> usize {
        match self.interpreter.plan().looks_ahead() {
            true => rest.min(self.most_rows),
            false => slice_of(rest, rows, stepping),
        }
    }

    fn hidden(&mut self, parts: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>> {
        let whole = self.interpreter.plan().looks_ahead();
        let mut found: Vec<Result<Vec<f32>>> = parts.iter().map(|_| Ok(Vec::new())).collect();
        for pass in passes(parts, self.most_rows, whole) {
            let (mut tokens, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            let mut types = Vec::new();
            for (_, piece) in &pass {
                types.extend(piece.types());
                tokens.extend(piece.tokens);
                positions.extend((piece.start as u32..).take(piece.tokens.len()));
                slots.resize(tokens.len(), piece.slot as u32);
            }
            let done = self.interpreter.hidden(&Batch {
                tokens: &tokens,
                positions: &positions,
                slots: &slots,
                types: &types,
                out_rows: &[],
            });
            let failed = self.interpreter.take_failures();
            // What some texts met with is theirs.
            if !done.as_ref().is_err_and(|e| e.slot().is_some()) {
                done?;
            }
            let mut rest = self.interpreter.states();
            let width = rest.len() / tokens.len().max(1);
            for (i, piece) in &pass {
                let (its, more) = rest.split_at(piece.tokens.len() * width);
                rest = more;
                let error = failed.iter().find(|(slot, _)| *slot == piece.slot);
                match (&mut found[*i], error) {
                    (its @ Ok(_), Some((_, error))) => *its = Err(error.clone()),
                    (Ok(states), None) => {
                        states.extend_from_slice(&its[its.len() - piece.wanted * width..]);
                    }
                    (Err(_), _) => {}
                }
            }
        }
        Ok(found)
    }
}
