//! Where each part of a text came from: the template itself, or what it was given to render.
//!
//! A message may spell a control token of the model, and only the template may mean one. So a
//! string that comes with the arguments is a [`Given`], and whatever makes text says of each byte
//! whether it was given; a plain string of minijinja's is the template's own. Where an operation
//! cannot be followed byte by byte (`upper` of a mixed text), all of its result counts as given.
//!
//! minijinja captures output (of macros, `set` and `filter` blocks) as plain text. So all output is
//! written with marks around what was given, and read back where it becomes a value again. A mark
//! inside a text is escaped, so none can be forged; captured text is told from a template's own
//! strings by minijinja's "safe" flag, which nothing else here sets.
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;

use minijinja::value::{DynObject, Kwargs, Object, ObjectRepr};
use minijinja::{AutoEscape, Output, Value};

use super::meter::{Meter, Outcome};

/// Makes minijinja flag what it captures; what is escaped is up to our formatter: nothing.
pub(super) const CAPTURES_FLAGGED: AutoEscape = AutoEscape::Custom("captured");

/// In front of [`BEGIN`], [`END`] or [`ITSELF`] in written output. Rare in texts, and one byte.
const MARK: char = '\u{1a}';
const BEGIN: &str = "\u{1a}(";
const END: &str = "\u{1a})";
const ITSELF: &str = "\u{1a}=";

/// What a given string is charged beside its text: an object takes more than a short string.
const OBJECT: usize = 128;

/// Bytes of a text that were given: ranges in order, not empty, not touching.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<Range<usize>>);

impl Spans {
    /// All of a text of so many bytes.
    pub fn all(len: usize) -> Self {
        let mut spans = Spans::default();
        spans.push(0..len);
        spans
    }

    /// Adds a range that starts at or behind the end of the last one.
    pub fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.end >= range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    pub fn into_ranges(self) -> Vec<Range<usize>> {
        self.0
    }
}

/// A string of which at least one byte was given.
#[derive(Debug)]
pub(super) struct Given {
    text: Arc<str>,
    spans: Spans,
}

impl Object for Given {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.text.is_empty()
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.text.cmp(&other.downcast_ref::<Self>()?.text))
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Reached by messages of minijinja only.
        f.write_str(&self.text)
    }
}

/// A string, of which `spans` were given.
pub(super) fn string(text: impl Into<Arc<str>>, spans: Spans) -> Value {
    let text = text.into();
    if spans.0.is_empty() {
        Value::from(text)
    } else {
        Value::from_object(Given { text, spans })
    }
}

/// The text of a string, wherever it came from; `None` where the value is no string.
pub(super) fn as_str(value: &Value) -> Option<&str> {
    match value.downcast_object_ref::<Given>() {
        Some(given) => Some(&given.text),
        None => value.as_str(),
    }
}

/// [`as_str`] as a string that is shared, not copied.
pub(super) fn to_str(value: &Value) -> Option<Arc<str>> {
    match value.downcast_object_ref::<Given>() {
        Some(given) => Some(given.text.clone()),
        None => value.to_str(),
    }
}

/// Whether any byte of a string was given.
pub(super) fn is_given(value: &Value) -> bool {
    value.downcast_object_ref::<Given>().is_some()
}

/// What a mapping finds a key by: where a string came from does not tell it from an equal one.
pub(super) fn key(value: &Value) -> Cow<'_, Value> {
    match value.downcast_object_ref::<Given>() {
        Some(given) => Cow::Owned(Value::from(given.text.clone())),
        None => Cow::Borrowed(value),
    }
}

/// Stretches of a text, each with whether it was given.
pub(super) struct Runs<'a> {
    text: &'a str,
    /// Where `text` starts in the text that `spans` are of.
    at: usize,
    spans: &'a [Range<usize>],
}

impl<'a> Runs<'a> {
    pub fn new(text: &'a str, spans: &'a Spans) -> Self {
        Runs {
            text,
            at: 0,
            spans: &spans.0,
        }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = (&'a str, bool);

    fn next(&mut self) -> Option<Self::Item> {
        if self.text.is_empty() {
            return None;
        }
        while let Some((first, rest)) = self.spans.split_first() {
            if first.end > self.at {
                break;
            }
            self.spans = rest;
        }
        let (end, given) = match self.spans.first() {
            Some(span) if span.start <= self.at => (span.end, true),
            Some(span) => (span.start, false),
            None => (usize::MAX, false),
        };
        let len = end.saturating_sub(self.at).min(self.text.len());
        let (run, rest, given) = match self.text.split_at_checked(len) {
            Some((run, rest)) => (run, rest, given),
            None => (self.text, "", true),
        };
        self.text = rest;
        self.at = self.at.saturating_add(run.len());
        Some((run, given))
    }
}

/// The stretches of `part`, which is a part of the string `of`. Counts as given where it is not.
pub(super) fn runs<'a>(of: &'a Value, part: &'a str) -> Runs<'a> {
    static ALL: Range<usize> = 0..usize::MAX;
    let Some(given) = of.downcast_object_ref::<Given>() else {
        return Runs {
            text: part,
            at: 0,
            spans: &[],
        };
    };
    let (at, spans) = match offset(&given.text, part) {
        Some(at) => (at, given.spans.0.as_slice()),
        None => (0, from_ref(&ALL)),
    };
    let first = spans.partition_point(|span| span.end <= at);
    Runs {
        text: part,
        at,
        spans: spans.get(first..).unwrap_or(from_ref(&ALL)),
    }
}

/// Where `part` lies in `whole`, by address.
fn offset(whole: &str, part: &str) -> Option<usize> {
    let at = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    (at.checked_add(part.len())? <= whole.len()).then_some(at)
}

/// The characters of a string, each as one of its own.
pub(super) fn chars(meter: &Meter, of: &Value) -> Outcome<Vec<Value>> {
    let mut chars = Vec::new();
    for (run, given) in runs(of, as_str(of).unwrap_or("")) {
        if given {
            meter.charge(run.chars().count().saturating_mul(OBJECT))?;
        }
        chars.extend(run.chars().map(|c| {
            let spans = if given { c.len_utf8() } else { 0 };
            string(c.encode_utf8(&mut [0; 4]) as &str, Spans::all(spans))
        }));
    }
    Ok(chars)
}

/// `part`, a part of the string `of`, as a string of its own.
pub(super) fn part(meter: &Meter, of: &Value, part: &str) -> Outcome {
    meter.charge(part.len())?;
    let mut spans = Spans::default();
    let mut at: usize = 0;
    for (run, given) in runs(of, part) {
        let end = at.saturating_add(run.len());
        if given {
            spans.push(at..end);
            meter.charge(OBJECT)?;
        }
        at = end;
    }
    Ok(string(part, spans))
}

/// A text made `from` others in a way that is not followed: given, all of it, where any of them is
/// given in part.
pub(super) fn made(meter: &Meter, text: String, from: &[&Value]) -> Outcome {
    meter.charge(text.len())?;
    let spans = if from.iter().any(|value| is_given(value)) {
        Spans::all(text.len())
    } else {
        Spans::default()
    };
    Ok(string(text, spans))
}

/// Writes a text to the output, with marks.
pub(super) fn write(meter: &Meter, out: &mut Output, runs: Runs<'_>) -> Outcome<()> {
    for (run, given) in runs {
        meter.charge(run.len())?;
        if given {
            meter.charge(BEGIN.len().saturating_add(END.len()))?;
            out.write_str(BEGIN)?;
        }
        for (i, piece) in run.split(MARK).enumerate() {
            if i > 0 {
                meter.charge(ITSELF.len())?;
                out.write_str(ITSELF)?;
            }
            out.write_str(piece)?;
        }
        if given {
            out.write_str(END)?;
        }
    }
    Ok(())
}

/// The text of written output, and what of it was given.
pub(super) fn read(written: &str) -> (String, Spans) {
    let mut text = String::with_capacity(written.len());
    let mut spans = Spans::default();
    let mut start = 0;
    let mut pieces = written.split(MARK);
    text.push_str(pieces.next().unwrap_or(""));
    for piece in pieces {
        let mut chars = piece.chars();
        match chars.next() {
            Some('(') => start = text.len(),
            Some(')') => spans.push(start..text.len()),
            _ => text.push(MARK),
        }
        text.push_str(chars.as_str());
    }
    (text, spans)
}

/// What minijinja hands to a call of ours, captured output read back.
pub(super) fn received<'a>(meter: &Meter, args: &'a [Value]) -> Outcome<Cow<'a, [Value]>> {
    if !args.iter().any(|arg| arg.is_safe() || arg.is_kwargs()) {
        return Ok(Cow::Borrowed(args));
    }
    let read: Outcome<Vec<Value>> = args.iter().map(|arg| captured(meter, arg)).collect();
    Ok(Cow::Owned(read?))
}

fn captured(meter: &Meter, value: &Value) -> Outcome {
    if value.is_kwargs() {
        let named = Kwargs::try_from(value.clone())?;
        let values: Vec<(&str, Value)> = named
            .args()
            .filter_map(|name| Some((name, named.get(name).ok()?)))
            .collect();
        if !values.iter().any(|(_, value)| value.is_safe()) {
            return Ok(value.clone());
        }
        let read: Outcome<Kwargs> = values
            .into_iter()
            .map(|(name, value)| Ok((name, captured(meter, &value)?)))
            .collect();
        return Ok(read?.into());
    }
    let Some(written) = value.as_str().filter(|_| value.is_safe()) else {
        return Ok(value.clone());
    };
    meter.charge(written.len())?;
    let (text, spans) = read(written);
    Ok(string(text, spans))
}
