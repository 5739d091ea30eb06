//! Greedy merging of neighbours, best pair first, as BPE and SentencePiece share it.
//! A heap over a linked list: O(n log n) for a piece of n symbols, no recursion.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use super::meter::Meter;

/// No symbol, no rank, no token.
pub(super) const NONE: u32 = u32::MAX;
/// Positions fit `u32`: longer pieces are cut, which no merge spans in practice.
pub(super) const MAX_SYMBOLS: usize = 1 << 30;

/// A text in parts of at most [`MAX_SYMBOLS`] bytes.
pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = rest.len().min(MAX_SYMBOLS);
        while !rest.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        let (part, after) = rest.split_at_checked(end)?;
        rest = after;
        Some(part).filter(|part| !part.is_empty())
    })
}

/// A run of the piece: `start..start + len` in whatever unit the caller counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    pub id: u32,
    pub start: u32,
    pub len: u32,
    prev: u32,
    next: u32,
    /// Rank and result of the merge with the next symbol; `NONE` where there is none.
    rank: u32,
    merged: u32,
}

/// A merge of two neighbours: the lower rank goes first, the leftmost of equal ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge {
    pub rank: u32,
    pub id: u32,
}

/// Reused between pieces, so that short words cost no allocation.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<u64>>,
}

fn entry(rank: u32, position: u32) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | u64::from(position))
}

impl Merger {
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len` units.
    pub fn push(&mut self, id: u32, len: u32) {
        let at = u32::try_from(self.symbols.len()).unwrap_or(NONE);
        let (prev, start) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = at;
                (at.saturating_sub(1), last.start.saturating_add(last.len))
            }
            None => (NONE, 0),
        };
        self.symbols.push(Symbol {
            id,
            start,
            len,
            prev,
            next: NONE,
            rank: NONE,
            merged: NONE,
        });
    }

    /// Merges until no pair of neighbours has a merge, then visits what is left, in order. Breaks
    /// where the meter does.
    pub fn run(
        &mut self,
        meter: &mut Meter,
        lookup: impl Fn(&Symbol, &Symbol) -> Option<Merge>,
        mut visit: impl FnMut(&Symbol),
    ) -> ControlFlow<()> {
        let mut first = std::mem::take(&mut self.heap).into_vec();
        for at in 0..self.symbols.len() {
            meter.spend(1)?;
            let at = u32::try_from(at).unwrap_or(NONE);
            first.extend(self.rate(at, &lookup));
        }
        self.heap = BinaryHeap::from(first);
        while let Some(Reverse(key)) = self.heap.pop() {
            meter.spend(1)?;
            let (rank, at) = ((key >> 32) as u32, key as u32);
            let Some(left) = self.get(at) else { continue };
            // An entry whose pair has changed since is stale. The ranks may still be equal: then
            // the pair that stands there now is as good.
            if left.rank != rank {
                continue;
            }
            let Some(right) = self.get(left.next) else {
                continue;
            };
            if let Some(s) = self.symbols.get_mut(at as usize) {
                s.id = left.merged;
                s.len = left.len.saturating_add(right.len);
                s.next = right.next;
            }
            if let Some(s) = self.symbols.get_mut(left.next as usize) {
                s.rank = NONE;
            }
            if let Some(s) = self.symbols.get_mut(right.next as usize) {
                s.prev = at;
            }
            let new = self.rate(at, &lookup);
            self.heap.extend(new);
            let new = self.rate(left.prev, &lookup);
            self.heap.extend(new);
        }
        let mut at = 0;
        while let Some(symbol) = self.get(at) {
            visit(&symbol);
            at = symbol.next;
        }
        ControlFlow::Continue(())
    }

    fn get(&self, at: u32) -> Option<Symbol> {
        self.symbols.get(at as usize).copied()
    }

    /// Looks the pair that starts at `at` up and notes it there; the heap entry where it merges.
    fn rate(
        &mut self,
        at: u32,
        lookup: &impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) -> Option<Reverse<u64>> {
        let left = self.get(at)?;
        let merge = self.get(left.next).and_then(|right| lookup(&left, &right));
        let s = self.symbols.get_mut(at as usize)?;
        s.rank = merge.map_or(NONE, |m| m.rank);
        s.merged = merge.map_or(NONE, |m| m.id);
        merge.map(|m| entry(m.rank, at))
    }
}
