//! How what comes before decoding is fed: in slices, each in its turn. Prompts: `prompts`.

use std::time::{Duration, Instant};

use super::{Active, Owner, Task};
use crate::backend::LogitsPath;
use crate::engine::pace::MIN_ROWS;
use crate::engine::turns;
use crate::error::{Error, Result};
use crate::sampler;

/// Of a slice whose logits are all kept: they take much memory.
const MAX_LOGIT_ROWS: usize = 512;
const FIRST_LOGIT_ROWS: usize = 32;

impl Owner {
    /// Feeds for as long as those that decode may wait: a pass over prompts that is a step too, which it
    /// says; else a slice, or of short ones several.
    pub(super) fn feed(&mut self) -> Result<bool> {
        // What steps gave goes out first, and no slice is timed with them.
        while self.decodes() && !self.backend.is_settled() && self.turn(&[]).is_some() {
            self.deliver(true)?;
        }
        let begun = Instant::now();
        let mut first = true;
        while let Some(slot) = self.turn(&[]) {
            if self.stepping(slot) > 0 {
                return match first {
                    true => self.feed_beside(),
                    false => Ok(false),
                };
            }
            let decodes = self.decodes();
            let slice = turns::slice(decodes.then_some(self.step_took), self.feeding.len());
            let left = slice.saturating_sub(begun.elapsed());
            // Where nobody waits, whoever was cancelled or came is looked after first.
            let goes_on = first || (decodes && self.prefill_pace.fits(left));
            if !goes_on {
                break;
            }
            first = false;
            match self.is_prompt(slot) {
                true => drop(self.feed_prompts(slot, left)?),
                false => self.feed_slice(slot, left)?,
            }
            // A prompt that is done has drawn a token.
            self.deliver(false)?;
        }
        Ok(false)
    }

    /// Feeds a slice of the text in `slot`, for its logits or to embed it, that takes no longer than
    /// `slice`.
    fn feed_slice(&mut self, slot: usize, slice: Duration) -> Result<()> {
        let decodes = self.decodes();
        let Some(active) = self.active[slot].as_mut() else {
            return Err(Error::Internal(format!("slot {slot} feeds nothing")));
        };
        let begun = Instant::now();
        active.begun.get_or_insert(begun);
        let start = active.sequence.position;
        // Of an unknown pace as few as there are, where others wait.
        let rows = self.prefill_pace.rows(slice);
        let rows = rows.or(decodes.then_some(MIN_ROWS));
        let (done, fed) = match &mut active.task {
            Task::Generate(_) => {
                return Err(Error::Internal(format!(
                    "a prompt in slot {slot} as a text"
                )));
            }
            Task::Logits { ids, path, out } => {
                let pace = match path {
                    LogitsPath::Prefill => &mut self.prefill_pace,
                    LogitsPath::Decode => &mut self.step_pace,
                };
                let rest = &ids[start..];
                let rows = pace.rows(slice).unwrap_or(FIRST_LOGIT_ROWS);
                let chunk = &rest[..rest.len().min(rows).min(MAX_LOGIT_ROWS)];
                let seen = active
                    .sequence
                    .see(&mut *self.backend, start, start + chunk.len());
                let logits = seen.and_then(|()| self.backend.logits(slot, chunk, start, *path));
                pace.note(chunk.len(), begun.elapsed());
                let n_vocab = self.backend.limits().n_vocab;
                let fed = logits.and_then(|logits| {
                    sampler::check_rows(&logits, n_vocab)?;
                    drop(out.send(Ok(logits)));
                    Ok(chunk.len())
                });
                (chunk.len() == rest.len(), fed)
            }
            Task::Embed(text) => {
                let rest = text.ids.len() - start;
                let n = self.backend.slice(rest, rows, 0).clamp(1, rest);
                let wanted = text.wanted(n, n == rest);
                let chunk = &text.ids[start..][..n];
                let seen = active.sequence.see(&mut *self.backend, start, start + n);
                let states = seen.and_then(|()| self.backend.hidden(slot, chunk, start, wanted));
                self.prefill_pace.note(n, begun.elapsed());
                let fed = states.map(|states| {
                    text.add(&states);
                    n
                });
                (n == rest, fed)
            }
        };
        match fed {
            Ok(n) => {
                active.sequence.position += n;
                active.turn = Instant::now();
                self.now.done.prompt_tokens += n as u64;
            }
            Err(e) => {
                self.feeding.retain(|other| *other != slot);
                return match self.active[slot].take() {
                    Some(active) => active.fail(&mut *self.backend, e),
                    None => Ok(()),
                };
            }
        }
        let position = active.sequence.position;
        active
            .sequence
            .see(&mut *self.backend, position, position)?;
        if done {
            self.feeding.retain(|other| *other != slot);
            if let Some(active) = self.active[slot].take_if(|a| !a.decodes()) {
                // Of logits the sender's end tells the receiver that these were all.
                let Active { sequence, task, .. } = active;
                sequence.close(&mut *self.backend, &[])?;
                self.say();
                if let Task::Embed(text) = task {
                    text.finish();
                }
            }
        }
        Ok(())
    }
}
