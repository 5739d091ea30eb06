//! Calls written as objects of JSON: `{"name": "f", "arguments": {...}}`, one, several or a list.
use super::event::Out;
use super::json::{self, is_space, Scanner, Step};
use super::marker::{Choice, Chosen};
use super::schema::{is_name, Tools};

/// What became of a character of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    More,
    /// What stands between markers ended with it.
    Done,
    /// It ended before it.
    DoneBefore,
    /// It goes wrong here: what was read since the last call is none.
    Broken(&'static str),
}

/// Whether an object that was closed too soon may go on so.
pub(super) fn goes_on(c: char) -> bool {
    matches!(c, ',' | ':' | '"' | ']')
}

/// Reads what stands behind the marker of a call.
pub(super) trait Body: Send {
    fn push(&mut self, c: char, out: &mut Out) -> Flow;
    /// The text has ended; [`Flow::Done`] where no more was needed.
    fn finish(&mut self, out: &mut Out) -> Flow;
    /// Where it is done: what it has read and is none of its own.
    fn left(&mut self) -> String {
        String::new()
    }
}

pub(super) const CUT: &str = "the text ended within the call";
pub(super) const BEHIND: &str = "something other than the end after a call";

/// A call on its way through an object.
#[derive(Debug)]
pub(super) struct Object {
    /// Without a marker in front, only an object that names one of these is a call.
    only: Option<Tools>,
    state: State,
    scanner: Scanner,
    /// The key or value that is being read, where it is needed whole.
    word: String,
    name: Option<String>,
    /// The call has begun.
    begun: bool,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    KeyOrEnd,
    NextKey,
    Key,
    Colon,
    /// Before the arguments.
    Arguments,
    Value(Value),
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Name,
    /// An object, which goes out as it comes.
    Arguments,
    /// A string that holds an object, or a word such as null.
    Whole,
    Other,
}

impl Object {
    pub fn new(only: Option<Tools>) -> Self {
        Self {
            only,
            state: State::Start,
            scanner: Scanner::default(),
            word: String::new(),
            name: None,
            begun: false,
            early: String::new(),
            has_arguments: false,
        }
    }

    pub fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match self.state {
            State::Value(_) | State::Key => {}
            _ if is_space(c) => return Flow::More,
            _ => {}
        }
        match self.state {
            State::Start if c == '{' => self.go(State::KeyOrEnd),
            State::Start => Flow::Broken("a call must be an object"),
            State::KeyOrEnd | State::After if c == '}' => self.end(out),
            State::After if c == ',' => self.go(State::NextKey),
            State::After => Flow::Broken("a value must be followed by a comma or a bracket"),
            State::KeyOrEnd | State::NextKey if c == '"' => {
                self.begin_value();
                self.state = State::Key;
                self.key(c)
            }
            State::KeyOrEnd | State::NextKey => {
                Flow::Broken("a key of an object must be in double quotes")
            }
            State::Key => self.key(c),
            State::Colon if c == ':' => {
                let key = json::unquoted(&self.word).unwrap_or_default();
                self.begin_value();
                let value = match key.as_str() {
                    "name" if self.name.is_none() => State::Value(Value::Name),
                    "arguments" | "parameters" if !self.has_arguments => State::Arguments,
                    "name" | "arguments" | "parameters" => {
                        return Flow::Broken("a call has one name and one set of arguments")
                    }
                    "type" | "id" => State::Value(Value::Other),
                    // An argument may have been meant.
                    _ => return Flow::Broken("an unknown key of a call"),
                };
                self.go(value)
            }
            State::Colon => Flow::Broken("a key must be followed by a colon"),
            State::Arguments => {
                self.has_arguments = true;
                self.scanner = Scanner::of_arguments();
                self.state = State::Value(match c {
                    '{' => Value::Arguments,
                    _ => Value::Whole,
                });
                self.value(c, out)
            }
            State::Value(_) => self.value(c, out),
        }
    }

    fn go(&mut self, state: State) -> Flow {
        self.state = state;
        Flow::More
    }

    fn begin_value(&mut self) {
        self.scanner = Scanner::default();
        self.word.clear();
    }

    fn key(&mut self, c: char) -> Flow {
        self.word.push(c);
        match self.scanner.push(c) {
            Step::Done => self.go(State::Colon),
            Step::Bad(reason) => Flow::Broken(reason),
            Step::More | Step::DoneBefore => Flow::More,
        }
    }

    fn value(&mut self, c: char, out: &mut Out) -> Flow {
        let State::Value(value) = self.state else {
            return Flow::More;
        };
        let step = self.scanner.push(c);
        if let Step::Bad(reason) = step {
            return Flow::Broken(reason);
        }
        match value {
            // A space before the value is none of it.
            _ if step == Step::DoneBefore => {}
            Value::Arguments => {
                self.begin(out);
                match self.begun {
                    true => out.arguments(c.encode_utf8(&mut [0; 4])),
                    false => self.early.push(c),
                }
            }
            Value::Name | Value::Whole if self.word.is_empty() && is_space(c) => {}
            Value::Name | Value::Whole => self.word.push(c),
            Value::Other => {}
        }
        if step == Step::More {
            return Flow::More;
        }
        self.state = State::After;
        let whole = match value {
            Value::Name => self.named(),
            Value::Whole => self.unwrapped(out),
            Value::Arguments | Value::Other => Flow::More,
        };
        match step {
            Step::DoneBefore if whole == Flow::More => self.push(c, out),
            _ => whole,
        }
    }

    fn named(&mut self) -> Flow {
        let name = json::unquoted(&self.word).filter(|name| is_name(name));
        let Some(name) = name else {
            return Flow::Broken("the name of a call must be a word in quotes");
        };
        if self.only.as_ref().is_some_and(|tools| !tools.has(&name)) {
            return Flow::Broken("a name that no tool has");
        }
        self.name = Some(name);
        Flow::More
    }

    /// Begins the call once its name is known.
    fn begin(&mut self, out: &mut Out) {
        if let (Some(name), false) = (&self.name, self.begun) {
            out.begin(name);
            self.begun = true;
            out.arguments(&std::mem::take(&mut self.early));
        }
    }

    /// Arguments that are no object themselves.
    fn unwrapped(&mut self, out: &mut Out) -> Flow {
        let inside = match self.word.as_str() {
            "null" => String::new(),
            text => json::unquoted(text).unwrap_or_else(|| text.to_owned()),
        };
        let inside = match inside.trim_matches(is_space) {
            "" => "{}",
            inside if json::is_arguments(inside) => inside,
            _ => return Flow::Broken("the arguments of a call must be an object"),
        };
        self.early.push_str(inside);
        self.begin(out);
        Flow::More
    }

    fn end(&mut self, out: &mut Out) -> Flow {
        if self.only.is_some() && !self.has_arguments {
            return Flow::Broken("no arguments");
        }
        if self.name.is_none() {
            return Flow::Broken("no name");
        }
        if !self.has_arguments {
            self.early.push_str("{}");
        }
        self.begin(out);
        out.whole(0);
        Flow::Done
    }
}

/// One object or several, with commas or semicolons between them or without, in brackets or not.
/// A brace too many behind one is left out, and so is a bracket behind a list.
#[derive(Debug)]
pub(super) struct List {
    only: Option<Tools>,
    /// The marker that ends it; without one, it ends with its bracket, or before what is no object.
    close: Option<Choice>,
    bracketed: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Start,
    In(Box<Object>),
    Between,
    /// Behind the closing bracket.
    Behind,
}

impl List {
    pub fn new(close: Option<&'static [&'static str]>, only: Option<Tools>) -> Self {
        Self {
            only,
            close: close.map(Choice::new),
            bracketed: false,
            place: Place::Start,
        }
    }

    fn object(&mut self, c: char, out: &mut Out) -> Flow {
        let mut object = Box::new(Object::new(self.only.clone()));
        let flow = object.push(c, out);
        self.place = Place::In(object);
        flow
    }

    fn close(&mut self, c: char) -> Flow {
        let listed = matches!(self.place, Place::Behind);
        match &mut self.close {
            close
                if (c == '}' || listed && c == ']')
                    && close.as_ref().is_none_or(Choice::is_fresh) =>
            {
                Flow::More
            }
            None if is_space(c) => Flow::More,
            None if listed => Flow::DoneBefore,
            None if self.bracketed || goes_on(c) => Flow::Broken(BEHIND),
            None => Flow::DoneBefore,
            Some(close) => match close.push(c) {
                Chosen::More => Flow::More,
                Chosen::Word(_) => Flow::Done,
                Chosen::Other => Flow::Broken(BEHIND),
            },
        }
    }
}

impl Body for List {
    fn push(&mut self, c: char, out: &mut Out) -> Flow {
        match &mut self.place {
            Place::Start if is_space(c) => Flow::More,
            Place::Start if c == '[' && !self.bracketed => {
                self.bracketed = true;
                Flow::More
            }
            Place::Start => self.object(c, out),
            Place::In(object) => match object.push(c, out) {
                Flow::Done => {
                    self.place = Place::Between;
                    Flow::More
                }
                flow => flow,
            },
            Place::Between => match c {
                ',' | ';' => {
                    self.place = Place::Start;
                    Flow::More
                }
                '{' => self.object(c, out),
                ']' if self.bracketed => {
                    self.place = Place::Behind;
                    Flow::More
                }
                c => self.close(c),
            },
            Place::Behind => self.close(c),
        }
    }

    fn finish(&mut self, _: &mut Out) -> Flow {
        match self.place {
            Place::Between | Place::Behind => Flow::Done,
            Place::Start | Place::In(_) => Flow::Broken(CUT),
        }
    }
}
