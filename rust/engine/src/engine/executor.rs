//! The thread that owns a backend: it shows the scheduler the current state, executes the steps that it
//! returns, and sends out the drawn tokens. Requests meet only here, and an error of one of them ends
//! only that one.

mod active;
mod passes;

use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bell::Together;
use super::constrain::Constrained;
use super::gate::Gate;
use super::lookup::Lookup;
use super::options::Speculate;
use super::pace::Pace;
use super::policy;
use super::queue::{Job, Look, Shared, Work, CLOSED};
use super::request::{LengthReason, Piece, StoppedBy};
use super::scheduler::{schedule, Limits, Reason, Seq, Stage, State, Step, Waiting};
use super::stats::{Counts, Publisher};
use super::text::TextStream;
use crate::backend::{Backend, Event, Finish, SlotRequest, PAGE_TOKENS, STEPS_AHEAD};
use crate::error::{Error, Result};
use crate::pages::{BlockManager, Sequence, Span};
use crate::tokenizer::Tokenizer;
use active::{Active, End, Generation, Mark, Task};

/// How long requests may be given slots while others decode; the rest have their turn after the next
/// step.
const ADMITTING: Duration = Duration::from_millis(5);

/// Of the time that a chunk of a prompt may take, what prefixes that are evicted may.
const EVICTING: f64 = 0.7;

/// How long the thread sleeps where there is nothing to do but to wait for files to be written, or for
/// requests that are to begin with others.
const DISK_WAIT: Duration = Duration::from_micros(200);

/// The text of a panic.
pub fn panic_error(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    Error::Internal(text.unwrap_or("a panic").to_owned())
}

/// What became of a round so far, which ends with a forward pass.
struct Round {
    stage: Stage,
    /// When its first chunk was due, and when the pass began that is being made up.
    feeding: Option<Instant>,
    pass: Option<Instant>,
    /// As in [`State`].
    fed: bool,
    stalled: Option<usize>,
}

/// How long passes take, by their rows, and what the last decode step took.
#[derive(Default)]
struct Paces {
    prefill: Pace,
    step: Pace,
    step_took: Duration,
}

/// A backend and all that goes on in it.
pub struct Executor {
    backend: Box<dyn Backend>,
    pool: BlockManager,
    tokenizer: Arc<Tokenizer>,
    shared: Arc<Shared>,
    load_seconds: f64,
    /// By slot.
    active: Vec<Option<Active>>,
    round: Round,
    paces: Paces,
    /// How many tokens the model drafts, and whether what was drawn last was of such a round.
    gate: Gate,
    guesses: bool,
    text_time: Duration,
    publisher: Publisher,
    /// Whether memory of the host is still to be taken that prompts to come will want.
    unprepared: bool,
    /// Sequences that were given a slot so far.
    admitted: u64,
}

impl Round {
    fn new() -> Self {
        Self {
            stage: Stage::Admit,
            feeding: None,
            pass: None,
            fed: false,
            stalled: None,
        }
    }
}

impl Executor {
    pub fn new(
        backend: Box<dyn Backend>,
        pool: BlockManager,
        tokenizer: Arc<Tokenizer>,
        shared: Arc<Shared>,
        load_seconds: f64,
        speculate: Speculate,
    ) -> Self {
        let gate = Gate::new(backend.most_guessed(), speculate.fixed());
        let active = (0..backend.limits().n_slots).map(|_| None).collect();
        let mut executor = Self {
            backend,
            pool,
            tokenizer,
            shared,
            load_seconds,
            active,
            round: Round::new(),
            paces: Paces::default(),
            gate,
            guesses: false,
            text_time: Duration::ZERO,
            publisher: Publisher::default(),
            unprepared: true,
            admitted: 0,
        };
        executor.publish();
        executor
    }

    /// Serves until closed. Every job that is left then, or that a panic leaves, learns why.
    pub fn serve(mut self) {
        let shared = self.shared.clone();
        let fate = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => CLOSED,
            Ok(Err(e)) => e,
            Err(payload) => panic_error(&*payload),
        };
        shared.end(fate);
    }

    fn run(&mut self) -> Result<()> {
        while self.admit()? {
            self.publisher.begin();
            let mut idle = true;
            loop {
                let step = self.plan(None);
                self.round.stage = step.stage;
                if step.is_empty() {
                    break;
                }
                idle = false;
                if self.execute(step)? {
                    break;
                }
            }
            self.publisher.end();
            self.publish();
            self.write_behind()?;
            if self.is_idle() {
                self.unprepared = self.pool.prepare(&mut *self.backend);
            } else if idle {
                std::thread::sleep(DISK_WAIT);
            }
        }
        while self.pool.write_behind(&mut *self.backend, 1)? {
            std::thread::sleep(DISK_WAIT);
        }
        Ok(())
    }

    /// Whether no slot has anything to do.
    fn is_idle(&self) -> bool {
        self.active.iter().all(Option::is_none)
    }

    /// Has a page of what is kept written to a file, between two steps.
    fn write_behind(&mut self) -> Result<()> {
        let more = self.pool.write_behind(&mut *self.backend, 1)?;
        if more && self.is_idle() {
            std::thread::sleep(DISK_WAIT);
        }
        Ok(())
    }

    /// Lets others know what goes on.
    fn publish(&mut self) {
        let all = self.active.iter().flatten();
        let counts = Counts {
            active: all.clone().count(),
            preempted: all.clone().filter(|a| a.preempted).count(),
            feeding: all.filter(|a| a.feeds()).count(),
            admitted: self.admitted,
        };
        let now = self.publisher.publish(&self.pool, counts);
        self.shared.publish(now);
    }

    /// The next step, where `waiting` may be admitted.
    fn plan(&self, waiting: Option<Waiting>) -> Step {
        let active = self.active.iter().flatten();
        let sequences: Vec<Seq<'_>> = active.map(|a| a.facts(&self.shared)).collect();
        let decodes = self.decodes();
        let wanted = sequences.iter().map(|seq| seq.lacks + seq.short).sum();
        let preempted = sequences.iter().any(|seq| seq.preempted);
        let budget = self.pool.budget(match waiting.is_some() || preempted {
            true => usize::MAX,
            false => wanted,
        });
        let (left, beside) = (self.time_left(0), self.time_left(1));
        let state = State {
            stage: self.round.stage,
            waiting,
            sequences,
            budget,
            settled: self.backend.is_settled(),
            fed: self.round.fed,
            time_left: decodes && self.paces.prefill.fits(left),
            stalled: self.round.stalled,
        };
        let limits = Limits {
            slots: self.active.len(),
            chunk: &|seq, wanted, stepping| {
                let left = if stepping > 0 { beside } else { left };
                self.chunk(seq.slot, wanted, stepping, left)
            },
            beside: &|sequences| self.backend.steps_beside_prompts(sequences),
            draft_rows: self.draft_rows(),
        };
        schedule(&state, &limits)
    }

    /// Moves waiting jobs to free slots; sleeps where there is nothing to do. Says whether to go on.
    fn admit(&mut self) -> Result<bool> {
        self.deliver(false)?;
        self.round = Round::new();
        let decodes = self.decodes();
        let begun = Instant::now();
        while !(decodes && begun.elapsed() > ADMITTING) {
            let idle = self.is_idle() && !self.pool.has_unwritten() && !self.unprepared;
            // What ended since the last step is not to look as if it ran for as long as this sleeps.
            if idle {
                self.publish();
            }
            let job = match self.shared.next(idle, self.load_seconds) {
                ControlFlow::Continue(Some(job)) => job,
                ControlFlow::Continue(None) => break,
                ControlFlow::Break(()) => return Ok(false),
            };
            let until = decodes.then(|| begun + self.evicting());
            if let Some(job) = self.try_admit(job, until)? {
                self.shared.put_back(job);
                break;
            }
        }
        self.round.stage = Stage::SwapIn;
        Ok(true)
    }

    /// Gives `job` a slot, or refuses it; gives it back where it has to wait.
    fn try_admit(&mut self, job: Job, until: Option<Instant>) -> Result<Option<Job>> {
        let (prompt, pool) = (job.work.prompt(), self.pool.under(job.work.salt()));
        let candidate = match pool.candidate(span(&job), prompt) {
            Ok(candidate) => candidate,
            Err(e) => {
                job.work.refuse(e);
                return Ok(None);
            }
        };
        let mut waiting = Waiting {
            due: self.shared.due(job.submitted, job.priority),
            demand: candidate.demand,
            gang: job.work.together(),
            refused: false,
        };
        let mut step = self.plan(Some(waiting));
        if let Some(host_pages) = step.admit {
            match candidate.admit(&mut *self.backend, prompt, host_pages, until) {
                Ok(Some(sequence)) => {
                    self.start(sequence, job)?;
                    return Ok(None);
                }
                Ok(None) => {
                    waiting.refused = true;
                    step = self.plan(Some(waiting));
                }
                Err(e) => {
                    job.work.refuse(e);
                    return Ok(None);
                }
            }
        }
        if !step.refuse {
            return Ok(Some(job));
        }
        job.work.refuse(gang_error(step.finish.len()));
        self.execute(step)?;
        Ok(None)
    }

    /// How long prefixes may be evicted for one that joins, where others decode: a part of what they may
    /// wait, which belongs to prompts that are fed where there are some.
    fn evicting(&self) -> Duration {
        match self.active.iter().flatten().any(Active::feeds) {
            false => policy::slice(Some(self.paces.step_took), 1).mul_f64(EVICTING),
            true => ADMITTING,
        }
    }

    fn start(&mut self, sequence: Sequence, job: Job) -> Result<()> {
        let slot = sequence.slot();
        let task = match job.work {
            Work::Logits { ids, path, out } => Task::Logits { ids, path, out },
            Work::Embed(text) => {
                self.publisher.done().requests += 1;
                Task::Embed(text)
            }
            Work::Inspect { sequences, look } => {
                return self.inspect(sequence, job.tokens, sequences, look, &job.cancelled)
            }
            Work::LoadPrefix { content, out, .. } => {
                let mut sequence = sequence;
                let loaded = sequence.load(&mut *self.backend, &content);
                let known = match loaded {
                    Ok(()) => &content.tokens[..],
                    Err(_) => &[],
                };
                let closed = sequence.close(&mut *self.backend, known);
                self.publisher.moved += 1;
                drop(out.send(loaded));
                return closed;
            }
            Work::Generate {
                request,
                out,
                guide,
                save,
            } => {
                let n_vocab = self.backend.limits().n_vocab;
                let mut ends = request.stop_token_ids.clone();
                let lookup = match request.prompt_lookup {
                    0 => None,
                    most => Some(Lookup::new(most, self.backend.row_cost())),
                };
                if !request.ignore_eos {
                    ends.extend(self.tokenizer.vocab().end_of_text());
                }
                let started = self.backend.start(
                    slot,
                    &SlotRequest {
                        sampling: request.sampling.clone(),
                        prompt: request.prompt.clone(),
                        stop_tokens: ends,
                        max_tokens: request.max_tokens,
                        constrained: guide.is_some(),
                    },
                );
                if let Err(e) = started {
                    out.send(Err(e));
                    return sequence.close(&mut *self.backend, &[]);
                }
                Task::Generate(Box::new(Generation {
                    text: TextStream::new(&request.stop, &request.shown_token_ids),
                    request: *request,
                    out,
                    first: None,
                    last: None,
                    drawn: Vec::new(),
                    given: 0,
                    lookup,
                    constrained: guide.map(|guide| Constrained::new(guide, n_vocab)),
                    drafted: 0,
                    rounds: 0,
                    accepted: 0,
                    followed: None,
                    save,
                }))
            }
        };
        self.active[slot] = Some(Active {
            sequence,
            cancelled: job.cancelled,
            submitted: job.submitted,
            priority: job.priority,
            number: self.admitted,
            preempted: false,
            turn: job.submitted,
            begun: None,
            timed: None,
            task,
        });
        self.admitted += 1;
        self.publish();
        Ok(())
    }

    /// Looks at the backend between two steps: has as many `sequences` as there is room for, beside the
    /// `first`, and shows them.
    fn inspect(
        &mut self,
        first: Sequence,
        tokens: usize,
        sequences: usize,
        look: Look,
        cancelled: &AtomicBool,
    ) -> Result<()> {
        let mut opened = vec![first];
        while opened.len() < sequences {
            match self.pool.open(&mut *self.backend, tokens, &[])? {
                Some(sequence) => opened.push(sequence),
                None => break,
            }
        }
        for sequence in &mut opened {
            sequence.cycle_window(&mut *self.backend)?;
        }
        let slots: Vec<usize> = opened.iter().map(Sequence::slot).collect();
        look(Ok(&mut *self.backend), &slots, cancelled);
        let close = |sequence: Sequence| sequence.close(&mut *self.backend, &[]);
        opened.into_iter().try_for_each(close)
    }

    /// Carries a step out. Says whether the round is over with it.
    fn execute(&mut self, step: Step) -> Result<bool> {
        for (slot, reason) in &step.finish {
            let Some(active) = self.active[*slot].take() else {
                continue;
            };
            let error = match reason {
                Reason::Cancelled => {
                    self.end(active, End::Cancelled, Piece::default())?;
                    continue;
                }
                Reason::GangTooLarge => gang_error(step.finish.len()),
                Reason::NoRoom => {
                    let left = active.sequence.n_swapped();
                    Error::Internal(format!("no room for {left} pages"))
                }
            };
            active.fail(&mut *self.backend, error)?;
        }
        if step.drain {
            self.deliver(true)?;
        }
        for slot in &step.preempt {
            self.backend.pause(*slot)?;
            if let Some(active) = self.active[*slot].as_mut() {
                active.preempted = true;
                self.publisher.moved += 1;
                self.publisher.done().preemptions += 1;
            }
        }
        for (slot, pages) in &step.swap_out {
            for _ in 0..*pages {
                self.publisher.moved += 1;
                self.with_active(*slot, |active, backend| {
                    let filled = active.filled();
                    active.sequence.swap_out(backend, filled)
                })?;
            }
        }
        for (slot, pages) in &step.swap_in {
            for _ in 0..*pages {
                self.publisher.moved += 1;
                let mut there = true;
                self.with_active(*slot, |active, backend| {
                    there = active.sequence.swap_in(backend)?;
                    Ok(())
                })?;
                if !there {
                    self.round.stage = Stage::Forward;
                    return Ok(false);
                }
            }
        }
        if let Some(slot) = step.resume {
            if let Some(active) = self.active[slot].as_mut() {
                active.preempted = false;
                self.backend.set_paused(slot, false);
            }
        }
        for (slot, pages) in &step.grow {
            self.publisher.grown += 1;
            self.with_active(*slot, |active, backend| {
                let sequence = &mut active.sequence;
                let tokens = sequence.capacity() + pages * PAGE_TOKENS;
                match sequence.grow(backend, tokens)? {
                    true => Ok(()),
                    false => Err(Error::Internal(format!("no room for {pages} pages"))),
                }
            })?;
        }
        if step.start_gang {
            self.start_gang();
        }
        if let Some(fetch) = step.fetch {
            self.fetch(fetch)?;
        }
        match (step.prefill.is_empty(), step.decode.is_empty()) {
            (true, true) => Ok(false),
            (true, false) => self.decode(step.draft_rows).map(|()| true),
            (false, _) => self.prefill(step),
        }
    }

    /// Does something with the sequence in `slot`, whose error ends it alone.
    fn with_active(
        &mut self,
        slot: usize,
        does: impl FnOnce(&mut Active, &mut dyn Backend) -> Result<()>,
    ) -> Result<()> {
        let Some(active) = self.active[slot].as_mut() else {
            return Ok(());
        };
        match does(active, &mut *self.backend) {
            Ok(()) => Ok(()),
            Err(e) => self.fail(slot, e),
        }
    }

    /// Ends the sequence of a slot that something went wrong with.
    fn fail(&mut self, slot: usize, error: Error) -> Result<()> {
        match self.active[slot].take() {
            Some(active) => active.fail(&mut *self.backend, error),
            None => Ok(()),
        }
    }

    /// Whether a sequence decodes.
    fn decodes(&self) -> bool {
        let mut running = self.active.iter().flatten();
        !self.gathers() && running.any(|active| active.decodes())
    }

    /// Whether sequences that are to begin together wait for others of them.
    fn gathers(&self) -> bool {
        self.active.iter().flatten().any(|a| a.gang() > 0)
    }

    fn start_gang(&mut self) {
        let now = Instant::now();
        for active in self.active.iter_mut().flatten() {
            if let Task::Generate(g) = &mut active.task {
                if std::mem::take(&mut g.request.together) > 0 {
                    // That they waited is no part of their steps.
                    g.first = g.first.map(|first| Mark { at: now, ..first });
                }
            }
        }
    }

    /// Fails all that decode.
    fn fail_decoding(&mut self, error: &Error) -> Result<()> {
        for slot in 0..self.active.len() {
            if let Some(active) = self.active[slot].take_if(|a| a.decodes()) {
                active.fail(&mut *self.backend, error.clone())?;
            }
        }
        Ok(())
    }

    /// Sends out what was drawn; with `wait`, once the oldest queued step is done.
    fn deliver(&mut self, wait: bool) -> Result<()> {
        let events = match self.backend.drain(wait) {
            Ok(events) => events,
            Err(e) => return self.fail_decoding(&e),
        };
        if self.gate.drafts() {
            // Of each sequence a step gives one token that nobody had drafted.
            let mut steps = vec![0; self.active.len()];
            let firsts = events.iter().filter(|e| e.row == 0);
            firsts.for_each(|e| steps[e.slot] += 1);
            let steps = steps.into_iter().max().unwrap_or(0);
            self.gate.done(steps, events.len(), Instant::now());
        }
        let _together = Together::begin();
        for event in events {
            // A slot that ended earlier in this batch of events has no more to say.
            if let Some(active) = self.active[event.slot].take() {
                self.take_token(active, event)?;
            }
        }
        Ok(())
    }

    fn take_token(&mut self, mut active: Active, event: Event) -> Result<()> {
        let Task::Generate(g) = &mut active.task else {
            return Err(Error::Internal("a token of a request for logits".into()));
        };
        if let Some(Finish::Failed(e)) = event.finish {
            return active.fail(&mut *self.backend, e);
        }
        let begun = Instant::now();
        let mark = Mark {
            at: begun,
            sampling: self.backend.sampling_time() + self.text_time,
        };
        g.first.get_or_insert(mark);
        g.last = Some(mark);
        g.drawn.push(event.token);
        self.publisher.done().generated_tokens += 1;
        let followed = match (&mut g.constrained, &event.finish) {
            (Some(constrained), None) => constrained.take(event.token),
            _ => Ok(()),
        };
        let was_looked_up = g.lookup.as_mut().is_some_and(Lookup::was_drafted);
        if was_looked_up || self.guesses && event.row > 0 {
            g.accepted += 1;
            self.publisher.done().accepted_tokens += 1;
        }
        if self.guesses && event.row == 0 {
            g.drafted += event.drafted;
            self.publisher.done().drafted_tokens += event.drafted as u64;
            let is_round = event.drafted > 0;
            g.rounds += usize::from(is_round);
            self.publisher.done().draft_rounds += u64::from(is_round);
        }
        if let Err(e) = followed {
            return active.fail(&mut *self.backend, e);
        }
        let mut piece = Piece::default();
        let mut end = match event.finish {
            Some(Finish::Stop) => Some(End::Stop(StoppedBy::Token(event.token))),
            Some(_) if g.drawn.len() >= g.request.max_tokens => {
                Some(End::Length(LengthReason::MaxTokens))
            }
            Some(_) => Some(End::Length(LengthReason::Context)),
            None => None,
        };
        if !matches!(end, Some(End::Stop(_))) {
            let (text, stopped) = match g.text.push(&self.tokenizer, event.token) {
                Ok(pushed) => pushed,
                Err(e) => return active.fail(&mut *self.backend, e),
            };
            piece.text = text;
            piece.token_ids.push(event.token);
            piece.logprobs.extend(event.logprobs);
            g.given += 1;
            if let Some(stop) = stopped {
                end = Some(End::Stop(StoppedBy::Text(stop)));
            } else if end.is_some() {
                piece.text.push_str(&g.text.finish());
            }
        } else {
            piece.text = g.text.finish();
        }
        self.text_time += begun.elapsed();
        if let Some(end) = end {
            return self.end(active, end, piece);
        }
        if !g.out.send(Ok(piece)) {
            return active.close(&mut *self.backend);
        }
        self.active[event.slot] = Some(active);
        Ok(())
    }

    /// Sends the last piece and frees the slot.
    fn end(&mut self, mut active: Active, end: End, piece: Piece) -> Result<()> {
        if self.backend.lags() {
            active.catch_up(&mut *self.backend)?;
            self.gate.interrupt();
        }
        let known = active.known();
        // Where the device ended it, no step that was launched ahead has read more.
        if matches!(end, End::Length(_) | End::Stop(StoppedBy::Token(_))) {
            active.sequence.keep_state(&mut *self.backend, &known)?;
        }
        let (sequence, last) = active.finish(end, piece, self.load_seconds);
        // The slot is free before the caller can know that it is, or learns why it is not.
        let closed = sequence.close(&mut *self.backend, &known);
        if let Some((out, piece)) = last {
            self.publish();
            out.send(closed.clone().map(|()| piece));
        }
        closed
    }
}

/// The tokens that a job needs room for, now and in the end.
fn span(job: &Job) -> Span {
    match &job.work {
        // Else prefixes would be evicted for pages that it may never fill.
        Work::Generate { request, .. } => Span {
            now: (request.prompt.len() + STEPS_AHEAD).min(job.tokens),
            most: job.tokens,
        },
        _ => Span::whole(job.tokens),
    }
}

/// What sequences are told that wait for others of which there is no room.
fn gang_error(waiting: usize) -> Error {
    Error::Memory {
        need: format!("the cache has pages for {waiting} of the sequences that start together"),
        remedy: "use fewer, or fewer tokens for each".into(),
    }
}
