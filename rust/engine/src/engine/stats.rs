//! What an engine says of itself: what waits, what runs, what is taken, and what was done so far.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::backend::GraphStats;
use crate::pages::{BlockManager, Places};

/// How often pages that sequences took are published, while the same ones run.
const PUBLISHING: Duration = Duration::from_millis(10);

/// What goes on in an engine, and what was done so far.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Requests that wait for a slot.
    pub queued: usize,
    /// Sequences in slots, and those of them whose prompts are still fed.
    pub running: usize,
    pub feeding: usize,
    pub slots: usize,
    /// Sequences that were preempted and wait for pages, and their pages in the host's memory.
    pub preempted: usize,
    pub pages_swapped_out: usize,
    /// Pages of keys and values.
    pub pages: Places,
    /// Those of layers that see a window, where others see all; none where there are none.
    pub window_pages: Places,
    /// States that layers keep beside them; none where the model has none.
    pub states: Places,
    pub done: Done,
    /// Where there are graphs.
    pub graphs: Option<GraphStats>,
}

/// What an engine's thread has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Done {
    /// Requests for text that were begun, and those of them whose prompt began with tokens that were
    /// kept.
    pub requests: u64,
    pub prefix_hits: u64,
    /// Tokens of prompts that were fed, and those that need not be, since they were kept.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens that were drafted, and those of them that were drawn then.
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
    /// Steps of a sequence that verified such.
    pub draft_rounds: u64,
    /// How often a sequence was preempted since the pages had run out.
    pub preemptions: u64,
    /// Tokens a second over the last [`WINDOW`] in which something ran.
    pub prompt_rate: f64,
    pub generated_rate: f64,
}

/// The part of [`Stats`] that the engine's thread writes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    pub running: usize,
    pub feeding: usize,
    pub preempted: usize,
    pub pages_swapped_out: usize,
    pub pages: Places,
    pub window_pages: Places,
    pub done: Done,
}

/// How long the past is that rates are of.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The past is kept in parts of this length.
const PART: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    took: Duration,
    prompt: u64,
    generated: u64,
}

impl Part {
    fn add(&mut self, other: Part) {
        self.took += other.took;
        self.prompt += other.prompt;
        self.generated += other.generated;
    }
}

/// Counts tokens, and how many they were a second of late.
#[derive(Debug, Default)]
pub struct Rates {
    parts: VecDeque<Part>,
    whole: Part,
}

impl Rates {
    /// Notes tokens of prompts and generated ones, and the time that they took together; no time in
    /// which nothing ran.
    pub fn note(&mut self, took: Duration, prompt: u64, generated: u64) {
        let new = Part {
            took,
            prompt,
            generated,
        };
        self.whole.add(new);
        match self.parts.back_mut().filter(|part| part.took < PART) {
            Some(part) => part.add(new),
            None => self.parts.push_back(new),
        }
        // What is left is as long as the window, or all that there was.
        while let Some(oldest) = self.parts.front() {
            match self.whole.took.checked_sub(oldest.took) {
                Some(rest) if rest >= WINDOW => {
                    self.whole.took = rest;
                    self.whole.prompt -= oldest.prompt;
                    self.whole.generated -= oldest.generated;
                    self.parts.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Tokens of prompts and generated ones a second.
    pub fn now(&self) -> (f64, f64) {
        let seconds = self.whole.took.as_secs_f64();
        let rate = |tokens: u64| match seconds > 0.0 {
            true => tokens as f64 / seconds,
            false => 0.0,
        };
        (rate(self.whole.prompt), rate(self.whole.generated))
    }
}

/// Sequences in slots, those of them that were preempted, those that are fed, and how many were admitted
/// so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub active: usize,
    pub preempted: usize,
    pub feeding: usize,
    pub admitted: u64,
}

/// Makes up what is published of an engine.
#[derive(Default)]
pub struct Publisher {
    now: Now,
    rates: Rates,
    /// How often pages were swapped out, in or read from a file, and how often sequences were given
    /// pages as they grew.
    pub moved: u64,
    pub grown: u64,
    /// The last counts, moves and growths that were published, and when.
    last: Option<(Counts, u64, u64, Instant)>,
    /// When the round began, and what was done by then.
    round: Option<(Instant, Done)>,
}

impl Publisher {
    pub fn done(&mut self) -> &mut Done {
        &mut self.now.done
    }

    /// A round begins, in which something runs.
    pub fn begin(&mut self) {
        self.round = Some((Instant::now(), self.now.done));
    }

    /// It is over.
    pub fn end(&mut self) {
        if let Some((begun, before)) = self.round.take() {
            let done = &self.now.done;
            self.rates.note(
                begun.elapsed(),
                done.prompt_tokens - before.prompt_tokens,
                done.generated_tokens - before.generated_tokens,
            );
        }
    }

    /// What goes on now. Where the pages are is looked up only when they may have moved, and not in every
    /// step of many sequences that grow.
    pub fn publish(&mut self, pool: &BlockManager, counts: Counts) -> Now {
        let is_new = self.last.is_none_or(|(before, moved, grown, at)| {
            (before, moved) != (counts, self.moved)
                || (grown != self.grown && at.elapsed() > PUBLISHING)
        });
        if is_new {
            self.last = Some((counts, self.moved, self.grown, Instant::now()));
            self.now.running = counts.active - counts.preempted;
            self.now.feeding = counts.feeding;
            self.now.preempted = counts.preempted;
            self.now.pages_swapped_out = pool.swapped();
            self.now.pages = pool.places();
            self.now.window_pages = pool.windowed_places();
        }
        (self.now.done.prompt_rate, self.now.done.generated_rate) = self.rates.now();
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_last_seconds_in_which_something_ran() {
        let mut rates = Rates::default();
        assert_eq!(rates.now(), (0.0, 0.0));
        let step = Duration::from_millis(10);
        for _ in 0..1000 {
            rates.note(step, 4, 1);
        }
        assert_eq!(rates.now(), (400.0, 100.0));
        // As long again, twice as fast: the old ones are forgotten.
        for _ in 0..1100 {
            rates.note(step, 0, 2);
        }
        let (prompt, generated) = rates.now();
        assert_eq!((prompt, generated), (0.0, 200.0));
        assert!(rates.parts.len() <= 52, "{}", rates.parts.len());
    }
}
