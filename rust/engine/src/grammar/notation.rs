//! Arguments of a call that are no JSON but are held to a JSON schema all the same: the schema
//! becomes rules that spell its values as the format does ([`Spelling`]). What they allow, the
//! reader of the format reads as a value that is valid; what cannot be held is refused by its
//! keyword, so a schema is never held in part. Values that are hard to spell may be left out.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::bounds;
use super::lark::{joined, literal, regex_of, terminal_of, Lines, Term, Terms};
use super::schema::{self, Form, Forms, LARGE};
use super::texts::Asked;
use super::MAX_BYTES;
use crate::error::{Error, Result};
use crate::tools::{typed, types_of, Spelling, Types, QUOTE, VALUE_END, VALUE_TAGS};

/// Most items of a list that is bounded, and all that have to be there.
const MOST_ITEMS: u64 = 1 << 12;

/// Most values at the front of a list that have schemas of their own.
const MOST_FIRST: usize = 64;

/// A name that any notation can write without quotes.
const NAME: &str = "[A-Za-z_][A-Za-z0-9_]{0,63}";

/// A character between double quotes that stands for itself.
const BARE: &str = r#"[^"\\\x00-\x1F\x7F]"#;

/// One that is escaped, as JSON and Python do.
const ESCAPED: &str = r#"\\["\\bfnrt]"#;

/// A part of a constant.
enum Part {
    Text(String),
    /// The quote of a format that has one of its own.
    Quote,
}

/// Makes rules of the arguments of one tool.
pub(super) struct Notation<'a> {
    lines: &'a mut Lines,
    forms: Forms<'a>,
    spelling: Spelling,
    /// The quote that is a control token.
    quote: Option<u32>,
    /// Rules of objects and lists, by the address of their schema, whether it is the object, as a schema
    /// that does not say is one of both, and how deep they are.
    made: HashMap<(usize, bool, usize), Option<String>>,
}

type Expression = std::result::Result<Option<String>, String>;

/// How deep a constant is, at most: with [`DEEPEST`] less than any reader takes.
const DEEP: usize = 64;

/// How deep values go, at most: recursion ends sooner where its rules would be too many.
const DEEPEST: [usize; 3] = [32, 16, 8];

/// What stands where a call has its arguments, without what is around all of them.
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
            "{what} in the format of this model; leave it out of the schema of its arguments, or \
             use tool_choice=\"auto\" without \"strict\" and check arguments before they are used"
        ),
    };
    let before = lines.clone();
    for deepest in DEEPEST {
        let mut notation = Notation {
            lines,
            forms: Forms::new(parameters, deepest),
            spelling,
            quote,
            made: HashMap::new(),
        };
        match notation.whole(parameters) {
            Ok(Some(_)) if lines.text.len() > MAX_BYTES => {}
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {
                return Err(refused(
                    "what nothing fits, or nothing that can be written, cannot be held",
                ))
            }
            Err(what) if what == LARGE => {}
            Err(what) => return Err(refused(&format!("{what} cannot be held"))),
        }
        lines.clone_from(&before);
    }
    Err(refused(&format!("{LARGE} cannot be held")))
}

impl<'a> Notation<'a> {
    /// All arguments.
    fn whole(&mut self, parameters: &'a Value) -> Expression {
        let mut either = Vec::new();
        for form in self.forms.of(parameters, 0)? {
            match form {
                Form::Object(schema) => either.extend(self.members(schema, 0, true)?),
                Form::Constant(_) => return Err("an object that is a constant".into()),
                _ => {}
            }
        }
        Ok(self.lines.either(either))
    }

    /// A value that a schema allows.
    fn value(&mut self, schema: &'a Value, depth: usize) -> Expression {
        let mut either = Vec::new();
        for form in self.forms.of(schema, depth)? {
            either.extend(self.form(&form, depth)?);
        }
        Ok(self.lines.either(either))
    }

    fn form(&mut self, form: &Form<'a>, depth: usize) -> Expression {
        match form {
            Form::Text(schema) => self.text(schema),
            Form::Number(schema, integer) => {
                let terms = bounds::number(schema, *integer)?;
                Ok(terms.map(|terms| self.lines.terminal(&terminal_of(&terms))))
            }
            Form::Boolean => Ok(Some(match self.spelling {
                Spelling::Python => self.lines.terminal("/True|False|true|false/"),
                _ => self.lines.terminal("/true|false/"),
            })),
            Form::Null => Ok(Some(match self.spelling {
                Spelling::Python => self.lines.terminal("/None|null/"),
                _ => literal("null"),
            })),
            Form::Constant(value) => Ok(self.constant(value)),
            Form::Array(schema) | Form::Object(schema) => {
                let object = matches!(form, Form::Object(_));
                let schema: &'a Map<String, Value> = schema;
                let key = (std::ptr::from_ref(schema) as usize, object, depth);
                if let Some(made) = self.made.get(&key) {
                    return Ok(made.clone());
                }
                if self.lines.text.len() > MAX_BYTES {
                    return Err(LARGE.into());
                }
                let inside = match object {
                    true => self.members(schema, depth, false)?,
                    false => self.items(schema, depth)?,
                };
                let (open, close) = if object { ("{", "}") } else { ("[", "]") };
                let made = inside.map(|inside| {
                    let body = joined(&[&literal(open), &inside, &literal(close)]);
                    self.lines.rule(&body)
                });
                self.made.insert(key, made.clone());
                Ok(made)
            }
        }
    }

    /// What keeps two values apart.
    fn comma(&mut self) -> String {
        match self.spelling {
            Spelling::Gemma => literal(","),
            _ => self.lines.terminal("/, ?/"),
        }
    }

    // Texts.

    fn text(&mut self, schema: &Map<String, Value>) -> Expression {
        let Some(asked) = Asked::of(schema)? else {
            return Ok(None);
        };
        if self.spelling == Spelling::Gemma {
            let mut terms = asked.plain();
            terms.push(Term::without(QUOTE));
            return Ok(match asked.excludes(&terms)? {
                true => None,
                false => Some(self.between_quotes(&terms)),
            });
        }
        // Where more is asked of a text, it has no escapes: only then is it as it is written.
        let mut terms = match asked.terms.is_empty() {
            true => vec![Term::is(format!("(?:{BARE}|{ESCAPED}){}", asked.length))],
            false => asked.plain(),
        };
        terms.extend((!asked.terms.is_empty()).then(|| Term::is(format!("{BARE}*"))));
        self.end_apart(&mut terms);
        if asked.excludes(&terms)? {
            return Ok(None);
        }
        let body = joined(&[r#""\"""#, &terminal_of(&terms), r#""\"""#]);
        Ok(Some(self.lines.terminal(&body)))
    }

    /// A text between the quotes of the format.
    fn between_quotes(&mut self, terms: &Terms) -> String {
        let inside = terminal_of(terms);
        match self.quote {
            Some(id) => {
                let inside = self.lines.terminal(&inside);
                format!("<[{id}]> {inside} <[{id}]>")
            }
            // One lexeme, which ends at the first quote.
            None => {
                let quote = literal(QUOTE);
                self.lines.terminal(&joined(&[&quote, &inside, &quote]))
            }
        }
    }

    /// Within JSON in XML nothing may look like the end of its element.
    fn end_apart(&self, terms: &mut Terms) {
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

    // Objects.

    /// The members of an object, or all arguments (`whole`), with what is between them.
    fn members(&mut self, schema: &'a Map<String, Value>, depth: usize, whole: bool) -> Expression {
        let known = schema::members(schema)?;
        let below = depth.saturating_add(1);
        let mut items = Vec::new();
        for (key, of, required) in known.named {
            let value = match (of, whole) {
                (None, _) => None,
                (Some(of), true) if self.spelling == Spelling::Xml => {
                    self.element(of, key, below)?
                }
                (Some(of), _) => self.value(of, below)?,
            };
            match value {
                Some(value) => items.push((joined(&[&self.key(key, whole)?, &value]), required)),
                None if required => return Ok(None),
                None => {}
            }
        }
        let comma = match (self.spelling, whole) {
            (Spelling::Xml, true) => String::new(),
            _ => self.comma(),
        };
        if let Some(of) = known.others {
            let value = match (self.spelling, whole) {
                // A key that no property has.
                (Spelling::Xml, true) => self.element(of, "", below)?,
                _ => self.value(of, below)?,
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

    /// A key that is known, with what is behind it.
    fn key(&mut self, key: &str, whole: bool) -> std::result::Result<String, String> {
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

    /// Any key, with what is behind it.
    fn any_key(&mut self, whole: bool) -> String {
        match (self.spelling, whole) {
            (Spelling::Xml, true) => self.lines.terminal(&format!(r"/<parameter={NAME}>\n/")),
            (Spelling::Python, true) => self.lines.terminal(&format!("/{NAME}=/")),
            (Spelling::Gemma, _) => {
                let bare = self.lines.terminal(&format!("/{NAME}:/"));
                let key = vec![Term::is("(?s:.{1,256})"), Term::without(QUOTE)];
                let quoted = self.between_quotes(&key);
                self.lines
                    .rule(&format!("{bare} | {quoted} {}", literal(":")))
            }
            _ => {
                let mut terms = vec![Term::is(format!(r#""(?:{BARE}|{ESCAPED}){{1,256}}": ?"#))];
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

    // Lists.

    /// The items of a list, with what is between them.
    fn items(&mut self, schema: &'a Map<String, Value>, depth: usize) -> Expression {
        let known = schema::items(schema)?;
        let below = depth.saturating_add(1);
        let comma = self.comma();
        let least = known.least;
        let mut most = known.most.map(|most| most.min(MOST_ITEMS));
        if least > MOST_ITEMS {
            return Err("minItems".into());
        }
        if known.first.len() > MOST_FIRST {
            return Err("prefixItems".into());
        }
        let mut first = Vec::new();
        for of in known.first {
            match self.value(of, below)? {
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
        let rest = match known.rest {
            Some(of) if most.is_none_or(|most| most > first.len() as u64) => {
                self.value(of, below)?
            }
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

    // Elements of XML.

    /// The text of a parameter, and its end. Its reader goes by the types of the schema.
    fn element(&mut self, schema: &'a Value, key: &str, depth: usize) -> Expression {
        let types = types_of(self.forms.root(), key);
        let mut scalars = Vec::new();
        let mut either = Vec::new();
        for form in self.forms.of(schema, depth)? {
            if !read_as(&form, types) {
                continue;
            }
            match &form {
                Form::Text(schema) => {
                    let Some(asked) = Asked::of(schema)? else {
                        continue;
                    };
                    let mut terms = asked.plain();
                    terms.push(Term::without_any(&VALUE_TAGS));
                    terms.extend(other(types));
                    if !asked.excludes(&terms)? {
                        scalars.push(terminal_of(&terms));
                    }
                }
                Form::Number(schema, integer) => {
                    let terms = bounds::number(schema, *integer)?;
                    scalars.extend(terms.map(|terms| terminal_of(&terms)));
                }
                // Templates write them as Python does.
                Form::Boolean if !types.string => scalars.push("/[Tt]rue|[Ff]alse/".into()),
                Form::Boolean => scalars.push("/true|false/".into()),
                Form::Null => scalars.push(literal("null")),
                Form::Constant(Value::String(text)) => {
                    let fits = !VALUE_TAGS.iter().any(|tag| text.contains(tag))
                        && typed(text, types).starts_with('"');
                    scalars.extend(fits.then(|| match text.is_empty() {
                        true => r#""""#.into(),
                        false => literal(text),
                    }));
                }
                Form::Constant(value) if !(value.is_object() || value.is_array()) => {
                    scalars.push(literal(&value.to_string()));
                }
                Form::Constant(_) | Form::Array(_) | Form::Object(_) => {
                    either.extend(self.form(&form, depth)?);
                }
            }
        }
        let end = literal(&format!("\n{VALUE_END}\n"));
        for value in &mut either {
            *value = joined(&[value, &end]);
        }
        if !scalars.is_empty() {
            // With their end one lexeme, as a text is known to have ended only there.
            let body = format!("({}) {end}", scalars.join(" | "));
            either.push(self.lines.terminal(&body));
        }
        Ok(self.lines.either(either))
    }
}

/// Whether what a form writes may be read as what it is.
fn read_as(form: &Form<'_>, types: Types) -> bool {
    types.any
        || match form {
            Form::Text(_) | Form::Constant(Value::String(_)) => types.string,
            Form::Number(..) | Form::Constant(Value::Number(_)) => types.number,
            Form::Boolean | Form::Constant(Value::Bool(_)) => types.boolean,
            Form::Null | Form::Constant(Value::Null) => types.null,
            Form::Array(_) | Form::Constant(Value::Array(_)) => types.array,
            Form::Object(_) | Form::Constant(Value::Object(_)) => types.object,
        }
}

/// What a text must not be, or it is read as something else.
fn other(types: Types) -> Terms {
    const SPACE: &str = r"[ \t\r\n]*";
    let Types { any, .. } = types;
    let mut terms = Terms::new();
    let mut not = |there: bool, pattern: &str| {
        if any || there {
            terms.push(Term::Not(format!("{SPACE}{pattern}")));
        }
    };
    not(types.boolean, &format!("([Tt]rue|[Ff]alse){SPACE}"));
    not(types.null, &format!("(null|None){SPACE}"));
    not(
        types.number,
        &format!(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?{SPACE}"),
    );
    not(types.object, r"\{(?s:.*)");
    not(types.array, r"\[(?s:.*)");
    terms
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
