//! The shared expert, to which every row goes, fused into one row's products by routed experts: one rank
//! more of the first product, one term more of the last.

use super::experts::{chosen, MixOp};
use super::gate::Gate;
use super::lowering::{writes_none_of, Lowering, Pass};
use crate::plan::fuse::{Epilogue, Fused, Part};

/// A product of the shared expert, fused into that of the routed ones.
#[derive(Debug, Clone, Copy)]
pub struct SharedOp {
    /// Its place in the fused list.
    pub number: usize,
    /// What its x goes through, right before it.
    pub gate: Option<Gate>,
}

/// Whether products are multiplied by a scale of their own.
fn are_scaled(parts: &[Part]) -> bool {
    parts.iter().any(|part| part.scale.is_some())
}

/// The product at that number, if it is the first of an expert that every row goes to, and the next but
/// one, of which the router's comes between, chooses others for the same product of one row.
pub fn shared_up(l: &Lowering, pass: &Pass, number: usize) -> Option<SharedOp> {
    let [Fused::MatVec {
        x,
        norm,
        experts: None,
        parts,
        epilogue: Epilogue::Gated { gate, out },
        ..
    }, Fused::MatVec {
        x: of_router,
        experts: None,
        parts: router,
        epilogue: Epilogue::Store,
        ..
    }, rest @ ..] = &l.fused[number..]
    else {
        return None;
    };
    let [_, Fused::MatVec {
        x: its,
        norm: its_norm,
        parts: its_parts,
        epilogue: epilogue @ Epilogue::Gated { gate: its_gate, .. },
        ..
    }, ..] = rest
    else {
        return None;
    };
    let route = chosen(l, pass, rest)?;
    let is_like = (x, of_router, norm, gate) == (its, its, its_norm, its_gate)
        && l.are_integers(parts)
        && are_scaled(parts) == are_scaled(its_parts);
    // Nothing between reads what it writes or writes what it reads, nor do those of one launch.
    let is_apart = writes_none_of(router, &Epilogue::Store, &[*x, *out])
        && writes_none_of(its_parts, epilogue, &[*out])
        && ![route.logits, *x].contains(out);
    let op = SharedOp { number, gate: None };
    (is_like && is_apart).then_some(op)
}

/// The last product at that number, behind its gate, of an expert that every row goes to, if it adds to a
/// mix of what others give of the product `parts`.
pub fn shared_down(l: &Lowering, number: usize, mix: &MixOp, parts: &[Part]) -> Option<SharedOp> {
    let [before, Fused::MatVec {
        norm: None,
        experts: None,
        gated: true,
        parts: its,
        epilogue: epilogue @ Epilogue::Add { out, scale: 1.0 },
        ..
    }, ..] = &l.fused[number..]
    else {
        return None;
    };
    let gate = Gate::of(before).filter(|gate| gate.is_one(l))?;
    let ([part], [other]) = (parts, &its[..]) else {
        return None;
    };
    let [a, b] = [part, other].map(|part| l.plan.weight(part.weight));
    let is_like = (a.n_in, a.n_out) == (b.n_in, b.n_out)
        && l.are_integers(its)
        && are_scaled(parts) == are_scaled(its)
        && *out == mix.out;
    let op = SharedOp {
        number: number + 1,
        gate: Some(gate),
    };
    (is_like && writes_none_of(its, epilogue, &gate.reads())).then_some(op)
}

#[cfg(test)]
mod tests {
    use super::super::params::MatVec;
    use super::super::pass::specs;
    use super::super::tests::{at, id, lowering, step, superblocks, with};
    use super::*;
    use crate::backend::cuda::driver::spec::Spec;
    use crate::plan::{BufferId, Gating, Norm, Op, Plan, Rows, Weight, WeightId};
    use crate::quant;

    const N_EXPERT: usize = 8;
    const RANKS: usize = 2;
    /// Of the experts that are chosen.
    const N_FF: usize = 512;

    /// The small plan with a layer of experts behind, the shared one `n_ff` wide and behind a gate of
    /// `gates` numbers.
    fn experts(n_ff: usize, gates: usize) -> Lowering {
        let mut l = lowering("sm_90", superblocks(), "I16", true);
        let mut plan = Plan::clone(&l.plan);
        let width = plan.buffer(id("x")).width;
        // As many multiprocessors as tiles, so that ranks are chained.
        l.card.sm_count = (width / 16) as u32;
        let buffer = |l: &mut Lowering, plan: &mut Plan, name: &str, width: usize| {
            l.at.buffers.push((l.at.buffers.len() as u64 + 1) << 32);
            plan.add_buffer(name, width, Rows::Batch)
        };
        let [router, share, routes, gate, up, act, down] = [
            ("router", N_EXPERT),
            ("share", gates),
            ("routes", 2 * RANKS),
            ("gates", RANKS * N_FF),
            ("ups", RANKS * N_FF),
            ("acts", RANKS * N_FF),
            ("downs", RANKS * width),
        ]
        .map(|(name, width)| buffer(&mut l, &mut plan, name, width));
        let shared = ["gate_shexp", "up_shexp", "act_shexp", "gated_shexp"];
        let shared = shared.map(|name| buffer(&mut l, &mut plan, name, n_ff));
        let floats = quant::TYPES[0].name;
        let weight = |plan: &mut Plan, name: &str, [n_in, n_out, n_expert]: [usize; 3], ty| {
            plan.add_weight(Weight {
                name: name.into(),
                n_in,
                n_out,
                n_expert,
                ty: quant::by_name(ty).unwrap(),
            })
        };
        let norm = plan.weights.iter().position(|w| w.name == "norm").unwrap();
        let norm = Some(Norm {
            weight: WeightId(norm),
            eps: 1e-5,
        });
        let product = |x, norm, weight, out| Op::MatVec {
            x,
            norm,
            weight,
            scale: None,
            bias: None,
            out,
        };
        let by_expert = |x, norm: Option<Norm>, weight, out| Op::ExpertMatVec {
            x,
            ranked: norm.is_none(),
            norm,
            routes,
            weight,
            scale: None,
            bias: None,
            out,
        };
        let swiglu = |[gate, up, out]: [BufferId; 3]| Op::SwiGlu { gate, up, out };
        // Of a product, of none yet.
        let scale = weight(&mut plan, "scale", [1; 3], floats);
        l.at.vectors.insert(scale, 1 << 60);
        let ty = superblocks();
        let mut of = |name, shape, ty| weight(&mut plan, name, shape, ty);
        let (x, delta) = (id("x"), id("delta"));
        let ops = vec![
            product(x, norm, of("gate_shexp", [width, n_ff, 1], ty), shared[0]),
            product(x, norm, of("up_shexp", [width, n_ff, 1], ty), shared[1]),
            swiglu([shared[0], shared[1], shared[2]]),
            product(x, norm, of("share", [width, gates, 1], floats), share),
            product(x, norm, of("router", [width, N_EXPERT, 1], floats), router),
            Op::Route {
                logits: router,
                bias: None,
                out: routes,
                gating: Gating::Softmax,
                renormalize: true,
                scale: 1.0,
            },
            by_expert(x, norm, of("gates", [width, N_FF, N_EXPERT], ty), gate),
            by_expert(x, norm, of("ups", [width, N_FF, N_EXPERT], ty), up),
            swiglu([gate, up, act]),
            by_expert(act, None, of("downs", [N_FF, width, N_EXPERT], ty), down),
            Op::MixExperts {
                x: down,
                routes,
                out: delta,
            },
            Op::Add { x: delta, out: x },
            Op::SigmoidMul {
                x: shared[2],
                gate: share,
                out: shared[3],
            },
            product(shared[3], None, of("last", [n_ff, width, 1], ty), delta),
            Op::Add { x: delta, out: x },
        ];
        let head = |op: &Op| matches!(op, Op::SelectRows { .. });
        let head = plan.ops.iter().position(head).unwrap();
        plan.ops.splice(head..head, ops);
        with(l, plan)
    }

    fn labels(list: &[Spec]) -> Vec<&str> {
        let its = list.iter().map(|s| s.label.as_str());
        its.filter(|label| {
            ["gates", "shexp", "last"]
                .iter()
                .any(|of| label.contains(of))
        })
        .collect()
    }

    #[test]
    fn of_one_row_it_is_a_rank_more_where_it_is_like_the_others() {
        let joined = "route matvec gates ups gate_shexp up_shexp";
        let first = "matvec gate_shexp up_shexp";
        let (chained, last) = ("matvec downs last mix", "gate matvec last");
        for (n_ff, gates, wanted) in [
            (N_FF, 1, vec![joined, chained]),
            // Of other rows the first product alone.
            (2 * N_FF, 1, vec![joined, last]),
            // A gate for each value.
            (N_FF, N_FF, vec![joined, last]),
        ] {
            let l = experts(n_ff, gates);
            let list = specs(&l, &step(1)).unwrap();
            assert_eq!(labels(&list), wanted, "{n_ff} {gates}");
            let several = specs(&l, &step(3)).unwrap();
            assert!(labels(&several)[0].contains("gate_shexp up_shexp"));
            assert!(!labels(&several)
                .iter()
                .any(|label| label.contains("downs last")));
            let floats = list.iter().position(|s| s.label == "matvec share router");
            let its = list.iter().position(|s| s.label == joined);
            assert!(
                floats.unwrap() < its.unwrap(),
                "the router before the choice"
            );
        }
        // On more multiprocessors ranks are not chained.
        let mut l = experts(N_FF, 1);
        l.card.sm_count *= 3;
        let list = specs(&l, &step(1)).unwrap();
        assert_eq!(labels(&list), [joined, last]);
        // Nor is it the same product with other scales, or where what it writes is read before.
        for change in [
            |plan: &mut Plan| {
                let by = plan.weights.iter().position(|w| w.name == "scale");
                for op in &mut plan.ops {
                    if let Op::MatVec { weight, scale, .. } = op {
                        if plan.weights[weight.0].name.ends_with("_shexp") {
                            *scale = by.map(WeightId);
                        }
                    }
                }
            },
            |plan: &mut Plan| {
                let named = |id: &BufferId| plan.buffer(*id).name == "act_shexp";
                let outs = plan.ops.iter().map(|op| match op {
                    Op::SwiGlu { out, .. } => Some(*out).filter(named),
                    _ => None,
                });
                let mut outs = outs.enumerate().filter_map(|(at, out)| Some((at, out?)));
                let (at, x) = outs.next().unwrap();
                plan.ops.insert(at + 1, Op::Scale { x, factor: 2.0 });
            },
        ] {
            let l = experts(N_FF, 1);
            let mut plan = Plan::clone(&l.plan);
            change(&mut plan);
            let list = specs(&with(l, plan), &step(1)).unwrap();
            assert!(labels(&list).contains(&first), "{:?}", labels(&list));
        }
    }

    #[test]
    fn its_launch_finds_weights_rows_and_gate() {
        let l = experts(N_FF, 1);
        let address = |name: &str| {
            let found = l.plan.buffers.iter().position(|b| b.name == name);
            l.address(BufferId(found.unwrap()))
        };
        let list = specs(&l, &step(1)).unwrap();
        let of = |part: &str| {
            let found = list.iter().position(|s| s.label.contains(part)).unwrap();
            (&list[found], list[found].params::<MatVec>().unwrap())
        };
        let (first, params) = of("gate_shexp");
        assert_eq!(first.grid[1] as usize, RANKS + 1);
        assert_eq!(params.segment[0].out, address("acts"));
        assert_eq!(params.segment[1].out, address("act_shexp"));
        assert_eq!((params.x, params.shared.x), (at("x"), 0));
        let (last, params) = of("downs last mix");
        assert_eq!(last.grid[1], 1);
        // A warp a superblock of each.
        assert_eq!(last.block as usize, 32 * (RANKS + 1) * N_FF / 256);
        assert_eq!((params.x, params.mixed), (address("acts"), at("x")));
        let shared = params.shared;
        assert_eq!(
            (shared.x, shared.gate),
            (address("act_shexp"), address("share"))
        );
        let number = |op: &Fused| {
            matches!(op, Fused::MatVec { parts, .. }
            if l.plan.weight(parts[0].weight).name == "last")
        };
        let number = l.fused.iter().position(number).unwrap();
        assert_eq!(shared.product as usize, number);
        assert!(params.segment[1].weights != params.segment[0].weights);
    }
}
