//! Tests (`is ...`) as jinja2 has them.
use minijinja::Value;

use super::compare::{compare, contains, equal, is_same};
use super::letters::is_titlecase;
use super::meter::{fail, Meter, Outcome};
use super::ops;
use super::value::{as_float, type_name, view, Args, Form, View};

/// The value comes first among the arguments.
pub(super) type Check = fn(&Meter, &Value, &Args<'_>) -> Outcome<bool>;

/// Every test there is, by name.
pub(super) static TABLE: &[(&str, Check)] = &[
    ("boolean", |_, v, _| Ok(matches!(view(v), View::Bool(_)))),
    // jinja2's undefined value has methods that fail, so it passes for callable and a sequence.
    ("callable", |_, v, _| {
        let known = matches!(type_name(v), "namespace" | "generator");
        Ok(matches!(view(v), View::Other | View::Undefined) && !known)
    }),
    ("defined", |_, v, _| Ok(!v.is_undefined())),
    ("divisibleby", |m, v, a| {
        remainder(m, v, &first(a)?).map(|r| r == Some(0.0))
    }),
    ("eq", |m, v, a| equal(m, v, &first(a)?)),
    ("equalto", |m, v, a| equal(m, v, &first(a)?)),
    ("even", |m, v, _| {
        remainder(m, v, &Value::from(2)).map(|r| r == Some(0.0))
    }),
    ("false", |_, v, _| Ok(matches!(view(v), View::Bool(false)))),
    ("float", |_, v, _| Ok(matches!(view(v), View::Float(_)))),
    ("ge", |m, v, a| compare(m, ">=", v, &first(a)?)),
    ("greaterthan", |m, v, a| compare(m, ">", v, &first(a)?)),
    ("gt", |m, v, a| compare(m, ">", v, &first(a)?)),
    ("in", |m, v, a| contains(m, v, &first(a)?)),
    ("integer", |_, v, _| Ok(matches!(view(v), View::Int(_)))),
    ("iterable", |_, v, _| {
        Ok(matches!(
            view(v),
            View::Str(_) | View::List(_) | View::Map(_) | View::Undefined
        ) || type_name(v) == "generator")
    }),
    ("le", |m, v, a| compare(m, "<=", v, &first(a)?)),
    ("lessthan", |m, v, a| compare(m, "<", v, &first(a)?)),
    ("lower", |m, v, _| {
        case(m, v, char::is_lowercase, |c| {
            c.is_uppercase() || is_titlecase(c)
        })
    }),
    ("lt", |m, v, a| compare(m, "<", v, &first(a)?)),
    ("mapping", |_, v, _| Ok(matches!(view(v), View::Map(_)))),
    ("ne", |m, v, a| compare(m, "!=", v, &first(a)?)),
    ("none", |_, v, _| Ok(v.is_none())),
    // A bool is a number, as in Python.
    ("number", |_, v, _| {
        Ok(matches!(
            view(v),
            View::Int(_) | View::Float(_) | View::Bool(_)
        ))
    }),
    ("odd", |m, v, _| {
        remainder(m, v, &Value::from(2)).map(|r| r == Some(1.0))
    }),
    ("sameas", |_, v, a| is_same(v, &first(a)?)),
    // What has a length and items: strings and mappings too.
    ("sequence", |_, v, _| {
        Ok(match view(v) {
            View::List(list) => !list.form.is_some_and(Form::is_view),
            View::Str(_) | View::Map(_) | View::Undefined => true,
            _ => false,
        })
    }),
    ("string", |_, v, _| Ok(matches!(view(v), View::Str(_)))),
    ("true", |_, v, _| Ok(matches!(view(v), View::Bool(true)))),
    ("undefined", |_, v, _| Ok(v.is_undefined())),
    ("upper", |m, v, _| {
        case(m, v, char::is_uppercase, |c| {
            c.is_lowercase() || is_titlecase(c)
        })
    }),
];

/// A test by name, or by the operator it stands for.
pub(super) fn by_name(name: &str) -> Outcome<Check> {
    let name = match name {
        "==" => "eq",
        "!=" => "ne",
        "<" => "lt",
        "<=" => "le",
        ">" => "gt",
        ">=" => "ge",
        name => name,
    };
    TABLE
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, f)| *f)
        .ok_or_else(|| fail(format!("no test named {}", super::text::quoted(name))))
}

fn first(args: &Args<'_>) -> Outcome {
    args.pos
        .first()
        .cloned()
        .ok_or_else(|| fail("the test takes a value to compare with"))
}

fn remainder(m: &Meter, value: &Value, of: &Value) -> Outcome<Option<f64>> {
    ops::arithmetic(m, "%", value, of).map(|rest| as_float(&rest))
}

fn case(
    m: &Meter,
    value: &Value,
    this: fn(char) -> bool,
    other: fn(char) -> bool,
) -> Outcome<bool> {
    let text = super::text::to_string(m, value)?;
    Ok(text.chars().any(this) && !text.chars().any(other))
}
