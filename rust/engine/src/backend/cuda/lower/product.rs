//! A fused product with weights, for whichever kernel computes it: which weights it reads and in
//! what order, and what becomes of its sums.

use super::experts;
use super::layout::{arrangement, Matrix, Order};
use super::lowering::{Lowering, Pass};
use super::params::{QkvRotation, Segment, SharedExpert};
use super::pass_fusion::PassFusion;
use super::shape::TILE_ROWS;
use super::shared_expert::SharedOp;
use crate::backend::cuda::driver::source::constants;
use crate::backend::cuda::driver::spec::Spec;
use crate::error::{Error, Result};
use crate::plan::fuse::{Epilogue, Experts, Fused, Gate, Part, MOST_PARTS};
use crate::plan::{BufferId, Norm};
use crate::quant::QuantType;

/// A fused product to lower.
#[derive(Debug, Clone, Copy)]
pub struct Op<'a> {
    /// Its place in the fused list.
    pub number: usize,
    pub x: BufferId,
    pub norm: Option<Norm>,
    pub experts: Option<Experts>,
    pub parts: &'a [Part],
    pub epilogue: &'a Epilogue,
    /// What its launch makes too, where there is room for it.
    pub fusion: PassFusion,
}

impl<'a> Op<'a> {
    /// Of an op of the fused list, if it is a product.
    pub fn of(fused: &'a Fused, number: usize, fusion: PassFusion) -> Option<Self> {
        match fused {
            Fused::MatVec {
                x,
                norm,
                experts,
                parts,
                epilogue,
                ..
            } => Some(Self {
                number,
                x: *x,
                norm: *norm,
                experts: *experts,
                parts,
                epilogue,
                fusion,
            }),
            _ => None,
        }
    }
}

constants! {
    /// What epilogue.cuh is compiled for.
    pub struct EpilogueConstants with {
        EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_SWIGLU, EPILOGUE_GEGLU, EPILOGUE_CLAMPED_SWIGLU,
        EPILOGUE_QKV
    } with { ORDER_NATURAL, ORDER_NEIGHBOURS, ORDER_HALVES } {
        epilogue: name, order: name, scale_bits: bits, scaled: bool, head_dim: int,
    }
}

/// Its weights and what becomes of the sums.
#[derive(Debug)]
pub struct Product {
    pub types: Vec<&'static QuantType>,
    /// Columns.
    pub n_in: usize,
    /// That of an expert that its launch has too comes behind its own.
    pub segment: [Segment; MOST_PARTS],
    /// Of each segment of its own.
    pub tiles: Vec<usize>,
    /// Of weights.
    pub bytes: usize,
    /// The epilogue's constants.
    pub constants: EpilogueConstants,
    /// By what the epilogue rotates heads, if it does.
    pub rotation: QkvRotation,
    /// The last product of an expert that every row goes to, where the launch makes it.
    pub shared: SharedExpert,
    /// The tiles of an expert that every row goes to.
    pub shared_tiles: usize,
    /// Floats of a row that are written, and of those that are read before.
    written: usize,
    read_first: usize,
    /// The tensors, for people.
    names: String,
}

impl Product {
    /// What the launch of `kernel` with `m` rows of `n_in` columns reports: label and traffic.
    pub fn describe(&self, spec: &mut Spec, kernel: &str, m: usize, n_in: usize) {
        spec.label = format!("{kernel} {}", self.names);
        spec.traffic.weights = self.bytes as u64;
        spec.traffic.rows = (m * (n_in + self.written + self.read_first) * 4) as u64;
    }

    /// The same with the product of an expert that every row goes to.
    fn beside(mut self, l: &Lowering, shared: &SharedOp, pass: &Pass) -> Result<Self> {
        let number = shared.number;
        let op = Op::of(&l.fused[number], number, PassFusion::Nothing);
        let op = op.ok_or_else(|| Error::Internal(format!("{number} is no product")))?;
        let its = product(l, &op, pass)?;
        self.segment[self.types.len()] = its.segment[0];
        self.types.extend(its.types);
        self.shared_tiles = its.tiles[0];
        self.bytes += its.bytes;
        self.names = format!("{} {}", self.names, its.names);
        self.shared = match shared.gate {
            Some(gate) => SharedExpert {
                x: l.address(gate.x),
                gate: l.address(gate.by()),
                product: number as u32,
                unused: 0,
            },
            None => bytemuck::Zeroable::zeroed(),
        };
        Ok(self)
    }
}

/// Weights and epilogue of `op`.
pub fn product(l: &Lowering, op: &Op<'_>, pass: &Pass) -> Result<Product> {
    let Op {
        parts, epilogue, ..
    } = *op;
    let plan = &l.plan;
    let arrangement = arrangement(plan, parts, epilogue);
    let mut product = Product {
        types: Vec::new(),
        n_in: plan.weight(parts[0].weight).n_in,
        segment: [<Segment as bytemuck::Zeroable>::zeroed(); MOST_PARTS],
        tiles: Vec::new(),
        bytes: 0,
        constants: epilogue_constants(op, arrangement[0].1),
        rotation: match epilogue {
            Epilogue::Qkv {
                rotation,
                key_table,
                ..
            } => QkvRotation {
                cos_sin: l.at.cos_sin[rotation.table],
                key_cos_sin: l.at.cos_sin[*key_table],
                positions: pass.inputs.positions,
                n_ctx: l.n_ctx as u32,
                unused: 0,
            },
            _ => bytemuck::Zeroable::zeroed(),
        },
        shared: bytemuck::Zeroable::zeroed(),
        shared_tiles: 0,
        written: 0,
        read_first: 0,
        names: String::new(),
    };
    for (i, (ids, order)) in arrangement.iter().enumerate() {
        let matrix = Matrix::new(plan, ids, *order)?;
        let out = match epilogue {
            Epilogue::Add { out, .. } | Epilogue::Gated { out, .. } => *out,
            Epilogue::Store | Epilogue::Qkv { .. } => parts[i].out,
        };
        // Of joined matrices the second is part 1; of a parted one both are part 0.
        let last = &parts[i + ids.len() - 1];
        product.segment[i] = Segment {
            weights: l.weights(ids, *order)?,
            out: l.address(out),
            bias: [l.vector(parts[i].bias)?, l.vector(last.bias)?],
            scale: [l.vector(parts[i].scale)?, l.vector(last.scale)?],
            tiles: matrix.expert_tiles as u32,
            rows: matrix.gives as u32,
        };
        product.types.push(matrix.ty);
        product.tiles.push(matrix.expert_tiles);
        // At most one expert a pair, and each once.
        let experts = op.experts.map_or(1, |experts| {
            let pairs = l.rows_of(op.x, pass) * experts::ranks(plan, experts.routes);
            pairs.min(matrix.n_expert)
        });
        product.bytes += matrix.bytes() / matrix.n_expert * experts;
        product.written += matrix.gives;
        product.read_first += match epilogue {
            Epilogue::Add { .. } => matrix.n_out,
            _ => 0,
        };
    }
    let mut names: Vec<_> = arrangement
        .iter()
        .flat_map(|a| &a.0)
        .map(|id| plan.weight(*id).name.as_str())
        .collect();
    // Of one that is cut into several.
    names.dedup();
    product.names = names.join(" ");
    match op.fusion.shared() {
        Some(shared) => product.beside(l, &shared, pass),
        None => Ok(product),
    }
}

/// What becomes of sums of rows in this order.
fn epilogue_constants(op: &Op<'_>, order: Order) -> EpilogueConstants {
    EpilogueConstants {
        epilogue: match op.epilogue {
            Epilogue::Store => "EPILOGUE_STORE",
            Epilogue::Add { .. } => "EPILOGUE_ADD",
            Epilogue::Gated { gate, .. } => match gate {
                Gate::Swi => "EPILOGUE_SWIGLU",
                Gate::Ge => "EPILOGUE_GEGLU",
                Gate::ClampedSwi => "EPILOGUE_CLAMPED_SWIGLU",
            },
            Epilogue::Qkv { .. } => "EPILOGUE_QKV",
        },
        order: match order {
            Order::Neighbours => "ORDER_NEIGHBOURS",
            Order::Halves { .. } => "ORDER_HALVES",
            Order::Natural | Order::Joined | Order::Parted { .. } | Order::Slice(_) => {
                "ORDER_NATURAL"
            }
        },
        scale_bits: match op.epilogue {
            Epilogue::Add { scale, .. } => *scale,
            _ => 1.0,
        },
        scaled: op.parts.iter().any(|part| part.scale.is_some()),
        // Without heads, the least that there are.
        head_dim: match op.epilogue {
            Epilogue::Qkv { head_dim, .. } => *head_dim,
            _ => TILE_ROWS,
        },
    }
}
