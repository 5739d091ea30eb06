//! The cache of launch lists that are ready to run, by their key.

use std::collections::{HashMap, VecDeque};

use super::capture::capture_failure;
use super::ready::{Ready, Way};
use crate::backend::cuda::driver::graph::Graph;
use crate::backend::cuda::driver::launch::Launch;
use crate::backend::cuda::driver::stream::Stream;
use crate::error::Result;

/// Lists that are kept beside decode steps, whose sizes are bounded: those of prompts may be of any
/// number of rows.
pub const MOST_LISTS: usize = 64;

/// Runs of a list before it is captured: what a first launch sets up is no part of a capture.
pub const WARM_UPS: usize = 2;

/// What a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A decode step, which draws.
    Step,
    /// A decode step up to its draw, for which masks are still made.
    Undrawn,
    /// The draw of such a step.
    Draw,
    /// A decode step that verifies drafts: rows are the host's.
    Round,
    /// The same of so many tokens of each sequence that the model drafts: `rows` are sequences.
    Guessed { drafted: usize },
    /// A chunk of prompts, the last `steps` rows a step beside them; it draws from `wanted` rows.
    Chunk { wanted: usize, steps: usize },
    /// Rows that a drafter was left behind in.
    Follow,
    /// A part of a prompt, for the logits of all rows.
    Logits,
    /// A chunk of a text, for the hidden states of all rows.
    Hidden,
    /// A step through which a token is forced for its logits.
    Forced,
    /// A pass over rows that the caller gives, `out` of which give logits.
    Rows { out: usize },
}

/// What a list is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub purpose: Purpose,
    pub way: Way,
    /// Padding included.
    pub rows: usize,
}

impl Purpose {
    /// Whether it is a step, which padding alone does not change: of few sizes, captured at once and kept.
    pub fn is_step(self) -> bool {
        matches!(
            self,
            Self::Step | Self::Undrawn | Self::Draw | Self::Round | Self::Guessed { .. }
        )
    }

    /// Whether its launches count a step.
    pub fn counts(self) -> bool {
        matches!(
            self,
            Self::Step | Self::Draw | Self::Round | Self::Guessed { .. }
        )
    }
}

impl Key {
    /// A decode step.
    pub fn step(way: Way, rows: usize) -> Self {
        let purpose = Purpose::Step;
        Self { purpose, way, rows }
    }

    /// What it is called in an error.
    pub fn name(&self) -> String {
        let rows = self.rows;
        match self.purpose {
            Purpose::Step => format!("the decode step of {rows} rows"),
            Purpose::Undrawn => format!("the decode step of {rows} rows before its draw"),
            Purpose::Draw => format!("the draw of a decode step of {rows} rows"),
            Purpose::Round => format!("the step of {rows} rows that verifies drafts"),
            Purpose::Guessed { drafted } => {
                format!("the round of {rows} sequences that drafts {drafted} tokens of each")
            }
            Purpose::Chunk { .. } => format!("a prompt's chunk of {rows} rows"),
            Purpose::Follow => format!("{rows} rows that a drafter follows"),
            Purpose::Logits => format!("a pass for the logits of {rows} rows"),
            Purpose::Hidden => format!("a text's chunk of {rows} rows for hidden states"),
            Purpose::Forced => "the step that logits are forced through".into(),
            Purpose::Rows { .. } => format!("a pass over {rows} rows"),
        }
    }
}

/// A list, and how often it ran since it is what it is.
#[derive(Debug)]
struct Entry {
    ready: Ready,
    runs: usize,
}

/// Every list that was needed so far and is kept: all decode steps, of the others those that were
/// used last.
#[derive(Debug)]
pub struct Cache {
    known: HashMap<Key, Entry>,
    /// Keys of lists that may go, the one used longest ago first.
    used: VecDeque<Key>,
    most: usize,
    /// A graph that went: the next capture makes it its own.
    spare: Option<Graph>,
}

impl Cache {
    /// None yet; up to `most` are kept beside decode steps.
    pub fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            used: VecDeque::new(),
            most,
            spare: None,
        }
    }

    /// The list, where it is ready.
    pub fn get(&self, key: Key) -> Option<&Ready> {
        self.known.get(&key).map(|entry| &entry.ready)
    }

    /// The keys of what is ready.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.known.keys().copied()
    }

    /// Makes `launches` ready. Where there are too many lists, the one used longest ago goes:
    /// nobody may have it under way.
    ///
    /// # Errors
    /// The driver's error of a capture, with its cause and the remedy.
    pub fn add(&mut self, key: Key, launches: Vec<Launch>, stream: &Stream) -> Result<&Ready> {
        self.make_room(key);
        self.make(key, launches, stream)
    }

    /// Makes a list ready of which a run changes more than the number of a step, so that a capture's
    /// warm-up has to be work that is to be done: `launches` run as they are until
    /// [`Cache::capture_warm`] captures them.
    pub fn add_cold(&mut self, key: Key, launches: Vec<Launch>) {
        self.make_room(key);
        self.insert(key, Ready::List(launches));
    }

    /// Captures a list that is to be a graph and has run often enough as it is; returns whether it did.
    ///
    /// # Errors
    /// As [`Cache::add`]; the list then stays as it is.
    pub fn capture_warm(&mut self, key: Key, stream: &Stream) -> Result<bool> {
        let launches = match self.known.get(&key) {
            Some(Entry {
                ready: Ready::List(launches),
                runs: WARM_UPS..,
            }) if key.way != Way::Eager => launches.clone(),
            _ => return Ok(false),
        };
        self.make(key, launches, stream).map(|_| true)
    }

    /// Takes a list away; its graph, where it is one, is the next capture's.
    fn set_aside(&mut self, key: Key) {
        if let Some(Ready::Graph(graph)) = self.known.remove(&key).map(|entry| entry.ready) {
            self.spare = Some(graph);
        }
    }

    fn make_room(&mut self, key: Key) {
        if !key.purpose.is_step() && self.used.len() >= self.most {
            if let Some(oldest) = self.used.pop_front() {
                self.set_aside(oldest);
            }
        }
    }

    fn make(&mut self, key: Key, launches: Vec<Launch>, stream: &Stream) -> Result<&Ready> {
        let spare = match (key.purpose.is_step(), key.way) {
            (true, _) | (_, Way::Eager | Way::Piecewise) => None,
            (false, Way::Full) => self.spare.take(),
        };
        let free = match key.way {
            Way::Eager => 0,
            Way::Full | Way::Piecewise => stream.context.memory().map_or(0, |m| m.0),
        };
        let ready = match spare {
            // The instance stays where it is, if the kernels are as many.
            Some(mut graph) => {
                let updated = graph.update(stream, &launches);
                updated.map(|_| Ready::Graph(graph))
            }
            None => Ready::new(key.way, launches, stream),
        };
        let ready = ready.map_err(|e| match key.way {
            Way::Eager => e,
            Way::Full | Way::Piecewise => capture_failure(e, &key.name(), free),
        })?;
        Ok(self.insert(key, ready))
    }

    fn insert(&mut self, key: Key, ready: Ready) -> &Ready {
        if !key.purpose.is_step() && !self.used.contains(&key) {
            self.used.push_back(key);
        }
        let entry = Entry { ready, runs: 0 };
        &self.known.entry(key).insert_entry(entry).into_mut().ready
    }

    /// Queues the list if it is ready; returns whether it was.
    ///
    /// # Errors
    /// As [`Ready::run`].
    pub fn run(&mut self, key: Key, stream: &Stream) -> Result<bool> {
        let Some(entry) = self.known.get_mut(&key) else {
            return Ok(false);
        };
        entry.runs += 1;
        if let Some(at) = self.used.iter().position(|used| *used == key) {
            self.used.remove(at);
            self.used.push_back(key);
        }
        entry.ready.run(stream).map(|()| true)
    }
}
