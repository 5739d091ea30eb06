//! Which format a model's chat template writes calls in: that whose parser reads a probe back.
use super::event::Event;
use super::{known, Format, Parser, Reading, Thought, Tools, FORMATS};
use crate::error::{Error, Result};
use crate::template::{list, map, Rendering, Value};

const NAME: &str = "probe_tool";
const QUESTION: &str = "onegraph asks";
const PLACE: &str = "Lake District";
/// Nine letters and digits: some templates take no other id.
const ID: &str = "probe0001";
/// Longest part of a template's call in a message.
const SHOWN: usize = 60;

/// A conversation that tells how a template writes calls.
#[derive(Debug)]
pub struct Probe {
    pub messages: Value,
    pub tools: Value,
    /// Whether the turn of the assistant is to be opened behind it.
    pub opened: bool,
}

/// How calls are written.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub format: &'static Format,
    /// Whether the template writes calls of the conversation. Where not, someone else must.
    pub writes: bool,
}

fn entry(key: &str, value: impl Into<Value>) -> (Value, Value) {
    (Value::from(key), value.into())
}

fn object(entries: Vec<(Value, Value)>) -> Result<Value> {
    map(entries)
}

fn tool() -> Result<Value> {
    let typed = |name: &str| object(vec![entry("type", name), entry("description", "")]);
    let parameters = object(vec![
        entry("type", "object"),
        entry(
            "properties",
            object(vec![
                entry("place", typed("string")?),
                entry("days", typed("integer")?),
            ])?,
        ),
        entry("required", list(vec!["place".into(), "days".into()])?),
    ])?;
    let function = object(vec![
        entry("name", NAME),
        entry("description", "A probe"),
        entry("parameters", parameters),
    ])?;
    object(vec![entry("type", "function"), entry("function", function)])
}

fn message(role: &str, content: &str) -> Vec<(Value, Value)> {
    vec![entry("role", role), entry("content", content)]
}

impl Probe {
    /// The conversations to render, for [`Found::read`].
    ///
    /// # Errors
    /// None that a template could cause.
    pub fn all() -> Result<[Self; 2]> {
        let user = object(message("user", QUESTION))?;
        let arguments = object(vec![entry("place", PLACE), entry("days", 2)])?;
        let function = object(vec![entry("name", NAME), entry("arguments", arguments)])?;
        let call = object(vec![
            entry("id", ID),
            entry("type", "function"),
            entry("function", function),
        ])?;
        let mut calls = message("assistant", "");
        calls.push(entry("tool_calls", list(vec![call])?));
        let tools = list(vec![tool()?])?;
        Ok([
            Self {
                messages: list(vec![user.clone()])?,
                tools: tools.clone(),
                opened: true,
            },
            Self {
                messages: list(vec![user, object(calls)?])?,
                tools,
                opened: false,
            },
        ])
    }
}

/// The text behind the last of the question.
fn behind(rendering: &Rendering) -> &str {
    let text = &rendering.text;
    text.rsplit_once(QUESTION).map_or(text, |(_, rest)| rest)
}

/// The front that both have, without a marker that is cut.
fn shared<'a>(a: &'a str, b: &str) -> &'a str {
    let pairs = a.char_indices().zip(b.chars());
    let end = pairs
        .take_while(|((_, a), b)| a == b)
        .map(|((at, c), _)| at.saturating_add(c.len_utf8()))
        .last()
        .unwrap_or(0);
    let front = a.get(..end).unwrap_or("");
    if end == a.len() {
        return front;
    }
    match front.rfind(['<', '[']) {
        Some(at) if !front.get(at..).unwrap_or("").contains(['>', ']']) => {
            front.get(..at).unwrap_or("")
        }
        _ => front,
    }
}

/// Whether the end of a prompt opens reasoning: its marker comes last.
fn opens_thought(end: &str, thought: Option<Thought>) -> bool {
    match thought {
        Some(Thought::Between(open, _)) => end.trim_end().ends_with(open),
        _ => false,
    }
}

/// Whether an answer to a prompt begins within reasoning: the template opened it, or the message
/// did that the answer `continues`.
#[must_use]
pub fn opened(prompt: &Rendering, thought: Option<Thought>, continues: bool) -> bool {
    match thought {
        Some(Thought::Between(open, close)) if continues => {
            let end = prompt.given_end();
            end.rfind(open) > end.rfind(close)
        }
        _ => opens_thought(prompt.own_end(), thought),
    }
}

/// Whether a prompt has closed its reasoning: the marker comes last, and an answer has none before its
/// text. Where the answer `continues` a message, that may have done it.
#[must_use]
pub fn closed(prompt: &Rendering, thought: Option<Thought>, continues: bool) -> bool {
    let end = match continues {
        true => &prompt.text,
        false => prompt.own_end(),
    };
    match thought {
        Some(Thought::Between(_, close)) => end.trim_end().ends_with(close),
        _ => false,
    }
}

/// Whether a format reads the probe back from what a template wrote, and nothing in front of it.
fn reads(format: &'static Format, thought: Option<Thought>, opened: bool, text: &str) -> bool {
    let reading = Reading {
        format: Some(format),
        thought,
    };
    let offered = format!(r#"[{{"type": "function", "function": {{"name": "{NAME}"}}}}]"#);
    let mut parser = Parser::new(
        reading,
        Tools::from_json(&offered).unwrap_or_default(),
        opened,
        0,
    );
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let (mut arguments, mut ended) = (String::new(), 0_usize);
    for event in events {
        match event {
            Event::Text(text) if ended == 0 && !text.trim().is_empty() => return false,
            Event::Begun { name, .. } if name != NAME => return false,
            Event::Failed { .. } => return false,
            Event::Arguments { delta, .. } => arguments.push_str(&delta),
            Event::Ended { .. } => ended = ended.saturating_add(1),
            _ => {}
        }
    }
    let read: serde_json::Value = serde_json::from_str(&arguments).unwrap_or_default();
    let expected = serde_json::json!({"place": PLACE, "days": 2});
    ended == 1 && read == expected
}

impl Found {
    /// What the renderings of [`Probe::all`] tell of a template with this source.
    ///
    /// # Errors
    /// [`Error::Template`] where it is none of [`FORMATS`]: what the template writes, and what is
    /// known.
    pub fn read(source: &str, renderings: &[Result<Rendering>; 2]) -> Result<Self> {
        let thought = Thought::of_template(source);
        let [opened, called] = renderings;
        let prompt = opened.as_ref().map(|r| r.text.as_str()).unwrap_or("");
        let tail = opened.as_ref().map(behind).unwrap_or("");
        let written = called.as_ref().map(behind).unwrap_or("");
        let front = shared(tail, written);
        let call = written.strip_prefix(front).unwrap_or(written);
        let within = opens_thought(front, thought);
        let writes = called
            .as_ref()
            .is_ok_and(|r| r.text.matches(NAME).count() > 1);
        if let Some(format) = FORMATS.iter().find(|f| reads(f, thought, within, call)) {
            return Ok(Self {
                format,
                writes: true,
            });
        }
        let hinted = |f: &&Format| f.hint.is_some_and(|hint| prompt.contains(hint));
        if let Some(format) = FORMATS.iter().find(hinted) {
            return Ok(Self { format, writes });
        }
        let said = match (called, call.contains(NAME)) {
            (Err(e), _) => format!("refuses a call ({e})"),
            (Ok(_), true) => format!("writes a call as {:?}", around(call)),
            (Ok(_), false) => "does not write calls".to_owned(),
        };
        Err(Error::Template {
            reason: format!(
                "{said}, so its call format is unknown; known are {}",
                known()
            ),
            remedy: "if the model writes one of these, set tool_format=; otherwise leave tools out"
                .to_owned(),
        })
    }

    /// A format that the caller names: whether the template writes calls, the probe tells.
    #[must_use]
    pub fn named(format: &'static Format, renderings: &[Result<Rendering>; 2]) -> Self {
        let [_, called] = renderings;
        // A template that takes no probe may take the conversation.
        let writes = called.as_ref().map_or(true, |r| behind(r).contains(NAME));
        Self { format, writes }
    }
}

/// The front of a call as a template writes it, from its marker on.
fn around(call: &str) -> String {
    let call = call.trim_start();
    let short: String = call.chars().take(SHOWN).collect();
    match short.len() < call.len() {
        true => format!("{short}..."),
        false => short,
    }
}
