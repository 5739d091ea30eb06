//! What goes from token to token: heads that are normalized and rotated, and layers that keep a state.

use super::rule::{Match, Site};
use super::{Fused, NormedHeads, QkNormRope, Values};
use crate::plan::signature::Rotation;
use crate::plan::{BufferId, Op, RopeStyle};

/// Widest heads that one launch normalizes and rotates, and what their halves are multiples of.
const MOST_ROTATED_DIM: usize = 512;
const ROTATED_MULTIPLE: usize = 8;

/// Widest heads of which a lane has eight values. Of wider ones it has as many of a second 256, and
/// finds partners in other lanes' first ones, up to this half, or in its own second ones.
pub const MOST_NEAR_DIM: usize = 256;
const MOST_NEAR_HALF: usize = 128;
const FAR_HALF: usize = 256;

/// The norms of queries' and keys' heads and their rotations behind them, alike but for their weights; the
/// norm of values' heads before them, where there is one.
pub fn norm_rope(site: &Site<'_>) -> Option<Match> {
    let (values, at) = match *site.op(0)? {
        Op::RmsNorm {
            x,
            weight: None,
            out,
            group,
            eps,
        } => (Some((x, out, group, eps)), 1),
        _ => (None, 0),
    };
    let [q, k] = [site.norm(at)?, site.norm(at + 1)?];
    let head_dim = q.group;
    let rotated = |x: BufferId, at| match *site.op(at)? {
        Op::Rope {
            x: its,
            n_head,
            table,
            style,
        } if its == x && site.width(x) == n_head * head_dim => Some(Rotation { table, style }),
        _ => None,
    };
    let rotation = rotated(q.x, at + 2)?;
    let half = site.plan.ropes[rotation.table].inv_freq.len();
    let are_found =
        rotation.style == RopeStyle::Halves && (half <= MOST_NEAR_HALF || half == FAR_HALF);
    let fits = head_dim <= MOST_ROTATED_DIM
        && [head_dim, half]
            .iter()
            .all(|n| n.is_multiple_of(ROTATED_MULTIPLE))
        && (head_dim <= MOST_NEAR_DIM || are_found);
    let eps = q.norm.eps;
    let are_alike = (k.group, k.norm.eps) == (head_dim, eps)
        && rotated(k.x, at + 3) == Some(rotation)
        && [q, k].iter().all(|heads| heads.x == heads.out);
    let are_keys = |x, out| x == k.x && site.width(x) == site.width(out);
    let is_like = values.is_none_or(|(x, out, group, its)| {
        (group, its) == (head_dim, eps) && (x == out || are_keys(x, out))
    });
    let [queries, keys] = [q, k].map(|heads| NormedHeads {
        x: heads.x,
        weight: heads.norm.weight,
    });
    let fused = Fused::QkNormRope(QkNormRope {
        queries,
        keys,
        values: values.map(|(x, out, ..)| Values {
            out,
            are_keys: are_keys(x, out),
        }),
        head_dim,
        eps,
        rotation,
    });
    Match::of(fused, at + 4).filter(|_| fits && are_alike && is_like)
}

/// A convolution and the rule behind it.
pub fn convolved(site: &Site<'_>) -> Option<Match> {
    let [conv, rule] = [site.op(0)?, site.op(1)?].map(Clone::clone);
    let is_its = match (&conv, &rule) {
        (
            Op::ShortConv {
                out,
                silu,
                bias: None,
                part: None,
                dilation: 1,
                ..
            },
            Op::DeltaNet { qkv, .. },
        ) => *silu && qkv == out,
        _ => false,
    };
    Match::of(Fused::ConvolvedRule { conv, rule }, 2).filter(|_| is_its)
}
