//! The alternatives of a value under several schemas: references and `allOf` are followed, and `anyOf` is
//! a choice. Chains of references are limited.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::Value;

use super::keywords::{kind_of, Leaves, Schema, TYPES};
use super::references::{decoded, resolved};

/// Why a schema is refused whose rules are too many.
pub(super) const LARGE: &str = "something as large as this";

/// Steps from a schema to what it stands for, by references, `allOf` and the like.
pub(super) const LINKS: usize = 400;

/// Schemas that are looked at, each as often as it is used.
const MOST: usize = 400_000;

/// Keywords that say nothing of what a value is.
const NOTES: [&str; 19] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// The schemas below one, and the work that may still be done with them.
pub(super) struct Schemas<'a> {
    /// By what refers to them as a whole.
    documents: HashMap<String, &'a Value>,
    /// Of schemas that refer to others, what their references begin at, where that is not the root.
    bases: HashMap<usize, Rc<str>>,
    left: usize,
}

/// What one value has to fit, on the way to being without what leads to others.
#[derive(Clone, Default)]
struct Partial<'a> {
    /// Schemas, and of each the one that led to it.
    due: Vec<(&'a Value, Option<usize>)>,
    /// The schemas that led to others, each with the one before it.
    trail: Vec<(usize, Option<usize>)>,
    leaves: Leaves<'a>,
    seen: HashSet<usize>,
    /// Of each, one has to fit.
    choices: Vec<(&'a Vec<Value>, Option<usize>, bool)>,
}

pub(super) fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

impl<'a> Schemas<'a> {
    /// Of a schema and what it leads to.
    pub fn new(root: &'a Value) -> Self {
        let mut schemas = Self {
            documents: HashMap::new(),
            bases: HashMap::new(),
            left: MOST,
        };
        schemas.find_documents(root);
        schemas
    }

    /// Counts work that is done.
    pub fn spend(&mut self, work: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(work).ok_or(LARGE)?;
        Ok(())
    }

    /// Finds schemas by the names that they give themselves: `$id`, which is the base of what is within,
    /// and `$anchor`.
    fn find_documents(&mut self, root: &'a Value) {
        let mut due: Vec<(&'a Value, Rc<str>)> = vec![(root, "".into())];
        self.documents.insert(String::new(), root);
        while let Some((value, mut base)) = due.pop() {
            match value {
                Value::Array(each) => due.extend(each.iter().map(|each| (each, base.clone()))),
                Value::Object(each) => {
                    let text = |keyword: &str| each.get(keyword).and_then(Value::as_str);
                    if let Some(id) = text("$id") {
                        base = resolved(&base, id.trim_end_matches('#')).into();
                        self.documents.entry(base.to_string()).or_insert(value);
                    }
                    if let Some(name) = text("$anchor") {
                        self.documents
                            .entry(format!("{base}#{name}"))
                            .or_insert(value);
                    }
                    if each.contains_key("$ref") && !base.is_empty() {
                        self.bases.insert(address(each), base.clone());
                    }
                    let within =
                        |key: &str| !matches!(key, "const" | "enum" | "default" | "examples");
                    let within = each.iter().filter(|(key, _)| within(key));
                    due.extend(within.map(|(_, value)| (value, base.clone())));
                }
                _ => {}
            }
        }
    }

    /// Each of what a value may be that fits all of these: schemas that lead to no others. Of `oneOf`
    /// it is any, where `are_apart` says so of its schemas and what is said beside them.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn alternatives(
        &mut self,
        all: &[&'a Value],
        are_apart: impl Fn(&mut Self, &'a [Value], &Leaves<'a>) -> Result<bool, String>,
    ) -> Result<Vec<Leaves<'a>>, String> {
        let due = all.iter().rev().map(|each| (*each, None)).collect();
        let mut open = vec![Partial {
            due,
            ..Partial::default()
        }];
        let mut found = Vec::new();
        'next: while let Some(mut partial) = open.pop() {
            while let Some((value, from)) = partial.due.pop() {
                self.spend(1)?;
                if !self.take(value, from, &mut partial)? {
                    continue 'next;
                }
            }
            let Some((each, from, one)) = partial.choices.pop() else {
                found.push(partial.leaves);
                continue;
            };
            if one && !are_apart(self, each, &partial.leaves)? {
                return Err("oneOf with alternatives that can match together".into());
            }
            for value in each.iter().rev() {
                let mut next = partial.clone();
                next.due.push((value, from));
                open.push(next);
            }
            self.spend(
                each.len()
                    .saturating_mul(partial.leaves.len().saturating_add(1)),
            )?;
        }
        Ok(found)
    }

    /// Takes a schema to the others; says whether anything fits it.
    fn take(
        &mut self,
        value: &'a Value,
        from: Option<usize>,
        partial: &mut Partial<'a>,
    ) -> Result<bool, String> {
        let schema = match value {
            Value::Bool(fits) => return Ok(*fits),
            Value::Object(schema) => schema,
            other => return Err(format!("a schema that is {}", kind_of(other))),
        };
        let here = address(schema);
        let (mut links, mut at) = (0usize, from);
        while let Some((before, further)) = at.and_then(|at| partial.trail.get(at)) {
            // What leads to itself allows nothing by that.
            if *before == here {
                return Ok(false);
            }
            links = links.saturating_add(1);
            at = *further;
        }
        self.spend(links)?;
        if links > LINKS {
            return Err(format!(
                "a chain of more than {LINKS} references and \"allOf\"s, one leading to the next,"
            ));
        }
        if !partial.seen.insert(here) {
            return Ok(true);
        }
        let links = Some(partial.trail.len());
        partial.trail.push((here, from));
        let mut leaf = false;
        for (keyword, value) in schema {
            match &keyword[..] {
                "$ref" => partial.due.push((self.target(schema)?, links)),
                "allOf" => {
                    let each = value.as_array().ok_or("allOf")?;
                    partial
                        .due
                        .extend(each.iter().rev().map(|each| (each, links)));
                }
                "anyOf" | "oneOf" => {
                    let each = value.as_array().ok_or(keyword.as_str())?;
                    partial.choices.push((each, links, keyword == "oneOf"));
                }
                "type" | "enum" | "const" => leaf = true,
                other if is_note(other) => {}
                other if TYPES.iter().any(|(_, known)| known.contains(&other)) => leaf = true,
                other => return Err(other.into()),
            }
        }
        if leaf {
            partial.leaves.push(schema);
        }
        Ok(true)
    }

    /// The schema that the reference of one leads to.
    pub fn target(&self, schema: &Schema) -> Result<&'a Value, String> {
        let reference = schema.get("$ref").unwrap_or(&Value::Null);
        let wrong = || format!("$ref {reference}");
        let text = reference.as_str().ok_or_else(wrong)?;
        let base = self.bases.get(&address(schema));
        let full = resolved(base.map_or("", |base| base), text);
        if let Some(found) = self.documents.get(&full) {
            return Ok(found);
        }
        let (document, pointer) = full.split_once('#').ok_or_else(wrong)?;
        let pointer = decoded(pointer).ok_or_else(wrong)?;
        let document = self.documents.get(document).ok_or_else(wrong)?;
        document.pointer(&pointer).ok_or_else(wrong)
    }
}

fn is_note(keyword: &str) -> bool {
    NOTES.contains(&keyword) || (keyword.starts_with("x-") && keyword != "x-guidance")
}
