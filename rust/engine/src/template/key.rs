//! When two values are the same number: Python's `1`, `1.0` and `True` are one key and compare
//! exactly at any size.
use std::cmp::Ordering;

use minijinja::Value;

use super::value::{view, View};

/// A key of a mapping that is no string.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Int(i128),
    /// The bits of a number that is no integer of 128 bits.
    Float(u64),
}

impl Key {
    /// `None` for strings, which are their own keys, and for what cannot be a key.
    pub fn of(value: &Value) -> Option<Key> {
        Some(match view(value) {
            View::None => Key::None,
            View::Bool(b) => Key::Int(b.into()),
            View::Int(n) => Key::Int(n),
            View::Float(x) => match whole(x) {
                Some(n) => Key::Int(n),
                None => Key::Float(x.to_bits()),
            },
            _ => return None,
        })
    }
}

/// 2^127, the first float beyond `i128`.
const BEYOND: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

/// The integer that a float is.
fn whole(x: f64) -> Option<i128> {
    (x.fract() == 0.0 && (-BEYOND..BEYOND).contains(&x)).then_some(x as i128)
}

/// The order of an integer and a float, exact; none for NaN.
pub(super) fn int_float(n: i128, x: f64) -> Option<Ordering> {
    if x.is_nan() {
        return None;
    }
    if x >= BEYOND {
        return Some(Ordering::Less);
    }
    if x < -BEYOND {
        return Some(Ordering::Greater);
    }
    // In range: the cast only drops the fraction.
    let fraction = 0.0_f64.partial_cmp(&x.fract())?;
    Some(n.cmp(&(x.trunc() as i128)).then(fraction))
}
