//! JSON schemas taken apart: what a schema allows is a node of a graph, and a node the shapes of its
//! values. What schemas say of one value together (`allOf`, what a reference leads to, keywords beside
//! them) is merged, and what is one of several (`anyOf`) is a shape each. Nothing here recurses: a chain
//! of references is counted, and a schema that leads to itself is a node that has itself below.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::judge;
use super::lark::{nothing_is, Term, Terms};
use super::references::{decoded, resolved};
use super::texts::found;

/// Why a schema is refused whose rules are too many.
pub(super) const LARGE: &str = "something as large as this";

/// Steps from a schema to what it stands for, by references, `allOf` and the like.
pub(super) const LINKS: usize = 400;

/// Schemas that are looked at, each as often as it is used.
const MOST: usize = 400_000;

/// Kinds of names that patterns of an object tell apart.
const MOST_KINDS: usize = 64;

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

/// Values of one kind.
pub(super) enum Shape<'a> {
    Text(Leaves<'a>),
    /// Whether it is an integer.
    Number(Leaves<'a>, bool),
    Boolean,
    Null,
    Constant(&'a Value),
    List(List),
    Object(Object<'a>),
}

/// What a list has.
pub(super) struct List {
    /// Nodes of the first items.
    pub first: Vec<usize>,
    /// That of all further ones; `None` where there are none.
    pub rest: Option<usize>,
    pub least: u64,
    pub most: Option<u64>,
}

/// What an object has.
pub(super) struct Object<'a> {
    /// Name, node and whether it has to be there.
    pub named: Vec<(&'a str, usize, bool)>,
    /// Members of other names by what patterns say of the names, where there are patterns.
    pub kinds: Vec<(Terms, usize)>,
    /// All further members.
    pub others: Option<usize>,
    pub least: u64,
    pub most: Option<u64>,
}

/// How a graph is made.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// How deep a value goes, in schemas one within another; where that is bounded recursion ends there.
    pub deepest: Option<usize>,
    /// Whether objects that name properties have no others, and lists no more than they name.
    pub closed: bool,
    /// Whether that is so of the outermost object, where its schema does not open it.
    pub closed_outside: bool,
}

/// The values that a schema and those within it allow.
pub(super) struct Graph<'a> {
    root: &'a Value,
    manner: Manner,
    /// The shapes of each node's values. The first is the whole.
    pub nodes: Vec<Vec<Shape<'a>>>,
    known: HashMap<(Vec<usize>, usize), usize>,
    /// What is still to be looked at: the schemas of a node and how deep it is.
    due: Vec<(usize, All<'a>, usize)>,
    /// Schemas by what refers to them as a whole.
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

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of) as usize
}

impl<'a> Graph<'a> {
    /// Of a schema and what it leads to.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn new(root: &'a Value, manner: Manner) -> Result<Self, String> {
        let mut graph = Self {
            root,
            manner,
            nodes: Vec::new(),
            known: HashMap::new(),
            due: Vec::new(),
            documents: HashMap::new(),
            bases: HashMap::new(),
            left: MOST,
        };
        graph.find_documents();
        graph.node(vec![root], 0);
        while let Some((node, all, depth)) = graph.due.pop() {
            let shapes = graph.shapes(all, depth)?;
            if let Some(place) = graph.nodes.get_mut(node) {
                *place = shapes;
            }
        }
        Ok(graph)
    }

    /// Counts work that is done.
    pub fn spend(&mut self, work: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(work).ok_or(LARGE)?;
        Ok(())
    }

    /// Finds schemas by the names that they give themselves: `$id`, which is the base of what is within,
    /// and `$anchor`.
    fn find_documents(&mut self) {
        let mut due: Vec<(&'a Value, Rc<str>)> = vec![(self.root, "".into())];
        self.documents.insert(String::new(), self.root);
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

    /// The node of what has to fit all of these schemas, that many deep in others.
    fn node(&mut self, all: All<'a>, depth: usize) -> usize {
        let mut key: Vec<usize> = all.iter().map(|each| address(*each)).collect();
        key.sort_unstable();
        key.dedup();
        let known = (key, self.manner.deepest.map_or(0, |_| depth));
        if let Some(node) = self.known.get(&known) {
            return *node;
        }
        let node = self.nodes.len();
        self.known.insert(known, node);
        self.nodes.push(Vec::new());
        self.due.push((node, all, depth));
        node
    }

    fn shapes(&mut self, all: All<'a>, depth: usize) -> Result<Vec<Shape<'a>>, String> {
        if self.manner.deepest.is_some_and(|deepest| depth > deepest) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for leaves in self.alternatives(&all, true)? {
            self.add(leaves, depth, &mut found)?;
        }
        Ok(found)
    }

    /// Each of what a value may be that fits all of these: schemas that lead to no others. Of `oneOf`
    /// it is any, or, where that has to be `exact`, its schemas have to be apart.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn alternatives(
        &mut self,
        all: &[&'a Value],
        exact: bool,
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
            if exact && one && !judge::are_apart(self, each, &partial.leaves)? {
                return Err("oneOf where more than one may fit".into());
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

    /// The shapes of values that fit all of these.
    fn add(
        &mut self,
        leaves: Leaves<'a>,
        depth: usize,
        found: &mut Vec<Shape<'a>>,
    ) -> Result<(), String> {
        let types = types_of(&leaves)?;
        if let Some((at, values)) = constants(&leaves)? {
            let mut beside = leaves.clone();
            let own = beside.remove(at);
            for value in values {
                if judge::is_one_of(self, value, own, &beside)? {
                    found.push(Shape::Constant(value));
                }
            }
            return Ok(());
        }
        for name in types {
            let shape = match name {
                "null" => Shape::Null,
                "boolean" => Shape::Boolean,
                "string" => Shape::Text(leaves.clone()),
                "integer" | "number" => Shape::Number(leaves.clone(), name == "integer"),
                "array" => match self.list(&leaves, depth)? {
                    Some(list) => Shape::List(list),
                    None => continue,
                },
                _ => match self.object(&leaves, depth)? {
                    Some(object) => Shape::Object(object),
                    None => continue,
                },
            };
            found.push(shape);
        }
        Ok(())
    }

    /// A list that fits all of these.
    fn list(&mut self, leaves: &[&'a Schema], depth: usize) -> Result<Option<List>, String> {
        let (least, most) = counts(leaves, "minItems", "maxItems")?;
        let mut unique = false;
        for schema in leaves {
            unique |= match schema.get("uniqueItems") {
                None | Some(Value::Bool(false)) => false,
                Some(Value::Bool(true)) => true,
                Some(_) => return Err("uniqueItems".into()),
            };
        }
        if unique && most.is_none_or(|most| most > 1) {
            return Err("uniqueItems".into());
        }
        if most.is_some_and(|most| most < least) {
            return Ok(None);
        }
        let parts: Vec<Items<'a>> = leaves.iter().map(|s| items(s)).collect::<Result<_, _>>()?;
        let longest = parts
            .iter()
            .map(|(first, _)| first.len())
            .max()
            .unwrap_or(0);
        let longest = most.map_or(longest, |most| {
            longest.min(usize::try_from(most).unwrap_or(longest))
        });
        let below = depth.saturating_add(1);
        let mut first = Vec::new();
        for i in 0..longest {
            let all = parts
                .iter()
                .filter_map(|(first, rest)| first.get(i).copied().or(*rest))
                .collect();
            first.push(self.node(all, below));
        }
        let rest: All<'a> = parts.iter().filter_map(|(_, rest)| *rest).collect();
        // What no schema speaks of is not written, unless it has to be.
        let closed =
            self.manner.closed && rest.is_empty() && longest > 0 && least <= longest as u64;
        let ended = closed || most.is_some_and(|most| most <= longest as u64);
        let rest = (!ended).then(|| self.node(rest, below));
        Ok(Some(List {
            first,
            rest,
            least,
            most,
        }))
    }

    /// An object that fits all of these.
    fn object(
        &mut self,
        leaves: &[&'a Schema],
        depth: usize,
    ) -> Result<Option<Object<'a>>, String> {
        let (least, most) = counts(leaves, "minProperties", "maxProperties")?;
        let parts: Vec<Members<'a>> = leaves
            .iter()
            .map(|s| members(s))
            .collect::<Result<_, _>>()?;
        let below = depth.saturating_add(1);
        let needed: HashSet<&str> = parts
            .iter()
            .flat_map(|p| p.required.iter().copied())
            .collect();
        let mut names: Vec<&'a str> = Vec::new();
        let mut taken = HashSet::new();
        let given = parts
            .iter()
            .flat_map(|p| p.properties.keys().map(String::as_str));
        let required = parts.iter().flat_map(|p| p.required.iter().copied());
        names.extend(given.chain(required).filter(|name| taken.insert(*name)));
        let patterns: usize = parts.iter().map(|part| part.patterns.len()).sum();
        self.spend(
            names
                .len()
                .saturating_mul(patterns.saturating_mul(20).saturating_add(1)),
        )?;
        let mut named = Vec::new();
        for name in names {
            let all = parts
                .iter()
                .map(|part| part.of(name))
                .collect::<Result<Vec<_>, _>>()?;
            let node = self.node(all.concat(), below);
            named.push((name, node, needed.contains(name)));
        }
        let says = |keyword: &str| leaves.iter().any(|s| s.contains_key(keyword));
        let outside = self.manner.closed_outside && depth == 0 && !says("additionalProperties");
        let closed = (outside && says("properties"))
            || (self.manner.closed && (!named.is_empty() || says("properties")));
        let mut kinds = Vec::new();
        for (terms, hit) in kinds_of_names(&parts)? {
            if !(hit.is_empty() && closed) {
                let all = parts.iter().flat_map(|part| part.matched(&hit)).collect();
                kinds.push((terms, hit.is_empty(), self.node(all, below)));
            }
        }
        let (patterned, others): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|k| !k.1);
        let mut kinds: Vec<(Terms, usize)> =
            patterned.into_iter().map(|(t, _, n)| (t, n)).collect();
        let mut rest = None;
        for (terms, _, node) in others {
            match terms.is_empty() {
                true => rest = Some(node),
                false => kinds.push((terms, node)),
            }
        }
        if most.is_some_and(|most| most < needed.len() as u64 || most < least) {
            return Ok(None);
        }
        Ok(Some(Object {
            named,
            kinds,
            others: rest,
            least,
            most,
        }))
    }
}

fn is_note(keyword: &str) -> bool {
    NOTES.contains(&keyword) || (keyword.starts_with("x-") && keyword != "x-guidance")
}

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

/// The values that one of these lists, and which of them.
fn constants<'a>(leaves: &[&'a Schema]) -> Result<Option<(usize, Vec<&'a Value>)>, String> {
    for (at, schema) in leaves.iter().enumerate() {
        if let Some(values) = listed(schema)? {
            return Ok(Some((at, values)));
        }
    }
    Ok(None)
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
type Items<'a> = (Vec<&'a Value>, Option<&'a Value>);

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
            if judge::has(pattern, name)? {
                found.push(schema);
            }
        }
        if found.is_empty() {
            found.extend(self.others);
        }
        Ok(found)
    }

    /// The schemas of a member without a name of its own, by the patterns that are found in it.
    fn matched(&self, patterns: &[&str]) -> All<'a> {
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

/// Kinds of names that patterns tell apart: what is true of them, and which are found in them.
fn kinds_of_names<'a>(parts: &[Members<'a>]) -> Result<Vec<(Terms, Vec<&'a str>)>, String> {
    let mut kinds: Vec<(Terms, Vec<&'a str>)> = vec![(Terms::new(), Vec::new())];
    let mut known = HashSet::new();
    let patterns = parts.iter().flat_map(|part| part.patterns.keys());
    for pattern in patterns.filter(|pattern| known.insert(*pattern)) {
        let named = || format!("patternProperties {pattern:?}");
        let regex = found(pattern).ok_or_else(named)?;
        let mut next = Vec::new();
        for (terms, hit) in kinds {
            for is in [true, false] {
                let mut terms = terms.clone();
                let mut hit = hit.clone();
                match is {
                    true => {
                        terms.push(Term::Is(regex.clone()));
                        hit.push(&pattern[..]);
                    }
                    false => terms.push(Term::Not(regex.clone())),
                }
                if !nothing_is(&terms).map_err(|_| named())? {
                    next.push((terms, hit));
                }
            }
        }
        kinds = next;
        if kinds.len() > MOST_KINDS {
            return Err(named());
        }
    }
    Ok(kinds)
}
