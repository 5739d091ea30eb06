//! Norms and what meets them: sums, gates and other norms of the same row.

use super::{is_live, Fused};
use crate::plan::{BufferId, Norm, Op, Plan, WeightId};

/// The factor of all of `out` at `at`, where there is one.
fn factor(plan: &Plan, at: usize, out: BufferId) -> Option<WeightId> {
    match plan.ops.get(at) {
        Some(Op::ScaleBy { x, weight }) if *x == out => Some(*weight),
        _ => None,
    }
}

/// The norms of two rows at `at`, their sum, the norm of that and the residual sum behind it, where
/// nothing else wants what is between: of models with two feed-forward parts side by side.
pub fn norm_pair(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let [Op::RmsNorm {
        x: a,
        weight: Some(of_a),
        out: a_normed,
        group,
        eps,
    }, Op::RmsNorm {
        x: b,
        weight: Some(of_b),
        out: b_normed,
        group: b_group,
        eps: b_eps,
    }, Op::Add { x: added, out: sum }, Op::RmsNorm {
        x: sum_in,
        weight: Some(weight),
        out: normed,
        group: sum_group,
        eps: sum_eps,
    }, Op::Add { x: delta, out }, ..] = plan.ops[at..]
    else {
        return None;
    };
    let is_chain = (added, sum) == (b_normed, a_normed) && (sum_in, delta) == (sum, normed);
    let are_alike = [(b_group, b_eps), (sum_group, sum_eps)] == [(group, eps); 2];
    let between = [a_normed, b_normed, normed];
    // What is normalized is what the ops before have left there.
    let are_apart = b != a_normed && a_normed != b_normed && ![a, b].contains(&out);
    let are_dead = between
        .iter()
        .all(|id| *id != out && !is_live(plan, at + 5, *id));
    if !(is_chain && are_alike && are_apart && are_dead) {
        return None;
    }
    let factor = factor(plan, at + 5, out);
    let fused = Fused::NormPair {
        pair: [(a, of_a), (b, of_b)],
        norm: Norm { weight, eps },
        group,
        out,
        factor,
    };
    Some((fused, 5 + usize::from(factor.is_some())))
}

/// The norm at `at` and the residual sum behind it, where nothing else wants what the norm gives: of
/// models that normalize what a block gives before they add it.
pub fn norm_add(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let [Op::RmsNorm {
        x,
        weight: Some(weight),
        out: normed,
        group,
        eps,
    }, Op::Add { x: sum, out }, ..] = plan.ops[at..]
    else {
        return None;
    };
    if sum != normed || out == x || is_live(plan, at + 2, normed) {
        return None;
    }
    let factor = factor(plan, at + 2, out);
    let fused = Fused::NormAdd {
        x,
        norm: Norm { weight, eps },
        group,
        out,
        factor,
    };
    Some((fused, 2 + usize::from(factor.is_some())))
}

/// The norm at `at` and the gate behind it, where nothing else wants what the norm gives: of heads of
/// the gated delta rule.
pub fn norm_gate(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let [Op::RmsNorm {
        x,
        weight,
        out: normed,
        group,
        eps,
    }, Op::SwiGlu { gate, up, out }, ..] = plan.ops[at..]
    else {
        return None;
    };
    let weight = weight?;
    let is_alone = up == normed && gate != normed && out != x && !is_live(plan, at + 2, normed);
    let fused = Fused::NormGate {
        x,
        norm: Norm { weight, eps },
        group,
        gate,
        out,
    };
    is_alone.then_some((fused, 2))
}

#[cfg(test)]
mod tests {
    use super::super::fuse;
    use super::super::tests::{plan, product_of, NORM, SUM};
    use super::*;

    fn norm(x: BufferId, out: BufferId) -> Op {
        Op::RmsNorm {
            x,
            weight: Some(NORM.weight),
            out,
            group: 64,
            eps: NORM.eps,
        }
    }

    fn add(x: BufferId, out: BufferId) -> Op {
        Op::Add { x, out }
    }

    fn scale(x: BufferId) -> Op {
        let weight = WeightId(2);
        Op::ScaleBy { x, weight }
    }

    const A: BufferId = BufferId(1);
    const B: BufferId = BufferId(2);
    const C: BufferId = BufferId(3);

    #[test]
    fn a_norm_is_joined_with_the_residual_alone() {
        let (a, b) = (A, B);
        for (ops, n) in [
            (vec![norm(a, a), add(a, SUM)], 1),
            (vec![norm(a, b), add(b, SUM)], 1),
            // A factor of the sum is joined too, one of something else is not.
            (vec![norm(a, a), add(a, SUM), scale(SUM)], 1),
            (vec![norm(a, a), add(a, SUM), scale(b)], 2),
            // What is normalized is what is added to.
            (vec![norm(a, b), add(b, a)], 2),
            // Another sum, and a norm that is read again.
            (vec![norm(a, b), add(a, SUM)], 2),
            (vec![norm(a, a), add(a, SUM), product_of(a, 2)], 3),
        ] {
            assert_eq!(fuse(&plan(ops.clone())).len(), n, "{ops:?}");
        }
    }

    #[test]
    fn norms_that_meet_are_joined_where_nothing_else_wants_them() {
        let wanted = |factor| Fused::NormPair {
            pair: [(A, NORM.weight), (B, NORM.weight)],
            norm: NORM,
            group: 64,
            out: SUM,
            factor,
        };
        let chain = [norm(A, A), norm(B, B), add(B, A), norm(A, A), add(A, SUM)];
        assert_eq!(fuse(&plan(chain.to_vec())), [wanted(None)]);
        let with = |more: Op| [&chain[..], &[more]].concat();
        let scaled = fuse(&plan(with(scale(SUM))));
        assert_eq!(scaled, [wanted(Some(WeightId(2)))]);
        // Elsewhere than in place.
        let apart = [norm(A, C), norm(B, B), add(B, C), norm(C, C), add(C, SUM)];
        assert_eq!(fuse(&plan(apart.to_vec())), [wanted(None)]);
        let replaced = |i: usize, by: Op| {
            let mut ops = chain.to_vec();
            ops[i] = by;
            ops
        };
        for ops in [
            // Something between is read again.
            with(product_of(A, 2)),
            with(product_of(B, 3)),
            // The second norm is one of the first, the sum goes elsewhere, or to what is normalized.
            replaced(1, norm(A, B)),
            replaced(2, add(C, A)),
            replaced(3, norm(C, A)),
            replaced(4, add(A, B)),
        ] {
            let fused = fuse(&plan(ops.clone()));
            let is_pair = |op: &Fused| matches!(op, Fused::NormPair { .. });
            assert!(!fused.iter().any(is_pair), "{ops:?}");
        }
    }

    #[test]
    fn a_norm_is_joined_with_the_gate_behind_it_alone() {
        let (a, b, c) = (A, B, C);
        let gated = |gate, up, out| Op::SwiGlu { gate, up, out };
        for (ops, n) in [
            (vec![norm(a, a), gated(b, a, c)], 1),
            (vec![norm(a, b), gated(c, b, SUM)], 1),
            // The gate is what is normalized, or what was goes to another place.
            (vec![norm(a, a), gated(a, b, c)], 2),
            (vec![norm(a, b), gated(c, b, a)], 2),
            // What the norm gives is read again.
            (vec![norm(a, a), gated(b, a, c), product_of(a, 2)], 3),
        ] {
            assert_eq!(fuse(&plan(ops.clone())).len(), n, "{ops:?}");
        }
    }
}
