//! How prompts are fed: parts of one or of several in a pass, beside a step of those that decode where the
//! backend has such passes.

use std::time::{Duration, Instant};

use super::{Active, Owner, Task};
use crate::backend::{Part, PAGE_TOKENS};
use crate::engine::constrain::Constrained;
use crate::engine::pace::MIN_ROWS;
use crate::engine::turns::{self, worth_waiting};
use crate::error::{Error, Result};

/// How long a pass waits for what is fetched of prompts behind its first one.
const FETCHING: Duration = Duration::from_millis(2);

/// A part of a prompt that is to be fed.
#[derive(Debug)]
pub(super) struct Chosen {
    slot: usize,
    tokens: usize,
    /// Whether the prompt ends with it.
    last: bool,
    /// Whether the states behind it are kept.
    keeps_state: bool,
}

impl Owner {
    /// The slot whose turn it is beside those that are `chosen`: the one that is due, or the one that
    /// computes already what that would only compute again.
    pub(super) fn turn(&self, chosen: &[Chosen]) -> Option<usize> {
        let slots = self.feeding.iter();
        let all = slots.filter_map(|slot| Some((*slot, self.active.get(*slot)?.as_ref()?)));
        let all = all.filter(|(_, active)| !active.aside);
        let due = |active: &Active| self.shared.due(active.turn, active.priority);
        if chosen.is_empty() {
            let (slot, next) = all.min_by_key(|(_, active)| due(active))?;
            return Some(self.ahead_of(slot, next).unwrap_or(slot));
        }
        let is_chosen = |slot: usize| chosen.iter().any(|its| its.slot == slot);
        let mut others: Vec<(usize, &Active)> = all
            .filter(|(slot, _)| self.is_prompt(*slot) && !is_chosen(*slot))
            .collect();
        others.sort_by_key(|(_, active)| due(active));
        let mut free = others.into_iter();
        free.find(|(slot, next)| self.ahead_of(*slot, next).is_none())
            .map(|(slot, _)| slot)
    }

    /// Whose pages the prompt `next`, of which nothing was fed, does better to wait for.
    fn ahead_of(&self, slot: usize, next: &Active) -> Option<usize> {
        if next.begun.is_some() || !self.pool.shares() {
            return None;
        }
        let (known, salt) = (next.sequence.position, next.sequence.salt());
        let mut others = self.feeding.iter().filter(|other| **other != slot);
        let ahead = others.find(|other| {
            let other = self.active[**other].as_ref();
            other.is_some_and(|other| {
                let computed = other.sequence.position;
                !other.aside
                    && other.begun.is_some()
                    && other.sequence.salt() == salt
                    && worth_waiting(next.prompt(), known, other.prompt(), computed, PAGE_TOKENS)
            })
        });
        ahead.copied()
    }

    /// Whether what is fed in `slot` is a prompt.
    pub(super) fn is_prompt(&self, slot: usize) -> bool {
        let task = self.active[slot].as_ref().map(|active| &active.task);
        matches!(task, Some(Task::Generate(_)))
    }

    /// How many sequences have a step beside the prompt in `slot`, where it is one.
    pub(super) fn stepping(&self, slot: usize) -> usize {
        let decoding = self.decoding();
        match self.is_prompt(slot) && self.backend.steps_beside_prompts(decoding) {
            true => decoding,
            false => 0,
        }
    }

    /// Feeds prompts beside a step of those that decode. Says whether it did.
    pub(super) fn feed_beside(&mut self) -> Result<bool> {
        self.make_room()?;
        self.see()?;
        // Whoever lacked a page stepped aside.
        let Some(slot) = self.turn(&[]).filter(|slot| self.stepping(*slot) > 0) else {
            return Ok(false);
        };
        let stepped = self.feed_prompts(slot, turns::beside(self.step_took))?;
        self.deliver(false)?;
        Ok(stepped)
    }

    /// Feeds the prompt in `first`, and others where there is room, in a pass that takes no longer than
    /// `slice`. Says whether it was a step too.
    pub(super) fn feed_prompts(&mut self, first: usize, slice: Duration) -> Result<bool> {
        let stepping = self.stepping(first);
        let mut chosen = self.choose(first, Instant::now() + slice, stepping)?;
        self.say_what_they_need(&chosen)?;
        chosen.retain(|part| self.active[part.slot].is_some());
        if chosen.is_empty() {
            return Ok(false);
        }
        if stepping > 0 {
            self.allow_next()?;
        }
        let begun = Instant::now();
        let parts = chosen.iter().filter_map(|part| {
            let active = self.active[part.slot].as_ref()?;
            let start = active.sequence.position;
            Some(Part {
                slot: part.slot,
                tokens: &active.prompt()[start..start + part.tokens],
                start,
                last: part.last,
            })
        });
        let parts: Vec<Part<'_>> = parts.collect();
        let fed = self.backend.feed(&parts, stepping > 0);
        let tokens: usize = chosen.iter().map(|part| part.tokens).sum();
        self.prefill_pace.note(tokens + stepping, begun.elapsed());
        match fed {
            Ok(failed) => {
                for (slot, e) in failed {
                    self.fail_prompt(slot, e)?;
                }
            }
            Err(e) => {
                for part in &chosen {
                    self.fail_prompt(part.slot, e.clone())?;
                }
                if stepping > 0 {
                    self.fail_decoding(&e)?;
                }
            }
        }
        for part in chosen {
            self.go_on_behind(&part)?;
        }
        Ok(stepping > 0)
    }

    /// Which prompts the next pass is over, `first` and who is due behind it, and how much of each: as
    /// many tokens as it may have that is to be over by `until`, beside a step of `stepping` sequences.
    fn choose(&mut self, first: usize, until: Instant, stepping: usize) -> Result<Vec<Chosen>> {
        let mut chosen: Vec<Chosen> = Vec::new();
        let mut taken = 0;
        let mut next = Some(first);
        while let Some(slot) = next {
            // What is chosen does not wait for what has to be fetched of another one.
            let fetching = match chosen.is_empty() {
                true => until,
                false => until.min(Instant::now() + FETCHING),
            };
            let Some((rest, most)) = self.fetch(slot, fetching)? else {
                if chosen.is_empty() {
                    self.wait_for_pages(slot)?;
                }
                break;
            };
            let slice = until.saturating_duration_since(Instant::now());
            // Of an unknown pace as few as there are, where others wait.
            let rows = self.prefill_pace.rows(slice);
            let rows = rows.or(self.decodes().then_some(MIN_ROWS + stepping));
            let room = self.backend.slice(taken + most, rows, stepping);
            let room = room.saturating_sub(taken).min(most);
            let tokens = match chosen.is_empty() {
                true => room.max(1),
                // Nobody's first token waits for a part of another's prompt.
                false if stepping == 0 && room < rest => 0,
                false => room,
            };
            if tokens == 0 {
                break;
            }
            let keeps_state = self.active[slot]
                .as_ref()
                .is_some_and(|active| tokens == active.sequence.until_state(active.prompt().len()));
            chosen.push(Chosen {
                slot,
                tokens,
                last: tokens == rest,
                keeps_state,
            });
            taken += tokens;
            next = match tokens == most {
                true => self.turn(&chosen),
                false => None,
            };
        }
        Ok(chosen)
    }

    /// Fetches what is known of the prompt in `slot`, `until` then. Gives how many tokens of it are to be
    /// fed, and how many of them in one pass; none where it waits.
    fn fetch(&mut self, slot: usize, until: Instant) -> Result<Option<(usize, usize)>> {
        let Some(active) = self.active[slot].as_mut() else {
            return Err(Error::Internal(format!("slot {slot} feeds nothing")));
        };
        let Task::Generate(g) = &active.task else {
            return Ok(None);
        };
        let begun = Instant::now();
        active.begun.get_or_insert(begun);
        let (sequence, prompt) = (&mut active.sequence, &g.request.prompt);
        let is_new = !sequence.is_ready();
        if !sequence.fetch_prefix(&mut *self.backend, prompt, until)? {
            return Ok(None);
        }
        if is_new {
            let cached = sequence.cached() as u64;
            let done = &mut self.now.done;
            done.requests += 1;
            done.prefix_hits += u64::from(cached > 0);
            done.cached_tokens += cached;
        }
        let start = sequence.position;
        let rest = prompt.len() - start;
        let most = match g.request.timed_from.checked_sub(start) {
            Some(untimed @ 1..) => untimed.min(rest),
            _ => {
                active.timed.get_or_insert(begun);
                rest
            }
        };
        Ok(Some((rest, most.min(sequence.until_state(prompt.len())))))
    }

    /// Gives the backend what the next pass needs of those that are `chosen`: pages of a window, and what
    /// the first token may be. Whoever that fails for is gone.
    fn say_what_they_need(&mut self, chosen: &[Chosen]) -> Result<()> {
        for part in chosen {
            let Some(active) = self.active[part.slot].as_mut() else {
                continue;
            };
            let start = active.sequence.position;
            let end = start + part.tokens;
            let mut said = active.sequence.see(&mut *self.backend, start, end);
            if let (Task::Generate(g), true) = (&mut active.task, part.last) {
                let constrained = g.constrained.as_mut();
                if let Some(allowed) = constrained.map(Constrained::allowed) {
                    said = said
                        .and(allowed)
                        .and_then(|set| self.backend.allow(part.slot, vec![set]));
                }
            }
            if let Err(e) = said {
                self.fail_prompt(part.slot, e)?;
            }
        }
        Ok(())
    }

    fn fail_prompt(&mut self, slot: usize, error: Error) -> Result<()> {
        self.feeding.retain(|other| *other != slot);
        self.go_on_or_fail(slot, Err(error))
    }

    /// What follows a part of a prompt that was fed: its pages serve others, and the last one is the end.
    fn go_on_behind(&mut self, part: &Chosen) -> Result<()> {
        let Some(active) = self.active[part.slot].as_mut() else {
            return Ok(());
        };
        let Task::Generate(g) = &active.task else {
            return Ok(());
        };
        let sequence = &mut active.sequence;
        sequence.position += part.tokens;
        let position = sequence.position;
        active.turn = Instant::now();
        self.now.done.prompt_tokens += part.tokens as u64;
        let fed = &g.request.prompt[..position];
        if part.keeps_state {
            sequence.keep_state(&mut *self.backend, fed)?;
        }
        // What has been fed by now: others that begin alike wait for no more than they need.
        if let (true, Some(out)) = (part.last, &g.save) {
            drop(out.send(sequence.save(&mut *self.backend, fed)));
        }
        sequence.share(&mut *self.backend, fed)?;
        sequence.see(&mut *self.backend, position, position)?;
        if part.last {
            sequence.end_prompt();
            self.feeding.retain(|other| *other != part.slot);
        }
        Ok(())
    }
}
