//! Decides whether a value matches a schema, for constants combined with other keywords; and whether two
//! schemas are certain to share no value.

use std::cmp::Ordering;

use serde_json::Value;

use super::alternatives::{Schemas, LARGE, LINKS};
use super::bounds::{self, Decimal};
use super::keywords::{count, counts, items, kind_of, listed, members, said_types, types_of};
use super::keywords::{Leaves, Schema, LEADING};
use super::patterns::has;
use super::texts::Asked;

/// How deep values are looked at to tell schemas apart.
const DEEP: usize = 4;

/// Whether two values are the same: `1` and `1.0` are.
fn are_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            Decimal::of(one).compare(&Decimal::of(other)) == Ordering::Equal
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| are_same(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(key, a): (&String, &Value)| other.get(key).is_some_and(|b| are_same(a, b));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    match value {
        Value::String(_) => name == "string",
        Value::Number(number) => {
            name == "number" || (name == "integer" && Decimal::of(number).is_whole())
        }
        Value::Bool(_) => name == "boolean",
        Value::Null => name == "null",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// Whether a value fits a schema and all that it leads to.
fn fits(
    schemas: &mut Schemas<'_>,
    value: &Value,
    schema: &Value,
    deep: usize,
) -> Result<bool, String> {
    let below = deep
        .checked_add(1)
        .filter(|deep| *deep < LINKS)
        .ok_or(LARGE)?;
    schemas.spend(1)?;
    let schema = match schema {
        Value::Bool(fits) => return Ok(*fits),
        Value::Object(schema) => schema,
        other => return Err(format!("a schema that is {}", kind_of(other))),
    };
    for keyword in LEADING {
        let Some(given) = schema.get(keyword) else {
            continue;
        };
        if keyword == "$ref" {
            let target = schemas.target(schema)?;
            if !fits(schemas, value, target, below)? {
                return Ok(false);
            }
            continue;
        }
        let each = given.as_array().ok_or(keyword)?;
        let mut fitting = 0usize;
        for one in each {
            let fits = fits(schemas, value, one, below)?;
            fitting = fitting.saturating_add(usize::from(fits));
        }
        let right = match keyword {
            "allOf" => fitting == each.len(),
            "oneOf" => fitting == 1,
            _ => fitting > 0,
        };
        if !right {
            return Ok(false);
        }
    }
    Ok(is_listed(schemas, value, schema)? && fits_leaf(schemas, value, schema, below)?)
}

/// Whether a value fits what these say themselves.
pub(super) fn fits_leaves(
    schemas: &mut Schemas<'_>,
    value: &Value,
    leaves: &[&Schema],
) -> Result<bool, String> {
    for schema in leaves {
        if !(is_listed(schemas, value, schema)? && fits_leaf(schemas, value, schema, 0)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same of a value that one of them lists.
pub(super) fn is_one_of(
    schemas: &mut Schemas<'_>,
    value: &Value,
    own: &Schema,
    beside: &[&Schema],
) -> Result<bool, String> {
    let both = own.contains_key("const") && own.contains_key("enum");
    Ok((!both || is_listed(schemas, value, own)?)
        && fits_leaf(schemas, value, own, 0)?
        && fits_leaves(schemas, value, beside)?)
}

/// Whether a value is among those that a schema lists, where it lists some.
fn is_listed(schemas: &mut Schemas<'_>, value: &Value, schema: &Schema) -> Result<bool, String> {
    if schema.get("const").is_some_and(|one| !are_same(one, value)) {
        return Ok(false);
    }
    let Some(values) = schema.get("enum") else {
        return Ok(true);
    };
    let values = values.as_array().ok_or("enum")?;
    schemas.spend(values.len())?;
    Ok(values.iter().any(|one| are_same(one, value)))
}

/// Whether it is of a type and what is said of that.
fn fits_leaf(
    schemas: &mut Schemas<'_>,
    value: &Value,
    schema: &Schema,
    deep: usize,
) -> Result<bool, String> {
    if said_types(schema)?.is_some_and(|names| !names.iter().any(|name| is_of(value, name))) {
        return Ok(false);
    }
    let within = |found: usize, least: &str, most: &str| {
        let (least, most) = (count(schema, least)?, count(schema, most)?);
        let found = found as u64;
        Ok::<bool, String>(
            least.is_none_or(|least| found >= least) && most.is_none_or(|most| found <= most),
        )
    };
    match value {
        Value::Number(number) => bounds::fits(number, schema),
        Value::String(text) => {
            if let Some(pattern) = schema.get("pattern") {
                if !has(pattern.as_str().ok_or("pattern")?, text)? {
                    return Ok(false);
                }
            }
            within(text.chars().count(), "minLength", "maxLength")
        }
        Value::Array(each) => {
            let (first, rest) = items(schema)?;
            for (i, item) in each.iter().enumerate() {
                if let Some(schema) = first.get(i).copied().or(rest) {
                    if !fits(schemas, item, schema, deep)? {
                        return Ok(false);
                    }
                }
            }
            if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
                schemas.spend(each.len().saturating_mul(each.len()))?;
                let again = |(i, one): (usize, &Value)| {
                    each.iter()
                        .skip(i.saturating_add(1))
                        .any(|other| are_same(one, other))
                };
                if each.iter().enumerate().any(again) {
                    return Ok(false);
                }
            }
            within(each.len(), "minItems", "maxItems")
        }
        Value::Object(each) => {
            let parts = members(schema)?;
            if !parts.required.iter().all(|name| each.contains_key(*name)) {
                return Ok(false);
            }
            for (name, member) in each {
                for schema in parts.of(name)? {
                    if !fits(schemas, member, schema, deep)? {
                        return Ok(false);
                    }
                }
            }
            within(each.len(), "minProperties", "maxProperties")
        }
        Value::Null | Value::Bool(_) => Ok(true),
    }
}

/// Whether it is certain that no value fits two of these and what is said beside them.
pub(super) fn are_apart<'a>(
    schemas: &mut Schemas<'a>,
    each: &'a [Value],
    beside: &Leaves<'a>,
) -> Result<bool, String> {
    let mut ways = Vec::new();
    for one in each {
        ways.push(any_of(schemas, &[one])?);
    }
    for (i, ones) in ways.iter().enumerate() {
        for others in ways.iter().skip(i.saturating_add(1)) {
            for one in ones {
                for other in others {
                    let all = [&one[..], &other[..], &beside[..]].concat();
                    if !is_nothing(schemas, &all, DEEP)? {
                        return Ok(false);
                    }
                }
            }
        }
    }
    Ok(true)
}

/// Whether it is certain that no value fits all of these, that many deep at most.
fn is_nothing<'a>(
    schemas: &mut Schemas<'a>,
    leaves: &Leaves<'a>,
    deep: usize,
) -> Result<bool, String> {
    schemas.spend(4)?;
    for schema in leaves {
        if let Some(values) = listed(schema)? {
            for value in values {
                if fits_leaves(schemas, value, leaves)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
    }
    let Some(below) = deep.checked_sub(1) else {
        return Ok(false);
    };
    for name in types_of(leaves)? {
        let nothing = match name {
            "integer" | "number" => bounds::is_nothing(leaves, name == "integer")?,
            "string" => Asked::of(leaves, false)?.is_none_or(|asked| asked.is_nothing()),
            "array" => {
                let (least, most) = counts(leaves, "minItems", "maxItems")?;
                let mut nothing = most.is_some_and(|most| most < least);
                let parts = leaves
                    .iter()
                    .map(|s| items(s))
                    .collect::<Result<Vec<_>, _>>()?;
                for i in 0..usize::try_from(least).unwrap_or(0).min(DEEP) {
                    let each = parts
                        .iter()
                        .filter_map(|(f, rest)| f.get(i).copied().or(*rest));
                    nothing = nothing || fits_none(schemas, &each.collect::<Vec<_>>(), below)?;
                }
                nothing
            }
            "object" => {
                let (least, most) = counts(leaves, "minProperties", "maxProperties")?;
                let mut nothing = most.is_some_and(|most| most < least);
                let parts = leaves
                    .iter()
                    .map(|s| members(s))
                    .collect::<Result<Vec<_>, _>>()?;
                for name in parts.iter().flat_map(|part| &part.required) {
                    let each = parts.iter().map(|part| part.of(name));
                    let each = each.collect::<Result<Vec<_>, _>>()?.concat();
                    nothing = nothing || fits_none(schemas, &each, below)?;
                }
                nothing
            }
            _ => false,
        };
        if !nothing {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same of schemas with all that they lead to.
fn fits_none<'a>(
    schemas: &mut Schemas<'a>,
    all: &[&'a Value],
    deep: usize,
) -> Result<bool, String> {
    for leaves in any_of(schemas, all)? {
        if !is_nothing(schemas, &leaves, deep)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Each of what a value may be that fits all of these, and of `oneOf` any.
fn any_of<'a>(schemas: &mut Schemas<'a>, all: &[&'a Value]) -> Result<Vec<Leaves<'a>>, String> {
    schemas.alternatives(all, |_, _, _| Ok(true))
}
