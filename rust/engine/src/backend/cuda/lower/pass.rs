//! Lowers one pass over rows, op by op, to its launches.

use super::attention::{AttentionOp, MergeBytes};
use super::experts::{self, Pairs};
use super::lowering::{Lowering, Pass};
use super::matmul::{self, ProductBytes};
use super::product::{self, Product};
use super::shape::{MOST_FLOATS_X, MOST_TICKETS};
use super::shapes::Shapes;
use super::{attention_fixed, gate, heads, matvec, matvec_floats, norm, rowwise, skinny};
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::no_hidden;
use crate::error::{Error, Result};
use crate::plan::fuse::{Fused, FusedOp, MixOp, PassFusion, ProductOp};
use crate::plan::{Op, Plan};

/// Memory that kernels share beside the buffers of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scratch {
    pub merge: MergeBytes,
    pub products: ProductBytes,
    /// Of rows by expert.
    pub groups: usize,
}

impl Scratch {
    /// For passes of up to `rows` rows, `out` of which give logits.
    pub fn new(plan: &Plan, fused: &[FusedOp], shapes: &Shapes, rows: usize, out: usize) -> Self {
        Self {
            merge: MergeBytes::new(plan, &shapes.attention, rows, out),
            products: ProductBytes::new(plan, fused, rows),
            groups: experts::list_bytes(plan, fused, rows),
        }
    }

    /// The most that any of these plans takes.
    pub fn of_all<'a>(
        plans: impl Iterator<Item = (&'a Plan, &'a [FusedOp])>,
        shapes: &Shapes,
        rows: usize,
        out: usize,
    ) -> Self {
        let mut most = Self::default();
        for (plan, fused) in plans {
            let own = Self::new(plan, fused, shapes, rows, out);
            most = Self {
                merge: most.merge.max(own.merge),
                products: most.products.max(own.products),
                groups: most.groups.max(own.groups),
            };
        }
        most
    }

    /// Of the counters that all kernels leave at zero.
    pub fn tickets(&self) -> usize {
        let products = self.products.tickets.max(MOST_TICKETS * size_of::<u32>());
        self.merge.tickets.max(products)
    }
}

/// How many of the fused ops come before the head of the model, which picks rows first, and the norm that
/// stands in its place in a pass for hidden states.
fn hidden(l: &Lowering, list: &[FusedOp]) -> Result<(usize, Option<Op>)> {
    let picks = |fused: &FusedOp| matches!(fused.op, Fused::Single(Op::SelectRows { .. }));
    let head = list.iter().position(picks);
    let (head, end) = head.zip(l.plan.hidden()).ok_or_else(no_hidden)?;
    Ok((head, end.op(l.plan.buffer(end.x).width)))
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
    let fused = l.fused.of_pass(&l.shape(pass));
    let (head, end) = match pass.hidden {
        true => hidden(l, &fused)?,
        false => (fused.len(), None),
    };
    let mut list = Vec::new();
    for FusedOp { op, .. } in &fused[..head] {
        let launches = launches(l, op, pass, list.len())?;
        // A pass without rows of a kind has no launch for them.
        list.extend(launches.into_iter().filter(|spec| !spec.grid.contains(&0)));
    }
    if let Some(norm) = end {
        list.extend(rowwise::spec(l, &norm, pass)?);
    }
    Ok(list)
}

/// The launches of a fused op, behind `before` others.
fn launches(l: &Lowering, op: &Fused, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
    let attention = |op, stored| match AttentionOp::new(&l.plan, op, stored) {
        Some(op) => attention_fixed::specs(l, &op, pass, before),
        None => Ok(rowwise::spec(l, op, pass)?.into_iter().collect()),
    };
    Ok(match op {
        Fused::MatVec(op) => products(l, op, pass, before)?,
        Fused::NormAdd(op) => vec![norm::norm_add(l, op, pass)?],
        Fused::NormPair(op) => vec![norm::norm_pair(l, op, pass)?],
        Fused::Gate(op) => gate::launch(l, op, pass)?.into_iter().collect(),
        Fused::Route(op) => vec![experts::route(l, op, pass)?],
        Fused::Mix(op) => vec![experts::mix(l, op, pass)],
        Fused::QkNormRope(op) => vec![rowwise::qk_norm_rope(l, op, pass)?],
        Fused::LatentRow(op) => vec![heads::latent_row(l, op, pass)?],
        Fused::ConvolvedRule { conv, rule } => rowwise::convolved_rule(l, conv, rule, pass)?,
        Fused::Attention {
            attention: op,
            stored,
        } => attention(op, Some(*stored))?,
        Fused::Single(Op::MixExperts { x, routes, out }) => {
            let (x, routes, out, adds) = (*x, *routes, *out, false);
            let mix = MixOp {
                x,
                routes,
                out,
                adds,
            };
            vec![experts::mix(l, &mix, pass)]
        }
        Fused::Single(op) => attention(op, None)?,
    })
}

/// The launches of a fused product, behind `before` others. The choice of the kernel changes its time, no
/// bit.
fn products(l: &Lowering, op: &ProductOp, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
    let m = l.rows_of(op.x, pass);
    if m == 0 {
        return Ok(Vec::new());
    }
    let product = product::product(l, op, pass)?;
    let of = |experts| Pairs::new(l, experts, op.parts[0].weight, m);
    let pairs = op.experts.map(of);
    if !product.types.iter().all(|t| t.integers) {
        return floats(l, op, &product, m, pairs, pass);
    }
    // Rows that go to all experts share their weights, however few they are.
    let chosen = (op.experts).filter(|experts| !l.plan.goes_to_all(experts.routes));
    if m == 1 || (chosen.is_some() && m <= l.shapes.matvec.expert_rows) {
        if let Some(spec) = matvec::spec(l, op, &product, pairs.as_ref(), pass, before)? {
            return Ok(vec![spec]);
        }
    }
    // No launch has room for all of it.
    let own = |op: &ProductOp| -> Result<Vec<Spec>> {
        let op = ProductOp {
            shared: None,
            ..op.clone()
        };
        products(l, &op, pass, before)
    };
    if let Some(shared) = &op.shared {
        let (own, shared) = (own(op)?, own(shared)?);
        let lists = match op.fusion {
            PassFusion::Choice(_) => [shared, own],
            _ => [own, shared],
        };
        return Ok(lists.concat());
    }
    let [first, last] = match &op.fusion {
        PassFusion::Nothing => [None, None],
        PassFusion::Gate(op) => [gate::launch(l, op, pass)?, None],
        PassFusion::Choice(op) => [Some(experts::route(l, op, pass)?), None],
        PassFusion::Route(op) => [None, Some(experts::route(l, op, pass)?)],
        PassFusion::Mix { mix, .. } => [None, Some(experts::mix(l, mix, pass))],
    };
    if pairs.is_none() && (2..=skinny::MOST_ROWS).contains(&m) {
        if let Some(spec) = skinny::spec(l, op, &product, m, pass)? {
            return Ok(first.into_iter().chain([spec]).chain(last).collect());
        }
    }
    let m = pairs.map_or(m, |pairs| pairs.count);
    let products = matmul::specs(l, op, &product, m, pairs, pass)?;
    Ok(first.into_iter().chain(products).chain(last).collect())
}

/// Of weights that are floats. By experts: one row's side by side; of several rows those together that
/// chose the same.
fn floats(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    m: usize,
    pairs: Option<Pairs>,
    pass: &Pass,
) -> Result<Vec<Spec>> {
    Ok(match pairs {
        None => vec![matvec_floats::spec(l, op, product, (m, None), pass)?],
        Some(pairs) if m == 1 => {
            let rows = (pairs.count, Some(&pairs));
            vec![matvec_floats::spec(l, op, product, rows, pass)?]
        }
        Some(pairs) => {
            let pairs = pairs.grouped(l, MOST_FLOATS_X);
            let rows = pairs.blocks() * MOST_FLOATS_X;
            let spec = matvec_floats::spec(l, op, product, (rows, Some(&pairs)), pass)?;
            vec![pairs.group(), spec]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::params::{AttentionFixed, MatVec};
    use super::super::tests::{at, chunk, entries, id, lowering, step, superblocks, with};
    use super::*;
    use crate::plan::{sketch as s, BufferId, Rows};
    use crate::quant;

    #[test]
    fn a_few_rows_go_one_by_one_to_the_experts_they_choose_but_not_to_all() {
        let entry = |is_chosen: bool, rows: usize| {
            let mut l = lowering("sm_90", superblocks(), "I16", true);
            let mut plan = Plan::clone(&l.plan);
            let mut buffer = |name: &str, width: usize| -> BufferId {
                l.at.buffers.push((l.at.buffers.len() as u64 + 1) << 32);
                plan.add_buffer(name, width, Rows::Batch)
            };
            let (router, routes) = (buffer("router", 2), buffer("routes", 4));
            let weight = s::weight(&mut plan, "by_heads", [256, 256, 2], superblocks());
            let choice = match is_chosen {
                true => s::route(router, routes),
                false => Op::RouteAll { out: routes },
            };
            let by = s::by_experts(id("heads"), None, routes, weight, id("q"));
            plan.ops.extend([choice, by]);
            let list = specs(&with(l, plan), &step(rows)).unwrap();
            let mut its = list.iter().filter(|spec| spec.label.ends_with("by_heads"));
            let last = its.next_back().unwrap();
            (last.entry, last.grid[2])
        };
        for (is_chosen, rows, wanted) in [
            (true, 1, ("matvec", 1)),
            (true, 4, ("matvec", 4)),
            (true, 5, ("matmul", 1)),
            (false, 1, ("matvec", 1)),
            (false, 4, ("matmul", 1)),
        ] {
            assert_eq!(entry(is_chosen, rows), wanted, "{is_chosen} {rows}");
        }
    }

    #[test]
    fn one_row_goes_through_its_gate_on_the_way_to_a_product() {
        let (heads, gated) = (id("heads"), id("q"));
        // The product adds to x: where that is the gate, other blocks may still be reading it.
        for (by, reads_again, launches) in
            [("delta", false, 0), ("delta", true, 1), ("x", false, 1)]
        {
            let gate = s::sigmoid_mul(heads, id(by), gated);
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
                plan.ops.insert(number + 3, s::add(gated, id("x")));
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
        let first = plan.ops.iter().position(|op| matches!(op, Op::Rope { .. }));
        for (name, address) in [("k", 1u64 << 60), ("q", 1 << 61)] {
            let weight = s::weight(&mut plan, name, [head_dim, 1, 1], quant::TYPES[0].name);
            l.at.vectors.insert(weight, address);
            let norm = s::norm(id(name), Some(weight), id(name), head_dim);
            plan.ops.insert(first.unwrap(), norm);
        }
        // Values that are what keys are before that.
        let norm = s::norm(id("k"), None, id("v"), head_dim);
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
        assert_eq!((params.eps, params.cos_sin), (s::EPS, l.at.cos_sin[0]));
        let says = |what| attention.variant.constants.has(what, true);
        assert!(says("VALUES_NORMED") && says("VALUES_ARE_KEYS"));
        // Rows of a prompt are stored before any is looked at: their heads are rotated before that.
        let prompt = specs(&l, &chunk(64, 1)).unwrap();
        assert_eq!(its(&prompt, "qk_norm_rope"), 1, "{:?}", entries(&prompt));
        assert_eq!(its(&prompt, "rms_norm"), 0, "{:?}", entries(&prompt));
        // Where attention rotated them, what reads them behind it would have them as they came.
        let attends = |op: &Op| matches!(op, Op::Attention { .. });
        let attention = plan.ops.iter().position(attends).unwrap();
        plan.ops.insert(attention + 1, s::add(id("q"), id("x")));
        l = with(l, plan);
        let again = specs(&l, &step(1)).unwrap();
        assert_eq!(its(&again, "qk_norm_rope"), 1, "{:?}", entries(&again));
    }
}
