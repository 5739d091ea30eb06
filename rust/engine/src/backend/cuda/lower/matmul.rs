//! Several rows of activations times weights that are small integers, a batch's step or a prompt:
//! activations are split into integers, then multiplied on tensor cores.

use super::experts::{address_of, ranks, ExpertConstants, Pairs};
use super::fit::fit;
use super::lowering::{Lowering, Pass};
use super::overflow::overflows;
use super::params::{self, MatMul, Overflows, QkvRotation, Segment, Split, CONSTANTS};
use super::product::{EpilogueConstants, Product};
use super::shape::{largest_tile, superblocks, Segments, MOST_BLOCK_ROWS, MOST_BLOCK_X, TILE_ROWS};
use super::shapes::{self, Block};
use super::x_tile::{XTile, X_TILE_ROWS};
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::driver::source::{constants, source, Source};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::{Experts, Fused, FusedOp, ProductOp};
use crate::plan::parts::{parts, MOST_PARTS};
use crate::plan::{Plan, Weight};
use crate::quant::QuantType;

static SPLIT: Source = source!("split.cu", CONSTANTS, Split, Overflows, params::Experts);
static SOURCE: Source = source! {
    "matmul.cu", CONSTANTS, MatMul, Segment, QkvRotation, params::Experts
};

constants! {
    /// split.cu, and what matmul.cu has of it.
    #[derive(Copy)]
    struct SplitVariant in SPLIT {
        n_in: int, norm: bool, tile: XTile, experts: ExpertConstants,
    }

    /// How a block takes the product: no bit of its sums depends on it.
    #[derive(Copy, Eq, Default)]
    struct Tiles {
        /// Tiles of weights and of x a warp, and stages of them in flight.
        w_tiles: int, n_tiles: int, ring: int,
        /// Warps side by side over rows of weights, and over rows of x.
        warps_r: uint32_t, warps_n: uint32_t,
        /// Over how many blocks the columns are split.
        splits: uint32_t,
        /// Threads that copy weights; the others copy x.
        copy_weights: uint32_t,
        /// Blocks that share an SM.
        min_blocks: uint32_t,
        shared_bytes: uint32_t,
        /// Bytes of a tile of weights and of one of x.
        w_bytes: usize, x_bytes: usize,
    }

    /// matmul.cu
    struct MatMulVariant in SOURCE {
        split: SplitVariant, tiles: Tiles, types: Segments, epilogue: EpilogueConstants,
    }
}

/// Threads of the block that makes a tile of activations.
const SPLIT_THREADS: u32 = 256;

/// Rows up to which a product's columns may be split over blocks, and rows of weights up to which they
/// are: more fill a card anyway.
const MOST_SPLIT_ROWS: usize = 256;
const MOST_SPLIT_OUT: usize = 8192;

/// Tiles of x whose products take as long as a tile of weights is taken apart.
const TAKEN_APART: usize = 4;

/// The blocks that fit every card.
const SMALLEST: Block = [2, 1, 1, 1, 1];

/// Shared memory of a block beside the dynamic: factors of the norm, barriers.
const STATIC_BYTES: usize = 1 << 10;

/// Parts of a row of `n_in` columns.
fn n_parts(n_in: usize) -> usize {
    parts(superblocks(n_in)).count()
}

/// Bytes of the activations of one product, and of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProductBytes {
    pub tiles: usize,
    pub squares: usize,
    pub sums: usize,
    pub tickets: usize,
}

impl ProductBytes {
    /// Room for either.
    pub fn max(self, other: Self) -> Self {
        Self {
            tiles: self.tiles.max(other.tiles),
            squares: self.squares.max(other.squares),
            sums: self.sums.max(other.sums),
            tickets: self.tickets.max(other.tickets),
        }
    }

    /// For passes of up to `rows` rows.
    pub fn new(plan: &Plan, fused: &[FusedOp], rows: usize) -> Self {
        let mut bytes = Self::default();
        // Of the shapes with the most rows of each.
        let split_rows = rows.next_multiple_of(MOST_BLOCK_X).min(MOST_SPLIT_ROWS);
        let rows = rows.next_multiple_of(MOST_BLOCK_X);
        for FusedOp { op, .. } in fused {
            let Fused::MatVec(ProductOp { experts, parts, .. }) = op else {
                continue;
            };
            let first = plan.weight(parts[0].weight);
            let n_in = first.n_in;
            let rows = experts.map_or(rows, |experts| most_pairs(plan, experts, first, rows));
            let n_sb = superblocks(n_in);
            let tiles = n_sb * (rows / X_TILE_ROWS) * XTile::MOST_BYTES;
            bytes.tiles = bytes.tiles.max(tiles);
            bytes.squares = bytes.squares.max(rows * n_sb * 4);
            let out = parts.iter().map(|part| plan.weight(part.weight).n_out);
            if experts.is_none() && out.clone().sum::<usize>() <= MOST_SPLIT_OUT {
                let padded: usize = out.map(most_padded).sum();
                let sums = n_parts(n_in) * padded * split_rows * 4;
                bytes.sums = bytes.sums.max(sums);
                let tickets = padded.div_ceil(TILE_ROWS) * split_rows.div_ceil(MOST_BLOCK_X) * 4;
                bytes.tickets = bytes.tickets.max(tickets);
            }
        }
        bytes
    }
}

/// Most rows that the blocks of a matrix of `n_out` have, whatever their size: 4,096 are 4,224 in blocks
/// of 192, though none is left over in blocks of 256.
fn most_padded(n_out: usize) -> usize {
    n_out + MOST_BLOCK_ROWS - TILE_ROWS
}

/// Rows of all blocks of the pairs of `rows` rows, at most.
fn most_pairs(plan: &Plan, experts: Experts, first: &Weight, rows: usize) -> usize {
    let pairs = rows * ranks(plan, experts.routes);
    pairs + first.n_expert.min(pairs) * MOST_BLOCK_X
}

/// What a shape is chosen for: matrices of these types, and the tiles of each.
#[derive(Debug, Clone, Copy)]
struct Weights<'a> {
    types: &'a [&'static QuantType],
    tiles: &'a [usize],
    /// Whether blocks may share the columns.
    may_split: bool,
}

impl Tiles {
    /// The same with so many tiles between two barriers, and so many in flight.
    fn with(self, _: usize, ring: usize) -> Self {
        let mut tiles = Self { ring, ..self };
        tiles.shared_bytes = tiles.bytes();
        tiles
    }

    /// For `m` rows of `n_in` columns and matrices of so many tiles: of those that fit, the first that
    /// gives the busiest SM the least, for that one ends last. And the tiles of x.
    fn new(
        table: &shapes::MatMul,
        m: usize,
        n_in: usize,
        of: &Weights<'_>,
        card: &DeviceInfo,
    ) -> (Self, XTile) {
        let sms = card.sm_count as usize;
        let [by_warps, by_warpgroups] = [false, true].map(|is| XTile::new(of.types, is));
        let shape = |tile: XTile, block: &Block| {
            let [warps_r, warps_n, w_tiles, n_tiles, min_blocks] = *block;
            let one = Self {
                w_tiles,
                n_tiles,
                warps_r,
                warps_n,
                splits: 1,
                min_blocks,
                w_bytes: largest_tile(of.types),
                x_bytes: tile.bytes(),
                ..Self::default()
            };
            let splits = match of.may_split {
                true => one.splits(m, n_in, of.tiles, sms),
                false => 1,
            };
            let copy_weights = one.copy_weights();
            Self {
                splits,
                copy_weights,
                ..one
            }
            .with(1, 2)
        };
        let fits = |s: &Self| (s.shared_bytes + STATIC_BYTES) * s.min_blocks <= card.shared_bytes;
        let of_warpgroups = |rows| table.warpgroups.of(rows);
        let prompts = of_warpgroups(usize::MAX);
        let is_long = || {
            let splits = prompts
                .first()
                .map_or(1, |s| shape(by_warpgroups, s).splits);
            superblocks(n_in) > table.short_superblocks * splits
        };
        let blocks = match m {
            _ if m <= X_TILE_ROWS || !card.has_warpgroups() => &[],
            _ if m > table.short_rows && is_long() => prompts,
            _ => of_warpgroups(m),
        };
        // The 128 registers of 16 warps are too few to add up parts from memory.
        let roomy = |s: &Self| s.threads() < 512 || s.splits == 1;
        let shapes = blocks.iter().map(|s| shape(by_warpgroups, s));
        let best = shapes
            .filter(|s| roomy(s) && fits(s))
            .min_by_key(|s| s.work_of_busiest(m, of.tiles, sms));
        let tile = if best.is_some() {
            by_warpgroups
        } else {
            by_warps
        };
        let mut best = best.unwrap_or_else(|| {
            // Where the first does not fit: the others read x or weights more often.
            let smaller = table.smaller.iter().chain([&SMALLEST]);
            let smaller = smaller.skip(usize::from(m <= X_TILE_ROWS));
            let blocks = table.warps.of(m).iter().chain(smaller);
            let best = blocks.map(|s| shape(by_warps, s)).find(fits);
            best.unwrap_or(shape(by_warps, &SMALLEST))
        });
        // Two blocks an SM of half the size start and end sooner than one.
        if m <= X_TILE_ROWS && best.all_blocks(m, of.tiles) <= sms {
            let halved = shape(by_warps, &table.halved);
            if fits(&halved) {
                best = halved;
            }
        }
        let best = fit([best], |_| 1, table.ring, Self::with, fits).unwrap_or(best);
        debug_assert!(best.block_x() * X_TILE_ROWS <= MOST_BLOCK_X);
        debug_assert!(best.block_tiles() * TILE_ROWS <= MOST_BLOCK_ROWS);
        (best, tile)
    }

    fn all_blocks(&self, m: usize, tiles: &[usize]) -> usize {
        self.groups(tiles) * self.x_blocks(m) * self.splits
    }

    /// What the SM with the most blocks has to do, in tiles of weights times tiles of x and parts of a row: to
    /// take a tile of weights apart is as much as to multiply it with some of x.
    fn work_of_busiest(&self, m: usize, tiles: &[usize], sms: usize) -> usize {
        let x = self.warps_n * (self.n_tiles + TAKEN_APART);
        let block = self.block_tiles() * x * MOST_PARTS / self.splits;
        self.all_blocks(m, tiles).div_ceil(sms) * block
    }

    /// Over how many blocks to split the columns.
    fn splits(&self, m: usize, n_in: usize, tiles: &[usize], sms: usize) -> usize {
        if m > MOST_SPLIT_ROWS || tiles.iter().sum::<usize>() * TILE_ROWS > MOST_SPLIT_OUT {
            return 1;
        }
        let blocks = self.groups(tiles) * self.x_blocks(m);
        let most = n_parts(n_in);
        // About as many blocks as the card holds at once.
        let room = self.min_blocks * sms * 3 / 2;
        let fill = |s: &usize| *s <= most && blocks * s <= room;
        [8, 4, 2].into_iter().find(fill).unwrap_or(1)
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
        m.div_ceil(self.block_x() * X_TILE_ROWS)
    }

    /// Bytes of weights and of x of a stage.
    fn stage(&self) -> (usize, usize) {
        (
            self.block_tiles() * self.w_bytes,
            self.block_x() * self.x_bytes,
        )
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn bytes(&self) -> usize {
        let (weights, x) = self.stage();
        let sums = self.threads() * self.w_tiles * self.n_tiles * 16;
        let in_shared = self.splits == 1;
        self.ring * (weights + x) + if in_shared { sums } else { 0 }
    }

    fn copy_weights(&self) -> usize {
        let (weights, x) = self.stage();
        let share = self.threads() * weights / (weights + x);
        (share / 32 * 32).clamp(32, self.threads() - 32)
    }
}

/// The launches of `product` with the `m` rows of `op.x`, or with their `pairs`.
pub fn specs(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    m: usize,
    pairs: Option<Pairs>,
    pass: &Pass,
) -> Result<Vec<Spec>> {
    let n_in = product.n_in;
    let scratch = &l.at.scratch;
    let weights = Weights {
        types: &product.types,
        tiles: &product.tiles,
        may_split: pairs.is_none(),
    };
    // By experts: for as many rows as each has, if all are chosen alike.
    let expected = pairs.map_or(m, |pairs| pairs.count.div_ceil(pairs.n_expert));
    let (shape, tile) = Tiles::new(&l.shapes.matmul, expected, n_in, &weights, &l.card);
    let pairs = pairs.map(|pairs| pairs.grouped(l, shape.block_x() * X_TILE_ROWS));
    let x_blocks = pairs.map_or(shape.x_blocks(m), |pairs| pairs.blocks());
    let n_tiles = x_blocks * shape.block_x();
    let rows = pairs.map_or(m, |pairs| pairs.count);
    let m = pairs.map_or(m, |_| n_tiles * X_TILE_ROWS);
    let common = SplitVariant {
        n_in,
        norm: op.norm.is_some(),
        tile,
        experts: ExpertConstants::of(pairs.as_ref()),
    };

    let split = Split {
        x: l.source(op.x, pass),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        tiles: scratch.tiles,
        squares: scratch.squares,
        overflows: overflows(l, op, pass),
        experts: address_of(pairs.as_ref()),
        m: m as u32,
        unused: 0,
    };
    let grid = [superblocks(n_in) as u32, n_tiles as u32, 1];
    let mut split_spec = Spec::new(common, "split", grid, SPLIT_THREADS, &split);
    let written = superblocks(n_in) * n_tiles * tile.bytes();
    split_spec.traffic = Traffic::rows(m * n_in * 4 + written);

    let variant = MatMulVariant {
        split: common,
        tiles: shape,
        types: Segments(product.types.clone()),
        epilogue: product.constants.clone(),
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
        experts: split.experts,
        rotation: product.rotation,
    };
    let grid = [
        x_blocks as u32,
        shape.groups(&product.tiles) as u32,
        shape.splits as u32,
    ];
    let mut spec = Spec::new(variant, "matmul", grid, shape.threads() as u32, &params);
    spec.shared = shape.shared_bytes as u32;
    product.describe(&mut spec, "matmul", rows, n_in);
    let group = pairs.map(|pairs| pairs.group());
    Ok(group.into_iter().chain([split_spec, spec]).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;
    use crate::quant;

    fn fit(
        m: usize,
        n_in: usize,
        ty: &'static QuantType,
        tiles: &[usize],
        card: &DeviceInfo,
    ) -> (Tiles, XTile) {
        let weights = Weights {
            types: &[ty],
            tiles,
            may_split: true,
        };
        Tiles::new(&table().matmul, m, n_in, &weights, card)
    }

    fn card(arch: &str) -> DeviceInfo {
        DeviceInfo::of_arch(arch, 132).unwrap()
    }

    #[test]
    fn shapes_fit_and_warpgroups_are_of_9_0_alone() {
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for arch in ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"] {
                let card = card(arch);
                for n_in in [32, 576, 4096, 14336] {
                    for m in [2, 8, 9, 16, 17, 64, 65, 512] {
                        let (shape, tile) = fit(m, n_in, ty, &[36, 4], &card);
                        let bytes = shape.bytes() + STATIC_BYTES;
                        assert!(bytes * shape.min_blocks <= card.shared_bytes, "{shape:?}");
                        assert!(shape.splits <= n_parts(n_in), "{shape:?}");
                        assert!(shape.threads() * shape.min_blocks <= 1024, "{shape:?}");
                        assert!(shape.block_tiles() * TILE_ROWS <= MOST_BLOCK_ROWS);
                        let by_warpgroups = arch == "sm_90" && m > X_TILE_ROWS;
                        assert_eq!(tile.is_for_warpgroups(), by_warpgroups, "{arch} {m}");
                    }
                }
            }
        }
    }

    #[test]
    fn warpgroups_take_64_rows_at_once_where_blocks_are_long() {
        let shape = |m, n_in, tiles, ty| fit(m, n_in, ty, &[tiles], &card("sm_90")).0;
        let integers = quant::TYPES.iter().filter(|t| t.integers);
        let narrow = integers.clone().min_by_key(|t| largest_tile(&[t])).unwrap();
        let rows = |m, n_in, tiles| shape(m, n_in, tiles, narrow).block_x() * X_TILE_ROWS;
        // An 8B's gate and up, down and output.
        assert_eq!([32, 33, 64].map(|m| rows(m, 4096, 1792)), [32, 64, 64]);
        assert_eq!([14336, 4096].map(|n_in| rows(64, n_in, 256)), [64, 32]);
        let wide = integers.max_by_key(|t| largest_tile(&[t])).unwrap();
        let of = |ty| shape(512, 4096, 1792, ty);
        assert_eq!([narrow, wide].map(|ty| of(ty).block_x()), [8, 8]);
    }

    /// Matrices whose rows are no whole blocks of some size, on cards of some numbers of SMs.
    #[test]
    fn parts_of_any_blocks_fit_where_they_are_left() {
        let shared = |t: &&QuantType| t.shared_minimums() == 8;
        let ty = quant::TYPES.iter().find(shared).unwrap();
        let outs = [[4096, 512, 512], [4096, 1024, 1024], [80, 16, 16]];
        let cards = [8, 36, 84, 132].map(|sms| DeviceInfo::of_arch("sm_90", sms).unwrap());
        let cases = cards.iter().flat_map(|card| outs.map(|outs| (card, outs)));
        let mut uneven = 0;
        for ((card, outs), m) in
            cases.flat_map(|case| (2..=MOST_SPLIT_ROWS).map(move |m| (case, m)))
        {
            let tiles = outs.map(|n: usize| n.div_ceil(TILE_ROWS));
            let (shape, _) = fit(m, 2048, ty, &tiles, card);
            let (groups, x_blocks) = (shape.groups(&tiles), shape.x_blocks(m));
            let block = shape.block_tiles() * TILE_ROWS;
            let padded: usize = outs.into_iter().map(most_padded).sum();
            if shape.splits > 1 {
                assert!(groups * block <= padded, "{outs:?} {m}: {shape:?}");
                assert!(x_blocks * shape.block_x() * X_TILE_ROWS <= MOST_SPLIT_ROWS);
                let tickets = padded.div_ceil(TILE_ROWS) * m.div_ceil(MOST_BLOCK_X);
                assert!(groups * x_blocks <= tickets, "{shape:?}");
                uneven += usize::from(outs[0] % block != 0);
            }
        }
        assert!(uneven > 10, "{uneven}");
    }

    /// Rows of weights a block, and blocks over the columns, on 132 SMs.
    #[test]
    fn blocks_are_as_large_as_leaves_no_sm_idle() {
        let card = card("sm_90");
        let shared = |t: &&QuantType| t.shared_minimums() == 8;
        let ty = quant::TYPES.iter().find(shared).unwrap();
        for (m, n_in, n_out, rows, splits) in [
            // 112 blocks, where half as large ones would give two to most SMs.
            (32, 4096, 28672, 256, 1),
            // 128 blocks, not 64.
            (32, 2048, 16384, 128, 1),
            // 32 blocks times four: 24 times eight would be two an SM.
            (32, 4096, 6144, 192, 4),
            (32, 4096, 4096, 128, 4),
            (32, 2048, 2048, 128, 8),
            // Few rows of x: two blocks an SM, of half the size where that leaves no room for more.
            (8, 4096, 28672, 128, 1),
            (8, 2048, 16384, 64, 1),
        ] {
            let (shape, _) = fit(m, n_in, ty, &[n_out / TILE_ROWS], &card);
            let seen = (shape.block_tiles() * TILE_ROWS, shape.splits);
            assert_eq!(seen, (rows, splits), "{m} rows, {n_in} x {n_out}");
        }
    }
}
