//! Several rows of activations times weights that are small integers, a batch's step or a prompt:
//! activations are split into integers, then multiplied on tensor cores.

use super::lowering::{constants, flag, sizes, Lowering, Pass};
use super::overflow::overflows;
use super::params::{KvTarget, KvView, MatMul, Overflows, Segment, Split, CONSTANTS};
use super::product::{Op, Product};
use super::shape::{largest_unit, segments, superblocks, UNIT_ROWS};
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::Fused;
use crate::plan::parts::parts;
use crate::plan::Plan;
use crate::quant::{Offsets, QuantType};

static SPLIT: Source = source!("split.cu", CONSTANTS, Split, Overflows);
static SOURCE: Source = source!("matmul.cu", CONSTANTS, MatMul, Segment, KvView, KvTarget);

/// Rows of a tile of activations, and threads of the block that makes it.
const TILE_ROWS: usize = 8;
const SPLIT_THREADS: u32 = 256;

/// Bytes of a superblock of a tile: fragments and factors; sums for minimums; sums as offsets.
const TILE_BYTES: usize = 8 * 2 * TILE_ROWS * 64 + TILE_ROWS * 4;
const SUMS_BYTES: usize = 512;
const OFFSETS_BYTES: usize = 256;

/// Rows up to which a product's columns may be split over blocks, and rows of weights up to which they
/// are: more fill a card anyway.
const MOST_SPLIT_ROWS: usize = 64;
const MOST_SPLIT_OUT: usize = 8192;

/// Most rows of weights of a block.
const MOST_BLOCK_ROWS: usize = 128;

/// Warps over rows of weights and over rows of x, tiles of both a warp, and blocks an SM, of the shape
/// that fits every card.
const SMALLEST: (usize, usize, usize, usize, usize) = (2, 1, 1, 1, 1);

/// Shared memory of a block beside the dynamic: factors of the norm, barriers.
const STATIC_BYTES: usize = 1 << 10;

/// Stages of the ring at most.
const MOST_STAGES: usize = 4;

/// Parts of a row of `n_in` columns.
fn n_parts(n_in: usize) -> usize {
    parts(superblocks(n_in)).count()
}

/// Bytes of the activations of one product, and of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductBytes {
    pub tiles: usize,
    pub squares: usize,
    pub sums: usize,
    pub tickets: usize,
}

impl ProductBytes {
    /// For passes of up to `rows` rows.
    pub fn new(plan: &Plan, fused: &[Fused], rows: usize) -> Self {
        let mut bytes = Self {
            tiles: 0,
            squares: 0,
            sums: 0,
            tickets: 0,
        };
        // Of the shapes with the most rows of each.
        let rows = rows.next_multiple_of(MOST_SPLIT_ROWS);
        for op in fused {
            let Fused::MatVec { x, parts, .. } = op else {
                continue;
            };
            let n_in = plan.buffer(*x).width;
            let n_sb = superblocks(n_in);
            let tile = TILE_BYTES + SUMS_BYTES + OFFSETS_BYTES;
            bytes.tiles = bytes.tiles.max(n_sb * (rows / TILE_ROWS) * tile);
            bytes.squares = bytes.squares.max(rows * n_sb * 4);
            let out = parts.iter().map(|part| plan.weight(part.weight).n_out);
            if out.clone().sum::<usize>() <= MOST_SPLIT_OUT {
                let padded: usize = out.map(|n| n.next_multiple_of(MOST_BLOCK_ROWS)).sum();
                let sums = n_parts(n_in) * padded * MOST_SPLIT_ROWS * 4;
                bytes.sums = bytes.sums.max(sums);
                bytes.tickets = bytes.tickets.max(padded / UNIT_ROWS * 4);
            }
        }
        bytes
    }
}

/// What a tile of activations holds for these types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    sums: bool,
    offsets: bool,
}

impl Tile {
    fn new(types: &[&QuantType]) -> Self {
        let any = |wanted: fn(Offsets) -> bool| types.iter().any(|t| wanted(t.offsets()));
        Self {
            sums: any(|o| matches!(o, Offsets::Shared { .. })),
            offsets: any(|o| o == Offsets::Own),
        }
    }

    fn bytes(self) -> usize {
        TILE_BYTES + usize::from(self.sums) * SUMS_BYTES + usize::from(self.offsets) * OFFSETS_BYTES
    }

    fn constants(self) -> String {
        flag("X_SUMS", self.sums) + &flag("X_OFFSETS", self.offsets)
    }
}

/// Everything the kernel is compiled for but its epilogue. No bit of its sums depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Warps side by side over rows of weights, and over rows of x.
    warps_r: usize,
    warps_n: usize,
    /// Tiles of weights and of x a warp.
    w_tiles: usize,
    n_tiles: usize,
    /// Blocks that share an SM.
    blocks: usize,
    ring: usize,
    /// Over how many blocks the columns are split.
    splits: usize,
    unit: usize,
    tile: usize,
}

impl Shape {
    /// For `m` rows of `n_in` columns and tiles of weights `tiles` on `sms` SMs of `shared` bytes.
    fn new(m: usize, n_in: usize, product: &Product, sms: usize, shared: usize) -> Self {
        let tile = Tile::new(&product.types).bytes();
        let unit = largest_unit(&product.types);
        let shape = |(warps_r, warps_n, w_tiles, n_tiles, blocks)| Self {
            warps_r,
            warps_n,
            w_tiles,
            n_tiles,
            blocks,
            ring: 2,
            splits: 1,
            unit,
            tile,
        };
        // The fastest on an H200 (whole steps of a 1B and an 8B, prompts of 512).
        let wanted = match m {
            0..=8 => (8, 1, 1, 1, 2),
            9..=16 => (4, 1, 2, 2, 1),
            17..=32 => (4, 2, 2, 2, 1),
            33..=64 => (2, 4, 2, 2, 1),
            _ => (2, 2, 2, 2, 2),
        };
        // Where that does not fit: these read x or weights more often.
        let smaller = [(4, 1, 2, 2, 1), (4, 1, 1, 1, 1), SMALLEST];
        let smaller = smaller.into_iter().skip(usize::from(m <= TILE_ROWS));
        let shapes = [wanted].into_iter().chain(smaller).map(shape);
        let fits = |s: &Self| (s.shared_bytes() + STATIC_BYTES) * s.blocks <= shared;
        let mut best = shapes.into_iter().find(fits).unwrap_or(shape(SMALLEST));
        for ring in 3..=MOST_STAGES {
            let more = Self { ring, ..best };
            if fits(&more) {
                best = more;
            }
        }
        if m <= MOST_SPLIT_ROWS && product.rows() <= MOST_SPLIT_OUT {
            let blocks = best.groups(&product.tiles) * best.x_blocks(m);
            let most = n_parts(n_in);
            // About as many blocks as the card holds at once.
            let room = best.blocks * sms * 3 / 2;
            let fill = |s: &usize| *s <= most && blocks * s <= room;
            best.splits = [8, 4, 2].into_iter().find(fill).unwrap_or(1);
        }
        debug_assert!(best.block_tiles() * UNIT_ROWS <= MOST_BLOCK_ROWS);
        best
    }

    fn threads(&self) -> usize {
        32 * self.warps_r * self.warps_n
    }

    fn block_tiles(&self) -> usize {
        self.warps_r * self.w_tiles
    }

    fn block_x(&self) -> usize {
        self.warps_n * self.n_tiles
    }

    /// Blocks over the rows of weights: each matrix begins one.
    fn groups(&self, tiles: &[usize]) -> usize {
        tiles.iter().map(|t| t.div_ceil(self.block_tiles())).sum()
    }

    /// Blocks over `m` rows of x.
    fn x_blocks(&self, m: usize) -> usize {
        m.div_ceil(self.block_x() * TILE_ROWS)
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn shared_bytes(&self) -> usize {
        let sums = self.threads() * self.w_tiles * self.n_tiles * 16;
        let stage = self.block_tiles() * self.unit + self.block_x() * self.tile;
        self.ring * stage + if self.splits == 1 { sums } else { 0 }
    }

    /// Threads that copy weights; the others copy x.
    fn copy_weights(&self) -> usize {
        let (weights, x) = (self.block_tiles() * self.unit, self.block_x() * self.tile);
        let share = self.threads() * weights / (weights + x);
        (share / 32 * 32).clamp(32, self.threads() - 32)
    }

    fn constants(&self) -> String {
        constants(&[
            ("W_TILES", self.w_tiles),
            ("N_TILES", self.n_tiles),
            ("RING", self.ring),
        ]) + &sizes(&[
            ("WARPS_R", self.warps_r),
            ("WARPS_N", self.warps_n),
            ("SPLITS", self.splits),
            ("COPY_WEIGHTS", self.copy_weights()),
            ("MIN_BLOCKS", self.blocks),
            ("SHARED_BYTES", self.shared_bytes()),
        ])
    }
}

/// The launches of `product` with the `m` rows of `op.x`.
pub fn specs(
    l: &Lowering,
    op: &Op<'_>,
    product: &Product,
    m: usize,
    pass: &Pass,
) -> Result<Vec<Spec>> {
    let n_in = l.plan.buffer(op.x).width;
    let scratch = &l.at.scratch;
    let sms = l.card.sm_count as usize;
    let shape = Shape::new(m, n_in, product, sms, l.card.shared_bytes);
    let n_tiles = shape.x_blocks(m) * shape.block_x();
    let common = constants(&[("N_IN", n_in)])
        + &flag("NORM", op.norm.is_some())
        + &Tile::new(&product.types).constants();

    let split = Split {
        x: l.source(op.x, pass),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        tiles: scratch.tiles,
        squares: scratch.squares,
        overflows: overflows(l, op, pass),
        m: m as u32,
        unused: 0,
    };
    let variant = Variant {
        source: &SPLIT,
        constants: common.clone(),
    };
    let grid = [superblocks(n_in) as u32, n_tiles as u32, 1];
    let mut split_spec = Spec::new(variant, "split", grid, SPLIT_THREADS, &split);
    let written = superblocks(n_in) * n_tiles * shape.tile;
    split_spec.traffic = Traffic::rows(m * n_in * 4 + written);

    let variant = Variant {
        source: &SOURCE,
        constants: common + &shape.constants() + &segments(&product.types) + &product.constants,
    };
    let params = MatMul {
        segment: product.segment,
        tiles: split.tiles,
        squares: split.squares,
        partial: scratch.sums,
        tickets: scratch.tickets,
        eps: op.norm.map_or(0.0, |n| n.eps),
        m: m as u32,
        n_tiles: n_tiles as u32,
        unused: 0,
        to: product.to,
    };
    let grid = [
        shape.x_blocks(m) as u32,
        shape.groups(&product.tiles) as u32,
        shape.splits as u32,
    ];
    let mut spec = Spec::new(variant, "matmul", grid, shape.threads() as u32, &params);
    spec.shared = shape.shared_bytes() as u32;
    product.describe(&mut spec, "matmul", m, n_in);
    Ok(vec![split_spec, spec])
}
