//! The thread that owns a backend: it admits requests to free slots, feeds prompts in slices
//! between decode steps, and sends out what is drawn. Requests meet only here, and what goes wrong
//! with one of them ends that one alone.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use super::request::{
    Cut, FinishReason, Finished, Outlet, Piece, Request, StoppedBy, Timings, Usage,
};
use super::text::TextStream;
use crate::backend::{Backend, Event, Finish, LogitsPath, SlotRequest};
use crate::error::{Error, Result};
use crate::pages::{Pool, Sequence};
use crate::tokenizer::Tokenizer;

/// Jobs that may wait; submitting another one blocks.
const QUEUE_LIMIT: usize = 256;

/// How long a slice of a prompt may keep others from decoding.
const SHARED_SLICE: Duration = Duration::from_millis(50);

/// How long it may take where nobody else decodes: until it ends, a cancel is not seen. A card's whole
/// chunk fits, also of the largest models: in smaller ones it would read their weights more often.
const ALONE_SLICE: Duration = Duration::from_millis(500);

/// Bounds of the rows of a slice.
const MIN_ROWS: usize = 8;
const MAX_ROWS: usize = 4096;
/// Of a slice whose logits are all kept: they take much memory.
const MAX_LOGIT_ROWS: usize = 512;
const FIRST_LOGIT_ROWS: usize = 32;

/// What is to be done for one request.
pub struct Job {
    pub cancelled: Arc<AtomicBool>,
    pub submitted: Instant,
    /// Tokens that it needs room for.
    pub tokens: usize,
    pub work: Work,
}

impl Job {
    /// Answers a request that was cancelled before its turn.
    fn cancel(&self, load: f64) {
        if let Work::Generate { request, out } = &self.work {
            let finished = Finished {
                reason: FinishReason::Cancelled,
                cut: None,
                stopped_by: None,
                usage: Usage {
                    prompt: request.prompt.len(),
                    ..Usage::default()
                },
                timings: Timings {
                    load,
                    queue: self.submitted.elapsed().as_secs_f64(),
                    ..Timings::default()
                },
            };
            out.send(Ok(Piece {
                finished: Some(finished),
                ..Piece::default()
            }));
        }
    }
}

/// What is done with the backend while nothing else runs: the slots that were asked for (fewer where
/// others hold them, at least one), and the flag of a cancel.
pub type Look = Box<dyn FnOnce(Result<&mut dyn Backend>, &[usize], &AtomicBool) + Send>;

/// The kinds of work.
pub enum Work {
    Generate {
        request: Request,
        out: Outlet,
    },
    Logits {
        ids: Vec<u32>,
        path: LogitsPath,
        out: Sender<Result<Vec<f32>>>,
    },
    /// Done at once, between two steps.
    Inspect {
        sequences: usize,
        look: Look,
    },
}

impl Work {
    fn refuse(self, error: Error) {
        // A receiver that is gone wants no answer.
        match self {
            Work::Generate { out, .. } => {
                out.send(Err(error));
            }
            Work::Logits { out, .. } => drop(out.send(Err(error))),
            Work::Inspect { look, .. } => look(Err(error), &[], &AtomicBool::new(false)),
        }
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closing: bool,
    /// Why no job is served any more.
    fate: Option<Error>,
    /// Whether the thread has let go of all it had.
    ended: bool,
}

/// What the owner and its callers share.
pub struct Shared {
    process: u32,
    queue: Mutex<Queue>,
    /// A job came, or the end.
    arrived: Condvar,
    /// A job was taken.
    room: Condvar,
    /// The thread has ended.
    ended: Condvar,
}

/// What the threads of all models share with their callers, while they live.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Ends the requests of all models, and their loading, and waits for their threads, at most for
/// `patience`: for a process that ends, whose devices are not to go away under them.
pub fn close_all(patience: Duration) {
    let all = match ALL.try_lock() {
        Ok(all) => all,
        Err(TryLockError::Poisoned(all)) => all.into_inner(),
        // Another thread loads a model right now; or had, when this process was forked.
        Err(TryLockError::WouldBlock) => return,
    };
    let open: Vec<Arc<Shared>> = all.iter().filter_map(Weak::upgrade).collect();
    drop(all);
    let open: Vec<_> = open.into_iter().filter(|one| !one.is_forked()).collect();
    open.iter().for_each(|one| one.close());
    let until = Instant::now() + patience;
    for one in open {
        let left = until.saturating_duration_since(Instant::now());
        let waited = one
            .ended
            .wait_timeout_while(one.queue(), left, |queue| !queue.ended);
        drop(waited);
    }
}

/// Says that the thread has ended, when it goes.
pub struct Running(pub Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.ended.notify_all();
    }
}

impl Shared {
    pub fn new() -> Arc<Self> {
        let shared = Arc::new(Self {
            process: std::process::id(),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        shared
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that loaded the model.
    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Refuses a forked process: the owner thread is not there, and a lock may be held for ever.
    pub fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::Forked {
                parent: self.process,
                child: std::process::id(),
            });
        }
        Ok(())
    }

    /// Why the owner thread ended; `None` while it runs.
    pub fn fate(&self) -> Option<Error> {
        self.queue().fate.clone()
    }

    /// Whether jobs are taken.
    pub fn check_open(&self) -> Result<()> {
        self.check_process()?;
        let queue = self.queue();
        match &queue.fate {
            Some(e) => Err(e.clone()),
            None if queue.closing => Err(CLOSED),
            None => Ok(()),
        }
    }

    /// Adds a job; gives it back where the queue stays full for `timeout`.
    pub fn push(&self, job: Job, timeout: Duration) -> Result<std::result::Result<(), Job>> {
        self.check_open()?;
        let full = |q: &mut Queue| q.jobs.len() >= QUEUE_LIMIT && !q.closing && q.fate.is_none();
        let (mut queue, _) = self
            .room
            .wait_timeout_while(self.queue(), timeout, full)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = &queue.fate {
            return Err(e.clone());
        }
        if queue.closing {
            return Err(CLOSED);
        }
        if queue.jobs.len() >= QUEUE_LIMIT {
            return Ok(Err(job));
        }
        queue.jobs.push_back(job);
        self.arrived.notify_one();
        Ok(Ok(()))
    }

    /// Whether the thread was asked to end.
    pub fn is_closing(&self) -> bool {
        self.queue().closing
    }

    /// Asks the thread to end.
    pub fn close(&self) {
        self.queue().closing = true;
        self.arrived.notify_all();
        self.room.notify_all();
    }

    fn end(&self, fate: Error) {
        let mut queue = self.queue();
        queue.fate = Some(fate);
        // Their senders go with them, after the fate is known.
        queue.jobs.clear();
        self.room.notify_all();
    }
}

pub const CLOSED: Error = Error::Closed { what: "the model" };

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
}

struct Generation {
    request: Request,
    out: Outlet,
    text: TextStream,
    first: Option<Mark>,
    last: Option<Mark>,
    drawn: usize,
    given: usize,
}

impl Active {
    fn fail(self, backend: &mut dyn Backend, error: Error) -> Result<()> {
        match &self.task {
            Task::Generate(g) => {
                g.out.send(Err(error));
            }
            Task::Logits { out, .. } => drop(out.send(Err(error))),
        }
        self.sequence.close(backend)
    }

    /// Whether its whole prompt was fed, so that it decodes.
    fn decodes(&self) -> bool {
        match &self.task {
            Task::Generate(g) => self.sequence.position == g.request.prompt.len(),
            Task::Logits { .. } => false,
        }
    }
}

/// Rows a second, to cut slices by; results do not depend on the cut.
#[derive(Default)]
struct Pace {
    rows_per_second: Option<f64>,
    /// Whether the first slice is over, in which kernels may have been compiled.
    warm: bool,
}

impl Pace {
    /// Rows that take so long, where that is known.
    fn rows(&self, slice: Duration) -> Option<usize> {
        let rows = self.rows_per_second? * slice.as_secs_f64();
        Some((rows as usize).clamp(MIN_ROWS, MAX_ROWS))
    }

    /// One slow slice, in which a list was captured or a kernel compiled, does not make those behind
    /// it so small that they are slow by themselves.
    fn note(&mut self, rows: usize, took: Duration) {
        if self.warm {
            let now = rows as f64 / took.as_secs_f64().max(1e-6);
            let least = self.rows_per_second.map_or(0.0, |before| before / 2.0);
            self.rows_per_second = Some(now.max(least));
        }
        self.warm = true;
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
    /// Slots whose prompts are to be fed, first come first served; requests for logits alternate,
    /// since they may be long and slow.
    feeding: VecDeque<usize>,
    prefill_pace: Pace,
    step_pace: Pace,
    text_time: Duration,
}

impl Owner {
    pub fn new(
        backend: Box<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        shared: Arc<Shared>,
        load_seconds: f64,
        saturated: Arc<AtomicU64>,
    ) -> Self {
        let pool = Pool::new(backend.limits(), saturated);
        let active = (0..backend.limits().n_slots).map(|_| None).collect();
        Self {
            backend,
            pool,
            tokenizer,
            shared,
            load_seconds,
            active,
            feeding: VecDeque::new(),
            prefill_pace: Pace::default(),
            step_pace: Pace::default(),
            text_time: Duration::ZERO,
        }
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
            self.drop_cancelled()?;
            self.feed()?;
            self.step()?;
        }
        Ok(())
    }

    /// Moves waiting jobs to free slots; sleeps where there is nothing to do. Says whether to go
    /// on.
    fn admit(&mut self) -> Result<bool> {
        loop {
            let idle = self.active.iter().all(Option::is_none);
            let mut queue = self.shared.queue();
            while idle && queue.jobs.is_empty() && !queue.closing {
                queue = self
                    .shared
                    .arrived
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if queue.closing {
                return Ok(false);
            }
            queue.jobs.retain_mut(|job| {
                let cancelled = job.cancelled.load(Ordering::Relaxed);
                if cancelled {
                    job.cancel(self.load_seconds);
                }
                !cancelled
            });
            let Some(job) = queue.jobs.pop_front() else {
                self.shared.room.notify_all();
                if idle {
                    continue;
                }
                return Ok(true);
            };
            self.shared.room.notify_all();
            drop(queue);
            match self.pool.open(&mut *self.backend, job.tokens) {
                Ok(Some(sequence)) => self.start(sequence, job)?,
                Ok(None) => {
                    // First in line stays first.
                    self.shared.queue().jobs.push_front(job);
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
            Work::Inspect { sequences, look } => {
                return self.inspect(sequence, job.tokens, sequences, look, &job.cancelled)
            }
            Work::Generate { request, out } => {
                let mut ends = request.stop_token_ids.clone();
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
                    },
                );
                if let Err(e) = started {
                    out.send(Err(e));
                    return sequence.close(&mut *self.backend);
                }
                Task::Generate(Box::new(Generation {
                    text: TextStream::new(&request.stop),
                    request,
                    out,
                    first: None,
                    last: None,
                    drawn: 0,
                    given: 0,
                }))
            }
        };
        self.active[slot] = Some(Active {
            sequence,
            cancelled: job.cancelled,
            submitted: job.submitted,
            begun: None,
            timed: None,
            task,
        });
        self.feeding.push_back(slot);
        Ok(())
    }

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
            match self.pool.open(&mut *self.backend, tokens)? {
                Some(sequence) => opened.push(sequence),
                None => break,
            }
        }
        let slots: Vec<usize> = opened.iter().map(Sequence::slot).collect();
        look(Ok(&mut *self.backend), &slots, cancelled);
        let close = |sequence: Sequence| sequence.close(&mut *self.backend);
        opened.into_iter().try_for_each(close)
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

    /// Feeds one slice of the first prompt in line.
    fn feed(&mut self) -> Result<()> {
        let Some(slot) = self.feeding.front().copied() else {
            return Ok(());
        };
        let others_decode = self.active.iter().flatten().any(Active::decodes);
        let slice = if others_decode {
            SHARED_SLICE
        } else {
            ALONE_SLICE
        };
        let Some(active) = self.active[slot].as_mut() else {
            return Err(Error::Internal(format!("slot {slot} feeds nothing")));
        };
        let start = active.sequence.position;
        let begun = Instant::now();
        active.begun.get_or_insert(begun);
        let (done, fed) = match &active.task {
            Task::Generate(g) => {
                let rest = &g.request.prompt[start..];
                let rows = self.prefill_pace.rows(slice);
                let most = match g.request.timed_from.checked_sub(start) {
                    Some(untimed @ 1..) => untimed.min(rest.len()),
                    _ => {
                        active.timed.get_or_insert(begun);
                        rest.len()
                    }
                };
                let chunk = &rest[..self.backend.slice(most, rows).clamp(1, most)];
                let last = chunk.len() == rest.len();
                let fed = self.backend.prefill(slot, chunk, start, last);
                self.prefill_pace.note(chunk.len(), begun.elapsed());
                (last, fed.map(|()| chunk.len()))
            }
            Task::Logits { ids, path, out } => {
                let pace = match path {
                    LogitsPath::Prefill => &mut self.prefill_pace,
                    LogitsPath::Decode => &mut self.step_pace,
                };
                let rest = &ids[start..];
                let rows = pace.rows(slice).unwrap_or(FIRST_LOGIT_ROWS);
                let chunk = &rest[..rest.len().min(rows).min(MAX_LOGIT_ROWS)];
                let logits = self.backend.logits(slot, chunk, start, *path);
                pace.note(chunk.len(), begun.elapsed());
                let fed = logits.map(|logits| {
                    drop(out.send(Ok(logits)));
                    chunk.len()
                });
                (chunk.len() == rest.len(), fed)
            }
        };
        match fed {
            Ok(n) => active.sequence.position += n,
            Err(e) => {
                self.feeding.pop_front();
                return match self.active[slot].take() {
                    Some(active) => active.fail(&mut *self.backend, e),
                    None => Ok(()),
                };
            }
        }
        if done {
            self.feeding.pop_front();
            if let Some(active) = self.active[slot].take_if(|a| !a.decodes()) {
                // Logits: the sender's end tells the receiver that these were all.
                active.sequence.close(&mut *self.backend)?;
            }
        } else if let Some(Task::Logits { .. }) = self.active[slot].as_ref().map(|a| &a.task) {
            self.feeding.rotate_left(1);
        }
        Ok(())
    }

    /// One decode step of every slot that decodes, and what the steps before gave.
    fn step(&mut self) -> Result<()> {
        // The last slice of a prompt draws a token too: it goes out before the next step.
        self.deliver(false)?;
        if !self.active.iter().flatten().any(Active::decodes) {
            return Ok(());
        }
        while self.backend.may_queue() {
            if let Err(e) = self.backend.decode() {
                return self.fail_decoding(&e);
            }
        }
        self.deliver(true)
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
        g.drawn += 1;
        let mut piece = Piece::default();
        let mut end = match event.finish {
            Some(Finish::Stop) => Some(End::Stop(StoppedBy::Token(event.token))),
            Some(_) if g.drawn >= g.request.max_tokens => Some(End::Length(Cut::MaxTokens)),
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
            return active.sequence.close(&mut *self.backend);
        }
        self.active[event.slot] = Some(active);
        Ok(())
    }

    /// Sends the last piece and frees the slot.
    fn end(&mut self, active: Active, end: End, mut piece: Piece) -> Result<()> {
        let Task::Generate(mut g) = active.task else {
            return active.sequence.close(&mut *self.backend);
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
            untimed: g.request.timed_from,
            decoded: g.drawn.saturating_sub(1),
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
                completion: g.given,
            },
            timings,
        });
        // The slot is free before the caller can know that it is, or learns why it is not.
        let closed = active.sequence.close(&mut *self.backend);
        g.out.send(closed.clone().map(|()| piece));
        closed
    }
}
