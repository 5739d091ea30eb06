//! Decides what to do next: a pure function from the state of an engine to a [`Step`], which is data. It
//! knows no backend, thread or clock; an executor shows it the [`State`], carries out the step and asks
//! again.
//!
//! All requests are in one line: the one due first ([`policy`]) is admitted first, gets pages first and
//! is preempted last. If a sequence lacks a page for its next step, the last in line is preempted: it
//! keeps its slot, its states and its position, and its pages are swapped out to host memory one by one
//! as others need the room. No sequence is preempted for one behind it, and none behind it is admitted
//! before it is swapped back in. So the first in line always progresses, and each sequence eventually is
//! first.
//!
//! [`policy`]: super::policy

use super::policy::worth_waiting;
use crate::backend::{PAGE_TOKENS, ROUND_ROWS};
use crate::pages::{Budget, Demand, Salt};

/// A place in line: when it is due, then how many were admitted before it.
pub type Place = (i64, u64);

/// Steps within which a sequence that is admitted or swapped in is not to be preempted again: as many
/// running sequences take a page on average.
const CALM: usize = 4;

/// How far a round has come. A round ends with a decode step, or with a prefill where nobody decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    #[default]
    Admit,
    SwapIn,
    Forward,
}

/// The first request of the queue.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub due: i64,
    pub demand: Demand,
    /// How many sequences are to take their first step together with it; 0: it waits for none.
    pub gang: usize,
    /// Whether the host's memory that it needs could not be had.
    pub refused: bool,
}

/// What a sequence computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A prompt, which decodes once it is fed.
    Prefill,
    /// A text whose logits are wanted. It has passes of its own.
    Text,
    /// A text that is embedded. Several have a pass together.
    Embed,
    Decode,
}

/// A sequence in a slot.
#[derive(Debug, Clone)]
pub struct Seq<'a> {
    pub slot: usize,
    pub place: Place,
    /// When the next chunk of its prompt is due.
    pub turn: i64,
    pub phase: Phase,
    pub cancelled: bool,
    /// Whether it was preempted and is not swapped in yet.
    pub preempted: bool,
    /// As in [`Waiting`], until they start.
    pub gang: usize,
    /// Whether its prefill has begun, and whether what is kept of its prompt was fetched.
    pub begun: bool,
    pub ready: bool,
    pub prompt: &'a [u32],
    pub salt: Salt,
    /// Tokens that were fed, those that are left, and how many of these one pass may have.
    pub position: usize,
    pub rest: usize,
    pub most: usize,
    /// Pages on the device, those of them that nobody else reads, and pages that were swapped out.
    pub pages: usize,
    pub own_pages: usize,
    pub swapped_pages: usize,
    /// Pages that it lacks for its next step; once it was preempted those swapped out included.
    pub lacks: usize,
    /// Pages that it lacks for what was found of its prompt.
    pub short: usize,
}

/// What a step depends on.
#[derive(Debug, Clone)]
pub struct State<'a> {
    pub stage: Stage,
    /// The first of the queue, where one may be admitted now.
    pub waiting: Option<Waiting>,
    pub sequences: Vec<Seq<'a>>,
    pub budget: Budget,
    /// Whether no step is queued whose tokens are still to come.
    pub settled: bool,
    /// Whether a chunk was fed since the last decode step, and whether there is time for another one.
    pub fed: bool,
    pub time_left: bool,
    /// Whose prefix is still being fetched, though the pass has waited for it.
    pub stalled: Option<usize>,
}

/// What a step may have at most.
pub struct Limits<'a> {
    pub slots: usize,
    /// Rows of a chunk of such a sequence in a pass of `wanted` rows and beside a step of so many
    /// sequences: `chunk(sequence, wanted, stepping)`.
    pub chunk: &'a dyn Fn(&Seq<'_>, usize, usize) -> usize,
    /// Whether a pass over prompts has room for a step of so many sequences.
    pub beside: &'a dyn Fn(usize) -> bool,
    /// Rows of a step that verifies drafts of several sequences.
    pub draft_rows: usize,
}

/// Why a sequence ends that did not end itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Cancelled,
    /// It waits for others of its gang for which there are no pages.
    GangTooLarge,
    /// It was preempted, and its pages do not fit though nobody else runs.
    NoRoom,
}

/// A part of a prompt or text to be fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub slot: usize,
    pub rows: usize,
    /// Whether the prompt ends with it.
    pub last: bool,
}

/// What is kept of a prompt, to be brought to its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    pub slot: usize,
    /// Whether the pass begins with this prompt and waits for it.
    pub first: bool,
    /// Sequences that the pass is a decode step of, too.
    pub stepping: usize,
}

/// What is done next, in the order of its fields. Sequences are named by their slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// How far the round has come with it.
    pub stage: Stage,
    /// The waiting request gets a slot, and so many pages of the host's memory are reserved.
    pub admit: Option<usize>,
    /// The waiting request is refused, with the rest of its gang.
    pub refuse: bool,
    pub finish: Vec<(usize, Reason)>,
    /// The tokens of queued steps are waited for.
    pub drain: bool,
    pub preempt: Vec<usize>,
    /// Pages that go to the host's memory, and that come back.
    pub swap_out: Vec<(usize, usize)>,
    pub swap_in: Vec<(usize, usize)>,
    /// Goes on: all its pages are there.
    pub resume: Option<usize>,
    /// Gets so many pages more for its next step.
    pub grow: Vec<(usize, usize)>,
    /// Sequences that are to begin together do so.
    pub start_gang: bool,
    pub fetch: Option<Fetch>,
    /// One pass, of chunks, beside a decode step where there is one.
    pub prefill: Vec<Chunk>,
    pub decode: Vec<usize>,
    /// Rows that drafts may have in it together.
    pub draft_rows: usize,
}

impl Step {
    fn at(stage: Stage) -> Self {
        Self {
            stage,
            ..Self::default()
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::at(self.stage)
    }
}

/// The next step; empty where the round is over, or where all wait for others to come.
pub fn schedule(state: &State<'_>, limits: &Limits<'_>) -> Step {
    let admission = match (state.stage, &state.waiting) {
        (Stage::Admit, Some(waiting)) => state.admit(waiting),
        _ => None,
    };
    admission
        .or_else(|| state.cancel())
        .or_else(|| state.swap_in())
        .or_else(|| state.start_gang(limits))
        .or_else(|| state.prefill(limits))
        .unwrap_or_else(|| state.decode(limits))
}

impl<'a> State<'a> {
    fn running(&self) -> impl Iterator<Item = &Seq<'a>> + Clone {
        self.sequences.iter().filter(|seq| !seq.preempted)
    }

    fn preempted(&self) -> impl Iterator<Item = &Seq<'a>> {
        self.sequences.iter().filter(|seq| seq.preempted)
    }

    fn decoding(&self) -> impl Iterator<Item = &Seq<'a>> + Clone {
        let gathers = self.gathers();
        let decoding = self.running().filter(|seq| seq.phase == Phase::Decode);
        decoding.filter(move |_| !gathers)
    }

    /// Whether sequences that are to begin together wait for others of them.
    fn gathers(&self) -> bool {
        self.sequences.iter().any(|seq| seq.gang > 0)
    }

    /// Pages that are left to those that run where another one joins them.
    fn margin(&self) -> usize {
        self.running().count().div_ceil(CALM)
    }

    fn admit(&self, waiting: &Waiting) -> Option<Step> {
        if self.preempted().any(|seq| seq.place.0 <= waiting.due) {
            return None;
        }
        let host = self.budget.host_pages_for(&waiting.demand, self.margin());
        if let Some(host) = host.filter(|_| !waiting.refused) {
            return Some(Step {
                admit: Some(host),
                ..Step::default()
            });
        }
        // Those that wait for it would wait for ever.
        (waiting.gang > 0 && self.gathers()).then(|| {
            let gang = self.sequences.iter().filter(|seq| seq.gang > 0);
            Step {
                refuse: true,
                finish: gang.map(|seq| (seq.slot, Reason::GangTooLarge)).collect(),
                ..Step::default()
            }
        })
    }

    fn cancel(&self) -> Option<Step> {
        let cancelled = self.sequences.iter().filter(|seq| seq.cancelled);
        let finish: Vec<_> = cancelled.map(|seq| (seq.slot, Reason::Cancelled)).collect();
        (!finish.is_empty()).then(|| Step {
            finish,
            ..Step::at(self.stage)
        })
    }

    /// Swaps the first one in line in that was preempted, as far as there is room.
    fn swap_in(&self) -> Option<Step> {
        if self.stage > Stage::SwapIn {
            return None;
        }
        let first = self.preempted().min_by_key(|seq| seq.place)?;
        let others = self.preempted().filter(|seq| seq.place > first.place);
        let room = self.budget.available + others.map(|seq| seq.own_pages).sum::<usize>();
        // Where nobody runs, all there is is for the first in line.
        let runs = self.running().next().is_some();
        if runs && room < first.lacks + self.margin() {
            return None;
        }
        let mut step = Step::at(Stage::SwapIn);
        let pages = first.swapped_pages.min(self.budget.available);
        if first.swapped_pages == 0 {
            step.resume = Some(first.slot);
        } else if pages > 0 {
            step.swap_in.push((first.slot, pages));
        } else if !self.reclaim(first.place, 1, false, &mut step) {
            if runs {
                return None;
            }
            step.finish.push((first.slot, Reason::NoRoom));
        }
        Some(step)
    }

    /// Lets sequences that are to begin together take their first step once all have come so far.
    fn start_gang(&self, limits: &Limits<'_>) -> Option<Step> {
        let gang = self.sequences.iter().filter(|seq| seq.gang > 0);
        let wanted = gang.clone().map(|seq| seq.gang).max()?.min(limits.slots);
        let ready = gang.filter(|seq| seq.phase == Phase::Decode && !seq.preempted);
        (ready.count() >= wanted).then(|| Step {
            start_gang: true,
            ..Step::at(Stage::Forward)
        })
    }

    /// Whose chunk is next beside `chosen` ones: of the sequence that is due, or of the one that computes
    /// already what that would only compute again.
    fn next_prefill(&self, chosen: &[Chunk]) -> Option<&Seq<'a>> {
        let feeding = || self.running().filter(|seq| seq.phase != Phase::Decode);
        let due = |seq: &&Seq<'_>| (seq.turn, seq.place.1);
        if chosen.is_empty() {
            let next = feeding().min_by_key(due)?;
            return Some(self.computes_the_same(next).unwrap_or(next));
        }
        let is_chosen = |slot| chosen.iter().any(|chunk| chunk.slot == slot);
        let phase = feeding().find(|seq| is_chosen(seq.slot))?.phase;
        let others = feeding().filter(|seq| seq.phase == phase && !is_chosen(seq.slot));
        let mut others: Vec<_> = others.collect();
        others.sort_by_key(due);
        let mut free = others.into_iter();
        free.find(|next| self.computes_the_same(next).is_none())
    }

    /// Whose pages the prompt `next`, of which nothing was fed, does better to wait for.
    fn computes_the_same(&self, next: &Seq<'_>) -> Option<&Seq<'a>> {
        if next.begun || !self.budget.shares {
            return None;
        }
        let same = self.running().filter(|other| {
            let feeds = other.phase != Phase::Decode && other.slot != next.slot;
            let (known, computed) = (next.position, other.position);
            feeds
                && other.begun
                && other.salt == next.salt
                && worth_waiting(next.prompt, known, other.prompt, computed, PAGE_TOKENS)
        });
        same.min_by_key(|other| other.place.1)
    }

    fn prefill(&self, limits: &Limits<'_>) -> Option<Step> {
        let first = self.next_prefill(&[])?;
        let decoding = self.decoding().count();
        let stepping = match first.phase == Phase::Prefill && (limits.beside)(decoding) {
            true => decoding,
            false => 0,
        };
        // Where nobody decodes, requests that came or were cancelled are looked after first.
        if self.fed && (stepping > 0 || decoding == 0 || !self.time_left) {
            return None;
        }
        let mut step = Step::at(Stage::Forward);
        // What steps gave goes out first, and no chunk is timed with them.
        if decoding > 0 && !self.settled {
            step.drain = true;
            return Some(step);
        }
        if stepping > 0 && !self.make_room(&mut step) {
            return Some(step);
        }
        if first.short > self.budget.available && self.budget.tight && !first.ready {
            if !self.settled {
                step.drain = true;
                return Some(step);
            }
            if !self.reclaim(first.place, 1, true, &mut step) {
                step.preempt.push(first.slot);
                return Some(step);
            }
        }
        let (mut rows, mut next) = (0, Some(first));
        while let Some(seq) = next {
            let alone = step.prefill.is_empty();
            if seq.phase == Phase::Prefill && !seq.ready {
                // What is chosen does not wait for what has to be fetched of another one.
                if alone || self.stalled != Some(seq.slot) {
                    step.fetch = Some(Fetch {
                        slot: seq.slot,
                        first: alone,
                        stepping,
                    });
                    step.prefill.clear();
                    return Some(step);
                }
                break;
            }
            let room = (limits.chunk)(seq, rows + seq.most, stepping);
            let room = room.saturating_sub(rows).min(seq.most);
            let n = match alone {
                true => room.max(1),
                // Nobody's first token waits for a part of another's prompt.
                false if stepping == 0 && room < seq.rest => 0,
                false => room,
            };
            if n == 0 {
                break;
            }
            step.prefill.push(Chunk {
                slot: seq.slot,
                rows: n,
                last: n == seq.rest,
            });
            rows += n;
            next = match n == seq.most && seq.phase != Phase::Text {
                true => self.next_prefill(&step.prefill),
                false => None,
            };
        }
        if stepping > 0 {
            step.decode = self.decoding().map(|seq| seq.slot).collect();
        }
        Some(step)
    }

    fn decode(&self, limits: &Limits<'_>) -> Step {
        let mut step = Step::at(Stage::Forward);
        if self.make_room(&mut step) {
            step.decode = self.decoding().map(|seq| seq.slot).collect();
            step.draft_rows = match step.decode.len() {
                0 => 0,
                1 => ROUND_ROWS - 1,
                // The others wait for these rows too.
                n => limits.draft_rows.min(ROUND_ROWS).saturating_sub(n),
            };
        }
        step
    }

    /// Gives sequences that decode the pages of their next step, the first in line first. Says whether
    /// all have them then; if not, the step makes one move for the first that has not.
    fn make_room(&self, step: &mut Step) -> bool {
        let lacking = self.decoding().filter(|seq| seq.lacks > 0);
        let mut lacking: Vec<_> = lacking.collect();
        lacking.sort_by_key(|seq| seq.place);
        let mut left = self.budget.available;
        for seq in lacking {
            if seq.lacks <= left {
                step.grow.push((seq.slot, seq.lacks));
                left -= seq.lacks;
            } else {
                // Sequences that ended meanwhile free their pages.
                step.drain = !self.settled && step.grow.is_empty();
                let moves = self.settled && step.grow.is_empty();
                if moves && !self.reclaim(seq.place, seq.lacks - left, true, step) {
                    step.preempt.push(seq.slot);
                }
                return false;
            }
        }
        true
    }

    /// Makes a move for the sequence at this place in line: one behind it gives up to `pages` pages, or is
    /// preempted where it may be, which needs all steps to be settled. Says whether there was one left to
    /// make.
    fn reclaim(&self, place: Place, pages: usize, may_preempt: bool, step: &mut Step) -> bool {
        let behind = || self.sequences.iter().filter(|seq| seq.place > place);
        let swapped = || behind().filter(|seq| seq.preempted);
        let last = |seq: &&Seq<'_>| seq.place;
        let running = behind().filter(|seq| !seq.preempted && may_preempt);
        if let Some(seq) = swapped().filter(|s| s.own_pages > 0).max_by_key(last) {
            step.swap_out.push((seq.slot, seq.own_pages.min(pages)));
        } else if let Some(seq) = running.max_by_key(last) {
            step.preempt.push(seq.slot);
        } else if let Some(seq) = swapped().filter(|s| s.pages > 0).max_by_key(last) {
            step.swap_out.push((seq.slot, 1));
        } else {
            return false;
        }
        true
    }
}
