//! Steps that verify drafts: those that the host brings, and those that the model guesses.

use super::{CudaBackend, Round};
use crate::backend::{Backend, Draft};
use crate::error::Result;

impl CudaBackend {
    /// [`Backend::decode_drafted`].
    pub(super) fn queue_drafted(&mut self, drafts: &[Draft]) -> Result<()> {
        let rounds = self.sequences.rounds(drafts);
        let rows = rounds.iter().map(|round| round.tokens.len()).sum();
        self.check_round(drafts, rows)?;
        if rounds.is_empty() {
            self.idle = true;
            return Ok(());
        }
        let mut row = 0;
        for round in &rounds {
            self.allow_rows(row, round.slot, round.epoch, round.tokens.len())?;
            row += round.tokens.len();
        }
        let key = self.dispatch.choose_round(rows);
        self.prepare(key)?;
        self.decoder.set_rounds(&rounds, key.rows)?;
        self.decoder.run(key)?;
        let owner = |round: &Round| vec![(round.slot, round.epoch); round.tokens.len()];
        self.decoder
            .ring
            .push(rounds.iter().flat_map(owner).collect(), true);
        Ok(())
    }

    /// [`Backend::decode_guessed`].
    pub(super) fn queue_guessed(&mut self, tokens: usize) -> Result<()> {
        let live = self.sequences.live();
        if live.is_empty() {
            self.idle = true;
            return Ok(());
        }
        let key = self.dispatch.choose_guessed(live.len(), tokens);
        self.prepare(key)?;
        let slots = live.iter().map(|(slot, _)| *slot as u32).collect();
        self.decoder.set_sequences(slots, key.rows)?;
        self.decoder.run(key)?;
        let rows = live.iter().flat_map(|own| vec![*own; 1 + tokens]);
        self.decoder.ring.push(rows.collect(), true);
        Ok(())
    }
}
