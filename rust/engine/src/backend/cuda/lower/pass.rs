//! One pass over rows, op by op.

use super::attention::{self, AttentionOp, MergeBytes, Turned};
use super::experts::{self, MixOp, Pairs, RouteOp};
use super::gate::Gate;
use super::lowering::{Lowering, Pass, Path};
use super::matmul::{self, ProductBytes};
use super::{attention_fixed, matvec, matvec_floats, norm, product, rowwise};
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::no_hidden;
use crate::error::{Error, Result};
use crate::plan::fuse::{Fused, MOST_NEAR_DIM};
use crate::plan::{BufferId, Norm, Op, Plan};

pub use super::attention::prompt_span;

/// Memory that kernels share beside the buffers of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scratch {
    pub merge: MergeBytes,
    pub products: ProductBytes,
    /// Of rows by expert.
    pub groups: usize,
}

impl Scratch {
    /// For passes of up to `rows` rows, `out` of which give logits.
    pub fn new(plan: &Plan, fused: &[Fused], rows: usize, out: usize) -> Self {
        Self {
            merge: MergeBytes::new(plan, rows, out),
            products: ProductBytes::new(plan, fused, rows),
            groups: experts::list_bytes(plan, fused, rows),
        }
    }

    /// Of the counters that all kernels leave at zero.
    pub fn tickets(&self) -> usize {
        let products = self
            .products
            .tickets
            .max(matvec::MOST_TICKETS * size_of::<u32>());
        self.merge.tickets.max(products)
    }
}

/// How many fused ops come before the head of the model, which picks rows first, and the norm that stands
/// in its place in a pass for hidden states.
fn hidden(l: &Lowering) -> Result<(usize, Option<Fused>)> {
    let picks = |op: &Fused| matches!(op, Fused::Single(Op::SelectRows { .. }));
    let head = l.fused.iter().position(picks);
    let found = head.zip(l.plan.hidden()).ok_or_else(no_hidden)?;
    let (head, end) = found;
    let norm = end.op(l.plan.buffer(end.x).width);
    Ok((head, Some(Fused::Single(norm))))
}

/// The launches of one pass, in order.
///
/// # Errors
/// [`Error::Internal`] for more rows than there is memory for, or a weight without a place.
pub fn specs(l: &Lowering, pass: &Pass) -> Result<Vec<Spec>> {
    let Pass { rows, out, .. } = *pass;
    if rows == 0 || rows > l.max_rows || out > l.max_out {
        return Err(Error::Internal(format!(
            "{rows} rows, {out} of them out, in one pass"
        )));
    }
    let mut list = Vec::new();
    let (head, end) = match pass.hidden {
        true => hidden(l)?,
        false => (l.fused.len(), None),
    };
    // Whether the launches of an op do the next one too.
    let mut is_done = false;
    for (number, op) in l.fused[..head].iter().chain(&end).enumerate() {
        if std::mem::take(&mut is_done) {
            continue;
        }
        let more = match op {
            Fused::MatVec {
                x,
                norm,
                experts,
                parts,
                epilogue,
                ..
            } => {
                let op = product::Op {
                    number,
                    x: *x,
                    norm: *norm,
                    experts: *experts,
                    parts,
                    epilogue,
                };
                let (specs, does_next) = products(l, &op, pass, list.len())?;
                is_done = does_next;
                specs
            }
            Fused::NormAdd {
                x,
                weight,
                group,
                eps,
                out,
                factor,
            } => {
                let by = Norm {
                    weight: *weight,
                    eps: *eps,
                };
                let out = (*out, *factor);
                vec![norm::norm_add(l, *x, by, *group, out, pass)?]
            }
            Fused::NormPair {
                pair,
                weight,
                group,
                eps,
                out,
                factor,
            } => {
                let by = Norm {
                    weight: *weight,
                    eps: *eps,
                };
                let out = (*out, *factor);
                vec![norm::norm_pair(l, *pair, by, *group, out, pass)?]
            }
            Fused::NormGate { out, .. } | Fused::Single(Op::SigmoidMul { out, .. })
                if Gate::of_product(l, number + 1, l.rows_of(*out, pass)).is_some() =>
            {
                Vec::new()
            }
            Fused::NormGate {
                x,
                weight,
                group,
                eps,
                gate,
                out,
            } => {
                let by = Norm {
                    weight: *weight,
                    eps: *eps,
                };
                let to = (*gate, *out);
                vec![norm::norm_gate(l, *x, by, *group, to, pass)?]
            }
            Fused::Mix { .. } | Fused::Single(Op::MixExperts { .. }) => MixOp::of(op)
                .map(|op| experts::mix(l, op, pass))
                .into_iter()
                .collect(),
            Fused::Route {
                choice: Op::Route { logits, .. },
                ..
            }
            | Fused::Single(Op::Route { logits, .. })
                if experts::choice_of_product(l, number, l.rows_of(*logits, pass)).is_some() =>
            {
                Vec::new()
            }
            Fused::Route { .. } | Fused::Single(Op::Route { .. }) => RouteOp::of(op)
                .map(|op| experts::route(l, &op, pass))
                .transpose()?
                .into_iter()
                .collect(),
            Fused::TurnedHeads { .. } if turned_before(l, pass, number + 2).is_some() => Vec::new(),
            Fused::TurnedHeads {
                queries,
                keys,
                values,
                head_dim,
                eps,
                turn,
            } => vec![rowwise::turn_heads(
                l,
                ([*queries, *keys], *values),
                *head_dim,
                *eps,
                *turn,
                pass,
            )?],
            Fused::Single(Op::Attention {
                q,
                out,
                layer,
                n_head,
                scale,
                window,
                sinks,
            }) => {
                let op = AttentionOp {
                    q: *q,
                    out: *out,
                    layer: *layer,
                    kv: l.plan.kv[*layer],
                    n_head: *n_head,
                    scale: *scale,
                    window: *window,
                    sinks: *sinks,
                    newest: newest_of(l, pass, number),
                    turned: turned_before(l, pass, number),
                };
                match l.kv_type.sums_kv_exactly() {
                    true => attention_fixed::specs(l, &op, pass)?,
                    false => attention::specs(l, &op, pass)?,
                }
            }
            // Attention does it.
            Fused::Single(Op::KvScatter { .. }) if newest_of(l, pass, number + 1).is_some() => {
                Vec::new()
            }
            Fused::Single(op) => rowwise::spec(l, op, pass)?.into_iter().collect(),
        };
        list.extend(more);
    }
    Ok(list)
}

/// Keys and values that the attention of that number in the fused list stores itself: over integers, in
/// a step whose rows are sequences of their own.
fn newest_of(l: &Lowering, pass: &Pass, number: usize) -> Option<(BufferId, BufferId)> {
    let is_step = matches!(pass.path, Path::Decode { .. });
    if !is_step || !pass.are_alone() || !l.kv_type.sums_kv_exactly() {
        return None;
    }
    match (l.fused.get(number.checked_sub(1)?), l.fused.get(number)) {
        (
            Some(Fused::Single(Op::KvScatter { k, v, layer })),
            Some(Fused::Single(Op::Attention { layer: its, .. })),
        ) if layer == its => Some((*k, *v)),
        _ => None,
    }
}

/// How the attention of that number in the fused list normalizes and turns heads itself: those of what
/// it stores itself, where nothing stands between.
fn turned_before(l: &Lowering, pass: &Pass, number: usize) -> Option<Turned> {
    let (k, v) = newest_of(l, pass, number)?;
    let heads = number.checked_sub(2).and_then(|i| l.fused.get(i));
    match (heads, l.fused.get(number)) {
        (
            Some(Fused::TurnedHeads {
                queries,
                keys,
                values,
                head_dim,
                eps,
                turn,
            }),
            Some(Fused::Single(Op::Attention { q, layer, .. })),
        ) if queries.x == *q
            && keys.x == k
            && values.is_none_or(|values| values.out == v)
            && *head_dim == l.plan.kv[*layer].head_dim
            && *head_dim <= MOST_NEAR_DIM =>
        {
            Some(Turned {
                queries: queries.weight,
                keys: keys.weight,
                values: *values,
                eps: *eps,
                turn: *turn,
            })
        }
        _ => None,
    }
}

/// Launches, and whether they do what the next op of the fused list asks for too.
type Launches = (Vec<Spec>, bool);

/// The launches of a fused product, behind `before` others. Which kernel computes it is a matter of
/// time alone.
fn products(l: &Lowering, op: &product::Op<'_>, pass: &Pass, before: usize) -> Result<Launches> {
    let m = l.rows_of(op.x, pass);
    if m == 0 {
        return Ok((Vec::new(), false));
    }
    let product = product::product(l, op, pass)?;
    if let Some(experts) = op.experts {
        let pairs = Pairs::new(l, experts, op.parts[0].weight, m);
        return by_experts(l, op, &product, m, pairs, pass);
    }
    if !product.types.iter().all(|t| t.integers) {
        let route = matvec_floats::route_behind(l, op, m);
        let spec = matvec_floats::spec(l, op, &product, (m, None), route, pass)?;
        return Ok((vec![spec], route.is_some()));
    }
    if m == 1 {
        if let Some((spec, _)) = matvec::spec(l, op, &product, None, pass, before)? {
            return Ok((vec![spec], false));
        }
    }
    // What a launch of one row would have been too, were there room for it.
    let gate = Gate::of_product(l, op.number, m);
    let gate = gate.map(|gate| gate.launch(l, op.x, pass)).transpose()?;
    let products = matmul::specs(l, op, &product, m, None, pass)?;
    Ok((gate.into_iter().chain(products).collect(), false))
}

/// The launches of a product by experts with `m` rows: one row's experts side by side; of several rows
/// those together that chose the same.
fn by_experts(
    l: &Lowering,
    op: &product::Op<'_>,
    product: &product::Product,
    m: usize,
    pairs: Pairs,
    pass: &Pass,
) -> Result<Launches> {
    let integers = product.types.iter().all(|t| t.integers);
    if m == 1 && !integers {
        let rows = (pairs.count, Some(&pairs));
        let spec = matvec_floats::spec(l, op, product, rows, None, pass)?;
        return Ok((vec![spec], false));
    }
    if m == 1 {
        if let Some((spec, mixes)) = matvec::spec(l, op, product, Some(&pairs), pass, 0)? {
            return Ok((vec![spec], mixes));
        }
    }
    if integers {
        // What a launch of one row would have chosen, were there room for it.
        let route = op.number.checked_sub(1);
        let route = route.and_then(|number| experts::choice_of_product(l, number, m));
        let route = route.map(|op| experts::route(l, &op, pass)).transpose()?;
        let products = matmul::specs(l, op, product, pairs.count, Some(pairs), pass)?;
        return Ok((route.into_iter().chain(products).collect(), false));
    }
    let pairs = pairs.grouped(l, matvec_floats::MOST_ROWS);
    let rows = pairs.blocks() * matvec_floats::MOST_ROWS;
    let spec = matvec_floats::spec(l, op, product, (rows, Some(&pairs)), None, pass)?;
    Ok((vec![pairs.group(), spec], false))
}

#[cfg(test)]
mod tests {
    use super::super::layout::wanted;
    use super::super::params::{AttentionFixed, MatVec};
    use super::super::tests::{at, chunk, entries, id, lowering, step, superblocks};
    use super::*;
    use crate::plan::fuse::{fuse, Rules};
    use crate::plan::Weight;
    use crate::quant;
    use std::sync::Arc;

    fn with(mut l: Lowering, plan: Plan) -> Lowering {
        plan.check().unwrap();
        let rules = Rules {
            fuse: true,
            scatter: false,
        };
        l.fused = fuse(&plan, rules);
        let wanted = wanted(&plan, &l.fused).unwrap();
        let places = (1u64..).zip(wanted.matrices);
        l.at.matrices = places.map(|(i, m)| ((m.ids, m.order), i << 44)).collect();
        l.plan = Arc::new(plan);
        l
    }

    #[test]
    fn one_row_goes_through_its_gate_on_the_way_to_a_product() {
        let (heads, gated) = (id("heads"), id("q"));
        let gate = Op::SigmoidMul {
            x: heads,
            gate: id("delta"),
            out: gated,
        };
        for (reads_again, launches) in [(false, 0), (true, 1)] {
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
            plan.ops.insert(number, gate.clone());
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
    fn heads_are_normalized_and_turned_where_a_step_attends() {
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
        let l = with(l, plan);
        let alone = specs(&l, &step(1)).unwrap();
        let its = |list: &[Spec], entry| list.iter().filter(|s| s.entry == entry).count();
        for entry in ["turn_heads", "rms_norm"] {
            assert_eq!(its(&alone, entry), 0, "{:?}", entries(&alone));
        }
        let attention = alone.iter().find(|s| s.entry == "attention_fixed").unwrap();
        let params: AttentionFixed = attention.params().unwrap();
        assert_eq!((params.q_weight, params.k_weight), (1 << 61, 1 << 60));
        assert_eq!((params.eps, params.cos_sin), (1e-6, l.at.cos_sin[0]));
        let says = |what: &str| attention.variant.constants.contains(what);
        assert!(says("VALUES_NORMED = true;") && says("VALUES_ARE_KEYS = true;"));
        // Rows of a prompt are stored before any is looked at: their heads are turned before that.
        let prompt = specs(&l, &chunk(64, 1)).unwrap();
        assert_eq!(its(&prompt, "turn_heads"), 1, "{:?}", entries(&prompt));
        assert_eq!(its(&prompt, "rms_norm"), 0, "{:?}", entries(&prompt));
    }
}
