//! Pre-tokenizers: text into the words that byte-level BPE merges within.
//!
//! Each is published as a regular expression with a lookahead, `\s+(?!\S)`. Here they are scanners
//! written by hand: one pass, no backtracking, no recursion, so time is linear in any text.
//! `\p{L}`, `\p{N}`, `\p{P}` are Unicode general categories, `\s` is White_Space.
use std::ops::ControlFlow;

use unicode_general_category::{get_general_category, GeneralCategory as G};

use crate::error::{Error, Result};

/// What takes the words of a text, one by one; it may break.
type Words<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// Calls back with each word of a text.
type Split = fn(&str, Words) -> ControlFlow<()>;

/// How one family of vocabularies splits text.
#[derive(Debug)]
pub struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre` it stands for.
    pub names: &'static [&'static str],
    /// A word that is a token as a whole is not merged.
    pub ignore_merges: bool,
    /// Where the file does not say `add_bos_token`.
    pub add_bos: bool,
    split: Split,
}

/// Every pre-tokenizer there is; to add one is to add a row.
static TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        ignore_merges: false,
        add_bos: false,
        split: split_default,
    },
    PreTokenizer {
        names: &["gpt-2", "phi-2"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, gpt2, word),
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        ignore_merges: false,
        add_bos: false,
        split: split_smollm,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        ignore_merges: true,
        add_bos: true,
        split: |text, word| scan(text, |rest| llama3(rest, 3), word),
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 1), word),
    },
];

impl PreTokenizer {
    /// The row of a `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] lists the names there are.
    pub fn by_name(name: &str) -> Result<&'static Self> {
        TABLE
            .iter()
            .find(|row| row.names.contains(&name))
            .ok_or_else(|| Error::Unsupported {
                what: "pre-tokenizer",
                name: name.chars().take(80).collect(),
                supported: Self::names().collect::<Vec<_>>().join(", "),
            })
    }

    /// Every name there is.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().flat_map(|row| row.names).copied()
    }

    /// Calls `word` with each word, until it breaks; together they are the whole text.
    pub fn split(
        &self,
        text: &str,
        word: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        (self.split)(text, word)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        '\t'..='\r' | ' ' => Class::Space,
        '\0'..='\x7F' => Class::Other,
        _ if c.is_whitespace() => Class::Space,
        _ => match get_general_category(c) {
            G::UppercaseLetter
            | G::LowercaseLetter
            | G::TitlecaseLetter
            | G::ModifierLetter
            | G::OtherLetter => Class::Letter,
            G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
            _ => Class::Other,
        },
    }
}

fn is_punctuation(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation
    )
}

/// Bytes of the characters in front that fulfil `keep`.
fn run(text: &str, keep: impl Fn(char) -> bool) -> usize {
    let end = text.find(|c| !keep(c)).unwrap_or(text.len());
    #[cfg(test)]
    LOOKED.set(LOOKED.get().saturating_add(end).saturating_add(1));
    end
}

#[cfg(test)]
thread_local! {
    /// Bytes that [`run`] has looked at on this thread: what a pre-tokenizer's work is counted in.
    pub(super) static LOOKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn run_of(text: &str, of: Class) -> usize {
    run(text, |c| class(c) == of)
}

fn after(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or("")
}

/// Cuts `text` into pieces of the length that `next` gives for what is left (at least one byte).
fn scan(text: &str, next: impl Fn(&str) -> usize, word: Words) -> ControlFlow<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let Some((piece, after)) = rest
            .split_at_checked(next(rest))
            .filter(|(p, _)| !p.is_empty())
        else {
            return word(rest);
        };
        word(piece)?;
        rest = after;
    }
    ControlFlow::Continue(())
}

/// Cuts `text` where runs of characters that fulfil `apart` start and end.
fn isolate(
    text: &str,
    apart: impl Fn(char) -> bool,
    piece: &mut dyn FnMut(&str, bool) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let inside = apart(c);
        let end = run(rest, |c| apart(c) == inside);
        let (front, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        piece(front, inside)?;
        rest = after;
    }
    ControlFlow::Continue(())
}

/// `\s+(?!\S)|\s+` on a text that starts with a space of `first` bytes: the last space of a run is
/// left to the word behind it.
fn spaces(text: &str, first: usize) -> usize {
    let end = run_of(text, Class::Space);
    if end == text.len() {
        return end;
    }
    let last = text
        .get(..end)
        .and_then(|run| run.chars().next_back())
        .map_or(0, char::len_utf8);
    end.saturating_sub(last).max(first)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &str) -> usize {
    let mut chars = text.chars();
    let Some(c) = chars.next() else { return 0 };
    if c == '\'' {
        for suffix in ["s", "t", "re", "ve", "m", "ll", "d"] {
            if chars.as_str().starts_with(suffix) {
                return suffix.len().saturating_add(1);
            }
        }
    }
    let (skip, first) = match chars.next() {
        Some(next) if c == ' ' => (1, class(next)),
        _ => (0, class(c)),
    };
    match first {
        Class::Space => spaces(text, c.len_utf8()),
        of => run_of(after(text, skip), of).saturating_add(skip),
    }
}

/// Bytes of `(?i:'s|'t|'re|'ve|'m|'ll|'d)`. Case-insensitively, the long s is an s.
fn contraction(text: &str) -> Option<usize> {
    let mut chars = text.chars();
    if chars.next() != Some('\'') {
        return None;
    }
    let one = chars.next()?;
    match one.to_ascii_lowercase() {
        's' | 't' | 'm' | 'd' | 'ſ' => return one.len_utf8().checked_add(1),
        _ => {}
    }
    let two = chars.next()?;
    match (one.to_ascii_lowercase(), two.to_ascii_lowercase()) {
        ('r' | 'v', 'e') | ('l', 'l') => Some(3),
        _ => None,
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|`
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn llama3(text: &str, digits: usize) -> usize {
    if let Some(end) = contraction(text) {
        return end;
    }
    let mut chars = text.chars();
    let Some(c) = chars.next() else { return 0 };
    let (first, second) = (class(c), chars.next().map(class));
    let is_newline = |c: char| c == '\r' || c == '\n';
    match (first, second) {
        (Class::Letter, _) => run_of(text, Class::Letter),
        (Class::Space | Class::Other, Some(Class::Letter)) if !is_newline(c) => {
            let skip = c.len_utf8();
            run_of(after(text, skip), Class::Letter).saturating_add(skip)
        }
        (Class::Number, _) => text
            .chars()
            .take(digits)
            .take_while(|c| class(*c) == Class::Number)
            .fold(0, |n: usize, c| n.saturating_add(c.len_utf8())),
        (Class::Other, _) | (Class::Space, Some(Class::Other))
            if first == Class::Other || c == ' ' =>
        {
            let skip = if first == Class::Other { 0 } else { 1 };
            let end = run_of(after(text, skip), Class::Other).saturating_add(skip);
            run(after(text, end), is_newline).saturating_add(end)
        }
        _ => {
            let end = run_of(text, Class::Space);
            let newline = text.get(..end).and_then(|run| run.rfind(is_newline));
            match newline {
                Some(at) => at.saturating_add(1),
                None => spaces(text, c.len_utf8()),
            }
        }
    }
}

/// `\p{N}` apart, GPT-2's expression between.
fn split_smollm(text: &str, word: Words) -> ControlFlow<()> {
    let is_number = |c| class(c) == Class::Number;
    isolate(text, is_number, &mut |piece, number| {
        if number {
            scan(
                piece,
                |rest| rest.chars().next().map_or(0, char::len_utf8),
                word,
            )
        } else {
            scan(piece, gpt2, word)
        }
    })
}

/// `[\p{P}\$\+<=>\^~\|]+` apart, GPT-2's expression between, then `\p{N}+` apart, then every three
/// ASCII digits.
fn split_default(text: &str, word: Words) -> ControlFlow<()> {
    let is_mark = |c: char| "$+<=>^~|".contains(c) || is_punctuation(c);
    let is_number = |c| class(c) == Class::Number;
    isolate(text, is_mark, &mut |piece, _| {
        scan(piece, gpt2, &mut |piece| {
            isolate(piece, is_number, &mut |piece, number| {
                if number {
                    split_triples(piece, word)
                } else {
                    word(piece)
                }
            })
        })
    })
}

/// `[0-9][0-9][0-9]` apart, what lies between in one piece.
fn split_triples(text: &str, word: Words) -> ControlFlow<()> {
    let (mut gap, mut rest) = (text, text);
    while let Some(c) = rest.chars().next() {
        let triple = rest
            .split_at_checked(3)
            .filter(|(t, _)| t.bytes().all(|b| b.is_ascii_digit()));
        let Some((triple, behind)) = triple else {
            rest = after(rest, c.len_utf8());
            continue;
        };
        let before = gap.len().saturating_sub(rest.len());
        if let Some(before) = gap.get(..before).filter(|g| !g.is_empty()) {
            word(before)?;
        }
        word(triple)?;
        (gap, rest) = (behind, behind);
    }
    if gap.is_empty() {
        return ControlFlow::Continue(());
    }
    word(gap)
}
