//! What a template computes with: minijinja's values, with lists and mappings of our own that know
//! how deep they are.
use std::collections::HashMap;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::Value;

use super::generator::Generator;
use super::given::{self, Given};
use super::key::Key;
use super::markup;
use super::meter::{fail, Meter, Outcome, ELEMENT, ENTRY};
use super::namespace::Namespace;

/// Deeper nesting is refused: printing, comparing and freeing recurse.
pub(super) const MAX_DEPTH: u16 = 100;
impl Meter {
    /// A key about to be looked up: hashed, and compared with one like it.
    pub fn charge_key(&self, key: &Value) -> Outcome<()> {
        self.charge(text_len(key).saturating_mul(2))
    }

    /// A list; its elements are checked.
    pub fn list(&self, items: Vec<Value>) -> Outcome {
        self.charge_elements(items.len())?;
        List::value(items, false)
    }

    /// What looks like a list.
    pub fn formed(&self, items: Vec<Value>, form: Form) -> Outcome {
        self.charge_elements(items.len())?;
        List::formed(items, form)
    }

    /// A tuple, which prints in parentheses.
    pub fn tuple(&self, items: Vec<Value>) -> Outcome {
        self.charge_elements(items.len())?;
        List::value(items, true)
    }

    /// A mapping; the last of equal keys wins and keeps the first one's place.
    pub fn map(&self, entries: Vec<(Value, Value)>) -> Outcome {
        self.charge(entries.len().saturating_mul(ENTRY))?;
        for (key, _) in &entries {
            self.charge_key(key)?;
        }
        Map::value(entries)
    }
}

/// How deep a value nests; scalars 0.
fn depth(value: &Value) -> Outcome<u16> {
    if let Some(list) = value.downcast_object_ref::<List>() {
        return Ok(list.depth);
    }
    if let Some(map) = value.downcast_object_ref::<Map>() {
        return Ok(map.depth);
    }
    if given::is_given(value) {
        return Ok(0);
    }
    match value.kind() {
        ValueKind::Undefined
        | ValueKind::None
        | ValueKind::Bool
        | ValueKind::Number
        | ValueKind::String => Ok(0),
        // Those may hold anything, the list itself too.
        _ => Err(fail(format!(
            "a list or mapping cannot hold a value of type {}",
            type_name(value)
        ))),
    }
}

fn nested<'a>(values: impl IntoIterator<Item = &'a Value>) -> Outcome<u16> {
    let mut deepest = 0;
    for value in values {
        deepest = depth(value)?.max(deepest);
    }
    let depth = deepest.saturating_add(1);
    if depth > MAX_DEPTH {
        return Err(fail(format!("values nest more than {MAX_DEPTH} deep")));
    }
    Ok(depth)
}

/// What looks like a list and is none: it prints otherwise, and less can be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Range { start: i128, stop: i128, step: i128 },
    Keys,
    Values,
    Items,
}

impl Form {
    /// Python's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Form::Range { .. } => "range",
            Form::Keys => "dict_keys",
            Form::Values => "dict_values",
            Form::Items => "dict_items",
        }
    }

    /// Views of a mapping have no order of their own.
    pub fn is_view(self) -> bool {
        !matches!(self, Form::Range { .. })
    }
}

/// A list or tuple, or what looks like one.
#[derive(Debug)]
pub(super) struct List {
    pub items: Vec<Value>,
    pub tuple: bool,
    pub form: Option<Form>,
    depth: u16,
}

impl List {
    pub fn value(items: Vec<Value>, tuple: bool) -> Outcome {
        let depth = nested(&items)?;
        Ok(Value::from_object(List {
            items,
            tuple,
            form: None,
            depth,
        }))
    }

    pub fn formed(items: Vec<Value>, form: Form) -> Outcome {
        let depth = nested(&items)?;
        Ok(Value::from_object(List {
            items,
            tuple: false,
            form: Some(form),
            depth,
        }))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Reached by messages of minijinja only; text of templates is made in `text`.
        write!(f, "<list of {}>", self.items.len())
    }
}

/// A mapping that keeps its order.
#[derive(Debug)]
pub(super) struct Map {
    pub entries: Vec<(Value, Value)>,
    /// Places of the keys that are strings, and of the others.
    texts: HashMap<Arc<str>, usize>,
    others: HashMap<Key, usize>,
    depth: u16,
}

/// A value as a key; `None` for strings, which are their own keys, and for what cannot be one.
pub(super) fn key(value: &Value) -> Option<Key> {
    match view(value) {
        View::None => Some(Key::None),
        View::Bool(b) => Some(Key::Int(b.into())),
        View::Int(n) => Some(Key::Int(n)),
        View::Float(x) => Some(Key::of(x)),
        _ => None,
    }
}

/// Whether a value may be a key: hashing a container would recurse.
pub(super) fn is_key(value: &Value) -> bool {
    given::is_given(value)
        || matches!(
            value.kind(),
            ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::String
        )
}

impl Map {
    pub fn value(entries: Vec<(Value, Value)>) -> Outcome {
        let depth = nested(entries.iter().map(|(_, v)| v))?;
        let mut map = Map {
            entries: Vec::with_capacity(entries.len()),
            texts: HashMap::new(),
            others: HashMap::new(),
            depth,
        };
        for (key, value) in entries {
            if !is_key(&key) {
                return Err(fail(format!("a {} cannot be a key", key.kind())));
            }
            if let Some(entry) = map.place(&key).and_then(|at| map.entries.get_mut(at)) {
                entry.1 = value;
                continue;
            }
            match (view(&key), self::key(&key)) {
                (View::Str(text), _) => {
                    map.texts.insert(Arc::from(text), map.entries.len());
                }
                (_, Some(other)) => {
                    map.others.insert(other, map.entries.len());
                }
                _ => return Err(fail(format!("a {} cannot be a key", type_name(&key)))),
            }
            map.entries.push((key, value));
        }
        Ok(Value::from_object(map))
    }

    pub fn get(&self, key: &Value) -> Option<&Value> {
        self.entries.get(self.place(key)?).map(|(_, v)| v)
    }

    fn place(&self, key: &Value) -> Option<usize> {
        match view(key) {
            View::Str(text) => self.texts.get(text).copied(),
            _ => self.others.get(&self::key(key)?).copied(),
        }
    }
}

impl Object for Map {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        // One by one: a loop that ends early has not copied all keys.
        let map = self.clone();
        let keys = (0..self.entries.len()).map(move |at| {
            map.entries
                .get(at)
                .map_or(Value::UNDEFINED, |e| e.0.clone())
        });
        Enumerator::Iter(Box::new(keys))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<mapping of {}>", self.entries.len())
    }
}

/// A value by what Python would call it.
pub(super) enum View<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(&'a str),
    List(&'a List),
    Map(&'a Map),
    /// A namespace, loop, macro or function.
    Other,
}

pub(super) fn view(value: &Value) -> View<'_> {
    match value.kind() {
        ValueKind::Undefined => View::Undefined,
        ValueKind::None => View::None,
        ValueKind::Bool => View::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).map_or(View::Other, View::Int)
        }
        ValueKind::Number => f64::try_from(value.clone()).map_or(View::Other, View::Float),
        ValueKind::String => value.as_str().map_or(View::Other, View::Str),
        _ => {
            if let Some(text) = value
                .downcast_object_ref::<Given>()
                .and(given::as_str(value))
            {
                View::Str(text)
            } else if let Some(list) = value.downcast_object_ref::<List>() {
                View::List(list)
            } else if let Some(map) = value.downcast_object_ref::<Map>() {
                View::Map(map)
            } else {
                View::Other
            }
        }
    }
}

/// The length of a string; 0 of all else.
pub(super) fn text_len(value: &Value) -> usize {
    match view(value) {
        View::Str(s) => s.len(),
        _ => 0,
    }
}

/// Python's name of the type, for messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match view(value) {
        View::Undefined => "undefined value",
        View::None => "None",
        View::Bool(_) => "bool",
        View::Int(_) => "int",
        View::Float(_) => "float",
        View::Str(_) => "str",
        View::List(List {
            form: Some(form), ..
        }) => form.name(),
        View::List(list) if list.tuple => "tuple",
        View::List(_) => "list",
        View::Map(_) => "dict",
        View::Other if value.downcast_object_ref::<Namespace>().is_some() => "namespace",
        View::Other if value.downcast_object_ref::<Generator>().is_some() => "generator",
        View::Other if markup::unmarked(value).is_some() => "text marked safe",
        View::Other => "object",
    }
}

/// An integer of any size as a value.
pub(super) fn int(n: i128) -> Value {
    match i64::try_from(n) {
        Ok(n) => Value::from(n),
        Err(_) => Value::from(n),
    }
}

/// A number as an integer: `True` is 1.
pub(super) fn as_int(value: &Value) -> Option<i128> {
    match view(value) {
        View::Int(n) => Some(n),
        View::Bool(b) => Some(b.into()),
        _ => None,
    }
}

/// A number as a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    match view(value) {
        View::Float(x) => Some(x),
        _ => as_int(value).map(|n| n as f64),
    }
}

/// The elements a `for` visits: of a list, the keys of a mapping, the characters of a string.
pub(super) fn elements(meter: &Meter, value: &Value) -> Outcome<Vec<Value>> {
    let items: Vec<Value> = match view(value) {
        View::Undefined => Vec::new(),
        View::Other if value.downcast_object_ref::<Generator>().is_some() => value
            .downcast_object_ref::<Generator>()
            .map(Generator::take)
            .unwrap_or_default(),
        View::List(list) => {
            meter.charge_elements(list.items.len())?;
            return Ok(list.items.clone());
        }
        View::Map(map) => map.entries.iter().map(|(k, _)| k.clone()).collect(),
        View::Str(s) => {
            meter.charge_elements(s.len())?;
            given::chars(meter, value)?
        }
        _ => {
            return Err(fail(format!(
                "a {} cannot be iterated over",
                type_name(value)
            )))
        }
    };
    meter.charge_elements(items.len())?;
    Ok(items)
}

/// The arguments of a filter, test, method or function.
pub(super) struct Args<'a> {
    pub pos: &'a [Value],
    kwargs: Option<minijinja::value::Kwargs>,
}

impl<'a> Args<'a> {
    pub fn new(all: &'a [Value]) -> Self {
        match all.split_last() {
            Some((last, pos)) if last.is_kwargs() => Args {
                pos,
                kwargs: minijinja::value::Kwargs::try_from(last.clone()).ok(),
            },
            _ => Args {
                pos: all,
                kwargs: None,
            },
        }
    }

    /// The length of all arguments that are strings.
    pub fn text_len(&self) -> usize {
        let named = self.all_named();
        let values = self.pos.iter().chain(named.iter().map(|(_, v)| v));
        values.map(text_len).fold(0, usize::saturating_add)
    }

    /// The argument at a place or of a name.
    pub fn get(&self, place: usize, name: &str) -> Option<Value> {
        self.pos.get(place).cloned().or_else(|| self.named(name))
    }

    pub fn named(&self, name: &str) -> Option<Value> {
        self.kwargs.as_ref()?.get::<Value>(name).ok()
    }

    /// Refuses more positional arguments than `names` and names that are not among them.
    pub fn expect(&self, names: &[&str]) -> Outcome<()> {
        if self.pos.len() > names.len() {
            return Err(fail(format!(
                "{} arguments where at most {} are taken",
                self.pos.len(),
                names.len()
            )));
        }
        self.expect_names(names)
    }

    pub fn expect_names(&self, names: &[&str]) -> Outcome<()> {
        let given = self.kwargs.iter().flat_map(|k| k.args());
        for name in given {
            if !names.contains(&name) {
                return Err(fail(format!("unknown argument {name:?}")));
            }
        }
        Ok(())
    }

    pub fn all_named(&self) -> Vec<(Value, Value)> {
        self.kwargs
            .iter()
            .flat_map(|k| k.args().map(|name| (Value::from(name), k.get(name))))
            .filter_map(|(name, value)| Some((name, value.ok()?)))
            .collect()
    }

    /// A string argument.
    pub fn text(&self, place: usize, name: &str) -> Outcome<Option<Arc<str>>> {
        match self.get(place, name) {
            None => Ok(None),
            Some(v) if v.is_none() => Ok(None),
            Some(v) => match given::to_str(&v) {
                Some(s) => Ok(Some(s)),
                None => Err(fail(format!(
                    "argument {name:?} must be a str, not {}",
                    type_name(&v)
                ))),
            },
        }
    }

    /// An integer argument.
    pub fn int(&self, place: usize, name: &str) -> Outcome<Option<i128>> {
        match self.get(place, name) {
            None => Ok(None),
            Some(v) if v.is_none() => Ok(None),
            Some(v) => as_int(&v).map(Some).ok_or_else(|| {
                fail(format!(
                    "argument {name:?} must be an int, not {}",
                    type_name(&v)
                ))
            }),
        }
    }

    /// Truth of an argument; `false` where it is not given.
    pub fn flag(&self, place: usize, name: &str) -> bool {
        self.get(place, name).is_some_and(|v| v.is_true())
    }
}

/// Bytes of all text in a value, and some for each element.
pub(super) fn size(value: &Value) -> usize {
    let inner = match view(value) {
        View::Str(s) => s.len(),
        View::List(list) => list
            .items
            .iter()
            .fold(0, |n: usize, v| n.saturating_add(size(v))),
        View::Map(map) => map.entries.iter().fold(0, |n: usize, (k, v)| {
            n.saturating_add(size(k)).saturating_add(size(v))
        }),
        _ => 0,
    };
    inner.saturating_add(ELEMENT)
}
