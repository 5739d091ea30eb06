//! Values that are written nearly as in JSON: as Gemma 4 writes them, with bare keys and texts
//! between `<|"|>`, and as Python does. They come character by character and go out as JSON.
use super::json::{self, Step, MAX_DEPTH};
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
    /// Between two of these quotes.
    Quoted(char),
    Escape(char),
    /// Hexadecimal digits of an escape to come.
    Hex(char, u8),
    /// Behind a quote, and white space: an end where a delimiter follows, else a part of the text.
    Closing(char, String),
    Word,
}

/// Reads one value. Where Python's quotes are not escaped, as templates leave them, a quote ends a
/// text only if a delimiter follows.
#[derive(Debug)]
pub(super) struct Literal {
    /// Whether texts stand between Gemma's quotes too.
    gemma: bool,
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
    pub fn new(gemma: bool) -> Self {
        Self {
            gemma,
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
        match self.state {
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
            State::Quoted(quote) => {
                match c {
                    '\\' => self.state = State::Escape(quote),
                    c if c == quote => self.state = State::Closing(quote, String::new()),
                    c => json::escape(c, json),
                }
                Step::More
            }
            State::Escape(quote) => {
                self.escape(quote, c, json);
                Step::More
            }
            State::Hex(quote, left) => self.hex(quote, left, c, json),
            State::Closing(..) => self.closing(c, json),
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
            '<' if self.gemma => {
                self.word = String::from(c);
                self.go(State::Opening)
            }
            '"' | '\'' => {
                json.push('"');
                self.go(State::Quoted(c))
            }
            '{' | '[' | '(' if !self.is_key => {
                if self.stack.len() >= MAX_DEPTH {
                    return Step::Bad("nests more than 100 deep");
                }
                let (open, close, next) = match c {
                    '{' => ('{', '}', State::Key),
                    '[' => ('[', ']', State::ValueOrEnd),
                    _ => ('[', ')', State::ValueOrEnd),
                };
                json.push(open);
                self.stack.push(close);
                self.go(next)
            }
            ',' | ':' | '}' | ']' | ')' | '=' => Step::Bad("a delimiter where a value is due"),
            c => {
                self.word = String::from(c);
                self.go(State::Word)
            }
        }
    }

    fn close(&mut self, json: &mut String) -> Step {
        self.comma = false;
        match self.stack.pop() {
            Some('}') => json.push('}'),
            _ => json.push(']'),
        }
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

    fn escape(&mut self, quote: char, c: char, json: &mut String) {
        self.state = State::Quoted(quote);
        match c {
            'n' | 't' | 'r' | 'b' | 'f' | '"' | '\\' => {
                json.push('\\');
                json.push(c);
            }
            '\'' | '/' => json.push(c),
            'u' | 'x' => {
                self.word.clear();
                self.state = State::Hex(quote, if c == 'u' { 4 } else { 2 });
            }
            c => {
                json.push_str("\\\\");
                json::escape(c, json);
            }
        }
    }

    fn hex(&mut self, quote: char, left: u8, c: char, json: &mut String) -> Step {
        if !c.is_ascii_hexdigit() {
            return Step::Bad("an escape must have hexadecimal digits");
        }
        self.word.push(c);
        if left > 1 {
            return self.go(State::Hex(quote, left.saturating_sub(1)));
        }
        let unit = u32::from_str_radix(&self.word, 16).unwrap_or(0);
        let Some(c) = char::from_u32(unit) else {
            return Step::Bad("half of a surrogate pair");
        };
        json::escape(c, json);
        self.go(State::Quoted(quote))
    }

    fn closing(&mut self, c: char, json: &mut String) -> Step {
        let State::Closing(quote, spaces) = &mut self.state else {
            return Step::More;
        };
        if c.is_whitespace() {
            spaces.push(c);
            return Step::More;
        }
        let delimiter = match self.is_key {
            true => c == ':',
            false => matches!(c, ',' | ')' | ']' | '}'),
        };
        if delimiter {
            let step = self.end_text(json);
            return self.before(step, c, json);
        }
        let (quote, spaces) = (*quote, std::mem::take(spaces));
        json::escape(quote, json);
        spaces.chars().for_each(|c| json::escape(c, json));
        self.state = State::Quoted(quote);
        self.push(c, json)
    }

    fn word(&mut self, c: char, json: &mut String) -> Step {
        let ends = c.is_whitespace() || matches!(c, ',' | ':' | ')' | ']' | '}');
        if !ends {
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
            _ => return Step::Bad("a word that is no value"),
        }
        let step = self.ended();
        self.before(step, c, json)
    }
}
