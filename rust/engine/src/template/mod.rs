//! Chat templates: Jinja by minijinja, with the meaning that `transformers` gives a template.
//!
//! A template comes with a model file, so it is data from strangers. It reaches nothing outside
//! its arguments; its steps are counted (fuel), and so is every byte it makes, hashes or compares
//! (a meter): a loop, a doubled string or a nested list ends in an error, not in memory. Below
//! both lies a deadline, and a caller may end the work at any time ([`Task`]). Values print
//! as Python prints them (`True`, `None`, `{'a': 1}`), operators and methods mean what they mean
//! in Python, `tojson` is `json.dumps(ensure_ascii=False)`. Not available: `import`, `include`,
//! `extends`, `autoescape`, calls with `*` or `**`, methods that change a list or mapping.
//!
//! A rendering says which parts of its text came with the arguments (`given`): what a message says
//! is not what the template says.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

mod arguments;
mod canonical;
mod checks;
mod compare;
mod environment;
mod filters;
mod generator;
mod given;
#[cfg(test)]
mod given_tests;
mod key;
mod letters;
mod limits;
mod markup;
mod meter;
mod methods;
mod namespace;
mod ops;
mod rewrite;
mod sort;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::ops::Range;
use std::sync::Arc;

use minijinja::machinery::{make_string_output, CodeGenerator, Vm};
use minijinja::ErrorKind;

use crate::error::{Error, Result};
use limits::{Ended, Stop, DEADLINE};
use meter::Meter;

pub use limits::Task;
pub use minijinja::Value;

/// Longest source; published templates stay below 100 KiB.
const MAX_SOURCE: usize = 1 << 20;
/// Instructions of one rendering; a conversation of a thousand messages takes some 200,000.
const FUEL: u64 = 5_000_000;
/// Bytes one rendering may make and look at, output included, beyond what the messages justify.
const METER: u64 = 192 << 20;
/// What each byte of the arguments adds: a template may go over the messages several times.
const METER_PER_BYTE: u64 = 16;
/// The most bytes that one step may look at, beyond four times those of the arguments: the slowest
/// steps go through some 200 MB a second, and none looks up from its work.
const STEP: usize = 32 << 20;
/// Longest output beyond the length of the arguments.
const MAX_OUTPUT: usize = 32 << 20;
const OTHER_TEMPLATE: &str = "render the prompt with another template, or without one";

fn error(reason: impl Into<String>, remedy: &str) -> Error {
    Error::Template {
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

/// Longest piece of a template's text in a message.
const MAX_QUOTED: usize = 1000;

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or("")),
        None => text.to_owned(),
    }
}

fn describe(e: &minijinja::Error) -> String {
    let detail = e.detail().map_or_else(|| e.kind().to_string(), cut);
    match e.line() {
        Some(line) => format!("line {line}: {detail}"),
        None => detail,
    }
}

/// A list for a template's arguments.
///
/// # Errors
/// [`Error::Argument`] where values nest too deep.
pub fn list(items: Vec<Value>) -> Result<Value> {
    value::List::value(items, false).map_err(|e| bad_argument(&e))
}

/// A mapping for a template's arguments, in the order given.
///
/// # Errors
/// [`Error::Argument`] where values nest too deep or a key is no scalar.
pub fn map(entries: Vec<(Value, Value)>) -> Result<Value> {
    value::Map::value(entries).map_err(|e| bad_argument(&e))
}

fn bad_argument(e: &minijinja::Error) -> Error {
    Error::Argument {
        name: "messages",
        value: "a list or mapping".to_owned(),
        reason: describe(e),
    }
}

/// Digits of a mark's number.
const DIGITS: usize = 8;

/// The text of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendering {
    pub text: String,
    /// The bytes of the text that came with the arguments and not from the template: whole
    /// characters, in order. They may spell no control token; see
    /// [`encode_given`](crate::tokenizer::Tokenizer::encode_given).
    pub given: Vec<Range<usize>>,
}

impl Rendering {
    /// What stands in front of the last place where `mark` came with the arguments; `None` where
    /// it did not.
    #[must_use]
    pub fn before(&self, mark: &str) -> Option<Self> {
        let whole = |at: usize| {
            let end = at.saturating_add(mark.len());
            self.given.iter().any(|r| r.start <= at && end <= r.end)
        };
        let (stop, _) = self.text.rmatch_indices(mark).find(|(at, _)| whole(*at))?;
        let parts = self.given.iter().filter(|r| r.start < stop);
        Some(Self {
            text: self.text.get(..stop)?.to_owned(),
            given: parts.map(|r| r.start..r.end.min(stop)).collect(),
        })
    }

    /// With other text in the places of marks, each `mark` and a number of [`DIGITS`] digits, where
    /// those came with the arguments for the last time: by number the parts of the text, and whether
    /// each counts as given. The number of the first mark that did not come, where one did not.
    ///
    /// # Errors
    /// That number.
    pub fn with(
        &self,
        mark: &str,
        texts: &[Vec<(String, bool)>],
    ) -> std::result::Result<Self, usize> {
        let mut places = vec![None; texts.len()];
        for (at, _) in self.text.match_indices(mark) {
            let digits = at.saturating_add(mark.len());
            let end = digits.saturating_add(DIGITS);
            let number = self.text.get(digits..end).and_then(|n| n.parse().ok());
            let Some(place) = number.and_then(|n: usize| places.get_mut(n)) else {
                continue;
            };
            let first = self.given.partition_point(|r| r.end < end);
            if self.given.get(first).is_some_and(|r| r.start <= at) {
                *place = Some((at, end));
            }
        }
        let mut found = Vec::with_capacity(texts.len());
        for (number, (place, parts)) in places.into_iter().zip(texts).enumerate() {
            let (at, end) = place.ok_or(number)?;
            found.push((at, end, parts));
        }
        found.sort_unstable_by_key(|(at, ..)| *at);
        let mut made = Made::default();
        for (at, end, parts) in found {
            made.copy(self, at);
            for (text, given) in parts {
                made.push(text, *given);
            }
            made.done = end;
        }
        made.copy(self, self.text.len());
        Ok(made.rendering)
    }

    /// What the template itself wrote behind all that came with the arguments.
    #[must_use]
    pub fn own_end(&self) -> &str {
        let end = self.given.last().map_or(0, |range| range.end);
        self.text.get(end..).unwrap_or("")
    }

    /// All from the last part on that came with the arguments.
    #[must_use]
    pub fn given_end(&self) -> &str {
        let start = self.given.last().map_or(0, |range| range.start);
        self.text.get(start..).unwrap_or("")
    }
}

/// A rendering that is made of another one.
#[derive(Default)]
struct Made {
    rendering: Rendering,
    /// Bytes of the other one that are in it, or replaced.
    done: usize,
    /// Ranges of the other one that end there.
    passed: usize,
}

impl Made {
    fn push(&mut self, text: &str, given: bool) {
        let start = self.rendering.text.len();
        self.rendering.text.push_str(text);
        if given && !text.is_empty() {
            self.rendering.given.push(start..self.rendering.text.len());
        }
    }

    /// Goes on with what the other one has up to `to`.
    fn copy(&mut self, of: &Rendering, to: usize) {
        while self.done < to {
            let range = loop {
                match of.given.get(self.passed) {
                    Some(range) if range.end <= self.done => {
                        self.passed = self.passed.saturating_add(1);
                    }
                    other => break other,
                }
            };
            let (end, given) = match range {
                Some(range) if range.start <= self.done => (range.end, true),
                Some(range) => (range.start, false),
                None => (to, false),
            };
            let end = end.min(to);
            self.push(of.text.get(self.done..end).unwrap_or_default(), given);
            self.done = end;
        }
    }
}

/// A chat template, checked.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    prepared: Arc<str>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Checks the syntax. `bos` and `eos` are the texts of the model's first and last token, for
    /// the template's `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the line and what is wrong there.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        Self::reading(source, bos, eos)?.finish()
    }

    /// [`ChatTemplate::new`] as work that can be ended.
    ///
    /// # Errors
    /// [`Error::Template`] for a source beyond any length.
    pub fn reading(source: &str, bos: &str, eos: &str) -> Result<Task<Self>> {
        Self::read_until(source, bos, eos, Stop::new(DEADLINE))
    }

    fn read_until(source: &str, bos: &str, eos: &str, stop: Arc<Stop>) -> Result<Task<Self>> {
        if source.len() > MAX_SOURCE {
            return Err(error(
                format!(
                    "{} bytes long, at most {MAX_SOURCE} are taken",
                    source.len()
                ),
                OTHER_TEMPLATE,
            ));
        }
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Task::start(stop.clone(), move || {
            let prepared = environment::prepare(&source, &stop).and_then(|prepared| {
                environment::syntax_tree(&prepared)?;
                stop.check(0)?;
                Ok(prepared)
            });
            match prepared {
                Ok(prepared) => Ok(ChatTemplate {
                    source,
                    prepared: prepared.into(),
                    bos,
                    eos,
                }),
                Err(e) => {
                    Err(ended_early(&stop).unwrap_or_else(|| error(describe(&e), OTHER_TEMPLATE)))
                }
            }
        })
    }

    /// The template as the model file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation. `messages` is a [`list`] of [`map`]s; `tools` likewise, where
    /// there are any; `extra` are further variables, which may replace any but these.
    ///
    /// All strings of these are given, but for the names that chat formats have for the `role` of a
    /// message. Numbers are not followed: their digits count as the template's.
    ///
    /// # Errors
    /// [`Error::Template`] where the template refuses the messages (its own words), uses what does
    /// not exist, or takes more steps or memory than a template has reason to.
    pub fn render(
        &self,
        messages: Value,
        tools: Option<Value>,
        add_generation_prompt: bool,
        extra: Vec<(String, Value)>,
    ) -> Result<Rendering> {
        self.rendering(messages, tools, add_generation_prompt, extra)?
            .finish()
    }

    /// [`ChatTemplate::render`] as work that can be ended.
    ///
    /// # Errors
    /// [`Error::Argument`] for arguments that no template takes.
    pub fn rendering(
        &self,
        messages: Value,
        tools: Option<Value>,
        add_generation_prompt: bool,
        extra: Vec<(String, Value)>,
    ) -> Result<Task<Rendering>> {
        let none = Value::from(());
        let mut variables: Vec<(Value, Value)> = [
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("documents", none.clone()),
        ]
        .into_iter()
        .map(|(name, value)| (Value::from(name), value))
        .collect();
        for (name, value) in extra {
            let value = arguments::given(&value).map_err(|e| bad_argument(&e))?;
            variables.push((Value::from(name), value));
        }
        let messages = arguments::messages(&messages).map_err(|e| bad_argument(&e))?;
        let tools = arguments::given(&tools.unwrap_or(none)).map_err(|e| bad_argument(&e))?;
        variables.extend([
            (Value::from("messages"), messages),
            (Value::from("tools"), tools),
            (
                Value::from("add_generation_prompt"),
                Value::from(add_generation_prompt),
            ),
        ]);
        let size = variables
            .iter()
            .fold(0, |n: usize, (_, v)| n.saturating_add(value::size(v)));
        let root = map(variables)?;
        let (prepared, stop) = (self.prepared.clone(), Stop::new(DEADLINE));
        Task::start(stop.clone(), move || {
            evaluate(&prepared, root, size, &stop).outcome
        })
    }
}

/// A rendering and what it cost.
struct Rendered {
    outcome: Result<Rendering>,
    /// Bytes off the meter; what the tests hold limits to.
    #[cfg_attr(not(test), allow(dead_code))]
    bytes: u64,
}

fn evaluate(prepared: &str, root: Value, size: usize, stop: &Arc<Stop>) -> Rendered {
    let all = METER.saturating_add(METER_PER_BYTE.saturating_mul(size as u64));
    let step = STEP.saturating_add(size.saturating_mul(4));
    let meter = Arc::new(Meter::new(all, step, stop.clone()));
    Rendered {
        outcome: evaluate_with(prepared, root, size, &meter),
        bytes: all.saturating_sub(meter.left()),
    }
}

fn evaluate_with(
    prepared: &str,
    root: Value,
    size: usize,
    meter: &Arc<Meter>,
) -> Result<Rendering> {
    let env = environment::environment(meter, FUEL);
    let mut out = String::new();
    let done = environment::syntax_tree(prepared).and_then(|tree| {
        meter.charge(0)?;
        let mut generator = CodeGenerator::new("template", prepared);
        generator.compile_stmt(&tree);
        let (instructions, blocks) = generator.finish();
        let mut output = make_string_output(&mut out);
        Vm::new(&env)
            .eval(
                &instructions,
                root,
                &blocks,
                &mut output,
                given::CAPTURES_FLAGGED,
            )
            .map(|_| ())
    });
    if let Err(e) = done {
        if let Some(early) = ended_early(&meter.stop) {
            return Err(early);
        }
        let raised = meter.raised.lock().ok().and_then(|mut r| r.take());
        return Err(match (raised, e.kind()) {
            (Some(message), _) => error(
                cut(&message),
                "the model's template refuses these messages: change them",
            ),
            (None, ErrorKind::OutOfFuel) => error(
                format!(
                    "takes more than {FUEL} steps or {} MiB of text ({})",
                    METER >> 20,
                    describe(&e)
                ),
                OTHER_TEMPLATE,
            ),
            (None, _) => error(
                describe(&e),
                "check the messages against what the model's template expects",
            ),
        });
    }
    let (text, spans) = given::read(&out);
    let most = MAX_OUTPUT.saturating_add(size);
    if text.len() > most {
        return Err(error(
            format!(
                "makes {} bytes of text, at most {most} are taken",
                text.len()
            ),
            OTHER_TEMPLATE,
        ));
    }
    Ok(Rendering {
        text,
        given: spans.into_ranges(),
    })
}

/// The error of work that was ended early.
fn ended_early(stop: &Stop) -> Option<Error> {
    Some(match stop.ended()? {
        Ended::Told => Error::Cancelled,
        Ended::Late => error(
            format!("takes longer than {} s", stop.deadline.as_secs()),
            OTHER_TEMPLATE,
        ),
    })
}
