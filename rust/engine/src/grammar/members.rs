//! Members of objects as rules.
//!
//! If undeclared members are allowed, a rule has a number that says which declared names are already
//! there, one bit each, so that they come in any order and each once. Names are compared after
//! unescaping. No undeclared key begins with a name already present: a model that starts to repeat a name
//! is not driven into one that nobody meant.

use super::alternatives::LARGE;
use super::json::SPACE;
use super::lark::{joined, literal, terminal_of, Term};
use super::notation::{quoted, Expression, Notation};
use super::quote;
use super::schema::Object;
use crate::tools::{Spelling, QUOTE};

/// Bits of the number that a rule has.
const BITS: u32 = 64;

/// Names of one object that come in any order.
const MOST_NAMES: usize = 1500;

/// Names whose beginnings are watched: each is a rule more.
const MOST_WATCHED: usize = 256;

/// A name that any notation can write without quotes.
const NAME: &str = "[A-Za-z_][A-Za-z0-9_]{0,63}";

/// A name without a character.
const EMPTY: &str = r#""""#;

/// A member that has a name.
struct Named<'a> {
    name: &'a str,
    /// What it is, with its key in front where that is not written otherwise.
    value: String,
    required: bool,
    bit: Option<usize>,
}

/// Key and value of a member that has no name of its own, and the bits of names that must not be there.
type Other = (String, String, Vec<usize>);

impl<'a> Notation<'_, 'a> {
    /// The members of an object, or all arguments (`whole`), with what is between them, where they are no
    /// JSON.
    pub(super) fn members(&mut self, object: &Object<'a>, whole: bool) -> Expression {
        if !object.kinds.is_empty() {
            return Err("patternProperties".into());
        }
        let mut items = Vec::new();
        for (key, node, required) in &object.named {
            let value = match whole && self.spelling == Spelling::Xml {
                true if self.has(*node) => self.element(*node, key)?,
                true => None,
                false => self.name(*node)?,
            };
            match value {
                Some(value) => items.push((joined(&[&self.key(key, whole)?, &value]), *required)),
                None if *required => return Ok(None),
                None => {}
            }
        }
        let needed = object
            .named
            .iter()
            .filter(|(_, _, required)| *required)
            .count() as u64;
        if object.least > needed {
            return Err("minProperties".into());
        }
        let free = object.others.is_some();
        if object
            .most
            .is_some_and(|most| free || most < object.named.len() as u64)
        {
            return Err("maxProperties".into());
        }
        let comma = match (self.spelling, whole) {
            (Spelling::Xml, true) => String::new(),
            _ => self.comma(),
        };
        if let Some(node) = object.others.filter(|_| object.named.is_empty()) {
            let value = match (self.spelling, whole) {
                // A key that no property has.
                (Spelling::Xml, true) => self.element(node, "")?,
                _ => self.name(node)?,
            };
            return Ok(Some(match value {
                None => String::new(),
                Some(value) => {
                    let item = joined(&[&self.any_key(whole), &value]);
                    let item = self.lines.rule(&item);
                    format!("({item} ({})*)?", joined(&[&comma, &item]))
                }
            }));
        }
        Ok(Some(self.sequence(&items, &comma)))
    }

    /// Any key, with what is behind it, where it is no JSON.
    fn any_key(&mut self, whole: bool) -> String {
        match (self.spelling, whole) {
            (Spelling::Xml, true) => self.lines.terminal(&format!(r"/<parameter={NAME}>\n/")),
            (Spelling::Python, true) => self.lines.terminal(&format!("/{NAME}=/")),
            (Spelling::Gemma, _) => {
                let bare = self.lines.terminal(&format!("/{NAME}:/"));
                let key = vec![Term::is("(?s:.{1,256})"), Term::without(QUOTE)];
                let quoted = self.quoted_rule(&key);
                self.lines
                    .rule(&format!("{bare} | {quoted} {}", literal(":")))
            }
            _ => {
                let any = r#"(?:[^"\\\x00-\x1F\x7F]|\\["\\\/bfnrt])"#;
                let mut terms = vec![Term::is(format!(r#""{any}{{1,256}}": ?"#))];
                self.end_apart(&mut terms);
                self.lines.terminal(&terminal_of(&terms))
            }
        }
    }

    /// Items in their order, some of which may be left out.
    fn sequence(&mut self, items: &[(String, bool)], comma: &str) -> String {
        match self.first_of(items, comma) {
            None => String::new(),
            Some(found) if items.iter().any(|(_, required)| *required) => found,
            Some(found) => format!("({found})?"),
        }
    }

    /// These items, at least one of them, where none is before. By halves, for the depth of rules.
    fn first_of(&mut self, items: &[(String, bool)], comma: &str) -> Option<String> {
        let (front, back) = match items {
            [] => return None,
            [(one, _)] => return Some(one.clone()),
            _ => items.split_at_checked(items.len() / 2)?,
        };
        let first = self.first_of(front, comma)?;
        let mut either = vec![joined(&[&first, &self.further(back, comma)])];
        if !front.iter().any(|(_, required)| *required) {
            either.extend(self.first_of(back, comma));
        }
        self.lines.either(either)
    }

    /// These items where others are before.
    fn further(&mut self, items: &[(String, bool)], comma: &str) -> String {
        match items {
            [] => String::new(),
            [(one, true)] => joined(&[comma, one]),
            [(one, false)] => format!("({})?", joined(&[comma, one])),
            _ => {
                let (front, back) = items.split_at(items.len() / 2);
                let (front, back) = (self.further(front, comma), self.further(back, comma));
                self.lines.rule(&joined(&[&front, &back]))
            }
        }
    }

    /// An object in JSON.
    pub(super) fn json_members(&mut self, object: &Object<'a>) -> Expression {
        let mut named = Vec::new();
        let mut taken: Vec<&str> = Vec::new();
        for (name, node, required) in &object.named {
            taken.push(name);
            match self.name(*node)? {
                Some(value) => named.push(Named {
                    name,
                    value,
                    required: *required,
                    bit: None,
                }),
                None if *required => return Ok(None),
                None => {}
            }
        }
        let mut others = Vec::new();
        let taken: Vec<String> = taken.iter().map(|name| self.spellings(name)).collect();
        for (terms, node) in &object.kinds {
            if let Some(value) = self.name(*node)? {
                let terms = quoted(terms).ok_or("patternProperties")?;
                let any = self.any_text();
                let body = [&any, &terminal_of(&terms)[..]].join(" & ");
                others.push((self.key_of(&body, &taken, ""), value, Vec::new()));
            }
        }
        let mut open = false;
        if let Some(node) = object.others {
            if let Some(value) = self.name(node)? {
                open = true;
                let any = self.any_text();
                others.push((self.key_of(&any, &taken, &any), value, Vec::new()));
            }
        }
        let counted = object.least > 0 || object.most.is_some();
        if others.is_empty() && (!counted || named.iter().all(|n| n.required)) {
            let required = named.len() as u64;
            if counted && (object.least > required || object.most.is_some_and(|m| m < required)) {
                return Ok(None);
            }
            let mut items = Vec::new();
            for member in &named {
                let key = self.key(member.name, false)?;
                items.push((joined(&[&key, &member.value]), member.required));
            }
            let comma = self.comma();
            let (begin, end) = (self.open('{'), self.close('}'));
            let inside = self.sequence(&items, &comma);
            return Ok(Some(joined(&[&begin, &inside, &end])));
        }
        if named.len() > MOST_NAMES {
            return Err(LARGE.into());
        }
        named.sort_by_key(|member| !member.required);
        self.any_order(object, named, others, open)
    }

    /// Any text within the quotes of JSON.
    fn any_text(&mut self) -> String {
        self.lines.terminal(&format!("/{}*/", quote::any()))
    }

    /// A name without its quotes, in all its spellings.
    fn spellings(&mut self, name: &str) -> String {
        match name.is_empty() {
            true => EMPTY.into(),
            false => self
                .lines
                .terminal(&format!("/{}/", quote::spellings(name))),
        }
    }

    /// A key, with its colon: none of these names with that behind it.
    fn key_of(&mut self, body: &str, names: &[String], behind: &str) -> String {
        // Every name begins with an empty one.
        let (empty, names): (Vec<_>, Vec<_>) = names.iter().partition(|name| *name == EMPTY);
        let names: Vec<&str> = names.into_iter().map(|name| &name[..]).collect();
        let mut without = String::new();
        if !empty.is_empty() {
            without.push_str(&format!(" & ~({EMPTY})"));
        }
        if !names.is_empty() {
            without.push_str(&format!(" & ~(({}) {behind})", names.join(" | ")));
        }
        let body = format!(r#""\"" ({body}{without}) /"{SPACE}:{SPACE}/"#);
        self.lines.terminal(&body)
    }

    /// An object whose members come in any order, those that have to be there first among `named`; those
    /// that have no name of their own stand behind them.
    fn any_order(
        &mut self,
        object: &Object<'a>,
        mut named: Vec<Named<'a>>,
        mut others: Vec<Other>,
        open: bool,
    ) -> Expression {
        let required = named.iter().filter(|member| member.required).count();
        // What is counted: members that need not be there.
        let least = object.least.saturating_sub(required as u64);
        let most = object.most.map(|most| most.saturating_sub(required as u64));
        let optional = named.len().saturating_sub(required) as u64;
        if others.is_empty() && least > optional {
            return Ok(None);
        }
        let greatest = least.max(most.unwrap_or(0));
        let counted = least > 0 || most.is_some_and(|most| !others.is_empty() || most < optional);
        let width = match counted {
            true => u64::BITS.saturating_sub(greatest.leading_zeros()).max(1),
            false => 0,
        };
        let bits = BITS.saturating_sub(width) as usize;
        if self.alone && !others.is_empty() && least > optional.saturating_add(1) {
            return Err("minProperties".into());
        }
        if self.alone && named.is_empty() && most != Some(0) {
            let one = others.iter().map(|(key, value, _)| joined(&[key, value]));
            let one = one.collect::<Vec<_>>().join(" | ");
            let (begin, end) = (self.open('{'), self.close('}'));
            let mut either = vec![format!("{begin} ({one}) {end}")];
            if least == 0 {
                either.push(self.lines.terminal(&format!(r"/\{{{SPACE}\}}/")));
            }
            return Ok(Some(format!("({})", either.join(" | "))));
        }
        if width > 16 || required > bits {
            return Err(format!(
                "more than {bits} required members of an open object"
            ));
        }
        // Of names that are more than the bits, the last may come again as far as the rules say.
        for (bit, member) in named.iter_mut().enumerate() {
            member.bit = (bit < bits).then_some(bit);
        }
        let known = named.len().min(bits);
        if known < named.len() && others.is_empty() {
            return Err(format!(
                "minProperties or maxProperties of more than {bits} properties"
            ));
        }
        if open && named.len() <= MOST_WATCHED {
            others.extend(self.longer(object, &named)?);
        }
        let counter = format!("[{bits}:{BITS}]");
        let ones = |from: usize, to: usize| format!("is_ones([{from}:{to}])");
        let more = match (counted, most) {
            (true, Some(most)) => format!("lt({counter}, {most})"),
            _ => "true".into(),
        };
        let (rule, rest) = (self.lines.reserve(), self.lines.reserve());
        let mut members = Vec::new();
        for member in &named {
            // In one spelling: a model that may not write on is not driven into another.
            let key = self.key(member.name, false)?;
            let Named {
                value,
                required,
                bit,
                ..
            } = member;
            let mut conditions = Vec::new();
            let set = match bit {
                Some(bit) => {
                    conditions.push(format!("bit_clear({bit})"));
                    format!("set_bit({bit})")
                }
                None => "_".into(),
            };
            if !required && counted && most.is_some() {
                conditions.push(more.clone());
            }
            let behind = format!("{value} {rest}::{set}");
            let member = match counted && !required {
                true => {
                    // A rule of its own, as one reference changes the number once.
                    let behind_key = self.lines.reserve();
                    self.lines.define(&format!("{behind_key}::_"), &behind);
                    format!("{key} {behind_key}::incr({counter})")
                }
                false => format!("{key} {behind}"),
            };
            members.push(format!("{member}{}", all_of(&conditions)));
        }
        let (begin, end, comma) = (self.open('{'), self.close('}'), self.comma());
        for (key, value, bits) in &others {
            let next = match counted {
                true => format!("incr({counter})"),
                false => "_".into(),
            };
            let mut conditions: Vec<String> =
                bits.iter().map(|bit| format!("bit_clear({bit})")).collect();
            // A model that may say more says first what has to be said.
            conditions.extend((required > 0).then(|| ones(0, required)));
            if counted && most.is_some() {
                conditions.push(more.clone());
            }
            let behind = match self.alone {
                true => {
                    let before = least.saturating_sub(1);
                    conditions.extend((before > 0).then(|| format!("ge({counter}, {before})")));
                    end.clone()
                }
                false => format!("{rest}::{next}"),
            };
            members.push(format!("{key} {value} {behind}{}", all_of(&conditions)));
        }
        // A comma where a member may follow.
        let mut ready = Vec::new();
        if required > 0 {
            ready.push(ones(0, required));
        }
        if least > 0 {
            ready.push(format!("ge({counter}, {least})"));
        }
        let mut further = Vec::new();
        if required > 0 {
            further.push(format!("not({})", ones(0, required)));
        }
        let left = match others.is_empty() && known > required {
            true => Some(format!("not({})", ones(required, known))),
            false => (!others.is_empty()).then(String::new),
        };
        match (left, counted && most.is_some()) {
            (None, _) => {}
            (Some(left), true) if left.is_empty() => further.push(more),
            (Some(left), true) => further.push(format!("and({left}, {more})")),
            (Some(left), false) if left.is_empty() => further.clear(),
            (Some(left), false) => further.push(left),
        }
        let always = !(others.is_empty() || counted && most.is_some());
        let further = match (always, &further[..]) {
            (true, _) => String::new(),
            (false, each) => format!(" %if {}", any_of(each)),
        };
        self.lines
            .define(&format!("{rule}::_"), &members.join(" | "));
        let body = format!("{end}{} | {comma} {rule}::_{further}", all_of(&ready));
        self.lines.define(&format!("{rest}::_"), &body);
        let mut either = vec![format!("{begin} {rule}::0")];
        if required == 0 && least == 0 {
            let empty = self.lines.terminal(&format!(r"/\{{{SPACE}\}}/"));
            either.push(empty);
        }
        if most == Some(0) && required == 0 {
            either.remove(0);
        }
        Ok(Some(format!("({})", either.join(" | "))))
    }

    /// Other members whose names begin with one that is known, each while that is not there.
    fn longer(
        &mut self,
        object: &Object<'a>,
        named: &[Named<'a>],
    ) -> std::result::Result<Vec<Other>, String> {
        let all: Vec<&str> = object.named.iter().map(|(name, ..)| *name).collect();
        let Some(value) = object
            .others
            .map(|node| self.name(node))
            .transpose()?
            .flatten()
        else {
            return Ok(Vec::new());
        };
        let any = self.any_text();
        let mut found = Vec::new();
        for name in all.iter().filter(|name| !name.is_empty()) {
            let further = all
                .iter()
                .filter(|other| *other != name && other.starts_with(name));
            let further: Vec<String> = further.map(|other| self.spellings(other)).collect();
            let begins = self.spellings(name);
            let body = format!("({begins} /{}/ {any})", quote::any());
            let shorter = named
                .iter()
                .filter(|member| !member.name.is_empty() && name.starts_with(member.name));
            let bits = shorter.filter_map(|member| member.bit).collect();
            found.push((self.key_of(&body, &further, &any), value.clone(), bits));
        }
        Ok(found)
    }
}

fn folded(each: &[String], both: &str) -> String {
    let mut each = each.iter();
    let first = each.next().cloned().unwrap_or_else(|| "true".into());
    each.fold(first, |all, one| format!("{both}({all}, {one})"))
}

fn all_of(each: &[String]) -> String {
    match each.is_empty() {
        true => String::new(),
        false => format!(" %if {}", folded(each, "and")),
    }
}

fn any_of(each: &[String]) -> String {
    match each.is_empty() {
        // Nothing follows.
        true => "not(true)".into(),
        false => folded(each, "or"),
    }
}
