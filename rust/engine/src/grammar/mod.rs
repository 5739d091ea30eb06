//! Constrained decoding: which tokens may come next under a grammar. A thin layer over `llguidance`, which
//! has a lexer of regular expressions and an Earley parser, and walks the vocabulary as a trie.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};

use crate::error::{Error, Result};
use crate::sampler::Allowed;
use crate::tokenizer::{TokenType, Tokenizer};

mod alternatives;
mod answer;
mod bounds;
mod budget;
mod element;
mod gbnf;
mod json;
mod judge;
mod keys;
mod keywords;
mod lark;
mod links;
mod members;
mod notation;
mod patterns;
mod quote;
mod references;
mod said;
mod schema;
mod texts;

pub use answer::{of_answer, Callable, Held};
pub use budget::Budget;
use budget::Reasoning;
use keys::Keys;
use lark::{check_repeated, literal, Lines};
use said::said;

/// Stack of a thread that compiles a constraint: what recurses there goes as deep as [`links::LONGEST`]
/// and a grammar within another, each level of less than 64 KiB.
const STACK: usize = 256 << 20;

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
    /// A grammar of our own for a whole answer, as [`of_answer`] makes it.
    Answer(String),
}

impl Constraint {
    /// Its name as an option, and its text or a part of it.
    fn named(&self) -> (&'static str, String) {
        match self {
            Self::Schema(text) => ("schema", cut(text)),
            Self::Regex(text) => ("regex", cut(text)),
            Self::Grammar(text) => ("grammar", cut(text)),
            Self::Choice(texts) => ("choice", format!("{} texts", texts.len())),
            Self::Answer(text) => ("tools", format!("{} bytes", text.len())),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Schema(text) | Self::Regex(text) | Self::Grammar(text) | Self::Answer(text) => {
                text.len()
            }
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

    /// In llguidance's dialect of Lark.
    fn grammar(&self) -> Result<String> {
        match self {
            Self::Grammar(text) => return self.lark(text),
            Self::Answer(text) => return Ok(text.clone()),
            _ => {}
        }
        let mut lines = Lines::default();
        let start = self.expression(&mut lines)?;
        Ok(format!("start: {start}\n{}", lines.text))
    }

    /// As a part of a rule of Lark, with further rules.
    fn expression(&self, lines: &mut Lines) -> Result<String> {
        match self {
            Self::Schema(text) => {
                let schema = json::read(text);
                let found = schema.and_then(|schema| notation::value(lines, &schema, false));
                Ok(format!(
                    "({})",
                    found.map_err(|reason| self.refused(reason))?
                ))
            }
            Self::Regex(pattern) => {
                check_repeated(pattern).map_err(|reason| self.refused(reason))?;
                Ok(format!("/{}/", llguidance::regex_to_lark(pattern, "")))
            }
            Self::Grammar(text) => Ok(format!("%lark {{\n{}\n}}", self.lark(text)?)),
            Self::Answer(text) => Ok(format!("%lark {{\n{text}\n}}")),
            Self::Choice(texts) => {
                if texts.is_empty()
                    || texts.len() > MAX_CHOICES
                    || texts.iter().any(String::is_empty)
                {
                    let reason =
                        format!("must be from 1 to {MAX_CHOICES} texts, none of them empty");
                    return Err(self.refused(reason));
                }
                let quoted = texts.iter().map(|text| literal(text).trim().to_owned());
                let quoted: Vec<String> = quoted.collect();
                // One lexeme, however many there are.
                Ok(lines.terminal(&quoted.join(" | ")))
            }
        }
    }

    /// A grammar in Lark.
    fn lark(&self, text: &str) -> Result<String> {
        let found = match gbnf::is_gbnf(text) {
            true => gbnf::to_lark(text).and_then(|text| links::check_terms(&text).map(|()| text)),
            false => links::check_terms(text).and_then(|()| links::with_schemas(text)),
        };
        found.map_err(|reason| self.refused(reason))
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
    /// Tokens with quotes in them, and how many.
    quotes: OnceLock<Arc<[(u32, usize)]>>,
    /// The one used last is the last.
    kept: Mutex<VecDeque<(Constraint, Matcher)>>,
}

impl Grammars {
    /// For texts of this vocabulary, which is looked at when the first constraint comes.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            quotes: OnceLock::new(),
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
        let quotes = || keys::with_quotes(&self.tokenizer).into();
        Ok(Guide {
            matcher: Some(matcher),
            keys: match constraint {
                Constraint::Schema(_) => Some(Keys::of_json()),
                Constraint::Answer(text) => Keys::of_grammar(text),
                _ => None,
            },
            quotes: self.quotes.get_or_init(quotes).clone(),
            ..self.free()
        })
    }

    /// The beginning of any text.
    fn free(&self) -> Guide {
        Guide {
            matcher: None,
            ends: self.tokenizer.vocab().end_of_text().to_vec(),
            keys: None,
            quotes: Arc::default(),
            reasoning: None,
            tokenizer: self.tokenizer.clone(),
        }
    }

    /// The beginning of a text that may have a constraint, and a budget of its reasoning; `None` of one that
    /// has neither.
    ///
    /// # Errors
    /// As [`Grammars::begin`].
    pub fn follow(
        &self,
        constraint: Option<&Constraint>,
        budget: Option<&Budget>,
    ) -> Result<Option<Guide>> {
        let guide = constraint.map(|constraint| self.begin(constraint));
        let guide = guide.transpose()?;
        Ok(match budget {
            None => guide,
            Some(budget) => Some(Guide {
                reasoning: Some(Reasoning::new(budget.clone(), &self.tokenizer)),
                ..guide.unwrap_or_else(|| self.free())
            }),
        })
    }

    /// Compiles a constraint and keeps it; one that is kept already costs nothing.
    ///
    /// # Errors
    /// As [`Grammars::begin`].
    pub fn prepare(&self, constraint: &Constraint) -> Result<()> {
        self.with_compiled(constraint, |_| ())
    }

    /// Whether a text is one of a constraint's, from its beginning to its end. Keys of JSON are what they
    /// are read as, however they are escaped.
    ///
    /// # Errors
    /// As [`Grammars::begin`], and as [`Guide::allowed`].
    pub fn fits(&self, constraint: &Constraint, text: &str) -> Result<bool> {
        let mut guide = self.begin(constraint)?;
        let text: Cow<'_, str> = match constraint {
            Constraint::Schema(_) => keys::respelled(text).into(),
            _ => text.into(),
        };
        guide.is_of(&self.tokenizer.encode_middle(&text))
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
        let factory = self.factory()?;
        let matcher = on_a_stack(|| compiled(factory, constraint))?;
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

/// Does something that recurses, on a stack that is deep enough for it.
///
/// # Errors
/// Its own, and [`Error::Internal`] where no such stack is to be had.
pub(crate) fn on_a_stack<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into());
        let thread = thread.stack_size(STACK).spawn_scoped(scope, act);
        let thread = thread.map_err(|e| Error::Internal(format!("a thread for a grammar: {e}")))?;
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A constraint, compiled.
fn compiled(factory: &ParserFactory, constraint: &Constraint) -> Result<Matcher> {
    let text = constraint.grammar()?;
    links::check(&text).map_err(|reason| constraint.refused(reason))?;
    let parser = factory.create_parser(TopLevelGrammar::from_lark(text));
    let matcher = Matcher::new(parser);
    if let Some(error) = matcher.get_error() {
        return Err(constraint.refused(said(&error)));
    }
    // What it allows first is known then, and not when the first token is due.
    let nothing = matcher
        .deep_clone()
        .compute_mask_or_eos()
        .map(|mask| mask.is_zero());
    match nothing {
        Ok(false) => Ok(matcher),
        Ok(true) => Err(constraint.refused("allows nothing: no text matches it")),
        Err(e) => Err(constraint.refused(said(&e.to_string()))),
    }
}

/// Follows one text token by token.
pub struct Guide {
    /// Of a constraint.
    matcher: Option<Matcher>,
    /// Tokens that end a text, ascending.
    ends: Vec<u32>,
    /// What the text has of keys, where it is JSON.
    keys: Option<Keys>,
    quotes: Arc<[(u32, usize)]>,
    /// Where its reasoning has a budget.
    reasoning: Option<Reasoning>,
    tokenizer: Arc<Tokenizer>,
}

impl Guide {
    /// The tokens that may come next, of a vocabulary of `n_vocab`; those that end a text among them
    /// where it may end, and alone where it has to.
    ///
    /// # Errors
    /// [`Error::Constraint`] where that takes too long to find out.
    pub fn allowed(&mut self, n_vocab: usize) -> Result<Allowed> {
        let words = Allowed::words_of(n_vocab);
        let mut allowed = vec![u32::MAX; words];
        if let Some(matcher) = &mut self.matcher {
            let mask = matcher.compute_mask_or_eos().map_err(too_much)?;
            allowed = mask.as_slice().to_vec();
        }
        if let Some(keys) = &self.keys {
            keys.restrict(&mut allowed, &self.tokenizer, &self.quotes);
        }
        allowed.resize(words, 0);
        let allowed = Allowed::from_words(allowed);
        // What a form does not allow now may come a token later.
        let due = self.due().first().filter(|due| allowed.contains(**due));
        Ok(due.map_or(allowed, |due| {
            let mut only = Allowed::from_words(vec![0; words]);
            only.insert(*due);
            only
        }))
    }

    /// What is left of the marker that closes its reasoning, where that has all of its tokens.
    fn due(&self) -> &[u32] {
        self.reasoning.as_ref().map_or(&[], Reasoning::due)
    }

    /// Whether a token ends the text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// Whether all of these tokens may come next, and the text may end behind them.
    fn is_of(&mut self, tokens: &[u32]) -> Result<bool> {
        let texts = tokens.iter().flat_map(|token| self.text(*token));
        let text: Vec<u8> = texts.copied().collect();
        if self.keys.as_ref().is_some_and(|keys| !keys.fits(&text)) {
            return Ok(false);
        }
        let Some(matcher) = &mut self.matcher else {
            return Ok(true);
        };
        let valid = matcher.validate_tokens(tokens).map_err(too_much)?;
        if valid < tokens.len() {
            return Ok(false);
        }
        matcher.consume_tokens(tokens).map_err(too_much)?;
        matcher.is_accepting().map_err(too_much)
    }

    /// Tokens that are sure to come next: each is the only one allowed behind those before it.
    pub fn forced(&mut self) -> Vec<u32> {
        let mut due = self.due().to_vec();
        let Some(matcher) = &mut self.matcher else {
            return due;
        };
        due.truncate(matcher.validate_tokens(&due).unwrap_or(0));
        if !due.is_empty() {
            return due;
        }
        let mut forced = matcher.compute_ff_tokens();
        if let Some(keys) = &self.keys {
            let mut ahead = keys.clone();
            let fits = forced
                .iter()
                .take_while(|token| ahead.take(self.text(**token)))
                .count();
            forced.truncate(fits);
        }
        forced
    }

    /// What a token writes; of a control token, how it is spelled.
    fn text(&self, token: u32) -> &[u8] {
        let spelled = || self.tokenizer.vocab().text(token).as_bytes();
        match self.tokenizer.is_special(token) {
            true => spelled(),
            false => self.tokenizer.piece(token).unwrap_or_default(),
        }
    }

    /// Goes on by one token that was allowed.
    ///
    /// # Errors
    /// As [`Guide::allowed`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        if let Some(matcher) = &mut self.matcher {
            matcher.consume_token(token).map_err(too_much)?;
        }
        if let Some(mut keys) = self.keys.take() {
            keys.take(self.text(token));
            self.keys = Some(keys);
        }
        if let Some(mut reasoning) = self.reasoning.take() {
            reasoning.take(token, self.text(token));
            self.reasoning = Some(reasoning);
        }
        Ok(())
    }

    /// Goes back by `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Internal`] for more than were taken.
    pub fn back(&mut self, tokens: usize) -> Result<()> {
        let keys = self.keys.as_mut().is_none_or(|keys| keys.back(tokens));
        let reasoning = self.reasoning.as_mut().is_none_or(|r| r.back(tokens));
        if !keys || !reasoning {
            return Err(Error::Internal(format!("{tokens} tokens back in a text")));
        }
        let gone = self.matcher.as_mut().map(|m| m.rollback(tokens));
        let gone = gone.transpose().map(drop);
        gone.map_err(|e| Error::Internal(format!("llguidance: {}", said(&e.to_string()))))
    }
}

fn too_much(error: impl std::fmt::Display) -> Error {
    Error::Constraint {
        reason: said(&error.to_string()),
    }
}
