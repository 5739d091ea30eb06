//! One sequence in flight: a slot of the backend, the KV pages it uses, and how far it has come. Many
//! sequences may read the pages of a shared prefix, which stay cached after the last of them until their
//! room is needed; then they move to host memory, and to a directory if one was given. All other pages
//! have one owner. Dropping a sequence frees what it owns.

mod admission;
mod content;
pub mod format;
mod host;
mod prefixes;
mod salt;
pub mod store;
mod swap;
mod window;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backend::{pages_of, pool_pages, Backend, Kind, Limits, PAGE_TOKENS};
use crate::error::{Error, Result};
use admission::Candidate;
pub use admission::{Budget, Demand, Span};
use host::{Bytes, Host};
use prefixes::{Behind, Found, Kept, Prefixes, Source};
pub use salt::{Salt, MAX_SALT_BYTES};
use store::Store;
use swap::SwapSpace;
use window::Window;

/// Tokens of a prompt from one kept state to the next.
const STATE_TOKENS: usize = 2048;

/// What is kept beside the device's pages.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes of the host's memory with pages and states in them.
    pub host_bytes: AtomicUsize,
    /// Bytes of files, those of other models in the same directory included.
    pub stored_bytes: AtomicU64,
    /// Why no more files are written.
    failure: Mutex<Option<String>>,
}

impl Counts {
    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why no more files are written, where that is so.
    pub fn why_not_stored(&self) -> Option<String> {
        self.failure().clone()
    }
}

/// What no sequence owns: slots, and pages but page 0. Each page is free, in the tree, or some
/// sequence's.
#[derive(Debug)]
struct Free {
    slots: Vec<u32>,
    pages: Vec<u32>,
    prefixes: Prefixes,
    swap: SwapSpace,
    /// Pages that sequences may come to have, all that they have included.
    promised: usize,
    /// Of these, pages that they have not on the device.
    owed: usize,
}

impl Free {
    /// Whether `n` pages are free, after as many prefixes were evicted as that takes, if it does. What
    /// would take longer than `until` goes on with the next call.
    fn has_room(
        &mut self,
        n: usize,
        until: Option<Instant>,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        // The tree is looked at only where it has to give something up.
        if self.pages.len() < n && self.pages.len() + self.prefixes.evictable() < n {
            return Ok(false);
        }
        while self.pages.len() < n {
            match self.prefixes.evict(backend.storage())? {
                Some(page) => self.pages.push(page),
                None => return Ok(false),
            }
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_late && self.pages.len() < n {
                return Ok(false);
            }
        }
        Ok(true)
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
pub struct BlockManager {
    free: Rc<RefCell<Free>>,
    /// Sequences that have ended and whose keys or values were beyond what the cache's type holds.
    saturated: Arc<AtomicU64>,
    /// Whether pages are found again by their tokens.
    shares: bool,
    n_pages: usize,
    n_windowed: usize,
    /// Whether it is too small for every slot with a full context.
    tight: bool,
    /// Under which the pages of a sequence are found and kept.
    salt: Salt,
}

impl BlockManager {
    /// Everything that a backend can hold, free. `saturated` counts the sequences whose keys or
    /// values were beyond what the cache's type holds; pages of a backend that `shares` them serve
    /// every sequence that begins with their tokens.
    pub fn new(limits: &Limits, shares: bool, saturated: Arc<AtomicU64>) -> Self {
        // Taken from the end: low numbers first.
        let free = Free {
            slots: (0..limits.n_slots as u32).rev().collect(),
            pages: (1..limits.n_pages as u32).rev().collect(),
            prefixes: Prefixes::new(limits.windows),
            swap: SwapSpace::default(),
            promised: 0,
            owed: 0,
        };
        Self {
            free: Rc::new(RefCell::new(free)),
            saturated,
            shares,
            n_pages: limits.n_pages.saturating_sub(1),
            n_windowed: limits.n_windowed().saturating_sub(1),
            tight: limits.n_pages < pool_pages(limits.n_slots, limits.n_ctx),
            salt: Salt::default(),
        }
    }

    /// The same for sequences under a salt.
    #[must_use]
    pub fn under(&self, salt: Salt) -> Self {
        Self {
            salt,
            ..self.clone()
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

    /// Where the pages of layers that see a window are.
    pub fn windowed_places(&self) -> Places {
        let free = self.free.borrow();
        let (free, prefixes) = (
            free.prefixes.free_windowed.len(),
            free.prefixes.evictable_windowed(),
        );
        Places {
            total: self.n_windowed,
            free,
            sequences: self.n_windowed.saturating_sub(free + prefixes),
            prefixes,
        }
    }

    /// The same where sequences have states that are kept too, as `stateful` says, what is evicted goes
    /// to `host_bytes` of the host's memory, and what is kept to a `store`.
    #[must_use]
    pub fn keeping(
        self,
        stateful: bool,
        host_bytes: usize,
        store: Option<Store>,
        counts: Arc<Counts>,
    ) -> Self {
        {
            let prefixes = &mut self.free.borrow_mut().prefixes;
            prefixes.stateful = stateful;
            prefixes.host = Host::new(host_bytes, counts);
            prefixes.store = store;
        }
        self
    }

    /// Hands at most `most` pages and states to the thread that writes files. Says whether there are more,
    /// which may have to wait for the disk.
    ///
    /// # Errors
    /// What the backend says.
    pub fn write_behind(&self, backend: &mut dyn Backend, most: usize) -> Result<bool> {
        let mut free = self.free.borrow_mut();
        if !free.prefixes.has_unstored() {
            return Ok(false);
        }
        if let Some(storage) = backend.storage() {
            for _ in 0..most {
                if !free.prefixes.store_one(storage)? {
                    break;
                }
            }
        }
        Ok(free.prefixes.has_unstored())
    }

    /// Whether there is something for [`BlockManager::write_behind`] to do.
    pub fn has_unwritten(&self) -> bool {
        self.free.borrow().prefixes.has_unstored()
    }

    /// A sequence of up to `tokens` tokens, all its pages mapped; `None` while others hold what it
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
        self.admit(backend, Span::whole(tokens), prompt, 0, None)
    }

    /// The same where only the pages of the first tokens are mapped, and [`Sequence::grow`] has those of
    /// the others. Where all sequences together may come to need more than there are, the host's memory
    /// is taken beforehand for what may be swapped out, and `margin` pages have to be left. `None` too where
    /// prefixes that have to be evicted take longer than `until`: with the next call there are fewer.
    ///
    /// # Errors
    /// As [`BlockManager::open`].
    pub fn admit(
        &self,
        backend: &mut dyn Backend,
        span: Span,
        prompt: &[u32],
        margin: usize,
        until: Option<Instant>,
    ) -> Result<Option<Sequence>> {
        let candidate = self.candidate(span, prompt)?;
        match self
            .budget(usize::MAX)
            .host_pages_for(&candidate.demand, margin)
        {
            Some(host_pages) => candidate.admit(backend, prompt, host_pages, until),
            None => Ok(None),
        }
    }

    /// A sequence that may be admitted: what is on the device of its `prompt` is held for it.
    ///
    /// # Errors
    /// [`Error::Memory`] where even an empty pool is too small.
    pub fn candidate(&self, span: Span, prompt: &[u32]) -> Result<Candidate> {
        let tokens = span.most;
        let most = pages_of(tokens).max(1);
        if most > self.n_pages {
            let total = self.n_pages;
            return Err(Error::Memory {
                need: format!("{tokens} tokens need {most} KV pages, but the cache has {total}"),
                remedy: "use a shorter prompt or smaller max_tokens".into(),
            });
        }
        let mut free = self.free.borrow_mut();
        let found = self.find(&free.prefixes, prompt);
        let (whole, pages) = on_device(&free.prefixes, &found);
        free.prefixes.hold(&whole);
        let now = pages_of(span.now).clamp(1, most).max(whole.len());
        let demand = Demand {
            own: now - whole.len(),
            most,
            owed: most - now,
        };
        Ok(Candidate {
            demand,
            whole,
            pages,
            pool: self.clone(),
        })
    }

    /// What there is for sequences; where as many pages are free as are `wanted`, without those of prefixes
    /// that could be evicted.
    pub fn budget(&self, wanted: usize) -> Budget {
        let free = self.free.borrow();
        let evictable = match free.pages.len() < wanted {
            true => free.prefixes.evictable(),
            false => 0,
        };
        Budget {
            slots: free.slots.len(),
            total: self.n_pages,
            available: free.pages.len() + evictable,
            promised: free.promised,
            owed: free.owed,
            host: free.swap.most(),
            stateful: free.prefixes.stateful,
            shares: self.shares,
            tight: self.tight,
        }
    }

    /// Whether sequences have states that are kept.
    fn keeps_states(&self) -> bool {
        self.shares && self.free.borrow().prefixes.stateful
    }

    /// What is kept of a prompt but its last token, whose logits are wanted.
    fn find(&self, prefixes: &Prefixes, prompt: &[u32]) -> Found {
        match (self.shares, prompt.split_last()) {
            (true, Some((_, before))) => prefixes.find(self.salt, before),
            _ => Found::default(),
        }
    }
}

/// Of what was found the first nodes that are on the device, and their pages.
fn on_device(prefixes: &Prefixes, found: &Found) -> (Vec<usize>, Vec<u32>) {
    let page = |source: &Source| match source {
        Source::Node(id) => Some((*id, prefixes.page(*id)?)),
        Source::Stored(_) => None,
    };
    found.whole.iter().map_while(page).unzip()
}

/// A slot, its pages, its position.
#[derive(Debug)]
pub struct Sequence {
    slot: usize,
    /// Nodes of the first pages, which others may read too.
    shared: Vec<usize>,
    pages: Vec<u32>,
    /// Those of layers that see a window.
    window: Window,
    /// Tokens of the prompt that were fed, or were there.
    pub position: usize,
    /// Of these, tokens that were there.
    cached: usize,
    /// Whether something that was there is beyond what the cache's type holds.
    saturated: bool,
    /// By page whether it was copied from where it had been evicted to.
    fetched: Vec<bool>,
    /// Whether all that is kept of its prompt is there, its state too.
    ready: bool,
    /// States behind tokens, that are no prefix's yet.
    states: Vec<(usize, Bytes)>,
    /// Tokens of its prompt, once all were fed: others may go on from there.
    prompt_end: Option<usize>,
    /// Pages that it may come to have, and those of them that are not on the device.
    most: usize,
    owed: usize,
    /// Its pages behind those on the device while others need that room, the last one first; nothing
    /// where nothing is in them.
    swapped: Vec<Option<Bytes>>,
    /// Pages that it could not have for those that others read.
    short: usize,
    pool: BlockManager,
}

impl Sequence {
    /// The backend's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Under which its pages are found and kept.
    pub fn salt(&self) -> Salt {
        self.pool.salt
    }

    /// Whether [`Sequence::fetch_prefix`] is done.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Tokens that the pages hold.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }

    /// Tokens of the prompt that were not fed, since their keys and values were there.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Takes more of `prompt` from what is kept on the device by now, where nothing of it was fed yet:
    /// requests that came together find what the first of them has computed.
    ///
    /// # Errors
    /// What the backend says.
    pub fn find_prefix(&mut self, backend: &mut dyn Backend, prompt: &[u32]) -> Result<()> {
        let mut free = self.pool.free.borrow_mut();
        if self.position != self.cached || free.prefixes.needs_more() && self.ready {
            return Ok(());
        }
        let found = self.pool.find(&free.prefixes, prompt);
        let (whole, pages) = on_device(&free.prefixes, &found);
        let (had, have) = (self.shared.len(), whole.len());
        if have > had {
            free.prefixes.hold(&whole);
            free.prefixes.let_go(&self.shared);
            let pages = &pages[had..];
            // Its own, of which nothing was used.
            let mut replaced = self.pages[had..have].to_vec();
            replaced.reverse();
            free.pages.extend(replaced);
            self.pages[had..have].copy_from_slice(pages);
            self.shared.clone_from(&whole);
            backend.map_pages(Kind::Whole, self.slot, had, pages)?;
        }
        self.saturated |= whole.iter().any(|node| free.prefixes.saturated(*node));
        if free.prefixes.needs_more() {
            return Ok(());
        }
        self.position = self.position.max(have * PAGE_TOKENS);
        let all = have == found.whole.len();
        if let (true, Some((node, tokens)), Some(own)) = (all, found.part, self.pages.get(have)) {
            let page = free.prefixes.page(node);
            if let Some(page) = page.filter(|_| found.tokens() > self.position) {
                backend.copy_page(Kind::Whole, page, *own)?;
                self.position = have * PAGE_TOKENS + tokens;
                self.saturated |= free.prefixes.saturated(node);
            }
        }
        self.cached = self.position;
        Ok(())
    }

    /// Takes all of `prompt` that is kept, from wherever it is, where nothing of it was fed yet. Says
    /// whether that is done: what takes longer than `until` goes on with the next call.
    ///
    /// # Errors
    /// What the backend says.
    pub fn fetch_prefix(
        &mut self,
        backend: &mut dyn Backend,
        prompt: &[u32],
        until: Instant,
    ) -> Result<bool> {
        self.short = 0;
        self.ready = self.ready || self.fetch(backend, prompt, until)?;
        Ok(self.ready)
    }

    fn fetch(&mut self, backend: &mut dyn Backend, prompt: &[u32], until: Instant) -> Result<bool> {
        loop {
            self.find_prefix(backend, prompt)?;
            let pool = self.pool.clone();
            let mut free = pool.free.borrow_mut();
            let found = pool.find(&free.prefixes, prompt);
            if self.position != self.cached {
                return Ok(true);
            }
            if found.tokens() <= self.cached {
                // What it holds of it may be more than there is a state for.
                return self.own_from(&mut free, self.position.div_ceil(PAGE_TOKENS), backend);
            }
            let parts = found.part.map(|(node, n)| (Source::Node(node), n));
            let whole = found.whole.iter().map(|source| (*source, PAGE_TOKENS));
            let sources: Vec<_> = whole.chain(parts).collect();
            if !self.own_from(&mut free, found.whole.len(), backend)? {
                return Ok(false);
            }
            let Some(storage) = backend.storage() else {
                return Ok(true);
            };
            self.fetched.resize(sources.len(), false);
            let mut lost = false;
            for (i, (source, n)) in sources.iter().enumerate().skip(self.shared.len()) {
                if self.fetched[i] && *n == PAGE_TOKENS {
                    continue;
                }
                let start = i * PAGE_TOKENS;
                let tokens = &prompt[start..start + n];
                let Some(page) = self.pages.get(i) else {
                    return Ok(true);
                };
                match free
                    .prefixes
                    .fetch(Kind::Whole, *source, tokens, *page, storage)?
                {
                    Some(saturated) => self.saturated |= saturated,
                    None => {
                        lost = true;
                        break;
                    }
                }
                self.fetched[i] = true;
                if Instant::now() >= until && i + 1 < sources.len() {
                    return Ok(false);
                }
            }
            if !lost && free.prefixes.stateful {
                lost = !free.prefixes.restore(&found, self.slot, storage)?;
            }
            if !lost {
                lost = !self.find_window(&mut free, backend, &found, prompt)?;
            }
            if !lost {
                self.position = found.tokens();
                self.cached = self.position;
                return Ok(true);
            }
        }
    }

    /// Gives up those of its pages from `first` on that others may read, for pages of its own. Says
    /// whether there were as many; if not, some will be free once others have ended.
    fn own_from(
        &mut self,
        free: &mut Free,
        first: usize,
        backend: &mut dyn Backend,
    ) -> Result<bool> {
        let n = self.shared.len().saturating_sub(first);
        if n == 0 {
            return Ok(true);
        }
        let given = self.shared[first..].to_vec();
        free.prefixes.let_go(&given);
        match free.has_room(n, None, backend) {
            Ok(true) => {}
            other => {
                self.short = n;
                free.prefixes.hold(&given);
                return other;
            }
        }
        let own = free.take(n);
        self.pages[first..first + n].copy_from_slice(&own);
        self.shared.truncate(first);
        self.fetched.truncate(first);
        backend.map_pages(Kind::Whole, self.slot, first, &own)?;
        Ok(true)
    }

    /// How many of a prompt's tokens to feed at most in one call: as many as layers that see a window
    /// have pages for; and so that the state behind them can be kept where it serves others: every
    /// [`STATE_TOKENS`], at the end of the last whole page, and at the prompt's end.
    pub fn until_state(&self, prompt: usize) -> usize {
        let rest = prompt.saturating_sub(self.position);
        let windows = self.pool.free.borrow().prefixes.windows;
        let rest = windows.map_or(rest, |windows| rest.min(windows.chunk));
        if !self.pool.keeps_states() {
            return rest;
        }
        let last = prompt.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
        let next = (self.position / STATE_TOKENS + 1) * STATE_TOKENS;
        let stops = [next, last, prompt].into_iter();
        let first = stops.filter(|stop| *stop > self.position).min();
        first.map_or(rest, |stop| rest.min(stop - self.position))
    }

    /// Keeps the state behind all of `tokens`, which are what the sequence has read.
    ///
    /// # Errors
    /// What the backend says.
    pub fn keep_state(&mut self, backend: &mut dyn Backend, tokens: &[u32]) -> Result<()> {
        if !self.pool.keeps_states() || tokens.is_empty() {
            return Ok(());
        }
        let Some(storage) = backend.storage() else {
            return Ok(());
        };
        let mut free = self.pool.free.borrow_mut();
        let taken = self.states.iter().any(|(at, _)| *at == tokens.len());
        if taken || free.prefixes.state_of(self.salt(), tokens).is_some() {
            return Ok(());
        }
        let Some(mut state) = free.prefixes.state_piece(storage) else {
            return Ok(());
        };
        match storage.read_state(self.slot, state.bytes_mut()) {
            Ok(()) => self.states.push((tokens.len(), state)),
            Err(e) => {
                free.prefixes.host.give(state);
                return Err(e);
            }
        }
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
        if !own[first..].starts_with(pages) {
            // Of those that were there already, theirs.
            backend.map_pages(Kind::Whole, self.slot, first, pages)?;
        }
        self.share_window(backend)
    }

    fn keep_whole(&mut self, tokens: &[u32], saturated: bool) {
        if !self.pool.shares {
            return;
        }
        let mut free = self.pool.free.borrow_mut();
        let pages = tokens.chunks_exact(PAGE_TOKENS).enumerate();
        for (i, tokens) in pages.skip(self.shared.len()) {
            let Some(page) = self.pages.get_mut(i) else {
                break;
            };
            let parent = Behind::last(self.pool.salt, &self.shared);
            let node = match free.prefixes.keep(parent, tokens, *page, saturated) {
                Kept::New(node) => node,
                Kept::Known(node) => {
                    let theirs = free.prefixes.page(node).unwrap_or(*page);
                    free.pages.push(std::mem::replace(page, theirs));
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
        drop(free);
        for i in 0..self.shared.len() {
            self.remember(self.shared[i], i * PAGE_TOKENS, PAGE_TOKENS);
        }
    }

    /// Gives a node, whose `n` tokens begin at `start`, the states behind them.
    fn remember(&mut self, node: usize, start: usize, n: usize) {
        let mut free = self.pool.free.borrow_mut();
        let behind = |at: usize| at > start && at <= start + n;
        while let Some(i) = self.states.iter().position(|(at, _)| behind(*at)) {
            let (at, state) = self.states.swap_remove(i);
            free.prefixes.remember(node, at - start, state);
        }
    }

    /// Says that the prompt ends where the sequence is.
    pub fn end_prompt(&mut self) {
        self.prompt_end = Some(self.position);
    }

    /// Marks where its `known` tokens and its prompt end, of which the last page is that of a node.
    fn mark_ends(&self, known: usize, rest: Option<usize>) {
        let prefixes = &mut self.pool.free.borrow_mut().prefixes;
        for end in [Some(known), self.prompt_end].into_iter().flatten() {
            let page = end.saturating_sub(1) / PAGE_TOKENS;
            let is_last = page == self.shared.len();
            let node = self.shared.get(page).copied();
            if let Some(node) = node.or(rest.filter(|_| is_last)) {
                prefixes.mark_end(node);
            }
        }
    }

    /// Keeps what is left of `tokens` behind the whole pages; the node that has it.
    fn keep_rest(&mut self, tokens: &[u32], saturated: bool) -> Option<usize> {
        let rest = tokens.chunks_exact(PAGE_TOKENS).remainder();
        let whole = tokens.len() / PAGE_TOKENS;
        if !self.pool.shares || rest.is_empty() || self.shared.len() != whole {
            return None;
        }
        let page = self.pages.get(whole).copied()?;
        let mut free = self.pool.free.borrow_mut();
        let parent = Behind::last(self.pool.salt, &self.shared);
        let kept = free.prefixes.keep(parent, rest, page, saturated);
        match kept {
            Kept::Known(_) => {}
            Kept::New(_) => drop(self.pages.remove(whole)),
            Kept::Instead { free: page, .. } => {
                free.pages.push(page);
                self.pages.remove(whole);
            }
        }
        if let Some(page) = self.window.take(whole) {
            let node = kept.node();
            free.prefixes.keep_windowed(node, rest.len(), page, false);
        }
        drop(free);
        self.remember(kept.node(), whole * PAGE_TOKENS, rest.len());
        Some(kept.node())
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
        let (n_pages, n_windowed) = (self.pages.len(), self.window.end());
        self.keep_whole(known, saturated);
        self.keep_window();
        let rest = self.keep_rest(known, saturated);
        self.mark_ends(known.len(), rest);
        backend.release(self.slot)?;
        let nothing = vec![0; n_pages.max(n_windowed)];
        if n_windowed > 0 {
            backend.map_pages(Kind::Windowed, self.slot, 0, &nothing)?;
        }
        backend.map_pages(Kind::Whole, self.slot, 0, &nothing[..n_pages])
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        free.slots.push(self.slot as u32);
        free.prefixes.let_go(&self.shared);
        let states = self.states.drain(..).map(|(_, state)| state);
        free.prefixes.host.give_all(states);
        self.window.clear(&mut free.prefixes);
        free.promised -= self.most;
        free.owed -= self.owed;
        free.swap.give_all(self.swapped.drain(..).flatten());
        free.pages
            .extend(self.pages.drain(..).skip(self.shared.len()).rev());
    }
}
