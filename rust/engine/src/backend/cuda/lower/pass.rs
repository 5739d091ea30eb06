//! Lowers one pass over rows, op by op, to its launches.

use super::attention::{AttentionOp, MergeBytes};
use super::experts::{self, MixOp, Pairs, RouteOp};
use super::lowering::{Lowering, Pass};
use super::matmul::{self, ProductBytes};
use super::pass_fusion::{FusedOp, PassFusion};
use super::product::{self, Product};
use super::shape::{MOST_FLOATS_X, MOST_TICKETS};
use super::shapes::Shapes;
use super::{attention_fixed, matvec, matvec_floats, norm, rowwise, skinny};
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::no_hidden;
use crate::error::{Error, Result};
use crate::plan::fuse::Fused;
use crate::plan::{Op, Plan};

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
    pub fn new(plan: &Plan, fused: &[Fused], shapes: &Shapes, rows: usize, out: usize) -> Self {
        Self {
            merge: MergeBytes::new(plan, &shapes.attention, rows, out),
            products: ProductBytes::new(plan, fused, rows),
            groups: experts::list_bytes(plan, fused, rows),
        }
    }

    /// Of the counters that all kernels leave at zero.
    pub fn tickets(&self) -> usize {
        let products = self.products.tickets.max(MOST_TICKETS * size_of::<u32>());
        self.merge.tickets.max(products)
    }
}

/// How many fused ops come before the head of the model, which picks rows first, and the norm that stands
/// in its place in a pass for hidden states.
fn hidden(l: &Lowering) -> Result<(usize, Option<Op>)> {
    let picks = |op: &Fused| matches!(op, Fused::Single(Op::SelectRows { .. }));
    let head = l.fused.iter().position(picks);
    let found = head.zip(l.plan.hidden()).ok_or_else(no_hidden)?;
    let (head, end) = found;
    let norm = end.op(l.plan.buffer(end.x).width);
    Ok((head, Some(norm)))
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
    let mut number = 0;
    while number < head {
        let fused = FusedOp::at(l, pass, number);
        number += fused.count;
        let launches = launches(l, &fused, pass, list.len())?;
        // A pass without rows of a kind has no launch for them.
        list.extend(launches.into_iter().filter(|spec| !spec.grid.contains(&0)));
    }
    if let Some(norm) = end {
        list.extend(rowwise::spec(l, &norm, pass)?);
    }
    Ok(list)
}

/// The launches of an op with what is fused to it, behind `before` others.
fn launches(l: &Lowering, fused: &FusedOp<'_>, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
    Ok(match fused.op {
        op @ Fused::MatVec { .. } => product::Op::of(op, fused.number, fused.fusion)
            .map(|op| products(l, &op, pass, before))
            .transpose()?
            .unwrap_or_default(),
        Fused::NormAdd {
            x,
            norm,
            group,
            out,
            factor,
        } => vec![norm::norm_add(l, *x, *norm, *group, (*out, *factor), pass)?],
        Fused::NormPair {
            pair,
            norm,
            group,
            out,
            factor,
        } => vec![norm::norm_pair(
            l,
            *pair,
            *norm,
            *group,
            (*out, *factor),
            pass,
        )?],
        Fused::NormGate {
            x,
            norm,
            group,
            gate,
            out,
        } => vec![norm::norm_gate(l, *x, *norm, *group, (*gate, *out), pass)?],
        Fused::ConvolvedRule { conv, rule } => rowwise::convolved_rule(l, conv, rule, pass)?,
        op @ (Fused::Mix { .. } | Fused::Single(Op::MixExperts { .. })) => MixOp::of(op)
            .map(|op| experts::mix(l, op, pass))
            .into_iter()
            .collect(),
        op @ (Fused::Route { .. } | Fused::Single(Op::Route { .. })) => RouteOp::of(op)
            .map(|op| experts::route(l, &op, pass))
            .transpose()?
            .into_iter()
            .collect(),
        Fused::QkNormRope {
            queries,
            keys,
            values,
            attended: _,
            head_dim,
            eps,
            rotation,
        } => vec![rowwise::qk_norm_rope(
            l,
            ([*queries, *keys], *values),
            *head_dim,
            *eps,
            *rotation,
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
            let (newest, norm_rope) = match fused.fusion {
                PassFusion::Stored { newest, norm_rope } => (Some(newest), norm_rope),
                _ => (None, None),
            };
            let op = AttentionOp {
                q: *q,
                out: *out,
                layer: *layer,
                kv: l.plan.kv[*layer],
                n_head: *n_head,
                scale: *scale,
                window: *window,
                sinks: *sinks,
                newest,
                norm_rope,
            };
            attention_fixed::specs(l, &op, pass, before)?
        }
        Fused::Single(op) => rowwise::spec(l, op, pass)?.into_iter().collect(),
    })
}

/// The launches of a fused product, behind `before` others. The choice of the kernel changes its time, no
/// bit.
fn products(l: &Lowering, op: &product::Op<'_>, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
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
    if m == 1 {
        if let Some(spec) = matvec::spec(l, op, &product, pairs.as_ref(), pass, before)? {
            return Ok(vec![spec]);
        }
    }
    if let Some(shared) = op.fusion.shared() {
        let own = product::Op {
            fusion: op.fusion.without_shared(),
            ..*op
        };
        let own = products(l, &own, pass, before)?;
        let shared = launches(l, &FusedOp::of_shared(l, &shared), pass, before)?;
        let lists = match op.fusion {
            PassFusion::Choice(..) => [shared, own],
            _ => [own, shared],
        };
        return Ok(lists.concat());
    }
    let [first, last] = op.fusion.separate_launches(l, op.x, pass)?;
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
    op: &product::Op<'_>,
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
