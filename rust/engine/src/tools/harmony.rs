//! Harmony, of gpt-oss: a turn is messages, each with a header that names its channel and, of a call,
//! whom it is to. `<|channel|>analysis<|message|>…<|end|>` is reasoning;
//! `<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>`
//! calls a tool; `<|start|>assistant<|channel|>final<|message|>…` is the text, and so is commentary to
//! nobody. What is to anyone else than `functions.f`, such as `python`, is a call of that name.
//! Headers and markers are the format's own words and left out.
use super::calls::{BEHIND, CUT};
use super::event::Out;
use super::json::{is_space, Scanner, Step};
use super::marker::{Finder, Seen};
use super::schema::is_name;
use super::{Format, Grammar, Machine, Spelling, Written};

pub(super) const FORMAT: Format = Format {
    name: "harmony",
    looks: "<|channel|>commentary to=functions.f<|message|>{...}<|call|>",
    markers: &[
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ],
    hint: None,
    write,
    spelling: Spelling::Json,
    grammar: Grammar::Channels,
};

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let given = |text: &str| Written::Given(text.to_owned());
    let own = |text: &str| Written::Own(text.to_owned());
    vec![
        own("<|channel|>commentary to=functions."),
        given(name),
        own(" <|constrain|>json<|message|>"),
        given(arguments),
        own("<|call|>"),
    ]
}

/// A call whose role is followed by whom it is to: templates write a conversation's calls so, and
/// models follow them.
pub(super) fn addressed(name: &str, arguments: &str) -> Vec<Written> {
    let given = |text: &str| Written::Given(text.to_owned());
    let own = |text: &str| Written::Own(text.to_owned());
    vec![
        own(" to=functions."),
        given(name),
        own("<|channel|>commentary json<|message|>"),
        given(arguments),
        own("<|call|>"),
    ]
}

/// Longest header.
const MAX_HEADER: usize = 1024;
/// What may follow `<|start|>assistant`, which ends a prompt; anything else is text.
const STARTS: [&str; 4] = [CHANNEL, MESSAGE, START, " to="];
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// Markers that end a message; the first two begin the header of another.
const ENDS: [&str; 5] = [START, CHANNEL, "<|end|>", "<|call|>", "<|return|>"];

pub(super) struct Channels {
    state: State,
    /// All of a message since its header began.
    read: String,
}

enum State {
    /// At the front of a turn, or behind a message.
    Between(String),
    Header(Finder),
    Text(Finder),
    Thought(Finder),
    Call(Finder, Arguments),
}

enum Arguments {
    Coming(Scanner, bool),
    Whole,
    Broken(&'static str),
}

fn ends() -> Finder {
    Finder::new(ENDS.to_vec())
}

impl Channels {
    pub fn new() -> Self {
        Self {
            state: State::Between(String::new()),
            read: String::new(),
        }
    }

    /// The header has ended.
    fn headed(&mut self, out: &mut Out) {
        let header = self.read.clone();
        self.read.push_str(MESSAGE);
        let word = |behind: &str| {
            let (_, rest) = header.split_once(behind)?;
            let word = rest.split(|c: char| c.is_whitespace() || c == '<').next()?;
            (!word.is_empty()).then_some(word)
        };
        let to = word("to=").map(|to| to.strip_prefix("functions.").unwrap_or(to));
        self.state = match (to, word(CHANNEL)) {
            (Some(name), _) if is_name(name) => {
                out.begin(name);
                State::Call(ends(), Arguments::Coming(Scanner::of_arguments(), false))
            }
            (_, Some("analysis")) => State::Thought(ends()),
            _ => State::Text(ends()),
        };
    }

    /// More of the arguments of a call.
    fn arguments(arguments: &mut Arguments, c: char, out: &mut Out) {
        match arguments {
            // A brace too many is left out.
            Arguments::Whole if is_space(c) || c == '}' => {}
            Arguments::Whole => *arguments = Arguments::Broken(BEHIND),
            Arguments::Broken(_) => {}
            Arguments::Coming(_, false) if is_space(c) => {}
            Arguments::Coming(scanner, begun) => {
                if !*begun && c != '{' {
                    *arguments = Arguments::Broken("the arguments of a call must be an object");
                    return;
                }
                *begun = true;
                let step = scanner.push(c);
                if let Step::Bad(reason) = step {
                    *arguments = Arguments::Broken(reason);
                    return;
                }
                out.arguments(c.encode_utf8(&mut [0; 4]));
                if step == Step::Done {
                    out.whole(0);
                    *arguments = Arguments::Whole;
                }
            }
        }
    }

    /// A call is over.
    fn called(&mut self, arguments: &Arguments, cut: bool, out: &mut Out) {
        match arguments {
            Arguments::Whole => out.end(),
            Arguments::Coming(_, false) if !cut => {
                out.arguments("{}");
                out.whole(0);
                out.end();
            }
            Arguments::Coming(..) => out.fail(std::mem::take(&mut self.read), CUT),
            Arguments::Broken(reason) => out.fail(std::mem::take(&mut self.read), reason),
        }
    }

    /// Behind the marker of this number, which ended a message.
    fn ended(&mut self, number: usize) {
        self.read.clear();
        self.state = match number {
            0 | 1 => {
                self.read.push_str(ENDS.get(number).copied().unwrap_or(""));
                State::Header(Finder::new(vec![MESSAGE]))
            }
            _ => State::Between(String::new()),
        };
    }

    fn between(&mut self, mut held: String, c: char, out: &mut Out) {
        held.push(c);
        if STARTS.contains(&held.as_str()) {
            if held == MESSAGE {
                self.read.clear();
                self.headed(out);
                return;
            }
            self.read = held;
            self.state = State::Header(Finder::new(vec![MESSAGE]));
        } else if STARTS.iter().any(|start| start.starts_with(&held)) {
            self.state = State::Between(held);
        } else {
            self.state = State::Text(ends());
            self.again(&held, out);
        }
    }

    /// What was held for something else.
    fn again(&mut self, held: &str, out: &mut Out) {
        for c in held.chars() {
            self.push(c, out);
        }
    }
}

impl Machine for Channels {
    fn push(&mut self, c: char, out: &mut Out) {
        match std::mem::replace(&mut self.state, State::Between(String::new())) {
            State::Between(held) => self.between(held, c, out),
            State::Header(mut finder) => {
                let seen = finder.push(c, &mut self.read);
                match seen {
                    Seen::Word(_) => self.headed(out),
                    Seen::More if self.read.len() > MAX_HEADER => {
                        let mut read = std::mem::take(&mut self.read);
                        read.push_str(&finder.finish());
                        out.text(&read);
                        self.state = State::Text(ends());
                    }
                    Seen::More => self.state = State::Header(finder),
                }
            }
            State::Text(mut finder) => {
                let mut free = String::new();
                let seen = finder.push(c, &mut free);
                out.text(&free);
                match seen {
                    Seen::More => self.state = State::Text(finder),
                    Seen::Word(number) => self.ended(number),
                }
            }
            State::Thought(mut finder) => {
                let mut free = String::new();
                let seen = finder.push(c, &mut free);
                out.reasoning(&free);
                match seen {
                    Seen::More => self.state = State::Thought(finder),
                    Seen::Word(number) => self.ended(number),
                }
            }
            State::Call(mut finder, mut arguments) => {
                let mut free = String::new();
                let seen = finder.push(c, &mut free);
                for c in free.chars() {
                    Self::arguments(&mut arguments, c, out);
                }
                self.read.push_str(&free);
                match seen {
                    Seen::More => self.state = State::Call(finder, arguments),
                    Seen::Word(number) => {
                        self.called(&arguments, false, out);
                        self.ended(number);
                    }
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Out) {
        match std::mem::replace(&mut self.state, State::Between(String::new())) {
            State::Between(held) => out.text(&held),
            // The words of a format that was cut.
            State::Header(_) => {}
            State::Text(mut finder) => out.text(&finder.finish()),
            State::Thought(mut finder) => out.reasoning(&finder.finish()),
            State::Call(mut finder, mut arguments) => {
                let held = finder.finish();
                for c in held.chars() {
                    Self::arguments(&mut arguments, c, out);
                }
                self.read.push_str(&held);
                self.called(&arguments, true, out);
            }
        }
    }
}
