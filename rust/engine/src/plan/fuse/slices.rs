//! Products whose outputs are sliced, as one product for each slice of the rows.

use super::products::run;
use super::rule::{Match, Site};
use super::{Fused, Part, MOST_PARTS};
use crate::plan::Op;

/// Of each `of` rows of a matrix `len` from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowSlice {
    pub first: usize,
    pub len: usize,
    pub of: usize,
}

/// Rows of a tile of weights: a slice has whole ones, and as many rows of the matrix fall to each.
pub const TILE_ROWS: usize = 16;

/// Products, and two slices behind them that take the sums of the first apart: products of their own with
/// its rows.
pub fn slices(site: &Site<'_>) -> Option<Match> {
    let (mut products, count) = run(site)?;
    let whole = products.parts[0];
    let rows = site.plan.weight(whole.weight).n_out;
    let sliced = |at| match *site.op(at)? {
        Op::Slice {
            x,
            out,
            n,
            first,
            of,
        } if x == whole.out && n * of == rows => {
            let len = site.width(out) / n;
            let slice = RowSlice { first, len, of };
            let part = Part {
                out,
                slice: Some(slice),
                ..whole
            };
            let is_whole = len.is_multiple_of(TILE_ROWS) && (TILE_ROWS * of).is_multiple_of(len);
            is_whole.then_some((part, slice))
        }
        _ => None,
    };
    let [(first, a), (second, b)] = [sliced(count)?, sliced(count + 1)?];
    let are_all = (a.first, a.len) == (0, b.first) && a.of == b.of && b.first + b.len == b.of;
    let is_plain = products.experts.is_none() && whole.bias.is_none();
    products.parts.splice(..1, [first, second]);
    let is_sliced = are_all && is_plain && products.parts.len() <= MOST_PARTS;
    Match::of(Fused::MatVec(products), count + 2).filter(|_| is_sliced)
}
