//! Text to token ids and back, from GGUF metadata alone: byte-level BPE, SentencePiece's BPE and Unigram,
//! Gemma 4's BPE of characters, and WordPiece.
//!
//! Encoding is that of llama.cpp, which defines what a GGUF vocabulary means, and of the published
//! tokenizers (`tests/tokenizer` holds both against this). Where the two differ:
//! - Special tokens are found leftmost first, then longest (published); llama.cpp looks for the
//!   longest one in the whole text first. They differ only where two special tokens overlap.
//! - A byte that no token spells (SmolLM's vocabulary lacks some control codes) is dropped before
//!   merging (published); llama.cpp drops it after, so that its neighbours do not merge.
//! - In `(?i:'s)` of Llama 3 and Qwen, the long s counts as an s (published).
//! - Where GPT-4o's and Mistral's expressions cut between small letters and capitals, every letter
//!   has the case Unicode gives it, and a mark belongs to its word (published); llama.cpp tells only
//!   a-z from A-Z, and takes marks for punctuation.
//! - In the expressions of DeepSeek LLM and Coder, U+3000 and other spaces beyond ASCII are the
//!   characters that a range names too (published); llama.cpp takes them for a vertical tab first.
//! - Letters and numbers are those of Unicode 16 (published); llama.cpp has 15.1.
//! - No plain text becomes a control token by merges (SentencePiece); llama.cpp allows it.
//! - `</s>` ends a text only where it is a special token; llama.cpp takes it for one even where it
//!   is plain text, as in Qwen's vocabulary, where it closes an HTML element.
//! - In WordPiece a word of more than 100 characters is the unknown token, control characters but for
//!   tabs and ends of lines are dropped before white space is looked for, and what is symbols beyond
//!   ASCII to one and words to the other is words (published). Punctuation is that of Unicode 16
//!   (llama.cpp has 15.1, the published one an early one).
//! - In Unigram a character that is no piece is spelled in bytes where the vocabulary has them all
//!   (published); to llama.cpp it is the unknown token. The longest key of a charsmap is replaced, as in
//!   SentencePiece and llama.cpp; the `tokenizers` package takes the shortest, and drops what follows it in
//!   its grapheme.
//! - The published tokenizers of Qwen normalize to NFC first. Neither llama.cpp nor this does, so
//!   that every text comes back as it was; normalize before where a text may be decomposed.
//!
//! Time is linear in the text but for the heap of merges, which is n log n in the longest word.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

mod bpe;
mod characters;
mod charsmap;
mod merge;
mod meter;
mod pretokenize;
mod specials;
mod spm;
mod stream;
#[cfg(test)]
mod tests;
mod unigram;
mod vocab;
mod wordpiece;

use std::ops::{ControlFlow, Range};
use std::slice;

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use merge::Merger;
use meter::Meter;
use specials::{Finder, Fragment, Special};
use vocab::bad;

pub use pretokenize::PreTokenizer;
pub use stream::Decoder;
pub use vocab::{TokenType, Vocab};

/// Values of `tokenizer.ggml.model`, for messages.
const MODELS: &str = "gpt2 (byte-level BPE), llama (SentencePiece), gemma4 (BPE of characters), \
                      bert (WordPiece), t5 (Unigram)";

#[derive(Debug, Clone)]
enum Model {
    Bpe(bpe::Bpe, &'static PreTokenizer),
    Spm(spm::Spm),
    WordPiece(wordpiece::WordPiece),
    Unigram(unigram::Unigram),
}

/// A vocabulary with everything needed to encode and decode. Cheap to share, never changes.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    pieces: Pieces,
    span: Span,
    finder: Finder,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    separator: Option<u32>,
}

/// The bytes of every token, end to end.
#[derive(Debug, Clone, Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// How much of a text one token can be.
#[derive(Debug, Clone)]
struct Span {
    /// Bytes of a text that one token stands for at most; `None`: as many as there are.
    longest: Option<usize>,
    /// Bytes that may be no part of any token.
    dropped: [bool; 256],
}

impl Span {
    fn new(vocab: &Vocab, model: &Model, pieces: &Pieces, finder: &Finder) -> Self {
        let mut dropped = [false; 256];
        let mut drop = |byte: u8| {
            if let Some(is) = dropped.get_mut(usize::from(byte)) {
                *is = true;
            }
        };
        if finder.strips() {
            (0..=u8::MAX)
                .filter(u8::is_ascii_whitespace)
                .for_each(&mut drop);
        }
        let of_pieces = (0..vocab.len() as u32).filter_map(|id| Some(pieces.get(id)?.len()));
        // As it stands in the file a space has three bytes, and a text may spell it so.
        let of_texts = vocab.texts().map(|(_, text)| text.len());
        let longest = match model {
            Model::Bpe(bpe, _) if !bpe.is_of_characters() => {
                bpe.missing_bytes().into_iter().for_each(&mut drop);
                of_pieces.max()
            }
            Model::Spm(spm) if spm.joins_unknown() => None,
            Model::WordPiece(_) | Model::Unigram(_) => None,
            _ => of_pieces.chain(of_texts).max(),
        };
        Self {
            longest: longest.filter(|longest| *longest > 0),
            dropped,
        }
    }
}

impl Pieces {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let start = match id.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(start..*self.ends.get(id)?)
    }
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata describes.
    ///
    /// # Errors
    /// [`Error::Metadata`] names the key, what stands there and what should;
    /// [`Error::Unsupported`] for a model or pre-tokenizer that is not known, with those that are.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        const MODEL: &str = "tokenizer.ggml.model";
        let model = gguf.get_str(MODEL)?.ok_or_else(|| {
            bad(
                MODEL,
                "missing",
                "\"gpt2\", \"llama\", \"gemma4\", \"bert\" or \"t5\"",
            )
        })?;
        let mut vocab = Vocab::from_gguf(gguf)?;
        let (model, add_bos, add_space_prefix) = match model {
            "gpt2" => {
                let pre = gguf.get_str("tokenizer.ggml.pre")?.unwrap_or("default");
                let pre = PreTokenizer::by_name(pre)?;
                vocab.finish();
                let bpe = bpe::Bpe::of_bytes(gguf, &vocab, pre.ignore_merges)?;
                (Model::Bpe(bpe, pre), pre.add_bos, false)
            }
            "gemma4" => {
                vocab.finish();
                let bpe = bpe::Bpe::of_characters(gguf, &vocab)?;
                (Model::Bpe(bpe, &pretokenize::LINES), true, false)
            }
            "llama" => {
                let unk = default_id(&vocab, 0, TokenType::Unknown);
                let bos = default_id(&vocab, 1, TokenType::Control);
                let eos = default_id(&vocab, 2, TokenType::Control);
                vocab.unk = vocab.unk.or(unk);
                vocab.bos = vocab.bos.or(bos);
                vocab.eos = vocab.eos.or(eos);
                vocab.finish();
                (Model::Spm(spm::Spm::from_gguf(gguf, &vocab)?), true, true)
            }
            "bert" => {
                // The tokens around a text, where the file names them by its own words or not at all.
                let named = |name: &str, text: &str| match vocab.special(gguf, name)? {
                    Some(id) => Ok::<_, Error>(Some(id)),
                    None => Ok(vocab.id(text)),
                };
                let (cls, sep) = (named("cls", "[CLS]")?, named("seperator", "[SEP]")?);
                let unk = vocab.id("[UNK]");
                vocab.bos = vocab.bos.or(cls);
                vocab.eos = sep.or(vocab.eos);
                vocab.unk = vocab.unk.or(unk);
                vocab.finish();
                let words = wordpiece::WordPiece::from_gguf(gguf, &vocab)?;
                (Model::WordPiece(words), true, true)
            }
            "t5" => {
                vocab.eos = (vocab.eos).or(default_id(&vocab, 1, TokenType::Control));
                vocab.unk = (vocab.unk).or(default_id(&vocab, 2, TokenType::Unknown));
                vocab.finish();
                let pieces = unigram::Unigram::from_gguf(gguf, &vocab)?;
                (Model::Unigram(pieces), false, false)
            }
            other => {
                return Err(Error::Unsupported {
                    what: "tokenizer model",
                    name: vocab::cut(other),
                    supported: MODELS.to_owned(),
                })
            }
        };
        let flag = |name: &str, default: bool, id: Option<u32>| {
            let key = format!("tokenizer.ggml.add_{name}_token");
            match (gguf.get_bool(&key)?, id) {
                (Some(true), None) => Err(bad(
                    format!("tokenizer.ggml.{name}_token_id"),
                    "missing",
                    format!("a token id, for {key} is true"),
                )),
                (said, id) => Ok(said.unwrap_or(default && id.is_some())),
            }
        };
        // Files of Gemma 4 were published that say they have none; the model was trained with it.
        let is_bert = matches!(model, Model::WordPiece(_));
        let gemma4 = matches!(&model, Model::Bpe(bpe, _) if bpe.is_of_characters());
        let (finder, pieces) = (finder(gguf, &vocab)?, pieces(&vocab, &model));
        let prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix")?;
        let add_space_prefix = match &model {
            Model::Spm(_) | Model::WordPiece(_) => prefix.unwrap_or(add_space_prefix),
            // Of spaces that are merged each word has one in front, the first too.
            Model::Unigram(unigram) => prefix == Some(true) || unigram.merges_spaces(),
            Model::Bpe(..) => false,
        };
        let ends = matches!(model, Model::Unigram(_));
        // In WordPiece the end of a text is that already.
        let separates = gguf.get_bool("tokenizer.ggml.add_sep_token")? == Some(true) && !is_bert;
        let separator = match separates {
            true => vocab.special(gguf, "seperator")?,
            false => None,
        };
        Ok(Tokenizer {
            add_bos: flag("bos", add_bos, vocab.bos)? || gemma4 && vocab.bos.is_some(),
            add_eos: flag("eos", ends, vocab.eos)? || is_bert && vocab.eos.is_some(),
            add_space_prefix,
            separator,
            span: Span::new(&vocab, &model, &pieces, &finder),
            finder,
            pieces,
            vocab,
            model,
        })
    }

    /// Token ids of a text.
    ///
    /// `add_special` adds the first and last token the model was trained with (the file's
    /// `add_bos_token`, `add_eos_token`). `parse_special` lets the text spell control tokens such
    /// as `<|im_end|>`: only for text of a trusted template, never for what a user typed.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        let whole = 0..text.len();
        let trusted = if parse_special {
            slice::from_ref(&whole)
        } else {
            &[]
        };
        // It is never told to stop.
        self.encode_while(text, add_special, trusted, &mut || true)
            .unwrap_or_default()
    }

    /// The least number of tokens that a text can be, whatever may spell control tokens in it: its
    /// bytes, without those that may become no token, in tokens as long as the longest there is.
    pub fn fewest(&self, text: &str) -> usize {
        let Some(longest) = self.span.longest else {
            return 0;
        };
        let dropped = |byte: &u8| self.span.dropped.get(usize::from(*byte)) == Some(&true);
        let lost = match self.span.dropped.contains(&true) {
            true => text.as_bytes().iter().filter(|byte| dropped(byte)).count(),
            false => 0,
        };
        text.len().saturating_sub(lost).div_ceil(longest)
    }

    /// Token ids of a text that may spell control tokens but for the bytes that were `given`: ranges
    /// in order. A control token with a byte among them is plain text, and hides none beside it.
    /// `None` where `go_on`, asked every few milliseconds, says so.
    ///
    /// This is for the text of a template, and what was given to it. Everything between special
    /// tokens is encoded as one text, so `given` changes no id where nothing given spells a control
    /// token. User-defined tokens are found in it too: the model was trained on no other spelling of
    /// such a text.
    pub fn encode_given(
        &self,
        text: &str,
        add_special: bool,
        given: &[Range<usize>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Vec<u32>> {
        let mut trusted = Vec::with_capacity(given.len().saturating_add(1));
        let mut end = 0;
        for range in given.iter().filter(|range| !range.is_empty()) {
            trusted.push(end..range.start);
            end = end.max(range.end);
        }
        trusted.push(end..text.len());
        trusted.retain(|range| !range.is_empty());
        self.encode_while(text, add_special, &trusted, go_on)
    }

    /// [`Tokenizer::encode`], left in the middle where `go_on`, asked every few milliseconds, says
    /// so: `None`. Only what lies wholly in one of the `trusted` ranges of bytes, in order and apart,
    /// may spell a control token.
    pub fn encode_while(
        &self,
        text: &str,
        add_special: bool,
        trusted: &[Range<usize>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Vec<u32>> {
        let mut out = Vec::new();
        if add_special && self.add_bos {
            out.extend(self.vocab.bos);
        }
        let flow = self.encode_to(text, trusted, true, go_on, &mut out);
        if flow.is_break() {
            return None;
        }
        if add_special && self.add_eos {
            out.extend(self.vocab.eos);
        }
        Some(out)
    }

    /// Token ids of a text that goes on from another: nothing is put in front of it, and it spells no
    /// control token.
    pub fn encode_middle(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        // It is never told to stop.
        let _ = self.encode_to(text, &[], false, &mut || true, &mut out);
        out
    }

    /// Appends the tokens of a text that may begin behind a special token.
    fn encode_to(
        &self,
        text: &str,
        trusted: &[Range<usize>],
        mut after_special: bool,
        go_on: &mut dyn FnMut() -> bool,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        let mut merger = Merger::default();
        self.finder.split(
            text,
            trusted,
            &mut Meter::new(go_on),
            &mut |fragment, meter| {
                match fragment {
                    Fragment::Token(id) => out.push(id),
                    Fragment::Text(text) => {
                        let space = self.add_space_prefix && after_special;
                        self.encode_text(text, space, &mut merger, meter, out)?;
                    }
                }
                after_special = matches!(fragment, Fragment::Token(_));
                ControlFlow::Continue(())
            },
        )
    }

    /// Appends the tokens of text without special tokens, of SentencePiece behind a `space`.
    fn encode_text(
        &self,
        text: &str,
        space: bool,
        merger: &mut Merger,
        meter: &mut Meter,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        match &self.model {
            Model::Bpe(bpe, pre) => {
                let escaped = bpe.is_of_characters().then(|| spm::escape(text, false));
                let text = escaped.as_deref().unwrap_or(text);
                pre.split(text, &mut |word| bpe.encode(word, merger, meter, out))
            }
            Model::Spm(spm) => spm.encode(&spm::escape(text, space), merger, meter, out),
            Model::WordPiece(words) => words.encode(text, meter, out),
            Model::Unigram(unigram) => unigram.encode(text, space, meter, out),
        }
    }

    /// The text of a whole sequence. `skip_special` leaves control tokens out. The space that
    /// SentencePiece puts in front of a text is taken off again; invalid UTF-8 is U+FFFD.
    ///
    /// # Errors
    /// [`Error::Argument`] names an id that is no token.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut decoder = Decoder::new(self, skip_special);
        let mut text = String::new();
        for id in ids {
            text.push_str(&decoder.push(self, *id)?);
        }
        text.push_str(&decoder.finish());
        Ok(text)
    }

    /// The bytes a token stands for; `None` where the id is no token. Not always whole characters.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// [`Tokenizer::piece`] with an error that names the range.
    ///
    /// # Errors
    /// [`Error::Argument`] where the id is no token.
    pub fn checked_piece(&self, id: u32) -> Result<&[u8]> {
        self.piece(id).ok_or_else(|| Error::Argument {
            name: "token id",
            value: id.to_string(),
            reason: format!(
                "the vocabulary has {} tokens, with ids from 0",
                self.n_vocab()
            ),
        })
    }

    /// The vocabulary: texts, types and special ids.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// The model in words, for people.
    pub fn kind(&self) -> String {
        match &self.model {
            Model::Bpe(bpe, pre) => {
                let name = pre.names.first().unwrap_or(&"default");
                match bpe.is_of_characters() {
                    true => format!("BPE of characters ({name})"),
                    false => format!("byte-level BPE ({name})"),
                }
            }
            Model::Spm(_) => "SentencePiece".to_owned(),
            Model::WordPiece(_) => "WordPiece".to_owned(),
            Model::Unigram(_) => "Unigram".to_owned(),
        }
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// Whether a token is control, unknown: no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(
            self.vocab.token_type(id),
            TokenType::Control | TokenType::Unknown
        )
    }

    /// Whether `add_special` puts the first token in front.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `add_special` puts the end token behind.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// What stands between two texts of a pair beside the end of the first: XLM-R's second `</s>`.
    pub fn separator(&self) -> Option<u32> {
        self.separator
    }

    /// Whether a text gets a space in front (SentencePiece).
    pub fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Bytes that no token spells. Text that holds them loses them when encoded, as the published
    /// tokenizers of such vocabularies do; the characters concerned are control codes and planes
    /// without assigned characters. Empty for most vocabularies.
    pub fn missing_bytes(&self) -> Vec<u8> {
        match &self.model {
            Model::Bpe(bpe, _) => bpe.missing_bytes(),
            Model::Spm(_) | Model::WordPiece(_) | Model::Unigram(_) => Vec::new(),
        }
    }
}

/// What the library of a kind numbers so, where the file does not say and the types agree.
fn default_id(vocab: &Vocab, id: u32, ty: TokenType) -> Option<u32> {
    let fits = !vocab.typed() || vocab.token_type(id) == ty;
    Some(id).filter(|id| fits && vocab.contains(*id))
}

/// Tokens found in text as a whole, longest of those at one place.
fn finder(gguf: &Gguf, vocab: &Vocab) -> Result<Finder> {
    // GGUF has no field for white space around special tokens; the published vocabulary of these
    // models strips what follows all but the named ones.
    let name = gguf.get_str("general.name")?.unwrap_or("").to_lowercase();
    let strips = ["phi-3", "phi3"].iter().any(|n| name.contains(n));
    let mut specials: Vec<Special> = Vec::new();
    for (id, text) in vocab.texts().filter(|(_, text)| !text.is_empty()) {
        let control = match vocab.token_type(id) {
            TokenType::Control | TokenType::Unknown => true,
            TokenType::UserDefined => false,
            _ => continue,
        };
        specials.push(Special {
            id,
            control,
            len: u32::try_from(text.len()).unwrap_or(u32::MAX),
            rstrip: strips && !["<unk>", "<s>", "<|endoftext|>"].contains(&text),
        });
    }
    Finder::new(&|id| vocab.text(id), specials)
}

fn pieces(vocab: &Vocab, model: &Model) -> Pieces {
    let mut pieces = Pieces::default();
    for (id, text) in vocab.texts() {
        match (vocab.token_type(id), model) {
            (TokenType::Control | TokenType::Unknown | TokenType::UserDefined, _) => {
                pieces.push(text.as_bytes());
            }
            (_, Model::Bpe(bpe, _)) if !bpe.is_of_characters() => match bpe::text_to_bytes(text) {
                Some(bytes) => pieces.push(&bytes),
                None => pieces.push(text.as_bytes()),
            },
            _ => match spm::byte_of(vocab, id) {
                Some(byte) => pieces.push(&[byte]),
                None => pieces.push(text.replace(spm::SPACE, " ").as_bytes()),
            },
        }
    }
    pieces
}
