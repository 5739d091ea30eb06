//! Counts the bytes that buffers take of a card.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What buffers are aligned to, hence the least that one takes.
const ALIGNMENT: usize = 256;

/// The driver maps memory in pieces of this size; small buffers share them.
const PIECE: usize = 2 << 20;

/// Bytes of a card's buffers, now and at most so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    now: AtomicUsize,
    most: AtomicUsize,
    pieces_now: AtomicUsize,
    pieces_most: AtomicUsize,
    addresses: AtomicU64,
}

/// A buffer's share of pieces.
fn in_pieces(bytes: usize) -> usize {
    match bytes < PIECE / 2 {
        true => bytes.max(1).next_multiple_of(ALIGNMENT),
        false => bytes.next_multiple_of(PIECE),
    }
}

impl Ledger {
    /// Counts a buffer.
    pub(super) fn take(&self, bytes: usize) {
        let count = |now: &AtomicUsize, most: &AtomicUsize, bytes: usize| {
            let now = now.fetch_add(bytes, Ordering::Relaxed) + bytes;
            most.fetch_max(now, Ordering::Relaxed);
        };
        let aligned = bytes.max(1).next_multiple_of(ALIGNMENT);
        count(&self.now, &self.most, aligned);
        count(&self.pieces_now, &self.pieces_most, in_pieces(bytes));
    }

    /// Counts a buffer that is gone.
    pub(super) fn give(&self, bytes: usize) {
        let aligned = bytes.max(1).next_multiple_of(ALIGNMENT);
        self.now.fetch_sub(aligned, Ordering::Relaxed);
        self.pieces_now
            .fetch_sub(in_pieces(bytes), Ordering::Relaxed);
    }

    /// Bytes now, and the most that there were at once.
    pub(super) fn taken(&self) -> (usize, usize) {
        let of = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (of(&self.now), of(&self.most))
    }

    /// The most at once, in the pieces that the driver maps.
    pub(super) fn most_mapped(&self) -> usize {
        self.pieces_most.load(Ordering::Relaxed)
    }

    /// An address for a buffer that has no bytes: no two are alike, none is 0.
    pub(super) fn address(&self) -> u64 {
        (self.addresses.fetch_add(1, Ordering::Relaxed) + 1) << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_and_the_most_there_was_are_counted() {
        let ledger = Ledger::default();
        ledger.take(1000);
        ledger.take(3 << 20);
        assert_ne!(ledger.address(), ledger.address());
        assert_eq!(ledger.taken(), (1024 + (3 << 20), 1024 + (3 << 20)));
        assert_eq!(ledger.most_mapped(), 1024 + (4 << 20));
        ledger.give(3 << 20);
        assert_eq!(ledger.taken(), (1024, 1024 + (3 << 20)));
        assert_eq!(ledger.most_mapped(), 1024 + (4 << 20));
    }
}
