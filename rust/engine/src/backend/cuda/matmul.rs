//! A prompt's products: activations split into halves, then multiplied on tensor cores.

use std::sync::Arc;

use super::compile::Variant;
use super::device::{Context, DeviceBuffer, Stream};
use super::kernels::{MatMul, Split};
use super::launch::Spec;
use super::matvec::Product;
use super::model::{constants, CudaModel, Inputs};
use super::shape::segments;
use crate::error::Result;
use crate::plan::{BufferId, WeightId};
use crate::quant::QuantType;

/// Tiles of weights a block; see matmul.cu.
const TILES: usize = 8;

/// Columns that have one sum, and one place in the split rows.
const BLOCK_COLS: usize = 32;

/// Rows of activations that a block takes at most.
const MOST_ROWS: usize = 128;

/// Whether the matrix product takes rows of `n_in` weights of type `ty`: its header says whether it
/// has them as float16.
pub fn takes(ty: &QuantType, n_in: usize) -> bool {
    n_in.is_multiple_of(BLOCK_COLS) && ty.kernel.text.contains("float halves(")
}

/// Activations of one product, as split.cu writes them.
#[derive(Debug)]
pub struct SplitRows {
    halves: DeviceBuffer,
    sums: DeviceBuffer,
    unscale: DeviceBuffer,
    /// Rows, in whole blocks.
    rows: usize,
}

impl SplitRows {
    /// Memory for `rows` rows of up to `n_in` columns.
    pub fn new(context: &Arc<Context>, stream: &Stream, rows: usize, n_in: usize) -> Result<Self> {
        let rows = rows.next_multiple_of(MOST_ROWS);
        let n_in = n_in.next_multiple_of(BLOCK_COLS).max(BLOCK_COLS);
        let buffer = |bytes: usize| -> Result<DeviceBuffer> {
            let buffer = DeviceBuffer::new(context, bytes)?;
            buffer.fill(0xff, stream)?;
            Ok(buffer)
        };
        Ok(Self {
            halves: buffer(rows * n_in * 4)?,
            sums: buffer(n_in / BLOCK_COLS * rows * 4)?,
            unscale: buffer(rows * 4)?,
            rows,
        })
    }
}

/// Dynamic shared memory of a block with `n_tile` rows of activations, as the kernel lays it out.
fn shared_bytes(n_tile: usize) -> usize {
    let weights = TILES * 8 * 256 * 2;
    let scales = 2 * 16 * TILES * 8 * 4;
    weights + scales + 2 * n_tile * (128 + 4)
}

/// Rows of activations a block, on a card of `sms` SMs with `shared` bytes each: large ones read the
/// weights less often, small ones fill the card. No bit depends on it.
fn n_tile(m: usize, groups: usize, sms: usize, shared: usize) -> usize {
    let mut n = MOST_ROWS;
    let fits = |n: usize| shared_bytes(n) <= shared;
    let idle = |n: usize| m <= n / 2 || groups * m.div_ceil(n) < sms;
    while n > 32 && (!fits(n) || idle(n)) {
        n /= 2;
    }
    n
}

impl CudaModel {
    /// The launches of `product` with the `m` rows of `x`, RMSNorm first where there is one.
    pub(super) fn mat_mul(
        &self,
        x: BufferId,
        norm: Option<(WeightId, f32)>,
        product: &Product,
        m: usize,
        inputs: &Inputs,
    ) -> Result<[Spec; 2]> {
        let n_in = self.plan.buffer(x).width;
        let split = Split {
            x: self.buffer(x).address(),
            norm: norm.map(|n| self.vector(n.0)).transpose()?.unwrap_or(0),
            halves: self.split.halves.address(),
            sums: self.split.sums.address(),
            unscale: self.split.unscale.address(),
            eps: norm.map_or(0.0, |n| n.1),
            stride: self.split.rows as u32,
        };
        let text =
            constants(&[("N_IN", n_in)]) + &format!("constexpr bool NORM = {};\n", norm.is_some());
        let variant = Variant {
            source: "split.cu",
            constants: text,
        };
        let threads = (n_in / 8).next_multiple_of(32).min(512) as u32;
        let split_spec = Spec::new(variant, "split", [m as u32, 1, 1], threads, &split);

        let info = &self.context.info;
        let groups = product.tiles.iter().map(|t| t.div_ceil(TILES)).sum();
        let n_tile = n_tile(m, groups, info.sm_count as usize, info.shared_bytes);
        let sizes = [
            ("N_IN", n_in),
            ("N_TILE", n_tile),
            ("N_SEGMENTS", product.types.len()),
        ];
        let variant = Variant {
            source: "matmul.cu",
            constants: constants(&sizes) + &segments(&product.types) + &product.epilogue,
        };
        let params = MatMul {
            segment: product.segment,
            halves: split.halves,
            sums: split.sums,
            unscale: split.unscale,
            m: m as u32,
            stride: split.stride,
            kv: self.kv.view(product.layer),
            turns: self.turns.address(),
            positions: inputs.positions,
            slots: inputs.slots,
        };
        let grid = [m.div_ceil(n_tile) as u32, groups as u32, 1];
        let mut spec = Spec::new(variant, "matmul", grid, 128, &params);
        spec.label = format!("matmul {}", product.names);
        spec.shared = shared_bytes(n_tile) as u32;
        spec.bytes = product.bytes as u64;
        Ok([split_spec, spec])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    #[test]
    fn every_type_but_the_floats_of_four_bytes_has_halves() {
        for ty in quant::TYPES {
            let four_bytes = ty.block_bytes == 4 * ty.block_elems;
            assert_eq!(takes(ty, 4096), !four_bytes, "{ty:?}");
            assert!(!takes(ty, 4095), "{ty:?}");
        }
    }

    #[test]
    fn tiles_fit_the_card_and_fill_it() {
        // The smallest shared memory of the cards that are supported is 64 KiB.
        assert_eq!(n_tile(512, 1000, 132, 64 << 10), 64);
        assert_eq!(n_tile(512, 256, 132, 227 << 10), 128);
        assert_eq!(n_tile(512, 32, 132, 227 << 10), 64);
        assert_eq!(n_tile(1, 256, 132, 227 << 10), 32);
    }
}
