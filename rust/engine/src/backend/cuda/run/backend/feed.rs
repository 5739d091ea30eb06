//! Prompts, and steps beside them.

use super::{CudaBackend, Decoder, Key, Purpose, Round};
use crate::backend::cuda::run::rows::Rows;
use crate::backend::parts::{known, no_step_beside, Part, Rest};
use crate::backend::Backend;
use crate::error::{Error, Result};

impl CudaBackend {
    /// [`Backend::feed`].
    pub(super) fn feed_parts(
        &mut self,
        parts: &[Part<'_>],
        step: bool,
    ) -> Result<Vec<(usize, Error)>> {
        let mut rounds = match step {
            true => self.sequences.rounds(&[]),
            false => Vec::new(),
        };
        if step && !(self.is_settled() && self.steps_beside_prompts(rounds.len())) {
            return Err(no_step_beside(rounds.len(), self.is_settled()));
        }
        // Steps before read what rows may draw.
        self.finish_queued()?;
        let (mut rest, mut failed) = known(parts, self.limits.n_vocab);
        let fed: Vec<usize> = rest.iter().map(|part| part.slot).collect();
        while !rest.is_empty() || !rounds.is_empty() {
            let steps = self.chunks.step_rows(rounds.len());
            let (parts, rows) = self.chunks.next(&mut rest, steps);
            self.feed_pass(&parts, &std::mem::take(&mut rounds), rows)?;
            // A first token decides whether there is anything to decode; its logits may be wanted.
            self.finish_queued()?;
        }
        let card = &self.decoder.card;
        card.settle()?;
        failed.extend(self.sequences.take_failed(&fed));
        failed.extend(
            fed.into_iter()
                .filter_map(|slot| Some((slot, card.take_overflow(slot, u64::MAX)?))),
        );
        Ok(failed)
    }

    /// [`Backend::follow`].
    pub(super) fn follow_parts(&mut self, mut rest: Rest<'_>) -> Result<()> {
        while !rest.is_empty() {
            let (parts, rows) = self.chunks.next(&mut rest, 0);
            let mut all = Rows::default();
            for part in &parts {
                all.push(part.slot, part.tokens, part.start, 0);
            }
            all.pad(rows);
            // In stream order: rounds that are queued have made up theirs.
            let card = &self.decoder.card;
            card.rows.write(&all, &card.stream)?;
            self.decoder.run(Key {
                purpose: Purpose::Follow,
                way: self.chunks.way,
                rows,
            })?;
        }
        // The time of rounds behind it is their own.
        match self.is_settled() {
            true => self.decoder.card.settle(),
            false => Ok(()),
        }
    }

    /// Queues a pass of `rows` rows over parts of prompts, and beside them a step of `rounds`.
    fn feed_pass(&mut self, parts: &[Part<'_>], rounds: &[Round], rows: usize) -> Result<()> {
        let steps = self.chunks.step_rows(rounds.len());
        let mut all = Rows::default();
        let mut draws = Vec::new();
        let mut next = Vec::new();
        for part in parts {
            let until = part.start + part.tokens.len();
            all.push(part.slot, part.tokens, part.start, usize::from(part.last));
            next.extend(part.tokens.iter().skip(1).copied());
            next.push(part.next.unwrap_or(0));
            let epoch = self.sequences.epoch(part.slot)?;
            if part.last {
                self.sequences.set_live(part.slot, until)?;
                // Before the pass, which reads none of it: behind it the card would wait.
                let Decoder { sampling, card, .. } = &mut self.decoder;
                sampling.arm(part.slot, until - 1, &card.stream)?;
                draws.push((part.slot, epoch));
            }
        }
        all.pad(rows - steps);
        for round in rounds {
            all.push(round.slot, &round.tokens, round.position, 1);
            draws.push((round.slot, round.epoch));
        }
        all.pad(rows);
        // A prompt alone draws from its last row.
        let wanted = match (rounds.len(), draws.len()) {
            (0, n @ ..=1) => n,
            (_, n) => self.chunks.step_rows(n),
        };
        all.pad_wanted(wanted);
        for (row, (slot, epoch)) in draws.iter().enumerate() {
            self.allow_rows(row, *slot, *epoch, 1)?;
        }
        let card = &self.decoder.card;
        card.rows.write(&all, &card.stream)?;
        if let Some(drafts) = &self.decoder.drafts {
            next.resize(rows, 0);
            drafts.set_next(&next, &card.stream)?;
        }
        let mut slots: Vec<u32> = draws.iter().map(|(slot, _)| *slot as u32).collect();
        slots.resize(wanted, self.limits.n_slots as u32);
        card.rows.state_slots.write(0, &slots, &card.stream)?;
        self.decoder.run(Key {
            purpose: Purpose::Chunk { wanted, steps },
            way: self.chunks.way,
            rows,
        })?;
        if !draws.is_empty() {
            self.decoder.ring.push(draws, false);
        }
        Ok(())
    }
}
