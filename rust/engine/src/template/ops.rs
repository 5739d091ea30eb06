//! Operators, subscripts and attributes with Python's meaning, every growth charged.
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{State, Value};

use super::compare::unsupported;
use super::given::{self, as_str};
use super::meter::{fail, Meter, Outcome};
use super::methods;
use super::text::Text;
use super::value::{as_float, as_int, int, text_len, type_name, view, Args, Form, List, View};

/// `a ~ b`: both as text.
pub(super) fn concat(meter: &Meter, a: &Value, b: &Value) -> Outcome {
    let mut text = Text::new(meter);
    text.str(a)?;
    text.str(b)?;
    Ok(text.finish())
}

fn joined(a: &List, b: &List) -> Vec<Value> {
    a.items.iter().chain(&b.items).cloned().collect()
}

fn repeat(meter: &Meter, value: &Value, n: i128) -> Option<Outcome> {
    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    match view(value) {
        View::Str(s) => Some(
            meter
                .charge(s.len().saturating_mul(n))
                .and_then(|()| given::made(meter, s.repeat(n), &[value])),
        ),
        View::List(list) if list.form.is_none() => Some(
            meter
                .charge_elements(list.items.len().saturating_mul(n))
                .and_then(|()| {
                    let all = list.items.iter().cycle();
                    let len = list.items.len().saturating_mul(n);
                    List::value(all.take(len).cloned().collect(), list.tuple)
                }),
        ),
        _ => None,
    }
}

/// `+ - * / // % **`.
pub(super) fn arithmetic(meter: &Meter, op: &str, a: &Value, b: &Value) -> Outcome {
    match (op, view(a), view(b)) {
        ("+", View::Str(_), View::Str(_)) => return concat(meter, a, b),
        ("+", View::List(x), View::List(y))
            if x.tuple == y.tuple && x.form.is_none() && y.form.is_none() =>
        {
            meter.charge_elements(x.items.len().saturating_add(y.items.len()))?;
            return List::value(joined(x, y), x.tuple);
        }
        ("*", _, _) => {
            let repeated = as_int(b)
                .and_then(|n| repeat(meter, a, n))
                .or_else(|| as_int(a).and_then(|n| repeat(meter, b, n)));
            if let Some(repeated) = repeated {
                return repeated;
            }
        }
        ("%", View::Str(_), _) => return methods::printf(meter, a, b),
        _ => {}
    }
    if let (Some(x), Some(y)) = (as_int(a), as_int(b)) {
        if y == 0 && matches!(op, "/" | "//" | "%") {
            return Err(fail(format!("{op} by zero")));
        }
        let result = match op {
            "+" => x.checked_add(y),
            "-" => x.checked_sub(y),
            "*" => x.checked_mul(y),
            "//" => floor_div(x, y),
            "%" => floor_div(x, y)
                .and_then(|q| q.checked_mul(y))
                .and_then(|q| x.checked_sub(q)),
            "**" if y >= 0 => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            "**" if x == 0 => return Err(fail("0 to a negative power")),
            "**" => return Ok(Value::from((x as f64).powf(y as f64))),
            _ => return Ok(Value::from(x as f64 / y as f64)),
        };
        return result
            .map(int)
            .ok_or_else(|| fail(format!("{op} gives a number beyond 128 bits")));
    }
    let (Some(x), Some(y)) = (as_float(a), as_float(b)) else {
        return Err(unsupported(op, a, b));
    };
    if y == 0.0 && matches!(op, "/" | "//" | "%") {
        return Err(fail(format!("{op} by zero")));
    }
    if op == "**" && x == 0.0 && y < 0.0 {
        return Err(fail("0 to a negative power"));
    }
    if op == "**" && x < 0.0 && x.is_finite() && y.is_finite() && y.fract() != 0.0 {
        return Err(fail("a complex number is not available"));
    }
    Ok(Value::from(match op {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "//" => (x / y).floor(),
        "%" => x - (x / y).floor() * y,
        "**" => x.powf(y),
        _ => x / y,
    }))
}

fn floor_div(x: i128, y: i128) -> Option<i128> {
    let quotient = x.checked_div(y)?;
    let exact = quotient.checked_mul(y) == Some(x);
    if !exact && (x < 0) != (y < 0) {
        quotient.checked_sub(1)
    } else {
        Some(quotient)
    }
}

/// `-a`.
pub(super) fn negate(a: &Value) -> Outcome {
    match view(a) {
        View::Float(x) => Ok(Value::from(-x)),
        _ => as_int(a)
            .and_then(i128::checked_neg)
            .map(int)
            .ok_or_else(|| fail(format!("- is not defined for {}", type_name(a)))),
    }
}

/// A method that is looked at but not called: it is there, and true.
#[derive(Debug)]
struct BoundMethod {
    receiver: Value,
    name: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Outcome {
        self.receiver.call_method(state, self.name, args)
    }
}

fn bound(receiver: &Value, name: &str) -> Option<Value> {
    let name = *methods::names(receiver).iter().find(|n| **n == name)?;
    Some(Value::from_object(BoundMethod {
        receiver: receiver.clone(),
        name,
    }))
}

fn of_undefined(what: &str) -> minijinja::Error {
    fail(format!("the value whose {what} is asked for is undefined"))
}

/// `value.name`: a method, else an item; undefined where there is neither.
pub(super) fn attribute(meter: &Meter, value: &Value, name: &str) -> Outcome {
    meter.charge(name.len().saturating_mul(2))?;
    match view(value) {
        View::Undefined => Err(of_undefined(&format!("attribute {name:?}"))),
        View::Map(map) => Ok(bound(value, name)
            .or_else(|| map.get(&Value::from(name)).cloned())
            .unwrap_or(Value::UNDEFINED)),
        View::Other if matches!(name, "catch_kwargs" | "catch_varargs") => {
            Err(fail(format!("attribute {name:?} is not available")))
        }
        View::Other => of_object(meter, value.get_attr(name).unwrap_or(Value::UNDEFINED)),
        View::List(List {
            form: Some(Form::Range { start, stop, step }),
            ..
        }) if matches!(name, "start" | "stop" | "step") => Ok(int(match name {
            "start" => *start,
            "stop" => *stop,
            _ => *step,
        })),
        _ => Ok(bound(value, name).unwrap_or(Value::UNDEFINED)),
    }
}

/// `value|attr(name)`: no item of a mapping.
pub(super) fn attribute_alone(meter: &Meter, value: &Value, name: &str) -> Outcome {
    meter.charge(name.len())?;
    match view(value) {
        View::Map(_) => Ok(bound(value, name).unwrap_or(Value::UNDEFINED)),
        _ => attribute(meter, value, name),
    }
}

/// What an object of minijinja's says of itself: the names a macro takes are a tuple.
fn of_object(meter: &Meter, found: Value) -> Outcome {
    if found.kind() != ValueKind::Seq || matches!(view(&found), View::List(_)) {
        return Ok(found);
    }
    let items = found.try_iter().map_err(|e| fail(e.to_string()))?;
    meter.tuple(items.collect())
}

/// `value[key]`: an item, else a method; undefined where there is neither.
pub(super) fn item(meter: &Meter, value: &Value, key: &Value) -> Outcome {
    meter.charge_key(key)?;
    // A string is walked to the character.
    meter.charge(text_len(value))?;
    let found = match view(value) {
        View::Undefined => {
            return Err(of_undefined(&match view(key) {
                View::Str(s) => format!("item {:?}", s.chars().take(40).collect::<String>()),
                View::Int(n) => format!("item {n}"),
                _ => "item".to_owned(),
            }))
        }
        View::Map(map) => map.get(key).cloned(),
        View::List(list) if list.form.is_some_and(Form::is_view) => None,
        View::List(list) => as_int(key)
            .and_then(|i| place(i, list.items.len()))
            .and_then(|i| list.items.get(i).cloned()),
        View::Str(s) => {
            let found = as_int(key).and_then(|i| {
                let (at, c) = match usize::try_from(i) {
                    Ok(i) => s.char_indices().nth(i)?,
                    Err(_) => {
                        let back = usize::try_from(i.checked_neg()?.checked_sub(1)?).ok()?;
                        s.char_indices().nth_back(back)?
                    }
                };
                s.get(at..at.saturating_add(c.len_utf8()))
            });
            found.map(|c| given::part(meter, value, c)).transpose()?
        }
        View::Other if as_str(key).is_some() => {
            let found = value.get_item(&given::key(key)).ok();
            found.map(|found| of_object(meter, found)).transpose()?
        }
        _ => None,
    };
    Ok(found
        .or_else(|| bound(value, as_str(key)?))
        .unwrap_or(Value::UNDEFINED))
}

/// The place of index `i`, which counts from the end where negative.
fn place(i: i128, len: usize) -> Option<usize> {
    let i = if i < 0 {
        i.checked_add(i128::try_from(len).ok()?)?
    } else {
        i
    };
    usize::try_from(i).ok()
}

/// `value[start:stop:step]`.
pub(super) fn slice(meter: &Meter, args: &Args<'_>) -> Outcome {
    let [value, start, stop, step] = args.pos else {
        return Err(fail("a slice has a start, a stop and a step"));
    };
    let chars: Vec<char>;
    let (len, list) = match view(value) {
        View::Undefined => return Err(of_undefined("slice")),
        View::List(List {
            form: Some(form), ..
        }) => return Err(fail(format!("a slice of {} is not available", form.name()))),
        View::List(list) => (list.items.len(), Some(list)),
        View::Str(s) => {
            meter.charge(s.len())?;
            if let (true, Some(start), Some(stop)) =
                (step.is_none(), front(start, 0), front(stop, s.len()))
            {
                // The common cut from the front needs no copy of the characters.
                return given::part(meter, value, cut(s, start, stop));
            }
            meter.charge(s.len().saturating_mul(4))?;
            chars = s.chars().collect();
            let mut places = places(chars.len(), start, stop, step)?.peekable();
            if step.is_none() || as_int(step) == Some(1) {
                let start = places.peek().copied().unwrap_or(0);
                let stop = start.saturating_add(places.count());
                return given::part(meter, value, cut(s, start, stop));
            }
            let picked: String = places.filter_map(|i| chars.get(i)).collect();
            return given::made(meter, picked, &[value]);
        }
        _ => return Err(fail(format!("a {} cannot be sliced", type_name(value)))),
    };
    let places = places(len, start, stop, step)?;
    let items: Vec<Value> = places
        .filter_map(|i| list.and_then(|list| list.items.get(i)).cloned())
        .collect();
    meter.charge_elements(items.len())?;
    List::value(items, list.is_some_and(|l| l.tuple))
}

/// The characters from `start` to `stop`.
fn cut(s: &str, start: usize, stop: usize) -> &str {
    let place = |s: &str, n: usize| s.char_indices().nth(n).map_or(s.len(), |(at, _)| at);
    let rest = s.get(place(s, start)..).unwrap_or("");
    rest.get(..place(rest, stop.saturating_sub(start)))
        .unwrap_or("")
}

/// A bound that counts from the front; `None` where it counts from the end.
fn front(bound: &Value, none: usize) -> Option<usize> {
    if bound.is_none() {
        return Some(none);
    }
    as_int(bound).and_then(|n| usize::try_from(n).ok())
}

fn places(
    len: usize,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Outcome<Box<dyn Iterator<Item = usize>>> {
    let bound = |v: &Value, name: &str| match view(v) {
        View::None => Ok(None),
        _ => as_int(v)
            .map(Some)
            .ok_or_else(|| fail(format!("slice {name} must be an int, not {}", type_name(v)))),
    };
    let len = len as i128;
    let step = bound(step, "step")?.unwrap_or(1);
    let (start, stop) = (bound(start, "start")?, bound(stop, "stop")?);
    let fix = |i: i128, low: i128, high: i128| {
        let i = if i < 0 { i.saturating_add(len) } else { i };
        i.clamp(low, high)
    };
    let places: Box<dyn Iterator<Item = usize>> = match step {
        0 => return Err(fail("slice step cannot be zero")),
        1.. => {
            let start = fix(start.unwrap_or(0), 0, len) as usize;
            let stop = fix(stop.unwrap_or(len), 0, len) as usize;
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            Box::new((start..stop.max(start)).step_by(step))
        }
        _ => {
            let last = len.saturating_sub(1);
            let start = start.map_or(last, |i| fix(i, -1, last));
            let stop = stop.map_or(-1, |i| fix(i, -1, last));
            let step = usize::try_from(step.saturating_neg()).unwrap_or(usize::MAX);
            let (low, high) = (
                stop.saturating_add(1) as usize,
                start.saturating_add(1) as usize,
            );
            Box::new((low..high.max(low)).rev().step_by(step))
        }
    };
    Ok(places)
}
