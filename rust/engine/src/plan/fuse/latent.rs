//! The row that a layer of latent attention caches.

use super::rule::{Match, Site};
use super::{Cut, Fused, LatentRow};
use crate::plan::signature::Rotation;
use crate::plan::{BufferId, Op};

/// What a launch stores at a time.
const STORED: usize = 4;

/// Heads and what is cut from them, all that is not rotated and all that is, if the ops of this place cut so.
fn cut(site: &Site<'_>) -> Option<(Cut, BufferId, usize)> {
    let sliced = |at| match *site.op(at)? {
        Op::Slice {
            x,
            out,
            n,
            first,
            of,
        } => Some((x, out, [n, first, of])),
        _ => None,
    };
    let ((all, plain, a), (second, q, b)) = (sliced(0)?, sliced(1)?);
    let (n_head, width) = (a[0], a[2]);
    let [plain_width, rotated] = [plain, q].map(|id| site.width(id) / n_head);
    let are_all = a[1] == 0 && b == [n_head, plain_width, width] && plain_width + rotated == width;
    (are_all && second == all).then_some((Cut { all, plain }, q, n_head))
}

/// The norm of one part of it, the rotation of the other one and of queries, and both parts side by side;
/// before them, what cuts queries.
pub fn row(site: &Site<'_>) -> Option<Match> {
    let cut = cut(site);
    let begin = if cut.is_some() { 2 } else { 0 };
    let normed = site.norm(begin)?;
    let rotated = |at| match *site.op(at)? {
        Op::Rope {
            x,
            n_head,
            table,
            style,
        } => Some(((x, n_head), Rotation { table, style })),
        _ => None,
    };
    let ((y, 1), rotation) = rotated(begin + 1)? else {
        return None;
    };
    let ((q, n_head), of_queries) = rotated(begin + 2)?;
    let &Op::Join {
        x,
        y: second,
        out,
        n: 1,
        of,
    } = site.op(begin + 3)?
    else {
        return None;
    };
    let half = site.plan.ropes[rotation.table].inv_freq.len();
    let are_its = [normed.x, normed.out, second] == [x, x, y] && of_queries == rotation;
    let are_whole = of == [normed.group, 2 * half] && site.width(q) == n_head * of[1];
    let are_apart = [x, y, q].iter().all(|id: &BufferId| *id != out) && q != y && q != x;
    let fused = Fused::LatentRow(LatentRow {
        x,
        norm: normed.norm,
        y,
        q,
        n_head,
        out,
        of,
        rotation,
        cut: cut.map(|(cut, ..)| cut),
    });
    let is_cut = cut.is_none_or(|(_, its, heads)| (its, heads) == (q, n_head));
    let fits = are_its && are_whole && are_apart && is_cut && of[1].is_multiple_of(STORED);
    Match::of(fused, begin + 4).filter(|_| fits)
}
