//! JSON that comes character by character.
use std::collections::HashSet;

/// Deepest nesting of lists and objects: less than any reader of JSON takes.
pub(super) const MAX_DEPTH: usize = 100;
/// Longest spelling of a number. Larger ones have no use, and readers are slow or refuse them.
const MAX_NUMBER: usize = 400;

/// What became of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// The value ended with it.
    Done,
    /// The value, a number, ended before it.
    DoneBefore,
    Bad(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// Behind `[`.
    ValueOrEnd,
    Key,
    /// Behind `{`.
    KeyOrEnd,
    Colon,
    /// Behind a value within a list or an object.
    After,
    String,
    Escape,
    /// Hexadecimal digits of `\u` to come.
    Hex(u8),
    /// Behind a first half of a surrogate pair: `\`, then `u`.
    Half,
    HalfU,
    Word,
    Number,
}

/// Reads one value, strictly (RFC 8259), but for numbers that no double holds and halves of
/// surrogate pairs, which are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scanner {
    /// Of each list or object around: whether it is an object.
    stack: Vec<bool>,
    state: State,
    is_key: bool,
    /// Of a word or a number, what is there; of `\u`, its digits so far.
    word: String,
    high: bool,
    /// Keys of the outermost object, where none may come twice.
    keys: Option<HashSet<String>>,
    /// The one that is being read, as it is written.
    key: String,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            stack: Vec::new(),
            state: State::Value,
            is_key: false,
            word: String::new(),
            high: false,
            keys: None,
            key: String::new(),
        }
    }
}

pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

impl Scanner {
    /// Reads the arguments of a call, each of which is given once.
    pub fn of_arguments() -> Self {
        Self {
            keys: Some(HashSet::new()),
            ..Self::default()
        }
    }

    pub fn push(&mut self, c: char) -> Step {
        let in_key = self.is_key && self.stack.len() == 1;
        let step = self.step(c);
        let Some(keys) = self.keys.as_mut().filter(|_| in_key) else {
            return step;
        };
        self.key.push(c);
        if self.is_key {
            return step;
        }
        let key = unquoted(&format!("\"{}", std::mem::take(&mut self.key)));
        match keys.insert(key.unwrap_or_default()) {
            true => step,
            false => Step::Bad("a duplicate argument"),
        }
    }

    fn step(&mut self, c: char) -> Step {
        match self.state {
            State::Value | State::ValueOrEnd if is_space(c) => Step::More,
            State::ValueOrEnd if c == ']' => self.close(false),
            State::Value | State::ValueOrEnd => self.begin(c),
            State::Key | State::KeyOrEnd | State::Colon | State::After if is_space(c) => Step::More,
            State::KeyOrEnd if c == '}' => self.close(true),
            State::Key | State::KeyOrEnd => {
                if c != '"' {
                    return Step::Bad("a key of an object must be in double quotes");
                }
                self.is_key = true;
                self.state = State::String;
                Step::More
            }
            State::Colon => {
                if c != ':' {
                    return Step::Bad("a key must be followed by a colon");
                }
                self.state = State::Value;
                Step::More
            }
            State::After => match (c, self.stack.last()) {
                (',', Some(true)) => self.go(State::Key),
                (',', Some(false)) => self.go(State::Value),
                (']', _) => self.close(false),
                ('}', _) => self.close(true),
                _ => Step::Bad("a value must be followed by a comma or a closing bracket"),
            },
            State::String => match c {
                '"' if self.is_key => {
                    self.is_key = false;
                    self.go(State::Colon)
                }
                '"' => self.ended(),
                '\\' => self.go(State::Escape),
                '\0'..='\u{1f}' => Step::Bad("a control character in a string must be escaped"),
                _ => Step::More,
            },
            State::Escape => match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go(State::String),
                'u' => {
                    self.word.clear();
                    self.go(State::Hex(4))
                }
                _ => Step::Bad("an escape that JSON does not have"),
            },
            State::Hex(left) => self.hex(left, c),
            State::Half if c == '\\' => self.go(State::HalfU),
            State::HalfU if c == 'u' => {
                self.word.clear();
                self.go(State::Hex(4))
            }
            State::Half | State::HalfU => Step::Bad("half of a surrogate pair"),
            State::Word => {
                self.word.push(c);
                let words = ["true", "false", "null"];
                if words.contains(&self.word.as_str()) {
                    return self.ended();
                }
                match words.iter().any(|w| w.starts_with(&self.word)) {
                    true => Step::More,
                    false => Step::Bad("a word other than true, false and null"),
                }
            }
            State::Number => {
                if matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E') {
                    self.word.push(c);
                    if self.word.len() > MAX_NUMBER {
                        return Step::Bad("a number that is too long");
                    }
                    return Step::More;
                }
                if !is_number(&self.word) {
                    return Step::Bad("a number that JSON does not have");
                }
                match self.ended() {
                    Step::More => self.step(c),
                    _ => Step::DoneBefore,
                }
            }
        }
    }

    /// Whether a text is one value and nothing else.
    fn takes(mut self, text: &str) -> bool {
        let mut done = false;
        for c in text.chars() {
            if done {
                return false;
            }
            match self.push(c) {
                Step::More => {}
                Step::Done => done = true,
                Step::DoneBefore | Step::Bad(_) => return false,
            }
        }
        done || self.is_whole_number()
    }

    /// Whether the text may end here: a number is whole.
    pub fn is_whole_number(&self) -> bool {
        self.stack.is_empty() && self.state == State::Number && is_number(&self.word)
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn begin(&mut self, c: char) -> Step {
        match c {
            '{' | '[' => {
                if self.stack.len() >= MAX_DEPTH {
                    return Step::Bad("nests more than 100 deep");
                }
                self.stack.push(c == '{');
                self.go(match c {
                    '{' => State::KeyOrEnd,
                    _ => State::ValueOrEnd,
                })
            }
            '"' => self.go(State::String),
            't' | 'f' | 'n' => {
                self.word = String::from(c);
                self.go(State::Word)
            }
            '-' | '0'..='9' => {
                self.word = String::from(c);
                self.go(State::Number)
            }
            _ => Step::Bad("not the start of a JSON value"),
        }
    }

    fn close(&mut self, object: bool) -> Step {
        match self.stack.pop() {
            Some(open) if open == object => self.ended(),
            _ => Step::Bad("a closing bracket of another kind"),
        }
    }

    /// A value has ended.
    fn ended(&mut self) -> Step {
        self.state = State::After;
        match self.stack.is_empty() {
            true => Step::Done,
            false => Step::More,
        }
    }

    fn hex(&mut self, left: u8, c: char) -> Step {
        if !c.is_ascii_hexdigit() {
            return Step::Bad("an escape must have four hexadecimal digits");
        }
        self.word.push(c);
        if left > 1 {
            return self.go(State::Hex(left.saturating_sub(1)));
        }
        let unit = u32::from_str_radix(&self.word, 16).unwrap_or(0);
        match (self.high, unit) {
            (false, 0xd800..=0xdbff) => {
                self.high = true;
                self.go(State::Half)
            }
            (false, 0xdc00..=0xdfff) => Step::Bad("half of a surrogate pair"),
            (true, 0xdc00..=0xdfff) | (false, _) => {
                self.high = false;
                self.go(State::String)
            }
            (true, _) => Step::Bad("half of a surrogate pair"),
        }
    }
}

/// Whether a text is a number of JSON that a double holds.
pub(super) fn is_number(text: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
        && text.len() <= MAX_NUMBER
        && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Whether a text is one value of JSON and nothing else.
pub(super) fn is_value(text: &str) -> bool {
    Scanner::default().takes(text)
}

/// Whether it is the arguments of a call.
pub(super) fn is_arguments(text: &str) -> bool {
    text.starts_with('{') && Scanner::of_arguments().takes(text)
}

/// Appends a character as it stands in a string of JSON.
pub(super) fn escape(c: char, json: &mut String) {
    match c {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        '\0'..='\u{1f}' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => json.push(c),
    }
}

/// A text as a string of JSON.
pub(super) fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        escape(c, &mut json);
    }
    json.push('"');
    json
}

/// The text that a string of JSON means; `None` where it is none.
pub(super) fn unquoted(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}
