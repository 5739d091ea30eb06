//! How prompts are fed: in slices between steps, each prompt in its turn.

use std::time::{Duration, Instant};

use super::{Active, Owner, Task};
use crate::backend::{LogitsPath, PAGE_TOKENS};
use crate::engine::constrain::Constrained;
use crate::engine::pace::MIN_ROWS;
use crate::engine::turns::{self, worth_waiting};
use crate::error::{Error, Result};

/// Of a slice whose logits are all kept: they take much memory.
const MAX_LOGIT_ROWS: usize = 512;
const FIRST_LOGIT_ROWS: usize = 32;

impl Owner {
    /// The slot whose prompt has its turn: the one that is due, or the one that computes already what
    /// that would only compute again.
    fn turn(&self) -> Option<usize> {
        let feeding = || {
            let slots = self.feeding.iter();
            let all = slots.filter_map(|slot| Some((*slot, self.active.get(*slot)?.as_ref()?)));
            all.filter(|(_, active)| !active.aside)
        };
        let (slot, next) =
            feeding().min_by_key(|(_, active)| self.shared.due(active.turn, active.priority))?;
        if next.begun.is_some() || !self.pool.shares() {
            return Some(slot);
        }
        let known = next.sequence.position;
        let ahead = feeding().find(|(_, other)| {
            let computed = other.sequence.position;
            other.begun.is_some()
                && worth_waiting(next.prompt(), known, other.prompt(), computed, PAGE_TOKENS)
        });
        Some(ahead.map_or(slot, |(slot, _)| slot))
    }

    /// Feeds prompts for as long as those that decode may wait: a slice, or of short prompts several.
    pub(super) fn feed(&mut self) -> Result<()> {
        // What steps gave goes out first, and no slice is timed with them.
        while self.decodes() && !self.backend.is_settled() && self.turn().is_some() {
            self.deliver(true)?;
        }
        let begun = Instant::now();
        let mut first = true;
        while let Some(slot) = self.turn() {
            let decodes = self.decodes();
            let slice = turns::slice(decodes.then_some(self.step_took), self.feeding.len());
            let left = slice.saturating_sub(begun.elapsed());
            // Where nobody waits, whoever was cancelled or came is looked after first.
            let goes_on = first || (decodes && self.prefill_pace.fits(left));
            if !goes_on {
                break;
            }
            first = false;
            self.feed_slice(slot, left)?;
            // A prompt that is done has drawn a token.
            self.deliver(false)?;
        }
        Ok(())
    }

    /// Feeds a slice of the prompt in `slot` that takes no longer than `slice`.
    fn feed_slice(&mut self, slot: usize, slice: Duration) -> Result<()> {
        let decodes = self.decodes();
        let Some(active) = self.active[slot].as_mut() else {
            return Err(Error::Internal(format!("slot {slot} feeds nothing")));
        };
        let begun = Instant::now();
        active.begun.get_or_insert(begun);
        let mut to_state = usize::MAX;
        if let Task::Generate(g) = &active.task {
            let until = begun + slice;
            let sequence = &mut active.sequence;
            let is_new = !sequence.is_ready();
            if !sequence.fetch_prefix(&mut *self.backend, &g.request.prompt, until)? {
                return self.wait_for_pages(slot);
            }
            if is_new {
                let cached = sequence.cached() as u64;
                let done = &mut self.now.done;
                done.requests += 1;
                done.prefix_hits += u64::from(cached > 0);
                done.cached_tokens += cached;
            }
            to_state = sequence.until_state(g.request.prompt.len());
        }
        let start = active.sequence.position;
        // Of an unknown pace as few as there are, where others wait.
        let rows = self.prefill_pace.rows(slice);
        let rows = rows.or(decodes.then_some(MIN_ROWS));
        let (done, fed) = match &mut active.task {
            Task::Generate(g) => {
                let g = &mut **g;
                let rest = &g.request.prompt[start..];
                let most = match g.request.timed_from.checked_sub(start) {
                    Some(untimed @ 1..) => untimed.min(rest.len()),
                    _ => {
                        active.timed.get_or_insert(begun);
                        rest.len()
                    }
                };
                let most = most.min(to_state);
                let chunk = &rest[..self.backend.slice(most, rows).clamp(1, most)];
                let last = chunk.len() == rest.len();
                let constrained = g.constrained.as_mut().filter(|_| last);
                let said = match constrained.map(Constrained::allowed) {
                    Some(allowed) => allowed.and_then(|set| self.backend.allow(slot, vec![set])),
                    None => Ok(()),
                };
                let end = start + chunk.len();
                let seen = said.and_then(|()| active.sequence.see(&mut *self.backend, start, end));
                let fed = seen.and_then(|()| self.backend.prefill(slot, chunk, start, last));
                self.prefill_pace.note(chunk.len(), begun.elapsed());
                (last, fed.map(|()| chunk.len()))
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
                let fed = logits.map(|logits| {
                    drop(out.send(Ok(logits)));
                    chunk.len()
                });
                (chunk.len() == rest.len(), fed)
            }
            Task::Embed(text) => {
                let rest = text.ids.len() - start;
                let n = self.backend.slice(rest, rows).clamp(1, rest);
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
                if let (Task::Generate(g), true) = (&active.task, n == to_state) {
                    let fed = &g.request.prompt[..active.sequence.position];
                    active.sequence.keep_state(&mut *self.backend, fed)?;
                }
            }
            Err(e) => {
                self.feeding.retain(|other| *other != slot);
                return match self.active[slot].take() {
                    Some(active) => active.fail(&mut *self.backend, e),
                    None => Ok(()),
                };
            }
        }
        if let Task::Generate(g) = &active.task {
            // What has been fed by now: others that begin alike wait for no more than they need.
            let fed = &g.request.prompt[..active.sequence.position];
            if let (true, Some(out)) = (done, &g.save) {
                drop(out.send(active.sequence.save(&mut *self.backend, fed)));
            }
            active.sequence.share(&mut *self.backend, fed)?;
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
