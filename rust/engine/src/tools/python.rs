//! Values as Python writes them, by the grammar of its literals (The Python Language Reference, 2.4
//! and 6.2): what comes out is the JSON of what `ast.literal_eval` makes of the text, and `true`,
//! `false` and `null` are taken too. What Python refuses is refused, and so is what JSON has no
//! value for: bytes, sets, complex numbers, keys that are no text, halves of surrogate pairs; and
//! characters by their name, `\N{...}`, which would need the names of all.
use super::json::{self, Step, MAX_DEPTH};

/// Longest word.
const MAX_WORD: usize = 400;

/// What a value stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    List,
    Dict,
    Tuple,
    /// A tuple if a comma comes; then its bracket belongs here in what is held.
    Parenthesis(usize),
}

/// How a piece of a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quotes {
    quote: char,
    triple: bool,
    raw: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// Behind an opening bracket, or a comma.
    ValueOrEnd,
    KeyOrEnd,
    Colon,
    After,
    /// Behind the sign of a number: whether it is a minus.
    Sign(bool),
    /// A number, a name, or what stands before a quote.
    Word,
    /// Behind the first of one or three quotes, or the second.
    Opening(Quotes, bool),
    Text(Quotes),
    /// Behind one or two quotes of three.
    Closing(Quotes, bool),
    Escape(Quotes),
    /// Octal digits of an escape to come, and its number so far.
    Octal(Quotes, u8, u32),
    /// Hexadecimal digits of an escape to come, and its number so far.
    Hex(Quotes, u8, u32),
    /// Behind a piece of a text: another may follow.
    Behind,
}

/// What is left out between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Skipped {
    Spaces,
    Comment,
    /// Behind a backslash, which joins lines.
    Joint,
}

/// Reads one value, which ends before a character that is not its own.
#[derive(Debug)]
pub(super) struct Literal {
    around: Vec<Around>,
    state: State,
    skipped: Skipped,
    is_key: bool,
    /// A text has begun.
    in_text: bool,
    /// A comma is due before the next item.
    comma: bool,
    word: String,
    minus: bool,
    /// A carriage return came last, which ends a line with the line feed behind it or without.
    returned: bool,
    /// What cannot go out, as a parenthesis in it may become a tuple.
    held: String,
    /// How many parentheses may.
    open: usize,
}

impl Literal {
    pub fn new() -> Self {
        Self {
            around: Vec::new(),
            state: State::Value,
            skipped: Skipped::Spaces,
            is_key: false,
            in_text: false,
            comma: false,
            word: String::new(),
            minus: false,
            returned: false,
            held: String::new(),
            open: 0,
        }
    }

    /// Takes a character and appends what it makes certain to `json`.
    pub fn push(&mut self, c: char, json: &mut String) -> Step {
        let behind = std::mem::replace(&mut self.returned, c == '\r');
        let step = match c {
            '\n' if behind => Step::More,
            '\r' => self.take('\n'),
            '\0' => Step::Bad("a zero character"),
            c => self.take(c),
        };
        if self.open == 0 {
            json.push_str(&self.held);
            self.held.clear();
        }
        step
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn take(&mut self, c: char) -> Step {
        if let Some(step) = self.skip(c) {
            return step;
        }
        match self.state {
            State::ValueOrEnd if matches!(c, ')' | ']') => self.close(c),
            State::Value | State::ValueOrEnd => self.begin(c),
            State::KeyOrEnd if c == '}' => self.close(c),
            State::KeyOrEnd => {
                self.is_key = true;
                self.begin(c)
            }
            State::Colon if c == ':' => {
                self.held.push_str(": ");
                self.go(State::Value)
            }
            State::Colon => Step::Bad("a key must be followed by a colon"),
            State::After => self.after(c),
            State::Sign(minus) if c.is_ascii_digit() || c == '.' => {
                self.minus = minus;
                self.word = String::from(c);
                self.go(State::Word)
            }
            State::Sign(_) => Step::Bad("a sign must be followed by a number"),
            State::Word => self.word(c),
            State::Opening(quotes, second) if c == quotes.quote => self.go(match second {
                false => State::Opening(quotes, true),
                true => State::Text(Quotes {
                    triple: true,
                    ..quotes
                }),
            }),
            State::Opening(quotes, second) => {
                self.state = match second {
                    false => State::Text(quotes),
                    true => State::Behind,
                };
                self.take(c)
            }
            State::Text(quotes) => self.text(quotes, c),
            State::Closing(quotes, second) if c == quotes.quote => self.go(match second {
                false => State::Closing(quotes, true),
                true => State::Behind,
            }),
            State::Closing(quotes, second) => {
                for _ in 0..=usize::from(second) {
                    json::escape(quotes.quote, &mut self.held);
                }
                self.state = State::Text(quotes);
                self.take(c)
            }
            State::Escape(quotes) => self.escape(quotes, c),
            State::Octal(quotes, left, so_far) => match (left.checked_sub(1), c.to_digit(8)) {
                (Some(left), Some(digit)) => {
                    self.go(State::Octal(quotes, left, digit_behind(so_far, 8, digit)))
                }
                _ => match self.character(quotes, so_far) {
                    Step::More => self.take(c),
                    step => step,
                },
            },
            State::Hex(quotes, left, so_far) => {
                let (Some(left), Some(digit)) = (left.checked_sub(1), c.to_digit(16)) else {
                    return Step::Bad("an escape must have hexadecimal digits");
                };
                let number = digit_behind(so_far, 16, digit);
                match left {
                    0 => self.character(quotes, number),
                    _ => self.go(State::Hex(quotes, left, number)),
                }
            }
            State::Behind => match c {
                '"' | '\'' => self.quote(c, false),
                // Nothing but a piece begins so behind another.
                c if c.is_ascii_alphabetic() => {
                    self.word = String::from(c);
                    self.go(State::Word)
                }
                c => {
                    self.held.push('"');
                    self.in_text = false;
                    self.ended();
                    self.take(c)
                }
            },
        }
    }

    /// White space, comments and joints of lines, where they may stand.
    fn skip(&mut self, c: char) -> Option<Step> {
        let between = matches!(
            self.state,
            State::Value
                | State::ValueOrEnd
                | State::KeyOrEnd
                | State::Colon
                | State::After
                | State::Sign(_)
                | State::Behind
        );
        if !between {
            return None;
        }
        self.skipped = match (self.skipped, c) {
            (Skipped::Comment | Skipped::Joint, '\n') => Skipped::Spaces,
            (Skipped::Comment, _) => Skipped::Comment,
            (Skipped::Joint, _) => return Some(Step::Bad("a backslash that ends no line")),
            (Skipped::Spaces, ' ' | '\t' | '\x0c' | '\n') => Skipped::Spaces,
            (Skipped::Spaces, '#') => Skipped::Comment,
            (Skipped::Spaces, '\\') => Skipped::Joint,
            _ => return None,
        };
        Some(Step::More)
    }

    fn begin(&mut self, c: char) -> Step {
        if std::mem::take(&mut self.comma) {
            self.held.push_str(", ");
        }
        match c {
            '"' | '\'' => self.quote(c, false),
            '{' | '[' | '(' if !self.is_key => {
                if self.around.len() >= MAX_DEPTH {
                    return Step::Bad("nests more than 100 deep");
                }
                let (around, next) = match c {
                    '{' => (Around::Dict, State::KeyOrEnd),
                    '[' => (Around::List, State::ValueOrEnd),
                    _ => (Around::Parenthesis(self.held.len()), State::ValueOrEnd),
                };
                match around {
                    Around::Parenthesis(_) => self.open = self.open.saturating_add(1),
                    _ => self.held.push(c),
                }
                self.around.push(around);
                self.go(next)
            }
            '+' | '-' if !self.is_key => self.go(State::Sign(c == '-')),
            c if c.is_ascii_alphanumeric() || c == '.' => {
                self.word = String::from(c);
                self.go(State::Word)
            }
            _ => Step::Bad("not the start of a Python value"),
        }
    }

    fn after(&mut self, c: char) -> Step {
        match (c, self.around.last()) {
            (',' | ')', None) => Step::DoneBefore,
            (',', Some(around)) => {
                let next = match around {
                    Around::Dict => State::KeyOrEnd,
                    _ => State::ValueOrEnd,
                };
                self.is_tuple();
                self.comma = true;
                self.go(next)
            }
            (')' | ']' | '}', Some(_)) => self.close(c),
            _ => Step::Bad("a value must be followed by a comma or a closing bracket"),
        }
    }

    /// The innermost parenthesis is around a tuple.
    fn is_tuple(&mut self) {
        if let Some(Around::Parenthesis(at)) = self.around.last().copied() {
            self.held.insert(at, '[');
            self.open = self.open.saturating_sub(1);
            self.around.pop();
            self.around.push(Around::Tuple);
        }
    }

    fn close(&mut self, c: char) -> Step {
        if self.state == State::ValueOrEnd {
            // `()` is a tuple too.
            self.is_tuple();
        }
        self.comma = false;
        match (self.around.pop(), c) {
            (Some(Around::List), ']') | (Some(Around::Tuple), ')') => self.held.push(']'),
            (Some(Around::Dict), '}') => self.held.push('}'),
            (Some(Around::Parenthesis(_)), ')') => self.open = self.open.saturating_sub(1),
            _ => return Step::Bad("a closing bracket of another kind"),
        }
        self.ended();
        Step::More
    }

    fn ended(&mut self) {
        self.state = match std::mem::take(&mut self.is_key) {
            true => State::Colon,
            false => State::After,
        };
    }

    /// A piece of a text begins.
    fn quote(&mut self, quote: char, raw: bool) -> Step {
        if !std::mem::replace(&mut self.in_text, true) {
            self.held.push('"');
        }
        let quotes = Quotes {
            quote,
            triple: false,
            raw,
        };
        self.go(State::Opening(quotes, false))
    }

    fn text(&mut self, quotes: Quotes, c: char) -> Step {
        match c {
            '\\' => return self.go(State::Escape(quotes)),
            '\n' if !quotes.triple => return Step::Bad("a line that ends within a text"),
            c if c != quotes.quote => json::escape(c, &mut self.held),
            _ if quotes.triple => return self.go(State::Closing(quotes, false)),
            _ => return self.go(State::Behind),
        }
        Step::More
    }

    fn escape(&mut self, quotes: Quotes, c: char) -> Step {
        self.state = State::Text(quotes);
        let meant = match c {
            _ if quotes.raw => None,
            '\n' => return Step::More,
            '\\' | '"' | '\'' => Some(c),
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            'x' => return self.go(State::Hex(quotes, 2, 0)),
            'u' => return self.go(State::Hex(quotes, 4, 0)),
            'U' => return self.go(State::Hex(quotes, 8, 0)),
            '0'..='7' => {
                let digit = c.to_digit(8).unwrap_or(0);
                return self.go(State::Octal(quotes, 2, digit));
            }
            'N' => return Step::Bad("a character by its name"),
            _ => None,
        };
        if meant.is_none() {
            json::escape('\\', &mut self.held);
        }
        json::escape(meant.unwrap_or(c), &mut self.held);
        Step::More
    }

    /// What an escape is the number of.
    fn character(&mut self, quotes: Quotes, number: u32) -> Step {
        let Some(c) = char::from_u32(number) else {
            return Step::Bad("an escape that is not a character");
        };
        json::escape(c, &mut self.held);
        self.go(State::Text(quotes))
    }

    fn word(&mut self, c: char) -> Step {
        if matches!(c, '"' | '\'') {
            return match self.word.as_str() {
                "r" | "R" => self.quote(c, true),
                "u" | "U" => self.quote(c, false),
                _ => Step::Bad("a text of this kind is not a value"),
            };
        }
        let exponent = matches!(c, '+' | '-')
            && self.word.ends_with(['e', 'E'])
            && self
                .word
                .starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && !self.word.contains(['x', 'X']);
        if exponent || c.is_alphanumeric() || matches!(c, '_' | '.') {
            self.word.push(c);
            return match self.word.len() > MAX_WORD {
                true => Step::Bad("a word that is too long"),
                false => Step::More,
            };
        }
        let sign = std::mem::take(&mut self.minus);
        match self.word.as_str() {
            _ if self.is_key => return Step::Bad("a key must be a text"),
            _ if self.in_text => {
                return Step::Bad("a text must be followed by a comma or a bracket")
            }
            "True" | "true" => self.held.push_str("true"),
            "False" | "false" => self.held.push_str("false"),
            "None" | "null" => self.held.push_str("null"),
            word => {
                let Some(found) = number(word).filter(|number| json::is_number(number)) else {
                    return Step::Bad("a word that is not a value");
                };
                // Python has no negative zero among its integers.
                if sign && found != "0" {
                    self.held.push('-');
                }
                self.held.push_str(&found);
            }
        }
        self.ended();
        self.take(c)
    }
}

/// A number with one more digit.
fn digit_behind(number: u32, base: u32, digit: u32) -> u32 {
    number.saturating_mul(base).saturating_add(digit)
}

/// A number of Python's as JSON spells it.
fn number(word: &str) -> Option<String> {
    let based = |base: u32| {
        // A line may stand behind the prefix.
        let digits = word.get(2..)?;
        let digits = digits.strip_prefix('_').unwrap_or(digits);
        let found = u128::from_str_radix(&grouped(digits, base)?, base).ok()?;
        Some(found.to_string())
    };
    match word.get(..2).unwrap_or("") {
        "0x" | "0X" => return based(16),
        "0o" | "0O" => return based(8),
        "0b" | "0B" => return based(2),
        _ => {}
    }
    let (mantissa, exponent) = match word.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (word, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    // A side of the point may be empty, not both.
    let digits = |digits: &str, other: &str| match digits {
        "" if !other.is_empty() => Some("0".to_owned()),
        digits => grouped(digits, 10),
    };
    let plain = digits(whole, fraction.unwrap_or(""))?;
    let plain = match plain.trim_start_matches('0') {
        "" => "0",
        // An integer has no zeros in front.
        trimmed if fraction.is_none() && exponent.is_none() && trimmed != plain => return None,
        trimmed => trimmed,
    };
    let mut json = plain.to_owned();
    if let Some(fraction) = fraction {
        json.push('.');
        json.push_str(&digits(fraction, whole)?);
    }
    if let Some(exponent) = exponent {
        let (sign, digits) = match exponent.strip_prefix(['+', '-']) {
            Some(digits) => (exponent.get(..1)?, digits),
            None => ("", exponent),
        };
        json.push_str(&format!("e{sign}{}", grouped(digits, 10)?));
    }
    Some(json)
}

/// Digits without the lines between them.
fn grouped(digits: &str, base: u32) -> Option<String> {
    let fits = |group: &str| !group.is_empty() && group.chars().all(|c| c.is_digit(base));
    digits.split('_').all(fits).then(|| digits.replace('_', ""))
}
