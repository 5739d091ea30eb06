//! Reasoning with a token budget: when it is spent, only the tokens of the closing marker are allowed.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// How much a model may reason, and how that is set apart from its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Most tokens between the markers.
    pub tokens: usize,
    pub open: String,
    pub close: String,
    /// Whether the prompt ends within reasoning. Else the text has to begin with it.
    pub opened: bool,
}

/// Where a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It may still open reasoning.
    Before,
    /// So many tokens within it.
    Within(usize),
    /// So many tokens of the closing marker were due and came.
    Closing(usize),
    /// There is no more to count.
    Behind,
}

/// Follows the reasoning of one text.
pub struct Reasoning {
    budget: Budget,
    /// The closing marker.
    closing: Vec<u32>,
    /// What was written since the markers could begin.
    text: Vec<u8>,
    state: State,
    /// State and length of the text before each token that was taken.
    before: Vec<(State, usize)>,
}

impl Reasoning {
    /// Of a text that has no token yet.
    pub fn new(budget: Budget, tokenizer: &Arc<Tokenizer>) -> Self {
        let state = match budget.opened {
            true => State::Within(0),
            false => State::Before,
        };
        Self {
            closing: match tokenizer.vocab().id(&budget.close) {
                Some(id) if tokenizer.is_special(id) => vec![id],
                _ => tokenizer.encode_middle(&budget.close),
            },
            budget,
            text: Vec::new(),
            state,
            before: Vec::new(),
        }
    }

    /// The tokens that have to come now, in order; none where any may.
    pub fn due(&self) -> &[u32] {
        let sent = match self.state {
            // A character that is not whole would not be one.
            State::Within(n) if n >= self.budget.tokens && self.is_whole() => 0,
            State::Closing(sent) => sent,
            _ => return &[],
        };
        self.closing.get(sent..).unwrap_or_default()
    }

    /// Whether the text ends with a whole character.
    fn is_whole(&self) -> bool {
        let mut last = self.text.iter().rev().zip(1..=4);
        let first = last.find(|(byte, _)| **byte & 0xc0 != 0x80);
        first.is_none_or(|(byte, found)| match byte.leading_ones() {
            0 => true,
            wanted => found >= wanted,
        })
    }

    /// Goes on by a token that writes `text`.
    pub fn take(&mut self, token: u32, text: &[u8]) {
        let due = self.due().first() == Some(&token);
        self.before.push((self.state, self.text.len()));
        if self.state == State::Behind {
            return;
        }
        self.text.extend(text);
        let ends = self.text.ends_with(self.budget.close.as_bytes());
        self.state = match self.state {
            State::Before => self.opening(),
            State::Within(_) | State::Closing(_) if ends => State::Behind,
            State::Within(_) if due => State::Closing(1),
            State::Closing(sent) if due => State::Closing(sent.saturating_add(1)),
            State::Within(n) => State::Within(n.saturating_add(1)),
            State::Closing(_) | State::Behind => State::Behind,
        };
    }

    /// Where a text is that has not opened reasoning before.
    fn opening(&self) -> State {
        let (text, open) = (self.text.trim_ascii_start(), self.budget.open.as_bytes());
        match (text.starts_with(open), open.starts_with(text)) {
            (true, _) => State::Within(0),
            (false, true) => State::Before,
            (false, false) => State::Behind,
        }
    }

    /// Goes back by `tokens` tokens; says whether so many were taken.
    pub fn back(&mut self, tokens: usize) -> bool {
        let Some(left) = self.before.len().checked_sub(tokens) else {
            return false;
        };
        if let Some((state, len)) = self.before.get(left) {
            self.state = *state;
            self.text.truncate(*len);
        }
        self.before.truncate(left);
        true
    }
}
