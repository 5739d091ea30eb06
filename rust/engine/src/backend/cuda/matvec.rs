//! Lowers a fused mat-vec: which weights it reads and in what order, what becomes of its sums, and
//! which kernel computes it.

use std::fmt::Write;

use super::compile::Variant;
use super::kernels as params;
use super::launch::Spec;
use super::matmul;
use super::model::{constants, CudaModel, Pass, Path};
use super::shape::MatVecShape;
use super::weights::Order;
use crate::error::Result;
use crate::plan::fuse::{Epilogue, Part};
use crate::plan::{BufferId, RopeStyle, Rows, WeightId};
use crate::quant::QuantType;

/// Shared memory of a block that computes one row, in per cent of what an SM can give to one: a
/// kernel with short rows and one with long rows, whose activations take more, fit side by side, so
/// that one starts while the other ends.
const SHARED_SHORT: usize = 39;
const SHARED_LONG: usize = 59;

/// Columns from which rows are long.
const LONG_ROW: usize = 6144;

/// Bytes of weights from which a kernel is long enough to prefer units in flight to a neighbour.
const MANY_BYTES: usize = 128 << 20;

/// Rows that the mat-vecs of a prompt are compiled for: those of its logits.
const PREFILL_BUCKET: usize = 8;

/// A fused mat-vec to lower.
pub(super) struct MatVec<'a> {
    pub x: BufferId,
    pub norm: Option<(WeightId, f32)>,
    pub parts: &'a [Part],
    pub epilogue: &'a Epilogue,
}

/// Weights of a fused product and what becomes of the sums, for either kernel.
pub(super) struct Product {
    pub types: Vec<&'static QuantType>,
    pub segment: [params::Segment; 3],
    /// Of each segment.
    pub tiles: Vec<usize>,
    pub bytes: usize,
    /// The epilogue's constants.
    pub epilogue: String,
    pub layer: usize,
    pub names: String,
}

impl CudaModel {
    /// The matrices of a fused op, as it wants them.
    pub(super) fn arrangement(
        &self,
        parts: &[Part],
        epilogue: &Epilogue,
    ) -> Vec<(Vec<WeightId>, Order)> {
        match epilogue {
            Epilogue::SwiGlu { .. } => {
                vec![(parts.iter().map(|p| p.weight).collect(), Order::Joined)]
            }
            Epilogue::Qkv { style, .. } => {
                let order = match style {
                    RopeStyle::Interleaved => Order::Neighbours,
                    RopeStyle::Halves => Order::Halves {
                        head_dim: self.plan.kv.head_dim,
                    },
                };
                let orders = [order, order, Order::Natural];
                parts
                    .iter()
                    .zip(orders)
                    .map(|(p, o)| (vec![p.weight], o))
                    .collect()
            }
            _ => parts
                .iter()
                .map(|p| (vec![p.weight], Order::Natural))
                .collect(),
        }
    }

    /// Weights and epilogue of a fused product.
    fn product(&self, n_in: usize, parts: &[Part], epilogue: &Epilogue) -> Result<Product> {
        let plan = &self.plan;
        let arrangement = self.arrangement(parts, epilogue);
        let order = arrangement[0].1;
        let kv_struct = self.kv.ty.kernel.kv_struct();
        let mut text = format!(
            "enum {{ EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_SWIGLU, EPILOGUE_QKV }};\n\
             enum {{ ORDER_NATURAL, ORDER_NEIGHBOURS, ORDER_HALVES }};\n\
             constexpr int EPILOGUE = {};\nconstexpr int ORDER = {};\n\
             using Kv = {kv_struct};\n",
            match epilogue {
                Epilogue::Store => "EPILOGUE_STORE",
                Epilogue::Add { .. } => "EPILOGUE_ADD",
                Epilogue::SwiGlu { .. } => "EPILOGUE_SWIGLU",
                Epilogue::Qkv { .. } => "EPILOGUE_QKV",
            },
            match order {
                Order::Neighbours => "ORDER_NEIGHBOURS",
                Order::Halves { .. } => "ORDER_HALVES",
                Order::Natural | Order::Joined => "ORDER_NATURAL",
            },
        );
        text += &constants(&[
            ("HEAD_DIM", plan.kv.head_dim),
            ("N_HEAD_KV", plan.kv.n_head_kv),
        ]);
        let mut product = Product {
            types: Vec::new(),
            segment: [<params::Segment as bytemuck::Zeroable>::zeroed(); 3],
            tiles: Vec::new(),
            bytes: 0,
            epilogue: text,
            layer: match epilogue {
                Epilogue::Qkv { layer, .. } => *layer,
                _ => 0,
            },
            names: String::new(),
        };
        for (i, (ids, order)) in arrangement.iter().enumerate() {
            let (units, n_tiles) = self.units(ids, *order)?;
            let w = plan.weight(ids[0]);
            let out = match epilogue {
                Epilogue::Add { out } | Epilogue::SwiGlu { out } => *out,
                _ => parts[i].out,
            };
            product.segment[i] = params::Segment {
                units,
                out: self.address(out),
                bias: parts[i]
                    .bias
                    .map(|b| self.vector(b))
                    .transpose()?
                    .unwrap_or(0),
                tiles: n_tiles as u32,
                rows: w.n_out as u32,
            };
            product.types.push(w.ty);
            product.tiles.push(n_tiles);
            product.bytes += n_tiles * super::shape::superblocks(n_in) * w.ty.kernel.unit_bytes;
        }
        let names: Vec<_> = arrangement
            .iter()
            .flat_map(|a| &a.0)
            .map(|id| plan.weight(*id).name.as_str())
            .collect();
        product.names = names.join(" ");
        Ok(product)
    }

    /// Shared memory that a block may take.
    fn shared_budget(&self, n_in: usize, m: usize, bytes: usize) -> usize {
        let most = self.context.info.shared_bytes;
        let is_short = n_in < LONG_ROW && bytes < MANY_BYTES;
        match (self.context.info.has_pdl() && m == 1, is_short) {
            (false, _) => most,
            (true, true) => most * SHARED_SHORT / 100,
            (true, false) => most * SHARED_LONG / 100,
        }
    }

    pub(super) fn mat_vec(&self, op: &MatVec<'_>, pass: &Pass, list: &mut Vec<Spec>) -> Result<()> {
        let MatVec {
            x,
            norm,
            parts,
            epilogue,
        } = *op;
        let m = self.rows_of(x, pass.rows, pass.out);
        if m == 0 {
            return Ok(());
        }
        let n_in = self.plan.buffer(x).width;
        let product = self.product(n_in, parts, epilogue)?;
        let bucket = match pass.path {
            Path::Decode { bucket } => bucket,
            Path::Prefill { .. } => PREFILL_BUCKET,
        };
        let is_prompt =
            matches!(pass.path, Path::Prefill { .. }) && self.plan.buffer(x).rows == Rows::Batch;
        if is_prompt && product.types.iter().all(|t| matmul::takes(t, n_in)) {
            list.extend(self.mat_mul(x, norm, &product, m, &pass.inputs)?);
            return Ok(());
        }
        let shape = MatVecShape::new(
            n_in,
            &product.types,
            m.max(bucket),
            self.shared_budget(n_in, m.max(bucket), product.bytes),
        );
        let mut text = shape.constants(&product.types) + &product.epilogue;
        let _ = writeln!(text, "constexpr bool NORM = {};", norm.is_some());
        let shared = shape.shared_bytes() as u32;
        let variant = Variant {
            source: "matvec.cu",
            constants: text,
        };
        let tiles: usize = product.tiles.iter().sum();
        // One block an SM, though two fit: the other half is the successor's. (Two without a
        // successor were 9% slower at 8B on an H200.)
        let grid = tiles
            .div_ceil(shape.warps_r)
            .clamp(1, self.context.info.sm_count as usize);
        // More rows than the kernel takes: one launch after another, over the same weights.
        for first in (0..m).step_by(shape.max_m) {
            let count = (m - first).min(shape.max_m);
            let mut segment = product.segment;
            for s in &mut segment {
                s.out += first as u64 * u64::from(s.rows) * 4;
            }
            let p = params::MatVec {
                segment,
                x: self.source(x, pass) + (first * n_in * 4) as u64,
                norm: norm.map(|n| self.vector(n.0)).transpose()?.unwrap_or(0),
                eps: norm.map_or(0.0, |n| n.1),
                m: count as u32,
                kv: self.kv.view(product.layer),
                turns: self.turns.address(),
                positions: pass.inputs.positions + (first * 4) as u64,
                slots: pass.inputs.slots + (first * 4) as u64,
                // The first kernel of a pass may write the positions.
                located: u32::from(list.len() >= 2),
                unused: 0,
            };
            let block = shape.threads() as u32;
            let mut spec = Spec::new(variant.clone(), "matvec", [grid as u32, 1, 1], block, &p);
            spec.label = format!("matvec {}", product.names);
            spec.shared = shared;
            spec.bytes = product.bytes as u64;
            list.push(spec);
        }
        Ok(())
    }
}
