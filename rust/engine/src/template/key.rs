//! When two values are the same number: Python's `1`, `1.0` and `True` are one key and compare
//! exactly at any size.
use std::cmp::Ordering;

/// A key of a mapping that is no string.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    None,
    Int(i128),
    /// The bits of a number that is no integer of 128 bits.
    Float(u64),
}

impl Key {
    /// Of a float: an integer where it is one.
    pub fn of(x: f64) -> Key {
        whole(x).map_or(Key::Float(x.to_bits()), Key::Int)
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
