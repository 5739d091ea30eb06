//! Rules and terminals of a grammar in llguidance's dialect of Lark, as they are written.

use std::collections::HashMap;
use std::fmt::Write;

use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::Value;

/// Any text, of any lines.
pub(super) const ANY: &str = "(?s:.*)";

/// Work that it may take to see whether a regular expression matches anything.
const FUEL: u64 = 20_000;

/// What a terminal is: all of these.
pub(super) type Terms = Vec<Term>;

/// A regular expression, without an unescaped `/`, that a text matches as a whole, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Term {
    Is(String),
    Not(String),
}

impl Term {
    pub fn is(pattern: impl Into<String>) -> Self {
        Self::Is(pattern.into())
    }

    /// Nowhere has a text this one in it.
    pub fn without(text: &str) -> Self {
        Self::without_any(&[text])
    }

    /// Nowhere has a text one of these in it.
    pub fn without_any(texts: &[&str]) -> Self {
        let each: Vec<String> = texts.iter().map(|text| regex_of(text)).collect();
        Self::Not(format!("{ANY}({}){ANY}", each.join("|")))
    }
}

/// Most expressions that are held together, all of which a text has to be: what they have in common can take
/// time and memory that grow as the product of their lengths.
pub(super) const MOST_TERMS: usize = 4;

/// Whether nothing is all of these; an error says what is wrong with one.
pub(super) fn nothing_is(terms: &Terms) -> Result<bool, String> {
    let each = terms.iter().map(|term| match term {
        Term::Is(pattern) => RegexAst::Regex(pattern.clone()),
        Term::Not(pattern) => RegexAst::Not(Box::new(RegexAst::Regex(pattern.clone()))),
    });
    let mut builder = RegexBuilder::new();
    let all = builder.mk(&RegexAst::And(each.collect()));
    let all = all.map_err(|e| e.to_string())?;
    if builder.exprset().is_positive(all) {
        return Ok(false);
    }
    let regex = builder.into_regex_limited(all, FUEL);
    Ok(regex.map_err(|e| e.to_string())?.always_empty())
}

/// Times that a part of an expression may be repeated by counts within one another. What compiles it
/// takes time by their product.
const MOST_REPEATED: u64 = 1 << 14;

/// Whether an expression repeats no part of it too often.
///
/// # Errors
/// How often it does.
pub(super) fn check_repeated(pattern: &str) -> Result<(), String> {
    // Of what was read last, how often a part of it is repeated; of each group that is open, the most.
    let (mut last, mut groups) = (1u64, vec![1u64]);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let named = chars.next().is_some_and(|c| "xuUpP".contains(c));
                if named && chars.peek() == Some(&'{') {
                    chars.by_ref().find(|c| *c == '}');
                }
                last = 1;
            }
            _ if in_class => in_class = c != ']',
            '[' => {
                in_class = true;
                // Here a bracket stands for itself.
                chars.next_if_eq(&'^');
                chars.next_if_eq(&']');
                last = 1;
            }
            '(' => groups.push(1),
            ')' => last = groups.pop().unwrap_or(1),
            '{' => {
                let counts: String = chars.by_ref().take_while(|c| *c != '}').collect();
                let counts = counts.split(',').filter_map(|n| n.trim().parse().ok());
                let count: u64 = counts.max().unwrap_or(1);
                let within = last > 1 && count > 1;
                last = last.saturating_mul(count.max(1));
                if within && last > MOST_REPEATED {
                    return Err(format!(
                        "has nested repetitions that repeat a part {last} times; the limit is \
                         {MOST_REPEATED}"
                    ));
                }
            }
            '*' | '+' | '?' => {}
            _ => last = 1,
        }
        if let Some(most) = groups.last_mut().filter(|_| c != '(') {
            *most = last.max(*most);
        }
    }
    Ok(())
}

/// Terms as a part of a terminal.
pub(super) fn terminal_of(terms: &Terms) -> String {
    let each = terms.iter().map(|term| match term {
        // Two slashes would begin a comment.
        Term::Is(pattern) if pattern.is_empty() => "/(?:)/".into(),
        Term::Is(pattern) => format!("/{pattern}/"),
        Term::Not(pattern) => format!("~/{pattern}/"),
    });
    format!("({})", each.collect::<Vec<_>>().join(" & "))
}

/// Rules and terminals, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    pub text: String,
    /// Names by what they stand for.
    names: HashMap<String, String>,
    reserved: usize,
}

impl Lines {
    /// The name of a rule.
    pub fn rule(&mut self, body: &str) -> String {
        self.named("r", body)
    }

    /// The name of a terminal, which is one lexeme.
    pub fn terminal(&mut self, body: &str) -> String {
        self.named("T", body)
    }

    /// A name of a rule that is defined later: it may lead to itself.
    pub fn reserve(&mut self) -> String {
        let name = format!("n{}", self.reserved);
        self.reserved = self.reserved.saturating_add(1);
        name
    }

    /// Defines the rule of a reserved name; `name::_` has a parameter.
    pub fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}");
    }

    fn named(&mut self, kind: &str, body: &str) -> String {
        let line = format!("{kind}: {body}");
        if let Some(name) = self.names.get(&line) {
            return name.clone();
        }
        let name = format!("{kind}{}", self.names.len());
        let _ = writeln!(self.text, "{name}: {body}");
        self.names.insert(line, name.clone());
        name
    }

    /// One of these; `None` where there are none.
    pub fn either(&mut self, mut each: Vec<String>) -> Option<String> {
        each.dedup();
        match &each[..] {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(self.rule(&several.join(" | "))),
        }
    }
}

/// A literal text; nothing for an empty one.
pub(super) fn literal(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        // Lark takes no such character as it is, and JSON does not escape it.
        false => format!(" {} ", Value::from(text)).replace('\x7f', r"\u007f"),
    }
}

/// A regular expression of one text.
pub(super) fn regex_of(text: &str) -> String {
    let escaped = |c: char| format!(r"\x{{{:X}}}", u32::from(c));
    text.chars().map(escaped).collect()
}

/// Where `text` has to be followed by something, or by nothing: both apart by a space.
pub(super) fn joined(parts: &[&str]) -> String {
    let parts = parts.iter().map(|part| part.trim());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::check_repeated;

    #[test]
    fn repetitions_within_one_another_are_multiplied() {
        for few in [
            "(a{100}){100}",
            "a{100000}",
            "a{300}b{300}(c{300})d{300}",
            r"((\x{41}\{100\}[{100}]){100}){100}",
            "((a{100}|b)[]{100}]*){100}",
            "(a{,}){x}",
        ] {
            assert_eq!(check_repeated(few), Ok(()), "{few}");
        }
        for (many, times) in [
            ("((a{100}){100}){100}", 1_000_000u64),
            ("(?:x(a{1,400}b)?){400,}", 160_000),
            ("(a{1000000}){1000000}{99999999}", 1_000_000_000_000),
        ] {
            let said = check_repeated(many).err().unwrap_or_default();
            assert!(said.contains(&format!("a part {times} times")), "{said}");
        }
    }
}
