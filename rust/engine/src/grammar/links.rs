//! Checks Lark grammars before any recursive code reads them: the length of chains of rules, whether any
//! text ends, and what `%json` stands for.

use std::collections::HashMap;

use super::json;
use super::lark::{check_repeated, Lines, MOST_TERMS};
use super::notation;

/// Longest chain of rules and terminals, each of which names the next, and of parentheses one within
/// another. What compiles them recurses; its stack is sized for this many ([`super::STACK`]).
pub const LONGEST: usize = 400;

/// A part of a grammar.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    /// `%json` and its value.
    Json(&'a str),
    /// `%lark {`.
    Lark,
    Break,
    /// A string, an expression, or what else stands for itself.
    Text,
    Mark(char),
}

/// A rule or a terminal.
#[derive(Default)]
struct Definition<'a> {
    tokens: Vec<Token<'a>>,
    /// Those that it names, in their order.
    named: Vec<usize>,
}

/// Reads a grammar.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip(&mut self, bytes: usize) -> &'a str {
        let taken = self.rest().get(..bytes).unwrap_or(self.rest());
        self.at = self.at.saturating_add(taken.len());
        taken
    }

    /// What comes up to an end that is not escaped, and that end.
    fn quoted(&mut self, end: char) -> &'a str {
        let mut escaped = false;
        let found = self.rest().char_indices().skip(1).find(|(_, c)| {
            let ends = !escaped && *c == end;
            escaped = !escaped && *c == '\\';
            ends
        });
        let bytes = found.map_or(self.rest().len(), |(at, _)| at.saturating_add(1));
        self.skip(bytes)
    }

    /// A value of JSON: what is within its braces.
    fn value(&mut self) -> &'a str {
        let begin = self.at;
        let mut depth = 0usize;
        loop {
            match self.rest().chars().next() {
                None => break,
                Some('"') => {
                    self.quoted('"');
                }
                Some('{' | '[') => {
                    depth = depth.saturating_add(1);
                    self.skip(1);
                }
                Some('}' | ']') => {
                    depth = depth.saturating_sub(1);
                    self.skip(1);
                }
                Some(c) if depth == 0 && c.is_whitespace() => {
                    self.skip(c.len_utf8());
                    continue;
                }
                Some(c) if depth == 0 => {
                    // A value without braces, such as `true`.
                    let word = self.rest().find(|c: char| !c.is_alphanumeric() && c != '.');
                    self.skip(word.unwrap_or(self.rest().len()).max(c.len_utf8()));
                }
                Some(c) => {
                    self.skip(c.len_utf8());
                }
            }
            if depth == 0 {
                break;
            }
        }
        self.text.get(begin..self.at).unwrap_or_default()
    }

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest();
            let c = rest.chars().next()?;
            let name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            return Some(match c {
                ' ' | '\t' | '\r' => {
                    self.skip(1);
                    continue;
                }
                '#' => {
                    self.skip(rest.find('\n').unwrap_or(rest.len()));
                    continue;
                }
                '/' if rest.starts_with("//") => {
                    self.skip(rest.find('\n').unwrap_or(rest.len()));
                    continue;
                }
                '\n' => {
                    self.skip(1);
                    Token::Break
                }
                '"' | '/' => {
                    self.quoted(c);
                    Token::Text
                }
                '<' => {
                    self.skip(rest.find('>').map_or(1, |at| at.saturating_add(1)));
                    Token::Text
                }
                '@' => {
                    self.skip(1);
                    self.word(name);
                    Token::Text
                }
                '%' => {
                    self.skip(1);
                    match self.word(name) {
                        "json" => Token::Json(self.value()),
                        "llguidance" | "regex" => {
                            self.value();
                            Token::Text
                        }
                        "lark" => {
                            while self.rest().starts_with(char::is_whitespace) {
                                self.skip(1);
                            }
                            self.skip(usize::from(self.rest().starts_with('{')));
                            Token::Lark
                        }
                        _ => Token::Text,
                    }
                }
                '0'..='9' => {
                    self.word(name);
                    Token::Text
                }
                c if c.is_ascii_alphabetic() || c == '_' => Token::Name(self.word(name)),
                c => {
                    self.skip(c.len_utf8());
                    Token::Mark(c)
                }
            });
        }
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        self.skip(rest.find(|c| !of(c)).unwrap_or(rest.len()))
    }
}

/// A grammar with what `%json` says in rules of our own, which hold what the library's do not.
///
/// # Errors
/// What is wrong with a schema, and with its place.
pub fn with_schemas(text: &str) -> Result<String, String> {
    if !text.contains("%json") {
        return Ok(text.into());
    }
    let mut reader = Reader { text, at: 0 };
    let mut found = String::new();
    let mut copied = 0;
    while let Some(token) = reader.next() {
        let Token::Json(value) = token else {
            continue;
        };
        let before = text.get(copied..reader.at.saturating_sub(value.len()));
        let before = before.unwrap_or_default();
        copied = reader.at;
        if notation::is_own(value) {
            found.push_str(before);
            found.push_str(value);
            continue;
        }
        found.push_str(before.strip_suffix("%json").unwrap_or(before));
        let schema = json::read(value.trim()).map_err(|reason| format!("%json: {reason}"))?;
        let mut lines = Lines::default();
        let start = notation::value(&mut lines, &schema, true);
        let start = start.map_err(|reason| format!("%json: {reason}"))?;
        found.push_str(&format!("%lark {{\nstart: {start}\n{}}}", lines.text));
    }
    found.push_str(text.get(copied..).unwrap_or_default());
    Ok(found)
}

/// Whether few enough terms are held together, and no expression repeats a part of it too often.
///
/// # Errors
/// How many there are, and how often.
pub fn check_terms(text: &str) -> Result<(), String> {
    let mut reader = Reader { text, at: 0 };
    let (mut together, mut at) = (0usize, 0);
    // The same as one expression, without what its strings have in them.
    let mut whole = String::new();
    while let Some(token) = reader.next() {
        let read = text.get(at..reader.at).unwrap_or_default().trim_start();
        at = reader.at;
        match token {
            Token::Mark('[') => whole.push('('),
            Token::Mark(']') => whole.push(')'),
            Token::Mark(c) => {
                together = together.saturating_add(usize::from(c == '&'));
                whole.push(c);
            }
            Token::Text if read.starts_with(|c: char| c.is_ascii_digit()) => whole.push_str(read),
            Token::Text if read.starts_with('/') => {
                whole.push_str(&format!("({})", read.trim_matches('/')));
            }
            _ => whole.push('_'),
        }
    }
    check_repeated(&whole)?;
    if together > MOST_TERMS {
        return Err(format!(
            "has {together} of `&`: the limit is {MOST_TERMS}, since each multiplies the size"
        ));
    }
    Ok(())
}

/// Whether a grammar can be compiled, and ends somewhere.
///
/// # Errors
/// How long its chain is, or that it allows nothing.
pub fn check(text: &str) -> Result<(), String> {
    let mut reader = Reader { text, at: 0 };
    // Those of a grammar within another are apart.
    let mut scopes: Vec<Scope<'_>> = vec![Scope::default()];
    let mut depth = 0usize;
    while let Some(token) = reader.next() {
        match token {
            Token::Mark('(' | '[' | '{') => {
                depth = depth.saturating_add(1);
                if depth > LONGEST {
                    return Err(format!(
                        "has more than {LONGEST} nested parentheses; name parts of it"
                    ));
                }
            }
            Token::Mark('}') if depth == 0 && scopes.len() > 1 => {
                if let Some(scope) = scopes.pop() {
                    depth = scope.depth;
                    scope.check()?;
                }
                continue;
            }
            Token::Mark(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        let Some(scope) = scopes.last_mut() else {
            break;
        };
        scope.take(token);
        if token == Token::Lark {
            if scopes.len() > LONGEST {
                return Err(format!("has more than {LONGEST} nested grammars"));
            }
            scopes.push(Scope {
                depth: std::mem::take(&mut depth),
                ..Scope::default()
            });
        }
    }
    while let Some(scope) = scopes.pop() {
        scope.check()?;
    }
    Ok(())
}

/// The definitions of a grammar.
#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, usize>,
    definitions: Vec<Definition<'a>>,
    current: Option<usize>,
    /// Whether a name would be defined here, and whether it has been and its colon not.
    begins: Option<bool>,
    heading: bool,
    /// Of the grammar around it.
    depth: usize,
}

impl<'a> Scope<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            self.definitions.push(Definition::default());
            self.definitions.len().saturating_sub(1)
        })
    }

    fn take(&mut self, token: Token<'a>) {
        let begins = self.begins.unwrap_or(true);
        match token {
            Token::Break => {
                self.begins = Some(true);
                return;
            }
            Token::Mark('!' | '?') if begins => return,
            Token::Name(name) if begins => {
                self.current = Some(self.of(name));
                self.heading = true;
            }
            Token::Mark(':') if self.heading => self.heading = false,
            _ if self.heading => {}
            // What a statement names is compiled too.
            Token::Text if begins => self.current = Some(self.of("%")),
            token => {
                let named = match token {
                    Token::Name(name) => Some(self.of(name)),
                    _ => None,
                };
                let definition = self.current.and_then(|at| self.definitions.get_mut(at));
                if let Some(definition) = definition {
                    definition.tokens.push(token);
                    definition.named.extend(named);
                }
            }
        }
        self.begins = Some(false);
    }

    fn check(&self) -> Result<(), String> {
        self.check_chain()?;
        let Some(start) = self.names.get("start") else {
            return Ok(());
        };
        let known = |at: usize| {
            self.definitions
                .get(at)
                .is_some_and(|d| !d.tokens.is_empty())
        };
        let mut ends: Vec<bool> = (0..self.definitions.len()).map(|at| !known(at)).collect();
        for pass in 0..LONGEST {
            let mut more = false;
            for at in 0..ends.len() {
                // In turn from either end: those that are named stand on either side.
                let back = ends.len().saturating_sub(at).saturating_sub(1);
                let at = if pass % 2 == 0 { back } else { at };
                let tokens = self.definitions.get(at).map_or(&[][..], |d| &d.tokens);
                if ends.get(at) == Some(&false) && self.can_end(tokens, &ends) {
                    if let Some(end) = ends.get_mut(at) {
                        *end = true;
                        more = true;
                    }
                }
            }
            if !more {
                return Self::ended(ends.get(*start) != Some(&false));
            }
        }
        Ok(())
    }

    fn ended(ends: bool) -> Result<(), String> {
        match ends {
            false => Err(
                "allows nothing: it recurses without end; give a rule an alternative that ends"
                    .into(),
            ),
            true => Ok(()),
        }
    }

    /// Follows the rules as their compiler does, with a stack of its own.
    fn check_chain(&self) -> Result<(), String> {
        let mut seen = vec![false; self.definitions.len()];
        for first in ["start", "%"]
            .iter()
            .filter_map(|name| self.names.get(name))
        {
            let mut path = vec![(*first, 0usize)];
            while let Some((at, next)) = path.last_mut() {
                let named = self.definitions.get(*at).and_then(|d| d.named.get(*next));
                *next = next.saturating_add(1);
                let Some(named) = named else {
                    path.pop();
                    continue;
                };
                if let Some(seen) = seen.get_mut(*named).filter(|seen| !**seen) {
                    *seen = true;
                    path.push((*named, 0));
                }
                if path.len() > LONGEST {
                    return Err(format!(
                        "is a chain of more than {LONGEST} rules or parts, each leading to the \
                         next; shorten it"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether something ends that these tokens stand for, where that is known of rules.
    fn can_end(&self, tokens: &[Token<'a>], ends: &[bool]) -> bool {
        // Of each group: whether an alternative before ends, and whether this one does so far.
        let mut groups = vec![(false, true)];
        let mut last = true;
        let mut tokens = tokens.iter();
        let put = |groups: &mut Vec<(bool, bool)>, value: bool| {
            if let Some((_, all)) = groups.last_mut() {
                *all = *all && value;
            }
        };
        // What was read last is put to the rest when it is known that nothing repeats it.
        while let Some(token) = tokens.next() {
            match token {
                // Of what is repeated there may be none.
                Token::Mark('?' | '*' | '~') => last = true,
                Token::Mark('{') => {
                    last = true;
                    for token in tokens.by_ref() {
                        if *token == Token::Mark('}') {
                            break;
                        }
                    }
                }
                Token::Mark('(' | '[') => {
                    put(&mut groups, last);
                    last = true;
                    groups.push((false, true));
                }
                Token::Mark('|') => {
                    put(&mut groups, last);
                    last = true;
                    if let Some((any, all)) = groups.last_mut() {
                        *any = *any || *all;
                        *all = true;
                    }
                }
                Token::Mark(c @ (')' | ']')) => {
                    put(&mut groups, last);
                    let (any, all) = groups.pop().unwrap_or((true, true));
                    last = any || all || *c == ']';
                }
                Token::Name(name) => {
                    put(&mut groups, last);
                    let at = self.names.get(name);
                    last = at.and_then(|at| ends.get(*at)).copied().unwrap_or(true);
                }
                _ => {
                    put(&mut groups, last);
                    last = true;
                }
            }
        }
        put(&mut groups, last);
        groups.first().is_some_and(|(any, all)| *any || *all)
    }
}
