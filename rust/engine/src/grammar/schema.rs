//! JSON schemas taken apart: the values that one allows are of one of some forms.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

/// Why a schema is refused whose rules are too many.
pub(super) const LARGE: &str = "something as large as this";

/// References that lead to one another.
const CHAIN: usize = 32;

/// Schemas that may be looked at, each as often as it is used.
const MOST: usize = 50_000;

/// Keywords that say nothing of what a value is.
const NOTES: [&str; 15] = [
    "$comment",
    "$defs",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords that stand for themselves: those beside them would be held too.
const ALONE: [&str; 4] = ["$ref", "anyOf", "oneOf", "allOf"];

/// Types, and the keywords that say more of a value of each.
const TYPES: [(&str, &[&str]); 7] = [
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("integer", &[]),
    (
        "number",
        &[
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ],
    ),
    ("boolean", &[]),
    ("null", &[]),
    (
        "array",
        &[
            "items",
            "prefixItems",
            "additionalItems",
            "minItems",
            "maxItems",
            "uniqueItems",
        ],
    ),
    (
        "object",
        &[
            "properties",
            "required",
            "additionalProperties",
            "minProperties",
            "maxProperties",
        ],
    ),
];

type Schema = Map<String, Value>;

static ANYTHING: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
static ANY: LazyLock<Schema> = LazyLock::new(Map::new);

/// Values of one kind. The schema has the keywords of others too.
pub(super) enum Form<'a> {
    Text(&'a Schema),
    /// Whether it is an integer.
    Number(&'a Schema, bool),
    Boolean,
    Null,
    Constant(&'a Value),
    Array(&'a Schema),
    Object(&'a Schema),
}

/// The forms of the schemas within one.
pub(super) struct Forms<'a> {
    root: &'a Value,
    /// How deep a value goes, in schemas one within another: recursion ends there.
    deepest: usize,
    left: usize,
}

impl<'a> Forms<'a> {
    pub fn new(root: &'a Value, deepest: usize) -> Self {
        let left = MOST;
        Self {
            root,
            deepest,
            left,
        }
    }

    pub fn root(&self) -> &'a Value {
        self.root
    }

    /// The forms of the values that a schema allows, that many deep in others.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn of(&mut self, schema: &'a Value, depth: usize) -> Result<Vec<Form<'a>>, String> {
        let mut found = Vec::new();
        self.add(schema, depth, &mut found)?;
        Ok(found)
    }

    fn add(
        &mut self,
        schema: &'a Value,
        depth: usize,
        found: &mut Vec<Form<'a>>,
    ) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or(LARGE)?;
        if depth > self.deepest {
            return Ok(());
        }
        let schema = match schema {
            Value::Bool(false) => return Ok(()),
            Value::Bool(true) => &*ANY,
            Value::Object(schema) => schema,
            other => return Err(format!("{other}")),
        };
        for keyword in schema.keys().map(String::as_str) {
            let known = matches!(keyword, "type" | "enum" | "const")
                || is_note(keyword)
                || (keyword == "$id" && depth == 0)
                || ALONE.contains(&keyword)
                || TYPES
                    .iter()
                    .any(|(_, keywords)| keywords.contains(&keyword));
            if !known {
                return Err(keyword.into());
            }
        }
        let below = depth.saturating_add(1);
        if let Some(keyword) = ALONE.iter().find(|keyword| schema.contains_key(**keyword)) {
            let beside = |other: &&String| !(other == keyword || is_note(other) || *other == "$id");
            if let Some(other) = schema.keys().find(beside) {
                return Err(format!("{other} beside {keyword}"));
            }
            for each in self.under(schema, keyword)? {
                self.add(each, below, found)?;
            }
            return Ok(());
        }
        let types = types_of(schema)?;
        match constants(schema)? {
            Some(values) => {
                let kind = |value: &Value| types.iter().any(|name| is_of(value, name));
                found.extend(values.into_iter().filter(|v| kind(v)).map(Form::Constant));
            }
            None => found.extend(types.into_iter().map(|name| match name {
                "string" => Form::Text(schema),
                "integer" => Form::Number(schema, true),
                "number" => Form::Number(schema, false),
                "boolean" => Form::Boolean,
                "null" => Form::Null,
                "array" => Form::Array(schema),
                _ => Form::Object(schema),
            })),
        }
        Ok(())
    }

    /// The schemas of which a value has to fit one.
    fn under(&self, schema: &'a Schema, keyword: &str) -> Result<Vec<&'a Value>, String> {
        let value = schema.get(keyword).ok_or(keyword)?;
        if keyword == "$ref" {
            return Ok(vec![self.target(value).ok_or(format!("$ref {value}"))?]);
        }
        let each: Vec<&Value> = value.as_array().ok_or(keyword)?.iter().collect();
        match keyword {
            "allOf" if each.len() != 1 => Err("allOf of several".into()),
            "oneOf" if !self.are_apart(&each) => Err("oneOf".into()),
            _ => Ok(each),
        }
    }

    fn target(&self, reference: &Value) -> Option<&'a Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }

    /// The schema that a chain of references ends at.
    fn resolved(&self, mut schema: &'a Value) -> Option<&'a Schema> {
        for _ in 0..CHAIN {
            match schema.get("$ref") {
                Some(reference) => schema = self.target(reference)?,
                None => return schema.as_object(),
            }
        }
        None
    }

    /// Whether it is certain that no value fits two of these: they differ in type, or ask for
    /// different texts in one property.
    fn are_apart(&self, each: &[&'a Value]) -> bool {
        let Some(each) = each
            .iter()
            .map(|s| self.resolved(s))
            .collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let mut taken = HashSet::new();
        let typed = each.iter().all(|schema| {
            let names = match (
                ALONE.iter().any(|k| schema.contains_key(*k)),
                types_of(schema),
            ) {
                (false, Ok(names)) if schema.contains_key("type") => names,
                _ => return false,
            };
            // An integer is a number.
            let names = names
                .into_iter()
                .map(|name| name.replace("integer", "number"));
            let names: HashSet<String> = names.collect();
            names.into_iter().all(|name| taken.insert(name))
        });
        let first = each
            .first()
            .and_then(|schema| schema.get("properties")?.as_object());
        typed
            || first
                .is_some_and(|properties| properties.keys().any(|key| self.differ_in(&each, key)))
    }

    fn differ_in(&self, each: &[&'a Schema], key: &str) -> bool {
        let mut taken = HashSet::new();
        each.iter().all(|schema| {
            let required = schema.get("required").and_then(Value::as_array);
            let required = required.is_some_and(|keys| keys.iter().any(|k| k == key));
            let object = schema.get("type").is_some_and(|name| name == "object");
            let value = schema
                .get("properties")
                .and_then(|properties| properties.get(key));
            let value = value.and_then(|value| self.resolved(value));
            let Some(Ok(Some(values))) = value.map(constants) else {
                return false;
            };
            let mut texts = values.into_iter().map(Value::as_str);
            required && object && texts.all(|text| text.is_some_and(|text| taken.insert(text)))
        })
    }
}

fn is_note(keyword: &str) -> bool {
    NOTES.contains(&keyword) || keyword.starts_with("x-")
}

/// The types that a value may have: where a schema does not say, those that it says more of.
fn types_of(schema: &Schema) -> Result<Vec<&str>, String> {
    let names: Vec<&str> = match schema.get("type") {
        None => {
            let says = |keywords: &[&str]| keywords.iter().any(|k| schema.contains_key(*k));
            let said = TYPES.iter().filter(|(_, keywords)| says(keywords));
            let mut names: Vec<&str> = said.map(|(name, _)| *name).collect();
            if names.is_empty() {
                // An integer is a number.
                names = TYPES
                    .iter()
                    .map(|(name, _)| *name)
                    .filter(|n| *n != "integer")
                    .collect();
            }
            names
        }
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => {
            let names = names.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            names.ok_or("type")?
        }
        Some(_) => return Err("type".into()),
    };
    match names
        .iter()
        .find(|name| !TYPES.iter().any(|(known, _)| known == *name))
    {
        Some(name) => Err(format!("type {name:?}")),
        None => Ok(names),
    }
}

/// The values that a schema lists.
fn constants(schema: &Schema) -> Result<Option<Vec<&Value>>, String> {
    let found = match (schema.get("const"), schema.get("enum")) {
        (None, None) => return Ok(None),
        (Some(value), None) => vec![value],
        (None, Some(values)) => values.as_array().ok_or("enum")?.iter().collect(),
        (Some(_), Some(_)) => return Err("enum beside const".into()),
    };
    let own = |k: &&String| !(matches!(k.as_str(), "const" | "enum" | "type") || is_note(k));
    match schema.keys().find(own) {
        Some(other) => Err(format!("{other} beside enum or const")),
        None => Ok(Some(found)),
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match value {
        Value::String(_) => name == "string",
        Value::Number(number) => {
            let whole = number.as_f64().is_some_and(|value| value.fract() == 0.0);
            name == "number" || (name == "integer" && whole)
        }
        Value::Bool(_) => name == "boolean",
        Value::Null => name == "null",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// What an object has.
pub(super) struct Members<'a> {
    /// Name, schema and whether it has to be there; no schema where nothing fits.
    pub named: Vec<(&'a str, Option<&'a Value>, bool)>,
    /// The schema of all members where none has a name.
    pub others: Option<&'a Value>,
}

/// The members of an object. Others than those that are named are never written.
///
/// # Errors
/// What cannot be held.
pub(super) fn members(schema: &Schema) -> Result<Members<'_>, String> {
    let empty = &*ANY;
    let (given, properties) = match schema.get("properties") {
        None => (false, empty),
        Some(properties) => (true, properties.as_object().ok_or("properties")?),
    };
    let required: Vec<&str> = match schema.get("required") {
        None => Vec::new(),
        Some(Value::Array(keys)) => {
            let keys = keys.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            keys.ok_or("required")?
        }
        Some(_) => return Err("required".into()),
    };
    let others = match schema.get("additionalProperties") {
        None => Some(&*ANYTHING),
        Some(Value::Bool(false)) => None,
        Some(others) => Some(others),
    };
    let needed: HashSet<&str> = required.iter().copied().collect();
    let mut named: Vec<(&str, Option<&Value>, bool)> = Vec::new();
    for (key, of) in properties {
        named.push((key, Some(of), needed.contains(key.as_str())));
    }
    let mut more = HashSet::new();
    for key in required {
        if !properties.contains_key(key) && more.insert(key) {
            named.push((key, others, true));
        }
    }
    let free = named.is_empty() && !given;
    let (least, most) = (
        count(schema, "minProperties")?,
        count(schema, "maxProperties")?,
    );
    if least.is_some_and(|least| least > needed.len() as u64) {
        return Err("minProperties".into());
    }
    if most.is_some_and(|most| free || most < named.len() as u64) {
        return Err("maxProperties".into());
    }
    Ok(Members {
        named,
        others: others.filter(|_| free),
    })
}

/// What a list has.
pub(super) struct Items<'a> {
    /// The schemas of the first items.
    pub first: Vec<&'a Value>,
    /// That of all further ones; `None` where there are none.
    pub rest: Option<&'a Value>,
    pub least: u64,
    pub most: Option<u64>,
}

/// The items of a list.
///
/// # Errors
/// What cannot be held.
pub(super) fn items(schema: &Schema) -> Result<Items<'_>, String> {
    let least = count(schema, "minItems")?.unwrap_or(0);
    let most = count(schema, "maxItems")?;
    let unique = match schema.get("uniqueItems") {
        None | Some(Value::Bool(false)) => false,
        Some(_) => true,
    };
    if unique && most.is_none_or(|most| most > 1) {
        return Err("uniqueItems".into());
    }
    // Older drafts call them "items" and what follows "additionalItems".
    let (first, rest) = match (schema.get("prefixItems"), schema.get("items")) {
        (None, Some(Value::Array(first))) => (Some(first), schema.get("additionalItems")),
        (None, rest) => (None, rest),
        (Some(first), rest) => (Some(first.as_array().ok_or("prefixItems")?), rest),
    };
    let first: Vec<&Value> = first.map_or_else(Vec::new, |first| first.iter().collect());
    // What no schema speaks of is not written, unless it has to be.
    let closed = rest.is_none() && !first.is_empty() && least <= first.len() as u64;
    Ok(Items {
        first,
        rest: Some(rest.unwrap_or(&ANYTHING)).filter(|_| !closed),
        least,
        most,
    })
}

/// A keyword that counts.
fn count(schema: &Schema, keyword: &str) -> Result<Option<u64>, String> {
    let count = schema.get(keyword);
    count
        .map(|count| count.as_u64().ok_or(keyword.to_owned()))
        .transpose()
}
