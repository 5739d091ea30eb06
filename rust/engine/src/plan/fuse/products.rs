//! Products: those of one x, and what becomes of their sums.

use super::rule::{Match, Site};
use super::{Epilogue, Experts, Fused, Gate, Part, PassFusion, ProductOp, MOST_PARTS};
use crate::plan::signature::Rotation;
use crate::plan::{BufferId, Op};

/// The product by itself, if it is one.
pub fn single(op: &Op) -> Option<ProductOp> {
    let (x, norm, experts, weight, scale, bias, out) = match *op {
        Op::MatVec {
            x,
            norm,
            weight,
            scale,
            bias,
            out,
        } => (x, norm, None, weight, scale, bias, out),
        Op::ExpertMatVec {
            x,
            ranked,
            norm,
            routes,
            weight,
            scale,
            bias,
            out,
        } => {
            let experts = Some(Experts { routes, ranked });
            (x, norm, experts, weight, scale, bias, out)
        }
        _ => return None,
    };
    let part = Part {
        weight,
        scale,
        bias,
        out,
        slice: None,
    };
    Some(ProductOp {
        number: 0,
        x,
        norm,
        experts,
        parts: vec![part],
        epilogue: Epilogue::Store,
        fusion: PassFusion::Nothing,
        shared: None,
    })
}

/// The products of one x and one norm that come first, as one, and how many they are.
pub fn run(site: &Site<'_>) -> Option<(ProductOp, usize)> {
    let mut all = site.product(0)?.clone();
    let mut count = 1;
    while let Some(next) = site.product(count).filter(|_| count < MOST_PARTS) {
        let is_like = (next.x, next.norm, next.experts) == (all.x, all.norm, all.experts);
        // Products of integers and of floats have different kernels.
        if !is_like || site.are_integers(next) != site.are_integers(&all) {
            break;
        }
        all.parts.extend(&next.parts);
        count += 1;
    }
    Some((all, count))
}

/// `N` products of one x, and so many ops behind them that are their epilogue: that of the place where these
/// begin.
fn with<const N: usize>(
    site: &Site<'_>,
    epilogue: impl FnOnce([Part; N], usize) -> Option<(Epilogue, usize)>,
) -> Option<Match> {
    let (mut products, count) = run(site)?;
    let parts = <[Part; N]>::try_from(&products.parts[..]).ok()?;
    let (epilogue, more) = epilogue(parts, count)?;
    products.epilogue = epilogue;
    Match::of(Fused::MatVec(products), count + more)
}

/// Several products of one x.
pub fn products(site: &Site<'_>) -> Option<Match> {
    let (products, count) = run(site)?;
    Match::of(Fused::MatVec(products), count).filter(|_| count > 1)
}

/// A product and the residual sum behind it, with a factor between where there is one.
pub fn residual(site: &Site<'_>) -> Option<Match> {
    with(site, |[part], at| {
        let (scale, more) = match *site.op(at)? {
            Op::Scale { x, factor } if x == part.out => (factor, 1),
            _ => (1.0, 0),
        };
        let [added, out] = site.add(at + more)?;
        (added == part.out).then_some((Epilogue::Add { out, scale }, 1 + more))
    })
}

/// The gate that an op is, of what it lets through which, and where that goes.
fn gate(op: &Op) -> Option<(Gate, [BufferId; 3])> {
    match *op {
        Op::SwiGlu { gate, up, out } => Some((Gate::Swi, [gate, up, out])),
        Op::GeGlu { gate, up, out } => Some((Gate::Ge, [gate, up, out])),
        Op::ClampedSwiGlu { gate, up, out } => Some((Gate::ClampedSwi, [gate, up, out])),
        _ => None,
    }
}

/// Two products of one type, and the gate that one is of the other.
pub fn activation(site: &Site<'_>) -> Option<Match> {
    with(site, |[a, b], at| {
        let (gate, [of, up, out]) = gate(site.op(at)?)?;
        let [first, second] = [a, b].map(|part| site.plan.weight(part.weight).ty);
        let is_theirs = (of, up) == (a.out, b.out) && first == second;
        is_theirs.then_some((Epilogue::Gated { gate, out }, 1))
    })
}

/// A product and the gate whose two sides are the halves of the rows of its matrix, or of each expert's.
pub fn halves(site: &Site<'_>) -> Option<Match> {
    with(site, |[part], at| {
        let (gate, [of, up, out]) = gate(site.op(at + 2)?)?;
        let rows = site.plan.weight(part.weight).n_out;
        let is_half = |at, wanted: BufferId, begin: usize| match site.op(at) {
            Some(&Op::Slice {
                x,
                out,
                n,
                first,
                of,
            }) => {
                let widths = (site.width(x), site.width(out));
                (x, out, first, of) == (part.out, wanted, begin, rows)
                    && widths == (n * rows, n * (rows / 2))
            }
            _ => false,
        };
        let are_halves = rows.is_multiple_of(2)
            && of != up
            && is_half(at, of, 0)
            && is_half(at + 1, up, rows / 2);
        let is_plain = part.bias.is_none();
        (are_halves && is_plain).then_some((Epilogue::Gated { gate, out }, 3))
    })
}

/// Three products, of which the first two are rotated, all of each head.
pub fn qkv(site: &Site<'_>) -> Option<Match> {
    let rotated = |id: BufferId, at| match *site.op(at)? {
        Op::Rope {
            x,
            n_head,
            table,
            style,
        } => {
            let head_dim = site.width(x) / n_head;
            let is_whole = head_dim == 2 * site.plan.ropes[table].inv_freq.len();
            (x == id && is_whole).then_some((table, style, head_dim))
        }
        _ => None,
    };
    with(site, |[q, k, _], at| {
        let (table, style, head_dim) = rotated(q.out, at)?;
        let (key_table, key_style, key_dim) = rotated(k.out, at + 1)?;
        let are_alike = (key_style, key_dim) == (style, head_dim);
        let epilogue = Epilogue::Qkv {
            rotation: Rotation { table, style },
            key_table,
            head_dim,
        };
        (are_alike && head_dim.is_multiple_of(16)).then_some((epilogue, 2))
    })
}
