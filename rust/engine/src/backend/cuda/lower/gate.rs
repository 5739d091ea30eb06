//! Gates before a product: fused into the product of one row, where each block applies the gate to x as it
//! loads it; launches of their own for several rows.

use super::lowering::{Lowering, Pass};
use super::params::Gated;
use super::{norm, rowwise};
use crate::backend::cuda::driver::source::constants;
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::GateOp;
use crate::plan::Op;

constants! {
    /// What a product of one row is compiled for.
    pub struct GateConstants with { UNGATED, ONE_GATE, GATE_EACH, NORM_GATE } {
        gate: int, gate_group: uint32_t,
    }
}

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

impl GateConstants {
    pub fn of(l: &Lowering, op: Option<&GateOp>) -> Self {
        let width = |op: &GateOp| l.plan.buffer(op.gate).width;
        let (gate, gate_group) = match op.map(|op| (op.norm, width(op))) {
            None => (0, 1),
            Some((Some((_, group)), _)) => (3, group),
            Some((None, 1)) => (1, 1),
            Some((None, _)) => (2, 1),
        };
        Self { gate, gate_group }
    }
}
