//! SentencePiece's Unigram: of all ways to cut a normalized text into pieces, the one with the largest sum
//! of scores. A character that no piece of its own covers is unknown, at a penalty; it is spelled in bytes
//! where the vocabulary has them all.
//!
//! What a text can become in linear time is bounded: every place is the start of at most [`LONGEST`] pieces.
use std::iter;
use std::ops::{ControlFlow, Range};

use super::charsmap::Charsmap;
use super::merge::{parts, NONE};
use super::meter::Meter;
use super::spm::{byte_of, byte_tokens, scores, SCORES, SPACE};
use super::vocab::{bad, TokenType, Vocab};
use crate::error::Result;
use crate::gguf::Gguf;

/// What an unknown character costs beyond the piece of the lowest score.
const PENALTY: f32 = 10.0;

/// Bytes of the longest piece: ten times the longest of XLM-R.
const LONGEST: usize = 512;

/// The pieces of a Unigram vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Unigram {
    trie: Trie,
    /// By id; 0 of those that users define, so that they win.
    scores: Vec<f64>,
    /// Of a character that is unknown.
    unknown: f64,
    bytes: Option<Vec<u32>>,
    unk: Option<u32>,
    charsmap: Charsmap,
    /// Whether runs of spaces are one, and none stand at the end.
    merges_spaces: bool,
}

/// The best way to cut the text up to a place.
#[derive(Clone, Copy)]
struct Best {
    sum: f64,
    /// The last piece: an id, or [`NONE`] for a character that is unknown, and where it starts.
    id: u32,
    start: u32,
}

impl Unigram {
    /// Reads and checks the scores, the byte tokens and `tokenizer.ggml.precompiled_charsmap`.
    pub fn from_gguf(gguf: &Gguf, vocab: &Vocab) -> Result<Self> {
        let given = scores(gguf, vocab)?;
        let is_number = |(_, score): &(usize, &f32)| score.is_finite();
        if let Some((i, score)) = given.iter().enumerate().find(|each| !is_number(each)) {
            return Err(bad(format!("{SCORES}[{i}]"), score, "a finite number"));
        }
        let mut pieces = Vec::with_capacity(vocab.len());
        let mut lowest = f32::INFINITY;
        for ((id, text), score) in vocab.texts().zip(given) {
            let kind = vocab.token_type(id);
            if kind == TokenType::Normal {
                lowest = lowest.min(*score);
            }
            let is_piece = matches!(
                kind,
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused
            );
            if !is_piece || text.is_empty() || byte_of(vocab, id).is_some() {
                continue;
            }
            if text.len() > LONGEST {
                return Err(bad(
                    format!("tokenizer.ggml.tokens[{id}]"),
                    format!("{} bytes long", text.len()),
                    format!("at most {LONGEST} bytes in a Unigram vocabulary"),
                ));
            }
            pieces.push((text, id));
        }
        let is_users = |id: u32| vocab.token_type(id) == TokenType::UserDefined;
        let own = (0_u32..).zip(given).map(|(id, score)| match is_users(id) {
            true => 0.0,
            false => f64::from(*score),
        });
        let merges = gguf.get_bool("tokenizer.ggml.remove_extra_whitespaces")?;
        Ok(Self {
            trie: Trie::new(pieces),
            scores: own.collect(),
            unknown: f64::from(if lowest.is_finite() { lowest } else { 0.0 } - PENALTY),
            bytes: byte_tokens(vocab)?,
            unk: vocab.unk,
            charsmap: Charsmap::from_gguf(gguf)?,
            merges_spaces: merges.unwrap_or(false),
        })
    }

    /// Whether runs of spaces are one.
    pub fn merges_spaces(&self) -> bool {
        self.merges_spaces
    }

    /// Appends the tokens of a text, behind a space where that is put in `front`.
    pub fn encode(
        &self,
        text: &str,
        front: bool,
        meter: &mut Meter,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        let text = self.normalized(text, front, meter)?;
        for part in parts(&text) {
            self.encode_part(part, meter, out)?;
        }
        ControlFlow::Continue(())
    }

    /// As the charsmap says, with [`SPACE`] for every space, or for every run of spaces before a word. The
    /// one in `front` stands before the first character that is none.
    fn normalized(&self, text: &str, front: bool, meter: &mut Meter) -> ControlFlow<(), String> {
        let mut made = String::with_capacity(text.len().saturating_add(text.len() / 4));
        let mut front = front;
        // Spaces that a word would stand behind.
        let mut pending = false;
        let mut rest = text;
        while let Some((normal, after)) = self.charsmap.front(rest) {
            meter.spend(normal.len().saturating_add(1))?;
            for c in normal.chars() {
                if c == ' ' {
                    pending = true;
                    if !self.merges_spaces {
                        made.push(SPACE);
                    }
                    continue;
                }
                if front || pending && self.merges_spaces {
                    made.push(SPACE);
                }
                (front, pending) = (false, false);
                made.push(c);
            }
            rest = after;
        }
        ControlFlow::Continue(made)
    }

    fn encode_part(&self, text: &str, meter: &mut Meter, out: &mut Vec<u32>) -> ControlFlow<()> {
        let none = Best {
            sum: f64::NEG_INFINITY,
            id: NONE,
            start: 0,
        };
        let mut best = vec![none; text.len().saturating_add(1)];
        if let Some(first) = best.first_mut() {
            first.sum = 0.0;
        }
        let better = |best: &mut [Best], end: usize, of: Best| {
            if let Some(known) = best.get_mut(end).filter(|known| of.sum > known.sum) {
                *known = of;
            }
        };
        for (at, c) in text.char_indices() {
            let sum = best.get(at).map_or(0.0, |best| best.sum);
            let start = u32::try_from(at).unwrap_or(NONE);
            let alone = at.saturating_add(c.len_utf8());
            let mut known = false;
            let looked = self.trie.walk(text.get(at..).unwrap_or(""), |len, id| {
                let end = at.saturating_add(len);
                known |= end == alone;
                let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
                let sum = sum + score;
                better(&mut best, end, Best { sum, id, start });
            });
            meter.spend(looked)?;
            if !known {
                let (sum, id) = (sum + self.unknown, NONE);
                better(&mut best, alone, Best { sum, id, start });
            }
        }
        self.trace(text, &best, out);
        ControlFlow::Continue(())
    }

    /// Appends the tokens of the best way to the end.
    fn trace(&self, text: &str, best: &[Best], out: &mut Vec<u32>) {
        let first = out.len();
        let mut end = text.len();
        let mut after_unk = false;
        while let Some(Best { id, start, .. }) = best.get(end).filter(|_| end > 0) {
            let start = *start as usize;
            let unknown = *id == NONE;
            match (&self.bytes, self.unk) {
                _ if !unknown => out.push(*id),
                (Some(bytes), _) => {
                    let spelled = text.get(start..end).unwrap_or("").bytes().rev();
                    out.extend(spelled.filter_map(|b| bytes.get(usize::from(b))));
                }
                // A run of unknown characters is one unknown token.
                (None, Some(unk)) if !after_unk => out.push(unk),
                _ => {}
            }
            after_unk = unknown;
            // Every piece has a byte.
            end = start.min(end.saturating_sub(1));
        }
        if let Some(made) = out.get_mut(first..) {
            made.reverse();
        }
    }
}

/// Pieces by their bytes. Nodes lie level by level, so that the children of one are neighbours, sorted by
/// their byte.
#[derive(Debug, Clone, Default)]
struct Trie {
    /// The byte that leads to a node.
    bytes: Vec<u8>,
    /// Where the children of a node start; those of the next node are behind them.
    children: Vec<u32>,
    /// The piece that a node's path spells, or [`NONE`].
    ids: Vec<u32>,
}

impl Trie {
    /// Of texts that are all different.
    fn new(mut pieces: Vec<(&str, u32)>) -> Self {
        pieces.sort_unstable();
        let mut trie = Self {
            bytes: vec![0],
            children: Vec::new(),
            ids: vec![NONE],
        };
        let mut level: Vec<Range<usize>> = iter::once(0..pieces.len()).collect();
        let mut depth = 0;
        while !level.is_empty() {
            let mut next = Vec::new();
            for range in level {
                trie.children.push(index(trie.bytes.len()));
                let of = pieces.get(range.clone()).unwrap_or(&[]);
                let deeper = |(text, _): &&(&str, u32)| text.len() > depth;
                let mut at = range.start;
                // What ends here is sorted to the front.
                at = at.saturating_add(of.iter().take_while(|each| !deeper(each)).count());
                while at < range.end {
                    let byte = |i: usize| pieces.get(i)?.0.as_bytes().get(depth);
                    let of = byte(at);
                    let same = (at..range.end).take_while(|i| byte(*i) == of);
                    let end = at.saturating_add(same.count());
                    let whole = pieces.get(at);
                    let whole = whole.filter(|(text, _)| text.len() == depth.saturating_add(1));
                    trie.bytes.push(of.copied().unwrap_or(0));
                    trie.ids.push(whole.map_or(NONE, |(_, id)| *id));
                    next.push(at..end);
                    at = end;
                }
            }
            level = next;
            depth = depth.saturating_add(1);
        }
        trie.children.push(index(trie.bytes.len()));
        trie
    }

    /// Visits the pieces that a text begins with, the shorter first: their bytes and ids. Returns the nodes
    /// looked at.
    fn walk(&self, text: &str, mut visit: impl FnMut(usize, u32)) -> usize {
        let mut node = 0;
        for (depth, byte) in text.bytes().enumerate() {
            let Some(child) = self.child(node, byte) else {
                return depth.saturating_add(1);
            };
            node = child;
            let id = self.ids.get(node as usize).copied().unwrap_or(NONE);
            if id != NONE {
                visit(depth.saturating_add(1), id);
            }
        }
        text.len()
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let start = *self.children.get(node as usize)?;
        let end = *self.children.get((node as usize).checked_add(1)?)?;
        let found = self.bytes.get(start as usize..end as usize)?;
        let at = found.binary_search(&byte).ok()?;
        start.checked_add(index(at))
    }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}
