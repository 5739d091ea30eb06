//! Host memory for evicted pages and for states: allocated piece by piece up to a budget, and reused.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use super::{BlockManager, Counts};
use crate::backend::{Backend, HostMemory, Prefaulted, Storage};
use crate::error::Result;

/// A piece.
pub type Bytes = Box<dyn HostMemory>;

/// Pieces that another thread has ready, once one was wanted: what is evicted for a long prompt is taken
/// faster than memory is made.
const AHEAD: usize = 32;

/// A thread that makes memory, for as long as this lives.
#[derive(Debug)]
struct Maker {
    wanted: Sender<usize>,
    made: Receiver<Prefaulted>,
    /// By size those that are under way.
    asked: HashMap<usize, usize>,
    /// Those that came and were not taken.
    ready: Vec<Prefaulted>,
}

impl Maker {
    fn new() -> Self {
        let (wanted, orders) = channel();
        let (out, made) = channel();
        // Where there is no thread nothing comes, and pieces are made as they are wanted.
        drop(
            std::thread::Builder::new()
                .name("onegraph-memory".into())
                .spawn(move || {
                    while let Ok(bytes) = orders.recv() {
                        let Ok(memory) = Prefaulted::new(bytes) else {
                            return;
                        };
                        if out.send(memory).is_err() {
                            return;
                        }
                    }
                }),
        );
        Self {
            wanted,
            made,
            asked: HashMap::new(),
            ready: Vec::new(),
        }
    }

    /// A piece that is there.
    fn take(&mut self, bytes: usize) -> Option<Prefaulted> {
        while let Ok(memory) = self.made.try_recv() {
            if let Some(asked) = self.asked.get_mut(&memory.bytes().len()) {
                *asked -= 1;
            }
            self.ready.push(memory);
        }
        let found = |memory: &Prefaulted| memory.bytes().len() == bytes;
        let at = self.ready.iter().position(found)?;
        Some(self.ready.swap_remove(at))
    }

    /// Bytes that are under way or there.
    fn bytes(&self) -> usize {
        let asked: usize = self.asked.iter().map(|(size, n)| size * n).sum();
        let ready: usize = self.ready.iter().map(|memory| memory.bytes().len()).sum();
        asked + ready
    }

    /// Has another piece made, where there are not as many as are wanted; says whether it did.
    fn ask(&mut self, bytes: usize) -> bool {
        let asked = self.asked.entry(bytes).or_default();
        let ready = self
            .ready
            .iter()
            .filter(|memory| memory.bytes().len() == bytes);
        let wants = *asked + ready.count() < AHEAD && self.wanted.send(bytes).is_ok();
        *asked += usize::from(wants);
        wants
    }
}

/// The budget and what is taken of it.
#[derive(Debug, Default)]
pub struct Host {
    budget: usize,
    /// Bytes of all pieces, in use or not.
    taken: usize,
    /// Pieces that are not in use, by their size.
    free: HashMap<usize, Vec<Bytes>>,
    /// Whether the system had no more.
    is_out: bool,
    /// Where anything may be kept.
    maker: Option<Maker>,
    counts: Arc<Counts>,
}

impl Host {
    /// Nothing taken yet.
    pub fn new(budget: usize, counts: Arc<Counts>) -> Self {
        Self {
            budget,
            counts,
            maker: (budget > 0).then(Maker::new),
            ..Self::default()
        }
    }

    /// Whether `bytes` would ever fit.
    pub fn holds(&self, bytes: usize) -> bool {
        bytes <= self.budget
    }

    /// Whether there is a piece of so many bytes without an eviction.
    pub fn has_room(&self, bytes: usize) -> bool {
        let unused = |(size, pieces): (&usize, &Vec<Bytes>)| size * pieces.len();
        let unused: usize = self.free.iter().map(unused).sum();
        self.free.get(&bytes).is_some_and(|free| !free.is_empty())
            || (self.taken - unused).saturating_add(bytes) <= self.budget
    }

    /// A piece of so many bytes, of any content; `None` where the budget or the system has none.
    pub fn take(&mut self, storage: &dyn Storage, bytes: usize) -> Option<Bytes> {
        let found = self.free.get_mut(&bytes).and_then(Vec::pop);
        let piece = match found {
            Some(piece) => piece,
            None => {
                if !self.has_room(bytes) {
                    return None;
                }
                // Pieces of another size stand in the way.
                while self.taken.saturating_add(bytes) > self.budget {
                    let size = *self.free.iter().find(|(_, free)| !free.is_empty())?.0;
                    self.free.get_mut(&size).and_then(Vec::pop)?;
                    self.taken -= size;
                }
                let piece = storage.host_memory(self.touched(bytes).ok()?).ok()?;
                self.taken += bytes;
                self.look_ahead(bytes);
                piece
            }
        };
        self.counts.host_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(piece)
    }

    /// Memory for a new piece, made ahead or now.
    fn touched(&mut self, bytes: usize) -> Result<Prefaulted> {
        let made = self.maker.as_mut().and_then(|maker| maker.take(bytes));
        made.map_or_else(|| Prefaulted::new(bytes), Ok)
    }

    /// Has more made that are likely to be wanted next, within the budget.
    fn look_ahead(&mut self, bytes: usize) {
        let Some(maker) = &mut self.maker else {
            return;
        };
        while self.taken + maker.bytes() + bytes <= self.budget && maker.ask(bytes) {}
    }

    /// Whether [`Host::prepare`] would take a piece, so that `most` of so many bytes are not in use.
    pub fn is_unprepared(&self, bytes: usize, most: usize) -> bool {
        let ready = self.free.get(&bytes).map_or(0, Vec::len);
        let fits = self.taken.saturating_add(bytes) <= self.budget;
        bytes > 0 && ready < most && fits && !self.is_out
    }

    /// Takes a piece ahead of its use: a card's driver takes far longer for that than for a copy there.
    pub fn prepare(&mut self, storage: &dyn Storage, bytes: usize) {
        let memory = self.touched(bytes);
        match memory.and_then(|memory| storage.host_memory(memory)) {
            Ok(piece) => {
                self.taken += bytes;
                self.free.entry(bytes).or_default().push(piece);
            }
            Err(_) => self.is_out = true,
        }
    }

    /// Takes a piece back.
    pub fn give(&mut self, piece: Bytes) {
        let bytes = piece.bytes().len();
        self.counts.host_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.free.entry(bytes).or_default().push(piece);
    }

    /// Takes many back.
    pub fn give_all(&mut self, pieces: impl IntoIterator<Item = Bytes>) {
        pieces.into_iter().for_each(|piece| self.give(piece));
    }
}

impl BlockManager {
    /// Takes a piece of the host's memory that will soon be wanted, where nobody waits. Says whether there
    /// was one to take.
    pub fn prepare(&self, backend: &mut dyn Backend) -> bool {
        let free = &mut *self.free.borrow_mut();
        let Some(storage) = backend.storage() else {
            return false;
        };
        let wanted = free.prefixes.unprepared(storage, free.pages.len());
        if let Some(bytes) = wanted {
            free.prefixes.host.prepare(storage, bytes);
        }
        wanted.is_some()
    }
}
