//! The host's view of the sequences that decode; the rest of their state is on the card.

use super::ring::{Queued, Ring};
use crate::backend::cuda::lower::sample::Record;
use crate::backend::parts::take_failed;
use crate::backend::{Draft, Event, Finish, SlotRequest};
use crate::error::{Error, Result};
use crate::sampler::{self, Allowed};

/// A slot's sequence.
#[derive(Debug)]
struct Sequence {
    /// Which request this is: records of an earlier one are dropped.
    epoch: u64,
    generated: usize,
    /// Whether the last record read left it decoding.
    live: bool,
    /// Whether steps leave it out.
    paused: bool,
    /// Tokens of its prompt, and the one drawn last.
    prompt: usize,
    last: u32,
    logprobs: Option<usize>,
    /// Of a constrained sequence, what each row of its next draw may choose among.
    allowed: Option<Vec<Allowed>>,
}

/// A sequence's rows of a step that verifies drafts.
#[derive(Debug)]
pub struct Round {
    pub slot: usize,
    pub epoch: u64,
    /// Where its first row's token stands.
    pub position: usize,
    /// The token drawn last, and those drafted to follow it.
    pub tokens: Vec<u32>,
}

/// The sequences by slot, and what became of them since the engine last asked.
#[derive(Debug)]
pub struct Sequences {
    slots: Vec<Option<Sequence>>,
    /// Number of the last request started.
    epoch: u64,
    events: Vec<Event>,
}

impl Sequences {
    /// None, in `n_slots` slots.
    pub fn new(n_slots: usize) -> Self {
        Self {
            slots: (0..n_slots).map(|_| None).collect(),
            epoch: 0,
            events: Vec::new(),
        }
    }

    /// Puts a new sequence into `slot`, one that does not decode yet.
    pub fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        let n_slots = self.slots.len();
        let place = self.slots.get_mut(slot);
        let place = place.ok_or_else(|| Error::Internal(format!("slot {slot} of {n_slots}")))?;
        self.epoch += 1;
        *place = Some(Sequence {
            epoch: self.epoch,
            generated: 0,
            live: false,
            paused: false,
            prompt: 0,
            last: 0,
            logprobs: request.sampling.logprobs,
            allowed: request.constrained.then(Vec::new),
        });
        Ok(())
    }

    fn get(&mut self, slot: usize) -> Result<&mut Sequence> {
        let found = self.slots.get_mut(slot).and_then(Option::as_mut);
        found.ok_or_else(|| Error::Internal(format!("slot {slot} has no sequence")))
    }

    /// The request in `slot`.
    pub fn epoch(&mut self, slot: usize) -> Result<u64> {
        Ok(self.get(slot)?.epoch)
    }

    /// Marks `slot` as decoding, behind a prompt of so many tokens.
    pub fn set_live(&mut self, slot: usize, prompt: usize) -> Result<()> {
        let sequence = self.get(slot)?;
        (sequence.live, sequence.prompt) = (true, prompt);
        Ok(())
    }

    /// Says what the rows of the next draw of `slot` may choose among.
    ///
    /// # Errors
    /// [`Error::Internal`] for a slot that is not constrained.
    pub fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        match &mut self.get(slot)?.allowed {
            Some(allowed) => {
                *allowed = rows;
                Ok(())
            }
            None => Err(Error::Internal(format!("slot {slot} is not constrained"))),
        }
    }

    /// Whether a sequence that decodes is constrained.
    pub fn are_constrained(&self) -> bool {
        self.running().any(|(_, s)| s.allowed.is_some())
    }

    /// What the `rows` rows of the next draw of a constrained sequence may choose among; none where it is
    /// not constrained, or gone.
    ///
    /// # Errors
    /// [`Error::Internal`] where that was not said.
    pub fn take_allowed(&mut self, slot: usize, epoch: u64, rows: usize) -> Result<Vec<Allowed>> {
        let sequence = self.slots.get_mut(slot).and_then(Option::as_mut);
        let sequence = sequence.filter(|s| s.epoch == epoch && s.live);
        let Some(allowed) = sequence.and_then(|s| s.allowed.as_mut()) else {
            return Ok(Vec::new());
        };
        let allowed = std::mem::take(allowed);
        match allowed.len() == rows {
            true => Ok(allowed),
            false => Err(Error::Internal(format!(
                "{} sets of tokens for {rows} rows of slot {slot}",
                allowed.len()
            ))),
        }
    }

    /// Says whether steps leave the sequence of `slot` out, if there is one.
    pub fn set_paused(&mut self, slot: usize, paused: bool) {
        if let Some(Some(sequence)) = self.slots.get_mut(slot) {
            sequence.paused = paused;
        }
    }

    /// Every sequence that steps are of, by its slot.
    fn running(&self) -> impl Iterator<Item = (usize, &Sequence)> {
        let slots = self.slots.iter().enumerate();
        let found = slots.filter_map(|(slot, s)| Some((slot, s.as_ref()?)));
        found.filter(|(_, s)| s.live && !s.paused)
    }

    /// The rows of every sequence that decodes: the token drawn last, and its draft. What was drawn last
    /// has to be known.
    pub fn rounds(&self, drafts: &[Draft]) -> Vec<Round> {
        let rounds = self.running().map(|(slot, sequence)| {
            let draft = drafts.iter().find(|draft| draft.slot == slot);
            let mut tokens = vec![sequence.last];
            tokens.extend(draft.iter().flat_map(|draft| &draft.tokens));
            Round {
                slot,
                epoch: sequence.epoch,
                // Its first token stands behind the prompt.
                position: (sequence.prompt + sequence.generated).saturating_sub(1),
                tokens,
            }
        });
        rounds.collect()
    }

    /// Slot and request of every sequence that decodes.
    pub fn live(&self) -> Vec<(usize, u64)> {
        self.running().map(|(slot, s)| (slot, s.epoch)).collect()
    }

    /// Whether a sequence that decodes wants log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        self.running().any(|(_, s)| s.logprobs.is_some())
    }

    /// No step is of the sequence of `slot` any more, and nothing is said of it.
    pub fn stop(&mut self, slot: usize) {
        self.events.retain(|e| e.slot != slot);
        if let Some(Some(sequence)) = self.slots.get_mut(slot) {
            sequence.live = false;
        }
    }

    /// Ends the sequence of `slot` and drops its events; returns whether there was one.
    pub fn end(&mut self, slot: usize) -> bool {
        self.events.retain(|e| e.slot != slot);
        self.slots.get_mut(slot).and_then(Option::take).is_some()
    }

    /// Turns the records of a finished step into events; `logits` reads those of a row, `overflow` is why
    /// a slot's sequence cannot go on behind this position, where a kernel has found that.
    pub fn collect(
        &mut self,
        step: &Queued,
        ring: &Ring,
        logits: impl Fn(usize) -> Result<Vec<f32>>,
        overflow: impl Fn(usize, u64) -> Option<Error>,
    ) -> Result<()> {
        let mut first = 0;
        for (row, (slot, epoch)) in step.rows.iter().enumerate() {
            if step.rows[first].0 != *slot {
                first = row;
            }
            let Some(record) = ring.record(step, row) else {
                continue;
            };
            let current = self.slots.get_mut(*slot).and_then(Option::as_mut);
            // Of an earlier request.
            let Some(sequence) = current.filter(|s| s.epoch == *epoch) else {
                continue;
            };
            // Of a step after the sequence had ended, here or on the card, or of a token that was drafted wrongly: whatever
            // ailed that is nobody's.
            if !(record.live && sequence.live) {
                overflow(*slot, u64::MAX);
                continue;
            }
            let Record { token, finish, .. } = record;
            // Whatever was drawn: a cache of integers has numbers in the place of what is none.
            let position = (sequence.prompt + sequence.generated).saturating_sub(1);
            let finish = overflow(*slot, position as u64)
                .map(Finish::Failed)
                .or(finish);
            let index = sequence.generated;
            sequence.generated += 1;
            sequence.live = finish.is_none();
            sequence.last = token;
            let logprobs = match sequence.logprobs {
                Some(n) if !matches!(finish, Some(Finish::Failed(_))) => {
                    Some(sampler::logprobs(&logits(row)?, token, n)?)
                }
                _ => None,
            };
            self.events.push(Event {
                slot: *slot,
                index,
                token,
                finish,
                logprobs,
                row: row - first,
                drafted: step.rows[first..]
                    .iter()
                    .take_while(|own| own.0 == *slot)
                    .count()
                    .saturating_sub(1),
            });
        }
        Ok(())
    }

    /// As [`take_failed`].
    pub fn take_failed(&mut self, slots: &[usize]) -> Vec<(usize, Error)> {
        take_failed(&mut self.events, slots)
    }

    /// Whether something waits for the engine.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What became of the sequences since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
