//! Memory of the host for what gave way on the device, and for states: taken piece by piece up to a
//! budget, and used again.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::{Counts, Pool};
use crate::backend::{Backend, HostMemory, Storage};

/// A piece.
pub type Bytes = Box<dyn HostMemory>;

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
    counts: Arc<Counts>,
}

impl Host {
    /// Nothing taken yet.
    pub fn new(budget: usize, counts: Arc<Counts>) -> Self {
        Self {
            budget,
            counts,
            ..Self::default()
        }
    }

    /// Whether `bytes` would ever fit.
    pub fn holds(&self, bytes: usize) -> bool {
        bytes <= self.budget
    }

    /// Whether there is a piece of so many bytes without anything giving way.
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
                let piece = storage.host_memory(bytes).ok()?;
                self.taken += bytes;
                piece
            }
        };
        self.counts.host_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(piece)
    }

    /// Whether [`Host::prepare`] would take a piece, so that `most` of so many bytes are not in use.
    pub fn is_unprepared(&self, bytes: usize, most: usize) -> bool {
        let ready = self.free.get(&bytes).map_or(0, Vec::len);
        let fits = self.taken.saturating_add(bytes) <= self.budget;
        bytes > 0 && ready < most && fits && !self.is_out
    }

    /// Takes a piece ahead of its use: a card's driver takes far longer for that than for a copy there.
    pub fn prepare(&mut self, storage: &dyn Storage, bytes: usize) {
        match storage.host_memory(bytes) {
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

impl Pool {
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
