//! What a step is told of the tokens to come: drafts, which it verifies, and what constrained sequences
//! may draw; and which pages it will need.

use std::time::Instant;

use super::{Active, Owner, Task};
use crate::backend::{Draft, ROUND_ROWS};
use crate::engine::constrain::all_allowed;
use crate::engine::lookup::{Text, MOST_DRAFTED};
use crate::engine::pace::MIN_ROWS;
use crate::engine::turns::SHARED_SLICE;
use crate::error::Result;

impl Owner {
    /// Has the pages that layers with a window need for the steps that may be queued now.
    pub(super) fn see(&mut self) -> Result<()> {
        for active in self.active.iter_mut().flatten().filter(|a| a.decodes()) {
            if let Task::Generate(g) = &active.task {
                // The token drawn last was not fed.
                let next = (g.request.prompt.len() + g.drawn.len()).saturating_sub(1);
                let sequence = &mut active.sequence;
                sequence.see(&mut *self.backend, next, next + ROUND_ROWS)?;
            }
        }
        Ok(())
    }

    /// Has the step that stopped before its draw go on: what was drawn last is known by now.
    pub(super) fn constrain(&mut self) -> Result<()> {
        if !self.backend.awaits_draw() {
            return Ok(());
        }
        self.allow_next()?;
        match self.backend.draw() {
            Ok(()) => Ok(()),
            Err(e) => self.fail_decoding(&e),
        }
    }

    /// Says what every constrained sequence that decodes may draw next.
    pub(super) fn allow_next(&mut self) -> Result<()> {
        let begun = Instant::now();
        let active = self.active.iter_mut().enumerate();
        let due = active.filter_map(|(slot, a)| Some((slot, a.as_mut()?.constrained()?)));
        for (slot, allowed) in all_allowed(due.collect()) {
            let said = allowed.and_then(|set| self.backend.allow(slot, vec![set]));
            self.go_on_or_fail(slot, said)?;
        }
        self.text_time += begun.elapsed();
        Ok(())
    }

    /// Says what each row of a step that verifies drafts may draw, where a sequence is constrained.
    pub(super) fn constrain_round(&mut self, drafts: &mut Vec<Draft>) -> Result<()> {
        for slot in 0..self.active.len() {
            let active = self.active[slot].as_mut();
            let Some(constrained) = active.and_then(Active::constrained) else {
                continue;
            };
            let mut none = Vec::new();
            let draft = drafts.iter_mut().find(|draft| draft.slot == slot);
            let tokens = draft.map_or(&mut none, |draft| &mut draft.tokens);
            let sets = constrained.allowed_along(tokens);
            let said = sets.and_then(|sets| self.backend.allow(slot, sets));
            self.go_on_or_fail(slot, said)?;
        }
        drafts.retain(|draft| self.active[draft.slot].is_some());
        Ok(())
    }

    /// Ends the sequence of a slot that something went wrong with.
    pub(super) fn go_on_or_fail(&mut self, slot: usize, gone: Result<()>) -> Result<()> {
        let Err(e) = gone else {
            return Ok(());
        };
        match self.active[slot].take() {
            Some(active) => active.fail(&mut *self.backend, e),
            None => Ok(()),
        }
    }

    /// What the texts of sequences let expect of their next tokens; the step that is to verify it is begun
    /// at once where all is `settled`.
    pub(super) fn drafts(&mut self, settled: bool) -> Result<Vec<Draft>> {
        let decoding = || self.active.iter().flatten().filter(|a| a.decodes());
        let running = decoding().count();
        let mut askers = decoding().filter(|a| a.drafts()).count();
        let mut drafts = Vec::new();
        if askers == 0 || !self.backend.verifies_drafts() {
            return Ok(drafts);
        }
        let mut room = ROUND_ROWS.saturating_sub(running);
        if running > 1 {
            // The others wait for these rows too.
            let rows = self.prefill_pace.rows(SHARED_SLICE).unwrap_or(MIN_ROWS);
            room = room.min(rows.saturating_sub(running));
        }
        let n_ctx = self.backend.limits().n_ctx;
        for (slot, active) in self.active.iter_mut().enumerate() {
            let Some(active) = active.as_mut().filter(|a| a.decodes() && a.drafts()) else {
                continue;
            };
            let Task::Generate(g) = &mut active.task else {
                continue;
            };
            let text = Text {
                prompt: &g.request.prompt,
                drawn: &g.drawn,
            };
            // The last row gives the last token that there is room for.
            let left = g.request.max_tokens.saturating_sub(g.drawn.len() + 1);
            let most = left.min(n_ctx.saturating_sub(text.len() + 1));
            // Nobody steps aside for what may be wrong.
            let wanted = text.len() + most.min(MOST_DRAFTED);
            active.sequence.grow(&mut *self.backend, wanted)?;
            let most = most.min(active.sequence.capacity().saturating_sub(text.len()));
            let most = most.min(room / askers);
            let forced = g.constrained.as_mut().map(|c| c.forced(most, settled));
            let mut tokens = forced.unwrap_or_default();
            // What is sure needs no guess.
            let guessed = if tokens.is_empty() { most } else { 0 };
            let guess = g
                .lookup
                .as_mut()
                .map(|lookup| lookup.draft(&text, guessed, settled));
            let guess = guess.unwrap_or_default();
            let is_guess = !guess.is_empty();
            tokens.extend(guess);
            askers -= 1;
            room -= tokens.len();
            if tokens.is_empty() {
                continue;
            }
            if settled && is_guess {
                g.drafted += tokens.len();
                self.now.done.drafted_tokens += tokens.len() as u64;
            }
            drafts.push(Draft { slot, tokens });
        }
        Ok(drafts)
    }
}
