//! One sequence in flight: a slot of the backend, the KV pages it uses, and how far it has come.
//! Pages with tokens that a prompt begins with are read by many sequences, and kept behind the last
//! of them until their room is wanted; all others have one owner. Dropping a sequence frees what it
//! has.

mod prefixes;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::backend::{pages_of, Backend, Limits, PAGE_TOKENS};
use crate::error::{Error, Result};
use prefixes::{Found, Kept, Prefixes};

/// What no sequence owns: slots, and pages but page 0. Each page is free, in the tree, or some
/// sequence's.
#[derive(Debug)]
struct Free {
    slots: Vec<u32>,
    pages: Vec<u32>,
    prefixes: Prefixes,
}

impl Free {
    /// Whether `n` pages are free, after forgetting as many prefixes as that takes, if it does.
    fn has_room(&mut self, n: usize) -> bool {
        if self.pages.len() + self.prefixes.evictable() < n {
            return false;
        }
        while self.pages.len() < n {
            match self.prefixes.evict() {
                Some(page) => self.pages.push(page),
                None => return false,
            }
        }
        true
    }

    fn take(&mut self, n: usize) -> Vec<u32> {
        let mut pages = self.pages.split_off(self.pages.len() - n);
        pages.reverse();
        pages
    }
}

/// How many of something there are, and where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Places {
    pub total: usize,
    pub free: usize,
    /// Of sequences that run.
    pub sequences: usize,
    /// Kept for prompts to come; they go where a sequence needs the room.
    pub prefixes: usize,
}

/// Hands out slots and pages of one backend.
#[derive(Debug, Clone)]
pub struct Pool {
    free: Rc<RefCell<Free>>,
    /// Sequences that have ended and whose keys or values were beyond what the cache's type holds.
    saturated: Arc<AtomicU64>,
    /// Whether pages are found again by their tokens.
    shares: bool,
    n_pages: usize,
}

impl Pool {
    /// Everything that a backend can hold, free. `saturated` counts the sequences whose keys or
    /// values were beyond what the cache's type holds; pages of a backend that `shares` them serve
    /// every sequence that begins with their tokens.
    pub fn new(limits: &Limits, shares: bool, saturated: Arc<AtomicU64>) -> Self {
        // Taken from the end: low numbers first.
        let free = Free {
            slots: (0..limits.n_slots as u32).rev().collect(),
            pages: (1..limits.n_pages as u32).rev().collect(),
            prefixes: Prefixes::default(),
        };
        Self {
            free: Rc::new(RefCell::new(free)),
            saturated,
            shares,
            n_pages: limits.n_pages.saturating_sub(1),
        }
    }

    /// Whether pages are found again by their tokens.
    pub fn shares(&self) -> bool {
        self.shares
    }

    /// Where the pages are; page 0 is none of them.
    pub fn places(&self) -> Places {
        let free = self.free.borrow();
        let (total, prefixes) = (self.n_pages, free.prefixes.evictable());
        Places {
            total,
            free: free.pages.len(),
            sequences: total.saturating_sub(free.pages.len() + prefixes),
            prefixes,
        }
    }

    /// Slots that are free, and pages that are or would be for who asks.
    pub fn available(&self) -> (usize, usize) {
        let free = self.free.borrow();
        (
            free.slots.len(),
            free.pages.len() + free.prefixes.evictable(),
        )
    }

    /// A sequence of up to `tokens` tokens, its pages mapped; `None` while others hold what it
    /// needs. Of its `prompt` the first [`Sequence::position`] tokens need not be fed.
    ///
    /// # Errors
    /// [`Error::Memory`] where even an empty pool is too small, and what the backend says.
    pub fn open(
        &self,
        backend: &mut dyn Backend,
        tokens: usize,
        prompt: &[u32],
    ) -> Result<Option<Sequence>> {
        let needed = pages_of(tokens).max(1);
        let most = backend.limits().n_pages.saturating_sub(1);
        if needed > most {
            return Err(Error::Memory {
                need: format!("{tokens} tokens need {needed} KV pages, the cache has {most}"),
                remedy: "use a shorter prompt or smaller max_tokens".into(),
            });
        }
        let mut free = self.free.borrow_mut();
        let whole = self.find(&free.prefixes, prompt).whole;
        free.prefixes.hold(&whole);
        let own = needed.saturating_sub(whole.len());
        if free.slots.is_empty() || !free.has_room(own) {
            free.prefixes.let_go(&whole);
            return Ok(None);
        }
        let Some(slot) = free.slots.pop() else {
            return Ok(None);
        };
        let mut pages: Vec<u32> = whole.iter().map(|id| free.prefixes.page(*id)).collect();
        pages.extend(free.take(own));
        let saturated = whole.iter().any(|id| free.prefixes.saturated(*id));
        drop(free);
        let mut sequence = Sequence {
            slot: slot as usize,
            position: whole.len() * PAGE_TOKENS,
            cached: whole.len() * PAGE_TOKENS,
            saturated,
            shared: whole,
            pages,
            pool: self.clone(),
        };
        backend.map_pages(sequence.slot, 0, &sequence.pages)?;
        sequence.find_prefix(backend, prompt)?;
        Ok(Some(sequence))
    }

    /// What is kept of a prompt but its last token, whose logits are wanted.
    fn find(&self, prefixes: &Prefixes, prompt: &[u32]) -> Found {
        match (self.shares, prompt.split_last()) {
            (true, Some((_, before))) => prefixes.find(before),
            _ => Found::default(),
        }
    }
}

/// A slot, its pages, its position.
#[derive(Debug)]
pub struct Sequence {
    slot: usize,
    /// Nodes of the first pages, which others may read too.
    shared: Vec<usize>,
    pages: Vec<u32>,
    /// Tokens of the prompt that were fed, or were there.
    pub position: usize,
    /// Of these, tokens that were there.
    cached: usize,
    /// Whether something that was there is beyond what the cache's type holds.
    saturated: bool,
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

    /// Tokens of the prompt that were not fed, since their keys and values were there.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Takes more of `prompt` from what is kept by now, where nothing of it was fed yet: requests
    /// that came together find what the first of them has computed.
    ///
    /// # Errors
    /// What the backend says.
    pub fn find_prefix(&mut self, backend: &mut dyn Backend, prompt: &[u32]) -> Result<()> {
        if self.position != self.cached {
            return Ok(());
        }
        let mut free = self.pool.free.borrow_mut();
        let found = self.pool.find(&free.prefixes, prompt);
        if found.tokens() <= self.cached {
            return Ok(());
        }
        let (had, have) = (self.shared.len(), found.whole.len());
        if have > had {
            free.prefixes.hold(&found.whole);
            free.prefixes.let_go(&self.shared);
            let pages: Vec<u32> = found.whole[had..]
                .iter()
                .map(|id| free.prefixes.page(*id))
                .collect();
            // Its own, of which nothing was used.
            let mut replaced = self.pages[had..have].to_vec();
            replaced.reverse();
            free.pages.extend(replaced);
            self.pages[had..have].copy_from_slice(&pages);
            self.shared.clone_from(&found.whole);
            self.position = have * PAGE_TOKENS;
            backend.map_pages(self.slot, had, &pages)?;
        }
        if let (Some((node, tokens)), Some(own)) = (found.part, self.pages.get(have)) {
            backend.copy_page(free.prefixes.page(node), *own)?;
            self.position = have * PAGE_TOKENS + tokens;
        }
        self.cached = self.position;
        let part = found.part.map(|(node, _)| node);
        let mut read = found.whole.iter().copied().chain(part);
        self.saturated |= read.any(|node| free.prefixes.saturated(node));
        Ok(())
    }

    /// Keeps the whole pages of `tokens`, the first that the sequence has, for others too.
    ///
    /// # Errors
    /// What the backend says.
    pub fn share(&mut self, backend: &mut dyn Backend, tokens: &[u32]) -> Result<()> {
        let saturated = self.saturated || backend.saturated(self.slot);
        let (first, own) = (self.shared.len(), self.pages.clone());
        self.keep_whole(tokens, saturated);
        let pages = &self.pages[first..self.shared.len()];
        match own[first..].starts_with(pages) {
            true => Ok(()),
            // Of those that were there already, theirs.
            false => backend.map_pages(self.slot, first, pages),
        }
    }

    fn keep_whole(&mut self, tokens: &[u32], saturated: bool) {
        if !self.pool.shares {
            return;
        }
        let mut free = self.pool.free.borrow_mut();
        let pages = tokens.chunks_exact(PAGE_TOKENS).enumerate();
        for (i, tokens) in pages.skip(self.shared.len()) {
            let Some(page) = self.pages.get_mut(i) else {
                return;
            };
            let parent = self.shared.last().copied();
            let node = match free.prefixes.keep(parent, tokens, *page, saturated) {
                Kept::New(node) => node,
                Kept::Known(node) => {
                    free.pages.push(*page);
                    *page = free.prefixes.page(node);
                    node
                }
                Kept::Instead { node, free: page } => {
                    free.pages.push(page);
                    node
                }
            };
            free.prefixes.hold(&[node]);
            self.shared.push(node);
        }
    }

    /// Keeps what is left of `tokens` behind the whole pages.
    fn keep_rest(&mut self, tokens: &[u32], saturated: bool) {
        let rest = tokens.chunks_exact(PAGE_TOKENS).remainder();
        let whole = tokens.len() / PAGE_TOKENS;
        if !self.pool.shares || rest.is_empty() || self.shared.len() != whole {
            return;
        }
        let Some(page) = self.pages.get(whole).copied() else {
            return;
        };
        let mut free = self.pool.free.borrow_mut();
        let parent = self.shared.last().copied();
        match free.prefixes.keep(parent, rest, page, saturated) {
            Kept::Known(_) => return,
            Kept::New(_) => {}
            Kept::Instead { free: page, .. } => free.pages.push(page),
        }
        self.pages.remove(whole);
    }

    /// Ends the sequence in the backend, which then forgets the pages, and frees them, but for those
    /// of `known`: the first tokens, of which keys and values are there for who begins with them too.
    ///
    /// # Errors
    /// What the backend says; slot and pages are free all the same.
    pub fn close(mut self, backend: &mut dyn Backend, known: &[u32]) -> Result<()> {
        let saturated = self.saturated || backend.saturated(self.slot);
        if saturated {
            self.pool.saturated.fetch_add(1, Ordering::Relaxed);
        }
        let n_pages = self.pages.len();
        self.keep_whole(known, saturated);
        self.keep_rest(known, saturated);
        backend.release(self.slot)?;
        backend.map_pages(self.slot, 0, &vec![0; n_pages])
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        free.slots.push(self.slot as u32);
        free.prefixes.let_go(&self.shared);
        free.pages
            .extend(self.pages.drain(..).skip(self.shared.len()).rev());
    }
}
