//! Pre-tokenizers: text into the words that BPE merges within.
//!
//! Each is published as a regular expression with a lookahead, `\s+(?!\S)`. Here they are scanners
//! written by hand: one pass, no backtracking, no recursion, so time is linear in any text.
//! `\p{L}`, `\p{N}`, `\p{P}` are Unicode general categories, `\s` is White_Space.
use std::ops::ControlFlow;

use super::characters::{
    case, class, is_deepseek_east_asian, is_deepseek_letter, is_deepseek_mark,
    is_deepseek_v3_east_asian, is_newline, is_punctuation, is_symbol, marked_class, Case, Class,
};
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
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
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
            "mellum2",
        ],
        ignore_merges: false,
        add_bos: false,
        split: split_smollm,
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        ignore_merges: true,
        add_bos: true,
        split: |text, word| scan(text, |rest| llama3(rest, 3, class, is_newline), word),
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 3, class, is_newline), word),
    },
    PreTokenizer {
        names: &["glm4", "glm5"],
        ignore_merges: true,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 3, class, is_newline), word),
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "kormo",
            "f2llmv2",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 1, class, is_newline), word),
    },
    PreTokenizer {
        names: &["laguna"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| {
            let piece = |rest: &str| llama3(rest, 1, class, is_newline);
            isolate(text, |c| c == '\n', &mut |line, _| scan(line, piece, word))
        },
    },
    PreTokenizer {
        names: &["seed-coder"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 1, class, |_| false), word),
    },
    PreTokenizer {
        names: &["qwen35"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, |rest| llama3(rest, 1, marked_class, is_newline), word),
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        ignore_merges: false,
        add_bos: false,
        split: |text, word| scan(text, gpt4o, word),
    },
    PreTokenizer {
        names: &["tekken"],
        ignore_merges: true,
        add_bos: true,
        split: |text, word| scan(text, tekken, word),
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        ignore_merges: false,
        add_bos: false,
        split: split_deepseek_llm,
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        ignore_merges: false,
        add_bos: false,
        split: split_deepseek_coder,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        ignore_merges: false,
        add_bos: false,
        split: split_deepseek_v3,
    },
    PreTokenizer {
        names: &["falcon"],
        ignore_merges: false,
        add_bos: false,
        split: split_falcon,
    },
];

/// `[^\n]+|[\n]+`: what Gemma 4 merges within. Its model alone implies it.
pub(super) static LINES: PreTokenizer = PreTokenizer {
    names: &["gemma4"],
    ignore_merges: false,
    add_bos: true,
    split: |text, word| isolate(text, |c| c == '\n', &mut |piece, _| word(piece)),
};

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

    /// One name of each.
    #[cfg(test)]
    pub fn families() -> impl Iterator<Item = &'static str> {
        TABLE.iter().filter_map(|row| row.names.first()).copied()
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
/// ` ?[^\s\p{L}\p{N}]+[behind]*|\s*[\r\n]+|\s+(?!\S)|\s+`, with `class` for what a letter is.
fn llama3(text: &str, digits: usize, class: fn(char) -> Class, behind: fn(char) -> bool) -> usize {
    if let Some(end) = contraction(text) {
        return end;
    }
    let letters = |text| run(text, |c| class(c) == Class::Letter);
    let mut chars = text.chars();
    let Some(c) = chars.next() else { return 0 };
    match (class(c), chars.next().map(class)) {
        (Class::Letter, _) => letters(text),
        (Class::Space | Class::Other, Some(Class::Letter)) if !is_newline(c) => {
            let skip = c.len_utf8();
            letters(after(text, skip)).saturating_add(skip)
        }
        _ => no_word(text, digits, class, behind),
    }
}

/// `\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[behind]*|\s*[\r\n]+|\s+(?!\S)|\s+` where no letter is.
fn no_word(text: &str, digits: usize, class: fn(char) -> Class, behind: fn(char) -> bool) -> usize {
    let mut chars = text.chars();
    let Some(c) = chars.next() else { return 0 };
    let first = class(c);
    match (first, chars.next().map(class)) {
        (Class::Number, _) => text
            .chars()
            .take(digits)
            .take_while(|c| class(*c) == Class::Number)
            .fold(0, |n: usize, c| n.saturating_add(c.len_utf8())),
        (Class::Other, _) | (Class::Space, Some(Class::Other))
            if first == Class::Other || c == ' ' =>
        {
            let skip = if first == Class::Other { 0 } else { 1 };
            let end = run(after(text, skip), |c| class(c) == Class::Other).saturating_add(skip);
            run(after(text, end), behind).saturating_add(end)
        }
        _ => blank(text, c.len_utf8()),
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` on a text that starts with a space of `first` bytes.
fn blank(text: &str, first: usize) -> usize {
    let end = run_of(text, Class::Space);
    let newline = text.get(..end).and_then(|run| run.rfind(is_newline));
    match newline {
        Some(at) => at.saturating_add(1),
        None => spaces(text, first),
    }
}

/// `word(?i:'s|'t|'re|'ve|'m|'ll|'d)?` of [`cased_word`], up to three digits, the rest as
/// [`no_word`]: GPT-4o.
fn gpt4o(text: &str) -> usize {
    match cased_word(text) {
        Some(end) => contraction(after(text, end)).map_or(end, |more| end.saturating_add(more)),
        None => no_word(text, 3, class, is_behind_marks),
    }
}

/// [`cased_word`], single digits, the rest as [`no_word`]: Mistral's.
fn tekken(text: &str) -> usize {
    cased_word(text).unwrap_or_else(|| no_word(text, 1, class, is_behind_marks))
}

/// `[\r\n/]`
fn is_behind_marks(c: char) -> bool {
    is_newline(c) || c == '/'
}

/// Bytes of `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
/// or else `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`.
fn cased_word(text: &str) -> Option<usize> {
    let c = text.chars().next()?;
    let in_front = !is_newline(c) && matches!(class(c), Class::Space | Class::Other);
    let skip = if in_front { c.len_utf8() } else { 0 };
    let body = after(text, skip);
    let is_front = |c| matches!(case(c), Case::Upper | Case::Either);
    let front = run(body, is_front);
    let behind = run(after(body, front), |c| {
        matches!(case(c), Case::Lower | Case::Either)
    });
    let end = if behind > 0 {
        front.saturating_add(behind)
    } else if let Some((at, last)) = body
        .get(..front)
        .into_iter()
        .flat_map(str::char_indices)
        .rfind(|(_, c)| case(*c) == Case::Either)
    {
        // The first alternative needs one that may stand behind, and takes the last there is.
        at.saturating_add(last.len_utf8())
    } else if case(c) == Case::Either {
        // The same, where the only one is the mark that might have been in front of the word.
        0
    } else {
        // The second alternative: capitals only.
        Some(front).filter(|front| *front > 0)?
    };
    skip.checked_add(end)
}

/// `\p{N}` apart, GPT-2's expression between.
fn split_smollm(text: &str, word: Words) -> ControlFlow<()> {
    let is_number = |c| class(c) == Class::Number;
    isolate(text, is_number, &mut |piece, number| {
        if number {
            split_characters(piece, word)
        } else {
            scan(piece, gpt2, word)
        }
    })
}

/// `[\p{P}\$\+<=>\^~\|]+`
fn is_default_mark(c: char) -> bool {
    "$+<=>^~|".contains(c) || is_punctuation(c)
}

/// [`is_default_mark`] apart, GPT-2's expression between, then `\p{N}+` apart, then every three
/// ASCII digits.
fn split_default(text: &str, word: Words) -> ControlFlow<()> {
    isolate(text, is_default_mark, &mut |piece, _| {
        scan(piece, gpt2, &mut |piece| split_numbers(piece, word))
    })
}

/// `\p{N}+` apart, and of it every three ASCII digits.
fn split_numbers(text: &str, word: Words) -> ControlFlow<()> {
    let is_number = |c| class(c) == Class::Number;
    isolate(text, is_number, &mut |piece, number| {
        if number {
            split_triples(piece, word)
        } else {
            word(piece)
        }
    })
}

/// The default's marks and the backtick apart, GPT-2's expression between, then every three ASCII
/// digits.
fn split_falcon(text: &str, word: Words) -> ControlFlow<()> {
    let is_mark = |c| c == '`' || is_default_mark(c);
    isolate(text, is_mark, &mut |piece, _| {
        scan(piece, gpt2, &mut |piece| split_triples(piece, word))
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

/// Newlines apart, one by one.
fn split_newlines(text: &str, piece: Words) -> ControlFlow<()> {
    isolate(text, is_newline, &mut |part, newlines| {
        if newlines {
            split_characters(part, piece)
        } else {
            piece(part)
        }
    })
}

/// Every character apart.
fn split_characters(text: &str, word: Words) -> ControlFlow<()> {
    scan(
        text,
        |rest| rest.chars().next().map_or(0, char::len_utf8),
        word,
    )
}

/// `\s?[of]+` apart: runs of a class, with one space in front where there is one.
fn spaced(text: &str, of: fn(char) -> bool, piece: Words) -> ControlFlow<()> {
    let (mut gap, mut rest) = (text, text);
    while let Some(c) = rest.chars().next() {
        let first = c.len_utf8();
        let behind = after(rest, first).chars().next();
        let skip = match behind {
            Some(next) if class(c) == Class::Space && of(next) => first,
            _ if of(c) => 0,
            _ => {
                rest = after(rest, first);
                continue;
            }
        };
        let before = gap.len().saturating_sub(rest.len());
        if let Some(before) = gap.get(..before).filter(|g| !g.is_empty()) {
            piece(before)?;
        }
        let end = run(after(rest, skip), of).saturating_add(skip);
        let (found, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
        piece(found)?;
        (gap, rest) = (behind, behind);
    }
    if gap.is_empty() {
        return ControlFlow::Continue(());
    }
    piece(gap)
}

/// `\s+$` apart.
fn split_trailing_space(text: &str, piece: Words) -> ControlFlow<()> {
    let (front, space) = text
        .split_at_checked(text.trim_end().len())
        .unwrap_or((text, ""));
    for part in [front, space] {
        if !part.is_empty() {
            piece(part)?;
        }
    }
    ControlFlow::Continue(())
}

/// `[\r\n]`, `\s?[letters]+`, `\s?[marks]+`, `\s+$`, `[East Asian]+`, `\p{N}+` apart, each in what
/// those before it left: DeepSeek LLM.
fn split_deepseek_llm(text: &str, word: Words) -> ControlFlow<()> {
    let is_number = |c| class(c) == Class::Number;
    split_newlines(text, &mut |piece| {
        spaced(piece, is_deepseek_letter, &mut |piece| {
            spaced(piece, is_deepseek_mark, &mut |piece| {
                split_trailing_space(piece, &mut |piece| {
                    isolate(piece, is_deepseek_east_asian, &mut |piece, _| {
                        isolate(piece, is_number, &mut |piece, _| word(piece))
                    })
                })
            })
        })
    })
}

/// `[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[East Asian]+`, `\p{N}` apart, each in what those before it
/// left: DeepSeek Coder.
fn split_deepseek_coder(text: &str, word: Words) -> ControlFlow<()> {
    let is_letter = |c| class(c) == Class::Letter;
    let is_number = |c| class(c) == Class::Number;
    split_newlines(text, &mut |piece| {
        spaced(piece, is_letter, &mut |piece| {
            spaced(piece, is_punctuation, &mut |piece| {
                isolate(piece, is_deepseek_east_asian, &mut |piece, _| {
                    isolate(piece, is_number, &mut |piece, number| {
                        if number {
                            split_characters(piece, word)
                        } else {
                            word(piece)
                        }
                    })
                })
            })
        })
    })
}

/// `\p{N}{1,3}` apart, then `[East Asian]+`, and each of these pieces as [`deepseek_v3`]: a number is what
/// that leaves.
fn split_deepseek_v3(text: &str, word: Words) -> ControlFlow<()> {
    let three = |rest: &str| {
        let lengths = rest.chars().take(3).map(char::len_utf8);
        lengths.fold(0, usize::saturating_add)
    };
    isolate(text, |c| class(c) == Class::Number, &mut |piece, number| {
        if number {
            scan(piece, three, word)
        } else {
            isolate(piece, is_deepseek_v3_east_asian, &mut |piece, _| {
                scan(piece, deepseek_v3, word)
            })
        }
    })
}

/// `[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|`
/// `\s*[\r\n]+|\s+(?!\S)|\s+`, or what lies before the next of them, of a text without numbers.
fn deepseek_v3(text: &str) -> usize {
    let is_word = |c| marked_class(c) == Class::Letter;
    let is_sign = |c| is_punctuation(c) || is_symbol(c);
    let mut chars = text.chars();
    let Some(c) = chars.next() else { return 0 };
    let (first, next) = (c.len_utf8(), chars.next());
    let rest = after(text, first);
    if c.is_ascii_punctuation() && next.is_some_and(|c| c.is_ascii_alphabetic()) {
        return run(rest, |c| c.is_ascii_alphabetic()).saturating_add(first);
    }
    if is_word(c) {
        return run(text, is_word);
    }
    if !is_newline(c) && !is_sign(c) && next.is_some_and(is_word) {
        return run(rest, is_word).saturating_add(first);
    }
    if is_sign(c) || c == ' ' && next.is_some_and(is_sign) {
        let end = run(rest, is_sign).saturating_add(first);
        return run(after(text, end), is_newline).saturating_add(end);
    }
    if class(c) == Class::Space {
        return blank(text, first);
    }
    let (mut end, mut chars) = (first, rest.chars().peekable());
    while let Some(c) = chars.next() {
        let is_taken = class(c) == Class::Space || is_word(c) || is_sign(c);
        if is_taken || chars.peek().is_some_and(|next| is_word(*next)) {
            break;
        }
        end = end.saturating_add(c.len_utf8());
    }
    end
}
