//! Values as Gemma 4 writes them: nearly JSON, with bare keys, texts between `<|"|>`, and a text of
//! JSON between double quotes where a model writes one. They come character by character and go out
//! as JSON.
use super::json::{self, Scanner, Step, MAX_DEPTH};
use super::marker::{Finder, Seen};

/// Gemma 4's quote.
pub(crate) const QUOTE: &str = "<|\"|>";
/// Longest bare word.
const MAX_WORD: usize = 400;

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Value,
    /// Behind an opening bracket, or a comma.
    ValueOrEnd,
    Key,
    Colon,
    After,
    /// Within Gemma's quote.
    Opening,
    /// Between two of them.
    Raw,
    /// Between double quotes.
    Quoted(Scanner),
    Word,
}

/// Reads one value.
#[derive(Debug)]
pub(super) struct Literal {
    /// The closing bracket of each list or mapping around.
    stack: Vec<char>,
    state: State,
    is_key: bool,
    /// A comma is due before the next item.
    comma: bool,
    word: String,
    finder: Finder,
}

impl Literal {
    pub fn new() -> Self {
        Self {
            stack: Vec::new(),
            state: State::Value,
            is_key: false,
            comma: false,
            word: String::new(),
            finder: Finder::new(vec![QUOTE]),
        }
    }

    /// Takes a character and appends what it makes certain to `json`.
    pub fn push(&mut self, c: char, json: &mut String) -> Step {
        match &mut self.state {
            State::Value | State::ValueOrEnd | State::Key | State::Colon | State::After
                if c.is_whitespace() =>
            {
                Step::More
            }
            State::ValueOrEnd if self.stack.last() == Some(&c) => self.close(json),
            State::Value | State::ValueOrEnd => self.begin(c, json),
            State::Key if self.stack.last() == Some(&c) => self.close(json),
            State::Key => {
                self.is_key = true;
                self.begin(c, json)
            }
            State::Colon => match c {
                ':' => {
                    json.push_str(": ");
                    self.go(State::Value)
                }
                _ => Step::Bad("a key must be followed by a colon"),
            },
            State::After => match (c, self.stack.last()) {
                (',', Some(close)) => {
                    self.comma = true;
                    let next = match close {
                        '}' => State::Key,
                        _ => State::ValueOrEnd,
                    };
                    self.go(next)
                }
                (c, Some(close)) if c == *close => self.close(json),
                _ => Step::Bad("a value must be followed by a comma or a closing bracket"),
            },
            State::Opening => self.opening(c, json),
            State::Raw => {
                let mut free = String::new();
                let seen = self.finder.push(c, &mut free);
                free.chars().for_each(|c| json::escape(c, json));
                match seen {
                    Seen::More => Step::More,
                    Seen::Word(_) => self.end_text(json),
                }
            }
            State::Quoted(scanner) => {
                let step = scanner.push(c);
                if !matches!(step, Step::Bad(_)) {
                    json.push(c);
                }
                match step {
                    Step::Done => self.ended(),
                    step => step,
                }
            }
            State::Word => self.word(c, json),
        }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn begin(&mut self, c: char, json: &mut String) -> Step {
        if std::mem::take(&mut self.comma) {
            json.push_str(", ");
        }
        match c {
            '<' => {
                self.word = String::from(c);
                self.go(State::Opening)
            }
            '"' => {
                let mut scanner = Scanner::default();
                scanner.push(c);
                json.push(c);
                self.go(State::Quoted(scanner))
            }
            '{' | '[' if !self.is_key => {
                if self.stack.len() >= MAX_DEPTH {
                    return Step::Bad("nests more than 100 deep");
                }
                let (close, next) = match c {
                    '{' => ('}', State::Key),
                    _ => (']', State::ValueOrEnd),
                };
                json.push(c);
                self.stack.push(close);
                self.go(next)
            }
            ',' | ':' | '{' | '}' | '[' | ']' => Step::Bad("a delimiter where a value is due"),
            c => {
                self.word = String::from(c);
                self.go(State::Word)
            }
        }
    }

    fn close(&mut self, json: &mut String) -> Step {
        self.comma = false;
        json.extend(self.stack.pop());
        self.ended()
    }

    fn ended(&mut self) -> Step {
        if std::mem::take(&mut self.is_key) {
            return self.go(State::Colon);
        }
        self.state = State::After;
        match self.stack.is_empty() {
            true => Step::Done,
            false => Step::More,
        }
    }

    fn end_text(&mut self, json: &mut String) -> Step {
        json.push('"');
        self.ended()
    }

    /// What ended before `c`: `c` is the next item's, or the caller's.
    fn before(&mut self, step: Step, c: char, json: &mut String) -> Step {
        match step {
            Step::Done => Step::DoneBefore,
            _ => self.push(c, json),
        }
    }

    fn opening(&mut self, c: char, json: &mut String) -> Step {
        self.word.push(c);
        if self.word == QUOTE {
            json.push('"');
            return self.go(State::Raw);
        }
        match QUOTE.starts_with(&self.word) {
            true => Step::More,
            false => Step::Bad("no value begins so"),
        }
    }

    fn word(&mut self, c: char, json: &mut String) -> Step {
        let ends = c.is_whitespace() || matches!(c, ',' | ':' | ']' | '}');
        if !ends {
            if matches!(c, '{' | '[' | '<' | '"') {
                return Step::Bad("a word that is not a value");
            }
            self.word.push(c);
            return match self.word.len() > MAX_WORD {
                true => Step::Bad("a word that is too long"),
                false => Step::More,
            };
        }
        match self.word.as_str() {
            key if self.is_key => json.push_str(&json::quoted(key)),
            "true" | "True" => json.push_str("true"),
            "false" | "False" => json.push_str("false"),
            "null" | "None" => json.push_str("null"),
            number if json::is_number(number) => json.push_str(number),
            _ => return Step::Bad("a word that is not a value"),
        }
        let step = self.ended();
        self.before(step, c, json)
    }
}
