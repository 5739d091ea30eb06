//! Preempted sequences: their pages are swapped out to host memory and back unchanged.
//!
//! A page is swapped out only when every page of the device belongs to a sequence and one more is needed.
//! So of all pages that the sequences may come to need, the host holds at most those that the device
//! cannot: that much memory is reserved before a sequence is admitted, and none fails half way.

use super::content::nothing_to_copy;
use super::host::Bytes;
use super::{BlockManager, Sequence};
use crate::backend::{pages_of, Backend, Kind, Prefaulted, Storage, PAGE_TOKENS};
use crate::error::Result;

/// Memory of the host for a page.
fn piece(storage: &dyn Storage) -> Result<Bytes> {
    storage.host_memory(Prefaulted::new(storage.page_bytes(Kind::Whole))?)
}

/// Memory of the host for pages of sequences that were preempted.
#[derive(Debug, Default)]
pub struct SwapSpace {
    /// Most pages.
    most: usize,
    /// Pieces that are not in use.
    spare: Vec<Bytes>,
    used: usize,
}

impl SwapSpace {
    /// Most pages.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Takes memory for so many pages in all. Says whether it is there.
    pub fn reserve(&mut self, storage: &dyn Storage, pages: usize) -> bool {
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

impl BlockManager {
    /// The same with sequences that are swapped out to at most `pages` pages of the host's memory.
    #[must_use]
    pub fn with_swap_space(self, pages: usize) -> Self {
        self.free.borrow_mut().swap.most = pages;
        self
    }

    /// Pages that are in the host's memory since their sequences were preempted.
    pub fn swapped(&self) -> usize {
        self.free.borrow().swap.used
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

    /// [`Sequence::lacks`] of one that was preempted: what it had, it is to have again.
    pub fn lacks_swapped_in(&self, tokens: usize) -> usize {
        let had = self.pages.len() + self.swapped.len();
        self.lacks(tokens.max(had * PAGE_TOKENS))
    }

    /// Pages that it lacks in place of some that others read.
    pub fn short(&self) -> usize {
        self.short
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
    pub fn swap_out(&mut self, backend: &mut dyn Backend, filled: usize) -> Result<()> {
        let Some(at) = self.pages.len().checked_sub(1) else {
            return Ok(());
        };
        let page = self.pages[at];
        let mut free = self.pool.free.borrow_mut();
        let mut piece = None;
        if at * PAGE_TOKENS < filled {
            let storage = backend.storage().ok_or_else(nothing_to_copy)?;
            let mut taken = free.swap.take(storage)?;
            if let Err(e) = storage.read_page(Kind::Whole, page, taken.bytes_mut()) {
                free.swap.give_all([taken]);
                return Err(e);
            }
            piece = Some(taken);
        }
        self.pages.pop();
        self.swapped.push(piece);
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
    pub fn n_swapped(&self) -> usize {
        self.swapped.len()
    }

    /// The reverse of [`Sequence::swap_out`]. Says whether there was a page.
    ///
    /// # Errors
    /// What the backend says.
    pub fn swap_in(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let pool = self.pool.clone();
        let mut free = pool.free.borrow_mut();
        if !free.has_room(1, None, backend)? {
            return Ok(false);
        }
        let Some(piece) = self.swapped.pop() else {
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
            free.swap.give_all([piece]);
        }
        drop(free);
        written?;
        backend.map_pages(Kind::Whole, self.slot, at, &[page])?;
        Ok(true)
    }
}
