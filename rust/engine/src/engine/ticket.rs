//! The handle of a queued job: its caller waits for results here, and may cancel it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::queue::Shared;
use super::request::Piece;
use crate::error::{Error, Result};

/// How long to wait before asking whether to go on.
pub const POLL: Duration = Duration::from_millis(20);

/// What waiting for a [`Ticket`] gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Wait<T> {
    Item(T),
    /// The time was over first.
    TimedOut,
    /// There is nothing more.
    End,
}

/// The handle of a queued job. Dropping it cancels the job.
pub struct Ticket<T> {
    pub(super) items: Mutex<Receiver<Result<T>>>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) over: AtomicBool,
    pub(super) shared: Arc<Shared>,
}

impl<T> Ticket<T> {
    /// Waits for the next item.
    ///
    /// # Errors
    /// What ended the job; nothing comes after it.
    pub fn next(&self, timeout: Duration) -> Result<Wait<T>> {
        self.shared.check_process()?;
        let items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let item = match items.recv_timeout(timeout) {
            Ok(item) => item.map(Wait::Item),
            Err(RecvTimeoutError::Timeout) => Ok(Wait::TimedOut),
            Err(RecvTimeoutError::Disconnected) if self.over.load(Ordering::Relaxed) => {
                Ok(Wait::End)
            }
            Err(RecvTimeoutError::Disconnected) => match self.shared.fate() {
                Some(e) => Err(e),
                None => Ok(Wait::End),
            },
        };
        if item.is_err() {
            self.over.store(true, Ordering::Relaxed);
        }
        item
    }

    /// Ends the job soon. A sequence's last piece then says [`super::FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Ticket<Piece> {
    /// Appends what comes within `timeout` to `whole`, which has an end once all has come.
    ///
    /// # Errors
    /// What ended the sequence.
    pub fn collect(&self, whole: &mut Piece, timeout: Duration) -> Result<()> {
        let until = Instant::now() + timeout;
        while whole.finished.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            match self.next(left)? {
                Wait::Item(piece) => whole.extend(piece),
                Wait::TimedOut => {}
                Wait::End => return Err(Error::Internal("a sequence without an end".into())),
            }
            if left.is_zero() {
                break;
            }
        }
        Ok(())
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.cancel();
    }
}
