//! Gates before a product: fused into the product of one row, where each block applies the gate to x as it
//! loads it; launches of their own for several rows.

use super::lowering::{self, sizes, Lowering, Pass};
use super::params::Gated;
use super::{norm, rowwise};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::GateOp;
use crate::plan::Op;

/// The launch that lets rows through by itself.
pub fn launch(l: &Lowering, op: &GateOp, pass: &Pass) -> Result<Option<Spec>> {
    let GateOp { x, gate, out, .. } = *op;
    match op.norm {
        Some(norm) => norm::norm_gate(l, op, norm, pass).map(Some),
        None => rowwise::spec(l, &Op::SigmoidMul { x, gate, out }, pass),
    }
}

/// What a product's launch is given that is a gate too.
pub fn params(l: &Lowering, op: Option<&GateOp>) -> Result<Gated> {
    let norm = op.and_then(|op| op.norm);
    Ok(Gated {
        by: op.map_or(0, |op| l.address(op.gate)),
        weight: l.vector(norm.map(|(norm, _)| norm.weight))?,
        eps: norm.map_or(0.0, |(norm, _)| norm.eps),
        unused: 0,
    })
}

/// What it is compiled for.
pub fn constants(l: &Lowering, op: Option<&GateOp>) -> String {
    let (kind, group) = match op.map(|op| (op.norm, l.plan.buffer(op.gate).width)) {
        None => (0, 1),
        Some((Some((_, group)), _)) => (3, group),
        Some((None, 1)) => (1, 1),
        Some((None, _)) => (2, 1),
    };
    String::from("enum { UNGATED, ONE_GATE, GATE_EACH, NORM_GATE };\n")
        + &lowering::constants(&[("GATE", kind)])
        + &sizes(&[("GATE_GROUP", group)])
}
