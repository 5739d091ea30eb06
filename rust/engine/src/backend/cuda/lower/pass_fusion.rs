//! Fusions that depend on the rows of a pass: neighbouring ops of the fused list, which is the same for
//! all passes, in one launch.

use super::attention::NormRope;
use super::experts::{self, chosen, ranks, MixOp, RouteOp, MOST_RANKS};
use super::gate::Gate;
use super::lowering::{writes_none_of, Lowering, Pass, Path};
use super::shape::MOST_FLOATS_X;
use super::shared_expert::{shared_down, shared_up, SharedOp};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::{Epilogue, Fused, MOST_NEAR_DIM};
use crate::plan::{BufferId, Op};

/// An op of the fused list, and what is fused into its launch.
#[derive(Debug, Clone, Copy)]
pub struct FusedOp<'a> {
    pub op: &'a Fused,
    /// Its place in the fused list.
    pub number: usize,
    pub fusion: PassFusion,
    /// Ops of the list that this is.
    pub count: usize,
}

/// What is fused into the launch of an op.
#[derive(Debug, Clone, Copy)]
pub enum PassFusion {
    Nothing,
    /// Before a product: the gate of its x.
    Gate(Gate),
    /// Before a product by experts: their routing; beside them, the same product of the shared expert.
    Choice(RouteOp, Option<SharedOp>),
    /// Behind a router's product: the routing by its logits.
    Route(RouteOp),
    /// Behind a product by experts: their weighted sum; behind that, what the shared expert adds to it.
    Mix(MixOp, Option<SharedOp>),
    /// Before attention: storing the newest keys and values; before that, QK norm and RoPE.
    Stored {
        newest: (BufferId, BufferId),
        norm_rope: Option<NormRope>,
    },
}

impl<'a> FusedOp<'a> {
    /// A product of the shared expert in launches of its own.
    pub fn of_shared(l: &'a Lowering, shared: &SharedOp) -> Self {
        Self {
            op: &l.fused[shared.number],
            number: shared.number,
            fusion: shared.gate.map_or(PassFusion::Nothing, PassFusion::Gate),
            count: 1,
        }
    }

    /// The op that begins at that number of the fused list, with what this pass fuses into it.
    pub fn at(l: &'a Lowering, pass: &Pass, number: usize) -> Self {
        // A product of the shared expert that is fused with those of routed experts is launched there.
        let late = usize::from(shared_up(l, pass, number).is_some());
        let number = number + late;
        let list = &l.fused[number..];
        let before = stored(l, pass, list)
            .or_else(|| gated(l, pass, list).map(|gate| (PassFusion::Gate(gate), 1)))
            .or_else(|| {
                let route = chosen(l, pass, list)?;
                let shared = number.checked_sub(2).and_then(|at| shared_up(l, pass, at));
                Some((PassFusion::Choice(route, shared), 1))
            });
        let behind = || behind(l, pass, number).map(|fusion| (fusion, 0));
        let (fusion, skipped) = before.or_else(behind).unwrap_or((PassFusion::Nothing, 0));
        let count_behind = match fusion {
            PassFusion::Route(_) | PassFusion::Mix(_, None) => 1,
            // The mix, the gate and the product.
            PassFusion::Mix(_, Some(_)) => 3,
            _ => 0,
        };
        Self {
            op: &list[skipped],
            number: number + skipped,
            fusion,
            count: late + skipped + 1 + count_behind,
        }
    }
}

impl PassFusion {
    /// The shared expert, if a product of it is fused.
    pub fn shared(&self) -> Option<SharedOp> {
        match self {
            Self::Choice(_, shared) | Self::Mix(_, shared) => *shared,
            _ => None,
        }
    }

    /// The same without the shared expert.
    pub fn without_shared(self) -> Self {
        match self {
            Self::Choice(route, _) => Self::Choice(route, None),
            Self::Mix(mix, _) => Self::Mix(mix, None),
            other => other,
        }
    }

    /// What is fused, but the shared expert, as launches before and behind a product of `x`.
    pub fn separate_launches(
        &self,
        l: &Lowering,
        x: BufferId,
        pass: &Pass,
    ) -> Result<[Option<Spec>; 2]> {
        Ok(match self {
            Self::Gate(gate) => [Some(gate.launch(l, x, pass)?), None],
            Self::Choice(op, _) => [Some(experts::route(l, op, pass)?), None],
            Self::Route(op) => [None, Some(experts::route(l, op, pass)?)],
            Self::Mix(op, _) => [None, Some(experts::mix(l, *op, pass))],
            Self::Nothing | Self::Stored { .. } => [None, None],
        })
    }
}

/// The KV store, QK norm and RoPE right before attention that its launch takes over, and how many ops
/// they are. Only with one row for each sequence: attention of a prompt reads rows of its own pass, so
/// all of them are stored first.
fn stored(l: &Lowering, pass: &Pass, list: &[Fused]) -> Option<(PassFusion, usize)> {
    if pass.path != Path::Decode || !pass.one_row_per_sequence() {
        return None;
    }
    let (heads, skipped) = match list.first()? {
        heads @ Fused::QkNormRope { .. } => (Some(heads), 2),
        _ => (None, 1),
    };
    let (scatter, attention) = (list.get(skipped - 1)?, list.get(skipped)?);
    let (
        Fused::Single(Op::KvScatter { k, v, layer }),
        Fused::Single(Op::Attention { q, layer: its, .. }),
    ) = (scatter, attention)
    else {
        return None;
    };
    if layer != its {
        return None;
    }
    let norm_rope = match heads {
        Some(heads) => Some(norm_rope(l, heads, [*q, *k, *v], *layer)?),
        None => None,
    };
    let newest = (*k, *v);
    Some((PassFusion::Stored { newest, norm_rope }, skipped))
}

/// QK norm and RoPE, where the attention kernel of that layer can do them.
fn norm_rope(
    l: &Lowering,
    heads: &Fused,
    [q, k, v]: [BufferId; 3],
    layer: usize,
) -> Option<NormRope> {
    match heads {
        Fused::QkNormRope {
            queries,
            keys,
            values,
            attended: true,
            head_dim,
            eps,
            rotation,
        } if (queries.x, keys.x) == (q, k)
            && ![q, k].contains(&v)
            && values.is_none_or(|values| values.out == v)
            && *head_dim == l.plan.kv[layer].head_dim
            && *head_dim <= MOST_NEAR_DIM =>
        {
            Some(NormRope {
                queries: queries.weight,
                keys: keys.weight,
                values: *values,
                eps: *eps,
                rotation: *rotation,
            })
        }
        _ => None,
    }
}

/// The gate before a product of one row.
fn gated(l: &Lowering, pass: &Pass, list: &[Fused]) -> Option<Gate> {
    match list {
        [before, Fused::MatVec {
            x,
            norm: None,
            experts: None,
            gated: true,
            parts,
            epilogue,
        }, ..]
            if l.rows_of(*x, pass) == 1 && l.are_integers(parts) =>
        {
            let width = l.plan.buffer(*x).width;
            let fits =
                |gate: &Gate| gate.fits(l, width) && writes_none_of(parts, epilogue, &gate.reads());
            Gate::of(before).filter(fits)
        }
        _ => None,
    }
}

/// What is fused behind a product: the weighted sum of one row's experts, whose outputs are not kept; or
/// the routing by a router's logits, unless the next product takes that over.
fn behind(l: &Lowering, pass: &Pass, number: usize) -> Option<PassFusion> {
    let list = &l.fused[number..];
    let [Fused::MatVec {
        x,
        norm,
        experts,
        parts,
        epilogue: Epilogue::Store,
        ..
    }, next, ..] = list
    else {
        return None;
    };
    let m = l.rows_of(*x, pass);
    match (experts, l.are_integers(parts)) {
        (Some(experts), true) if m == 1 => {
            let mix = MixOp::of(next).filter(|_| matches!(next, Fused::Mix { .. }))?;
            let is_its = mix.routes == experts.routes && ranks(&l.plan, mix.routes) <= MOST_RANKS;
            let is_whole = matches!(&parts[..], [part] if part.out == mix.x);
            let rows = l.plan.weight(parts[0].weight).n_out;
            let chains = l.chains(*norm, rows) && ranks(&l.plan, mix.routes) < MOST_RANKS;
            let shared = shared_down(l, number + 2, &mix, parts).filter(|_| chains);
            // Other blocks may still be reading x.
            (is_its && is_whole && mix.out != *x).then_some(PassFusion::Mix(mix, shared))
        }
        // Rows of one block, so that one block ends last.
        (None, false) if (1..=MOST_FLOATS_X).contains(&m) => {
            let route = RouteOp::of(next)?;
            let gives = parts.iter().any(|part| part.out == route.logits);
            let is_its = gives && chosen(l, pass, &list[1..]).is_none();
            is_its.then_some(PassFusion::Route(route))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{AttentionFixed, MatVec};
    use super::super::pass::specs;
    use super::super::tests::{at, chunk, entries, id, lowering, step, superblocks, with};
    use super::*;
    use crate::plan::{Plan, Weight};
    use crate::quant;

    #[test]
    fn one_row_goes_through_its_gate_on_the_way_to_a_product() {
        let (heads, gated) = (id("heads"), id("q"));
        // The product adds to x: where that is the gate, other blocks may still be reading it.
        for (by, reads_again, launches) in
            [("delta", false, 0), ("delta", true, 1), ("x", false, 1)]
        {
            let gate = Op::SigmoidMul {
                x: heads,
                gate: id(by),
                out: gated,
            };
            let l = lowering("sm_90", superblocks(), "I16", true);
            let mut plan = Plan::clone(&l.plan);
            let number = plan.ops.iter().position(|op| match op {
                Op::MatVec { x, .. } => *x == heads,
                _ => false,
            });
            let number = number.unwrap();
            if let Op::MatVec { x, .. } = &mut plan.ops[number] {
                *x = gated;
            }
            plan.ops.insert(number, gate);
            if reads_again {
                let add = Op::Add {
                    x: gated,
                    out: id("x"),
                };
                plan.ops.insert(number + 3, add);
            }
            let l = with(l, plan);
            let its = |rows: usize| {
                let list = specs(&l, &step(rows)).unwrap();
                list.iter().filter(|s| s.entry == "sigmoid_mul").count()
            };
            assert_eq!((its(1), its(8)), (launches, 1));
            let list = specs(&l, &step(1)).unwrap();
            let gated =
                |s: &&Spec| s.entry == "matvec" && s.params::<MatVec>().unwrap().gated.by != 0;
            let gated: Vec<_> = list.iter().filter(gated).collect();
            assert_eq!(gated.len(), 1 - launches);
            for spec in gated {
                let params: MatVec = spec.params().unwrap();
                assert_eq!((params.x, params.gated.by), (at("heads"), at("delta")));
                assert!(spec.label.starts_with("gate matvec"), "{}", spec.label);
            }
        }
    }

    #[test]
    fn heads_are_normalized_and_rotated_where_a_step_attends_and_nothing_else_wants_them() {
        let mut l = lowering("sm_90", superblocks(), "I16", true);
        let mut plan = Plan::clone(&l.plan);
        let head_dim = plan.kv[0].head_dim;
        let weight = |plan: &mut Plan, name: &str| {
            plan.add_weight(Weight {
                name: name.into(),
                n_in: head_dim,
                n_out: 1,
                n_expert: 1,
                ty: &quant::TYPES[0],
            })
        };
        let first = plan.ops.iter().position(|op| matches!(op, Op::Rope { .. }));
        for (name, address) in [("k", 1u64 << 60), ("q", 1 << 61)] {
            let weight = weight(&mut plan, name);
            l.at.vectors.insert(weight, address);
            let x = id(name);
            let norm = Op::RmsNorm {
                x,
                weight: Some(weight),
                out: x,
                group: head_dim,
                eps: 1e-6,
            };
            plan.ops.insert(first.unwrap(), norm);
        }
        // Values that are what keys are before that.
        let norm = Op::RmsNorm {
            x: id("k"),
            weight: None,
            out: id("v"),
            group: head_dim,
            eps: 1e-6,
        };
        plan.ops.insert(first.unwrap(), norm);
        let mut l = with(l, plan.clone());
        let single = specs(&l, &step(1)).unwrap();
        let its = |list: &[Spec], entry| list.iter().filter(|s| s.entry == entry).count();
        for entry in ["qk_norm_rope", "rms_norm"] {
            assert_eq!(its(&single, entry), 0, "{:?}", entries(&single));
        }
        let attention = single
            .iter()
            .find(|s| s.entry == "attention_fixed")
            .unwrap();
        let params: AttentionFixed = attention.params().unwrap();
        assert_eq!((params.q_weight, params.k_weight), (1 << 61, 1 << 60));
        assert_eq!((params.eps, params.cos_sin), (1e-6, l.at.cos_sin[0]));
        let says = |what| attention.variant.constants.has(what, true);
        assert!(says("VALUES_NORMED") && says("VALUES_ARE_KEYS"));
        // Rows of a prompt are stored before any is looked at: their heads are rotated before that.
        let prompt = specs(&l, &chunk(64, 1)).unwrap();
        assert_eq!(its(&prompt, "qk_norm_rope"), 1, "{:?}", entries(&prompt));
        assert_eq!(its(&prompt, "rms_norm"), 0, "{:?}", entries(&prompt));
        // Where attention rotated them, what reads them behind it would have them as they came.
        let attends = |op: &Op| matches!(op, Op::Attention { .. });
        let attention = plan.ops.iter().position(attends).unwrap();
        let add = Op::Add {
            x: id("q"),
            out: id("x"),
        };
        plan.ops.insert(attention + 1, add);
        l = with(l, plan);
        let again = specs(&l, &step(1)).unwrap();
        assert_eq!(its(&again, "qk_norm_rope"), 1, "{:?}", entries(&again));
    }
}
