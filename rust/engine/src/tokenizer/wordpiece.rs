//! WordPiece, the tokenizer of BERT: a text becomes words, each of them the longest tokens that it begins
//! with, one behind another. Files spell a token that begins a word with [`SPACE`] in front.
use std::collections::HashMap;
use std::ops::ControlFlow;

use unicode_general_category::{get_general_category, GeneralCategory as G};
use unicode_normalization::UnicodeNormalization;

use super::characters::is_punctuation;
use super::meter::Meter;
use super::spm::SPACE;
use super::vocab::{bad, TokenType, Vocab};
use crate::error::Result;
use crate::gguf::Gguf;

/// Characters of the longest word that is looked for: a longer one is the unknown token.
const LONGEST_WORD: usize = 100;

/// A WordPiece vocabulary.
#[derive(Debug, Clone)]
pub(super) struct WordPiece {
    /// By text, [`SPACE`] included.
    pieces: HashMap<String, u32>,
    /// Bytes of the longest.
    longest: usize,
    unk: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    /// Reads what the file says of words; there must be a token for those that are unknown.
    pub fn from_gguf(gguf: &Gguf, vocab: &Vocab) -> Result<Self> {
        const NORMALIZER: &str = "tokenizer.ggml.normalizer";
        let unk = vocab.unk.ok_or_else(|| {
            bad(
                "tokenizer.ggml.unknown_token_id",
                "missing",
                "a token id, for words that no tokens cover",
            )
        })?;
        let mut pieces = HashMap::with_capacity(vocab.len());
        let mut longest = 0;
        for (id, text) in vocab.texts().filter(|(_, text)| !text.is_empty()) {
            if !matches!(
                vocab.token_type(id),
                TokenType::Control | TokenType::Unknown
            ) {
                longest = longest.max(text.len());
                pieces.insert(text.to_owned(), id);
            }
        }
        // Early files say nothing, and are of models for small letters.
        let lowercase = gguf.get_bool(&format!("{NORMALIZER}.lowercase"))?;
        let strip = gguf.get_bool(&format!("{NORMALIZER}.strip_accents"))?;
        let lowercase = lowercase.unwrap_or(true);
        Ok(Self {
            pieces,
            longest,
            unk,
            lowercase,
            strip_accents: strip.unwrap_or(lowercase),
        })
    }

    /// Appends the tokens of a text.
    pub fn encode(&self, text: &str, meter: &mut Meter, out: &mut Vec<u32>) -> ControlFlow<()> {
        let text = self.normalized(text, meter)?;
        let mut word = String::from(SPACE);
        for c in text.chars().chain([' ']) {
            meter.spend(1)?;
            let alone = is_mark(c);
            if (alone || c.is_whitespace()) && word.len() > SPACE.len_utf8() {
                self.encode_word(&word, meter, out)?;
                word.truncate(SPACE.len_utf8());
            }
            if alone {
                word.push(c);
                self.encode_word(&word, meter, out)?;
                word.truncate(SPACE.len_utf8());
            } else if !c.is_whitespace() {
                word.push(c);
            }
        }
        ControlFlow::Continue(())
    }

    /// Without control characters, with spaces around East Asian ones; where the model wants it without
    /// accents, and in small letters.
    fn normalized(&self, text: &str, meter: &mut Meter) -> ControlFlow<(), String> {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars().filter(|c| !is_dropped(*c)) {
            meter.spend(1)?;
            if is_east_asian(c) {
                clean.extend([' ', c, ' ']);
            } else {
                clean.push(if c.is_whitespace() { ' ' } else { c });
            }
        }
        if self.strip_accents {
            let is_accent = |c: &char| get_general_category(*c) == G::NonspacingMark;
            clean = clean.nfd().filter(|c| !is_accent(c)).collect();
        }
        if self.lowercase {
            clean = clean.chars().flat_map(char::to_lowercase).collect();
        }
        ControlFlow::Continue(clean)
    }

    /// Appends the tokens of a word, which begins with [`SPACE`].
    fn encode_word(&self, word: &str, meter: &mut Meter, out: &mut Vec<u32>) -> ControlFlow<()> {
        let before = out.len();
        let mut rest = word;
        if word.chars().count() > LONGEST_WORD.saturating_add(1) {
            out.push(self.unk);
            return ControlFlow::Continue(());
        }
        while !rest.is_empty() {
            meter.spend(1)?;
            let ends = rest
                .char_indices()
                .map(|(at, c)| at.saturating_add(c.len_utf8()));
            let ends = ends.take_while(|end| *end <= self.longest);
            let ends: Vec<usize> = ends.collect();
            // What begins a word begins nothing in its middle.
            let begins = rest.len() == word.len() || !rest.starts_with(SPACE);
            let pieces = ends.iter().rev().filter(|_| begins);
            let mut known = pieces.filter_map(|end| {
                let (front, more) = rest.split_at_checked(*end)?;
                Some((self.pieces.get(front)?, more))
            });
            match known.next() {
                Some((id, more)) => {
                    out.push(*id);
                    rest = more;
                }
                // Of a word all is known, or nothing.
                None => {
                    out.truncate(before);
                    out.push(self.unk);
                    break;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// A word by itself.
fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation() || is_punctuation(c)
}

/// Control characters but for those that are white space in any text, and what stands for no character.
fn is_dropped(c: char) -> bool {
    let is_control = || {
        matches!(
            get_general_category(c),
            G::Control | G::Format | G::PrivateUse
        )
    };
    c == '\u{FFFD}' || !matches!(c, '\t' | '\n' | '\r') && is_control()
}

/// The ranges that the published tokenizers take for Chinese.
fn is_east_asian(c: char) -> bool {
    matches!(
        c,
        '\u{4E00}'..='\u{9FFF}'
            | '\u{3400}'..='\u{4DBF}'
            | '\u{20000}'..='\u{2A6DF}'
            | '\u{2A700}'..='\u{2B73F}'
            | '\u{2B740}'..='\u{2B81F}'
            | '\u{2B920}'..='\u{2CEAF}'
            | '\u{F900}'..='\u{FAFF}'
            | '\u{2F800}'..='\u{2FA1F}'
    )
}
