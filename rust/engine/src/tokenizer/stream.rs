//! Tokens to text, piece by piece: a character whose bytes are spread over tokens comes out whole.
use super::Tokenizer;
use crate::error::Result;

/// Turns tokens into text as they come. It never gives out a part of a character: bytes that may
/// still become one wait for the next token. Bytes that cannot are U+FFFD, one for each maximal
/// invalid sequence, so the concatenation equals [`String::from_utf8_lossy`] of all bytes.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// The start of a character, at most three bytes.
    pending: Vec<u8>,
    skip_special: bool,
    strip_space: bool,
}

impl Decoder {
    /// A decoder for the start of a text: it drops the space that SentencePiece puts in front.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Decoder {
            pending: Vec::new(),
            skip_special,
            strip_space: tokenizer.add_space_prefix(),
        }
    }

    /// A decoder for what follows a prompt: nothing is dropped in front.
    pub fn continuation(skip_special: bool) -> Self {
        Decoder {
            pending: Vec::new(),
            skip_special,
            strip_space: false,
        }
    }

    /// The text that `id` completes; often empty in the middle of a character.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `id` is no token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        if self.skip_special && tokenizer.is_special(id) {
            return tokenizer.checked_piece(id).map(|_| String::new());
        }
        self.push_spelled(tokenizer, id)
    }

    /// [`Decoder::push`], by which a control token is text too.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `id` is no token.
    pub fn push_spelled(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        let mut bytes = tokenizer.checked_piece(id)?;
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let keep = incomplete_tail(&self.pending);
        let end = self.pending.len().saturating_sub(keep);
        let done: Vec<u8> = self.pending.drain(..end).collect();
        Ok(lossy(done))
    }

    /// What was still waiting: U+FFFD where the text ends inside a character.
    pub fn finish(&mut self) -> String {
        lossy(std::mem::take(&mut self.pending))
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
    }
}

/// Bytes at the end that are a valid start of a longer character.
fn incomplete_tail(bytes: &[u8]) -> usize {
    // The last chunk is the only one that can be cut off rather than wrong.
    let Some(last) = bytes.utf8_chunks().last() else {
        return 0;
    };
    let tail = last.invalid();
    match std::str::from_utf8(tail) {
        Err(e) if e.error_len().is_none() => tail.len(),
        _ => 0,
    }
}
