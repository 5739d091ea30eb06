//! What a parser says.

use std::collections::HashSet;

use super::json;

/// A part of an answer. Texts and arguments come in fragments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Text(String),
    Reasoning(String),
    /// A call has begun. Calls are numbered from 0 in an answer, and follow one another.
    Begun {
        index: usize,
        /// Nine letters and digits, which is what the strictest template takes.
        id: String,
        name: String,
    },
    /// More of a call's arguments: joined, a JSON object.
    Arguments {
        index: usize,
        delta: String,
    },
    /// The call is whole.
    Ended {
        index: usize,
    },
    /// The call that had begun is none.
    Failed {
        index: usize,
        /// What the model wrote, from the call's marker on.
        text: String,
        reason: String,
    },
}

/// Collects events; fragments that follow one another are joined.
#[derive(Debug)]
pub(super) struct Out {
    events: Vec<Event>,
    seed: u64,
    /// Calls that have begun.
    begun: usize,
    open: Open,
    /// Keys of the open call's arguments.
    keys: HashSet<String>,
}

/// What there is of the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// It has ended, or there is none.
    No,
    Partly,
    /// Nothing is missing. It ends where what follows is what may follow a call. So many bytes of
    /// that had come when it was known.
    Whole(usize),
}

impl Out {
    pub fn new(seed: u64) -> Self {
        Self {
            events: Vec::new(),
            seed,
            begun: 0,
            open: Open::No,
            keys: HashSet::new(),
        }
    }

    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn text(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Event::Text(text)) = self.events.last_mut() {
            text.push_str(more);
        } else {
            self.events.push(Event::Text(more.to_owned()));
        }
    }

    pub fn reasoning(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Event::Reasoning(text)) = self.events.last_mut() {
            text.push_str(more);
        } else {
            self.events.push(Event::Reasoning(more.to_owned()));
        }
    }

    /// A key of the open call's arguments, and what stands before its value; false where it was
    /// there before.
    pub fn key(&mut self, key: &str) -> bool {
        let is_first = self.keys.is_empty();
        if !self.keys.insert(key.to_owned()) {
            return false;
        }
        if !is_first {
            self.arguments(", ");
        }
        self.arguments(&json::quoted(key));
        self.arguments(": ");
        true
    }

    /// The number of the call that is open, or was last.
    fn index(&self) -> usize {
        self.begun.saturating_sub(1)
    }

    /// Calls that have begun.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Whether a call has begun and not ended.
    pub fn is_open(&self) -> bool {
        self.open != Open::No
    }

    /// Whether a call has all that it needs, and has not ended.
    pub fn is_whole(&self) -> bool {
        self.behind().is_some()
    }

    /// Of a call that is whole, how much of what was read is behind it.
    pub fn behind(&self) -> Option<usize> {
        match self.open {
            Open::Whole(behind) => Some(behind),
            Open::No | Open::Partly => None,
        }
    }

    /// A call begins; one that was whole has ended.
    pub fn begin(&mut self, name: &str) {
        self.end();
        self.keys.clear();
        let index = self.begun;
        self.begun = self.begun.saturating_add(1);
        self.open = Open::Partly;
        self.events.push(Event::Begun {
            index,
            id: call_id(self.seed, index),
            name: name.to_owned(),
        });
    }

    pub fn arguments(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        if let Some(Event::Arguments { delta, .. }) = self.events.last_mut() {
            delta.push_str(more);
            return;
        }
        let index = self.index();
        let delta = more.to_owned();
        self.events.push(Event::Arguments { index, delta });
    }

    /// The open call needs no more; so many bytes were read behind it.
    pub fn whole(&mut self, behind: usize) {
        self.open = Open::Whole(behind);
    }

    /// The call that is whole, if there is one, ends.
    pub fn end(&mut self) {
        if self.is_whole() {
            self.open = Open::No;
            let index = self.index();
            self.events.push(Event::Ended { index });
        }
    }

    pub fn fail(&mut self, text: String, reason: &str) {
        self.open = Open::No;
        self.events.push(Event::Failed {
            index: self.index(),
            text,
            reason: reason.to_owned(),
        });
    }
}

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The id of a call: of the seed and its number, mixed as SplitMix64 does (Steele, Lea, Flood 2014).
fn call_id(seed: u64, index: usize) -> String {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(GOLDEN.wrapping_mul((index as u64).wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let mut id = String::with_capacity(9);
    for _ in 0..9 {
        let letter = usize::try_from(z % 62).unwrap_or(0);
        id.push(char::from(LETTERS.get(letter).copied().unwrap_or(b'0')));
        z /= 62;
    }
    id
}
