//! BPE by a list of merges: every byte of a word is a symbol, or every character, and pairs merge by
//! their rank in the file's list.
use std::collections::HashMap;
use std::ops::ControlFlow;

use super::merge::{parts, Merge, Merger, Symbol, MAX_SYMBOLS, NONE};
use super::meter::Meter;
use super::spm::byte_of;
use super::vocab::{bad, cut, TokenType, Vocab};
use crate::error::Result;
use crate::gguf::Gguf;

const MERGES: &str = "tokenizer.ggml.merges";
/// Twice the longest list there is: merges cost several times their bytes in the file.
const MAX_MERGES: usize = 1 << 20;
/// Texts that are no token themselves. Real files have a few at most.
const MAX_STEPS: usize = 1 << 16;

/// GPT-2's alphabet: the character that stands for a byte in token texts. Printable Latin-1 stands
/// for itself, the other bytes follow from U+0100 on.
pub(super) fn byte_to_char(byte: u8) -> char {
    let offset = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => return char::from(byte),
        0x00..=0x20 => u32::from(byte),
        0x7F..=0xA0 => u32::from(byte).saturating_sub(0x7F - 0x21),
        0xAD => 0x43,
    };
    char::from_u32(offset.saturating_add(0x100)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code.saturating_sub(0x100)).ok(),
        0x121..=0x142 => u8::try_from(code.saturating_sub(0x121 - 0x7F)).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes a token text stands for; `None` where a character is not in the alphabet.
pub(super) fn text_to_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(char_to_byte).collect()
}

/// The merges of a BPE vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Bpe {
    /// By byte; `NONE` where the vocabulary has no token for it.
    bytes: Vec<u32>,
    /// The symbols of a text that is merged by character; `None` where it is by byte.
    characters: Option<HashMap<char, u32>>,
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Texts that are only a step on the way to a token; ids from the vocabulary's length on.
    steps: Vec<Vec<u8>>,
    first_step: u32,
    /// Whole words that become a token before any merge.
    words: HashMap<Vec<u8>, u32>,
}

/// Whether plain text may become this token.
fn spells(vocab: &Vocab, id: u32) -> bool {
    !matches!(
        vocab.token_type(id),
        TokenType::Control | TokenType::Unknown | TokenType::Byte
    )
}

impl Bpe {
    /// Byte-level BPE. With `ignore_merges` a word that is a token is that token, whatever the
    /// merges would make of it.
    pub fn of_bytes(gguf: &Gguf, vocab: &Vocab, ignore_merges: bool) -> Result<Self> {
        let id = |byte| {
            let text = byte_to_char(byte).to_string();
            vocab.id(&text).filter(|id| spells(vocab, *id))
        };
        let mut bpe = Bpe {
            bytes: (0..=255).map(|b| id(b).unwrap_or(NONE)).collect(),
            characters: None,
            merges: HashMap::new(),
            steps: Vec::new(),
            first_step: u32::try_from(vocab.len()).unwrap_or(NONE),
            words: HashMap::new(),
        };
        bpe.read_merges(gguf, vocab)?;
        if ignore_merges {
            bpe.words = vocab
                .texts()
                .filter(|(id, text)| !text.is_empty() && spells(vocab, *id))
                .filter_map(|(id, text)| Some((text_to_bytes(text)?, id)))
                .collect();
        }
        Ok(bpe)
    }

    /// BPE of characters, with byte tokens such as `<0x0A>` for what no token covers. A run of
    /// newlines that is a token is that token: not every list has the merges that lead to it.
    pub fn of_characters(gguf: &Gguf, vocab: &Vocab) -> Result<Self> {
        let mut found = HashMap::new();
        let mut characters = HashMap::new();
        let mut words = HashMap::new();
        for (id, text) in vocab.texts() {
            if let Some(byte) = byte_of(vocab, id) {
                found.insert(byte, id);
            } else if spells(vocab, id) {
                let mut chars = text.chars();
                if let (Some(c), None) = (chars.next(), chars.next()) {
                    characters.insert(c, id);
                }
                if !text.is_empty() && text.bytes().all(|b| b == b'\n') {
                    words.insert(text.as_bytes().to_vec(), id);
                }
            }
        }
        if found.len() < 256 {
            return Err(bad(
                "tokenizer.ggml.tokens",
                format!("with {} of 256 byte tokens", found.len()),
                "<0x00> to <0xFF>, for text no token covers",
            ));
        }
        let mut bpe = Bpe {
            bytes: (0..=255)
                .map(|b| found.get(&b).copied().unwrap_or(NONE))
                .collect(),
            characters: Some(characters),
            merges: HashMap::new(),
            steps: Vec::new(),
            first_step: u32::try_from(vocab.len()).unwrap_or(NONE),
            words,
        };
        bpe.read_merges(gguf, vocab)?;
        Ok(bpe)
    }

    /// Whether a text is merged by character.
    pub fn is_of_characters(&self) -> bool {
        self.characters.is_some()
    }

    /// The bytes that a text which is no control token stands for.
    fn spelled(&self, text: &str) -> Option<Vec<u8>> {
        match self.characters {
            Some(_) => Some(text.as_bytes().to_vec()),
            None => text_to_bytes(text),
        }
    }

    /// Reads and checks `tokenizer.ggml.merges`.
    fn read_merges(&mut self, gguf: &Gguf, vocab: &Vocab) -> Result<()> {
        let raw = gguf.get_strings(MERGES)?.ok_or_else(|| {
            bad(
                MERGES,
                "missing",
                "an array of strings; BPE needs its merges",
            )
        })?;
        if raw.len() > MAX_MERGES {
            return Err(bad(
                MERGES,
                format!("an array of {} strings", raw.len()),
                format!("at most {MAX_MERGES} merges"),
            ));
        }
        let first_step = self.first_step;
        self.merges.reserve(raw.len());
        let mut buffer = String::new();
        let mut steps = HashMap::new();
        for (rank, merge) in (0_u32..).zip(raw.iter()) {
            let malformed = |expected: &str| {
                bad(
                    format!("{MERGES}[{rank}]"),
                    format!("{:?}", cut(merge)),
                    expected,
                )
            };
            // A part may start with a space only where it is a literal one.
            let (left, right) = merge
                .char_indices()
                .skip(1)
                .find(|(_, c)| *c == ' ')
                .and_then(|(at, _)| Some((merge.get(..at)?, merge.get(at.saturating_add(1)..)?)))
                .filter(|(_, right)| !right.is_empty())
                .ok_or_else(|| malformed("two token texts with one space between"))?;
            buffer.clear();
            buffer.push_str(left);
            buffer.push_str(right);
            let mut id = |text: &str| {
                if let Some(id) = vocab.id(text).filter(|id| spells(vocab, *id)) {
                    return Ok(id);
                }
                if let Some(id) = steps.get(text) {
                    return Ok(*id);
                }
                let bytes = self.spelled(text).ok_or_else(|| {
                    malformed(
                        "texts in the byte-level alphabet (printable Latin-1, U+0100 to U+0143)",
                    )
                })?;
                if steps.len() >= MAX_STEPS {
                    let expected = format!("at most {MAX_STEPS} texts that are no token");
                    return Err(malformed(&expected));
                }
                let id = u32::try_from(steps.len()).map_or(NONE, |n| n.saturating_add(first_step));
                steps.insert(text.to_owned(), id);
                self.steps.push(bytes);
                Ok(id)
            };
            let pair = (id(left)?, id(right)?);
            let merged = id(&buffer)?;
            // The first of two equal merges has the better rank.
            self.merges.entry(pair).or_insert((rank, merged));
        }
        Ok(())
    }

    /// Bytes that no token spells: text that holds them loses them, as in the published
    /// tokenizers. Empty for most vocabularies.
    pub fn missing_bytes(&self) -> Vec<u8> {
        (0..=255_u8)
            .zip(&self.bytes)
            .filter(|(_, id)| **id == NONE)
            .map(|(byte, _)| byte)
            .collect()
    }

    /// Appends the tokens of one word of the pre-tokenizer.
    pub fn encode(
        &self,
        word: &str,
        merger: &mut Merger,
        meter: &mut Meter,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        if !self.words.is_empty() {
            if let Some(id) = self.words.get(word.as_bytes()) {
                out.push(*id);
                return meter.spend(word.len());
            }
        }
        if let Some(characters) = &self.characters {
            for part in parts(word) {
                merger.clear();
                for c in part.chars() {
                    let id = characters.get(&c).copied().unwrap_or(NONE);
                    merger.push(id, u32::try_from(c.len_utf8()).unwrap_or(0));
                }
                self.merge(merger, meter, out, |symbol| {
                    let end = symbol.start.saturating_add(symbol.len) as usize;
                    part.as_bytes().get(symbol.start as usize..end)
                })?;
            }
            return ControlFlow::Continue(());
        }
        for part in word.as_bytes().chunks(MAX_SYMBOLS) {
            merger.clear();
            for byte in part {
                match self.byte(*byte) {
                    NONE => {}
                    id => merger.push(id, 1),
                }
            }
            self.merge(merger, meter, out, |symbol| {
                let step = symbol.id.checked_sub(self.first_step)?;
                self.steps.get(step as usize).map(Vec::as_slice)
            })?;
        }
        ControlFlow::Continue(())
    }

    /// Merges what is pushed and appends its tokens; a symbol that is no token is `spelled` in bytes.
    fn merge<'a>(
        &'a self,
        merger: &mut Merger,
        meter: &mut Meter,
        out: &mut Vec<u32>,
        spelled: impl Fn(&Symbol) -> Option<&'a [u8]>,
    ) -> ControlFlow<()> {
        merger.run(
            meter,
            |a, b| {
                let (rank, id) = *self.merges.get(&(a.id, b.id))?;
                Some(Merge { rank, id })
            },
            |symbol| {
                if symbol.id < self.first_step {
                    out.push(symbol.id);
                } else {
                    let bytes = spelled(symbol).unwrap_or(&[]);
                    out.extend(bytes.iter().map(|b| self.byte(*b)).filter(|id| *id != NONE));
                }
            },
        )
    }

    fn byte(&self, byte: u8) -> u32 {
        self.bytes.get(usize::from(byte)).copied().unwrap_or(NONE)
    }
}
