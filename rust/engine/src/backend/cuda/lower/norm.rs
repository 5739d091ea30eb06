//! Norms of rows, and what is done with normalized values in the same launch.

use super::lowering::{Lowering, Pass};
use super::params::{LayerNorm, RmsNorm, CONSTANTS};
use super::shape::superblocks;
use crate::backend::cuda::driver::source::{constants, shared, source, Source};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::{GateOp, NormAdd, NormPair};
use crate::plan::{BufferId, Norm, WeightId};

shared! {
    /// rms_norm_pair.cu
    pub struct RmsNormPair = "Params" {
        /// `[rows][GROUP]` f32.
        pub a: u64, pub b: u64, pub out: u64,
        /// `[GROUP]` f32, as the two that follow.
        pub a_weight: u64,
        pub b_weight: u64, pub weight: u64,
        /// One f32, or 0.
        pub factor: u64,
        pub eps: f32, pub rows: u32,
    }
}

static RMS_NORM: Source = source!("rms_norm.cu", CONSTANTS, RmsNorm);
static LAYER_NORM: Source = source!("layer_norm.cu", CONSTANTS, LayerNorm);
static RMS_NORM_PAIR: Source = source!("rms_norm_pair.cu", CONSTANTS, RmsNormPair);

constants! {
    /// row.cuh
    pub struct RowConstants {
        pub group: int, pub threads: uint32_t,
    }

    /// rms_norm.cu
    struct RmsNormVariant in RMS_NORM {
        row: RowConstants, adds: bool, gated: bool, has_weight: bool, has_factor: bool,
        weights: uint32_t,
    }

    /// layer_norm.cu
    struct LayerNormVariant in LAYER_NORM {
        row: RowConstants, has_bias: bool,
    }

    /// rms_norm_pair.cu
    struct RmsNormPairVariant in RMS_NORM_PAIR {
        row: RowConstants, has_factor: bool,
    }
}

/// Most warps of a block, and of one whose threads may have as many registers as there are.
const MOST_WARPS: usize = 32;
const FEW_WARPS: usize = 8;

/// Registers of a processor, which gives them to four warps at a time, and those that a thread needs
/// beside the values that it holds.
const REGISTERS: usize = 65_536;
const WARPS_AT_ONCE: usize = 4;
const OTHER_REGISTERS: usize = 40;

/// Threads of the block that has a row, of which it keeps `held` vectors in registers: a warp for each
/// superblock, where so many have the registers. (A step's row is one block's, which waits for memory
/// as often as a warp asks.)
pub fn threads(group: usize, held: usize) -> usize {
    let n_sb = superblocks(group);
    let fit = (1..=n_sb).find_map(|each| {
        let warps = n_sb.div_ceil(each);
        let served = 32 * warps.next_multiple_of(WARPS_AT_ONCE);
        let registers = served * (8 * each * held + OTHER_REGISTERS);
        (warps <= MOST_WARPS && registers <= REGISTERS).then_some(warps)
    });
    32 * fit.unwrap_or(FEW_WARPS.min(n_sb))
}

/// What becomes of normalized values.
#[derive(Clone, Copy)]
enum End {
    Store,
    /// Added to what is there, and the sum is multiplied by the factor, where there is one.
    Add(Option<WeightId>),
    /// Multiplied by `silu` of this.
    Gate(BufferId),
}

/// The launch of [`Op::RmsNorm`](crate::plan::Op::RmsNorm), by a weight or none.
pub fn rms_norm(
    l: &Lowering,
    x: BufferId,
    by: (Option<WeightId>, f32),
    group: usize,
    out: BufferId,
    pass: &Pass,
) -> Result<Spec> {
    launch(l, x, by, group, (out, End::Store), pass)
}

/// The launch of [`Op::LayerNorm`](crate::plan::Op::LayerNorm), by a weight and a bias or none.
pub fn layer_norm(
    l: &Lowering,
    [x, out]: [BufferId; 2],
    (weight, bias): (WeightId, Option<WeightId>),
    eps: f32,
    pass: &Pass,
) -> Result<Spec> {
    let group = l.plan.buffer(x).width;
    let rows = l.rows_of(x, pass) as u32;
    let params = LayerNorm {
        x: l.source(x, pass),
        out: l.address(out),
        weight: l.vector(Some(weight))?,
        bias: l.vector(bias)?,
        eps,
        rows,
    };
    // x, weight and bias.
    let threads = threads(group, 3);
    let variant = LayerNormVariant {
        row: RowConstants { group, threads },
        has_bias: bias.is_some(),
    };
    let grid = [rows, 1, 1];
    Ok(Spec::new(
        variant,
        "layer_norm",
        grid,
        threads as u32,
        &params,
    ))
}

/// The launch of [`NormAdd`].
pub fn norm_add(l: &Lowering, op: &NormAdd, pass: &Pass) -> Result<Spec> {
    let by = (Some(op.norm.weight), op.norm.eps);
    launch(l, op.x, by, op.group, (op.out, End::Add(op.factor)), pass)
}

/// The launch of a [`GateOp`] of normalized values.
pub fn norm_gate(
    l: &Lowering,
    op: &GateOp,
    (norm, group): (Norm, usize),
    pass: &Pass,
) -> Result<Spec> {
    let by = (Some(norm.weight), norm.eps);
    launch(l, op.x, by, group, (op.out, End::Gate(op.gate)), pass)
}

/// The launch of [`NormPair`].
pub fn norm_pair(l: &Lowering, op: &NormPair, pass: &Pass) -> Result<Spec> {
    let NormPair {
        pair: [a, b],
        norm,
        group,
        out,
        factor,
    } = *op;
    let floats = l.elements(out, pass) as usize;
    let rows = (floats / group) as u32;
    let params = RmsNormPair {
        a: l.address(a.0),
        b: l.address(b.0),
        out: l.address(out),
        a_weight: l.vector(Some(a.1))?,
        b_weight: l.vector(Some(b.1))?,
        weight: l.vector(Some(norm.weight))?,
        factor: l.vector(factor)?,
        eps: norm.eps,
        rows,
    };
    // a, b and out, and the weights.
    let threads = threads(group, 6);
    let variant = RmsNormPairVariant {
        row: RowConstants { group, threads },
        has_factor: factor.is_some(),
    };
    let grid = [rows, 1, 1];
    let mut spec = Spec::new(variant, "rms_norm_pair", grid, threads as u32, &params);
    spec.label = format!("rms_norm pair {}", l.plan.weight(norm.weight).name);
    // a, b, and out twice.
    spec.traffic = Traffic::rows(4 * (4 * floats + 3 * group));
    Ok(spec)
}

/// `out = norm(x)`, or how else it ends, of groups of `group` values.
fn launch(
    l: &Lowering,
    x: BufferId,
    (weight, eps): (Option<WeightId>, f32),
    group: usize,
    (out, end): (BufferId, End),
    pass: &Pass,
) -> Result<Spec> {
    let (factor, gate, what) = match end {
        End::Store => (None, None, None),
        End::Add(factor) => (factor, None, weight.map(|w| ("add", w))),
        End::Gate(gate) => (None, Some(gate), weight.map(|w| ("swiglu", w))),
    };
    let groups = (l.elements(x, pass) / group as u64) as u32;
    let params = RmsNorm {
        x: l.source(x, pass),
        out: l.address(out),
        weight: l.vector(weight)?,
        factor: l.vector(factor)?,
        gate: gate.map_or(0, |gate| l.address(gate)),
        eps,
        groups,
    };
    // x, its weight, and what it is added to or multiplied with.
    let threads = threads(group, 3);
    let variant = RmsNormVariant {
        row: RowConstants { group, threads },
        adds: matches!(end, End::Add(_)),
        gated: gate.is_some(),
        has_weight: weight.is_some(),
        has_factor: factor.is_some(),
        weights: weight.map_or(1, |id| l.plan.weight(id).n_in / group),
    };
    let mut spec = Spec::new(variant, "rms_norm", [groups, 1, 1], threads as u32, &params);
    if let Some((what, weight)) = what {
        spec.label = format!("rms_norm {what} {}", l.plan.weight(weight).name);
        // x, and out twice or it and the gate.
        let floats = 3 * l.elements(x, pass) as usize + group;
        spec.traffic = Traffic::rows(4 * floats);
    }
    Ok(spec)
}
