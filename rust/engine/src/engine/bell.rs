//! Notifies waiters other than tickets, such as the tasks of an event loop: one call for everything that
//! a step gave them.

use std::cell::RefCell;
use std::sync::Arc;

/// What wakes somebody who watches several tickets.
pub trait Bell: Send + Sync {
    /// The tickets of these numbers have something new, some of them more than once. Comes from the
    /// engine's own thread, which must not wait.
    fn ring(&self, numbers: &[u64]);
}

/// Whose bell is rung for one ticket.
#[derive(Clone)]
pub struct Caller {
    pub bell: Arc<dyn Bell>,
    /// The ticket's.
    pub number: u64,
    /// Whether it is rung once, when all has come, in place of for each piece.
    pub at_end: bool,
}

/// A bell, and the numbers that it is to be rung for.
type Pending = (Arc<dyn Bell>, Vec<u64>);

thread_local! {
    /// What this thread has not rung yet; None where it rings at once.
    static PENDING: RefCell<Option<Vec<Pending>>> = const { RefCell::new(None) };
}

/// As long as it lives, this thread rings nobody; when it goes, each bell is rung once.
pub(super) struct Together {
    /// Within another one, whose end is the end.
    inner: bool,
}

impl Together {
    pub fn begin() -> Self {
        PENDING.with_borrow_mut(|pending| {
            let inner = pending.is_some();
            pending.get_or_insert_default();
            Self { inner }
        })
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        if !self.inner {
            for (bell, numbers) in PENDING.take().unwrap_or_default() {
                bell.ring(&numbers);
            }
        }
    }
}

impl Caller {
    /// There is something new.
    pub(super) fn news(&self) {
        if !self.at_end {
            self.ring();
        }
    }

    fn ring(&self) {
        // A thread that ends has nothing pending.
        let waits = PENDING.try_with(|pending| {
            let mut pending = pending.borrow_mut();
            let Some(pending) = pending.as_mut() else {
                return false;
            };
            match pending
                .iter_mut()
                .find(|(bell, _)| Arc::ptr_eq(bell, &self.bell))
            {
                Some((_, numbers)) => numbers.push(self.number),
                None => pending.push((self.bell.clone(), vec![self.number])),
            }
            true
        });
        if !waits.unwrap_or(false) {
            self.bell.ring(&[self.number]);
        }
    }
}

/// The last ring: a request lets go of its caller at its end.
pub(super) struct Called(pub Option<Caller>);

impl Called {
    pub fn news(&self) {
        if let Some(caller) = &self.0 {
            caller.news();
        }
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        if let Some(caller) = &self.0 {
            caller.ring();
        }
    }
}
