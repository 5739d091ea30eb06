//! What is fused of a layer's experts, beside their products.

use super::rule::{Match, Site};
use super::{Fused, MixOp};
use crate::plan::Op;

/// The choice of experts, with a factor of its logits before it and factors of the experts behind it.
pub fn route(site: &Site<'_>) -> Option<Match> {
    let scaled = match site.get(0)? {
        Fused::Single(Op::Scale { x, factor }) => Some((*x, *factor)),
        _ => None,
    };
    let at = usize::from(scaled.is_some());
    let Fused::Route(mut route) = *site.get(at)? else {
        return None;
    };
    route.factor = scaled.map_or(1.0, |(_, factor)| factor);
    route.scales = match site.op(at + 1) {
        // Every id that is chosen has one.
        Some(Op::ScaleRanks { routes, weight })
            if *routes == route.out
                && site.plan.weight(*weight).n_in == site.width(route.logits) =>
        {
            Some(*weight)
        }
        _ => None,
    };
    let count = at + 1 + usize::from(route.scales.is_some());
    let is_its = scaled.is_none_or(|(x, _)| x == route.logits);
    Match::of(Fused::Route(route), count).filter(|_| is_its && count > 1)
}

/// The weighted sum of experts.
pub fn mix(site: &Site<'_>) -> Option<Match> {
    sum(site, false)
}

/// The same, and the residual sum behind it.
pub fn mix_add(site: &Site<'_>) -> Option<Match> {
    sum(site, true)
}

fn sum(site: &Site<'_>, adds: bool) -> Option<Match> {
    let &Op::MixExperts {
        x,
        routes,
        out: sum,
    } = site.op(0)?
    else {
        return None;
    };
    let [added, out] = if adds { site.add(1)? } else { [sum; 2] };
    let mix = MixOp {
        x,
        routes,
        out,
        adds,
    };
    Match::of(Fused::Mix(mix), 1 + usize::from(adds)).filter(|_| added == sum)
}
