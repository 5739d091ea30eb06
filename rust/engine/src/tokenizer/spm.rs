//! SentencePiece's BPE: every character is a symbol, pairs merge by the score of their token.
//! What no token covers is spelled in bytes, or is the unknown token where there are none.
use std::collections::HashMap;
use std::ops::ControlFlow;

use super::merge::{parts, Merge, Merger, NONE};
use super::meter::Meter;
use super::vocab::{bad, TokenType, Vocab};
use crate::error::Result;
use crate::gguf::Gguf;

pub(super) const SCORES: &str = "tokenizer.ggml.scores";

/// U+2581, which stands for a space.
pub(super) const SPACE: char = '▁';

/// The text with [`SPACE`] for every space, of which one more is put in `front`.
pub(super) fn escape(text: &str, front: bool) -> String {
    let mut escaped = String::with_capacity(text.len().saturating_add(8));
    if front {
        escaped.push(SPACE);
    }
    escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
    escaped
}

/// The pieces of a SentencePiece vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Spm {
    /// Text to (rank, id); the best score has rank 0, equal scores an equal rank.
    pieces: HashMap<String, (u32, u32)>,
    longest: usize,
    bytes: Option<Vec<u32>>,
    unk: Option<u32>,
}

/// The byte that a token such as `<0x0A>` stands for.
pub(super) fn byte_of(vocab: &Vocab, id: u32) -> Option<u8> {
    if vocab.typed() && vocab.token_type(id) != TokenType::Byte {
        return None;
    }
    let hex = vocab.text(id).strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2)
        .then(|| u8::from_str_radix(hex, 16).ok())
        .flatten()
}

/// `tokenizer.ggml.scores`, one for each token.
pub(super) fn scores<'a>(gguf: &'a Gguf, vocab: &Vocab) -> Result<&'a [f32]> {
    let scores = gguf.get_f32s(SCORES)?.ok_or_else(|| {
        bad(
            SCORES,
            "missing",
            "an array of f32; SentencePiece chooses by score",
        )
    })?;
    if scores.len() != vocab.len() {
        return Err(bad(
            SCORES,
            format!("an array of {} f32", scores.len()),
            format!("one for each of the {} tokens", vocab.len()),
        ));
    }
    Ok(scores)
}

/// The tokens of all bytes, where there are all; if not, there must be a token for what is unknown.
pub(super) fn byte_tokens(vocab: &Vocab) -> Result<Option<Vec<u32>>> {
    let ids = vocab.texts().map(|(id, _)| id);
    let found: HashMap<u8, u32> = ids
        .filter_map(|id| Some((byte_of(vocab, id)?, id)))
        .collect();
    let bytes: Option<Vec<u32>> = (0..=255_u8).map(|b| found.get(&b).copied()).collect();
    if bytes.is_none() && vocab.unk.is_none() {
        return Err(bad(
            "tokenizer.ggml.tokens",
            format!(
                "without an unknown token and with {} of 256 byte tokens",
                found.len()
            ),
            "<0x00> to <0xFF> or tokenizer.ggml.unknown_token_id, for text no token covers",
        ));
    }
    Ok(bytes)
}

impl Spm {
    /// Reads and checks `tokenizer.ggml.scores` and the byte tokens.
    pub fn from_gguf(gguf: &Gguf, vocab: &Vocab) -> Result<Self> {
        let scores = scores(gguf, vocab)?;
        if let Some((i, score)) = scores.iter().enumerate().find(|(_, s)| s.is_nan()) {
            return Err(bad(format!("{SCORES}[{i}]"), score, "a number"));
        }
        let mut order: Vec<f32> = scores.to_vec();
        // Zero has two signs, which compare equal as scores.
        order.iter_mut().for_each(|s| *s += 0.0);
        order.sort_unstable_by(|a, b| b.total_cmp(a));
        order.dedup();
        let rank = |score: f32| {
            let at = order.partition_point(|s| *s > score);
            u32::try_from(at).unwrap_or(NONE)
        };
        let mut pieces = HashMap::with_capacity(vocab.len());
        let mut longest = 0;
        for ((id, text), score) in vocab.texts().zip(scores) {
            if text.is_empty()
                || byte_of(vocab, id).is_some()
                || matches!(
                    vocab.token_type(id),
                    TokenType::Control | TokenType::Unknown | TokenType::Byte
                )
            {
                continue;
            }
            longest = longest.max(text.len());
            pieces.insert(text.to_owned(), (rank(*score), id));
        }
        Ok(Spm {
            pieces,
            longest,
            bytes: byte_tokens(vocab)?,
            unk: vocab.unk,
        })
    }

    /// Whether a run of characters that no token covers is one token, however long.
    pub fn joins_unknown(&self) -> bool {
        self.bytes.is_none()
    }

    /// Appends the tokens of a text whose spaces are [`SPACE`] already.
    pub fn encode(
        &self,
        text: &str,
        merger: &mut Merger,
        meter: &mut Meter,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        parts(text).try_for_each(|part| self.encode_part(part, merger, meter, out))
    }

    fn encode_part(
        &self,
        text: &str,
        merger: &mut Merger,
        meter: &mut Meter,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        merger.clear();
        for c in text.chars() {
            meter.spend(1)?;
            let mut utf8 = [0; 4];
            let c: &str = c.encode_utf8(&mut utf8);
            let id = self.pieces.get(c).map_or(NONE, |(_, id)| *id);
            merger.push(id, u32::try_from(c.len()).unwrap_or(0));
        }
        let slice = |start: u32, len: u32| {
            let end = start.saturating_add(len) as usize;
            text.get(start as usize..end).unwrap_or("")
        };
        let mut after_unk = false;
        merger.run(
            meter,
            |a, b| {
                let len = a.len.saturating_add(b.len);
                if len as usize > self.longest {
                    return None;
                }
                let (rank, id) = *self.pieces.get(slice(a.start, len))?;
                Some(Merge { rank, id })
            },
            |symbol| {
                let unknown = symbol.id == NONE;
                match (&self.bytes, self.unk) {
                    _ if !unknown => out.push(symbol.id),
                    (Some(bytes), _) => out.extend(
                        slice(symbol.start, symbol.len)
                            .bytes()
                            .filter_map(|b| bytes.get(usize::from(b))),
                    ),
                    // A run of unknown characters is one unknown token.
                    (None, Some(unk)) if !after_unk => out.push(unk),
                    _ => {}
                }
                after_unk = unknown;
            },
        )
    }
}
