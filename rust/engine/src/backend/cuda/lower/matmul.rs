//! A prompt's products: activations split into halves, then multiplied on tensor cores.

use super::lowering::{constants, sizes, Lowering, Pass};
use super::params::{KvView, MatMul, Segment, Split, CONSTANTS};
use super::product::{Op, Product};
use super::shape::segments;
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::quant::QuantType;

static SPLIT: Source = source!("split.cu", CONSTANTS, Split);
static SOURCE: Source = source!("matmul.cu", CONSTANTS, MatMul, Segment, KvView);

/// Threads of a block of matmul.cu.
const THREADS: u32 = 128;

/// Tiles of weights a block.
const TILES: usize = 8;

/// Columns that have one sum, and one place in the split rows.
const BLOCK_COLS: usize = 32;

/// Rows of activations that a block takes at most.
const MOST_ROWS: usize = 128;

/// Whether the matrix product takes rows of `n_in` weights of type `ty`.
pub fn takes(ty: &QuantType, n_in: usize) -> bool {
    n_in.is_multiple_of(BLOCK_COLS) && ty.kernel.halves
}

/// Bytes of the activations of one product, as split.cu writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitBytes {
    pub halves: usize,
    pub sums: usize,
    pub unscale: usize,
}

/// Rows in whole blocks: the distance of the sums of two blocks of columns.
fn stride(rows: usize) -> usize {
    rows.next_multiple_of(MOST_ROWS)
}

impl SplitBytes {
    /// Of `rows` rows of up to `n_in` columns.
    pub fn new(rows: usize, n_in: usize) -> Self {
        let rows = stride(rows);
        let n_in = n_in.next_multiple_of(BLOCK_COLS).max(BLOCK_COLS);
        Self {
            halves: rows * n_in * 4,
            sums: n_in / BLOCK_COLS * rows * 4,
            unscale: rows * 4,
        }
    }
}

/// Dynamic shared memory of a block with `n_tile` rows of activations, as the kernel lays it out.
fn shared_bytes(n_tile: usize) -> usize {
    let weights = TILES * 8 * 256 * 2;
    let scales = 2 * 16 * TILES * 8 * 4;
    weights + scales + 2 * n_tile * (128 + 4)
}

/// Rows of activations a block, on a card of `sms` SMs with `shared` bytes each: large ones read
/// the weights less often, small ones fill the card. No bit depends on it.
fn n_tile(m: usize, groups: usize, sms: usize, shared: usize) -> usize {
    let mut n = MOST_ROWS;
    let fits = |n: usize| shared_bytes(n) <= shared;
    let idle = |n: usize| m <= n / 2 || groups * m.div_ceil(n) < sms;
    while n > 32 && (!fits(n) || idle(n)) {
        n /= 2;
    }
    n
}

/// The launches of `product` with the `m` rows of `op.x`, RMSNorm first where there is one.
pub fn specs(
    l: &Lowering,
    op: &Op<'_>,
    product: &Product,
    m: usize,
    pass: &Pass,
) -> Result<Vec<Spec>> {
    let n_in = l.plan.buffer(op.x).width;
    let scratch = &l.at.scratch;
    let split = Split {
        x: l.address(op.x),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        halves: scratch.halves,
        sums: scratch.sums,
        unscale: scratch.unscale,
        eps: op.norm.map_or(0.0, |n| n.eps),
        stride: stride(l.max_rows) as u32,
    };
    let has_norm = format!("constexpr bool NORM = {};\n", op.norm.is_some());
    let threads = (n_in / 8).next_multiple_of(32).min(512);
    let variant = Variant {
        source: &SPLIT,
        constants: constants(&[("N_IN", n_in)]) + &sizes(&[("THREADS", threads)]) + &has_norm,
    };
    let grid = [m as u32, 1, 1];
    let mut split_spec = Spec::new(variant, "split", grid, threads as u32, &split);
    // Read as float32, written as two halves, with the sums of blocks.
    split_spec.traffic = Traffic::rows(m * (n_in * 8 + n_in / BLOCK_COLS * 4));

    let groups = product.tiles.iter().map(|t| t.div_ceil(TILES)).sum();
    let n_tile = n_tile(m, groups, l.card.sm_count as usize, l.card.shared_bytes);
    let shared = shared_bytes(n_tile);
    let of_block = [
        ("THREADS", THREADS as usize),
        ("TILES", TILES),
        ("SHARED_BYTES", shared),
    ];
    let shape = [
        ("N_IN", n_in),
        ("N_TILE", n_tile),
        ("N_SEGMENTS", product.types.len()),
    ];
    let variant = Variant {
        source: &SOURCE,
        constants: constants(&shape)
            + &sizes(&of_block)
            + &segments(&product.types)
            + &product.constants,
    };
    let params = MatMul {
        segment: product.segment,
        halves: split.halves,
        sums: split.sums,
        unscale: split.unscale,
        m: m as u32,
        stride: split.stride,
        kv: product.kv,
        cos_sin: l.at.cos_sin,
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
    };
    let grid = [m.div_ceil(n_tile) as u32, groups as u32, 1];
    let mut spec = Spec::new(variant, "matmul", grid, THREADS, &params);
    spec.label = format!("matmul {}", product.names);
    spec.shared = shared as u32;
    spec.traffic.weights = product.bytes as u64;
    spec.traffic.rows = product.row_traffic(m, n_in);
    Ok(vec![split_spec, spec])
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
            let declared = ty.kernel.text.contains("float halves(");
            assert_eq!(ty.kernel.halves, declared, "{ty:?}");
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
