//! Regular expressions of texts as JSON spells the texts, between quotes and with escapes.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use super::lark::regex_of;

/// A character that stands for itself.
pub(super) const BARE: &str = r#"[^"\\\x00-\x1F]"#;

/// One that is escaped by a letter.
const ESCAPED: &str = r#"\\["\\\/bfnrt]"#;

/// One that is escaped by its number: two numbers where one is too small.
const NUMBERED: &str = r"\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})";

/// Letters that escape, with what they stand for.
const LETTERS: [(char, char); 7] = [
    ('"', '"'),
    ('\\', '\\'),
    ('\u{8}', 'b'),
    ('\u{c}', 'f'),
    ('\n', 'n'),
    ('\r', 'r'),
    ('\t', 't'),
];

/// Any character.
pub(super) fn any() -> String {
    format!("(?:{BARE}|{ESCAPED}|{NUMBERED})")
}

/// Texts that a regular expression matches as a whole, without the quotes around them: each with the
/// escapes that it needs and no others, so that what is no such text is spelled as none. `None` where
/// the expression is none, or looks around itself.
pub(super) fn quoted(regex: &str) -> Option<String> {
    let mut out = String::new();
    write(&regex_syntax::parse(regex).ok()?, &mut out)?;
    Some(out)
}

/// All spellings of a text, without quotes.
pub(super) fn spellings(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        out.push_str("(?:");
        match needs_escape(c) {
            true => {}
            false if c.is_ascii_alphanumeric() || c == '_' => out.extend([c, '|']),
            false => out.push_str(&format!(r"\x{{{:X}}}|", u32::from(c))),
        }
        let letter = LETTERS.iter().find(|(known, _)| *known == c);
        match (letter, c) {
            (Some((_, letter)), _) => out.push_str(&format!(r"\\\x{{{:X}}}|", u32::from(*letter))),
            (None, '/') => out.push_str(r"\\\/|"),
            (None, _) => {}
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            out.push_str(r"\\u");
            for digit in format!("{unit:04x}").chars() {
                match digit.is_ascii_digit() {
                    true => out.push(digit),
                    false => out.extend(['[', digit, digit.to_ascii_uppercase(), ']']),
                }
            }
        }
        out.push(')');
    }
    out
}

/// A text with its quotes, as JSON is written; what is not ASCII may be escaped by its number. All else
/// has one spelling, which is then sure to come.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c.is_ascii() {
            true => {
                let written = Value::from(c.to_string()).to_string();
                let written = written.strip_prefix('"').and_then(|w| w.strip_suffix('"'));
                out.push_str(&regex_of(written.unwrap_or_default()));
            }
            false => out.push_str(&spellings(&c.to_string())),
        }
    }
    out.push('"');
    out
}

fn needs_escape(c: char) -> bool {
    c < ' ' || c == '"' || c == '\\'
}

/// Recursion is as deep as the expression, which its parser bounds.
fn write(hir: &Hir, out: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            for c in std::str::from_utf8(&literal.0).ok()?.chars() {
                write_class(&[(c, c)], out);
            }
        }
        HirKind::Class(Class::Unicode(class)) => {
            let ranges: Vec<_> = class.iter().map(|r| (r.start(), r.end())).collect();
            write_class(&ranges, out);
        }
        HirKind::Class(Class::Bytes(class)) => {
            let range = |r: &regex_syntax::hir::ClassBytesRange| {
                (r.end() < 128).then(|| (char::from(r.start()), char::from(r.end())))
            };
            write_class(&class.iter().map(range).collect::<Option<Vec<_>>>()?, out);
        }
        HirKind::Look(_) => return None,
        HirKind::Repetition(times) => {
            out.push_str("(?:");
            write(&times.sub, out)?;
            let most = times.max.map_or(String::new(), |most| most.to_string());
            out.push_str(&format!("){{{},{most}}}", times.min));
        }
        HirKind::Capture(group) => write(&group.sub, out)?,
        HirKind::Concat(each) => {
            for hir in each {
                write(hir, out)?;
            }
        }
        HirKind::Alternation(each) => {
            out.push_str("(?:");
            for (i, hir) in each.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                write(hir, out)?;
            }
            out.push(')');
        }
    }
    Some(())
}

/// One character of these ranges.
fn write_class(ranges: &[(char, char)], out: &mut String) {
    let has = |c: char| ranges.iter().any(|(from, to)| (*from..=*to).contains(&c));
    let mut either = Vec::new();
    let mut bare = String::new();
    for (from, to) in ranges {
        // What needs escapes lies between these.
        for (low, high) in [(' ', '!'), ('#', '['), (']', char::MAX)] {
            let (from, to) = ((*from).max(low), (*to).min(high));
            if from <= to {
                bare.push_str(&format!(
                    r"\x{{{:X}}}-\x{{{:X}}}",
                    u32::from(from),
                    u32::from(to)
                ));
            }
        }
    }
    if !bare.is_empty() {
        either.push(format!("[{bare}]"));
    }
    let letters: String = LETTERS
        .iter()
        .filter(|(c, _)| has(*c))
        .map(|(_, letter)| format!(r"\x{{{:X}}}", u32::from(*letter)))
        .collect();
    if !letters.is_empty() {
        either.push(format!(r"\\[{letters}]"));
    }
    let controls = (0..32u8).map(char::from);
    match controls.clone().all(has) {
        true => either.push(r"\\u00[01][0-9a-fA-F]".into()),
        false => {
            let controls = controls.filter(|c| has(*c)).map(u32::from);
            either.extend(controls.map(|code| format!(r"\\u00{code:02x}")));
        }
    }
    match &either[..] {
        // A class of nothing.
        [] => out.push_str(r"[^\x{0}-\x{10FFFF}]"),
        [one] => out.push_str(one),
        several => out.push_str(&format!("(?:{})", several.join("|"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use llguidance::derivre::Regex;

    #[test]
    fn texts_of_an_expression_are_spelled_with_the_escapes_that_they_need() {
        for (regex, text, expected) in [
            ("a\"b", r#"a\"b"#, true),
            ("a\"b", "a\"b", false),
            (r"[^a]{2}", r"\n\u001f", true),
            (r"[^a]{2}", "\n\u{1f}", false),
            (r"\n|x", r"\u000a", true),
            ("a", r"\u0061", false),
            (r"(?s:.*)é", r"\\\té", true),
            (r"\\d", r"\\d", true),
        ] {
            let found = Regex::new(&quoted(regex).unwrap()).unwrap().is_match(text);
            assert_eq!(found, expected, "{regex} {text}");
        }
        assert_eq!(quoted(r"\bx"), None);
    }

    #[test]
    fn a_name_has_spellings_by_number_and_by_letter() {
        let mut regex = Regex::new(&spellings("k\"é/\u{1F600}")).unwrap();
        assert!(regex.is_match(r#"k\"é/😀"#));
        assert!(regex.is_match(r"\u006B\u0022\u00E9\/\ud83d\uDE00"));
        assert!(!regex.is_match(r#"k"é/😀"#) && !regex.is_match(r#"K\"é/😀"#));
    }

    #[test]
    fn any_character_is_one_and_no_half_of_one() {
        let mut regex = Regex::new(&format!("{}{{2}}", any())).unwrap();
        assert!(regex.is_match(r"\ud83d\ude00a") && regex.is_match("é\\/"));
        assert!(!regex.is_match(r"\ud83da") && !regex.is_match(r"\ude00a"));
    }
}
