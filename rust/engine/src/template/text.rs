//! Values as text, as Python writes them: `str`, `repr` and `json.dumps`.
use minijinja::Value;
use unicode_general_category::{get_general_category, GeneralCategory as G};

use super::given::{self, Runs, Spans};
use super::markup::unmarked;
use super::meter::{fail, Meter, Outcome};
use super::namespace::Namespace;
use super::value::{type_name, view, Form, List, View};
use super::{compare, sort};

/// A name as a message quotes it, cut where it is long.
pub(super) fn quoted(name: &str) -> String {
    match name.char_indices().nth(40) {
        Some((at, _)) => format!("{:?}...", name.get(..at).unwrap_or("")),
        None => format!("{name:?}"),
    }
}

/// Text in the making; every byte is charged. What is pushed as such is the template's own.
pub(super) struct Text<'m> {
    out: String,
    given: Spans,
    meter: &'m Meter,
}

/// `repr` of a float: the shortest digits that read back, an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if !x.is_finite() {
        let sign = if x < 0.0 { "-" } else { "" };
        return if x.is_nan() {
            "nan".to_owned()
        } else {
            format!("{sign}inf")
        };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || x == 0.0 {
        let mut fixed = x.to_string();
        if !fixed.contains('.') {
            fixed.push_str(".0");
        }
        fixed
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

fn is_printable(c: char) -> bool {
    c == ' '
        || !matches!(
            get_general_category(c),
            G::Control
                | G::Format
                | G::Surrogate
                | G::PrivateUse
                | G::Unassigned
                | G::LineSeparator
                | G::ParagraphSeparator
                | G::SpaceSeparator
        )
}

/// How `json.dumps` is asked to write.
pub(super) struct Json {
    pub ensure_ascii: bool,
    pub indent: Option<Value>,
    pub item_separator: Value,
    pub key_separator: Value,
    pub sort_keys: bool,
}

impl<'m> Text<'m> {
    pub fn new(meter: &'m Meter) -> Self {
        Text {
            out: String::new(),
            given: Spans::default(),
            meter,
        }
    }

    /// What was made, as a string.
    pub fn finish(self) -> Value {
        given::string(self.out, self.given)
    }

    /// What was made, wherever it came from: for messages and numbers.
    pub fn into_string(self) -> String {
        self.out
    }

    /// What was made, in stretches.
    pub fn runs(&self) -> Runs<'_> {
        Runs::new(&self.out, &self.given)
    }

    /// Adds `part` of the string `of`.
    pub fn push_part(&mut self, of: &Value, part: &str) -> Outcome<()> {
        self.each_run(of, part, Self::push)
    }

    /// Adds what `add` makes of each stretch of `part`, given where the stretch is.
    pub fn each_run(
        &mut self,
        of: &Value,
        part: &str,
        mut add: impl FnMut(&mut Self, &str) -> Outcome<()>,
    ) -> Outcome<()> {
        for (run, given) in given::runs(of, part) {
            let start = self.out.len();
            add(self, run)?;
            if given {
                self.given.push(start..self.out.len());
            }
        }
        Ok(())
    }

    pub fn push(&mut self, s: &str) -> Outcome<()> {
        // The constant makes empty pieces cost something too: a tree of empty lists is not free.
        self.meter.charge(s.len().saturating_add(8))?;
        self.out.push_str(s);
        Ok(())
    }

    fn push_char(&mut self, c: char) -> Outcome<()> {
        self.meter.charge(c.len_utf8())?;
        self.out.push(c);
        Ok(())
    }

    /// `str(value)`.
    pub fn str(&mut self, value: &Value) -> Outcome<()> {
        let value = unmarked(value).unwrap_or(value);
        match view(value) {
            View::Str(s) => self.push_part(value, s),
            View::Undefined => Ok(()),
            _ => self.repr(value),
        }
    }

    /// `repr(value)`.
    pub fn repr(&mut self, value: &Value) -> Outcome<()> {
        match view(value) {
            View::Undefined => self.push("Undefined"),
            View::None => self.push("None"),
            View::Bool(true) => self.push("True"),
            View::Bool(false) => self.push("False"),
            View::Int(n) => self.push(&n.to_string()),
            View::Float(x) => self.push(&float(x)),
            View::Str(s) => self.quoted(value, s),
            View::List(List {
                form: Some(Form::Range { start, stop, step }),
                ..
            }) => self.push(&match step {
                1 => format!("range({start}, {stop})"),
                step => format!("range({start}, {stop}, {step})"),
            }),
            View::List(list) => {
                if let Some(form) = list.form {
                    self.push(form.name())?;
                    self.push("(")?;
                }
                self.push(if list.tuple { "(" } else { "[" })?;
                for (i, item) in list.items.iter().enumerate() {
                    if i > 0 {
                        self.push(", ")?;
                    }
                    self.repr(item)?;
                }
                let one = list.items.len() == 1;
                self.push(match list.tuple {
                    true if one => ",)",
                    true => ")",
                    false if list.form.is_some() => "])",
                    false => "]",
                })
            }
            View::Map(map) => {
                self.push("{")?;
                for (i, (key, item)) in map.entries.iter().enumerate() {
                    if i > 0 {
                        self.push(", ")?;
                    }
                    self.repr(key)?;
                    self.push(": ")?;
                    self.repr(item)?;
                }
                self.push("}")
            }
            View::Other if value.downcast_object_ref::<Namespace>().is_some() => {
                self.namespace(value)
            }
            // Python writes where they lie in memory.
            View::Other => Err(fail(format!(
                "printing a value of type {} is not available",
                type_name(value)
            ))),
        }
    }

    /// `<Namespace {...}>`; one that holds another may hold itself.
    fn namespace(&mut self, value: &Value) -> Outcome<()> {
        let namespace = value.downcast_object_ref::<Namespace>();
        self.meter
            .charge_elements(namespace.map_or(0, Namespace::len).saturating_mul(2))?;
        let entries = namespace.map(Namespace::entries).unwrap_or_default();
        if entries.iter().any(|(_, v)| matches!(view(v), View::Other)) {
            return Err(fail(
                "printing a namespace that holds objects is not available",
            ));
        }
        self.push("<Namespace {")?;
        for (i, (name, item)) in entries.iter().enumerate() {
            if i > 0 {
                self.push(", ")?;
            }
            self.repr(name)?;
            self.push(": ")?;
            self.repr(item)?;
        }
        self.push("}>")
    }

    fn quoted(&mut self, value: &Value, s: &str) -> Outcome<()> {
        let quote = if s.contains('\'') && !s.contains('"') {
            '"'
        } else {
            '\''
        };
        self.push_char(quote)?;
        self.each_run(value, s, |text, run| text.escaped(run, quote))?;
        self.push_char(quote)
    }

    /// The inside of a literal.
    fn escaped(&mut self, s: &str, quote: char) -> Outcome<()> {
        for c in s.chars() {
            match c {
                '\\' => self.push("\\\\")?,
                '\n' => self.push("\\n")?,
                '\r' => self.push("\\r")?,
                '\t' => self.push("\\t")?,
                c if c == quote => {
                    self.push_char('\\')?;
                    self.push_char(c)?;
                }
                c if is_printable(c) => self.push_char(c)?,
                c => {
                    let code = u32::from(c);
                    let escaped = match code {
                        0..=0xFF => format!("\\x{code:02x}"),
                        0x100..=0xFFFF => format!("\\u{code:04x}"),
                        _ => format!("\\U{code:08x}"),
                    };
                    self.push(&escaped)?;
                }
            }
        }
        Ok(())
    }

    /// `json.dumps(value)`.
    pub fn json(&mut self, value: &Value, how: &Json) -> Outcome<()> {
        self.json_at(value, how, 1)
    }

    fn json_at(&mut self, value: &Value, how: &Json, level: usize) -> Outcome<()> {
        match view(value) {
            View::None => self.push("null"),
            View::Bool(true) => self.push("true"),
            View::Bool(false) => self.push("false"),
            View::Int(n) => self.push(&n.to_string()),
            View::Float(x) => self.push(&json_float(x)),
            View::Str(s) => self.json_string(value, s, how.ensure_ascii),
            View::List(list) if list.form.is_some() => Err(fail(format!(
                "a {} cannot be written as JSON",
                type_name(value)
            ))),
            View::List(list) if list.items.is_empty() => self.push("[]"),
            View::List(list) => {
                self.push("[")?;
                for (i, item) in list.items.iter().enumerate() {
                    self.json_break(how, i > 0, level)?;
                    self.json_at(item, how, level.saturating_add(1))?;
                }
                self.json_close(how, level)?;
                self.push("]")
            }
            View::Map(map) if map.entries.is_empty() => self.push("{}"),
            View::Map(map) => {
                let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
                self.meter.charge_elements(entries.len())?;
                if how.sort_keys {
                    entries = sort::sorted(entries, |(a, _), (b, _)| {
                        compare::order(self.meter, "<", a, b)
                    })?;
                }
                self.push("{")?;
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    self.json_break(how, i > 0, level)?;
                    match view(key) {
                        View::Str(s) => self.json_string(key, s, how.ensure_ascii)?,
                        _ => {
                            self.push("\"")?;
                            self.json_at(key, how, level)?;
                            self.push("\"")?;
                        }
                    }
                    self.str(&how.key_separator)?;
                    self.json_at(item, how, level.saturating_add(1))?;
                }
                self.json_close(how, level)?;
                self.push("}")
            }
            View::Undefined | View::Other => Err(fail(format!(
                "an {} cannot be written as JSON",
                type_name(value)
            ))),
        }
    }

    fn json_break(&mut self, how: &Json, separate: bool, level: usize) -> Outcome<()> {
        if separate {
            self.str(&how.item_separator)?;
        }
        self.json_indent(how, level)
    }

    fn json_close(&mut self, how: &Json, level: usize) -> Outcome<()> {
        self.json_indent(how, level.saturating_sub(1))
    }

    fn json_indent(&mut self, how: &Json, level: usize) -> Outcome<()> {
        if let Some(indent) = &how.indent {
            self.push("\n")?;
            for _ in 0..level {
                self.str(indent)?;
            }
        }
        Ok(())
    }

    fn json_string(&mut self, value: &Value, s: &str, ensure_ascii: bool) -> Outcome<()> {
        self.push_char('"')?;
        self.each_run(value, s, |text, run| text.json_escaped(run, ensure_ascii))?;
        self.push_char('"')
    }

    /// The inside of a JSON string.
    fn json_escaped(&mut self, s: &str, ensure_ascii: bool) -> Outcome<()> {
        for c in s.chars() {
            match c {
                '"' => self.push("\\\"")?,
                '\\' => self.push("\\\\")?,
                '\n' => self.push("\\n")?,
                '\r' => self.push("\\r")?,
                '\t' => self.push("\\t")?,
                '\u{8}' => self.push("\\b")?,
                '\u{c}' => self.push("\\f")?,
                '\0'..='\x1f' => self.push(&format!("\\u{:04x}", u32::from(c)))?,
                c if ensure_ascii && c > '\x7e' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => self.push_char(c)?,
            }
        }
        Ok(())
    }
}

fn json_float(x: f64) -> String {
    if x.is_nan() {
        "NaN".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float(x)
    }
}

pub(super) fn is_str(value: &Value) -> bool {
    matches!(view(value), View::Str(_))
}

/// `str(value)`.
pub(super) fn to_text(meter: &Meter, value: &Value) -> Outcome {
    if let Some(text) = given::as_str(value) {
        meter.charge(text.len())?;
        return Ok(value.clone());
    }
    let mut text = Text::new(meter);
    text.str(value)?;
    Ok(text.finish())
}

/// The characters of `str(value)`: for numbers, names and tests, not for texts made of it.
pub(super) fn to_string(meter: &Meter, value: &Value) -> Outcome<String> {
    let mut text = Text::new(meter);
    text.str(value)?;
    Ok(text.into_string())
}
