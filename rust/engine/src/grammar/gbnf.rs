//! llama.cpp's GBNF as a grammar of llguidance.
//!
//! GBNF describes characters; a longest-match lexer describes words, and would reject texts that GBNF
//! allows wherever one word is a prefix of another. So the resulting grammar has terminals of one
//! character each, none a prefix of another, and is exact. A grammar without recursion becomes one
//! regular expression, which is exact too and faster.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Deepest nesting of parentheses, and of rules in a regular expression.
const DEEPEST: usize = 64;

/// Most times that a part may be repeated by a number.
const MOST_TIMES: u32 = 10_000;

/// Longest regular expression that a grammar becomes, in bytes.
const LONGEST_REGEX: usize = 64 << 10;

/// A part of a rule.
enum Part {
    /// Characters in ranges, or all others.
    Class {
        but: bool,
        ranges: Vec<(char, char)>,
    },
    Rule(usize),
    Sequence(Vec<Part>),
    Either(Vec<Part>),
    Repeat {
        part: Box<Part>,
        from: u32,
        to: Option<u32>,
    },
}

/// Whether it looks like GBNF: a rule of Lark has a colon alone.
pub fn is_gbnf(text: &str) -> bool {
    let name = |line: &str| {
        let name = line.split_once("::=").map(|(name, _)| name.trim());
        name.is_some_and(|name| !name.is_empty() && name.chars().all(is_of_name))
    };
    text.lines().any(name)
}

/// The same in llguidance's dialect of Lark.
///
/// # Errors
/// What is wrong with it, and in which line.
pub fn to_lark(text: &str) -> Result<String, String> {
    let rules = Reader::read(text)?;
    let start = rules.iter().position(|(name, _)| name == "root");
    let start = start.ok_or("GBNF needs a rule named root")?;
    let mut regex = String::new();
    if write_regex(&rules, &Part::Rule(start), DEEPEST, &mut regex) {
        return Ok(format!("start: /{regex}/\n"));
    }
    let mut lark = format!("start: rule_{start}\n");
    for (i, (_, part)) in rules.iter().enumerate() {
        let _ = write!(lark, "rule_{i}: ");
        write_lark(part, &mut lark);
        lark.push('\n');
    }
    Ok(lark)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

fn write_class(but: bool, ranges: &[(char, char)], out: &mut String) {
    out.push_str(if but { "[^" } else { "[" });
    for (from, to) in ranges {
        let _ = write!(
            out,
            r"\x{{{:X}}}-\x{{{:X}}}",
            u32::from(*from),
            u32::from(*to)
        );
    }
    out.push(']');
}

fn write_times(from: u32, to: Option<u32>, out: &mut String) {
    let _ = match (from, to) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (from, None) => write!(out, "{{{from},}}"),
        (from, Some(to)) => write!(out, "{{{from},{to}}}"),
    };
}

/// As a regular expression; says whether it is one, and of bearable length.
fn write_regex(rules: &[(String, Part)], part: &Part, depth: usize, out: &mut String) -> bool {
    // Where a rule comes back to itself the depth runs out.
    let Some(below) = depth.checked_sub(1).filter(|_| out.len() <= LONGEST_REGEX) else {
        return false;
    };
    let all = |parts: &[Part], between: &str, out: &mut String| {
        parts.iter().enumerate().all(|(i, part)| {
            if i > 0 {
                out.push_str(between);
            }
            write_regex(rules, part, below, out)
        })
    };
    match part {
        Part::Class { but, ranges } => {
            write_class(*but, ranges, out);
            true
        }
        Part::Rule(rule) => rules
            .get(*rule)
            .is_some_and(|(_, part)| write_regex(rules, part, below, out)),
        Part::Sequence(parts) => all(parts, "", out),
        Part::Either(parts) => {
            out.push_str("(?:");
            let written = all(parts, "|", out);
            out.push(')');
            written
        }
        Part::Repeat { part, from, to } => {
            out.push_str("(?:");
            let written = write_regex(rules, part, below, out);
            out.push(')');
            write_times(*from, *to, out);
            written
        }
    }
}

fn write_lark(part: &Part, out: &mut String) {
    match part {
        Part::Class { but, ranges } => {
            out.push('/');
            write_class(*but, ranges, out);
            out.push('/');
        }
        Part::Rule(rule) => {
            let _ = write!(out, "rule_{rule}");
        }
        Part::Sequence(parts) if parts.is_empty() => out.push_str("\"\""),
        Part::Sequence(parts) => {
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                write_lark(part, out);
            }
        }
        Part::Either(parts) => {
            out.push('(');
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.push_str(" | ");
                }
                write_lark(part, out);
            }
            out.push(')');
        }
        Part::Repeat { part, from, to } => {
            out.push('(');
            write_lark(part, out);
            out.push(')');
            write_times(*from, *to, out);
        }
    }
}

/// Reads a grammar.
struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    names: HashMap<String, usize>,
    rules: Vec<(String, Option<Part>)>,
}

impl<'a> Reader<'a> {
    fn read(text: &'a str) -> Result<Vec<(String, Part)>, String> {
        let mut reader = Self {
            rest: text.chars().peekable(),
            line: 1,
            names: HashMap::new(),
            rules: Vec::new(),
        };
        reader.space(true);
        while reader.rest.peek().is_some() {
            reader.rule()?;
        }
        let defined = |(name, part): (String, Option<Part>)| match part {
            Some(part) => Ok((name, part)),
            None => Err(format!("GBNF: the rule {name} is used but not defined")),
        };
        reader.rules.into_iter().map(defined).collect()
    }

    fn wrong(&mut self, expected: &str) -> String {
        let found = match self.rest.peek() {
            Some(c) => format!("{c:?}"),
            None => "the end".into(),
        };
        format!("GBNF, line {}: {expected}, found {found}", self.line)
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next();
        self.line = self.line.saturating_add(usize::from(c == Some('\n')));
        c
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.rest.peek() == Some(&c);
        if found {
            self.next();
        }
        found
    }

    /// Skips spaces and comments, and line breaks where they mean nothing.
    fn space(&mut self, breaks: bool) {
        while let Some(c) = self.rest.peek().copied() {
            match c {
                ' ' | '\t' => {}
                '\r' | '\n' if breaks => {}
                '#' => {
                    while self.rest.peek().is_some_and(|c| *c != '\n') {
                        self.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        while let Some(c) = self.rest.peek().copied().filter(|c| is_of_name(*c)) {
            name.push(c);
            self.next();
        }
        Some(name).filter(|name| !name.is_empty())
    }

    fn rule_of(&mut self, name: String) -> usize {
        let Self { names, rules, .. } = self;
        *names.entry(name).or_insert_with_key(|name| {
            rules.push((name.clone(), None));
            rules.len().saturating_sub(1)
        })
    }

    fn rule(&mut self) -> Result<(), String> {
        let Some(name) = self.name() else {
            return Err(self.wrong("the name of a rule is expected"));
        };
        self.space(false);
        for c in "::=".chars() {
            if !self.take(c) {
                return Err(self.wrong("\"::=\" is expected"));
            }
        }
        self.space(true);
        let part = self.either(0)?;
        let rule = self.rule_of(name);
        if let Some((name, known)) = self.rules.get_mut(rule) {
            if known.replace(part).is_some() {
                return Err(format!("GBNF: the rule {name} is defined twice"));
            }
        }
        if !matches!(self.rest.peek(), None | Some('\r' | '\n')) {
            return Err(self.wrong("the end of a rule is expected"));
        }
        self.space(true);
        Ok(())
    }

    fn either(&mut self, depth: usize) -> Result<Part, String> {
        if depth > DEEPEST {
            return Err(format!("GBNF: more than {DEEPEST} nested parentheses"));
        }
        let mut parts = vec![self.sequence(depth)?];
        loop {
            // An alternative may begin the next line.
            let mut ahead = self.rest.clone();
            let mut next = ahead.next();
            while next.is_some_and(char::is_whitespace) {
                next = ahead.next();
            }
            if next != Some('|') {
                break;
            }
            self.space(true);
            self.next();
            self.space(true);
            parts.push(self.sequence(depth)?);
        }
        Ok(Part::Either(parts))
    }

    fn sequence(&mut self, depth: usize) -> Result<Part, String> {
        let mut parts = Vec::new();
        while let Some(part) = self.part(depth)? {
            self.space(depth > 0);
            parts.push(self.repeated(part)?);
            self.space(depth > 0);
        }
        Ok(Part::Sequence(parts))
    }

    fn part(&mut self, depth: usize) -> Result<Option<Part>, String> {
        let Some(c) = self.rest.peek().copied() else {
            return Ok(None);
        };
        Ok(Some(match c {
            '"' => {
                self.next();
                let mut characters = Vec::new();
                while !self.take('"') {
                    let c = self.character("the end of a string")?;
                    let ranges = vec![(c, c)];
                    characters.push(Part::Class { but: false, ranges });
                }
                Part::Sequence(characters)
            }
            '[' => {
                self.next();
                self.class()?
            }
            '.' => {
                self.next();
                let ranges = Vec::new();
                Part::Class { but: true, ranges }.or_any()
            }
            '(' => {
                self.next();
                self.space(true);
                let part = self.either(depth.saturating_add(1))?;
                self.space(true);
                if !self.take(')') {
                    return Err(self.wrong("\")\" is expected"));
                }
                part
            }
            '<' | '!' => {
                return Err(self.wrong("tokens by name or number cannot be converted: use Lark"));
            }
            _ => match self.name() {
                Some(name) => Part::Rule(self.rule_of(name)),
                None => return Ok(None),
            },
        }))
    }

    fn class(&mut self) -> Result<Part, String> {
        let but = self.take('^');
        let mut ranges = Vec::new();
        while !self.take(']') {
            let from = self.character("\"]\"")?;
            let mut to = from;
            if self.rest.peek() == Some(&'-') {
                self.next();
                if self.rest.peek() == Some(&']') {
                    ranges.push(('-', '-'));
                } else {
                    to = self.character("\"]\"")?;
                }
            }
            if to < from {
                return Err(self.wrong(&format!("the range {from:?}-{to:?} is empty")));
            }
            ranges.push((from, to));
        }
        match (but, ranges.is_empty()) {
            (false, true) => Err(self.wrong("a class without characters matches nothing")),
            _ => Ok(Part::Class { but, ranges }.or_any()),
        }
    }

    fn character(&mut self, end: &str) -> Result<char, String> {
        let c = match self.next() {
            None => return Err(self.wrong(&format!("{end} is expected"))),
            Some('\\') => self.next(),
            Some(c) => return Ok(c),
        };
        let digits = match c {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.wrong("an escape is expected: n r t \\ \" [ ] x u U")),
        };
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|c| c.to_digit(16));
            let digit =
                digit.ok_or_else(|| self.wrong(&format!("{digits} digits are expected")))?;
            code = u32::wrapping_shl(code, 4) | digit;
        }
        char::from_u32(code).ok_or_else(|| self.wrong(&format!("U+{code:04X} is not a character")))
    }

    fn repeated(&mut self, mut part: Part) -> Result<Part, String> {
        for _ in 0..DEEPEST {
            let (from, to) = match self.rest.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.next();
                    let from = self.number()?;
                    let to = match self.take(',') {
                        false => from,
                        true => self.number()?,
                    };
                    if self.rest.peek() != Some(&'}') {
                        return Err(self.wrong("\"}\" is expected"));
                    }
                    let from = from.unwrap_or(0);
                    if to.is_some_and(|to| to < from) {
                        return Err(self.wrong("the maximum is below the minimum"));
                    }
                    (from, to)
                }
                _ => return Ok(part),
            };
            self.next();
            part = Part::Repeat {
                part: Box::new(part),
                from,
                to,
            };
        }
        Err(self.wrong(&format!("at most {DEEPEST} nested repetitions are allowed")))
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        self.space(false);
        let mut number = None;
        while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(10)) {
            let next = number
                .unwrap_or(0u32)
                .saturating_mul(10)
                .saturating_add(digit);
            if next > MOST_TIMES {
                return Err(self.wrong(&format!("at most {MOST_TIMES} times are allowed")));
            }
            number = Some(next);
            self.next();
        }
        self.space(false);
        Ok(number)
    }
}

impl Part {
    /// A class that excepts nothing is every character.
    fn or_any(self) -> Self {
        match self {
            Self::Class { but: true, ranges } if ranges.is_empty() => Self::Class {
                but: false,
                ranges: vec![('\0', char::MAX)],
            },
            part => part,
        }
    }
}
