//! Gates before a product: fused into the product of one row, where each block applies the gate to x as it
//! loads it; launches of their own for several rows.

use super::lowering::{Lowering, Pass};
use super::params::Gated;
use super::{norm, rowwise};
use crate::backend::cuda::driver::source::constants;
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::Fused;
use crate::plan::{BufferId, Norm, Op};

/// Widest groups that are normalized on the way: a warp has 256 values at a time.
const MOST_GROUP: usize = 256;

constants! {
    /// What a product of one row is compiled for.
    pub struct GateConstants with { UNGATED, ONE_GATE, GATE_EACH, NORM_GATE } {
        gate: int, gate_group: uint32_t,
    }
}

/// The gate that an op of the fused list is, and what it lets through.
#[derive(Debug, Clone, Copy)]
pub struct Gate {
    pub x: BufferId,
    gate: BufferId,
    /// Of groups of so many values, where these are normalized first.
    norm: Option<(Norm, usize)>,
}

impl Gate {
    /// Of a fused op, if it is one.
    pub fn of(op: &Fused) -> Option<Self> {
        match *op {
            Fused::Single(Op::SigmoidMul { x, gate, .. }) => Some(Self {
                x,
                gate,
                norm: None,
            }),
            Fused::NormGate {
                x,
                norm,
                group,
                gate,
                ..
            } => Some(Self {
                x,
                gate,
                norm: Some((norm, group)),
            }),
            _ => None,
        }
    }

    /// Whether a warp can let a row of `width` values through: a gate each, or one for all; and whole
    /// groups that lanes share.
    pub fn fits(&self, l: &Lowering, width: usize) -> bool {
        let gates = l.plan.buffer(self.gate).width;
        match self.norm {
            None => gates == width || gates == 1,
            Some((_, group)) => {
                let lanes_share = (8..=MOST_GROUP).contains(&group) && group.is_power_of_two();
                gates == width && lanes_share && width.is_multiple_of(group)
            }
        }
    }

    /// Whether it is one number for all values, as they are.
    pub fn is_one(&self, l: &Lowering) -> bool {
        self.norm.is_none() && l.plan.buffer(self.gate).width == 1
    }

    /// What lets x through.
    pub fn by(&self) -> BufferId {
        self.gate
    }

    /// What it is made of, which a product reads where its launch is to be the gate.
    pub fn reads(&self) -> [BufferId; 2] {
        [self.x, self.gate]
    }

    /// The launch that lets `out` of the pass through by itself.
    pub fn launch(&self, l: &Lowering, out: BufferId, pass: &Pass) -> Result<Spec> {
        let (x, gate) = (self.x, self.gate);
        match self.norm {
            Some((by, group)) => norm::norm_gate(l, x, by, group, (gate, out), pass),
            None => rowwise::sigmoid_mul(l, [gate, x, out], pass),
        }
    }

    /// What the product's launch is given.
    pub fn params(this: Option<&Self>, l: &Lowering) -> Result<Gated> {
        let norm = this.and_then(|gate| gate.norm);
        Ok(Gated {
            by: this.map_or(0, |gate| l.address(gate.gate)),
            weight: l.vector(norm.map(|(norm, _)| norm.weight))?,
            eps: norm.map_or(0.0, |(norm, _)| norm.eps),
            unused: 0,
        })
    }

    /// What it is compiled for.
    pub fn constants(this: Option<&Self>, l: &Lowering) -> GateConstants {
        let kind = match this {
            None => 0,
            Some(gate) if gate.norm.is_some() => 3,
            Some(gate) if gate.is_one(l) => 1,
            Some(_) => 2,
        };
        let group = this
            .and_then(|gate| gate.norm)
            .map_or(1, |(_, group)| group);
        GateConstants {
            gate: kind,
            gate_group: group,
        }
    }
}
