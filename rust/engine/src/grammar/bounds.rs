//! Numbers between bounds, as regular expressions. They have up to 15 digits: so many a double
//! tells apart, and a reader that compares it with a bound decides as the digits do.

use serde_json::{Map, Number, Value};

use super::lark::{nothing_is, Term, Terms};

/// Digits of a number, before and behind its point together.
const DIGITS: usize = 15;

/// Digits behind the point of a number that has bounds, and of a bound.
const FRACTION: usize = 9;

const WHOLE: &str = "-?(0|[1-9][0-9]{0,14})";

/// Keywords of bounds; whether each is a least one, and whether it is in itself.
const BOUNDS: [(&str, bool, bool); 4] = [
    ("minimum", true, true),
    ("exclusiveMinimum", true, false),
    ("maximum", false, true),
    ("exclusiveMaximum", false, false),
];

/// A decimal fraction.
struct Decimal {
    negative: bool,
    /// Digits before the point.
    whole: String,
    /// Digits behind it, the last of which is not 0.
    fraction: String,
}

/// Numbers that a schema of them allows; `None` where it allows none.
///
/// # Errors
/// The keyword that cannot be held.
pub(super) fn number(
    schema: &Map<String, Value>,
    integer: bool,
) -> Result<Option<Terms>, &'static str> {
    if let Some(factor) = schema.get("multipleOf") {
        if !(integer && factor.as_u64() == Some(1)) {
            return Err("multipleOf");
        }
    }
    let bounded = BOUNDS
        .iter()
        .any(|(keyword, ..)| schema.contains_key(*keyword));
    let mut terms = match (integer, bounded) {
        (true, _) => vec![Term::is(WHOLE)],
        (false, false) => vec![Term::is(format!(
            r"{WHOLE}(\.[0-9]{{1,{DIGITS}}})?([eE][+-]?[0-9]{{1,2}})?"
        ))],
        // A sign, a point and the digits.
        (false, true) => vec![
            Term::is(format!(r"{WHOLE}(\.[0-9]{{1,{FRACTION}}})?")),
            Term::is(r"-?[0-9.]{1,16}"),
        ],
    };
    for (keyword, least, inclusive) in BOUNDS {
        let Some(bound) = schema.get(keyword) else {
            continue;
        };
        let bound = bound.as_number().and_then(Decimal::new).ok_or(keyword)?;
        if bound.whole.len() > DIGITS {
            // All numbers are on the one side of it.
            match least == bound.negative {
                true => continue,
                false => return Ok(None),
            }
        }
        terms.push(Term::is(match least {
            true => bound.at_least(),
            false => bound.at_most(),
        }));
        if !inclusive {
            terms.push(Term::Not(bound.itself()));
        }
    }
    match nothing_is(&terms) {
        Ok(false) => Ok(Some(terms)),
        Ok(true) => Ok(None),
        Err(_) => Err("minimum and maximum"),
    }
}

impl Decimal {
    /// `None` where it has too many digits behind its point.
    fn new(number: &Number) -> Option<Self> {
        let text = match number.as_f64() {
            // Without an exponent.
            Some(value) if number.is_f64() => format!("{value}"),
            _ => number.to_string(),
        };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, &text[..]),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fraction = fraction.trim_end_matches('0');
        let zero = whole == "0" && fraction.is_empty();
        let exact = whole.len() > DIGITS || whole.len().saturating_add(fraction.len()) <= DIGITS;
        (fraction.len() <= FRACTION && exact).then(|| Self {
            negative: negative && !zero,
            whole: whole.into(),
            fraction: fraction.into(),
        })
    }

    fn at_least(&self) -> String {
        match self.negative {
            true => format!("([0-9.]+|-({}))", self.smaller()),
            false => self.greater(),
        }
    }

    fn at_most(&self) -> String {
        match self.negative {
            true => format!("-({})", self.greater()),
            false => format!("(-[0-9.]+|{})", self.smaller()),
        }
    }

    /// The number itself, however it is written.
    fn itself(&self) -> String {
        let Self {
            whole, fraction, ..
        } = self;
        let sign = match (self.negative, whole == "0" && fraction.is_empty()) {
            (true, _) => "-",
            (false, true) => "-?",
            (false, false) => "",
        };
        match fraction.is_empty() {
            true => format!(r"{sign}{whole}(\.0+)?"),
            false => format!(r"{sign}{whole}\.{fraction}0*"),
        }
    }

    /// Without signs, what is not smaller.
    fn greater(&self) -> String {
        let Self {
            whole, fraction, ..
        } = self;
        let mut either = vec![format!("[1-9][0-9]{{{},}}{POINT}", whole.len())];
        for (before, digit, left) in digits(whole) {
            if let Some(next) = digit.checked_add(1).filter(|next| *next <= 9) {
                either.push(format!("{before}[{next}-9][0-9]{{{left}}}{POINT}"));
            }
        }
        match fraction.is_empty() {
            true => either.push(format!("{whole}{POINT}")),
            false => either.push(format!(r"{whole}\.{fraction}[0-9]*")),
        }
        for (before, digit, _) in digits(fraction) {
            if let Some(next) = digit.checked_add(1).filter(|next| *next <= 9) {
                either.push(format!(r"{whole}\.{before}[{next}-9][0-9]*"));
            }
        }
        format!("({})", either.join("|"))
    }

    /// Without signs, what is not greater.
    fn smaller(&self) -> String {
        let Self {
            whole, fraction, ..
        } = self;
        let mut either = vec![format!(r"{whole}(\.0+)?")];
        if let Some(fewer) = whole.len().checked_sub(1).filter(|fewer| *fewer > 0) {
            either.push(format!("[0-9]{{1,{fewer}}}{POINT}"));
        }
        for (before, digit, left) in digits(whole) {
            if let Some(last) = digit.checked_sub(1) {
                either.push(format!("{before}[0-{last}][0-9]{{{left}}}{POINT}"));
            }
        }
        for (before, digit, left) in digits(fraction) {
            if let Some(last) = digit.checked_sub(1) {
                either.push(format!(r"{whole}\.{before}[0-{last}][0-9]*"));
            }
            let zeros = if left == 0 { "0*" } else { "" };
            either.push(format!(r"{whole}\.{before}{digit}{zeros}"));
        }
        format!("({})", either.join("|"))
    }
}

/// Any digits behind a point, or none.
const POINT: &str = r"(\.[0-9]+)?";

/// Each digit, with those before it and the number of those behind it.
fn digits(text: &str) -> impl Iterator<Item = (&str, u32, usize)> {
    text.char_indices().filter_map(|(at, c)| {
        let left = text.len().checked_sub(at)?.checked_sub(1)?;
        Some((text.get(..at)?, c.to_digit(10)?, left))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]

    use super::super::lark::Term;
    use super::*;
    use llguidance::derivre::Regex;
    use serde_json::json;

    /// Tells whether a number as it is written is allowed.
    fn fits(schema: &Value, integer: bool) -> impl FnMut(&str) -> bool {
        let terms = number(schema.as_object().unwrap(), integer)
            .unwrap()
            .unwrap();
        let each = terms.into_iter().map(|term| match term {
            Term::Is(pattern) => (Regex::new(&pattern).unwrap(), true),
            Term::Not(pattern) => (Regex::new(&pattern).unwrap(), false),
        });
        let mut each: Vec<_> = each.collect();
        move |text| {
            each.iter_mut()
                .all(|(regex, is)| regex.is_match(text) == *is)
        }
    }

    #[test]
    fn bounds_are_those_of_the_numbers_that_are_written() {
        let bounds = [
            "-120", "-12.05", "-1", "-0.5", "0", "0.07", "1", "9.95", "10", "107",
        ];
        let mut texts: Vec<String> = (-130..130).map(|n| n.to_string()).collect();
        texts.extend((-1300..1300).map(|n| format!("{:.2}", f64::from(n) / 100.0)));
        let more = [
            "0.0", "0.069", "0.0700", "9.9500", "9.951", "107.0", "107.001",
        ];
        texts.extend(more.map(String::from));
        for bound in bounds {
            let value: f64 = bound.parse().unwrap();
            let given: Value = serde_json::from_str(bound).unwrap();
            for (keyword, ..) in BOUNDS {
                let mut found = fits(&json!({ keyword: given }), false);
                for text in &texts {
                    let number: f64 = text.parse().unwrap();
                    let expected = match keyword {
                        "minimum" => number >= value,
                        "exclusiveMinimum" => number > value,
                        "maximum" => number <= value,
                        _ => number < value,
                    };
                    assert_eq!(found(text), expected, "{text} {keyword} {bound}");
                }
            }
        }
    }

    #[test]
    fn integers_have_no_point_and_no_leading_zeros() {
        for text in ["01", "1.0", "1e2", "+1", "-", "", "1000000000000000"] {
            assert!(!fits(&json!({}), true)(text), "{text}");
        }
        for text in ["0", "-7", "999999999999999"] {
            assert!(fits(&json!({}), true)(text), "{text}");
        }
        assert!(fits(&json!({"maximum": 1e300}), true)("12"));
        assert!(number(json!({"minimum": 1e300}).as_object().unwrap(), true) == Ok(None));
    }

    #[test]
    fn what_cannot_be_held_is_named() {
        let found = |schema: Value| number(schema.as_object().unwrap(), false);
        assert_eq!(found(json!({"multipleOf": 3})), Err("multipleOf"));
        assert_eq!(found(json!({"minimum": "3"})), Err("minimum"));
        assert_eq!(
            found(json!({"exclusiveMaximum": 1e-12})),
            Err("exclusiveMaximum")
        );
        assert_eq!(found(json!({"minimum": 3, "maximum": 2.5})), Ok(None));
        assert_eq!(
            found(json!({"exclusiveMinimum": 3, "maximum": 3})),
            Ok(None)
        );
    }
}
