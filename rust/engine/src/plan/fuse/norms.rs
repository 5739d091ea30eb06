//! Norms and what meets them: sums, gates and other norms of the same row.

use super::rule::{Match, Site};
use super::{Fused, GateOp, NormAdd, NormPair};
use crate::plan::{BufferId, Op, WeightId};

/// The factor of all of `out` at `at`, where there is one.
fn factor(site: &Site<'_>, at: usize, out: BufferId) -> Option<WeightId> {
    match site.op(at) {
        Some(Op::ScaleBy { x, weight }) if *x == out => Some(*weight),
        _ => None,
    }
}

/// Of models with two feed-forward parts side by side: the norms of two rows, their sum, the norm of that and the residual sum behind it.
pub fn norm_pair(site: &Site<'_>) -> Option<Match> {
    let [a, b, last] = [site.norm(0)?, site.norm(1)?, site.norm(3)?];
    let ([added, sum], [delta, out]) = (site.add(2)?, site.add(4)?);
    let is_chain = [added, sum, last.x, delta] == [b.out, a.out, sum, last.out];
    let are_alike = [b, last]
        .iter()
        .all(|n| (n.group, n.norm.eps) == (a.group, a.norm.eps));
    let factor = factor(site, 5, out);
    let fused = Fused::NormPair(NormPair {
        pair: [a, b].map(|n| (n.x, n.norm.weight)),
        norm: last.norm,
        group: a.group,
        out,
        factor,
    });
    Match::of(fused, 5 + usize::from(factor.is_some())).filter(|_| is_chain && are_alike)
}

/// A norm and the residual sum behind it: of models that normalize what a block gives before they add it.
pub fn norm_add(site: &Site<'_>) -> Option<Match> {
    let (normed, [added, out]) = (site.norm(0)?, site.add(1)?);
    let factor = factor(site, 2, out);
    let fused = Fused::NormAdd(NormAdd {
        x: normed.x,
        norm: normed.norm,
        group: normed.group,
        out,
        factor,
    });
    Match::of(fused, 2 + usize::from(factor.is_some())).filter(|_| added == normed.out)
}

/// A norm and the gate behind it, of heads of the gated delta rule; or a gate of rows as they are.
pub fn norm_gate(site: &Site<'_>) -> Option<Match> {
    if let Op::SigmoidMul { x, gate, out } = *site.op(0)? {
        let norm = None;
        return Match::of(Fused::Gate(GateOp { x, gate, out, norm }), 1);
    }
    let (normed, &Op::SwiGlu { gate, up, out }) = (site.norm(0)?, site.op(1)?) else {
        return None;
    };
    let fused = Fused::Gate(GateOp {
        x: normed.x,
        gate,
        out,
        norm: Some((normed.norm, normed.group)),
    });
    Match::of(fused, 2).filter(|_| up == normed.out)
}
