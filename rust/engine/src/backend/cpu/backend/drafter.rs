//! Drafts by the model itself: behind every pass its drafter follows, and in front of a round it guesses.

use super::{places, CpuBackend, Rows};
use crate::backend::cpu::memory::MAX_ROWS;
use crate::backend::parts::{take, Rest};
use crate::backend::{Batch, Draft, Part, MOST_GUESSED};
use crate::error::Result;
use crate::plan::{ByRows, Drafter};
use crate::sampler;

/// A token that a drafter with so many has: its vocabulary may be shorter than the model's.
fn known(token: u32, n_vocab: usize) -> u32 {
    match (token as usize) < n_vocab {
        true => token,
        false => 0,
    }
}

impl CpuBackend {
    pub(super) fn most_guessed(&self) -> usize {
        self.drafter().map_or(0, |_| MOST_GUESSED)
    }

    fn drafter(&self) -> Option<&Drafter> {
        self.interpreter.plan().drafter.as_deref()
    }

    /// Pages of layers that see a window may be gone by the time that it catches up.
    pub(super) fn lags(&self) -> bool {
        let by_tokens = self.drafter().is_some_and(|d| d.by.is_none());
        by_tokens && self.limits.windows.is_none()
    }

    /// As [`crate::backend::Backend::follow`].
    pub(super) fn follow_parts(&mut self, parts: Vec<Part<'_>>) -> Result<()> {
        let mut rest = Rest::from(parts);
        while !rest.is_empty() {
            let parts = take(&mut rest, MAX_ROWS);
            self.follow_rows(&parts.iter().map(Rows::of).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Behind a step, unless it may be left behind.
    pub(super) fn follow_step(&mut self, rows: &[Rows]) -> Result<()> {
        match self.lags() && !self.guesses {
            true => Ok(()),
            false => self.follow_rows(rows),
        }
    }

    /// Stores what the drafter's layers keep of the rows of the last pass, which were drawn from.
    pub(super) fn follow_rows(&mut self, rows: &[Rows]) -> Result<()> {
        let Some(drafter) = self.drafter().filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        let Some(ByRows { rows: from, .. }) = drafter.by else {
            let n_vocab = drafter.guess.n_vocab();
            let fed = rows.iter().flat_map(|own| &own.tokens);
            let tokens: Vec<u32> = fed.map(|token| known(*token, n_vocab)).collect();
            return self.follow_tokens(rows, &tokens);
        };
        let mut tokens = Vec::new();
        let mut last = Vec::new();
        for own in rows {
            let first = tokens.len();
            tokens.extend(&own.tokens[1..]);
            // Behind it stands what was drawn, or what no pass has fed yet.
            tokens.push(own.behind.unwrap_or(0));
            let Some(sequence) = self.slots[own.slot].as_ref().filter(|_| own.drawn > 0) else {
                continue;
            };
            let end = (sequence.position - own.position).clamp(1, own.tokens.len());
            if let Some(drawn) = sequence.next {
                tokens[first + end - 1] = drawn;
                last.push((own.slot, first + end - 1));
            }
        }
        self.follow_tokens(rows, &tokens)?;
        let width = self.interpreter.plan().buffer(from).width;
        for (slot, row) in last {
            let hidden = &self.interpreter.buffer(from)[row * width..][..width];
            if let Some(sequence) = &mut self.slots[slot] {
                sequence.hidden.clear();
                sequence.hidden.extend_from_slice(hidden);
            }
        }
        Ok(())
    }

    fn follow_tokens(&mut self, rows: &[Rows], tokens: &[u32]) -> Result<()> {
        let (positions, slots) = places(rows);
        self.interpreter.follow(&Batch {
            tokens,
            positions: &positions,
            slots: &slots,
            types: &[],
            out_rows: &[],
        })
    }

    /// Drafts of up to `most` tokens for every slot that decodes: of each the largest logit, of equals the
    /// first.
    pub(super) fn guess(&mut self, most: usize) -> Result<Vec<Draft>> {
        let mut drafts: Vec<Draft> = Vec::new();
        let Some(drafter) = self.drafter() else {
            return Ok(drafts);
        };
        let (by, n_vocab) = (drafter.by, drafter.guess.n_vocab());
        let width = drafter.guess.buffer(drafter.guess.logits).width;
        let (mut tokens, mut positions, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        let mut room = Vec::new();
        for (slot, sequence) in self.slots.iter().enumerate() {
            let running = sequence
                .as_ref()
                .filter(|s| !s.paused && s.allowed.is_none());
            let Some((s, next)) = running.and_then(|s| Some((s, s.next?))) else {
                continue;
            };
            let left = (s.max_tokens - s.generated).min(self.limits.n_ctx - s.position);
            if by.is_some() && s.hidden.is_empty() || left < 2 {
                continue;
            }
            drafts.push(Draft {
                slot,
                tokens: Vec::new(),
            });
            tokens.push(known(next, n_vocab));
            // Of a row, that before the token.
            positions.push((s.position - usize::from(by.is_some())) as u32);
            hidden.extend_from_slice(&s.hidden);
            room.push(left - 1);
        }
        if drafts.is_empty() {
            return Ok(drafts);
        }
        let slots: Vec<u32> = drafts.iter().map(|draft| draft.slot as u32).collect();
        let out_rows: Vec<u32> = (0..slots.len() as u32).collect();
        if let Some(by) = by {
            self.interpreter.set(by.hidden, &hidden);
        }
        let most_tokens = width.min(self.limits.n_vocab);
        for n in 0..most {
            let logits = self.interpreter.guess(&Batch {
                tokens: &tokens,
                positions: &positions,
                slots: &slots,
                types: &[],
                out_rows: &out_rows,
            })?;
            let rows = logits.chunks_exact(width.max(1));
            let best = rows.map(|row| sampler::best(&row[..most_tokens]).unwrap_or(0));
            tokens = best.collect();
            if by.is_none_or(|by| by.moves) {
                positions.iter_mut().for_each(|position| *position += 1);
            }
            for ((draft, token), room) in drafts.iter_mut().zip(&tokens).zip(&room) {
                if n < *room {
                    draft.tokens.push(*token);
                }
            }
        }
        Ok(drafts)
    }
}
