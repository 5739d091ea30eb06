//! The tokens that a draw may choose among, where not all.

/// A set of tokens: bit `id % 32` of word `id / 32`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowed {
    words: Vec<u32>,
}

impl Allowed {
    /// The set with these words; tokens behind them are not in it.
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Words that hold a vocabulary of `n_vocab` tokens.
    pub fn words_of(n_vocab: usize) -> usize {
        n_vocab.div_ceil(32)
    }

    /// Its words, in order.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether it has the token.
    pub fn contains(&self, id: u32) -> bool {
        let word = self.words.get(id as usize / 32);
        word.is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Puts a token into it, where it has room for it.
    pub fn insert(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }
}
