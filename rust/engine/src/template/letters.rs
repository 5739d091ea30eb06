//! Letters, digits and case as Python knows them.
use unicode_general_category::{get_general_category, GeneralCategory as G};

use super::meter::{fail, Outcome};

pub(super) fn is_alphabetic(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::UppercaseLetter
            | G::LowercaseLetter
            | G::TitlecaseLetter
            | G::ModifierLetter
            | G::OtherLetter
    )
}

pub(super) fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || get_general_category(c) == G::DecimalNumber
}

fn is_number(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::DecimalNumber | G::LetterNumber | G::OtherNumber
    )
}

pub(super) fn is_alphanumeric(c: char) -> bool {
    is_alphabetic(c) || is_number(c)
}

/// `str.isdigit`: which of the other numbers are digits is in a table that we do not have.
pub(super) fn is_digit(c: char) -> Outcome<bool> {
    if get_general_category(c) == G::OtherNumber {
        return Err(fail(format!("isdigit() of {c:?} is not available")));
    }
    Ok(is_decimal(c))
}

/// `str.isnumeric`: so is which ideographs are numbers.
pub(super) fn is_numeric(c: char) -> Outcome<bool> {
    if matches!(c, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..) {
        return Err(fail(format!("isnumeric() of {c:?} is not available")));
    }
    Ok(is_number(c))
}

pub(super) fn is_titlecase(c: char) -> bool {
    get_general_category(c) == G::TitlecaseLetter
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_titlecase(c)
}

/// Pairs of a character and its lower case, which for the last sigma of a word depends on its
/// neighbours.
fn lowered<'a>(s: &'a str, all: &'a str) -> impl Iterator<Item = (char, &'a str)> {
    let mut rest = all;
    s.chars().map(move |c| {
        let len = c.to_lowercase().map(char::len_utf8).sum();
        let (lower, left) = rest.split_at_checked(len).unwrap_or((rest, ""));
        rest = left;
        (c, lower)
    })
}

/// Unicode's title case: of a letter that stands for several, the first is upper-case.
fn titlecase(c: char, out: &mut String) {
    match c {
        '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
        // Georgian has capitals, and no use for them in titles.
        '\u{10d0}'..='\u{10ff}' => out.push(c),
        '\u{149}' => out.extend(c.to_uppercase()),
        // Greek letters with an iota below keep it there.
        '\u{1f80}'..='\u{1faf}' => {
            out.extend(char::from_u32(u32::from(c) | 8));
        }
        '\u{1fb3}' | '\u{1fbc}' => out.push('\u{1fbc}'),
        '\u{1fc3}' | '\u{1fcc}' => out.push('\u{1fcc}'),
        '\u{1ff3}' | '\u{1ffc}' => out.push('\u{1ffc}'),
        '\u{1fb2}' | '\u{1fb4}' | '\u{1fb7}' | '\u{1fc2}' | '\u{1fc4}' | '\u{1fc7}'
        | '\u{1ff2}' | '\u{1ff4}' | '\u{1ff7}' => {
            out.extend(c.to_uppercase().map(|c| match c {
                '\u{399}' => '\u{345}',
                c => c,
            }));
        }
        c => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// `str.title`: letters title-case at the start of each word, lower-case behind.
pub(super) fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for (c, lower) in lowered(s, &s.to_lowercase()) {
        if inside {
            out.push_str(lower);
        } else {
            titlecase(c, &mut out);
        }
        inside = is_cased(c);
    }
    out
}

/// `str.capitalize`: the first character title-case, the others lower-case.
pub(super) fn capitalize(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for (at, (c, lower)) in lowered(s, &s.to_lowercase()).enumerate() {
        match at {
            0 => titlecase(c, &mut out),
            _ => out.push_str(lower),
        }
    }
    out
}

/// `str.swapcase`.
pub(super) fn swapcase(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for (c, lower) in lowered(s, &s.to_lowercase()) {
        if c.is_uppercase() {
            out.push_str(lower);
        } else if c.is_lowercase() {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

/// `str.casefold`: the lower case of what is the same in upper case.
pub(super) fn casefold(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            // Without a dot, which its upper case has lost.
            '\u{131}' => out.push(c),
            // Cherokee folds to its capitals, which came first.
            '\u{13a0}'..='\u{13f5}' => out.push(c),
            '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
            c => out.extend(
                c.to_lowercase()
                    .flat_map(char::to_uppercase)
                    .flat_map(char::to_lowercase),
            ),
        }
    }
    out
}

/// `str.istitle`.
pub(super) fn is_title(s: &str) -> bool {
    let (mut inside, mut any) = (false, false);
    for c in s.chars() {
        let first = c.is_uppercase() || is_titlecase(c);
        let behind = !first && c.is_lowercase();
        if (first && inside) || (behind && !inside) {
            return false;
        }
        inside = first || behind;
        any |= inside;
    }
    any
}
