//! Memory that is asked for, so that a machine without room for it gives an error.

use crate::error::{Error, Result};

/// Room for `n` values in all.
///
/// # Errors
/// [`Error::Memory`] where the system has none; `what` it is for.
pub fn reserve<T>(values: &mut Vec<T>, n: usize, what: &str) -> Result<()> {
    let more = n.saturating_sub(values.len());
    values
        .try_reserve_exact(more)
        .map_err(|_| Error::no_room(what, n.saturating_mul(size_of::<T>())))
}

/// `n` times `value`.
///
/// # Errors
/// As [`reserve`].
pub fn filled<T: Clone>(n: usize, value: T, what: &str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    reserve(&mut values, n, what)?;
    values.resize(n, value);
    Ok(values)
}
