//! Patterns of ECMAScript as regular expressions of Rust.

use std::iter::Peekable;
use std::str::Chars;

use llguidance::derivre::Regex;

use super::lark::{check_repeated, regex_of, ANY};

/// Whether a pattern is found in a text.
///
/// # Errors
/// The pattern, where it cannot be held.
pub(super) fn has(pattern: &str, text: &str) -> Result<bool, String> {
    let named = || format!("pattern {pattern:?}");
    let regex = found(pattern).ok_or_else(named)?;
    Ok(Regex::new(&regex).map_err(|_| named())?.is_match(text))
}

/// What one side of a `|` is.
#[derive(Default)]
struct Branch {
    text: String,
    /// Whether it holds at the beginning of a text alone, and at the end.
    begin: bool,
    end: bool,
}

/// What `\d`, `\w` and `\s` mean, within brackets: in ECMAScript and in Python too, whose validators
/// know more digits, letters and spaces. Where others are meant, those of neither are.
fn class_of(letter: char, others: bool) -> Option<&'static str> {
    match (letter, others) {
        ('d', false) => Some("0-9"),
        ('d', true) => Some(r"\d"),
        ('w', false) => Some("0-9A-Za-z_"),
        ('w', true) => Some(r"\w\p{N}"),
        ('s', false) => Some(
            "\\t-\\r \\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\
             \\x{202F}\\x{205F}\\x{3000}",
        ),
        ('s', true) => Some(r"\s\x{1C}-\x{1F}\x{FEFF}"),
        _ => None,
    }
}

/// Texts in which a pattern of ECMAScript is found; `None` where Rust's may mean something else.
pub(super) fn found(pattern: &str) -> Option<String> {
    check_repeated(pattern).ok()?;
    let mut branches = vec![Branch::default()];
    // Within brackets: whether others are meant.
    let (mut depth, mut class) = (0usize, None::<bool>);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        let branch = branches.last_mut()?;
        let text = &mut branch.text;
        match (c, class) {
            ('\\', _) => escaped(&mut chars, class, text)?,
            (']', Some(_)) => {
                class = None;
                text.push(c);
            }
            // Rust gives these a meaning within brackets.
            ('[', Some(_)) => return None,
            ('&' | '-' | '~', Some(_)) if next == Some(c) => return None,
            ('[', None) if next != Some(']') => {
                class = Some(next == Some('^'));
                text.push(c);
            }
            ('(', None) => {
                depth = depth.checked_add(1)?;
                text.push(c);
                if next == Some('?') {
                    chars.next();
                    match chars.next()? {
                        ':' => text.push_str("?:"),
                        // A group with a name.
                        '<' if chars.peek().is_some_and(|c| c.is_alphabetic()) => {
                            while chars.next()? != '>' {}
                        }
                        _ => return None,
                    }
                }
            }
            (')', None) => {
                depth = depth.checked_sub(1)?;
                text.push(c);
            }
            ('|', None) if depth == 0 => branches.push(Branch::default()),
            ('^', None) if depth == 0 && text.is_empty() && !branch.begin => branch.begin = true,
            ('$', None) if depth == 0 && matches!(next, None | Some('|')) => branch.end = true,
            ('^' | '$' | '[', None) => return None,
            ('.', None) => text.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            // A brace that counts nothing stands for itself.
            ('{', None) if !counts_times(chars.clone()) => text.push_str(r"\{"),
            ('/', _) => text.push_str(r"\/"),
            (c, _) if c.is_control() => text.push_str(&regex_of(&c.to_string())),
            (c, _) => text.push(c),
        }
    }
    if class.is_some() || depth > 0 {
        return None;
    }
    let each = branches.iter().map(|branch| {
        let open = |closed: bool| if closed { "" } else { ANY };
        let (before, behind) = (open(branch.begin), open(branch.end));
        format!("{before}(?:{}){behind}", branch.text)
    });
    Some(format!("(?:{})", each.collect::<Vec<_>>().join("|")))
}

/// Whether `3}`, `3,}` or `3,4}` comes.
fn counts_times(chars: impl Iterator<Item = char>) -> bool {
    let inside: String = chars
        .take_while(|c| c.is_ascii_digit() || ",}".contains(*c))
        .collect();
    let inside = inside.split_once('}').map(|(inside, _)| inside);
    inside.is_some_and(|inside| inside.starts_with(|c: char| c.is_ascii_digit()))
}

/// Appends what stands behind a backslash.
fn escaped(chars: &mut Peekable<Chars<'_>>, class: Option<bool>, text: &mut String) -> Option<()> {
    let c = chars.next()?;
    let lower = c.to_ascii_lowercase();
    let others = lower != c;
    match (class_of(lower, others || class == Some(true)), c) {
        (Some(same), _) if others => text.push_str(&format!("[^{same}]")),
        (Some(same), _) if class.is_some() => text.push_str(same),
        (Some(same), _) => text.push_str(&format!("[{same}]")),
        (None, 't' | 'n' | 'r' | 'f' | 'v') => text.extend(['\\', c]),
        (None, 'x' | 'u') => {
            let mut code = 0u32;
            for _ in 0..if c == 'x' { 2 } else { 4 } {
                code = code
                    .checked_mul(16)?
                    .checked_add(chars.next()?.to_digit(16)?)?;
            }
            text.push_str(&regex_of(&char::from_u32(code)?.to_string()));
        }
        // A property of characters: `\p{L}`.
        (None, 'p' | 'P') if chars.next()? == '{' => {
            text.extend(['\\', c, '{']);
            loop {
                let c = chars.next()?;
                text.push(c);
                match c {
                    '}' => break,
                    c if c.is_ascii_alphanumeric() || "_=".contains(c) => {}
                    _ => return None,
                }
            }
        }
        // As a number: Rust gives some of them a meaning, such as the beginning of a word.
        (None, c) if c.is_ascii_punctuation() => text.push_str(&regex_of(&c.to_string())),
        (None, _) => return None,
    }
    Some(())
}
