//! Who steps aside where the pages run out, and who comes back.
//!
//! The line of the queue goes on in the slots: whoever is due first goes before whoever came later or
//! has a lower priority. Where a sequence lacks a page for its next step, the last in that line steps
//! aside: it keeps its slot, with its states and how far it has come, and its pages go to the host's
//! memory one by one as others need the room. Nobody steps aside for a sequence behind it, and nobody
//! behind it is let in before it has come back. So the first in line always goes on, and each is it
//! once.

use std::time::Duration;

use super::{Active, Job, Owner, Span, Task, Work, ADMITTING, STEPS_AHEAD};
use crate::engine::turns;
use crate::error::{Error, Result};

/// A place in line: when it is due, then who was let in first.
type Place = (i64, u64);

/// Steps within which whoever comes back, or is let in, is not to step aside at once: as many running
/// sequences take a page on average.
const CALM: usize = 4;

/// Of the time that a slice of a prompt may take, what prefixes that give way may.
const GIVING_WAY: f64 = 0.7;

impl Active {
    /// Tokens that its next steps need room for.
    fn next_tokens(&self) -> usize {
        match &self.task {
            Task::Generate(g) if self.is_fed() => {
                g.request.prompt.len() + g.drawn.len() + STEPS_AHEAD
            }
            _ => 0,
        }
    }

    /// Tokens that may have something in its pages.
    fn filled(&self) -> usize {
        match &self.task {
            Task::Generate(g) if self.is_fed() => g.request.prompt.len() + g.drawn.len(),
            // What is fetched of a prompt counts only once all of it is there.
            Task::Generate(_) if !self.sequence.is_ready() => usize::MAX,
            _ => self.sequence.position,
        }
    }
}

impl Owner {
    fn place(&self, active: &Active) -> Place {
        let due = self.shared.due(active.submitted, active.priority);
        (due, active.number)
    }

    /// Slots of those that stepped aside, or did not, with their places in line.
    fn in_line(&self, aside: bool) -> impl Iterator<Item = (Place, usize, &Active)> {
        let slots = self.active.iter().enumerate();
        let found = slots.filter_map(|(slot, active)| Some((slot, active.as_ref()?)));
        let found = found.filter(move |(_, active)| active.aside == aside);
        found.map(|(slot, active)| (self.place(active), slot, active))
    }

    fn first_aside(&self) -> Option<(Place, usize)> {
        let aside = self.in_line(true);
        aside.map(|(place, slot, _)| (place, slot)).min()
    }

    /// Whether a job is due behind a sequence that waits to come back.
    pub(super) fn is_behind_one_aside(&self, job: &Job) -> bool {
        let due = self.shared.due(job.submitted, job.priority);
        self.first_aside().is_some_and(|(first, _)| first.0 <= due)
    }

    /// The tokens that a job needs room for, now and in the end.
    pub(super) fn span(&self, job: &Job) -> Span {
        match &job.work {
            // Else prefixes would give way to pages that it may never fill.
            Work::Generate { request, .. } => Span {
                now: (request.prompt.len() + STEPS_AHEAD).min(job.tokens),
                most: job.tokens,
            },
            _ => Span::whole(job.tokens),
        }
    }

    /// Pages that are left to those that run where another one joins them.
    pub(super) fn margin(&self) -> usize {
        self.in_line(false).count().div_ceil(CALM)
    }

    /// How long prefixes may give way to one that joins, where others decode: a part of what they may wait,
    /// which belongs to prompts that are fed where there are some.
    pub(super) fn giving_way(&self) -> Duration {
        match self.feeding.is_empty() {
            true => turns::slice(Some(self.step_took), 1).mul_f64(GIVING_WAY),
            false => ADMITTING,
        }
    }

    /// Gives every sequence that decodes the pages of its next steps, the first in line first; whoever
    /// is left without steps aside.
    pub(super) fn make_room(&mut self) -> Result<()> {
        while let Some((place, slot, tokens)) = self.next_lacking() {
            let Some(active) = self.active[slot].as_mut() else {
                continue;
            };
            if active.sequence.grow(&mut *self.backend, tokens)? {
                self.grown += 1;
            } else if !self.backend.is_settled() {
                // Whoever has ended meanwhile leaves pages.
                self.deliver(true)?;
            } else if !self.give_way(place, true)? {
                self.step_aside(slot)?;
            }
        }
        Ok(())
    }

    fn next_lacking(&self) -> Option<(Place, usize, usize)> {
        let decoding = self
            .in_line(false)
            .filter(|(_, _, active)| active.decodes());
        let tokens = decoding.map(|(place, slot, active)| (place, slot, active.next_tokens()));
        let lacking = tokens.filter(|(_, slot, tokens)| {
            let active = self.active[*slot].as_ref();
            active.is_some_and(|active| active.sequence.lacks(*tokens) > 0)
        });
        lacking.min()
    }

    /// What becomes of a prompt that cannot be fed yet: it may lack pages.
    pub(super) fn wait_for_pages(&mut self, slot: usize) -> Result<()> {
        let active = self.active[slot].as_ref();
        let Some(active) = active.filter(|active| active.sequence.is_short()) else {
            return Ok(());
        };
        let place = self.place(active);
        if !self.pool.is_tight() {
            return Ok(());
        }
        while !self.backend.is_settled() {
            self.deliver(true)?;
        }
        match self.give_way(place, true)? {
            true => Ok(()),
            false => self.step_aside(slot),
        }
    }

    /// Makes a move for whoever has this place in line: one behind it gives up a page, or steps aside
    /// where it may, which needs all steps to be settled. Says whether there was one left to make.
    fn give_way(&mut self, place: Place, may_stop: bool) -> Result<bool> {
        let last = |aside: bool, has: fn(&Active) -> bool| {
            let behind = self.in_line(aside).filter(|(other, ..)| *other > place);
            let able = behind.filter(|(.., active)| has(active));
            able.map(|(place, slot, _)| (place, slot)).max()
        };
        if let Some((_, slot)) = last(true, |active| active.sequence.own_pages() > 0) {
            self.put_aside(slot)?;
        } else if let Some((_, slot)) = last(false, |_| true).filter(|_| may_stop) {
            self.step_aside(slot)?;
        } else if let Some((_, slot)) = last(true, |active| active.sequence.n_pages() > 0) {
            self.put_aside(slot)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Leaves the sequence in `slot` out of all that goes on; its pages stay until they are wanted.
    fn step_aside(&mut self, slot: usize) -> Result<()> {
        self.backend.pause(slot)?;
        if let Some(active) = self.active[slot].as_mut() {
            active.aside = true;
            self.moved += 1;
            self.now.done.preemptions += 1;
        }
        Ok(())
    }

    /// Moves a page of the sequence in `slot` to the host's memory. An error is that sequence's.
    fn put_aside(&mut self, slot: usize) -> Result<()> {
        let Some(mut active) = self.active[slot].take() else {
            return Ok(());
        };
        self.moved += 1;
        let filled = active.filled();
        match active.sequence.put_aside(&mut *self.backend, filled) {
            Ok(()) => self.active[slot] = Some(active),
            Err(e) => return self.drop_failed(slot, active, e),
        }
        Ok(())
    }

    fn drop_failed(&mut self, slot: usize, active: Active, error: Error) -> Result<()> {
        self.feeding.retain(|other| *other != slot);
        active.fail(&mut *self.backend, error)
    }

    /// Takes back those that stepped aside, the first in line first, as far as there is room.
    pub(super) fn come_back(&mut self) -> Result<()> {
        while let Some((place, slot)) = self.first_aside() {
            let Some(active) = self.active[slot].as_ref() else {
                return Ok(());
            };
            let wanted = active.sequence.lacks_back(active.next_tokens());
            let others = self.in_line(true).filter(|(other, ..)| *other > place);
            let movable: usize = others.map(|(.., other)| other.sequence.own_pages()).sum();
            let room = self.pool.available().1 + movable;
            // Where nobody runs, all there is is for the first in line.
            let runs = self.in_line(false).next().is_some();
            if runs && room < wanted + self.margin() {
                return Ok(());
            }
            if !self.bring_back(place, slot)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Brings back the pages of the sequence in `slot`, which goes on then. Says whether there was room.
    fn bring_back(&mut self, place: Place, slot: usize) -> Result<bool> {
        while let Some(mut active) = self.active[slot].take() {
            let left = active.sequence.n_aside();
            if left == 0 {
                active.aside = false;
                self.backend.set_paused(slot, false);
                self.active[slot] = Some(active);
                return Ok(true);
            }
            self.moved += 1;
            match active.sequence.bring_back(&mut *self.backend) {
                Ok(true) => self.active[slot] = Some(active),
                Err(e) => self.drop_failed(slot, active, e)?,
                Ok(false) => {
                    self.active[slot] = Some(active);
                    if self.give_way(place, false)? {
                        continue;
                    }
                    if self.in_line(false).next().is_some() {
                        return Ok(false);
                    }
                    let error = Error::Internal(format!("no room for {left} pages"));
                    if let Some(active) = self.active[slot].take() {
                        self.drop_failed(slot, active, error)?;
                    }
                }
            }
        }
        Ok(true)
    }
}
