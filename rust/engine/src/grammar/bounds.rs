//! Numbers between bounds, as regular expressions. A bound is a decimal of any length, as written. A
//! decimal number has so few digits that its double differs from that of any other such number, so a
//! reader that compares doubles with a bound decides as the digits do; an integer is exact.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::lark::{nothing_is, Term, Terms};

/// Digits of a number with a point that has bounds: so many a double tells apart.
const DIGITS: usize = 15;

/// Digits behind the point of a number without bounds: a double needs no more.
const FRACTION: usize = 17;

/// Digits behind the point of a number near 0 that has bounds, zeros among them.
const SMALLEST: usize = 30;

/// Digits of an integer: of the greatest of 64 bits.
const WHOLE: usize = 19;

/// Digits of a bound that integers are held to.
const LONGEST: usize = 40;

/// Multiples that are listed one by one.
const MOST_LISTED: i128 = 64;

/// A decimal fraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// Digits before the point, the first of which is not 0 where there are several.
    whole: String,
    /// Digits behind it, the last of which is not 0.
    fraction: String,
}

/// One end of a range, and whether it is in it.
type End = Option<(Decimal, bool)>;

/// Numbers that a schema of them allows.
#[derive(Debug, PartialEq)]
pub(super) enum Numbers {
    Terms(Terms),
    /// Multiples of a number between two, all of them integers.
    Multiples {
        of: u64,
        least: i128,
        most: i128,
    },
}

/// Numbers that all of these allow; `None` where they allow none.
///
/// # Errors
/// What cannot be held.
pub(super) fn number(
    leaves: &[&Map<String, Value>],
    integer: bool,
) -> Result<Option<Numbers>, String> {
    let (least, most) = ends(leaves)?;
    if is_between_none(&least, &most) {
        return Ok(None);
    }
    match Factor::of(leaves)? {
        Factor::Whole(of) => return multiples(of, &least, &most),
        Factor::One if !integer => return number_of(least, most, true, None),
        Factor::Fraction(bits) if !integer => return number_of(least, most, false, Some(bits)),
        _ => {}
    }
    number_of(least, most, integer, None)
}

/// Whether it is certain that no number fits all of these.
pub(super) fn is_nothing(leaves: &[&Map<String, Value>], integer: bool) -> Result<bool, String> {
    let (least, most) = ends(leaves)?;
    let (least, most) = match integer {
        true => (whole_end(least, true), whole_end(most, false)),
        false => (least, most),
    };
    Ok(is_between_none(&least, &most))
}

/// Whether a number is one that a schema allows.
pub(super) fn fits(number: &Number, schema: &Map<String, Value>) -> Result<bool, String> {
    let (least, most) = ends(&[schema])?;
    let value = Decimal::of(number);
    let right = |end: &End, side: Ordering| {
        end.as_ref()
            .is_none_or(|(bound, inclusive)| match value.compare(bound) {
                Ordering::Equal => *inclusive,
                order => order == side,
            })
    };
    if !(right(&least, Ordering::Greater) && right(&most, Ordering::Less)) {
        return Ok(false);
    }
    let Some(factor) = schema.get("multipleOf") else {
        return Ok(true);
    };
    let factor = factor.as_number().ok_or("multipleOf")?;
    // As validators divide: integers exactly, and doubles as doubles.
    match (integer_of(number), integer_of(factor)) {
        (_, Some(0)) => Err("multipleOf".into()),
        (Some(number), Some(factor)) => Ok(number.checked_rem(factor) == Some(0)),
        _ => {
            let quotient =
                number.as_f64().unwrap_or(f64::NAN) / factor.as_f64().unwrap_or(f64::NAN);
            Ok(quotient.fract() == 0.0)
        }
    }
}

fn integer_of(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or(number.as_u64().map(i128::from))
}

/// What numbers have to be multiples of.
enum Factor {
    Any,
    One,
    Whole(u64),
    /// Of a half, a half of it and so on, so many times.
    Fraction(u32),
}

impl Factor {
    fn of(leaves: &[&Map<String, Value>]) -> Result<Self, String> {
        let mut found = Self::Any;
        for factor in leaves.iter().filter_map(|schema| schema.get("multipleOf")) {
            found = match (found, Self::one(factor)?) {
                (Self::Any, one) | (one, Self::One) => one,
                (Self::One, Self::Whole(of)) | (Self::Whole(of), Self::Fraction(_)) => {
                    Self::Whole(of)
                }
                (Self::Fraction(a), Self::Fraction(b)) => Self::Fraction(a.min(b)),
                (Self::One, _) => Self::One,
                (Self::Fraction(_), other) => other,
                (Self::Whole(a), Self::Whole(b)) => {
                    let both = a
                        .checked_div(common(a, b))
                        .and_then(|part| part.checked_mul(b));
                    let both = both.filter(|both| *both < 1_000_000_000);
                    Self::Whole(both.ok_or_else(|| format!("multipleOf {a} and {b} together"))?)
                }
                (one, Self::Any) => one,
            };
        }
        Ok(found)
    }

    fn one(factor: &Value) -> Result<Self, String> {
        let value = factor
            .as_f64()
            .filter(|value| *value > 0.0)
            .ok_or("multipleOf")?;
        if value.fract() == 0.0 && value < 1e9 {
            return Ok(match value as u64 {
                1 => Self::One,
                of => Self::Whole(of),
            });
        }
        for bits in 1..=8u32 {
            if value * f64::from(1u32.wrapping_shl(bits)) == 1.0 {
                return Ok(Self::Fraction(bits));
            }
        }
        // Of 0.1 the double 0.3 is no multiple, though the decimal is.
        Err(format!(
            "multipleOf {factor} (supported: integers up to 999999999, and 0.5, 0.25 and so on)"
        ))
    }
}

/// The greatest number that both are multiples of.
fn common(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

/// The range of numbers that all of these allow.
fn ends(leaves: &[&Map<String, Value>]) -> Result<(End, End), String> {
    let mut found: (End, End) = (None, None);
    for schema in leaves {
        let bound = |keyword: &str| match schema.get(keyword) {
            None => Ok(None),
            Some(Value::Number(bound)) => Ok(Some(Decimal::of(bound))),
            Some(_) => Err(keyword.to_owned()),
        };
        // Older drafts say of a bound by a boolean that it is excluded.
        let exclusive = |keyword: &str| match schema.get(keyword) {
            Some(Value::Bool(is)) => Ok((None, *is)),
            _ => bound(keyword).map(|bound| (bound, false)),
        };
        for (least, keyword, other) in [
            (true, "minimum", "exclusiveMinimum"),
            (false, "maximum", "exclusiveMaximum"),
        ] {
            let (excluded, itself) = exclusive(other)?;
            let inner = if least {
                Ordering::Greater
            } else {
                Ordering::Less
            };
            let side = if least { &mut found.0 } else { &mut found.1 };
            let given = [
                bound(keyword)?.map(|b| (b, !itself)),
                excluded.map(|b| (b, false)),
            ];
            for (bound, inclusive) in given.into_iter().flatten() {
                let tighter =
                    side.as_ref()
                        .is_none_or(|(known, closed)| match bound.compare(known) {
                            Ordering::Equal => *closed && !inclusive,
                            order => order == inner,
                        });
                if tighter {
                    *side = Some((bound, inclusive));
                }
            }
        }
    }
    Ok(found)
}

fn is_between_none(least: &End, most: &End) -> bool {
    match (least, most) {
        (Some((least, a)), Some((most, b))) => match least.compare(most) {
            Ordering::Less => false,
            Ordering::Equal => !(*a && *b),
            Ordering::Greater => true,
        },
        _ => false,
    }
}

/// An end of integers, which is one of them.
fn whole_end(end: End, least: bool) -> End {
    let (bound, inclusive) = end?;
    let up = least;
    let mut whole = bound.rounded(0, up);
    if !inclusive && bound.fraction.is_empty() {
        whole = whole.next(up);
    }
    Some((whole, true))
}

/// Multiples of a number; without a point.
fn multiples(of: u64, least: &End, most: &End) -> Result<Option<Numbers>, String> {
    const MOST: i128 = 999_999_999_999_999;
    let end = |end: &End, least: bool| match whole_end(end.clone(), least) {
        None => Some(if least { -MOST } else { MOST }),
        Some((bound, _)) => match bound.integer() {
            Some(bound) => Some(bound.clamp(-MOST, MOST)).filter(|clamped| {
                // All of them are on the other side of it.
                if least {
                    *clamped >= bound
                } else {
                    *clamped <= bound
                }
            }),
            None => (bound.negative == least).then_some(if least { -MOST } else { MOST }),
        },
    };
    let far = || format!("multipleOf beside bounds of more than {DIGITS} digits");
    let (least, most) = (
        end(least, true).ok_or_else(far)?,
        end(most, false).ok_or_else(far)?,
    );
    let step = i128::from(of);
    // The first multiple that is not below, and the last that is not above.
    let first = least
        .checked_add(step.checked_sub(1).unwrap_or(0))
        .map(|v| v.div_euclid(step));
    let first = first.and_then(|n| n.checked_mul(step)).unwrap_or(most);
    let last = most.div_euclid(step).checked_mul(step).unwrap_or(least);
    if first > last || first < least {
        return Ok(None);
    }
    let many = last
        .checked_sub(first)
        .and_then(|d| d.checked_div(step))
        .unwrap_or(i128::MAX);
    if many >= MOST_LISTED {
        return Ok(Some(Numbers::Multiples { of, least, most }));
    }
    let mut each = Vec::new();
    let mut at = first;
    while at <= last {
        each.push(at.to_string());
        at = at.saturating_add(step);
    }
    Ok(Some(Numbers::Terms(vec![Term::is(format!(
        "({})",
        each.join("|")
    ))])))
}

/// Numbers in a range; `bits` where they are multiples of a half, a quarter and so on.
fn number_of(
    least: End,
    most: End,
    integer: bool,
    bits: Option<u32>,
) -> Result<Option<Numbers>, String> {
    let (least, most) = match integer {
        true => (whole_end(least, true), whole_end(most, false)),
        false => (least, most),
    };
    if is_between_none(&least, &most) {
        return Ok(None);
    }
    let mut digits = WHOLE;
    for (end, low) in [(&least, true), (&most, false)] {
        if let Some((bound, _)) = end {
            // All numbers that are written are on the one side of a bound that is longer, unless it is
            // the greatest of 64 bits.
            let long = bound.whole.len();
            if long > digits && (bound.negative != low || long == WHOLE.saturating_add(1)) {
                digits = bound.whole.len();
            }
        }
    }
    if digits > LONGEST {
        return Err(format!(
            "a bound of {digits} digits (the limit is {LONGEST})"
        ));
    }
    let whole = format!("-?(0|[1-9][0-9]{{0,{}}})", digits.saturating_sub(1));
    let bounded = least.is_some() || most.is_some();
    let mut terms = match (integer, bits, bounded) {
        // Not -0: readers of unsigned integers refuse it.
        (true, ..) => vec![Term::is(format!(
            "(0|-?[1-9][0-9]{{0,{}}})",
            digits.saturating_sub(1)
        ))],
        (false, Some(bits), _) => {
            let mut parts = vec![r"\.0".to_owned()];
            let steps = 1u64.wrapping_shl(bits);
            for i in 1..steps {
                let part = format!("{}", i as f64 / steps as f64);
                parts.push(format!(r"\.{}", part.strip_prefix("0.").unwrap_or("0")));
            }
            let before = DIGITS.saturating_sub(bits as usize).saturating_sub(1);
            let short = format!("-?(0|[1-9][0-9]{{0,{before}}})");
            vec![Term::is(format!("({short}({})|{whole})", parts.join("|")))]
        }
        (false, None, false) => vec![Term::is(format!(
            r"({whole}(\.[0-9]{{1,{FRACTION}}})?([eE][+-]?[0-9]{{1,2}})?|-?[0-9](\.[0-9]{{1,{FRACTION}}})?[eE][+-]?([12][0-9]{{2}}|30[0-7]))"
        ))],
        (false, None, true) => {
            let mut shapes = vec![
                whole,
                // A point is one of the characters.
                format!(r"-?[1-9][0-9.]{{1,{DIGITS}}}"),
                format!(
                    r"-?0\.0{{0,{}}}[0-9]{{1,{DIGITS}}}",
                    SMALLEST.saturating_sub(DIGITS)
                ),
            ];
            for (bound, inclusive) in [&least, &most].into_iter().flatten() {
                if *inclusive {
                    shapes.push(bound.text().replace('.', r"\."));
                }
            }
            vec![
                Term::is(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"),
                Term::is(format!("({})", shapes.join("|"))),
            ]
        }
    };
    for (end, low) in [(least, true), (most, false)] {
        let Some((bound, mut inclusive)) = end else {
            continue;
        };
        let near = bound.rounded(SMALLEST, low);
        inclusive = inclusive || near != bound;
        if near.whole.len() > digits {
            continue;
        }
        terms.push(Term::is(match low {
            true => near.at_least(),
            false => near.at_most(),
        }));
        if !inclusive {
            terms.push(Term::Not(near.itself()));
        }
    }
    match nothing_is(&terms) {
        Ok(false) => Ok(Some(Numbers::Terms(terms))),
        Ok(true) if bits.is_some() => Ok(None),
        Ok(true) => Err(format!("a range without a number of up to {DIGITS} digits")),
        Err(_) => Err("minimum and maximum".into()),
    }
}

impl Decimal {
    /// Of a number as it is written: a double with a fraction as the shortest decimal that is read as
    /// it, a whole one as what it is.
    pub fn of(number: &Number) -> Self {
        let text = match number.as_f64() {
            // Without an exponent.
            Some(value) if number.is_f64() && value.fract() == 0.0 => format!("{value:.0}"),
            Some(value) if number.is_f64() => format!("{value}"),
            _ => number.to_string(),
        };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, &text[..]),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        Self::new(negative, whole.into(), fraction.into())
    }

    fn new(negative: bool, whole: String, fraction: String) -> Self {
        let fraction = fraction.trim_end_matches('0').to_owned();
        let trimmed = whole.trim_start_matches('0');
        let whole = if trimmed.is_empty() { "0" } else { trimmed }.to_owned();
        let zero = whole == "0" && fraction.is_empty();
        Self {
            negative: negative && !zero,
            whole,
            fraction,
        }
    }

    pub fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        let size = || {
            let whole = self.whole.len().cmp(&other.whole.len());
            let whole = whole.then_with(|| self.whole.cmp(&other.whole));
            whole.then_with(|| self.fraction.cmp(&other.fraction))
        };
        match (self.negative, other.negative) {
            (false, false) => size(),
            (true, true) => size().reverse(),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }

    /// It without a point and an exponent, where it is whole and no longer than bounds are.
    pub fn plain(&self) -> Option<String> {
        (self.is_whole() && self.whole.len() <= LONGEST).then(|| self.text())
    }

    fn text(&self) -> String {
        let Self {
            negative,
            whole,
            fraction,
        } = self;
        let sign = if *negative { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{fraction}")
    }

    fn integer(&self) -> Option<i128> {
        self.text().parse().ok()
    }

    /// With that many digits behind the point at most: the nearest that is not smaller, or (`up`
    /// false) not greater.
    fn rounded(&self, digits: usize, up: bool) -> Self {
        if self.fraction.len() <= digits {
            return self.clone();
        }
        let kept = self.fraction.get(..digits).unwrap_or_default();
        let cut = Self::new(self.negative, self.whole.clone(), kept.into());
        // Cut is nearer to 0.
        match self.negative == up {
            true => cut,
            false => {
                let all = format!("{}{kept}", self.whole);
                let all = added(&all);
                let at = all.len().saturating_sub(digits);
                let (whole, fraction) = all.split_at_checked(at).unwrap_or((&all, ""));
                Self::new(self.negative, whole.into(), fraction.into())
            }
        }
    }

    /// The integer behind one, or before it.
    fn next(&self, up: bool) -> Self {
        match (self.negative == up, &self.whole[..] == "0") {
            (true, true) | (false, _) => Self::new(!up, added(&self.whole), String::new()),
            (true, false) => Self::new(self.negative, taken(&self.whole), String::new()),
        }
    }

    fn at_least(&self) -> String {
        match self.negative {
            true => format!("([0-9.]+|-({}))", self.smaller()),
            false if self.is_zero() => format!(r"({}|-0(\.0+)?)", self.greater()),
            false => self.greater(),
        }
    }

    fn at_most(&self) -> String {
        match self.negative {
            true => format!("-({})", self.greater()),
            false => format!("(-[0-9.]+|{})", self.smaller()),
        }
    }

    fn is_zero(&self) -> bool {
        self.whole == "0" && self.fraction.is_empty()
    }

    /// The number itself, however it is written.
    fn itself(&self) -> String {
        let Self {
            whole, fraction, ..
        } = self;
        let sign = match (self.negative, self.is_zero()) {
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
            // Cut short it is smaller.
            let zeros = if left == 0 { "0*" } else { "" };
            either.push(format!(r"{whole}\.{before}{digit}{zeros}"));
        }
        format!("({})", either.join("|"))
    }
}

/// Any digits behind a point, or none.
const POINT: &str = r"(\.[0-9]+)?";

/// The number behind one that digits say.
fn added(text: &str) -> String {
    let kept = text.trim_end_matches('9');
    let zeros = "0".repeat(text.len().saturating_sub(kept.len()));
    let mut kept = kept.to_owned();
    let last = kept.pop().and_then(|c| c.to_digit(10)).unwrap_or(0);
    format!("{kept}{}{zeros}", last.saturating_add(1))
}

/// The number before one that digits say, which is not 0.
fn taken(text: &str) -> String {
    let kept = text.trim_end_matches('0');
    let nines = "9".repeat(text.len().saturating_sub(kept.len()));
    let mut kept = kept.to_owned();
    let last = kept.pop().and_then(|c| c.to_digit(10)).unwrap_or(1);
    format!("{kept}{}{nines}", last.saturating_sub(1))
}

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

    use super::*;
    use llguidance::derivre::Regex;
    use serde_json::json;

    fn of(schema: &Value, integer: bool) -> Result<Option<Numbers>, String> {
        number(&[schema.as_object().unwrap()], integer)
    }

    /// Tells whether a number as it is written is allowed.
    fn fits(schema: &Value, integer: bool) -> impl FnMut(&str) -> bool {
        let Numbers::Terms(terms) = of(schema, integer).unwrap().unwrap() else {
            unreachable!("multiples");
        };
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
            "0.0", "0.069", "0.0700", "9.9500", "9.951", "107.0", "107.001", "9.9", "-12.0", "-0",
        ];
        texts.extend(more.map(String::from));
        for bound in bounds {
            let value: f64 = bound.parse().unwrap();
            let given: Value = serde_json::from_str(bound).unwrap();
            for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
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
        for text in [
            "01",
            "1.0",
            "1e2",
            "+1",
            "-",
            "-0",
            "",
            "10000000000000000000",
        ] {
            assert!(!fits(&json!({}), true)(text), "{text}");
        }
        for text in ["0", "-7", "9223372036854775807"] {
            assert!(fits(&json!({}), true)(text), "{text}");
        }
        assert!(fits(&json!({"maximum": 1e300}), true)("12"));
        assert!(of(&json!({"minimum": 1e300}), true).is_err());
    }

    #[test]
    fn integers_of_64_bits_have_bounds_of_as_many() {
        let bounds = json!({"minimum": 9_007_199_254_740_993_u64, "maximum": u64::MAX});
        for integer in [true, false] {
            let mut found = fits(&bounds, integer);
            assert!(!found("9007199254740992") && found("9007199254740993"));
            assert!(found("18446744073709551615") && !found("18446744073709551616"));
        }
        let mut found = fits(
            &json!({"exclusiveMinimum": -1, "exclusiveMaximum": 1.5}),
            true,
        );
        assert!(found("0") && found("1") && !found("-1") && !found("2"));
    }

    #[test]
    fn a_bound_that_is_a_long_double_is_the_double_and_not_its_shortest_decimal() {
        // 1e23 is read as 99999999999999991611392, which is less.
        let mut found = fits(&json!({"maximum": 1e23}), false);
        assert!(found("99999999999999991611392") && !found("99999999999999991611393"));
        assert!(!found("100000000000000000000000"));
        let mut found = fits(
            &json!({"exclusiveMinimum": 18_446_744_073_709_551_616.0}),
            false,
        );
        assert!(found("18446744073709551617") && !found("18446744073709551616"));
    }

    #[test]
    fn a_number_with_a_point_has_as_many_digits_as_a_double_tells_apart() {
        let mut found = fits(&json!({"exclusiveMaximum": 0.1}), false);
        assert!(found("0.0999999999999999") && !found("0.09999999999999999999"));
        let mut found = fits(
            &json!({"minimum": 0.1, "maximum": 0.300_000_000_000_000_04}),
            false,
        );
        assert!(found("0.30000000000000004") && found("0.3") && !found("0.30000000000000005"));
        let mut found = fits(&json!({"exclusiveMinimum": 0, "maximum": 1e-12}), false);
        assert!(found("0.000000000001") && !found("0.0") && !found("0.000000000002"));
        let mut found = fits(&json!({}), false);
        assert!(found("1e307") && found("0.30000000000000004") && !found("1e308"));
        assert!(!found("1e999") && !found("10e300") && found("-12.5E-3"));
    }

    #[test]
    fn multiples_are_those_of_integers_and_of_halves() {
        let mut found = fits(
            &json!({"multipleOf": 7, "minimum": -7, "maximum": 15}),
            false,
        );
        assert!(found("-7") && found("0") && found("14") && !found("1") && !found("21"));
        let mut found = fits(&json!({"multipleOf": 0.25, "minimum": 0}), false);
        assert!(found("1.75") && found("2") && found("0.5") && !found("0.1") && !found("-1"));
        let many = of(&json!({"multipleOf": 3, "minimum": 1}), true)
            .unwrap()
            .unwrap();
        let most = 999_999_999_999_999;
        assert_eq!(
            many,
            Numbers::Multiples {
                of: 3,
                least: 1,
                most
            }
        );
        assert_eq!(
            of(&json!({"multipleOf": 7, "minimum": 1, "maximum": 6}), true),
            Ok(None)
        );
        assert!(of(&json!({"multipleOf": 0.1}), false)
            .unwrap_err()
            .starts_with("multipleOf 0.1"));
    }

    #[test]
    fn what_cannot_be_held_is_named() {
        assert_eq!(of(&json!({"minimum": "3"}), false), Err("minimum".into()));
        for nothing in [
            json!({"minimum": 3, "maximum": 2.5}),
            json!({"exclusiveMinimum": 3, "maximum": 3}),
        ] {
            assert_eq!(of(&nothing, false), Ok(None));
        }
        let between = json!({"exclusiveMinimum": 3, "exclusiveMaximum": 4});
        assert_eq!(of(&between, true), Ok(None));
        let near = json!({"exclusiveMinimum": 1e-40, "maximum": 1e-39});
        assert!(of(&near, false).unwrap_err().starts_with("a range without"));
    }
}
