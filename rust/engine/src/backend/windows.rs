//! Sliding-window layers in models whose other layers see everything: they have their own pool of pages
//! and page table, in which a sequence has only the pages of its window.

use super::{pages_of, pool_pages, PAGE_TOKENS, ROUND_ROWS};
use crate::plan::Plan;

/// Which layers a page holds tokens of. Pools, tables and numbers of pages are each kind's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Layers that see all of a sequence; every layer where none is [`Kind::Windowed`].
    Whole,
    /// Layers that see a window.
    Windowed,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Whole, Kind::Windowed];
}

/// The pool of the layers that see a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Tokens that a row sees, its own included: of the layer that sees most.
    pub tokens: usize,
    /// Most tokens of a prompt that are fed at once.
    pub chunk: usize,
    /// Pages in the pool, page 0 included.
    pub n_pages: usize,
}

impl Windows {
    /// The pool for `n_slots` sequences of up to `n_ctx` tokens, one of which is fed `chunk` tokens at
    /// once; none where all layers of `plan` see alike, and where sequences have states too.
    pub fn of(plan: &Plan, n_slots: usize, n_ctx: usize, chunk: usize) -> Option<Self> {
        let cached = plan.kv.iter().zip(plan.windows());
        let cached = cached.filter(|(shape, _)| shape.n_head_kv > 0);
        let windows: Vec<Option<usize>> = cached.map(|(_, window)| window).collect();
        let tokens = windows.iter().flatten().copied().max()?;
        if windows.iter().all(Option::is_some) || !plan.states.is_empty() {
            return None;
        }
        let mut windows = Self {
            tokens,
            chunk: chunk.clamp(1, n_ctx.max(1)),
            n_pages: 0,
        };
        let of_slots = n_slots.saturating_mul(windows.per_slot(n_ctx));
        let n_pages = of_slots.saturating_add(1 + pages_of(windows.chunk));
        windows.n_pages = n_pages.min(pool_pages(n_slots, n_ctx));
        Some(windows)
    }

    /// The first page of a sequence that a token at `position`, or at an earlier one of the page that
    /// ends there, sees something of.
    pub fn first_page(&self, position: usize) -> usize {
        let earliest = position.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
        self.first_seen(earliest)
    }

    /// The first page of a sequence that a token at `position` sees something of.
    pub fn first_seen(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.tokens) / PAGE_TOKENS
    }

    /// Most pages that a sequence of up to `n_ctx` tokens has between two steps: those from
    /// [`Windows::first_page`] on that its next [`ROUND_ROWS`] tokens see or are in.
    pub fn per_slot(&self, n_ctx: usize) -> usize {
        let before = self.tokens.saturating_sub(1).div_ceil(PAGE_TOKENS);
        (before + 1 + pages_of(ROUND_ROWS)).min(pages_of(n_ctx))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Wherever a sequence stands: all that its next tokens see is in the pages that it has, and
        /// these are no more than the pool has for it.
        #[test]
        fn a_sequence_has_the_pages_that_it_sees_and_no_more(
            tokens in 1usize..3000,
            position in 0usize..10_000,
            rows in 1usize..=ROUND_ROWS,
        ) {
            let windows = Windows { tokens, chunk: 1, n_pages: 0 };
            let first = windows.first_page(position);
            let earliest = position.saturating_sub(1) / PAGE_TOKENS * PAGE_TOKENS;
            for at in [earliest, position, position + rows - 1] {
                let seen = (at + 1).saturating_sub(tokens);
                prop_assert!(first * PAGE_TOKENS <= seen);
                prop_assert_eq!(windows.first_seen(at), seen / PAGE_TOKENS);
            }
            let end = pages_of(position + rows);
            prop_assert!(end - first <= windows.per_slot(usize::MAX));
            prop_assert!(windows.per_slot(100) <= 2);
        }
    }
}
