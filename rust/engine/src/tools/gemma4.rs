//! Gemma 4: `<|tool_call>call:f{x:1,s:<|"|>text<|"|>}<tool_call|>`, a pair of markers each call.
use super::calls::{Body, Flow, BEHIND, CUT};
use super::event::Out;
use super::json::{Scanner, Step};
use super::literal::{Literal, QUOTE};
use super::marked::Calls;
use super::marker::{Choice, Chosen};
use super::schema::{is_name, Tools};
use super::{Format, Grammar, Spelling, Written};

const CLOSES: &[&str] = &["<tool_call|>"];

pub(super) const FORMAT: Format = Format {
    name: "gemma4",
    looks: "<|tool_call>call:f{...}<tool_call|>",
    markers: &["<|tool_call>", "<tool_call|>", QUOTE],
    hint: None,
    write,
    spelling: Spelling::Gemma,
    grammar: Grammar::Marked(Calls {
        opens: &["<|tool_call>"],
        closes: CLOSES,
        bare: false,
        body,
    }),
};

fn body(_: usize, _: &Tools) -> Box<dyn Body> {
    Box::new(Call::Start(Choice::new(&["call:"])))
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let mut parts = Parts(Vec::new());
    parts.own("<|tool_call>call:");
    parts.given(name);
    let value = serde_json::from_str(arguments).unwrap_or_default();
    parts.value(&value);
    parts.own("<tool_call|>");
    parts.0
}

struct Parts(Vec<Written>);

impl Parts {
    fn own(&mut self, text: &str) {
        self.0.push(Written::Own(text.to_owned()));
    }

    fn given(&mut self, text: &str) {
        self.0.push(Written::Given(text.to_owned()));
    }

    /// Arguments are read with a limit on their depth.
    fn value(&mut self, value: &serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::String(text) => {
                self.own(QUOTE);
                self.given(text);
                self.own(QUOTE);
            }
            Value::Array(items) => {
                self.own("[");
                for (i, item) in items.iter().enumerate() {
                    self.own(if i == 0 { "" } else { "," });
                    self.value(item);
                }
                self.own("]");
            }
            Value::Object(items) => {
                self.own("{");
                for (i, (key, item)) in items.iter().enumerate() {
                    self.own(if i == 0 { "" } else { "," });
                    self.given(key);
                    self.own(":");
                    self.value(item);
                }
                self.own("}");
            }
            other => self.own(&other.to_string()),
        }
    }
}

enum Call {
    Start(Choice),
    Name(String),
    /// The arguments, and what is read of them.
    Arguments(Box<(Literal, Scanner)>),
    After(Choice),
}

impl Body for Call {
    fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match self {
            Self::Start(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(_) => {
                    *self = Self::Name(String::new());
                    Flow::More
                }
                Chosen::Other => Flow::Broken("no call after the marker"),
            },
            Self::Name(name) if c == '{' => {
                let name = name.trim();
                if !is_name(name) {
                    return Flow::Broken("the name of a call must be a word");
                }
                out.begin(name);
                *self = Self::Arguments(Box::new((Literal::new(), Scanner::of_arguments())));
                self.push(c, out)
            }
            Self::Name(name) => {
                name.push(c);
                match name.len() > 512 || c == '<' {
                    true => Flow::Broken("the name of a call must be a word"),
                    false => Flow::More,
                }
            }
            Self::Arguments(both) => {
                let (literal, scanner) = &mut **both;
                let mut json = String::new();
                let step = literal.push(c, &mut json);
                for c in json.chars() {
                    if let Step::Bad(reason) = scanner.push(c) {
                        return Flow::Broken(reason);
                    }
                }
                out.arguments(&json);
                match step {
                    Step::Bad(reason) => Flow::Broken(reason),
                    Step::More | Step::DoneBefore => Flow::More,
                    Step::Done => {
                        out.whole(0);
                        *self = Self::After(Choice::new(CLOSES));
                        Flow::More
                    }
                }
            }
            // A brace too many is left out.
            Self::After(choice) if c == '}' && choice.is_fresh() => Flow::More,
            Self::After(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(_) => Flow::Done,
                Chosen::Other => Flow::Broken(BEHIND),
            },
        }
    }

    fn finish(&mut self, _: &mut Out) -> Flow {
        match self {
            Self::After(_) => Flow::Done,
            _ => Flow::Broken(CUT),
        }
    }
}
