//! The grammar of a whole answer under a constraint: reasoning first, if the model reasons, then the
//! constrained text or tool calls in the model's format.

use super::lark::{joined, literal, regex_of, terminal_of, Lines, Term, Terms, ANY};
use super::{json, keys, notation, on_a_stack, Constraint, MAX_BYTES};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use crate::tools::{Format, Reading, Spelling, Thought, Written, QUOTE};

/// Stands for the arguments of a call, to see where a format writes them.
const ARGUMENTS: &str = r#"{"the arguments":0}"#;

/// Layout between reasoning, calls and text.
const SPACE: &str = r"/[ \n]{0,4}/";

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Callable {
    pub name: String,
    /// The JSON schema of its arguments, as JSON.
    pub parameters: String,
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
    on_a_stack(|| answer(reading, tokenizer, opened, held))
}

fn answer(
    reading: Reading,
    tokenizer: &Tokenizer,
    opened: bool,
    held: &Held,
) -> Result<Constraint> {
    let mut rules = Rules {
        tokenizer,
        lines: Lines::default(),
    };
    let start = match held {
        Held::Text {
            constraint,
            tools,
            several,
        } => {
            let thought = rules.thought(reading.thought, opened);
            let body = constraint.expression(&mut rules.lines)?;
            let before = rules.before_text(reading);
            match tools.is_empty() {
                true => format!("{thought} {before} {body}"),
                false => {
                    let calls = rules.calls(reading, tools, *several)?;
                    format!("{thought} ({before} {body} | {calls})")
                }
            }
        }
        Held::Calls { tools, several } => {
            let thought = rules.thought(reading.thought, opened);
            let calls = rules.calls(reading, tools, *several)?;
            format!("{thought} {calls}")
        }
        Held::CallsIfAny { tools, several } => {
            let calls = rules.calls(reading, tools, *several)?;
            match reading.has_channels() {
                true => rules.messages(reading, &calls),
                false => {
                    let thought = rules.thought(reading.thought, opened);
                    format!("{thought} ({})", rules.calls_or_text(reading, &calls)?)
                }
            }
        }
    };
    Ok(Constraint::Answer(format!(
        "{}start: {start}\n{}",
        keys_of(reading, held),
        rules.lines.text
    )))
}

/// Says in front of a grammar where its texts have JSON.
fn keys_of(reading: Reading, held: &Held) -> String {
    let json = |tools: &[Callable]| {
        let spelled = reading
            .format
            .is_none_or(|format| format.spelling == Spelling::Json);
        tools.is_empty() || spelled
    };
    let (is_json, tools, may_be_text) = match held {
        Held::Text {
            constraint, tools, ..
        } => (matches!(constraint, Constraint::Schema(_)), tools, false),
        Held::Calls { tools, .. } => (true, tools, false),
        Held::CallsIfAny { tools, .. } => (true, tools, true),
    };
    if !(is_json && json(tools)) {
        return String::new();
    }
    let mut markers = match (tools.is_empty(), reading.format) {
        (false, Some(format)) => format.opens().to_vec(),
        _ => Vec::new(),
    };
    match reading.thought {
        Some(Thought::Between(_, close)) if !may_be_text => markers.push(close),
        // What stands in messages before the last begins as JSON does.
        Some(Thought::Channel) => return String::new(),
        _ => {}
    }
    match markers.is_empty() && may_be_text {
        true => String::new(),
        false => keys::head(&markers),
    }
}

/// The marker that every call of a format begins with.
fn open_of(format: Option<&'static Format>) -> Option<&'static str> {
    let format = format?;
    let first = *format.markers.first()?;
    let written = format.written("f", "{}");
    matches!(written.first(), Some(Written::Own(text)) if text.starts_with(first)).then_some(first)
}

fn unheld(format: Option<&'static Format>) -> Error {
    Error::Argument {
        name: "tool_choice",
        value: format.map_or("none", |format| format.name).into(),
        reason:
            "calls in this format cannot be constrained to a schema; use tool_choice=\"auto\", \
             and check \
                 arguments before they are used"
                .into(),
    }
}

/// Rules of a grammar, beside `start`.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    lines: Lines,
}

impl Rules<'_> {
    /// A text of the format's own, which may spell control tokens.
    fn own(&self, text: &str) -> String {
        let tokenizer = self.tokenizer;
        let mut found = Vec::new();
        let mut plain = Vec::new();
        for id in tokenizer.encode(text, false, true) {
            if tokenizer.is_special(id) {
                found.push(literal(&String::from_utf8_lossy(&plain)));
                plain.clear();
                found.push(format!("<[{id}]>"));
            } else {
                plain.extend(tokenizer.piece(id).unwrap_or_default());
            }
        }
        found.push(literal(&String::from_utf8_lossy(&plain)));
        joined(&found.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The id of a marker that is a control token.
    fn special(&self, marker: &str) -> Option<u32> {
        let id = self.tokenizer.vocab().id(marker)?;
        self.tokenizer.is_special(id).then_some(id)
    }

    /// Any text up to a marker, without it and others.
    fn upto(&mut self, marker: &str, others: &[&str]) -> String {
        self.ended(terms_without(&[&[marker], others].concat()), marker)
    }

    /// A text that these terms hold, which has no marker in it, and that marker.
    fn ended(&mut self, text: Terms, marker: &str) -> String {
        let text = terminal_of(&text);
        match self.special(marker) {
            Some(id) => joined(&[&self.lines.terminal(&text), &format!("<[{id}]>")]),
            // One lexeme: where the text ends is known only behind the marker.
            None => self.lines.terminal(&joined(&[&text, &literal(marker)])),
        }
    }

    /// What a format writes in front of the text of an answer.
    fn before_text(&self, reading: Reading) -> String {
        match reading.has_channels() {
            true => self.own("<|channel|>final<|message|>"),
            false => String::new(),
        }
    }

    /// A text or calls, behind reasoning, in a format whose calls are marked.
    fn calls_or_text(&mut self, reading: Reading, calls: &str) -> Result<String> {
        let format = reading.format;
        let opens = format.map_or(&[][..], Format::opens);
        let written = open_of(format);
        let Some(open) = written.or(opens.first().copied()) else {
            return Err(unheld(format));
        };
        let mut text = terms_without(&[&[open], opens].concat());
        let bare = format.is_some_and(Format::is_bare);
        if bare {
            text.push(Term::Not(format!(r"\s*\{{{ANY}")));
            // Behind more reasoning a `{` would begin a call again.
            if let Some(Thought::Between(again, _)) = reading.thought {
                text.push(Term::without(again));
            }
        }
        let upto = self.ended(text.clone(), open);
        let text = self.lines.terminal(&terminal_of(&text));
        let own = self.own(open);
        let behind = calls.strip_prefix(&own).unwrap_or(calls);
        Ok(match bare {
            true => {
                let calls = self.lines.rule(calls);
                format!("{upto} {calls} | {calls} | {text}")
            }
            false => format!("{upto} {behind} | {text}"),
        })
    }

    /// A text or a call in messages with headers, behind reasoning and what is said before a call.
    fn messages(&mut self, reading: Reading, call: &str) -> String {
        let markers = Thought::Channel.markers();
        let upto = self.upto("<|end|>", &markers);
        let analysis = self.own("<|channel|>analysis<|message|>");
        let said = self.own("<|channel|>commentary<|message|>");
        let next = self.own("<|start|>assistant");
        let before = self
            .lines
            .rule(&format!("({analysis} | {said}) {upto} {next}"));
        let last = self.before_text(reading);
        let mut text = terms_without(&markers);
        let behind = self.lines.terminal(&terminal_of(&text));
        // A text without a header stands at the front alone, where this begins one.
        text.push(Term::Not(format!("{}{ANY}", regex_of(" to="))));
        let alone = self.lines.terminal(&terminal_of(&text));
        format!("{before}* (({last} | {said}) {behind} | {call}) | {alone}")
    }

    /// Reasoning, with what stands between it and the answer.
    fn thought(&mut self, thought: Option<Thought>, opened: bool) -> String {
        match thought {
            None => String::new(),
            Some(Thought::Between(open, close)) => {
                let upto = self.upto(close, &[]);
                match opened {
                    true => format!("{upto} {SPACE}"),
                    false => format!("({} {upto} {SPACE})?", self.own(open)),
                }
            }
            Some(Thought::Channel) => {
                let open = self.own("<|channel|>analysis<|message|>");
                let upto = self.upto("<|end|>", &Thought::Channel.markers());
                format!("({open} {upto} {})?", self.own("<|start|>assistant"))
            }
        }
    }

    /// A call of one of the tools, and further ones where there may be several.
    fn calls(&mut self, reading: Reading, tools: &[Callable], several: bool) -> Result<String> {
        let call = self.call(reading.format, tools)?;
        // A turn of Harmony's ends behind a call.
        if !several || reading.has_channels() {
            return Ok(call);
        }
        let again = self.lines.rule(&call);
        Ok(format!("{call} ({SPACE} {again})*"))
    }

    /// A call of one of the tools.
    fn call(&mut self, format: Option<&'static Format>, tools: &[Callable]) -> Result<String> {
        let Some(format) = format.filter(|_| !tools.is_empty()) else {
            return Err(unheld(format));
        };
        let mut either: Vec<String> = Vec::new();
        let bytes: usize = tools.iter().map(|tool| tool.parameters.len()).sum();
        if bytes > MAX_BYTES {
            return Err(Error::Argument {
                name: "tools",
                value: format!("parameters of {bytes} bytes"),
                reason: format!("the limit is {MAX_BYTES}; offer fewer, or smaller ones"),
            });
        }
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
        let (given, place) = match format.spelling {
            Spelling::Json => (ARGUMENTS, ARGUMENTS),
            // A call without arguments has them before this.
            Spelling::Xml => ("{}", "</function>"),
            Spelling::Gemma => ("{}", "}"),
            Spelling::Python => ("{}", ")"),
        };
        let arguments = self.arguments_of(format, tool)?;
        let ways = format.ways(&tool.name, given).into_iter();
        let ways = ways.map(|way| self.way_of(format, &way, place, &arguments));
        let ways: Vec<String> = ways.collect::<Result<_>>()?;
        match &ways[..] {
            [one] => Ok(one.clone()),
            several => Ok(format!("({})", several.join(" | "))),
        }
    }

    /// A call as it is written, with `arguments` in their place.
    fn way_of(
        &self,
        format: &'static Format,
        way: &[Written],
        place: &str,
        arguments: &str,
    ) -> Result<String> {
        let open = open_of(Some(format));
        let mut found = Vec::new();
        let mut places = 0usize;
        for part in way {
            let (text, own) = match part {
                Written::Own(text) => (&text[..], true),
                Written::Given(text) => (&text[..], false),
            };
            let spelled = |text: &str| match own {
                true => self.own(text),
                false => literal(text),
            };
            match (text.split_once(place), open) {
                (Some((before, behind)), _) => {
                    places = places.saturating_add(1);
                    let kept = if place == ARGUMENTS { "" } else { place };
                    let behind = spelled(&format!("{kept}{behind}"));
                    found.extend([spelled(before), arguments.to_owned(), behind]);
                }
                // The marker by itself, as what comes before a call ends with it.
                (None, Some(open)) if own && text.starts_with(open) => {
                    let behind = text.strip_prefix(open).unwrap_or_default();
                    found.extend([spelled(open), spelled(behind)]);
                }
                (None, _) => found.push(spelled(text)),
            }
        }
        match places {
            1 => Ok(joined(
                &found.iter().map(String::as_str).collect::<Vec<_>>(),
            )),
            _ => Err(unheld(Some(format))),
        }
    }

    /// The arguments of a call.
    fn arguments_of(&mut self, format: &'static Format, tool: &Callable) -> Result<String> {
        let refused = |reason: String| Error::Argument {
            name: "tools",
            value: tool.name.clone(),
            reason,
        };
        let schema = json::read(&tool.parameters).map_err(refused)?;
        // Other letters are in no name that a reader of Python takes.
        let plain = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
        if format.spelling == Spelling::Python && !tool.name.chars().all(plain) {
            let reason = "in this format, tool names may only have letters, digits and _-.:";
            return Err(refused(reason.into()));
        }
        let quote = self.special(QUOTE);
        let spelling = format.spelling;
        let tool = (&tool.name[..], &schema);
        let found = notation::arguments(&mut self.lines, spelling, quote, tool)?;
        Ok(match found.contains('|') {
            true => format!("({found})"),
            false => found,
        })
    }
}

/// Any text without these markers, be they control tokens or spelled by others. They are one term,
/// as a lexer has far fewer states for it than for a term each.
fn terms_without(markers: &[&str]) -> Terms {
    let either: Vec<String> = markers.iter().map(|marker| regex_of(marker)).collect();
    let found = format!("{ANY}({}){ANY}", either.join("|"));
    vec![Term::is(ANY), Term::Not(found)]
}
