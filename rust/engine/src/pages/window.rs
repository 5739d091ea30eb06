//! The pages of one sequence in sliding-window layers: only those that its next tokens see or are in.
//! Each is its own, or belongs to a node that it reads.

use std::collections::VecDeque;

use super::prefixes::{Found, Prefixes, Source};
use super::{Free, Sequence};
use crate::backend::{pages_of, Backend, Kind, PAGE_TOKENS};
use crate::error::{Error, Result};

/// Consecutive pages of a sequence.
#[derive(Debug, Default)]
pub struct Window {
    /// Which page of the sequence the first is.
    first: usize,
    /// Their numbers, and the nodes of those that others may read too.
    pages: VecDeque<(u32, Option<usize>)>,
}

impl Window {
    /// The page of the sequence behind the last.
    pub fn end(&self) -> usize {
        self.first + self.pages.len()
    }

    fn numbers(&self) -> Vec<u32> {
        self.pages.iter().map(|(page, _)| *page).collect()
    }

    /// Gives up those before page `first`, with which it begins anew where none is left; how many they
    /// were.
    fn let_go(&mut self, first: usize, prefixes: &mut Prefixes) -> usize {
        let gone = first.saturating_sub(self.first).min(self.pages.len());
        for (page, node) in self.pages.drain(..gone) {
            match node {
                Some(node) => prefixes.let_windowed_go(node),
                None => prefixes.free_windowed.push(page),
            }
        }
        self.first += gone;
        if self.pages.is_empty() {
            self.first = first;
        }
        gone
    }

    /// Gives up all of them.
    pub fn clear(&mut self, prefixes: &mut Prefixes) {
        let end = self.end();
        self.let_go(end, prefixes);
    }

    /// Takes away the page of the sequence of this number, where it is there and the sequence's own.
    pub fn take(&mut self, page: usize) -> Option<u32> {
        let at = page.checked_sub(self.first)?;
        match self.pages.get(at)? {
            (_, None) => Some(self.pages.remove(at)?.0),
            (_, Some(_)) => None,
        }
    }

    /// Takes pages up to page `end`.
    fn extend(
        &mut self,
        end: usize,
        prefixes: &mut Prefixes,
        backend: &mut dyn Backend,
    ) -> Result<()> {
        while self.end() < end {
            let page = prefixes.windowed_page(backend.storage())?;
            let none = || Error::Internal("no page is left for layers with a window".into());
            self.pages.push_back((page.ok_or_else(none)?, None));
        }
        Ok(())
    }
}

impl Sequence {
    /// Has pages, in layers that see a window, for tokens from `position` on up to `end`, and gives up
    /// those that none of them sees. Others may have these at once: what is queued reads them before.
    ///
    /// # Errors
    /// What the backend says.
    pub fn advance_window(
        &mut self,
        backend: &mut dyn Backend,
        position: usize,
        end: usize,
    ) -> Result<()> {
        let pool = self.pool.clone();
        let mut free = pool.free.borrow_mut();
        let Some(windows) = free.prefixes.windows else {
            return Ok(());
        };
        let begin = self.window.first;
        let first = windows.first_page(position);
        let gone = self.window.let_go(first, &mut free.prefixes);
        if gone > 0 {
            backend.map_pages(Kind::Windowed, self.slot, begin, &vec![0; gone])?;
        }
        let (from, most) = (self.window.pages.len(), pages_of(backend.limits().n_ctx));
        let end = pages_of(end).min(most);
        self.window.extend(end, &mut free.prefixes, backend)?;
        let new = self.window.pages.iter().skip(from);
        let new: Vec<u32> = new.map(|(page, _)| *page).collect();
        match new.is_empty() {
            true => Ok(()),
            false => backend.map_pages(Kind::Windowed, self.slot, self.window.first + from, &new),
        }
    }

    /// Has pages for steps anywhere in the sequence, in turn: the same as of a window, over and over.
    /// What a page held before is behind the window where it is written again.
    ///
    /// # Errors
    /// What the backend says.
    pub fn cycle_window(&mut self, backend: &mut dyn Backend) -> Result<()> {
        let pool = self.pool.clone();
        let mut free = pool.free.borrow_mut();
        let Some(windows) = free.prefixes.windows else {
            return Ok(());
        };
        let n = windows.per_slot(self.capacity());
        self.window.extend(n, &mut free.prefixes, backend)?;
        let numbers = self.window.numbers().into_iter().cycle();
        let all: Vec<u32> = numbers.take(self.pages.len()).collect();
        backend.map_pages(Kind::Windowed, self.slot, 0, &all)
    }

    /// Takes of what was `found` of a prompt the pages of the window behind it. Says whether they were
    /// there still.
    ///
    /// # Errors
    /// What the backend says.
    pub(super) fn find_window(
        &mut self,
        free: &mut Free,
        backend: &mut dyn Backend,
        found: &Found,
        prompt: &[u32],
    ) -> Result<bool> {
        let Some(windows) = free.prefixes.windows else {
            return Ok(true);
        };
        let prefixes = &mut free.prefixes;
        self.window.clear(prefixes);
        self.window.first = windows.first_seen(found.tokens());
        let whole = found.whole.iter().map(|source| (*source, PAGE_TOKENS));
        let part = found.part.map(|(node, n)| (Source::Node(node), n));
        let seen = whole.chain(part).enumerate().skip(self.window.first);
        let seen: Vec<(usize, (Source, usize))> = seen.collect();
        // First those that may be taken for others.
        let hold = |(_, (source, _)): &(usize, (Source, usize))| match source {
            Source::Node(id) => Some((*id, prefixes.hold_windowed(*id)?)),
            Source::Stored(_) => None,
        };
        let held: Vec<Option<(usize, u32)>> = seen.iter().map(hold).collect();
        let mut all_there = Ok(true);
        for ((i, (source, n)), held) in seen.iter().zip(&held) {
            // Who reads a node's window reads the node, and to a part of a page it will write.
            let entry = match held.filter(|_| *i < self.shared.len() && *n == PAGE_TOKENS) {
                Some((id, page)) => prefixes.hold_windowed(id).map(|_| (page, Some(id))),
                None => {
                    let tokens = &prompt[i * PAGE_TOKENS..][..*n];
                    match own_copy(prefixes, backend, *source, tokens) {
                        Ok(page) => page.map(|page| (page, None)),
                        Err(e) => {
                            all_there = Err(e);
                            break;
                        }
                    }
                }
            };
            let Some(entry) = entry else {
                all_there = Ok(false);
                break;
            };
            self.window.pages.push_back(entry);
        }
        for (id, _) in held.into_iter().flatten() {
            prefixes.let_windowed_go(id);
        }
        if all_there == Ok(true) {
            let (first, pages) = (self.window.first, self.window.numbers());
            backend.map_pages(Kind::Windowed, self.slot, first, &pages)?;
        } else {
            self.window.clear(prefixes);
        }
        all_there
    }

    /// Keeps the pages of the window that nodes have which the sequence reads, for others too.
    pub(super) fn keep_window(&mut self) -> bool {
        let mut free = self.pool.free.borrow_mut();
        let shared = self.shared.iter().skip(self.window.first);
        let mut changed = false;
        for ((page, node), id) in self.window.pages.iter_mut().zip(shared) {
            if node.is_none() {
                let kept = free.prefixes.keep_windowed(*id, PAGE_TOKENS, *page, true);
                changed |= kept != *page;
                (*page, *node) = (kept, Some(*id));
            }
        }
        changed
    }

    /// The same for a sequence that goes on.
    pub(super) fn share_window(&mut self, backend: &mut dyn Backend) -> Result<()> {
        match self.keep_window() {
            false => Ok(()),
            true => {
                let pages = self.window.numbers();
                backend.map_pages(Kind::Windowed, self.slot, self.window.first, &pages)
            }
        }
    }

    /// Its pages from the first on that a token behind `tokens` tokens sees, or another one in the last
    /// of these pages.
    pub(super) fn window_at(&self, tokens: usize) -> Vec<u32> {
        let windows = self.pool.free.borrow().prefixes.windows;
        let first = windows.map_or(0, |windows| windows.first_page(tokens));
        let pages = self.window.pages.iter().map(|(page, _)| *page);
        let pages = pages.take(pages_of(tokens).saturating_sub(self.window.first));
        pages
            .skip(first.saturating_sub(self.window.first))
            .collect()
    }

    /// Takes pages for the last of `tokens` tokens and writes what they hold.
    pub(super) fn load_window(
        &mut self,
        backend: &mut dyn Backend,
        tokens: usize,
        pages: &[&[u8]],
    ) -> Result<()> {
        let pool = self.pool.clone();
        let mut free = pool.free.borrow_mut();
        let Some(windows) = free.prefixes.windows else {
            return Ok(());
        };
        self.window.clear(&mut free.prefixes);
        let end = pages_of(tokens).min(self.pages.len());
        let first = end.saturating_sub(pages.len());
        // No more than a sequence may have.
        self.window.first = first.max(windows.first_page(tokens));
        self.window.extend(end, &mut free.prefixes, backend)?;
        let numbers = self.window.numbers();
        let storage = backend
            .storage()
            .ok_or_else(super::content::nothing_to_copy)?;
        for (page, bytes) in numbers.iter().zip(&pages[self.window.first - first..]) {
            storage.write_page(Kind::Windowed, *page, bytes)?;
        }
        backend.map_pages(Kind::Windowed, self.slot, self.window.first, &numbers)
    }
}

/// A page with what is kept of `tokens`, where that is there still.
fn own_copy(
    prefixes: &mut Prefixes,
    backend: &mut dyn Backend,
    source: Source,
    tokens: &[u32],
) -> Result<Option<u32>> {
    let Some(page) = prefixes.windowed_page(backend.storage())? else {
        return Err(Error::Internal(
            "no page is left for layers with a window".into(),
        ));
    };
    let fetched = match backend.storage() {
        Some(storage) => prefixes.fetch(Kind::Windowed, source, tokens, page, storage),
        None => Ok(None),
    };
    if let Ok(Some(_)) = fetched {
        return Ok(Some(page));
    }
    prefixes.free_windowed.push(page);
    fetched.map(|_| None)
}
