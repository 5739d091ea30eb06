//! The keywords of one schema: types, enumerated values, counts, items and members.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::patterns::has;

/// Keywords that lead to further schemas of the same value.
pub(super) const LEADING: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];

/// Types, and the keywords that say more of a value of each.
pub(super) const TYPES: [(&str, &[&str]); 6] = [
    ("null", &[]),
    ("boolean", &[]),
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
    ("string", &["minLength", "maxLength", "pattern", "format"]),
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
            "patternProperties",
            "required",
            "additionalProperties",
            "minProperties",
            "maxProperties",
        ],
    ),
];

pub(super) type Schema = Map<String, Value>;

/// Schemas that one value has to fit, all of them.
pub(super) type All<'a> = Vec<&'a Value>;

/// The same without what leads to others.
pub(super) type Leaves<'a> = Vec<&'a Schema>;

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The types that a schema says a value may have.
pub(super) fn said_types(schema: &Schema) -> Result<Option<Vec<&str>>, String> {
    let names = match schema.get("type") {
        None => return Ok(None),
        Some(Value::String(name)) => vec![&name[..]],
        Some(Value::Array(names)) => {
            let names = names.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            names.ok_or("type")?
        }
        Some(_) => return Err("type".into()),
    };
    let known = |name: &&str| *name == "integer" || TYPES.iter().any(|(known, _)| known == name);
    match names.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("type {name:?}")),
        None => Ok(Some(names)),
    }
}

/// The types of values that fit all of these. An integer is a number.
pub(super) fn types_of(leaves: &[&Schema]) -> Result<Vec<&'static str>, String> {
    let mut found: Vec<&'static str> = TYPES.iter().map(|(name, _)| *name).collect();
    let mut integer = false;
    for schema in leaves {
        let Some(names) = said_types(schema)? else {
            continue;
        };
        let number = names.contains(&"number");
        let whole = names.contains(&"integer");
        integer |= whole && !number;
        found.retain(|name| names.contains(name) || (*name == "number" && whole));
    }
    for name in &mut found {
        if *name == "number" && integer {
            *name = "integer";
        }
    }
    Ok(found)
}

/// The values that a schema lists.
pub(super) fn listed(schema: &Schema) -> Result<Option<Vec<&Value>>, String> {
    Ok(match (schema.get("const"), schema.get("enum")) {
        (None, None) => None,
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.as_array().ok_or("enum")?.iter().collect()),
    })
}

/// The greatest of the least counts of these and the least of the greatest.
pub(super) fn counts(
    leaves: &[&Schema],
    least: &str,
    most: &str,
) -> Result<(u64, Option<u64>), String> {
    let mut found = (0, None::<u64>);
    for schema in leaves {
        if let Some(count) = count(schema, least)? {
            found.0 = count.max(found.0);
        }
        if let Some(count) = count(schema, most)? {
            found.1 = Some(found.1.map_or(count, |most| most.min(count)));
        }
    }
    Ok(found)
}

/// A keyword that counts, which may be written as a fraction: `2.0`.
pub(super) fn count(schema: &Schema, keyword: &str) -> Result<Option<u64>, String> {
    let whole = |value: &Value| match (value.as_u64(), value.as_f64()) {
        (Some(count), _) => Some(count),
        (None, Some(count)) if count.fract() == 0.0 && (0.0..1e15).contains(&count) => {
            Some(count as u64)
        }
        _ => None,
    };
    let count = schema.get(keyword);
    count
        .map(|count| whole(count).ok_or(keyword.to_owned()))
        .transpose()
}

/// Schemas of the first items, and of all further ones.
pub(super) type Items<'a> = (Vec<&'a Value>, Option<&'a Value>);

/// The items of a list by one schema. Older drafts call the first "items" and what follows
/// "additionalItems".
pub(super) fn items(schema: &Schema) -> Result<Items<'_>, String> {
    let (first, rest) = match (schema.get("prefixItems"), schema.get("items")) {
        (None, Some(Value::Array(first))) => (Some(first), schema.get("additionalItems")),
        (None, rest) => (None, rest),
        (Some(first), rest) => (Some(first.as_array().ok_or("prefixItems")?), rest),
    };
    Ok((
        first.map_or_else(Vec::new, |first| first.iter().collect()),
        rest,
    ))
}

/// What one schema says of the members of an object.
pub(super) struct Members<'a> {
    pub properties: &'a Schema,
    pub patterns: &'a Schema,
    pub required: Vec<&'a str>,
    pub others: Option<&'a Value>,
}

static NONE: LazyLock<Schema> = LazyLock::new(Map::new);

/// The members of an object by one schema.
pub(super) fn members(schema: &Schema) -> Result<Members<'_>, String> {
    let map = |keyword: &str| match schema.get(keyword) {
        None => Ok(&*NONE),
        Some(map) => map.as_object().ok_or(keyword.to_owned()),
    };
    let required = match schema.get("required") {
        None => Vec::new(),
        Some(Value::Array(keys)) => {
            let keys = keys.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
            keys.ok_or("required")?
        }
        Some(_) => return Err("required".into()),
    };
    Ok(Members {
        properties: map("properties")?,
        patterns: map("patternProperties")?,
        required,
        others: schema.get("additionalProperties"),
    })
}

impl<'a> Members<'a> {
    /// The schemas of a member of this name.
    pub fn of(&self, name: &str) -> Result<All<'a>, String> {
        let mut found: All<'a> = self.properties.get(name).into_iter().collect();
        for (pattern, schema) in self.patterns {
            if has(pattern, name)? {
                found.push(schema);
            }
        }
        if found.is_empty() {
            found.extend(self.others);
        }
        Ok(found)
    }

    /// The schemas of a member without a name of its own, by the patterns that are found in it.
    pub fn matched(&self, patterns: &[&str]) -> All<'a> {
        let hit = self
            .patterns
            .iter()
            .filter(|(p, _)| patterns.contains(&&p[..]));
        let mut found: All<'a> = hit.map(|(_, schema)| schema).collect();
        if found.is_empty() {
            found.extend(self.others);
        }
        found
    }
}
