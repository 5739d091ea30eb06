//! What a model says, taken apart: text, reasoning, and calls of tools.
//!
//! A model that calls a tool writes the call into its text, in one of seven wire formats
//! ([`FORMATS`]). A [`Parser`] is fed that text as it comes and gives [`Event`]s. It is an automaton
//! over characters, so how the text is cut makes no difference but in where a text or an arguments
//! event ends, and its work is linear in the text.
//!
//! - No event but [`Event::Failed`] has a part of a marker in it: what may become one waits.
//! - The fragments of a call's arguments are, joined, one JSON object, whatever the format writes.
//! - No character is lost. White space around markers is layout and belongs to them; so do the
//!   words of a format around a call, such as the id that Mistral's models give it, and a closing
//!   brace too many behind a call of JSON.
//! - What is no call is text, its marker included: `<tool_call>` with anything but an object
//!   behind it. A call that goes wrong once it has begun, for its arguments are no JSON or the
//!   text ends, is [`Event::Failed`], with its text as the model wrote it and the reason.
//! - A call is what was written or none. It ends where what follows it has come, be it the end of
//!   the text: `{"name": "f", "arguments": {}}, "n": 1}` is none.
//! - A name that no offered tool has makes a call all the same: the program that runs it says so to the
//!   model. Only formats without a marker, where it may as well be an answer in JSON, go by names.
//!
//! Reasoning ([`Thought`]) is what stands between `<think>` and `</think>` and their like, or in
//! Harmony's analysis channel. A pair that the template opened counts.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

mod calls;
mod detect;
mod event;
mod gemma4;
mod harmony;
mod hermes;
mod json;
mod lfm;
mod literal;
mod llama3;
mod marked;
mod marker;
mod mistral;
mod python;
mod qwen_xml;
mod schema;

use crate::error::{Error, Result};
use event::Out;

pub use detect::{closed, opened, Found, Probe};
pub use event::Event;
pub(crate) use literal::QUOTE;
pub(crate) use qwen_xml::{typed, VALUE_END, VALUE_TAGS};
pub use schema::Tools;
pub(crate) use schema::{types_of, Types};

/// A wire format of calls.
#[derive(Debug)]
pub struct Format {
    /// Its public name.
    pub name: &'static str,
    /// What a call looks like, for messages.
    pub looks: &'static str,
    /// Spellings of the tokens that a reader must see, where the vocabulary has them as control
    /// tokens, whose text is otherwise left out.
    pub markers: &'static [&'static str],
    /// Text of a prompt by which a template that writes no call shows that it is meant for this
    /// format.
    hint: Option<&'static str>,
    /// A call as the model would write it: text of its name and of its arguments, an object of
    /// JSON. What the template would have written goes first; see [`Written`].
    write: fn(&str, &str) -> Vec<Written>,
    /// How the arguments of a call are written.
    pub spelling: Spelling,
    grammar: Grammar,
}

/// A notation of the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// An object of JSON.
    Json,
    /// An element of XML each: texts as they are, else JSON.
    Xml,
    /// Objects with bare keys, and texts between quotes of their own.
    Gemma,
    /// Keyword arguments of Python.
    Python,
}

/// A part of a call that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The format's own, which may spell control tokens.
    Own(String),
    /// The call's.
    Given(String),
}

#[derive(Debug)]
enum Grammar {
    /// Text with calls between markers.
    Marked(marked::Calls),
    /// All of a turn is messages with headers.
    Channels,
}

/// THE TABLE.
pub static FORMATS: [Format; 7] = [
    hermes::FORMAT,
    qwen_xml::FORMAT,
    llama3::FORMAT,
    mistral::FORMAT,
    gemma4::FORMAT,
    harmony::FORMAT,
    lfm::FORMAT,
];

impl Format {
    /// The format of this name.
    ///
    /// # Errors
    /// [`Error::Argument`] names all there are.
    pub fn by_name(name: &str) -> Result<&'static Self> {
        FORMATS
            .iter()
            .find(|format| format.name == name)
            .ok_or_else(|| Error::Argument {
                name: "tool_format",
                value: format!("{:?}", name.chars().take(40).collect::<String>()),
                reason: format!("must be one of {}", known()),
            })
    }

    /// All that a reader takes for the beginning of a call, wherever it stands.
    #[must_use]
    pub fn opens(&self) -> &'static [&'static str] {
        match &self.grammar {
            Grammar::Marked(calls) => calls.opens,
            Grammar::Channels => &[],
        }
    }

    /// Whether an answer that begins with `{` is read as a call too, without a marker.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        matches!(&self.grammar, Grammar::Marked(calls) if calls.bare)
    }

    /// A call as a model writes it in this format.
    #[must_use]
    pub fn written(&self, name: &str, arguments: &str) -> Vec<Written> {
        (self.write)(name, arguments)
    }

    /// Every way in which models write a call in this format, [`Format::written`] first.
    #[must_use]
    pub fn ways(&self, name: &str, arguments: &str) -> Vec<Vec<Written>> {
        let mut ways = vec![self.written(name, arguments)];
        if matches!(self.grammar, Grammar::Channels) {
            ways.push(harmony::addressed(name, arguments));
        }
        ways
    }
}

/// The names of all formats and what their calls look like.
#[must_use]
pub fn known() -> String {
    let all = FORMATS.iter().map(|f| format!("{} ({})", f.name, f.looks));
    all.collect::<Vec<_>>().join(", ")
}

/// How a model's reasoning is set apart from its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thought {
    /// Between two markers.
    Between(&'static str, &'static str),
    /// In Harmony's channel "analysis".
    Channel,
}

/// The pairs of markers that are known, the most telling ones first.
const THOUGHTS: [(&str, &str); 3] = [
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<think>", "</think>"),
];

impl Thought {
    /// That of a model with this chat template: the template writes it, or leaves it out of the
    /// history, and names its markers for that.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        if source.contains("<|channel|>") && source.contains("analysis") {
            return Some(Self::Channel);
        }
        // Gemma 4's template spells its opening marker in parts.
        let known = |(open, close): &&(&str, &str)| source.contains(close) || source.contains(open);
        let (open, close) = THOUGHTS.iter().find(known)?;
        Some(Self::Between(open, close))
    }

    /// What opens and what closes it.
    #[must_use]
    pub fn ends(self) -> (&'static str, &'static str) {
        match self {
            Self::Channel => ("<|channel|>analysis<|message|>", "<|end|>"),
            Self::Between(open, close) => (open, close),
        }
    }

    /// See [`Format::markers`].
    #[must_use]
    pub fn markers(self) -> Vec<&'static str> {
        match self {
            Self::Channel => harmony::FORMAT.markers.to_vec(),
            // The word behind Gemma 4's marker is text.
            Self::Between(open, close) => vec![open.trim_end_matches("thought"), close],
        }
    }
}

/// How to read the text of a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// The format of its calls; `None` where it was offered no tools.
    pub format: Option<&'static Format>,
    pub thought: Option<Thought>,
}

impl Reading {
    /// Spellings of the tokens that the parser must see.
    #[must_use]
    pub fn markers(self) -> Vec<&'static str> {
        let mut markers = self.format.map_or_else(Vec::new, |f| f.markers.to_vec());
        markers.extend(self.thought.map_or_else(Vec::new, Thought::markers));
        markers
    }

    /// Whether all of a turn is messages with headers, as Harmony has them.
    #[must_use]
    pub fn has_channels(self) -> bool {
        match self.format {
            Some(format) => matches!(format.grammar, Grammar::Channels),
            None => self.thought == Some(Thought::Channel),
        }
    }

    /// Whether there is anything to take apart.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.format.is_none() && self.thought.is_none()
    }
}

/// Reads one text, character by character.
trait Machine: Send {
    fn push(&mut self, c: char, out: &mut Out);
    /// The text has ended.
    fn finish(&mut self, out: &mut Out);
}

/// Takes the text of one answer apart.
pub struct Parser {
    machine: Box<dyn Machine>,
    out: Out,
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser").finish_non_exhaustive()
    }
}

impl Parser {
    /// A parser of the text behind a prompt. `opened` says that the prompt ends within reasoning;
    /// ids of calls depend on `seed` and the number of the call alone.
    #[must_use]
    pub fn new(reading: Reading, tools: Tools, opened: bool, seed: u64) -> Self {
        let calls = reading.format.and_then(|format| match &format.grammar {
            Grammar::Marked(calls) => Some(calls),
            Grammar::Channels => None,
        });
        let machine: Box<dyn Machine> = match reading.has_channels() {
            true => Box::new(harmony::Channels::new()),
            false => Box::new(marked::Marked::new(calls, reading.thought, tools, opened)),
        };
        Self {
            machine,
            out: Out::new(seed),
        }
    }

    /// What more of the text makes certain.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        for c in text.chars() {
            self.machine.push(c, &mut self.out);
        }
        self.out.take()
    }

    /// What was still held when the text ended; a call that has no end by then has failed.
    pub fn finish(&mut self) -> Vec<Event> {
        self.machine.finish(&mut self.out);
        self.out.take()
    }
}
