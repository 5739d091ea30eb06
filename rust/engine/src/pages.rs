//! One sequence in flight: a slot of the backend, the KV pages it owns, and how far it has come.
//! Dropping it frees both.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::backend::{pages_of, Backend, Limits, PAGE_TOKENS};
use crate::error::{Error, Result};

/// What no sequence uses: slots, and pages but page 0. Each page has one owner.
#[derive(Debug)]
struct Free {
    slots: Vec<u32>,
    pages: Vec<u32>,
}

/// Hands out slots and pages of one backend.
#[derive(Debug, Clone)]
pub struct Pool {
    free: Rc<RefCell<Free>>,
    /// Sequences that have ended and whose keys or values were beyond what the cache's type holds.
    saturated: Arc<AtomicU64>,
}

impl Pool {
    /// Everything that a backend can hold, free. `saturated` counts the sequences whose keys or
    /// values were beyond what the cache's type holds.
    pub fn new(limits: &Limits, saturated: Arc<AtomicU64>) -> Self {
        // Taken from the end: low numbers first.
        let free = Free {
            slots: (0..limits.n_slots as u32).rev().collect(),
            pages: (1..limits.n_pages as u32).rev().collect(),
        };
        Self {
            free: Rc::new(RefCell::new(free)),
            saturated,
        }
    }

    /// Slots and pages that are free.
    pub fn available(&self) -> (usize, usize) {
        let free = self.free.borrow();
        (free.slots.len(), free.pages.len())
    }

    /// A sequence of up to `tokens` tokens, its pages mapped; `None` while others hold what it
    /// needs.
    ///
    /// # Errors
    /// [`Error::Memory`] where even an empty pool is too small, and what the backend says.
    pub fn open(&self, backend: &mut dyn Backend, tokens: usize) -> Result<Option<Sequence>> {
        let needed = pages_of(tokens).max(1);
        let most = backend.limits().n_pages.saturating_sub(1);
        if needed > most {
            return Err(Error::Memory {
                need: format!("{tokens} tokens need {needed} KV pages, the cache has {most}"),
                remedy: "use a shorter prompt or smaller max_tokens".into(),
            });
        }
        let mut free = self.free.borrow_mut();
        if free.pages.len() < needed {
            return Ok(None);
        }
        let Some(slot) = free.slots.pop() else {
            return Ok(None);
        };
        let kept = free.pages.len() - needed;
        let mut pages = free.pages.split_off(kept);
        pages.reverse();
        drop(free);
        let sequence = Sequence {
            slot: slot as usize,
            pages,
            position: 0,
            pool: self.clone(),
        };
        backend.map_pages(sequence.slot, 0, &sequence.pages)?;
        Ok(Some(sequence))
    }
}

/// A slot, its pages, its position.
#[derive(Debug)]
pub struct Sequence {
    slot: usize,
    pages: Vec<u32>,
    /// Tokens of the prompt that were fed.
    pub position: usize,
    pool: Pool,
}

impl Sequence {
    /// The backend's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Tokens that the pages hold.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }

    /// Ends the sequence in the backend, which then forgets the pages, and frees them.
    ///
    /// # Errors
    /// What the backend says; slot and pages are free all the same.
    pub fn close(self, backend: &mut dyn Backend) -> Result<()> {
        if backend.saturated(self.slot) {
            self.pool.saturated.fetch_add(1, Ordering::Relaxed);
        }
        backend.release(self.slot)?;
        backend.map_pages(self.slot, 0, &vec![0; self.pages.len()])
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        free.slots.push(self.slot as u32);
        free.pages.extend(self.pages.drain(..).rev());
    }
}
