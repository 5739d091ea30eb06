//! A stable sort whose comparison may fail. The standard library's may panic where comparisons
//! contradict each other, as they must once one has failed.
use std::cmp::Ordering;

use super::meter::{fail, Outcome};

/// The items in order; fails with the first comparison that does, or that finds no order.
pub(super) fn sorted<T>(
    items: Vec<T>,
    compare: impl Fn(&T, &T) -> Outcome<Option<Ordering>>,
) -> Outcome<Vec<T>> {
    let mut runs: Vec<Vec<T>> = items.into_iter().map(|item| vec![item]).collect();
    while runs.len() > 1 {
        let mut longer = Vec::with_capacity(runs.len().div_ceil(2));
        let mut rest = runs.into_iter();
        while let Some(left) = rest.next() {
            longer.push(match rest.next() {
                Some(right) => merged(left, right, &compare)?,
                None => left,
            });
        }
        runs = longer;
    }
    Ok(runs.pop().unwrap_or_default())
}

fn merged<T>(
    left: Vec<T>,
    right: Vec<T>,
    compare: impl Fn(&T, &T) -> Outcome<Option<Ordering>>,
) -> Outcome<Vec<T>> {
    let mut out = Vec::with_capacity(left.len().saturating_add(right.len()));
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let order = compare(a, b)?.ok_or_else(|| fail("sorting by nan is not available"))?;
        // Of equals, those on the left stay first.
        out.extend(match order {
            Ordering::Greater => right.next(),
            _ => left.next(),
        });
    }
    out.extend(left);
    out.extend(right);
    Ok(out)
}
