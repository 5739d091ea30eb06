//! When work on a template ends early: at its deadline, or when the caller says so. Fuel and the
//! meter count work, and what they count is the same on every machine; this is the net below them,
//! and what lets Ctrl-C through.
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use minijinja::ErrorKind;

use crate::error::{Error, Result};

/// Longest time for one template. All of the fuel and the meter are used up in some two seconds;
/// a machine that is several times slower, or busy, shall still end by what is counted.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// minijinja recurses over the template; pages of a stack that are not reached cost nothing.
const STACK: usize = 128 << 20;
/// Bytes of work between two looks at the clock, where each check counts as [`CHECK`] bytes: a
/// look takes as long as a dozen checks.
const CLOCK_EVERY: u64 = 64 << 10;
const CHECK: u64 = 64;

/// Why work ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The caller said so.
    Told,
    /// The deadline was reached.
    Late,
}

/// Ends work early; looked at wherever work is charged.
#[derive(Debug)]
pub(super) struct Stop {
    told: AtomicBool,
    late: AtomicBool,
    start: Instant,
    /// From `start` on.
    pub deadline: Duration,
    /// Bytes of work since the clock was looked at.
    unseen: AtomicU64,
}

impl Stop {
    pub fn new(deadline: Duration) -> Arc<Self> {
        Arc::new(Stop {
            told: AtomicBool::new(false),
            late: AtomicBool::new(false),
            start: Instant::now(),
            deadline,
            // The first check looks at the clock.
            unseen: AtomicU64::new(CLOCK_EVERY),
        })
    }

    /// Says that the work shall end.
    pub fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// Fails, now and from then on, where the work shall end; `bytes` are about to be worked on.
    pub fn check(&self, bytes: usize) -> std::result::Result<(), minijinja::Error> {
        // One thread works; the atomics let another one tell it to end.
        let unseen = self
            .unseen
            .load(Ordering::Relaxed)
            .saturating_add(bytes as u64)
            .saturating_add(CHECK);
        if unseen < CLOCK_EVERY {
            self.unseen.store(unseen, Ordering::Relaxed);
        } else {
            self.unseen.store(0, Ordering::Relaxed);
            if self.start.elapsed() >= self.deadline {
                self.late.store(true, Ordering::Relaxed);
            }
        }
        match self.ended() {
            Some(_) => Err(minijinja::Error::from(ErrorKind::OutOfFuel)),
            None => Ok(()),
        }
    }

    pub fn ended(&self) -> Option<Ended> {
        if self.told.load(Ordering::Relaxed) {
            Some(Ended::Told)
        } else if self.late.load(Ordering::Relaxed) {
            Some(Ended::Late)
        } else {
            None
        }
    }
}

/// Work on a template under way, on a thread with a stack that no template of legal size
/// exhausts. Dropping it ends the work.
#[derive(Debug)]
pub struct Task<T> {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<Result<T>>>,
    /// Hangs up when the thread is done.
    done: Receiver<Infallible>,
}

impl<T: Send + 'static> Task<T> {
    pub(super) fn start(
        stop: Arc<Stop>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let (working, done) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("template".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let _hangs_up = working;
                work()
            })
            .map_err(|e| Error::Memory {
                need: format!("a thread for the chat template ({e})"),
                remedy: "raise the limit on threads or memory of this process".to_owned(),
            })?;
        Ok(Task {
            stop,
            thread: Some(thread),
            done,
        })
    }

    /// What became of it; nothing where that takes longer than `patience`.
    ///
    /// # Errors
    /// What the work ended in.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<T>> {
        match self.done.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => self.join().map(Some),
            Ok(never) => match never {},
        }
    }

    /// What became of it, whenever it is done.
    ///
    /// # Errors
    /// What the work ended in.
    pub fn finish(mut self) -> Result<T> {
        self.join()
    }

    #[cfg(test)]
    pub(super) fn stop_of(&self) -> Arc<Stop> {
        self.stop.clone()
    }

    fn join(&mut self) -> Result<T> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::Internal("the template engine panicked".to_owned())),
            None => Err(Error::Closed {
                what: "the work on a template",
            }),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.stop.tell();
        if let Some(thread) = self.thread.take() {
            // What it ended in has no reader any more.
            drop(thread.join());
        }
    }
}
