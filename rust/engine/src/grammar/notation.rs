//! JSON schemas as rules: the values of each node of a [`Graph`] as a [`Spelling`] writes them, in JSON
//! or in a call format without JSON. Whatever the rules allow is a valid value; an unsupported keyword is
//! refused by name, so a schema is never enforced in part. Values that are hard to spell may be left out.

use std::fmt::Display;
use std::rc::Rc;

use serde_json::Value;

use super::alternatives::LARGE;
use super::bounds::{self, Decimal, Numbers};
use super::json::SPACE;
use super::keywords::Leaves;
use super::lark::{joined, literal, regex_of, terminal_of, Lines, Term, Terms};
use super::quote;
use super::schema::{Graph, List, Manner, Shape};
use super::texts::Asked;
use super::MAX_BYTES;
use crate::error::{Error, Result};
use crate::tools::{Spelling, QUOTE, VALUE_TAGS};

/// Most items of a list that is bounded, and all that have to be there.
const MOST_ITEMS: u64 = 1 << 17;

/// Most values at the front of a list that have schemas of their own.
const MOST_FIRST: usize = 64;

/// How deep a constant is, at most: with [`DEEPEST`] less than any reader takes.
const DEEP: usize = 64;

/// How deep values go, at most, where they are no JSON: recursion ends sooner where its rules would be
/// too many.
const DEEPEST: [usize; 3] = [32, 16, 8];

/// Bytes of rules that one schema becomes.
const MOST_TEXT: usize = 8 * MAX_BYTES;

/// A character between double quotes that stands for itself, where texts are no JSON.
const BARE: &str = r#"[^"\\\x00-\x1F\x7F]"#;

/// One that is escaped, as JSON and Python do.
const ESCAPED: &str = r#"\\["\\bfnrt]"#;

/// Why a schema is refused.
const NOTHING: &str = "something that nothing matches";

/// A part of a constant.
enum Part {
    Text(String),
    /// The quote of a format that has one of its own.
    Quote,
}

/// What a shape is as a part of a rule.
#[derive(Clone)]
pub(super) enum Written {
    /// As a part of a terminal.
    Scalar(String),
    Rule(String),
    /// A list or an object, the rules of which are made when they are used.
    Deep,
    Nothing,
}

/// Makes rules of one schema.
pub(super) struct Notation<'l, 'a> {
    pub(super) lines: &'l mut Lines,
    pub(super) root: &'a Value,
    /// The shapes of each node, the first of which is the whole.
    pub(super) nodes: Rc<Vec<Vec<Shape<'a>>>>,
    pub(super) spelling: Spelling,
    /// Nobody follows the keys of a text: of an object that has members without names of their own
    /// there is one at most.
    pub(super) alone: bool,
    /// The quote that is a control token.
    quote: Option<u32>,
    /// Of each node, each shape.
    written: Vec<Vec<Written>>,
    /// Whether anything fits a node that can be written.
    fits: Vec<bool>,
    /// Rules of nodes.
    names: Vec<Option<String>>,
    /// Nodes whose rules are named and not made.
    due: Vec<usize>,
}

pub(super) type Expression = std::result::Result<Option<String>, String>;

/// What stands where a call has its arguments, which are an object: in JSON all of it, else without
/// what is around it.
///
/// # Errors
/// [`Error::Argument`] names the tool, the keyword that cannot be held and the remedy.
pub(super) fn arguments(
    lines: &mut Lines,
    spelling: Spelling,
    quote: Option<u32>,
    (tool, parameters): (&str, &Value),
) -> Result<String> {
    let refused = |what: &str| Error::Argument {
        name: "tools",
        value: tool.into(),
        reason: format!(
            "{what} is not supported in the call format of this model; leave it out of the \
             schema of its arguments, or use tool_choice=\"auto\" without \"strict\" and \
             validate the arguments yourself"
        ),
    };
    let json = spelling == Spelling::Json;
    let before = lines.clone();
    let tries: Vec<Option<usize>> = match json {
        true => vec![None],
        false => DEEPEST.into_iter().map(Some).collect(),
    };
    for deepest in tries {
        let manner = Manner {
            deepest,
            closed: !json,
            closed_outside: true,
        };
        match rules(lines, (spelling, quote), parameters, manner, (true, false)) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => return Err(refused(NOTHING)),
            Err(what) if what == LARGE => {}
            Err(what) => return Err(refused(&what)),
        }
        lines.clone_from(&before);
    }
    Err(refused(LARGE))
}

/// What stands where a value is written as JSON, `alone` where nobody follows its keys.
///
/// # Errors
/// What cannot be held.
pub(super) fn value(
    lines: &mut Lines,
    schema: &Value,
    alone: bool,
) -> std::result::Result<String, String> {
    let manner = Manner {
        deepest: None,
        closed: false,
        closed_outside: false,
    };
    let found = rules(
        lines,
        (Spelling::Json, None),
        schema,
        manner,
        (false, alone),
    );
    let refused =
        |what: &str| format!("{what} is not supported; leave it out or express it differently");
    match found.map_err(|what| refused(&what))? {
        Some(found) => Ok(found),
        None => Err(refused(NOTHING)),
    }
}

fn rules(
    lines: &mut Lines,
    (spelling, quote): (Spelling, Option<u32>),
    schema: &Value,
    manner: Manner,
    (arguments, alone): (bool, bool),
) -> Expression {
    let mut notation = Notation {
        lines,
        root: schema,
        nodes: Rc::new(Graph::new(schema, manner)?.nodes),
        spelling,
        alone,
        quote,
        written: Vec::new(),
        fits: Vec::new(),
        names: Vec::new(),
        due: Vec::new(),
    };
    notation.write_scalars()?;
    notation.find_what_fits();
    let found = match arguments {
        true => notation.whole()?,
        false => notation.name(0)?,
    };
    while let Some(node) = notation.due.pop() {
        let body = notation.either(node, false)?.unwrap_or_default();
        if let Some(Some(name)) = notation.names.get(node) {
            notation.lines.define(name, &body);
        }
        if notation.lines.text.len() > MOST_TEXT {
            return Err(LARGE.into());
        }
    }
    Ok(found)
}

impl<'a> Notation<'_, 'a> {
    fn is_json(&self) -> bool {
        self.spelling == Spelling::Json
    }

    /// Writes all shapes but lists and objects.
    fn write_scalars(&mut self) -> std::result::Result<(), String> {
        let nodes = self.nodes.clone();
        for shapes in nodes.iter() {
            let each = shapes.iter().map(|shape| self.scalar(shape));
            let each = each.collect::<std::result::Result<Vec<_>, _>>()?;
            self.fits.push(
                each.iter()
                    .any(|w| matches!(w, Written::Scalar(_) | Written::Rule(_))),
            );
            self.written.push(each);
            self.names.push(None);
        }
        Ok(())
    }

    /// Finds which nodes something fits that ends: first those of scalars, then what is made of them.
    fn find_what_fits(&mut self) {
        loop {
            let mut more = false;
            for node in (0..self.fits.len()).rev() {
                let shapes = self.nodes.get(node).map_or(&[][..], |shapes| shapes);
                if self.has(node) || !shapes.iter().any(|shape| self.can_end(shape)) {
                    continue;
                }
                if let Some(fits) = self.fits.get_mut(node) {
                    *fits = true;
                    more = true;
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Whether something fits a node, as far as is known.
    pub(super) fn has(&self, node: usize) -> bool {
        self.fits.get(node) == Some(&true)
    }

    pub(super) fn can_end(&self, shape: &Shape<'a>) -> bool {
        match shape {
            Shape::List(list) => {
                let least = usize::try_from(list.least).unwrap_or(usize::MAX);
                let first = list.first.iter().take(least).all(|node| self.has(*node));
                first && (least <= list.first.len() || list.rest.is_some_and(|node| self.has(node)))
            }
            Shape::Object(object) => {
                let named = object.named.iter();
                named
                    .clone()
                    .all(|(_, node, required)| !required || self.has(*node))
                    && (object.least <= named.filter(|(_, node, _)| self.has(*node)).count() as u64
                        || object.others.is_some_and(|node| self.has(node))
                        || object.kinds.iter().any(|(_, node)| self.has(*node)))
            }
            _ => false,
        }
    }

    /// All arguments.
    fn whole(&mut self) -> Expression {
        if self.is_json() {
            return self.either(0, true);
        }
        let nodes = self.nodes.clone();
        let mut either = Vec::new();
        for shape in nodes.first().map_or(&[][..], |shapes| shapes) {
            match shape {
                Shape::Object(object) if self.can_end(shape) => {
                    either.extend(self.members(object, true)?);
                }
                Shape::Constant(Value::Object(_)) => {
                    return Err("an object that is a constant".into());
                }
                _ => {}
            }
        }
        Ok(self.lines.either(either))
    }

    /// The rule or terminal of a node; `None` where nothing fits it.
    pub(super) fn name(&mut self, node: usize) -> Expression {
        if !self.has(node) {
            return Ok(None);
        }
        if let Some(Some(name)) = self.names.get(node) {
            return Ok(Some(name.clone()));
        }
        let alone = self.written.get(node).is_some_and(|each| {
            !each
                .iter()
                .any(|written| matches!(written, Written::Deep | Written::Rule(_)))
        });
        let name = match alone {
            true => self.either(node, false)?.unwrap_or_default(),
            false => {
                self.due.push(node);
                self.lines.reserve()
            }
        };
        if let Some(place) = self.names.get_mut(node) {
            *place = Some(name.clone());
        }
        Ok(Some(name))
    }

    /// The values of a node, of which all scalars are one lexeme; of objects alone where they have to be.
    fn either(&mut self, node: usize, objects: bool) -> Expression {
        let nodes = self.nodes.clone();
        let written = self.written.get(node).cloned().unwrap_or_default();
        let mut scalars = Vec::new();
        let mut either = Vec::new();
        let shapes = nodes.get(node).map_or(&[][..], |shapes| shapes);
        for (shape, written) in shapes.iter().zip(written) {
            let object = matches!(shape, Shape::Object(_) | Shape::Constant(Value::Object(_)));
            if objects && !object {
                continue;
            }
            match written {
                Written::Scalar(text) => scalars.push(text),
                Written::Rule(text) => either.push(text),
                Written::Deep if self.can_end(shape) => either.extend(self.deep(shape)?),
                Written::Deep | Written::Nothing => {}
            }
        }
        if !scalars.is_empty() {
            scalars.dedup();
            either.push(self.lines.terminal(&scalars.join(" | ")));
        }
        Ok(match &either[..] {
            [] => None,
            _ => Some(either.join(" | ")),
        })
    }

    pub(super) fn scalar(&mut self, shape: &Shape<'a>) -> std::result::Result<Written, String> {
        let known = |text: &str| Ok(Written::Scalar(text.into()));
        match shape {
            Shape::Text(leaves) => self.text(leaves),
            Shape::Number(leaves, integer) => self.number(leaves, *integer),
            Shape::Boolean if self.spelling == Spelling::Python => known("/True|False|true|false/"),
            Shape::Boolean => known("/true|false/"),
            Shape::Null if self.spelling == Spelling::Python => known("/None|null/"),
            Shape::Null => known(r#""null""#),
            Shape::Constant(value) if self.is_json() => Ok(match json_constant(value, DEEP) {
                Some(regex) => Written::Scalar(format!("/{regex}/")),
                None => Written::Nothing,
            }),
            Shape::Constant(value) => Ok(match self.constant(value) {
                Some(text) if self.quote.is_some() => Written::Rule(text),
                Some(text) => Written::Scalar(text),
                None => Written::Nothing,
            }),
            Shape::List(_) | Shape::Object(_) => Ok(Written::Deep),
        }
    }

    pub(super) fn deep(&mut self, shape: &Shape<'a>) -> Expression {
        let (inside, open, close) = match shape {
            Shape::List(list) => (self.items(list)?, '[', ']'),
            Shape::Object(object) if self.is_json() => return self.json_members(object),
            Shape::Object(object) => (self.members(object, false)?, '{', '}'),
            _ => return Ok(None),
        };
        let (open, close) = (self.open(open), self.close(close));
        Ok(inside.map(|inside| joined(&[&open, &inside, &close])))
    }

    // What is around values and between them.

    pub(super) fn open(&mut self, mark: char) -> String {
        match self.is_json() {
            true => self.lines.terminal(&format!(r"/\{mark}{SPACE}/")),
            false => literal(&mark.to_string()),
        }
    }

    pub(super) fn close(&mut self, mark: char) -> String {
        match self.is_json() {
            true => self.lines.terminal(&format!(r"/{SPACE}\{mark}/")),
            false => literal(&mark.to_string()),
        }
    }

    /// What keeps two values apart.
    pub(super) fn comma(&mut self) -> String {
        match self.spelling {
            Spelling::Gemma => literal(","),
            Spelling::Json => self.lines.terminal(&format!("/{SPACE},{SPACE}/")),
            _ => self.lines.terminal("/, ?/"),
        }
    }

    // Numbers and texts.

    fn number(
        &mut self,
        leaves: &Leaves<'a>,
        integer: bool,
    ) -> std::result::Result<Written, String> {
        Ok(match bounds::number(leaves, integer)? {
            None => Written::Nothing,
            Some(Numbers::Terms(terms)) => Written::Scalar(terminal_of(&terms)),
            // A regular expression of them is known to the library alone.
            Some(Numbers::Multiples { of, least, most }) if self.is_json() => {
                Written::Rule(format!("%json {}", multiples(of, least, most)))
            }
            Some(Numbers::Multiples { .. }) => return Err("multipleOf".into()),
        })
    }

    fn text(&mut self, leaves: &Leaves<'a>) -> std::result::Result<Written, String> {
        let Some(asked) = Asked::of(leaves, true)? else {
            return Ok(Written::Nothing);
        };
        let scalar = |body: &str| Ok(Written::Scalar(body.into()));
        match self.spelling {
            Spelling::Json => {
                if asked.excludes(&asked.plain())? {
                    return Ok(Written::Nothing);
                }
                let mut terms = vec![Term::is(format!("{}{}", quote::any(), asked.length()))];
                terms.extend(quoted(&asked.terms).ok_or_else(|| asked.named())?);
                scalar(&joined(&[r#""\"""#, &terminal_of(&terms), r#""\"""#]))
            }
            Spelling::Gemma => {
                let mut terms = asked.plain();
                terms.push(Term::without(QUOTE));
                Ok(match asked.excludes(&terms)? {
                    true => Written::Nothing,
                    false => self.between_quotes(&terms),
                })
            }
            Spelling::Xml | Spelling::Python => {
                // Where more is asked of a text, it has no escapes: only then is it as it is written.
                let mut terms = match asked.terms.is_empty() {
                    true => vec![Term::is(format!("(?:{BARE}|{ESCAPED}){}", asked.length()))],
                    false => asked.plain(),
                };
                terms.extend((!asked.terms.is_empty()).then(|| Term::is(format!("{BARE}*"))));
                self.end_apart(&mut terms);
                if asked.excludes(&terms)? {
                    return Ok(Written::Nothing);
                }
                scalar(&joined(&[r#""\"""#, &terminal_of(&terms), r#""\"""#]))
            }
        }
    }

    /// A text between the quotes of the format.
    fn between_quotes(&mut self, terms: &Terms) -> Written {
        let inside = terminal_of(terms);
        match self.quote {
            Some(id) => {
                let inside = self.lines.terminal(&inside);
                Written::Rule(format!("<[{id}]> {inside} <[{id}]>"))
            }
            // One lexeme, which ends at the first quote.
            None => {
                let quote = literal(QUOTE);
                Written::Scalar(joined(&[&quote, &inside, &quote]))
            }
        }
    }

    /// The same as a part of a rule.
    pub(super) fn quoted_rule(&mut self, terms: &Terms) -> String {
        match self.between_quotes(terms) {
            Written::Scalar(text) => self.lines.terminal(&text),
            Written::Rule(text) => text,
            Written::Deep | Written::Nothing => String::new(),
        }
    }

    /// Within JSON in XML nothing may look like the end of its element.
    pub(super) fn end_apart(&self, terms: &mut Terms) {
        if self.spelling == Spelling::Xml {
            terms.push(Term::without_any(&VALUE_TAGS));
        }
    }

    // Constants.

    /// One value; `None` where it cannot be written.
    fn constant(&mut self, value: &Value) -> Option<String> {
        let mut parts = Vec::new();
        self.parts(value, DEEP, &mut parts)?;
        Some(self.spelled(&parts))
    }

    fn spelled(&self, parts: &[Part]) -> String {
        let mut found = Vec::new();
        let mut plain = String::new();
        for part in parts {
            match (part, self.quote) {
                (Part::Text(text), _) => plain.push_str(text),
                (Part::Quote, None) => plain.push_str(QUOTE),
                (Part::Quote, Some(id)) => {
                    found.push(literal(&std::mem::take(&mut plain)));
                    found.push(format!("<[{id}]>"));
                }
            }
        }
        found.push(literal(&plain));
        joined(&found.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Appends a value that is that deep at most.
    fn parts(&self, value: &Value, deep: usize, parts: &mut Vec<Part>) -> Option<()> {
        let below = deep.checked_sub(1)?;
        let gemma = self.spelling == Spelling::Gemma;
        let comma = if gemma { "," } else { ", " };
        let mut say = |text: &str| parts.push(Part::Text(text.into()));
        match value {
            Value::String(text) => self.quoted(text, parts)?,
            Value::Bool(_) | Value::Null if self.spelling == Spelling::Python => {
                say(match value {
                    Value::Bool(true) => "True",
                    Value::Bool(false) => "False",
                    _ => "None",
                });
            }
            Value::Array(items) => {
                say("[");
                for (i, item) in items.iter().enumerate() {
                    parts.extend((i > 0).then(|| Part::Text(comma.into())));
                    self.parts(item, below, parts)?;
                }
                parts.push(Part::Text("]".into()));
            }
            Value::Object(members) => {
                say("{");
                for (i, (key, member)) in members.iter().enumerate() {
                    parts.extend((i > 0).then(|| Part::Text(comma.into())));
                    self.key_parts(key, parts)?;
                    parts.extend((!gemma).then(|| Part::Text(" ".into())));
                    self.parts(member, below, parts)?;
                }
                parts.push(Part::Text("}".into()));
            }
            scalar => say(&scalar.to_string()),
        }
        Some(())
    }

    /// A text with its quotes.
    fn quoted(&self, text: &str, parts: &mut Vec<Part>) -> Option<()> {
        if self.spelling != Spelling::Gemma {
            parts.push(Part::Text(in_json(text)));
            return Some(());
        }
        if text.contains(QUOTE) {
            return None;
        }
        parts.extend([Part::Quote, Part::Text(text.into()), Part::Quote]);
        Some(())
    }

    /// A key of an object, with its colon.
    fn key_parts(&self, key: &str, parts: &mut Vec<Part>) -> Option<()> {
        let bare = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        let first = key.chars().next();
        match self.spelling {
            // Its reader takes a key of this length.
            Spelling::Gemma if first.is_some() && key.len() <= 256 && key.chars().all(bare) => {
                parts.push(Part::Text(key.into()));
            }
            _ => self.quoted(key, parts)?,
        }
        parts.push(Part::Text(":".into()));
        Some(())
    }

    /// A key that is known, with what is behind it; in the outermost object of a call (`whole`) as the
    /// format writes it there.
    pub(super) fn key(&mut self, key: &str, whole: bool) -> std::result::Result<String, String> {
        let unwritable = || format!("a property called {key:?}");
        match (self.spelling, whole) {
            (Spelling::Xml, true) => {
                let trimmed = key.trim().trim_matches('"');
                let fits = !key.is_empty() && key == trimmed && !key.contains(['<', '>']);
                match fits {
                    true => Ok(literal(&format!("<parameter={key}>\n"))),
                    false => Err(unwritable()),
                }
            }
            (Spelling::Python, true) => {
                let fits = |c: char| c.is_alphanumeric() || "_-. ".contains(c);
                let fits = key.chars().all(fits) && key.trim() == key && !key.is_empty();
                match fits && key.len() <= 512 {
                    true => Ok(literal(&format!("{key}="))),
                    false => Err(unwritable()),
                }
            }
            (Spelling::Json, _) => {
                let key = quote::literal(key);
                Ok(self.lines.terminal(&format!("/{key}{SPACE}:{SPACE}/")))
            }
            _ => {
                let mut parts = Vec::new();
                self.key_parts(key, &mut parts).ok_or_else(unwritable)?;
                Ok(match (self.spelling, &parts[..]) {
                    (Spelling::Gemma, _) => self.spelled(&parts),
                    // A space may stand behind the colon.
                    _ => self
                        .lines
                        .terminal(&format!("/{}: ?/", regex_of(&in_json(key)))),
                })
            }
        }
    }

    // Lists.

    /// The items of a list, with what is between them.
    fn items(&mut self, list: &List) -> Expression {
        let comma = self.comma();
        let least = list.least;
        let mut most = list.most.map(|most| most.min(MOST_ITEMS));
        if least > MOST_ITEMS {
            return Err("minItems".into());
        }
        if list.first.len() > MOST_FIRST {
            return Err("prefixItems".into());
        }
        let mut first = Vec::new();
        for node in &list.first {
            match self.name(*node)? {
                Some(item) => first.push(item),
                None => {
                    // None is behind one that cannot be.
                    most = Some(first.len() as u64);
                    break;
                }
            }
        }
        if most.is_some_and(|most| most < least) {
            return Ok(None);
        }
        let rest = match list.rest {
            Some(node) if most.is_none_or(|most| most > first.len() as u64) => self.name(node)?,
            _ => None,
        };
        first.truncate(
            most.and_then(|most| usize::try_from(most).ok())
                .unwrap_or(MOST_FIRST),
        );
        let behind = |count: u64| count.saturating_sub(first.len() as u64);
        // From the last to the first, each with all that follows it.
        let mut found = match rest {
            Some(item) if first.is_empty() => {
                let again = repeated(
                    &joined(&[&comma, &item]),
                    least.saturating_sub(1),
                    most.map(|most| most.saturating_sub(1)),
                );
                let found = joined(&[&item, &again]);
                return Ok(Some(match least {
                    0 => format!("({found})?"),
                    _ => found,
                }));
            }
            Some(item) => repeated(&joined(&[&comma, &item]), behind(least), most.map(behind)),
            None if behind(least) > 0 => return Ok(None),
            None => String::new(),
        };
        for (i, item) in first.iter().enumerate().rev() {
            let before = if i == 0 { "" } else { &comma[..] };
            found = joined(&[before, item, &found]);
            if i as u64 >= least {
                found = self.lines.rule(&format!("({found})?"));
            }
        }
        Ok(Some(found))
    }
}

/// Terms of a text as JSON spells it; `None` where one cannot be.
pub(super) fn quoted(terms: &Terms) -> Option<Terms> {
    let each = terms.iter().map(|term| match term {
        Term::Is(pattern) => quote::quoted(pattern).map(Term::Is),
        Term::Not(pattern) => quote::quoted(pattern).map(Term::Not),
    });
    each.collect()
}

/// A regular expression of a constant in JSON, with layout; `None` where it is too deep.
fn json_constant(value: &Value, deep: usize) -> Option<String> {
    let below = deep.checked_sub(1)?;
    let comma = format!("{SPACE},{SPACE}");
    Some(match value {
        Value::String(text) => quote::literal(text),
        Value::Array(each) => {
            let each = each.iter().map(|item| json_constant(item, below));
            let each = each.collect::<Option<Vec<_>>>()?.join(&comma);
            format!(r"\[{SPACE}{each}{SPACE}\]")
        }
        Value::Object(each) => {
            let member = |(key, member): (&String, &Value)| {
                let member = json_constant(member, below)?;
                Some(format!("{}{SPACE}:{SPACE}{member}", quote::literal(key)))
            };
            let each = each.iter().map(member);
            let each = each.collect::<Option<Vec<_>>>()?.join(&comma);
            format!(r"\{{{SPACE}{each}{SPACE}\}}")
        }
        Value::Number(number) => {
            let text = number.to_string();
            let Some(plain) = Decimal::of(number).plain() else {
                return Some(regex_of(&text));
            };
            // A reader takes all of these for the same; a longer integer with a point it may round.
            let point = match number.is_f64() || plain.len() < 16 {
                true => r"(?:\.0)?",
                false => "",
            };
            match text.contains(['e', 'E']) {
                true => format!("(?:{}|{plain}{point})", regex_of(&text)),
                false => format!("{plain}{point}"),
            }
        }
        scalar => regex_of(&scalar.to_string()),
    })
}

/// Whether a value of `%json` is one that rules of this room write: multiples of a number.
pub(super) fn is_own(value: &str) -> bool {
    let value: Option<Value> = serde_json::from_str(value).ok();
    let integer = |key: &str| value.as_ref()?.get(key)?.as_i64();
    let (of, least, most) = (
        integer("multipleOf"),
        integer("minimum"),
        integer("maximum"),
    );
    match (of, least, most) {
        (Some(of), Some(least), Some(most)) => {
            let own = serde_json::from_str(&multiples(of, least, most)).ok();
            value == own
        }
        _ => false,
    }
}

/// Multiples of a number between two.
fn multiples(of: impl Display, least: impl Display, most: impl Display) -> String {
    format!(
        "{{\"type\": \"integer\", \"multipleOf\": {of}, \"minimum\": {least}, \"maximum\": {most}, \
         \"x-guidance\": {{\"whitespace_flexible\": false}}}}"
    )
}

/// A text as JSON spells it, and Python too, without what would end an element of XML.
fn in_json(text: &str) -> String {
    let escaped = |text: String, tag: &&str| text.replace(tag, &tag.replace('<', r"\u003c"));
    VALUE_TAGS
        .iter()
        .fold(Value::from(text).to_string(), escaped)
}

fn repeated(item: &str, least: u64, most: Option<u64>) -> String {
    match (least, most) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({item})*"),
        (least, most) => {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("({item}){{{least},{most}}}")
        }
    }
}
