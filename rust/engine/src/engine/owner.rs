//! The thread that owns a backend: it admits requests to free slots, feeds prompts in slices
//! beside or between decode steps, and sends out what is drawn. Requests meet only here, and what goes wrong
//! with one of them ends that one alone.

mod room;

use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bell::Together;
use super::constrain::Constrained;
use super::lookup::Lookup;
use super::pace::Pace;
use super::pooling::Embedding;
use super::queue::{Job, Look, Shared, Work, CLOSED};
use super::request::{
    Cut, FinishReason, Finished, Outlet, Piece, Request, StoppedBy, Timings, Usage,
};
use super::stats::{Now, Rates};
use super::text::TextStream;
use crate::backend::{Backend, Event, Finish, LogitsPath, SlotRequest, STEPS_AHEAD};
use crate::error::{Error, Result};
use crate::pages::format::Content;
use crate::pages::{Pool, Sequence, Span};
use crate::tokenizer::Tokenizer;

mod drafts;
mod feed;
mod inspect;
mod prompts;

/// How long requests may be given slots while others decode; the rest have their turn after the next
/// step.
const ADMITTING: Duration = Duration::from_millis(5);

/// How often others are told of pages that sequences took, while the same ones run.
const TELLING: Duration = Duration::from_millis(10);

/// How long the thread sleeps where there is nothing to do but to wait for files to be written.
const DISK_WAIT: Duration = Duration::from_micros(200);

/// The text of a panic.
pub fn panic_error(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    Error::Internal(text.unwrap_or("a panic").to_owned())
}

/// The clocks at one token.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    /// Total time of the engine spent on choosing tokens and making text.
    sampling: Duration,
}

/// How a sequence ended.
#[derive(PartialEq)]
enum End {
    Stop(StoppedBy),
    Length(Cut),
    Cancelled,
}

/// A job in a slot.
struct Active {
    sequence: Sequence,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    priority: i32,
    /// How many were given a slot before it.
    number: u64,
    /// Whether it stepped aside: it keeps its slot and is left out of all that goes on.
    aside: bool,
    /// When its prompt had its last turn; before the first, when it came.
    turn: Instant,
    /// When its first slice was begun.
    begun: Option<Instant>,
    /// When the first slice whose time is asked for was.
    timed: Option<Instant>,
    task: Task,
}

enum Task {
    Generate(Box<Generation>),
    Logits {
        ids: Vec<u32>,
        path: LogitsPath,
        out: Sender<Result<Vec<f32>>>,
    },
    Embed(Box<Embedding>),
}

struct Generation {
    request: Request,
    out: Outlet,
    text: TextStream,
    first: Option<Mark>,
    last: Option<Mark>,
    drawn: Vec<u32>,
    given: usize,
    /// Where drafts are asked for.
    lookup: Option<Lookup>,
    /// Where its text is constrained.
    constrained: Option<Constrained>,
    /// Tokens drafted so far, and those of them that were drawn.
    drafted: usize,
    accepted: usize,
    /// Who wants the keys and values of the prompt.
    save: Option<Sender<Result<Content>>>,
}

impl Active {
    fn fail(self, backend: &mut dyn Backend, error: Error) -> Result<()> {
        match self.task {
            Task::Generate(g) => {
                g.out.send(Err(error));
            }
            Task::Logits { out, .. } => drop(out.send(Err(error))),
            Task::Embed(text) => text.fail(error),
        }
        self.sequence.close(backend, &[])
    }

    /// The tokens whose keys and values it has computed.
    fn known(&self) -> Vec<u32> {
        match &self.task {
            Task::Generate(g) => {
                let mut tokens = g.request.prompt[..self.sequence.position].to_vec();
                // The one drawn last was not fed: a step that was launched ahead may have fed it, or
                // not.
                let fed = g.drawn.split_last().map_or(&[][..], |(_, fed)| fed);
                tokens.extend(fed);
                tokens
            }
            Task::Logits { .. } | Task::Embed(_) => Vec::new(),
        }
    }

    /// Ends its sequence, whose keys and values serve others.
    fn close(self, backend: &mut dyn Backend) -> Result<()> {
        let known = self.known();
        self.sequence.close(backend, &known)
    }

    /// The prompt that it feeds.
    fn prompt(&self) -> &[u32] {
        match &self.task {
            Task::Generate(g) => &g.request.prompt,
            Task::Logits { .. } | Task::Embed(_) => &[],
        }
    }

    /// Whether its next tokens may be drafted.
    fn drafts(&self) -> bool {
        match &self.task {
            Task::Generate(g) => g.lookup.is_some() || g.constrained.is_some(),
            Task::Logits { .. } | Task::Embed(_) => false,
        }
    }

    /// What follows it, where it decodes and is constrained.
    fn constrained(&mut self) -> Option<&mut Constrained> {
        let decodes = self.decodes();
        match &mut self.task {
            Task::Generate(g) => g.constrained.as_mut().filter(|_| decodes),
            Task::Logits { .. } | Task::Embed(_) => None,
        }
    }

    /// How many sequences are to take their first step with it, of which it waits for some.
    fn together(&self) -> usize {
        match &self.task {
            Task::Generate(g) => g.request.together,
            Task::Logits { .. } | Task::Embed(_) => 0,
        }
    }

    /// Whether its whole prompt was fed.
    fn is_fed(&self) -> bool {
        match &self.task {
            Task::Generate(g) => self.sequence.position == g.request.prompt.len(),
            Task::Logits { .. } | Task::Embed(_) => false,
        }
    }

    /// Whether it decodes.
    fn decodes(&self) -> bool {
        self.is_fed() && !self.aside
    }
}

/// A backend and all that goes on in it.
pub struct Owner {
    backend: Box<dyn Backend>,
    pool: Pool,
    tokenizer: Arc<Tokenizer>,
    shared: Arc<Shared>,
    load_seconds: f64,
    /// By slot.
    active: Vec<Option<Active>>,
    /// Slots whose prompts, or tokens for logits, are to be fed, in turns.
    feeding: Vec<usize>,
    prefill_pace: Pace,
    step_pace: Pace,
    /// What the last decode step took.
    step_took: Duration,
    text_time: Duration,
    now: Now,
    rates: Rates,
    /// Whether memory of the host is still to be taken that prompts to come will want.
    unprepared: bool,
    /// Sequences that were given a slot so far.
    admitted: u64,
    /// How often sequences were given pages as they grew.
    grown: u64,
    /// Pages that went aside or came back.
    moved: u64,
    told: Option<Told>,
}

/// When others were told last of where pages are.
struct Told {
    /// Sequences that ran, prompts that were fed, `admitted` and `moved` by then.
    what: (usize, usize, u64, u64),
    grown: u64,
    at: Instant,
}

impl Owner {
    pub fn new(
        backend: Box<dyn Backend>,
        pool: Pool,
        tokenizer: Arc<Tokenizer>,
        shared: Arc<Shared>,
        load_seconds: f64,
    ) -> Self {
        let active = (0..backend.limits().n_slots).map(|_| None).collect();
        let mut owner = Self {
            backend,
            pool,
            tokenizer,
            shared,
            load_seconds,
            active,
            feeding: Vec::new(),
            prefill_pace: Pace::default(),
            step_pace: Pace::default(),
            step_took: Duration::ZERO,
            text_time: Duration::ZERO,
            now: Now::default(),
            rates: Rates::default(),
            unprepared: true,
            admitted: 0,
            grown: 0,
            moved: 0,
            told: None,
        };
        owner.say();
        owner
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
            let (begun, before) = (Instant::now(), self.now.done);
            self.drop_cancelled()?;
            self.release();
            if !self.feed()? {
                self.step()?;
            }
            let done = &self.now.done;
            self.rates.note(
                begun.elapsed(),
                done.prompt_tokens - before.prompt_tokens,
                done.generated_tokens - before.generated_tokens,
            );
            self.say();
            self.write_behind()?;
            if self.is_idle() {
                self.unprepared = self.pool.prepare(&mut *self.backend);
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

    /// Lets others know what goes on. Where the pages are is looked up only when they may have moved,
    /// and not in every step of many sequences that grow.
    fn say(&mut self) {
        let running = self.active.iter().flatten().filter(|a| !a.aside).count();
        let feeding = self.feeding.len();
        let told = (running, feeding, self.admitted, self.moved);
        let is_new = self.told.as_ref().is_none_or(|before| {
            before.what != told || (before.grown != self.grown && before.at.elapsed() > TELLING)
        });
        if is_new {
            self.told = Some(Told {
                what: told,
                grown: self.grown,
                at: Instant::now(),
            });
            (self.now.running, self.now.feeding) = (running, feeding);
            self.now.aside = self.active.iter().flatten().count() - running;
            self.now.pages_aside = self.pool.aside();
            self.now.pages = self.pool.places();
            self.now.window_pages = self.pool.windowed_places();
        }
        (self.now.done.prompt_rate, self.now.done.generated_rate) = self.rates.now();
        self.shared.say(self.now);
    }

    /// Moves waiting jobs to free slots, and takes back who stepped aside; sleeps where there is nothing
    /// to do. Says whether to go on.
    fn admit(&mut self) -> Result<bool> {
        let goes_on = self.take_jobs()?;
        self.come_back()?;
        Ok(goes_on)
    }

    fn take_jobs(&mut self) -> Result<bool> {
        let decodes = self.decodes();
        let begun = Instant::now();
        loop {
            if decodes && begun.elapsed() > ADMITTING {
                return Ok(true);
            }
            let idle = self.is_idle() && !self.pool.has_unwritten() && !self.unprepared;
            let job = match self.shared.next(idle, self.load_seconds) {
                ControlFlow::Continue(Some(job)) => job,
                ControlFlow::Continue(None) => return Ok(true),
                ControlFlow::Break(()) => return Ok(false),
            };
            if self.is_behind_one_aside(&job) {
                self.shared.put_back(job);
                return Ok(true);
            }
            let (span, prompt) = (self.span(&job), job.work.prompt());
            let margin = self.margin();
            let until = decodes.then(|| begun + self.giving_way());
            let pool = self.pool.under(job.work.salt());
            match pool.admit(&mut *self.backend, span, prompt, margin, until) {
                Ok(Some(sequence)) => self.start(sequence, job)?,
                Ok(None) if job.work.together() > 0 && self.gathers() => {
                    job.work.refuse(self.scatter()?);
                }
                Ok(None) => {
                    self.shared.put_back(job);
                    return Ok(true);
                }
                Err(e) => job.work.refuse(e),
            }
        }
    }

    fn start(&mut self, sequence: Sequence, job: Job) -> Result<()> {
        let slot = sequence.slot();
        let task = match job.work {
            Work::Logits { ids, path, out } => Task::Logits { ids, path, out },
            Work::Embed(text) => {
                self.now.done.requests += 1;
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
                    accepted: 0,
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
            aside: false,
            turn: job.submitted,
            begun: None,
            timed: None,
            task,
        });
        self.feeding.push(slot);
        self.admitted += 1;
        self.say();
        Ok(())
    }

    fn drop_cancelled(&mut self) -> Result<()> {
        for slot in 0..self.active.len() {
            let cancelled = |a: &mut Active| a.cancelled.load(Ordering::Relaxed);
            if let Some(active) = self.active[slot].take_if(cancelled) {
                self.end(active, End::Cancelled, Piece::default())?;
            }
        }
        self.feeding.retain(|slot| self.active[*slot].is_some());
        Ok(())
    }

    /// Whether a sequence decodes.
    fn decodes(&self) -> bool {
        self.decoding() > 0
    }

    /// Whether sequences that are to begin together wait for others of them.
    fn gathers(&self) -> bool {
        self.active.iter().flatten().any(|a| a.together() > 0)
    }

    /// Ends sequences that wait for others of which there is no room: they would wait for ever. What
    /// they are told.
    fn scatter(&mut self) -> Result<Error> {
        let waits = |a: &Active| a.together() > 0;
        let told = Error::Memory {
            need: format!(
                "the pages of the cache hold {} of the sequences that are to begin together",
                self.active.iter().flatten().filter(|a| waits(a)).count()
            ),
            remedy: "ask for fewer, or for fewer tokens of each".into(),
        };
        for slot in 0..self.active.len() {
            if let Some(active) = self.active[slot].take_if(|a| waits(a)) {
                active.fail(&mut *self.backend, told.clone())?;
            }
        }
        self.feeding.retain(|slot| self.active[*slot].is_some());
        Ok(told)
    }

    /// Lets sequences that are to begin together take their first step once all have come so far.
    fn release(&mut self) {
        let running = self.active.iter().flatten();
        let wanted = running.clone().map(Active::together).max().unwrap_or(0);
        let wanted = wanted.min(self.active.len());
        if wanted == 0 {
            return;
        }
        let ready = running.filter(|a| a.together() > 0 && a.decodes()).count();
        if ready < wanted {
            if self.feeding.is_empty() {
                std::thread::sleep(DISK_WAIT);
            }
            return;
        }
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

    /// How many do.
    fn decoding(&self) -> usize {
        if self.gathers() {
            return 0;
        }
        let running = self.active.iter().flatten();
        running.filter(|active| active.decodes()).count()
    }

    /// One decode step of every slot that decodes, and what the steps before gave.
    fn step(&mut self) -> Result<()> {
        // The last slice of a prompt draws a token too: it goes out before the next step.
        self.deliver(false)?;
        if self.gathers() {
            return Ok(());
        }
        self.make_room()?;
        if !self.decodes() {
            return Ok(());
        }
        let begun = Instant::now();
        let settled = self.backend.is_settled();
        self.see()?;
        let mut drafts = self.drafts(settled)?;
        if drafts.is_empty() {
            while self.backend.may_queue() {
                if let Err(e) = self.backend.decode() {
                    return self.fail_decoding(&e);
                }
            }
        } else if settled {
            self.constrain_round(&mut drafts)?;
            if let Err(e) = self.backend.decode_drafted(&drafts) {
                return self.fail_decoding(&e);
            }
        }
        // Else somebody has a draft behind tokens that are still to come.
        self.deliver(true)?;
        self.constrain()?;
        self.step_took = begun.elapsed();
        Ok(())
    }

    fn fail_decoding(&mut self, error: &Error) -> Result<()> {
        for slot in 0..self.active.len() {
            if let Some(active) = self.active[slot].take_if(|a| a.decodes()) {
                active.fail(&mut *self.backend, error.clone())?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self, wait: bool) -> Result<()> {
        let events = match self.backend.drain(wait) {
            Ok(events) => events,
            Err(e) => return self.fail_decoding(&e),
        };
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
        self.now.done.generated_tokens += 1;
        let followed = match (&mut g.constrained, &event.finish) {
            (Some(constrained), None) => constrained.take(event.token),
            _ => Ok(()),
        };
        if g.lookup.as_mut().is_some_and(Lookup::was_drafted) {
            g.accepted += 1;
            self.now.done.accepted_tokens += 1;
        }
        if let Err(e) = followed {
            return active.fail(&mut *self.backend, e);
        }
        let mut piece = Piece::default();
        let mut end = match event.finish {
            Some(Finish::Stop) => Some(End::Stop(StoppedBy::Token(event.token))),
            Some(_) if g.drawn.len() >= g.request.max_tokens => Some(End::Length(Cut::MaxTokens)),
            Some(_) => Some(End::Length(Cut::Context)),
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
    fn end(&mut self, mut active: Active, end: End, mut piece: Piece) -> Result<()> {
        let known = active.known();
        // Where the device ended it, no step that was launched ahead has read more.
        if matches!(end, End::Length(_) | End::Stop(StoppedBy::Token(_))) {
            active.sequence.keep_state(&mut *self.backend, &known)?;
        }
        let Task::Generate(mut g) = active.task else {
            return active.sequence.close(&mut *self.backend, &known);
        };
        if end == End::Cancelled {
            piece.text.push_str(&g.text.finish());
        }
        let now = Instant::now();
        let begun = active.begun.unwrap_or(now);
        let timed = active.timed.unwrap_or(now);
        let prompt_done = g.first.map_or(now, |m| m.at);
        let mut timings = Timings {
            load: self.load_seconds,
            queue: (begun - active.submitted).as_secs_f64(),
            prefill: (prompt_done - timed).as_secs_f64(),
            untimed: g.request.timed_from.max(active.sequence.cached()),
            decoded: g.drawn.len().saturating_sub(1),
            ..Timings::default()
        };
        if let (Some(first), Some(last)) = (g.first, g.last) {
            timings.decode = (last.at - first.at).as_secs_f64();
            timings.sampling = (last.sampling - first.sampling).as_secs_f64();
        }
        let (reason, cut, stopped_by) = match end {
            End::Stop(by) => (FinishReason::Stop, None, Some(by)),
            End::Length(cut) => (FinishReason::Length, Some(cut), None),
            End::Cancelled => (FinishReason::Cancelled, None, None),
        };
        piece.finished = Some(Finished {
            reason,
            cut,
            stopped_by,
            usage: Usage {
                prompt: g.request.prompt.len(),
                cached: active.sequence.cached(),
                completion: g.given,
                drafted: g.drafted,
                accepted: g.accepted,
            },
            timings,
        });
        // The slot is free before the caller can know that it is, or learns why it is not.
        let closed = active.sequence.close(&mut *self.backend, &known);
        self.say();
        g.out.send(closed.clone().map(|()| piece));
        closed
    }
}
