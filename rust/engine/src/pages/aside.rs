//! Sequences that step aside for others: pages go to the host's memory and come back as they were.
//!
//! A page goes only where every page of the device is some sequence's and one more is wanted. So of all
//! pages that sequences may come to have, the host holds at most as many as the device cannot: that much
//! of its memory is there before a sequence is let in, and none is ever turned away half way.

use std::time::Instant;

use super::content::nothing_to_copy;
use super::host::Bytes;
use super::{Free, Pool, Sequence};
use crate::backend::{pages_of, Backend, Kind, Prefaulted, Storage, PAGE_TOKENS};
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

/// Memory of the host for a page.
fn piece(storage: &dyn Storage) -> Result<Bytes> {
    storage.host_memory(Prefaulted::new(storage.page_bytes(Kind::Whole))?)
}

/// Memory of the host for pages of sequences that stepped aside.
#[derive(Debug, Default)]
pub struct Aside {
    /// Most pages.
    most: usize,
    /// Pieces that are not in use.
    spare: Vec<Bytes>,
    used: usize,
}

impl Aside {
    /// Takes memory for so many pages in all. Says whether it is there.
    fn reserve(&mut self, storage: &dyn Storage, pages: usize) -> bool {
        while self.spare.len() + self.used < pages {
            match piece(storage) {
                Ok(piece) => self.spare.push(piece),
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, storage: &dyn Storage) -> Result<Bytes> {
        let piece = match self.spare.pop() {
            Some(piece) => piece,
            None => piece(storage)?,
        };
        self.used += 1;
        Ok(piece)
    }

    /// Takes pieces back.
    pub fn give_all(&mut self, pieces: impl IntoIterator<Item = Bytes>) {
        for piece in pieces {
            self.used -= 1;
            self.spare.push(piece);
        }
    }
}

impl Free {
    /// Whether `own` pages are free for a sequence that may come to have `most`, `owed` of them later.
    pub(super) fn has_room_for(
        &mut self,
        own: usize,
        most: usize,
        owed: usize,
        margin: usize,
        until: Option<Instant>,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        let total = backend.limits().n_pages.saturating_sub(1);
        let promised = self.promised + most;
        let available = self.pages.len() + self.prefixes.evictable();
        // A sequence that finds no state for what it found of its prompt gives up what it shares.
        let all_fit = match self.prefixes.stateful {
            true => promised <= total,
            false => own + owed + self.owed <= available,
        };
        if all_fit {
            return self.has_room(own, until, backend);
        }
        let held = (promised + 1).saturating_sub(total);
        if held > self.aside.most || own + margin > available {
            return Ok(false);
        }
        let storage = backend.storage().ok_or_else(nothing_to_copy)?;
        if !self.aside.reserve(storage, held) {
            return Ok(false);
        }
        self.has_room(own, until, backend)
    }
}

impl Pool {
    /// The same with sequences that step aside to at most `pages` pages of the host's memory.
    #[must_use]
    pub fn stepping_aside(self, pages: usize) -> Self {
        self.free.borrow_mut().aside.most = pages;
        self
    }

    /// Whether there may be too few pages for all that a slot each may come to need.
    pub fn is_tight(&self) -> bool {
        self.tight
    }

    /// Pages that are in the host's memory since their sequences stepped aside.
    pub fn aside(&self) -> usize {
        self.free.borrow().aside.used
    }
}

impl Sequence {
    /// Pages on the device that no prefix is in.
    pub fn own_pages(&self) -> usize {
        self.pages.len() - self.shared.len()
    }

    /// Pages on the device.
    pub fn n_pages(&self) -> usize {
        self.pages.len()
    }

    /// Pages that it lacks for `tokens` tokens, or for what it found of its prompt.
    pub fn lacks(&self, tokens: usize) -> usize {
        let wanted = pages_of(tokens).min(self.most);
        wanted.saturating_sub(self.pages.len()) + self.short
    }

    /// [`Sequence::lacks`] of one that stepped aside: what it had, it is to have again.
    pub fn lacks_back(&self, tokens: usize) -> usize {
        let had = self.pages.len() + self.aside.len();
        self.lacks(tokens.max(had * PAGE_TOKENS))
    }

    /// Whether it waits for pages in place of some that others read.
    pub fn is_short(&self) -> bool {
        self.short > 0
    }

    /// Maps further pages, so that there is room for `tokens` tokens. Says whether there were as many; if
    /// not, it has those that it had.
    ///
    /// # Errors
    /// What the backend says.
    pub fn grow(&mut self, backend: &mut dyn Backend, tokens: usize) -> Result<bool> {
        let wanted = pages_of(tokens).min(self.most);
        let first = self.pages.len();
        let n = wanted.saturating_sub(first);
        if n == 0 {
            return Ok(true);
        }
        let mut free = self.pool.free.borrow_mut();
        if !free.has_room(n, None, backend)? {
            return Ok(false);
        }
        self.pages.extend(free.take(n));
        self.owed -= n;
        free.owed -= n;
        drop(free);
        backend.map_pages(Kind::Whole, self.slot, first, &self.pages[first..])?;
        Ok(true)
    }

    /// Moves its last page on the device to the host's memory, or only gives it back where nothing is in
    /// it: the sequence has `filled` tokens. Its slot has to be left out of steps.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], and what the backend says; the page is where it was.
    pub fn put_aside(&mut self, backend: &mut dyn Backend, filled: usize) -> Result<()> {
        let Some(at) = self.pages.len().checked_sub(1) else {
            return Ok(());
        };
        let page = self.pages[at];
        let mut free = self.pool.free.borrow_mut();
        let mut piece = None;
        if at * PAGE_TOKENS < filled {
            let storage = backend.storage().ok_or_else(nothing_to_copy)?;
            let mut taken = free.aside.take(storage)?;
            if let Err(e) = storage.read_page(Kind::Whole, page, taken.bytes_mut()) {
                free.aside.give_all([taken]);
                return Err(e);
            }
            piece = Some(taken);
        }
        self.pages.pop();
        self.aside.push(piece);
        match self.shared.len() > at {
            true => free.prefixes.let_go(&self.shared.split_off(at)),
            false => free.pages.push(page),
        }
        self.owed += 1;
        free.owed += 1;
        drop(free);
        backend.map_pages(Kind::Whole, self.slot, at, &[0])
    }

    /// Pages that are not on the device.
    pub fn n_aside(&self) -> usize {
        self.aside.len()
    }

    /// The reverse of [`Sequence::put_aside`]. Says whether there was a page.
    ///
    /// # Errors
    /// What the backend says.
    pub fn bring_back(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let pool = self.pool.clone();
        let mut free = pool.free.borrow_mut();
        if !free.has_room(1, None, backend)? {
            return Ok(false);
        }
        let Some(piece) = self.aside.pop() else {
            return Ok(true);
        };
        let at = self.pages.len();
        self.pages.extend(free.take(1));
        self.owed -= 1;
        free.owed -= 1;
        let page = self.pages[at];
        let mut written = Ok(());
        if let Some(piece) = piece {
            written = match backend.storage() {
                Some(storage) => storage.write_page(Kind::Whole, page, piece.bytes()),
                None => Err(nothing_to_copy()),
            };
            free.aside.give_all([piece]);
        }
        drop(free);
        written?;
        backend.map_pages(Kind::Whole, self.slot, at, &[page])?;
        Ok(true)
    }
}
