//! Texts of a schema, as regular expressions: their lengths, patterns and formats.

use serde_json::{Map, Value};

use super::keywords::counts;
use super::lark::{nothing_is, Term, Terms, MOST_TERMS};
use super::patterns::found;

/// Longest text that is counted.
const LONGEST: u64 = 1 << 16;

/// Formats and texts of them, though not all.
const FORMATS: [(&str, &[&str]); 10] = [
    ("date", &[DATE]),
    ("time", &[TIME]),
    ("date-time", &[DATE, "T", TIME]),
    ("uuid", &["[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"]),
    (
        "duration",
        &["P([0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS]|[0-9]{1,4}W|[0-9]{1,4}Y)"],
    ),
    ("hostname", &[HOST]),
    (
        "ipv6",
        &["([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|::|::[0-9a-f]{1,4}"],
    ),
    ("ipv4", &[BYTE, r"(\.", BYTE, "){3}"]),
    (
        "email",
        &[r"[0-9A-Za-z_+-]{1,32}(\.[0-9A-Za-z_+-]{1,16}){0,3}@", HOST],
    ),
    (
        "uri",
        &[
            r"https?:\/\/",
            HOST,
            r"(\/[0-9A-Za-z._~-]{0,64}){0,16}(\?[0-9A-Za-z._~&=-]{0,256})?",
        ],
    ),
];

/// The last days of February are in no leap year.
const DATE: &str = "[1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])\
                    |(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)";
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?\
                    (Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const HOST: &str = r"([0-9a-z]{1,32}\.){1,4}[a-z]{2,12}";

/// What is asked of a text.
pub(super) struct Asked {
    /// How many characters it has.
    least: u64,
    most: Option<u64>,
    /// What else it is.
    pub terms: Terms,
    /// Its patterns as they are given, for errors.
    patterns: Vec<String>,
}

impl Asked {
    /// By all of these; `None` where none is so long and so short. A format is one that is known: others
    /// are notes.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn of(leaves: &[&Map<String, Value>], formats: bool) -> Result<Option<Self>, String> {
        let (least, most) = counts(leaves, "minLength", "maxLength")?;
        if least > LONGEST {
            return Err("minLength".into());
        }
        if most.is_some_and(|most| most < least) {
            return Ok(None);
        }
        let mut terms = Terms::new();
        let mut patterns = Vec::new();
        for schema in leaves {
            match schema.get("pattern") {
                None => {}
                Some(Value::String(pattern)) => {
                    let named = format!("pattern {pattern:?}");
                    let found = found(pattern).ok_or_else(|| named.clone())?;
                    terms.push(Term::Is(found));
                    patterns.push(named);
                }
                Some(_) => return Err("pattern".into()),
            }
            match schema.get("format") {
                None => {}
                Some(Value::String(format)) => {
                    let known = FORMATS.iter().find(|(name, _)| format == name);
                    let known = known.filter(|_| formats);
                    terms.extend(known.map(|(_, parts)| Term::is(parts.concat())));
                }
                Some(_) => return Err("format".into()),
            }
        }
        if terms.len() > MOST_TERMS {
            let together = terms.len();
            return Err(format!(
                "{together} patterns for one text (the limit is {MOST_TERMS})"
            ));
        }
        Ok(Some(Self {
            least,
            most,
            terms,
            patterns,
        }))
    }

    /// How many characters it has, as a repetition: `{0,5}`.
    pub fn length(&self) -> String {
        let most = self
            .most
            .map_or(String::new(), |most| most.min(LONGEST).to_string());
        format!("{{{},{most}}}", self.least)
    }

    /// Whether it is certain that no text is so.
    pub fn is_nothing(&self) -> bool {
        self.excludes(&self.plain()) == Ok(true)
    }

    /// Whether what is asked leaves nothing that is all of these. Lengths alone leave something.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn excludes(&self, terms: &Terms) -> Result<bool, String> {
        match self.terms.is_empty() {
            true => Ok(false),
            false => nothing_is(terms).map_err(|_| self.named()),
        }
    }

    /// What it is that cannot be held.
    pub fn named(&self) -> String {
        match self.patterns.is_empty() {
            true => "format".into(),
            false => self.patterns.join(" and "),
        }
    }

    /// As the text stands.
    pub fn plain(&self) -> Terms {
        let mut terms = vec![Term::is(format!("(?s:.{})", self.length()))];
        terms.extend(self.terms.iter().cloned());
        terms
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]

    use super::*;
    use llguidance::derivre::Regex;
    use serde_json::json;

    fn fits(schema: Value, text: &str) -> bool {
        let asked = Asked::of(&[schema.as_object().unwrap()], true)
            .unwrap()
            .unwrap();
        let each = asked.plain();
        each.iter().all(|term| match term {
            Term::Is(pattern) => Regex::new(pattern).unwrap().is_match(text),
            Term::Not(pattern) => !Regex::new(pattern).unwrap().is_match(text),
        })
    }

    #[test]
    fn a_pattern_is_found_anywhere_but_for_its_anchors() {
        for (pattern, text, expected) in [
            ("b", "abc", true),
            ("^b", "abc", false),
            ("^a|c$", "xc", true),
            ("^a|c$", "xcx", false),
            ("^(a|b)+$", "abba", true),
            ("^a.c$", "a\rc", false),
            (r"^\d\w\s$", "1_\u{a0}", true),
            (r"^[\s\S]\D$", "\nx", true),
            (r"^\D$", "\u{661}", false),
            (r"^[^\d]$", "\u{661}", false),
            (r"^\W\S$", "é\u{1c}", false),
            (r"^\u00e9\x41\p{L}(?<name>b){2}{$", "éAébb{", true),
            (r"^\d$", "\u{661}", false),
            ("^a/b$", "a/b", true),
            (r"^a\/[/]$", "a//", true),
            ("", "anything\n", true),
            ("^$", "", true),
        ] {
            let schema = json!({ "pattern": pattern });
            assert_eq!(fits(schema, text), expected, "{pattern} {text:?}");
        }
    }

    #[test]
    fn what_the_two_dialects_tell_apart_is_refused() {
        for pattern in [
            "(?i)a", "(?=a)", "a$b", "a^b", "(^a)", r"\bx", "[a&&b]", "[[a]", "[]", "(", ")", "[a",
            r"\u004", r"\ud800", r"(a)\1", "\\",
        ] {
            let schema = json!({ "pattern": pattern });
            let asked = Asked::of(&[schema.as_object().unwrap()], true);
            assert!(asked.is_err(), "{pattern}");
        }
    }

    #[test]
    fn lengths_are_of_characters() {
        let schema = json!({"minLength": 2, "maxLength": 3});
        for (text, expected) in [
            ("é", false),
            ("éé", true),
            ("\n\n\n", true),
            ("abcd", false),
        ] {
            assert_eq!(fits(schema.clone(), text), expected, "{text:?}");
        }
        let schema = json!({"minLength": 2, "maxLength": 1});
        assert!(Asked::of(&[schema.as_object().unwrap()], true)
            .unwrap()
            .is_none());
    }

    #[test]
    fn formats_have_texts_of_theirs() {
        for (format, text) in [
            ("date", "2024-02-28"),
            ("time", "23:59:59Z"),
            ("date-time", "1999-12-31T00:00:00.5+01:00"),
            ("uuid", "01234567-89ab-cdef-0123-456789abcdef"),
            ("ipv4", "192.168.0.255"),
            ("email", "a.b@example.org"),
            ("uri", "https://example.org/a/b?c=d"),
        ] {
            assert!(fits(json!({ "format": format }), text), "{format}");
            assert!(!fits(json!({ "format": format }), "x y"), "{format}");
        }
    }
}
