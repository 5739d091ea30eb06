//! Fixed words in a text that comes character by character.

/// What became of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It may be part of a word, or was let out.
    More,
    /// It ended the word of this number.
    Word(usize),
}

/// Looks for the first of some words. None is the beginning of another, and all are short: a
/// character costs at most the length of all of them.
#[derive(Debug, Clone)]
pub(super) struct Finder {
    words: Vec<&'static str>,
    held: String,
}

impl Finder {
    pub fn new(words: Vec<&'static str>) -> Self {
        Self {
            words,
            held: String::new(),
        }
    }

    /// Takes a character; what is certain to be in no word goes to `free`.
    pub fn push(&mut self, c: char, free: &mut String) -> Seen {
        self.held.push(c);
        while !self.held.is_empty() {
            if self.words.iter().any(|w| w.starts_with(&self.held)) {
                let found = self.words.iter().position(|w| *w == self.held);
                let Some(found) = found else {
                    return Seen::More;
                };
                self.held.clear();
                return Seen::Word(found);
            }
            free.push(self.held.remove(0));
        }
        Seen::More
    }

    /// Whether anything is held that may be part of a word.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// What was held, which now is in no word.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// What a [`Choice`] makes of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chosen {
    More,
    Word(usize),
    /// Neither white space nor a word.
    Other,
}

/// One of some words, behind any white space.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    words: &'static [&'static str],
    held: String,
}

impl Choice {
    pub fn new(words: &'static [&'static str]) -> Self {
        Self {
            words,
            held: String::new(),
        }
    }

    /// Whether nothing but white space has come.
    pub fn is_fresh(&self) -> bool {
        self.held.is_empty()
    }

    pub fn push(&mut self, c: char) -> Chosen {
        if self.held.is_empty() && c.is_whitespace() {
            return Chosen::More;
        }
        self.held.push(c);
        if let Some(found) = self.words.iter().position(|w| *w == self.held) {
            self.held.clear();
            return Chosen::Word(found);
        }
        match self.words.iter().any(|w| w.starts_with(&self.held)) {
            true => Chosen::More,
            false => Chosen::Other,
        }
    }
}
