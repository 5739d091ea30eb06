//! What a text has to look like, and which tokens may come next so that it can: a thin layer over
//! `llguidance`, which keeps a lexer of regular expressions and an Earley parser, and walks the
//! vocabulary as a trie.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::sampler::Allowed;
use crate::tokenizer::{TokenType, Tokenizer};

mod answer;
mod bounds;
mod gbnf;
mod json;
mod lark;
mod notation;
mod schema;
mod texts;

pub use answer::{of_answer, Callable, Held};

/// Most bytes of a constraint's text.
pub const MAX_BYTES: usize = 256 << 10;

/// Most texts of a [`Constraint::Choice`].
pub const MAX_CHOICES: usize = 4096;

/// Constraints that are kept as they were compiled: what is asked for again costs nothing then.
const KEPT: usize = 16;

/// Longest token that the trie of the vocabulary has room for, in bytes.
const LONGEST_TOKEN: usize = 1000;

/// Bytes of all tokens together for which it has room.
const MOST_BYTES: usize = 4_000_000;

/// What a text has to look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// JSON that a JSON schema describes, which is JSON itself.
    Schema(String),
    /// A text that a regular expression matches as a whole, in the syntax of Rust's `regex`.
    Regex(String),
    /// A context-free grammar, in llguidance's dialect of Lark or in llama.cpp's GBNF.
    Grammar(String),
    /// One of several texts.
    Choice(Vec<String>),
}

impl Constraint {
    /// Its name as an option, and its text or a part of it.
    fn named(&self) -> (&'static str, String) {
        match self {
            Self::Schema(text) => ("schema", cut(text)),
            Self::Regex(text) => ("regex", cut(text)),
            Self::Grammar(text) => ("grammar", cut(text)),
            Self::Choice(texts) => ("choice", format!("{} texts", texts.len())),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Schema(text) | Self::Regex(text) | Self::Grammar(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// An [`Error::Argument`] that says why it cannot be.
    fn refused(&self, reason: impl Into<String>) -> Error {
        let (name, value) = self.named();
        Error::Argument {
            name,
            value,
            reason: reason.into(),
        }
    }

    /// As llguidance takes it.
    fn grammar(&self) -> Result<TopLevelGrammar> {
        match self {
            Self::Schema(text) => Ok(TopLevelGrammar::from_json_schema(self.schema(text)?)),
            Self::Grammar(text) => self.lark(text).map(TopLevelGrammar::from_lark),
            Self::Regex(_) | Self::Choice(_) => {
                let start = format!("start: {}", self.expression()?);
                Ok(TopLevelGrammar::from_lark(start))
            }
        }
    }

    /// As a part of a rule of Lark.
    fn expression(&self) -> Result<String> {
        match self {
            Self::Schema(text) => Ok(format!("%json {}", self.schema(text)?)),
            Self::Regex(pattern) => Ok(format!("/{}/", llguidance::regex_to_lark(pattern, ""))),
            Self::Grammar(text) => Ok(format!("%lark {{\n{}\n}}", self.lark(text)?)),
            Self::Choice(texts) => {
                if texts.is_empty()
                    || texts.len() > MAX_CHOICES
                    || texts.iter().any(String::is_empty)
                {
                    let reason =
                        format!("must be from 1 to {MAX_CHOICES} texts, none of them empty");
                    return Err(self.refused(reason));
                }
                let quoted = texts
                    .iter()
                    .map(|text| Value::from(text.as_str()).to_string());
                let quoted: Vec<String> = quoted.collect();
                Ok(format!("({})", quoted.join(" | ")))
            }
        }
    }

    /// A schema as llguidance takes it.
    fn schema(&self, text: &str) -> Result<Value> {
        let schema = serde_json::from_str(text).map_err(|e| {
            self.refused(format!(
                "is no JSON: {e}; give the schema itself, not a file's name"
            ))
        })?;
        json::schema(schema).map_err(|reason| self.refused(reason))
    }

    /// A grammar in Lark.
    fn lark(&self, text: &str) -> Result<String> {
        match gbnf::is_gbnf(text) {
            true => gbnf::to_lark(text).map_err(|reason| self.refused(reason)),
            false => Ok(text.into()),
        }
    }
}

/// The front of a long text, for messages.
fn cut(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.into(),
    }
}

/// The first lines of what llguidance says: behind them it repeats the grammar.
fn said(text: &str) -> String {
    const LINES: usize = 3;
    // An option of the library's; here what may not be approximated is refused.
    let text = text.replace(
        ". Enable 'coerce_one_of' option to approximate oneOf with anyOf",
        " where more than one may fit; use anyOf",
    );
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    cut(&lines.take(LINES).collect::<Vec<_>>().join("; "))
}

/// A vocabulary as llguidance sees it.
struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

impl Vocabulary {
    /// # Errors
    /// [`Error::Unsupported`] for a vocabulary that ends no text, or too large a one.
    fn new(tokenizer: &Arc<Tokenizer>) -> Result<Self> {
        let vocab = tokenizer.vocab();
        let unsupported = |name: &str, supported: &str| Error::Unsupported {
            what: "constraining a vocabulary",
            name: name.into(),
            supported: supported.into(),
        };
        let Some(end) = vocab.end_of_text().first() else {
            return Err(unsupported(
                "without an end-of-text token",
                "those whose texts end",
            ));
        };
        let mut words = Vec::with_capacity(vocab.len());
        let mut bytes = 0usize;
        for id in 0..vocab.len() as u32 {
            let word = match vocab.token_type(id) {
                TokenType::Unused | TokenType::Unknown => Vec::new(),
                TokenType::Control => {
                    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                    word.extend(vocab.text(id).as_bytes());
                    word
                }
                _ => tokenizer.piece(id).unwrap_or_default().to_vec(),
            };
            // A token that it has no room for is never chosen.
            let word = Some(word).filter(|word| word.len() <= LONGEST_TOKEN);
            bytes = word
                .as_ref()
                .map_or(bytes, |word| word.len().saturating_add(bytes));
            words.push(word.unwrap_or_default());
        }
        if bytes > MOST_BYTES {
            let name = format!("of {bytes} bytes");
            return Err(unsupported(&name, &format!("up to {MOST_BYTES} bytes")));
        }
        let info = TokRxInfo::new(vocab.len() as u32, *end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(vocab.end_of_text());
        Ok(Self {
            tokenizer: tokenizer.clone(),
            trie,
        })
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.tokenizer.encode_middle(text),
            // Forced bytes may end within a character.
            Err(_) => self.trie.greedy_tokenize(bytes),
        }
    }
}

/// Compiles constraints for one vocabulary.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    factory: OnceLock<Result<ParserFactory>>,
    /// The one used last is the last.
    kept: Mutex<VecDeque<(Constraint, Matcher)>>,
}

impl Grammars {
    /// For texts of this vocabulary, which is looked at when the first constraint comes.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    fn factory(&self) -> Result<&ParserFactory> {
        let made = self.factory.get_or_init(|| {
            let vocabulary: TokEnv = Arc::new(Vocabulary::new(&self.tokenizer)?);
            let factory = ParserFactory::new_simple(&vocabulary);
            let mut factory = factory.map_err(|e| Error::Internal(format!("llguidance: {e}")))?;
            factory.quiet();
            // They would say the whole grammar and all that was written.
            factory.limits_mut().verbose_errors = false;
            Ok(factory)
        });
        made.as_ref().map_err(Error::clone)
    }

    /// The beginning of a text under a constraint.
    ///
    /// # Errors
    /// [`Error::Argument`] says what is wrong with it; [`Error::Unsupported`] for a vocabulary
    /// that cannot be constrained.
    pub fn begin(&self, constraint: &Constraint) -> Result<Guide> {
        // Of its own: texts beside each other wait for no lock.
        let matcher = self.with_compiled(constraint, Matcher::deep_clone)?;
        Ok(Guide {
            matcher,
            ends: self.tokenizer.vocab().end_of_text().to_vec(),
        })
    }

    /// Compiles a constraint and keeps it; one that is kept already costs nothing.
    ///
    /// # Errors
    /// As [`Grammars::begin`].
    pub fn prepare(&self, constraint: &Constraint) -> Result<()> {
        self.with_compiled(constraint, |_| ())
    }

    /// Whether a text is one of a constraint's, from its beginning to its end.
    ///
    /// # Errors
    /// As [`Grammars::begin`], and as [`Guide::allowed`].
    pub fn fits(&self, constraint: &Constraint, text: &str) -> Result<bool> {
        let mut guide = self.begin(constraint)?;
        guide.is_of(&self.tokenizer.encode_middle(text))
    }

    /// Does something with a constraint as it was compiled, now or before.
    fn with_compiled<T>(&self, constraint: &Constraint, act: impl Fn(&Matcher) -> T) -> Result<T> {
        if constraint.bytes() > MAX_BYTES {
            let reason = format!(
                "has {} bytes; at most {MAX_BYTES} are allowed",
                constraint.bytes()
            );
            return Err(constraint.refused(reason));
        }
        if let Some(done) = self.with_kept(constraint, &act) {
            return Ok(done);
        }
        let matcher = Matcher::new(self.factory()?.create_parser(constraint.grammar()?));
        if let Some(error) = matcher.get_error() {
            return Err(constraint.refused(said(&error)));
        }
        let done = act(&matcher);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((constraint.clone(), matcher));
        while kept.len() > KEPT {
            kept.pop_front();
        }
        Ok(done)
    }

    fn with_kept<T>(&self, constraint: &Constraint, act: impl Fn(&Matcher) -> T) -> Option<T> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == constraint)?;
        let entry = kept.remove(at)?;
        let done = act(&entry.1);
        kept.push_back(entry);
        Some(done)
    }
}

/// Follows one text token by token.
pub struct Guide {
    matcher: Matcher,
    /// Tokens that end a text, ascending.
    ends: Vec<u32>,
}

impl Guide {
    /// The tokens that may come next, of a vocabulary of `n_vocab`; those that end a text among them
    /// where it may end, and alone where it has to.
    ///
    /// # Errors
    /// [`Error::Constraint`] where that takes too long to find out.
    pub fn allowed(&mut self, n_vocab: usize) -> Result<Allowed> {
        let mask = self.matcher.compute_mask_or_eos().map_err(too_much)?;
        let mut words = mask.as_slice().to_vec();
        words.resize(Allowed::words_of(n_vocab), 0);
        Ok(Allowed::from_words(words))
    }

    /// Whether a token ends the text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Whether all of these tokens may come next, and the text may end behind them.
    fn is_of(&mut self, tokens: &[u32]) -> Result<bool> {
        let valid = self.matcher.validate_tokens(tokens).map_err(too_much)?;
        if valid < tokens.len() {
            return Ok(false);
        }
        self.matcher.consume_tokens(tokens).map_err(too_much)?;
        self.matcher.is_accepting().map_err(too_much)
    }

    /// Tokens that are sure to come next: each is the only one allowed behind those before it.
    pub fn forced(&mut self) -> Vec<u32> {
        self.matcher.compute_ff_tokens()
    }

    /// Goes on by one token that was allowed.
    ///
    /// # Errors
    /// As [`Guide::allowed`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token).map_err(too_much)
    }

    /// Goes back by `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Internal`] for more than were taken.
    pub fn back(&mut self, tokens: usize) -> Result<()> {
        let gone = self.matcher.rollback(tokens);
        gone.map_err(|e| Error::Internal(format!("llguidance: {}", said(&e.to_string()))))
    }
}

fn too_much(error: impl std::fmt::Display) -> Error {
    Error::Constraint {
        reason: said(&error.to_string()),
    }
}
