//! The queue between an engine's callers and its thread: waiting jobs, those due first in front, and how
//! each side learns that the other has ended.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use super::policy;
use super::pooling::Embedding;
use super::request::{FinishReason, Finished, Outlet, Piece, Request, Timings, Usage};
use super::stats::Now;
use crate::backend::{Backend, LogitsPath};
use crate::error::{Error, Result};
use crate::grammar::Guide;
use crate::pages::format::Content;
use crate::pages::Salt;

/// Jobs that may wait in front of another one; submitting that blocks. One of higher priority than they
/// have is let in.
const QUEUE_LIMIT: usize = 256;

/// What is to be done for one request.
pub struct Job {
    pub cancelled: Arc<AtomicBool>,
    /// When its caller first asked for it.
    pub submitted: Instant,
    pub priority: i32,
    /// Tokens that it needs room for.
    pub tokens: usize,
    pub work: Work,
}

impl Job {
    /// Answers a request that was cancelled before its turn.
    fn cancel(&self, load: f64) {
        if let Work::Generate { request, out, .. } = &self.work {
            let finished = Finished {
                reason: FinishReason::Cancelled,
                length_reason: None,
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
        request: Box<Request>,
        out: Outlet,
        /// Follows the text where it is constrained.
        guide: Option<Box<Guide>>,
        /// Who wants the keys and values of its prompt.
        save: Option<Sender<Result<Content>>>,
    },
    /// Tokens whose keys and values are there.
    LoadPrefix {
        content: Box<Content>,
        salt: Salt,
        out: Sender<Result<()>>,
    },
    Logits {
        ids: Vec<u32>,
        path: LogitsPath,
        out: Sender<Result<Vec<f32>>>,
    },
    Embed(Box<Embedding>),
    /// Done at once, between two steps.
    Inspect {
        sequences: usize,
        look: Look,
    },
}

impl Work {
    /// What a sequence is to begin with, where only what comes behind it matters.
    pub fn prompt(&self) -> &[u32] {
        match self {
            Work::Generate { request, .. } => &request.prompt,
            Work::LoadPrefix { content, .. } => &content.tokens,
            Work::Logits { .. } | Work::Embed(_) | Work::Inspect { .. } => &[],
        }
    }

    /// How many sequences are to take their first step together.
    pub fn together(&self) -> usize {
        match self {
            Work::Generate { request, .. } => request.together,
            _ => 0,
        }
    }

    /// Under which its prompt is looked for.
    pub fn salt(&self) -> Salt {
        match self {
            Work::Generate { request, .. } => request.salt,
            Work::LoadPrefix { salt, .. } => *salt,
            Work::Logits { .. } | Work::Embed(_) | Work::Inspect { .. } => Salt::default(),
        }
    }

    pub fn refuse(self, error: Error) {
        // A receiver that is gone wants no answer.
        match self {
            Work::Generate { out, .. } => {
                out.send(Err(error));
            }
            Work::LoadPrefix { out, .. } => drop(out.send(Err(error))),
            Work::Logits { out, .. } => drop(out.send(Err(error))),
            Work::Embed(text) => text.fail(error),
            Work::Inspect { look, .. } => look(Err(error), &[], &AtomicBool::new(false)),
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Each with when it is due, the least first.
    jobs: VecDeque<(i64, Job)>,
    closing: bool,
    /// Why no job is served any more.
    fate: Option<Error>,
    /// Whether the thread has let go of all it had.
    ended: bool,
}

impl Queue {
    /// Jobs that go before one that is due then.
    fn before(&self, due: i64) -> usize {
        self.jobs.partition_point(|(other, _)| *other <= due)
    }
}

/// What the executor and its callers share.
pub struct Shared {
    process: u32,
    /// What jobs are due is counted from here on.
    epoch: Instant,
    queue: Mutex<Queue>,
    /// A job came, or the end.
    arrived: Condvar,
    /// A job was taken.
    room: Condvar,
    /// The thread has ended.
    ended: Condvar,
    /// What the thread said last of what goes on in it.
    now: Mutex<Now>,
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
            epoch: Instant::now(),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
            now: Mutex::default(),
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

    /// Refuses a forked process: the thread of the executor is not there, and a lock may be held for ever.
    pub fn check_process(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::Forked {
                parent: self.process,
                child: std::process::id(),
            });
        }
        Ok(())
    }

    /// Why the thread of the executor ended; `None` while it runs.
    pub fn fate(&self) -> Option<Error> {
        self.queue().fate.clone()
    }

    /// When a request that waits `since` then is due; the least goes first.
    pub fn due(&self, since: Instant, priority: i32) -> i64 {
        policy::due(self.epoch, since, priority)
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.queue().jobs.len()
    }

    /// What the thread said last of what goes on in it.
    pub fn now(&self) -> Now {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn publish(&self, now: Now) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
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
        let due = self.due(job.submitted, job.priority);
        let full = |q: &mut Queue| q.before(due) >= QUEUE_LIMIT && !q.closing && q.fate.is_none();
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
        let at = queue.before(due);
        if at >= QUEUE_LIMIT {
            return Ok(Err(job));
        }
        queue.jobs.insert(at, (due, job));
        self.arrived.notify_one();
        Ok(Ok(()))
    }

    /// The job that is due first, if one waits; where the thread is `idle`, sleeps until there is one.
    /// Breaks off where the thread was asked to end. Jobs that were cancelled meanwhile are answered;
    /// loading took `load` seconds.
    pub fn next(&self, idle: bool, load: f64) -> ControlFlow<(), Option<Job>> {
        let mut queue = self.queue();
        loop {
            while idle && queue.jobs.is_empty() && !queue.closing {
                queue = self
                    .arrived
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if queue.closing {
                return ControlFlow::Break(());
            }
            queue.jobs.retain_mut(|(_, job)| {
                let cancelled = job.cancelled.load(Ordering::Relaxed);
                if cancelled {
                    job.cancel(load);
                }
                !cancelled
            });
            let job = queue.jobs.pop_front().map(|(_, job)| job);
            self.room.notify_all();
            if job.is_some() || !idle {
                return ControlFlow::Continue(job);
            }
        }
    }

    /// Puts a job where it was in line: before others that are due with it.
    pub fn put_back(&self, job: Job) {
        let due = self.due(job.submitted, job.priority);
        let mut queue = self.queue();
        let at = queue.jobs.partition_point(|(other, _)| *other < due);
        queue.jobs.insert(at, (due, job));
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

    pub fn end(&self, fate: Error) {
        let mut queue = self.queue();
        queue.fate = Some(fate);
        // Their senders go with them, after the fate is known.
        queue.jobs.clear();
        self.room.notify_all();
    }
}

pub const CLOSED: Error = Error::Closed { what: "the model" };
