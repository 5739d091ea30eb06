//! The whole of an answer to a conversation under a constraint: reasoning first, where the model does
//! that, then what the constraint is of, a text or calls of tools in the format that the model writes.

use std::fmt::Write;

use serde_json::Value;

use super::{json, Constraint};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use crate::tools::{Format, Reading, Thought, Written};

/// Stands for the arguments of a call, to see where a format writes them.
const ARGUMENTS: &str = r#"{"the arguments":0}"#;

/// Any text, of any lines.
const ANY: &str = "(?s:.*)";

/// Layout between reasoning, calls and text.
const SPACE: &str = r"/[ \n]{0,4}/";

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Callable {
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// What of an answer is held to a form.
#[derive(Debug, Clone, PartialEq)]
pub enum Held {
    /// Its text, unless the model calls one of `tools` instead.
    Text {
        constraint: Constraint,
        tools: Vec<Callable>,
        several: bool,
    },
    /// Calls: the answer is one of these tools, called by its name and with arguments of its schema.
    Calls {
        tools: Vec<Callable>,
        /// Whether there may be several.
        several: bool,
    },
    /// The same where the model calls any; else the answer is a text.
    CallsIfAny { tools: Vec<Callable>, several: bool },
}

/// A grammar of an answer behind a prompt that ends within reasoning where that is `opened`.
///
/// # Errors
/// [`Error::Argument`] for what is wrong with a constraint, or a format whose calls cannot be held to
/// a schema.
pub fn of_answer(
    reading: Reading,
    tokenizer: &Tokenizer,
    opened: bool,
    held: &Held,
) -> Result<Constraint> {
    let mut rules = Rules {
        tokenizer,
        text: String::new(),
    };
    let thought = rules.thought(reading.thought, opened);
    let channels = reading.thought == Some(Thought::Channel);
    let start = match held {
        Held::Text {
            constraint,
            tools,
            several,
        } => {
            let body = constraint.expression()?;
            let before = match channels {
                true => rules.own("<|channel|>final<|message|>"),
                false => String::new(),
            };
            match tools.is_empty() {
                true => format!("{thought} {before} {body}"),
                false => {
                    let calls = rules.calls(reading, tools, *several)?;
                    format!("{thought} ({before} {body} | {calls})")
                }
            }
        }
        Held::Calls { tools, several } => {
            let calls = rules.calls(reading, tools, *several)?;
            format!("{thought} {calls}")
        }
        Held::CallsIfAny { tools, several } => {
            let Some(open) = open_of(reading.format) else {
                return Err(unheld(reading.format));
            };
            let calls = rules.calls(reading, tools, *several)?;
            let own = rules.own(open);
            let upto = rules.upto(open);
            let behind = calls.strip_prefix(&own).unwrap_or(&calls);
            let without = rules.without(open);
            format!("{thought} ({upto} {behind} | {without})")
        }
    };
    Ok(Constraint::Grammar(format!(
        "start: {start}\n{}",
        rules.text
    )))
}

/// The marker that every call of a format begins with.
fn open_of(format: Option<&'static Format>) -> Option<&'static str> {
    let format = format?;
    let first = *format.markers.first()?;
    let written = format.written("f", ARGUMENTS);
    matches!(written.first(), Some(Written::Own(text)) if text.starts_with(first)).then_some(first)
}

fn unheld(format: Option<&'static Format>) -> Error {
    Error::Argument {
        name: "tool_choice",
        value: format.map_or("none", |format| format.name).into(),
        reason:
            "calls in this format cannot be held to a schema; use tool_choice=\"auto\", and check \
                 arguments before they are used"
                .into(),
    }
}

/// Rules of a grammar, beside `start`.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
}

impl Rules<'_> {
    /// A text of the format's own, which may spell control tokens.
    fn own(&self, text: &str) -> String {
        let tokenizer = self.tokenizer;
        let mut found = String::new();
        let mut plain = Vec::new();
        for id in tokenizer.encode(text, false, true) {
            if tokenizer.is_special(id) {
                flush(&mut plain, &mut found);
                let _ = write!(found, " <[{id}]>");
            } else {
                plain.extend(tokenizer.piece(id).unwrap_or_default());
            }
        }
        flush(&mut plain, &mut found);
        found
    }

    /// The id of a marker that is a control token.
    fn special(&self, marker: &str) -> Option<u32> {
        let id = self.tokenizer.vocab().id(marker)?;
        self.tokenizer.is_special(id).then_some(id)
    }

    fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// Any text up to a marker, and that.
    fn upto(&mut self, marker: &str) -> String {
        let name = format!("upto_{}", self.text.len());
        match self.special(marker) {
            Some(id) => self.rule(&name, &format!("/{ANY}/ <[{id}]>")),
            None => {
                let marker = regex_of(marker);
                self.rule(&format!("{name}[lazy]"), &format!("/{ANY}{marker}/"));
            }
        }
        name
    }

    /// Any text without a marker.
    fn without(&mut self, marker: &str) -> String {
        if self.special(marker).is_some() {
            return format!("/{ANY}/");
        }
        let name = format!("WITHOUT_{}", self.text.len());
        let marker = regex_of(marker);
        self.rule(&name, &format!("/{ANY}/ & ~/{ANY}{marker}{ANY}/"));
        name
    }

    /// Reasoning, with what stands between it and the answer.
    fn thought(&mut self, thought: Option<Thought>, opened: bool) -> String {
        match thought {
            None => String::new(),
            Some(Thought::Between(open, close)) => {
                let upto = self.upto(close);
                match opened {
                    true => format!("{upto} {SPACE}"),
                    false => format!("({} {upto} {SPACE})?", self.own(open)),
                }
            }
            Some(Thought::Channel) => {
                let open = self.own("<|channel|>analysis<|message|>");
                let upto = self.upto("<|end|>");
                format!("({open} {upto} {})?", self.own("<|start|>assistant"))
            }
        }
    }

    /// A call of one of the tools, and further ones where there may be several.
    fn calls(&mut self, reading: Reading, tools: &[Callable], several: bool) -> Result<String> {
        let call = self.call(reading.format, tools)?;
        // A turn of Harmony's ends behind a call.
        if !several || reading.thought == Some(Thought::Channel) {
            return Ok(call);
        }
        self.rule("call_again", &call);
        Ok(format!("{call} ({SPACE} call_again)*"))
    }

    /// A call of one of the tools.
    fn call(&mut self, format: Option<&'static Format>, tools: &[Callable]) -> Result<String> {
        let Some(format) = format.filter(|_| !tools.is_empty()) else {
            return Err(unheld(format));
        };
        let mut either: Vec<String> = Vec::new();
        for tool in tools {
            either.push(self.call_of(format, tool)?);
        }
        if let [one] = &either[..] {
            return Ok(one.clone());
        }
        // What they begin with alike stands before what tells them apart.
        let open = open_of(Some(format)).map(|open| self.own(open));
        if let Some(open) = open {
            let rest: Vec<&str> = either
                .iter()
                .filter_map(|e| e.strip_prefix(&open))
                .collect();
            if rest.len() == either.len() {
                return Ok(format!("{open} ({})", rest.join(" | ")));
            }
        }
        Ok(format!("({})", either.join(" | ")))
    }

    fn call_of(&mut self, format: &'static Format, tool: &Callable) -> Result<String> {
        let schema = json::schema(tool.parameters.clone()).map_err(|reason| Error::Argument {
            name: "tools",
            value: tool.name.clone(),
            reason,
        })?;
        let open = open_of(Some(format));
        let mut found = String::new();
        let mut places = 0usize;
        for part in format.written(&tool.name, ARGUMENTS) {
            match part {
                // The marker by itself, as what comes before a call ends with it.
                Written::Own(text) => {
                    match open.and_then(|open| Some((open, text.strip_prefix(open)?))) {
                        Some((open, rest)) => {
                            found.push_str(&self.own(open));
                            found.push_str(&self.own(rest));
                        }
                        None => found.push_str(&self.own(&text)),
                    }
                }
                Written::Given(text) => match text.split_once(ARGUMENTS) {
                    Some((before, behind)) => {
                        places = places.saturating_add(1);
                        literal(before, &mut found);
                        let _ = write!(found, " %json {schema}");
                        literal(behind, &mut found);
                    }
                    None => literal(&text, &mut found),
                },
            }
        }
        match places {
            1 => Ok(found),
            _ => Err(unheld(Some(format))),
        }
    }
}

/// Appends a literal text.
fn literal(text: &str, out: &mut String) {
    if !text.is_empty() {
        let _ = write!(out, " {}", Value::from(text));
    }
}

fn flush(plain: &mut Vec<u8>, out: &mut String) {
    literal(&String::from_utf8_lossy(plain), out);
    plain.clear();
}

/// A regular expression of one text.
fn regex_of(text: &str) -> String {
    let escaped = |c: char| format!(r"\x{{{:X}}}", u32::from(c));
    text.chars().map(escaped).collect()
}
