//! Comparisons with Python's meaning, every look charged.
use std::cmp::Ordering;

use minijinja::Value;

use super::generator::Generator;
use super::key::int_float;
use super::meter::{fail, Meter, Outcome};
use super::namespace::Namespace;
use super::value::{as_float, as_int, is_key, type_name, view, Form, List, Map, View};

/// Refuses an operator that is not defined for its operands.
pub(super) fn unsupported(op: &str, a: &Value, b: &Value) -> minijinja::Error {
    fail(format!(
        "{op} is not defined for {} and {}",
        type_name(a),
        type_name(b)
    ))
}

/// `a == b`.
pub(super) fn equal(meter: &Meter, a: &Value, b: &Value) -> Outcome<bool> {
    meter.charge(16)?;
    Ok(match (view(a), view(b)) {
        (View::Str(x), View::Str(y)) => {
            if x.len() == y.len() {
                meter.charge(x.len())?;
            }
            x == y
        }
        (View::None, View::None) | (View::Undefined, View::Undefined) => true,
        (View::List(x), View::List(y)) => {
            match (x.form, y.form) {
                (None, None) => {}
                (Some(Form::Range { .. }), Some(Form::Range { .. })) => {}
                (Some(form), Some(_)) if form.is_view() => {
                    return Err(fail(format!(
                        "comparing two {} is not available",
                        form.name()
                    )))
                }
                _ => return Ok(false),
            }
            if x.items.len() != y.items.len() || x.tuple != y.tuple {
                return Ok(false);
            }
            for (x, y) in x.items.iter().zip(&y.items) {
                if !equal(meter, x, y)? {
                    return Ok(false);
                }
            }
            true
        }
        (View::Map(x), View::Map(y)) => {
            if x.entries.len() != y.entries.len() {
                return Ok(false);
            }
            for (key, x) in &x.entries {
                meter.charge_key(key)?;
                match y.get(key) {
                    Some(y) if equal(meter, x, y)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (View::Other, View::Other) => same_object(a, b)?,
        _ => number_order(a, b).flatten() == Some(Ordering::Equal),
    })
}

/// Whether two values are one object.
fn same_object(a: &Value, b: &Value) -> Outcome<bool> {
    fn place<T: 'static>(value: &Value) -> Option<*const T> {
        value.downcast_object_ref::<T>().map(std::ptr::from_ref)
    }
    fn same<T: 'static>(a: &Value, b: &Value) -> Option<bool> {
        Some(place::<T>(a)? == place::<T>(b)?)
    }
    if a.kind() != b.kind() || type_name(a) != type_name(b) {
        return Ok(false);
    }
    same::<Namespace>(a, b)
        .or_else(|| same::<Generator>(a, b))
        .or_else(|| same::<List>(a, b))
        .or_else(|| same::<Map>(a, b))
        .ok_or_else(|| fail("comparing functions is not available"))
}

/// `a is sameas b`: one object. Which numbers and strings are one is the interpreter's choice.
pub(super) fn is_same(a: &Value, b: &Value) -> Outcome<bool> {
    match (view(a), view(b)) {
        (View::None, View::None) | (View::Undefined, View::Undefined) => Ok(true),
        (View::Bool(x), View::Bool(y)) => Ok(x == y),
        (View::Int(x), View::Int(y)) if x == y && !(-5..=256).contains(&x) => {
            Err(fail("sameas of large integers is not available"))
        }
        (View::Int(x), View::Int(y)) => Ok(x == y),
        (View::Float(_), View::Float(_)) | (View::Str(_), View::Str(_)) => Err(fail(format!(
            "sameas of a {} is not available",
            type_name(a)
        ))),
        _ => same_object(a, b),
    }
}

/// The order of two numbers, exact at any size; none with NaN. Nothing where one is no number.
fn number_order(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    Some(match (as_int(a), as_int(b)) {
        (Some(x), Some(y)) => Some(x.cmp(&y)),
        (Some(x), None) => int_float(x, as_float(b)?),
        (None, Some(y)) => int_float(y, as_float(a)?).map(Ordering::reverse),
        (None, None) => as_float(a)?.partial_cmp(&as_float(b)?),
    })
}

/// The order of two values; an error where Python has none.
pub(super) fn order(meter: &Meter, op: &str, a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    meter.charge(16)?;
    match (view(a), view(b)) {
        (View::Str(x), View::Str(y)) => {
            meter.charge(x.len().min(y.len()))?;
            Ok(Some(x.cmp(y)))
        }
        (View::List(x), View::List(y))
            if x.tuple == y.tuple && x.form.is_none() && y.form.is_none() =>
        {
            for (p, q) in x.items.iter().zip(&y.items) {
                if !equal(meter, p, q)? {
                    return order(meter, op, p, q);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        _ => number_order(a, b).ok_or_else(|| unsupported(op, a, b)),
    }
}

/// `a in b`.
pub(super) fn contains(meter: &Meter, item: &Value, container: &Value) -> Outcome<bool> {
    match (view(container), view(item)) {
        (View::Undefined, _) => Ok(false),
        (View::Str(text), View::Str(part)) => {
            meter.charge(text.len().saturating_add(part.len()))?;
            Ok(text.contains(part))
        }
        (View::List(list), _) => {
            for element in &list.items {
                if equal(meter, element, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (View::Other, _) => {
            let Some(generator) = container.downcast_object_ref::<Generator>() else {
                return Err(unsupported("in", item, container));
            };
            while let Some(element) = generator.next() {
                if equal(meter, &element, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (View::Map(map), _) if is_key(item) || item.is_undefined() => {
            meter.charge_key(item)?;
            Ok(map.get(item).is_some())
        }
        _ => Err(unsupported("in", item, container)),
    }
}

/// `== != < <= > >= in notin`.
pub(super) fn compare(meter: &Meter, op: &str, a: &Value, b: &Value) -> Outcome<bool> {
    match op {
        "==" => return equal(meter, a, b),
        "!=" => return equal(meter, a, b).map(|same| !same),
        "in" => return contains(meter, a, b),
        "notin" => return contains(meter, a, b).map(|found| !found),
        _ => {}
    }
    let order = order(meter, op, a, b)?;
    Ok(match op {
        "<" => order == Some(Ordering::Less),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        ">" => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// `a < b <= c ...`: operands and operators in turn.
pub(super) fn compare_chain(meter: &Meter, args: &[Value]) -> Outcome<bool> {
    let mut rest = args;
    while let [a, op, b, ..] = rest {
        if !compare(meter, op.as_str().unwrap_or(""), a, b)? {
            return Ok(false);
        }
        rest = rest.get(2..).unwrap_or(&[]);
    }
    Ok(true)
}
