//! JSON schemas as a graph: what a schema allows is a node, with the shapes of its values. Schemas that
//! apply to one value together (`allOf`, the target of a reference, keywords next to them) are merged;
//! each alternative (`anyOf`) is a shape. Nothing here recurses: chains of references are limited, and a
//! recursive schema is a node that contains itself.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::alternatives::{address, Schemas};
use super::judge;
use super::keywords::{
    counts, items, listed, members, types_of, All, Items, Leaves, Members, Schema,
};
use super::lark::{nothing_is, Term, Terms};
use super::patterns::found;

/// Kinds of names that patterns of an object tell apart.
const MOST_KINDS: usize = 64;

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
    schemas: Schemas<'a>,
    manner: Manner,
    /// The shapes of each node's values. The first is the whole.
    pub nodes: Vec<Vec<Shape<'a>>>,
    known: HashMap<(Vec<usize>, usize), usize>,
    /// What is still to be looked at: the schemas of a node and how deep it is.
    due: Vec<(usize, All<'a>, usize)>,
}

impl<'a> Graph<'a> {
    /// Of a schema and what it leads to.
    ///
    /// # Errors
    /// What cannot be held.
    pub fn new(root: &'a Value, manner: Manner) -> Result<Self, String> {
        let mut graph = Self {
            schemas: Schemas::new(root),
            manner,
            nodes: Vec::new(),
            known: HashMap::new(),
            due: Vec::new(),
        };
        graph.node(vec![root], 0);
        while let Some((node, all, depth)) = graph.due.pop() {
            let shapes = graph.shapes(all, depth)?;
            if let Some(place) = graph.nodes.get_mut(node) {
                *place = shapes;
            }
        }
        Ok(graph)
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
        for leaves in self.schemas.alternatives(&all, judge::are_apart)? {
            self.add(leaves, depth, &mut found)?;
        }
        Ok(found)
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
                if judge::is_one_of(&mut self.schemas, value, own, &beside)? {
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
        self.schemas.spend(
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

/// The values that one of these lists, and which of them.
fn constants<'a>(leaves: &[&'a Schema]) -> Result<Option<(usize, Vec<&'a Value>)>, String> {
    for (at, schema) in leaves.iter().enumerate() {
        if let Some(values) = listed(schema)? {
            return Ok(Some((at, values)));
        }
    }
    Ok(None)
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
