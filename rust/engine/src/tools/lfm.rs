//! LFM: `<|tool_call_start|>[f(x=1, s="text"), g()]<|tool_call_end|>`, calls as Python writes them, or
//! the objects of JSON that the models write when they are asked to.
use super::calls::{Body, Flow, List, BEHIND, CUT};
use super::event::Out;
use super::json::Step;
use super::marked::Calls;
use super::marker::{Choice, Chosen};
use super::python::Literal;
use super::schema::{is_name, Tools};
use super::{Format, Grammar, Spelling, Written};

const CLOSES: &[&str] = &["<|tool_call_end|>"];

pub(super) const FORMAT: Format = Format {
    name: "lfm",
    looks: "<|tool_call_start|>[f(x=1)]<|tool_call_end|>",
    markers: &["<|tool_call_start|>", "<|tool_call_end|>"],
    hint: Some("<|tool_list_start|>"),
    write,
    spelling: Spelling::Python,
    grammar: Grammar::Marked(Calls {
        opens: &["<|tool_call_start|>"],
        closes: CLOSES,
        bare: false,
        body,
    }),
};

fn body(_: usize, _: &Tools) -> Box<dyn Body> {
    Box::new(Calling {
        bracketed: false,
        word: String::new(),
        place: Place::Start,
    })
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let values: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(arguments).unwrap_or_default();
    let values: Vec<String> = values
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    vec![
        Written::Own("<|tool_call_start|>".into()),
        Written::Given(format!("[{name}({})]", values.join(", "))),
        Written::Own("<|tool_call_end|>".into()),
    ]
}

struct Calling {
    bracketed: bool,
    /// The name of a function or an argument so far.
    word: String,
    place: Place,
}

enum Place {
    Start,
    /// Objects of JSON.
    List(List),
    Name,
    /// Before an argument, or the end of them.
    Key,
    Value(Box<Literal>),
    /// Behind an argument.
    Next,
    /// Behind a call.
    Between,
    Close(Choice),
}

impl Calling {
    fn go(&mut self, place: Place) -> Flow {
        self.place = place;
        Flow::More
    }

    fn end(&mut self, out: &mut Out) -> Flow {
        out.arguments("}");
        out.whole(0);
        self.go(Place::Between)
    }

    fn start(&mut self, c: char, out: &mut Out) -> Flow {
        match c {
            '[' if !self.bracketed => {
                self.bracketed = true;
                Flow::More
            }
            // Behind a comma that is no more than that.
            ']' if self.bracketed && out.is_whole() => self.go(Place::Close(Choice::new(CLOSES))),
            '{' => {
                let mut list = List::new(Some(CLOSES), None);
                if self.bracketed {
                    list.push('[', out);
                }
                let flow = list.push(c, out);
                self.place = Place::List(list);
                flow
            }
            c => {
                self.word.clear();
                self.place = Place::Name;
                self.push(c, out)
            }
        }
    }

    fn key(&mut self, c: char, out: &mut Out) -> Flow {
        if c != '=' {
            self.word.push(c);
            let fits = c.is_alphanumeric() || "_-. ".contains(c);
            return match fits && self.word.len() <= 512 {
                true => Flow::More,
                false => Flow::Broken("an argument must be given by its name"),
            };
        }
        let word = std::mem::take(&mut self.word);
        let key = word.trim();
        if key.is_empty() {
            return Flow::Broken("an argument must be given by its name");
        }
        match out.key(key) {
            true => self.go(Place::Value(Box::new(Literal::new()))),
            false => Flow::Broken("a duplicate argument"),
        }
    }
}

impl Body for Calling {
    fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match &mut self.place {
            Place::List(list) => list.push(c, out),
            Place::Close(choice) => match choice.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(_) => Flow::Done,
                Chosen::Other => Flow::Broken(BEHIND),
            },
            Place::Value(literal) => {
                let mut json = String::new();
                let step = literal.push(c, &mut json);
                out.arguments(&json);
                match step {
                    Step::Bad(reason) => Flow::Broken(reason),
                    Step::More => Flow::More,
                    Step::Done => self.go(Place::Next),
                    Step::DoneBefore => {
                        self.place = Place::Next;
                        self.push(c, out)
                    }
                }
            }
            Place::Start | Place::Next | Place::Between if c.is_whitespace() => Flow::More,
            Place::Key if c.is_whitespace() && self.word.is_empty() => Flow::More,
            Place::Start => self.start(c, out),
            Place::Name if c == '(' => {
                let name = std::mem::take(&mut self.word);
                if !is_name(name.trim()) {
                    return Flow::Broken("the name of a call must be a word");
                }
                out.begin(name.trim());
                out.arguments("{");
                self.go(Place::Key)
            }
            Place::Name => {
                self.word.push(c);
                let fits = c.is_alphanumeric() || "_-.: ".contains(c);
                match fits && self.word.len() <= 512 {
                    true => Flow::More,
                    false => Flow::Broken("the name of a call must be a word"),
                }
            }
            Place::Key if c == ')' && self.word.is_empty() => self.end(out),
            Place::Key => self.key(c, out),
            Place::Next => match c {
                ',' => self.go(Place::Key),
                ')' => self.end(out),
                _ => Flow::Broken("an argument must be followed by a comma or a bracket"),
            },
            Place::Between => match c {
                ',' | ';' => self.go(Place::Start),
                ']' if self.bracketed => self.go(Place::Close(Choice::new(CLOSES))),
                c => {
                    self.place = Place::Close(Choice::new(CLOSES));
                    self.push(c, out)
                }
            },
        }
    }

    fn finish(&mut self, out: &mut Out) -> Flow {
        match &mut self.place {
            Place::List(list) => list.finish(out),
            Place::Between | Place::Close(_) => Flow::Done,
            _ => Flow::Broken(CUT),
        }
    }
}
