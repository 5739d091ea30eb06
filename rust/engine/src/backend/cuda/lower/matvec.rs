//! A few rows of activations times weights: the kernel that decode is made of.

use std::fmt::Write;

use super::lowering::{sizes, Lowering, Pass, Path};
use super::params::{KvView, MatVec, Segment, CONSTANTS};
use super::product::{Op, Product};
use super::shape::MatVecShape;
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;

static SOURCE: Source = source!("matvec.cu", CONSTANTS, MatVec, Segment, KvView);

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

/// Shared memory that a block may take.
fn shared_budget(l: &Lowering, n_in: usize, m: usize, bytes: usize) -> usize {
    let most = l.card.shared_bytes;
    let is_short = n_in < LONG_ROW && bytes < MANY_BYTES;
    match (l.card.has_pdl() && m == 1, is_short) {
        (false, _) => most,
        (true, true) => most * SHARED_SHORT / 100,
        (true, false) => most * SHARED_LONG / 100,
    }
}

/// The launches of `product` with the `m` rows of `op.x`, behind `before` others of the pass.
pub fn specs(
    l: &Lowering,
    op: &Op<'_>,
    product: &Product,
    m: usize,
    pass: &Pass,
    before: usize,
) -> Result<Vec<Spec>> {
    let n_in = l.plan.buffer(op.x).width;
    let bucket = match pass.path {
        Path::Decode { bucket } => bucket,
        Path::Prefill { .. } => PREFILL_BUCKET,
    };
    let compiled_for = m.max(bucket);
    let budget = shared_budget(l, n_in, compiled_for, product.bytes);
    let shape = MatVecShape::new(n_in, &product.types, compiled_for, budget);
    let shared = shape.shared_bytes();
    let mut text = shape.constants(&product.types) + &product.constants;
    text += &sizes(&[("SHARED_BYTES", shared)]);
    let _ = writeln!(text, "constexpr bool NORM = {};", op.norm.is_some());
    let variant = Variant {
        source: &SOURCE,
        constants: text,
    };
    let tiles: usize = product.tiles.iter().sum();
    // One block an SM, though two fit: the other half is the successor's. (Two without a
    // successor were 9% slower at 8B on an H200.)
    let grid = tiles
        .div_ceil(shape.warps_r)
        .clamp(1, l.card.sm_count as usize);
    // More rows than the kernel takes: one launch after another, over the same weights.
    let part = |first: usize| {
        let mut segment = product.segment;
        for s in &mut segment {
            s.out += first as u64 * u64::from(s.rows) * 4;
        }
        let params = MatVec {
            segment,
            x: l.source(op.x, pass) + (first * n_in * 4) as u64,
            norm: l.vector(op.norm.map(|n| n.weight))?,
            eps: op.norm.map_or(0.0, |n| n.eps),
            m: (m - first).min(shape.max_m) as u32,
            kv: product.kv,
            cos_sin: l.at.cos_sin,
            positions: pass.inputs.positions + (first * 4) as u64,
            slots: pass.inputs.slots + (first * 4) as u64,
            // The first kernel of a pass may write the positions.
            located: u32::from(before + first / shape.max_m >= 2),
            unused: 0,
        };
        let block = shape.threads() as u32;
        let grid = [grid as u32, 1, 1];
        let mut spec = Spec::new(variant.clone(), "matvec", grid, block, &params);
        spec.label = format!("matvec {}", product.names);
        spec.shared = shared as u32;
        spec.traffic.weights = product.bytes as u64;
        spec.traffic.rows = product.row_traffic(params.m as usize, n_in);
        Ok(spec)
    };
    (0..m).step_by(shape.max_m).map(part).collect()
}
