//! Products whose outputs are sliced, as one product for each slice of the rows.

use super::{is_live, Multiplied, Part, MOST_PARTS};
use crate::plan::{Op, Plan};

/// Of each `of` rows of a matrix `len` from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowSlice {
    pub first: usize,
    pub len: usize,
    pub of: usize,
}

/// Rows of a tile of weights: a slice has whole ones, and as many rows of the matrix fall to each.
pub const TILE_ROWS: usize = 16;

/// `parts`, the sums of the first of which the two ops at `at` take apart, as products of their own with
/// its rows; and how many ops that are.
pub fn slices(
    plan: &Plan,
    at: usize,
    of: &Multiplied,
    parts: &[Part],
) -> Option<(Vec<Part>, usize)> {
    let (whole, others) = parts.split_first()?;
    let rows = plan.weight(whole.weight).n_out;
    let sliced = |op: &Op| match *op {
        Op::Slice {
            x,
            out,
            n,
            first,
            of,
        } if x == whole.out && n * of == rows => {
            let len = plan.buffer(out).width / n;
            let slice = RowSlice { first, len, of };
            let part = Part {
                out,
                slice: Some(slice),
                ..*whole
            };
            let is_whole = len.is_multiple_of(TILE_ROWS) && (TILE_ROWS * of).is_multiple_of(len);
            is_whole.then_some((part, slice))
        }
        _ => None,
    };
    let [first, second, ..] = plan.ops.get(at..)? else {
        return None;
    };
    let ((first, a), (second, b)) = (sliced(first)?, sliced(second)?);
    let are_all = (a.first, a.len) == (0, b.first) && a.of == b.of && b.first + b.len == b.of;
    let is_taken = |id| id == of.x || others.iter().any(|part| part.out == id);
    let are_apart = first.out != second.out && !is_taken(first.out) && !is_taken(second.out);
    let is_plain = of.experts.is_none() && whole.bias.is_none();
    let is_dead = !is_live(plan, at + 2, whole.out);
    let parts = [first, second].into_iter().chain(others.iter().copied());
    let parts: Vec<_> = parts.collect();
    let is_sliced = are_all && are_apart && is_plain && is_dead && parts.len() <= MOST_PARTS;
    is_sliced.then_some((parts, 2))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, product_of, SUM, X};
    use super::super::{fuse, Epilogue, Fused};
    use super::*;
    use crate::plan::{BufferId, Rows, WeightId};

    const FIRST: BufferId = BufferId(5);
    const SECOND: BufferId = BufferId(6);

    fn slice(out: BufferId, first: usize) -> Op {
        Op::Slice {
            x: SUM,
            out,
            n: 2,
            first,
            of: 32,
        }
    }

    /// The fused list of these ops, of which the last two buffers have `widths`.
    fn fused(ops: Vec<Op>, widths: [usize; 2]) -> Vec<Fused> {
        let mut plan = plan(Vec::new());
        for (name, width) in ["first", "second"].into_iter().zip(widths) {
            plan.add_buffer(name, width, Rows::Batch);
        }
        plan.ops = ops;
        plan.logits = SECOND;
        plan.check().unwrap();
        fuse(&plan)
    }

    fn whole() -> Op {
        product_of(X, SUM.0)
    }

    #[test]
    fn sums_that_are_taken_apart_are_products_with_some_of_the_rows() {
        let other = product_of(X, 1);
        let found = fused(
            vec![whole(), other, slice(FIRST, 0), slice(SECOND, 16)],
            [32, 32],
        );
        let [Fused::MatVec {
            parts,
            epilogue: Epilogue::Store,
            ..
        }] = &found[..]
        else {
            panic!("{found:?}");
        };
        let slice = |first| {
            Some(RowSlice {
                first,
                len: 16,
                of: 32,
            })
        };
        let parts: Vec<_> = parts.iter().map(|part| (part.out, part.slice)).collect();
        let wanted = [(FIRST, slice(0)), (SECOND, slice(16)), (BufferId(1), None)];
        assert_eq!(parts, wanted);
    }

    #[test]
    fn others_stay_as_they_are() {
        let both = || vec![slice(FIRST, 0), slice(SECOND, 16)];
        let after = |more: Vec<Op>| [vec![whole()], both(), more].concat();
        let biased = match whole() {
            Op::MatVec {
                x,
                norm,
                weight,
                scale,
                out,
                ..
            } => Op::MatVec {
                x,
                norm,
                weight,
                bias: Some(WeightId(0)),
                scale,
                out,
            },
            other => other,
        };
        let add = Op::Add { x: SUM, out: X };
        for (ops, widths) in [
            // Read again; a bias of its own; in another order; not all of it; of no whole tiles.
            (after(vec![add]), [32, 32]),
            ([vec![biased], both()].concat(), [32, 32]),
            (vec![whole(), slice(SECOND, 16), slice(FIRST, 0)], [32, 32]),
            (vec![whole(), slice(FIRST, 0), slice(SECOND, 0)], [32, 32]),
            (vec![whole(), slice(FIRST, 0), slice(SECOND, 8)], [16, 48]),
            (vec![whole(), slice(FIRST, 0)], [32, 32]),
            // More matrices than a launch has.
            (
                [
                    vec![
                        whole(),
                        product_of(X, 1),
                        product_of(X, 2),
                        product_of(X, 3),
                    ],
                    both(),
                ]
                .concat(),
                [32, 32],
            ),
        ] {
            let found = fused(ops.clone(), widths);
            let slices = found
                .iter()
                .filter(|op| matches!(op, Fused::Single(Op::Slice { .. })));
            let wanted = ops.iter().filter(|op| matches!(op, Op::Slice { .. }));
            assert_eq!(slices.count(), wanted.count(), "{ops:?}");
        }
    }
}
