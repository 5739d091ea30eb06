//! Whether there is room for a sequence: what it needs, what there is, and how it gets a slot.

use std::mem::take;
use std::time::Instant;

use super::content::nothing_to_copy;
use super::window::Window;
use super::{BlockManager, Sequence};
use crate::backend::{Backend, Kind, PAGE_TOKENS};
use crate::error::Result;

/// Tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// That need pages from the first on.
    pub now: usize,
    /// That there may be in the end.
    pub most: usize,
}

impl Span {
    /// Where all pages are mapped from the first on.
    pub fn whole(tokens: usize) -> Self {
        Self {
            now: tokens,
            most: tokens,
        }
    }
}

/// What a sequence needs that is to be admitted, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Free ones, at once.
    pub own: usize,
    /// That it may come to have, those of others that it reads included, and those of them that it has
    /// not yet.
    pub most: usize,
    pub owed: usize,
}

/// What there is for sequences, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Slots that are free.
    pub slots: usize,
    pub total: usize,
    /// Free, or evictable.
    pub available: usize,
    /// That sequences may come to have, and those of them that they have not on the device.
    pub promised: usize,
    pub owed: usize,
    /// Of the host's memory, for what is swapped out.
    pub host: usize,
    /// Whether sequences have states.
    pub stateful: bool,
    /// Whether prompts that begin alike share pages.
    pub shares: bool,
    /// Whether there may be too few for all that a slot each may come to need.
    pub tight: bool,
}

impl Budget {
    /// How many pages of the host's memory have to be there before a sequence of this demand is admitted,
    /// where there is room for it and `margin` pages are left.
    pub fn host_pages_for(&self, demand: &Demand, margin: usize) -> Option<usize> {
        let &Demand { own, most, owed } = demand;
        let promised = self.promised + most;
        // A sequence that finds no state for what it found of its prompt gives up what it shares.
        let all_fit = match self.stateful {
            true => promised <= self.total,
            false => own + owed + self.owed <= self.available,
        };
        let (host, margin) = match all_fit {
            true => (0, 0),
            false => ((promised + 1).saturating_sub(self.total), margin),
        };
        let fits = self.slots > 0 && host <= self.host && own + margin <= self.available;
        fits.then_some(host)
    }
}

/// A sequence that has no slot yet.
pub struct Candidate {
    pub demand: Demand,
    /// Nodes that it begins with, which it holds, and their pages.
    pub(super) whole: Vec<usize>,
    pub(super) pages: Vec<u32>,
    pub(super) pool: BlockManager,
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().prefixes.let_go(&self.whole);
    }
}

impl Candidate {
    /// Gives it a slot and its pages, and takes what is missing of `host_pages` pages of the host's memory.
    /// `None` where that is not there, or prefixes that have to be evicted take longer than `until`.
    ///
    /// # Errors
    /// What the backend says.
    pub fn admit(
        mut self,
        backend: &mut dyn Backend,
        prompt: &[u32],
        host_pages: usize,
        until: Option<Instant>,
    ) -> Result<Option<Sequence>> {
        let pool = self.pool.clone();
        let Demand { own, most, owed } = self.demand;
        let mut free = pool.free.borrow_mut();
        if host_pages > 0 {
            let storage = backend.storage().ok_or_else(nothing_to_copy)?;
            if !free.swap.reserve(storage, host_pages) {
                return Ok(None);
            }
        }
        if !free.has_room(own, until, backend)? {
            return Ok(None);
        }
        let Some(slot) = free.slots.pop() else {
            return Ok(None);
        };
        let (whole, mut pages) = (take(&mut self.whole), take(&mut self.pages));
        pages.extend(free.take(own));
        let saturated = whole.iter().any(|id| free.prefixes.saturated(*id));
        // Where there are states or windows, nothing of a prompt is there without them.
        let known = match free.prefixes.needs_more() {
            true => 0,
            false => whole.len() * PAGE_TOKENS,
        };
        free.promised += most;
        free.owed += owed;
        drop(free);
        let mut sequence = Sequence {
            most,
            owed,
            swapped: Vec::new(),
            short: 0,
            slot: slot as usize,
            position: known,
            cached: known,
            saturated,
            shared: whole,
            pages,
            window: Window::default(),
            fetched: Vec::new(),
            ready: false,
            states: Vec::new(),
            prompt_end: None,
            pool,
        };
        backend.map_pages(Kind::Whole, sequence.slot, 0, &sequence.pages)?;
        sequence.find_prefix(backend, prompt)?;
        Ok(Some(sequence))
    }
}
