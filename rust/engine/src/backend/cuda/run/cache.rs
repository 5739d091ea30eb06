//! The lists that are ready, by what they are for.

use std::collections::{HashMap, VecDeque};

use super::capture::capture_failure;
use super::ready::{Ready, Way};
use crate::backend::cuda::driver::launch::Launch;
use crate::backend::cuda::driver::stream::Stream;
use crate::error::Result;

/// Lists that are kept beside decode steps, whose sizes are bounded: those of prompts may be of any
/// number of rows and depend on the span too.
pub const MOST_LISTS: usize = 64;

/// What a list is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A decode step, which draws.
    Step,
    /// A chunk of a prompt whose positions are below `span`; it draws from the `wanted` last rows.
    Chunk { wanted: usize, span: usize },
    /// A part of a prompt whose positions are below `span`, for the logits of all rows.
    Logits { span: usize },
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
            Purpose::Chunk { .. } => format!("a prompt's chunk of {rows} rows"),
            Purpose::Logits { .. } => format!("a pass for the logits of {rows} rows"),
            Purpose::Forced => "the step that logits are forced through".into(),
            Purpose::Rows { .. } => format!("a pass over {rows} rows"),
        }
    }
}

/// Every list that was needed so far and is kept: all decode steps, of the others those that were
/// used last.
#[derive(Debug)]
pub struct Cache {
    known: HashMap<Key, Ready>,
    /// Keys of lists that may go, the one used longest ago first.
    used: VecDeque<Key>,
    most: usize,
}

impl Cache {
    /// None yet; up to `most` are kept beside decode steps.
    pub fn new(most: usize) -> Self {
        Self {
            known: HashMap::new(),
            used: VecDeque::new(),
            most,
        }
    }

    /// The list, where it is ready.
    pub fn get(&self, key: Key) -> Option<&Ready> {
        self.known.get(&key)
    }

    /// The keys of what is ready.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.known.keys().copied()
    }

    /// Makes `launches` ready. Where there are too many lists, the one used longest ago goes:
    /// nobody may have it under way.
    ///
    /// # Errors
    /// What the driver says of a capture, with its cause and what to do.
    pub fn add(&mut self, key: Key, launches: Vec<Launch>, stream: &Stream) -> Result<&Ready> {
        let kept = key.purpose == Purpose::Step;
        let oldest = (!kept && self.used.len() >= self.most)
            .then(|| self.used.pop_front())
            .flatten();
        let gone = oldest.and_then(|oldest| self.known.remove(&oldest));
        let free = match key.way {
            Way::Eager => 0,
            Way::Full | Way::Piecewise => stream.context.memory().map_or(0, |m| m.0),
        };
        let ready = match (gone, key.way) {
            // The instance stays where it is, if the kernels are as many.
            (Some(Ready::Graph(mut graph)), Way::Full) => {
                let updated = graph.update(stream, &launches);
                updated.map(|_| Ready::Graph(graph))
            }
            (_, way) => Ready::new(way, launches, stream),
        };
        let ready = ready.map_err(|e| match key.way {
            Way::Eager => e,
            Way::Full | Way::Piecewise => capture_failure(e, &key.name(), free),
        })?;
        if !kept {
            self.used.push_back(key);
        }
        Ok(self.known.entry(key).insert_entry(ready).into_mut())
    }

    /// Queues the list, where it is ready; says whether it was.
    ///
    /// # Errors
    /// As [`Ready::run`].
    pub fn run(&mut self, key: Key, stream: &Stream) -> Result<bool> {
        let Some(ready) = self.known.get(&key) else {
            return Ok(false);
        };
        if let Some(at) = self.used.iter().position(|used| *used == key) {
            self.used.remove(at);
            self.used.push_back(key);
        }
        ready.run(stream).map(|()| true)
    }
}
