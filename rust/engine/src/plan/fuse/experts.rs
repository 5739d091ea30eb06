//! What is joined of a layer's experts, beside their products.

use super::{gate, is_live, Epilogue, Fused, Part};
use crate::plan::{BufferId, Op, Plan};

/// The gate whose two sides are the halves of the rows of one matrix, or of each expert's: behind a
/// product of `x`, from `at` on, two slices and the activation. None where the activation goes to `x`,
/// of which other blocks of the kernel may still be reading.
pub fn halves(plan: &Plan, at: usize, x: BufferId, parts: &[Part]) -> Option<(Epilogue, usize)> {
    let &[Part {
        weight,
        bias: None,
        out: both,
        ..
    }] = parts
    else {
        return None;
    };
    let [first, second, activation, ..] = &plan.ops[at..] else {
        return None;
    };
    let (kind, [of, up, out]) = gate(activation)?;
    let rows = plan.weight(weight).n_out;
    let is_half = |op: &Op, wanted: BufferId, begin: usize| match *op {
        Op::Slice {
            x: from,
            out: half,
            n,
            first,
            of: whole,
        } => {
            let width = |id| plan.buffer(id).width;
            (from, half, first, whole) == (both, wanted, begin, rows)
                && (width(from), width(half)) == (n * rows, n * (rows / 2))
        }
        _ => false,
    };
    let are_halves = rows.is_multiple_of(2)
        && of != up
        && is_half(first, of, 0)
        && is_half(second, up, rows / 2);
    let are_dead = [both, of, up]
        .iter()
        .all(|id| *id != out && !is_live(plan, at + 3, *id));
    if !are_halves || !are_dead || out == x {
        return None;
    }
    let epilogue = Epilogue::Gated { gate: kind, out };
    Some((epilogue, 3))
}

/// The choice of experts at `at`, with a factor of its logits before it and factors of the experts
/// behind it, where nothing else wants the logits.
pub fn route(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let (scaled, factor) = match plan.ops[at] {
        Op::Scale { x, factor } => (Some(x), Some(factor)),
        _ => (None, None),
    };
    let begin = at + usize::from(factor.is_some());
    let choice = plan.ops.get(begin)?;
    let &Op::Route { logits, out, .. } = choice else {
        return None;
    };
    if scaled.is_some_and(|x| x != logits) {
        return None;
    }
    let scales = match plan.ops.get(begin + 1) {
        // Every id that is chosen has one.
        Some(Op::ScaleRanks { routes, weight })
            if *routes == out && plan.weight(*weight).n_in == plan.buffer(logits).width =>
        {
            Some(*weight)
        }
        _ => None,
    };
    let end = begin + 1 + usize::from(scales.is_some());
    let is_alone = factor.is_none() || !is_live(plan, end, logits);
    if !is_alone || (factor, scales) == (None, None) {
        return None;
    }
    let fused = Fused::Route {
        factor,
        choice: choice.clone(),
        scales,
    };
    Some((fused, end - at))
}

/// The weighted sum of experts at `at`, with the residual sum behind it, if there is one.
pub fn mix(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let Op::MixExperts { x, routes, out } = plan.ops[at] else {
        return None;
    };
    let residual = match plan.ops.get(at + 1) {
        Some(Op::Add { x: sum, out: to }) if *sum == out && *to != x && *to != routes => Some(*to),
        _ => None,
    };
    let residual = residual.filter(|_| !is_live(plan, at + 2, out));
    let used = 1 + usize::from(residual.is_some());
    let fused = Fused::Mix {
        x,
        routes,
        out: residual.unwrap_or(out),
        adds: residual.is_some(),
    };
    (!is_live(plan, at + used, x)).then_some((fused, used))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, product_of, SUM, X};
    use super::super::{fuse, Fused, Gate};
    use super::*;
    use crate::plan::{Gating, Rows, Weight, WeightId};
    use crate::quant;

    const WEIGHT: WeightId = WeightId(3);

    /// Two experts of 64 and 128 rows, two of which a row goes to.
    fn experts(ops: impl FnOnce(BufferId, BufferId) -> Vec<Op>) -> Vec<Fused> {
        let mut plan = plan(Vec::new());
        let both = plan.add_buffer("both", 256, Rows::Batch);
        let routes = plan.add_buffer("routes", 4, Rows::Batch);
        for name in ["gate", "up", "act"] {
            plan.add_buffer(name, 128, Rows::Batch);
        }
        for (name, n_in, n_out, n_expert) in [("both", 64, 128, 2), ("scales", 64, 1, 1)] {
            plan.add_weight(Weight {
                name: name.into(),
                n_in,
                n_out,
                n_expert,
                ty: &quant::TYPES[0],
            });
        }
        plan.ops = ops(both, routes);
        plan.check().unwrap();
        fuse(&plan)
    }

    const GATE: BufferId = BufferId(7);
    const UP: BufferId = BufferId(8);
    const ACT: BufferId = BufferId(9);

    fn slice(x: BufferId, out: BufferId, first: usize) -> Op {
        Op::Slice {
            x,
            out,
            n: 2,
            first,
            of: 128,
        }
    }

    fn product(routes: BufferId, out: BufferId) -> Op {
        Op::ExpertMatVec {
            x: X,
            ranked: false,
            norm: None,
            routes,
            weight: WEIGHT,
            scale: None,
            bias: None,
            out,
        }
    }

    #[test]
    fn halves_of_a_product_and_their_gate_are_joined_where_they_are_all_of_it() {
        let gated = |gate, up| Op::GeGlu { gate, up, out: ACT };
        let found = experts(|both, routes| {
            vec![
                product(routes, both),
                slice(both, GATE, 0),
                slice(both, UP, 64),
                gated(GATE, UP),
            ]
        });
        let wanted = Epilogue::Gated {
            gate: Gate::Ge,
            out: ACT,
        };
        assert!(
            matches!(&found[..], [Fused::MatVec { parts, epilogue, .. }]
                if parts.len() == 1 && *epilogue == wanted),
            "{found:?}"
        );
        for ops in [
            // The gate is the second half, one half is both, one begins elsewhere, or is read again.
            |both| vec![slice(both, UP, 0), slice(both, GATE, 64)],
            |both| vec![slice(both, GATE, 0), slice(both, UP, 0)],
            |both| vec![slice(both, GATE, 0), slice(both, UP, 32)],
        ] {
            let found = experts(|both, routes| {
                let mut list = vec![product(routes, both)];
                list.extend(ops(both));
                list.push(gated(GATE, UP));
                list
            });
            assert_eq!(found.len(), 4);
        }
        let again = experts(|both, routes| {
            vec![
                product(routes, both),
                slice(both, GATE, 0),
                slice(both, UP, 64),
                gated(GATE, UP),
                Op::Add { x: GATE, out: ACT },
            ]
        });
        assert_eq!(again.len(), 5);
    }

    #[test]
    fn factors_before_and_behind_a_choice_of_experts_are_joined_with_it() {
        let logits = BufferId(1);
        let choice = |routes| Op::Route {
            logits,
            bias: None,
            out: routes,
            gating: Gating::Softmax,
            renormalize: true,
            scale: 1.0,
        };
        let scale = |x| Op::Scale { x, factor: 0.5 };
        let scales = WeightId(4);
        let weight = scales;
        let behind = |routes| Op::ScaleRanks { routes, weight };
        for (before, after) in [(true, true), (true, false), (false, true)] {
            let found = experts(|_, routes| {
                let all = [scale(logits), choice(routes), behind(routes)];
                let wanted = [before, true, after];
                let list = all.into_iter().zip(wanted);
                list.filter(|(_, is)| *is).map(|(op, _)| op).collect()
            });
            let wanted = Fused::Route {
                factor: before.then_some(0.5),
                choice: choice(BufferId(6)),
                scales: after.then_some(scales),
            };
            assert_eq!(found, [wanted]);
        }
        // Alone it stays an op; logits that are wanted scaled are scaled.
        let alone = experts(|_, routes| vec![choice(routes)]);
        assert_eq!(alone, [Fused::Single(choice(BufferId(6)))]);
        let read = experts(|_, routes| vec![scale(logits), choice(routes), product_of(logits, 2)]);
        assert_eq!(read.len(), 3);
        let other = experts(|_, routes| vec![scale(SUM), choice(routes)]);
        assert_eq!(other.len(), 2);
    }
}
