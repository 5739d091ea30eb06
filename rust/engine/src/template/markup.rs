//! Text marked safe for HTML: what `|safe` and `|escape` give. Chat templates write no HTML, yet in
//! jinja2 the mark has a meaning without it: other text is escaped when it is added.
//!
//! The mark lives in variables and arguments. Filters, operators and methods take the text without
//! it where jinja2 looks at the text alone; where jinja2 would escape or mark something, and
//! templates have no reason to ask for it, they refuse.
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::Value;

use super::meter::{fail, Outcome};
use super::rewrite::name;

#[derive(Debug)]
struct Markup(Value);

impl Object for Markup {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.0.is_true()
    }
}

/// Text with the mark.
pub(super) fn marked(text: Value) -> Value {
    Value::from_object(Markup(text))
}

/// The text of a value with the mark.
pub(super) fn unmarked(value: &Value) -> Option<&Value> {
    value.downcast_object_ref::<Markup>().map(|m| &m.0)
}

/// What becomes of the mark in a step.
#[derive(Clone, Copy)]
enum Rule {
    /// The step looks at the text alone.
    Lost,
    /// The result has it too.
    Kept,
    /// The step knows of it.
    Known,
    Refused,
}

fn of_filter(name: &str) -> Rule {
    match name {
        "count" | "float" | "int" | "join" | "length" | "replace" | "tojson" => Rule::Lost,
        "capitalize" | "lower" | "title" | "trim" | "upper" => Rule::Kept,
        "d" | "default" | "e" | "escape" | "safe" | "string" => Rule::Known,
        name::CONCAT | name::COMPARE | name::CANONICAL => Rule::Lost,
        name::ARITHMETIC | name::SAME | name::WEIGHED | name::DROP | name::SET => Rule::Known,
        name::PASSED | name::RECEIVED => Rule::Known,
        // A list refuses what it cannot hold.
        name::LIST | name::TUPLE | name::MAP => Rule::Known,
        _ => Rule::Refused,
    }
}

fn of_method(name: &str, receiver_is_marked: bool, args: usize) -> Rule {
    match name {
        _ if !receiver_is_marked => Rule::Lost,
        "endswith" | "startswith" => Rule::Lost,
        "lower" | "lstrip" | "rstrip" | "strip" | "upper" if args == 0 => Rule::Kept,
        _ => Rule::Refused,
    }
}

fn without_marks(all: &[Value]) -> Vec<Value> {
    all.iter()
        .map(|value| unmarked(value).unwrap_or(value).clone())
        .collect()
}

fn step(
    rule: impl FnOnce() -> Rule,
    name: &str,
    all: &[Value],
    f: impl FnOnce(&[Value]) -> Outcome,
) -> Outcome {
    if all.iter().all(|value| unmarked(value).is_none()) {
        return f(all);
    }
    match rule() {
        Rule::Known => f(all),
        Rule::Kept if all.first().is_some_and(|v| unmarked(v).is_some()) => {
            f(&without_marks(all)).map(marked)
        }
        Rule::Kept | Rule::Lost => f(&without_marks(all)),
        Rule::Refused => Err(fail(format!(
            "{:?} of text marked safe is not available",
            name.trim_start_matches('#')
        ))),
    }
}

/// A filter, or an operator in its form.
pub(super) fn filter(name: &str, all: &[Value], f: impl FnOnce(&[Value]) -> Outcome) -> Outcome {
    step(|| of_filter(name), name, all, f)
}

/// A test: all look at the text alone.
pub(super) fn test(all: &[Value], f: impl FnOnce(&[Value]) -> Outcome<bool>) -> Outcome<bool> {
    f(&without_marks(all))
}

/// A method; the receiver comes first.
pub(super) fn method(name: &str, all: &[Value], f: impl FnOnce(&[Value]) -> Outcome) -> Outcome {
    let marked = all.first().is_some_and(|v| unmarked(v).is_some());
    let args = all.len().saturating_sub(1);
    step(|| of_method(name, marked, args), name, all, f)
}
