//! A request in a slot: its sequence, what has come of it so far, and what its caller is told at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend, LogitsPath, Part, STEPS_AHEAD};
use crate::engine::constrain::Constrained;
use crate::engine::lookup::Lookup;
use crate::engine::pooling::Embedding;
use crate::engine::queue::Shared;
use crate::engine::request::{
    FinishReason, Finished, LengthReason, Outlet, Piece, Request, StoppedBy, Timings, Usage,
};
use crate::engine::scheduler::{Phase, Seq};
use crate::engine::text::TextStream;
use crate::error::{Error, Result};
use crate::pages::format::Content;
use crate::pages::Sequence;

/// The clocks at one token.
#[derive(Clone, Copy)]
pub struct Mark {
    pub at: Instant,
    /// Total time of the engine spent on choosing tokens and making text.
    pub sampling: Duration,
}

/// How a sequence ended.
#[derive(PartialEq)]
pub enum End {
    Stop(StoppedBy),
    Length(LengthReason),
    Cancelled,
}

/// A request in a slot.
pub struct Active {
    pub sequence: Sequence,
    pub cancelled: Arc<AtomicBool>,
    pub submitted: Instant,
    pub priority: i32,
    /// How many were given a slot before it.
    pub number: u64,
    /// Whether it was preempted: it keeps its slot and is left out of all that goes on.
    pub preempted: bool,
    /// When its last chunk was fed; before the first, when it came.
    pub turn: Instant,
    /// When its first chunk was begun.
    pub begun: Option<Instant>,
    /// When the first chunk whose time is asked for was.
    pub timed: Option<Instant>,
    pub task: Task,
}

pub enum Task {
    Generate(Box<Generation>),
    Logits {
        ids: Vec<u32>,
        path: LogitsPath,
        out: Sender<Result<Vec<f32>>>,
    },
    Embed(Box<Embedding>),
}

pub struct Generation {
    pub request: Request,
    pub out: Outlet,
    pub text: TextStream,
    pub first: Option<Mark>,
    pub last: Option<Mark>,
    pub drawn: Vec<u32>,
    pub given: usize,
    /// Where drafts are asked for.
    pub lookup: Option<Lookup>,
    /// Where its text is constrained.
    pub constrained: Option<Constrained>,
    /// Tokens drafted so far, and those of them that were drawn.
    pub drafted: usize,
    pub accepted: usize,
    /// Steps that verified such.
    pub rounds: usize,
    /// How many tokens what drafts has followed, where steps have left it behind.
    pub followed: Option<usize>,
    /// Who wants the keys and values of the prompt.
    pub save: Option<Sender<Result<Content>>>,
}

/// A part of a text that what drafts was left behind in.
pub fn behind(slot: usize, tokens: &[u32], start: usize) -> Part<'_> {
    Part {
        slot,
        tokens,
        start,
        last: false,
        next: None,
    }
}

impl Active {
    pub fn fail(self, backend: &mut dyn Backend, error: Error) -> Result<()> {
        match self.task {
            Task::Generate(g) => {
                g.out.send(Err(error));
            }
            Task::Logits { out, .. } => drop(out.send(Err(error))),
            Task::Embed(text) => text.fail(error),
        }
        self.sequence.close(backend, &[])
    }

    /// The tokens whose keys and values it has computed.
    pub fn known(&self) -> Vec<u32> {
        match &self.task {
            Task::Generate(g) => {
                let mut tokens = g.request.prompt[..self.sequence.position].to_vec();
                // The one drawn last was not fed: a step that was launched ahead may have fed it, or
                // not.
                let fed = g.drawn.split_last().map_or(&[][..], |(_, fed)| fed);
                tokens.extend(fed);
                tokens
            }
            Task::Logits { .. } | Task::Embed(_) => Vec::new(),
        }
    }

    /// Tokens that what drafts was left behind in, and the position of the first; not again.
    pub fn left_behind(&mut self) -> Option<(Vec<u32>, usize)> {
        let Task::Generate(g) = &mut self.task else {
            return None;
        };
        let from = g.followed.take()?;
        let tokens = self.known().get(from..)?.to_vec();
        (!tokens.is_empty()).then_some((tokens, from))
    }

    /// Lets what drafts catch up before others find the keys and values.
    pub fn catch_up(&mut self, backend: &mut dyn Backend) -> Result<()> {
        let slot = self.sequence.slot();
        match self.left_behind().filter(|_| !self.preempted) {
            Some((tokens, start)) => backend.follow(vec![behind(slot, &tokens, start)]),
            None => Ok(()),
        }
    }

    /// Ends its sequence, whose keys and values serve others.
    pub fn close(mut self, backend: &mut dyn Backend) -> Result<()> {
        self.catch_up(backend)?;
        let known = self.known();
        self.sequence.close(backend, &known)
    }

    /// The prompt that it feeds.
    pub fn prompt(&self) -> &[u32] {
        match &self.task {
            Task::Generate(g) => &g.request.prompt,
            Task::Logits { .. } | Task::Embed(_) => &[],
        }
    }

    /// Whether its next tokens may be drafted.
    pub fn drafts(&self) -> bool {
        match &self.task {
            Task::Generate(g) => g.lookup.is_some() || g.constrained.is_some(),
            Task::Logits { .. } | Task::Embed(_) => false,
        }
    }

    /// What follows it, where it decodes and is constrained.
    pub fn constrained(&mut self) -> Option<&mut Constrained> {
        let decodes = self.decodes();
        match &mut self.task {
            Task::Generate(g) => g.constrained.as_mut().filter(|_| decodes),
            Task::Logits { .. } | Task::Embed(_) => None,
        }
    }

    /// How many sequences are to take their first step with it, of which it waits for some.
    pub fn gang(&self) -> usize {
        match &self.task {
            Task::Generate(g) => g.request.together,
            Task::Logits { .. } | Task::Embed(_) => 0,
        }
    }

    /// Notes a chunk that is begun at this time, where its time is asked for.
    pub fn time_from(&mut self, begun: Instant) {
        if let Task::Generate(g) = &self.task {
            if g.request.timed_from <= self.sequence.position {
                self.timed.get_or_insert(begun);
            }
        }
    }

    pub fn phase(&self) -> Phase {
        match &self.task {
            Task::Generate(g) if self.sequence.position == g.request.prompt.len() => Phase::Decode,
            Task::Generate(_) => Phase::Prefill,
            Task::Logits { .. } => Phase::Text,
            Task::Embed(_) => Phase::Embed,
        }
    }

    /// Whether it still has something to be fed before it decodes or ends.
    pub fn feeds(&self) -> bool {
        self.phase() != Phase::Decode
    }

    /// Whether it decodes.
    pub fn decodes(&self) -> bool {
        self.phase() == Phase::Decode && !self.preempted
    }

    /// Tokens that its next steps need room for.
    fn next_tokens(&self) -> usize {
        match &self.task {
            Task::Generate(g) if !self.feeds() => {
                g.request.prompt.len() + g.drawn.len() + STEPS_AHEAD
            }
            _ => 0,
        }
    }

    /// Tokens that may have something in its pages.
    pub fn filled(&self) -> usize {
        match &self.task {
            Task::Generate(g) if !self.feeds() => g.request.prompt.len() + g.drawn.len(),
            // What is fetched of a prompt counts only once all of it is there.
            Task::Generate(_) if !self.sequence.is_ready() => usize::MAX,
            _ => self.sequence.position,
        }
    }

    /// What a scheduler is to know of it.
    pub fn facts(&self, shared: &Shared) -> Seq<'_> {
        let sequence = &self.sequence;
        let position = sequence.position;
        let (rest, most) = match &self.task {
            Task::Generate(g) => {
                let rest = g.request.prompt.len() - position;
                let most = match g.request.timed_from.checked_sub(position) {
                    Some(untimed @ 1..) => untimed.min(rest),
                    _ => rest,
                };
                (rest, most.min(sequence.until_state(g.request.prompt.len())))
            }
            Task::Logits { ids, .. } => (ids.len() - position, ids.len() - position),
            Task::Embed(text) => (text.ids.len() - position, text.ids.len() - position),
        };
        Seq {
            slot: sequence.slot(),
            place: (shared.due(self.submitted, self.priority), self.number),
            turn: shared.due(self.turn, self.priority),
            phase: self.phase(),
            cancelled: self.cancelled.load(Ordering::Relaxed),
            preempted: self.preempted,
            gang: self.gang(),
            begun: self.begun.is_some(),
            ready: sequence.is_ready(),
            prompt: self.prompt(),
            salt: sequence.salt(),
            position,
            rest,
            most,
            pages: sequence.n_pages(),
            own_pages: sequence.own_pages(),
            swapped_pages: sequence.n_swapped(),
            lacks: match self.preempted {
                true => sequence.lacks_swapped_in(self.next_tokens()),
                false => sequence.lacks(self.next_tokens()),
            },
            short: sequence.short(),
        }
    }

    /// The last piece of its text, which says how it ended and what it took, and whose it is; its sequence
    /// beside that. `None` for a request without a text.
    pub fn finish(
        self,
        end: End,
        mut piece: Piece,
        load: f64,
    ) -> (Sequence, Option<(Outlet, Piece)>) {
        let Task::Generate(mut g) = self.task else {
            return (self.sequence, None);
        };
        if end == End::Cancelled {
            piece.text.push_str(&g.text.finish());
        }
        let now = Instant::now();
        let begun = self.begun.unwrap_or(now);
        let timed = self.timed.unwrap_or(now);
        let prompt_done = g.first.map_or(now, |m| m.at);
        let mut timings = Timings {
            load,
            queue: (begun - self.submitted).as_secs_f64(),
            prefill: (prompt_done - timed).as_secs_f64(),
            untimed: g.request.timed_from.max(self.sequence.cached()),
            decoded: g.drawn.len().saturating_sub(1),
            ..Timings::default()
        };
        if let (Some(first), Some(last)) = (g.first, g.last) {
            timings.decode = (last.at - first.at).as_secs_f64();
            timings.sampling = (last.sampling - first.sampling).as_secs_f64();
        }
        let (reason, length_reason, stopped_by) = match end {
            End::Stop(by) => (FinishReason::Stop, None, Some(by)),
            End::Length(why) => (FinishReason::Length, Some(why), None),
            End::Cancelled => (FinishReason::Cancelled, None, None),
        };
        piece.finished = Some(Finished {
            reason,
            length_reason,
            stopped_by,
            usage: Usage {
                prompt: g.request.prompt.len(),
                cached: self.sequence.cached(),
                completion: g.given,
                drafted: g.drafted,
                rounds: g.rounds,
                accepted: g.accepted,
            },
            timings,
        });
        (self.sequence, Some((g.out, piece)))
    }
}
