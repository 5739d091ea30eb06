//! Several rows of activations times weights that are small integers, a batch's step or a prompt:
//! activations are split into integers, then multiplied on tensor cores.

use super::experts::{address_of, constants_of, ranks, Pairs};
use super::lowering::{constants, flag, sizes, Lowering, Pass};
use super::overflow::overflows;
use super::params::{self, MatMul, Overflows, QkvRotation, Segment, Split, CONSTANTS};
use super::product::Product;
use super::shape::{largest_tile, segments, superblocks, MOST_BLOCK_X, TILE_ROWS};
use super::x_tile::{XTile, X_TILE_ROWS};
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::{Experts, Fused, FusedOp, ProductOp};
use crate::plan::parts::{parts, MOST_PARTS};
use crate::plan::{Plan, Weight};
use crate::quant::QuantType;

static SPLIT: Source = source!("split.cu", CONSTANTS, Split, Overflows, params::Experts);
static SOURCE: Source = source!(
    "matmul.cu",
    CONSTANTS,
    MatMul,
    Segment,
    QkvRotation,
    params::Experts
);

/// Threads of the block that makes a tile of activations.
const SPLIT_THREADS: u32 = 256;

/// Rows up to which a product's columns may be split over blocks, and rows of weights up to which they
/// are: more fill a card anyway.
const MOST_SPLIT_ROWS: usize = 64;
const MOST_SPLIT_OUT: usize = 8192;

/// Most rows of weights of a block.
const MOST_BLOCK_ROWS: usize = 256;

/// Warps over rows of weights and over rows of x, tiles of both a warp, and blocks an SM, of the shape
/// that fits every card.
const SMALLEST: (usize, usize, usize, usize, usize) = (2, 1, 1, 1, 1);

/// Shared memory of a block beside the dynamic: factors of the norm, barriers.
const STATIC_BYTES: usize = 1 << 10;

/// As these, of warpgroups for 64 rows at once. Of up to 64 rows only where a block goes through more
/// superblocks than these. (us of 64 rows on an H200, by 32 and by 64: an 8B's gate and up 96 and 91, down
/// 61 and 53, q, k and v 40 and 42, output 24 and 27, head 503 and 434.)
const ROWS_64: (usize, usize, usize, usize, usize) = (8, 1, 1, 8, 1);
const FEW_SUPERBLOCKS: usize = 4;

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
    pub fn new(plan: &Plan, fused: &[FusedOp], rows: usize) -> Self {
        let mut bytes = Self {
            tiles: 0,
            squares: 0,
            sums: 0,
            tickets: 0,
        };
        // Of the shapes with the most rows of each.
        let rows = rows.next_multiple_of(MOST_SPLIT_ROWS);
        for FusedOp { op, .. } in fused {
            let Fused::MatVec(ProductOp { experts, parts, .. }) = op else {
                continue;
            };
            let first = plan.weight(parts[0].weight);
            let n_in = first.n_in;
            let rows = experts.map_or(rows, |experts| most_pairs(plan, experts, first, rows));
            let n_sb = superblocks(n_in);
            bytes.tiles = bytes
                .tiles
                .max(n_sb * (rows / X_TILE_ROWS) * XTile::MOST_BYTES);
            bytes.squares = bytes.squares.max(rows * n_sb * 4);
            let out = parts.iter().map(|part| plan.weight(part.weight).n_out);
            if experts.is_none() && out.clone().sum::<usize>() <= MOST_SPLIT_OUT {
                let padded: usize = out.map(most_padded).sum();
                let sums = n_parts(n_in) * padded * MOST_SPLIT_ROWS * 4;
                bytes.sums = bytes.sums.max(sums);
                bytes.tickets = bytes.tickets.max(padded.div_ceil(TILE_ROWS) * 4);
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
    /// Whether sums of a row's parts are in registers, and not in shared memory.
    keeps_total: bool,
    w_tile: usize,
    tile: XTile,
}

impl Shape {
    /// For `m` rows of `n_in` columns and matrices of so many tiles: of those that fit, the first that
    /// gives the busiest SM the least, for that one ends last.
    fn new(m: usize, n_in: usize, of: &Weights<'_>, card: &DeviceInfo) -> Self {
        let sms = card.sm_count as usize;
        let shape = |warpgroups, (warps_r, warps_n, w_tiles, n_tiles, blocks)| {
            let one = Self {
                warps_r,
                warps_n,
                w_tiles,
                n_tiles,
                blocks,
                ring: 2,
                splits: 1,
                keeps_total: false,
                w_tile: largest_tile(of.types),
                tile: XTile::new(of.types, warpgroups),
            };
            let splits = match of.may_split {
                true => one.splits(m, n_in, of.tiles, sms),
                false => 1,
            };
            Self { splits, ..one }
        };
        let fits = |s: &Self| (s.shared_bytes() + STATIC_BYTES) * s.blocks <= card.shared_bytes;
        // The fastest on an H200 (whole steps of a 1B and an 8B, prompts of 512).
        let is_long = || superblocks(n_in) > FEW_SUPERBLOCKS * shape(true, ROWS_64).splits;
        let by_warpgroups: &[_] = match m {
            _ if !card.has_warpgroups() => &[],
            0..=8 => &[],
            9..=16 => &[(8, 1, 1, 2, 2)],
            17..=64 if m <= 32 || !is_long() => {
                &[(16, 1, 1, 4, 1), (12, 1, 1, 4, 1), (8, 1, 1, 4, 1)]
            }
            _ => &[ROWS_64, (16, 1, 1, 4, 1), (8, 1, 1, 4, 1)],
        };
        let by_warps = match m {
            0..=8 => (8, 1, 1, 1, 2),
            9..=16 => (4, 1, 2, 2, 1),
            17..=32 => (4, 2, 2, 2, 1),
            33..=64 => (2, 4, 2, 2, 1),
            _ => (2, 2, 2, 2, 2),
        };
        // The 128 registers of 16 warps are too few to add up parts from memory.
        let roomy = |s: &Self| s.threads() < 512 || s.splits == 1;
        // Eight warps have registers for what does not fit.
        let keeps = |s: Self| Self {
            keeps_total: s.threads() <= 256 && s.splits == 1 && !fits(&s),
            ..s
        };
        let by_warpgroups = by_warpgroups.iter().map(|s| keeps(shape(true, *s)));
        let best = by_warpgroups
            .filter(|s| roomy(s) && fits(s))
            .min_by_key(|s| s.work_of_busiest(m, of.tiles, sms));
        let mut best = best.unwrap_or_else(|| {
            // Where the first does not fit: the others read x or weights more often.
            let smaller = [(4, 1, 2, 2, 1), (4, 1, 1, 1, 1), SMALLEST];
            let smaller = smaller.into_iter().skip(usize::from(m <= X_TILE_ROWS));
            let mut shapes = [by_warps].into_iter().chain(smaller);
            let best = shapes.find_map(|s| Some(shape(false, s)).filter(fits));
            best.unwrap_or(shape(false, SMALLEST))
        });
        // Two blocks an SM of half the size start and end sooner than one.
        if m <= X_TILE_ROWS && best.all_blocks(m, of.tiles) <= sms {
            let halved = shape(false, (4, 1, 1, 1, 4));
            if fits(&halved) {
                best = halved;
            }
        }
        for ring in 3..=MOST_STAGES {
            let more = Self { ring, ..best };
            if fits(&more) {
                best = more;
            }
        }
        debug_assert!(best.block_x() * X_TILE_ROWS <= MOST_BLOCK_X);
        debug_assert!(best.block_tiles() * TILE_ROWS <= MOST_BLOCK_ROWS);
        best
    }

    fn all_blocks(&self, m: usize, tiles: &[usize]) -> usize {
        self.groups(tiles) * self.x_blocks(m) * self.splits
    }

    /// Tiles of weights times tiles of x that the SM with the most blocks multiplies, in parts of a row.
    fn work_of_busiest(&self, m: usize, tiles: &[usize], sms: usize) -> usize {
        let block = self.block_tiles() * self.block_x() * MOST_PARTS / self.splits;
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
        let room = self.blocks * sms * 3 / 2;
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

    /// Dynamic shared memory, as the kernel lays it out.
    fn shared_bytes(&self) -> usize {
        let sums = self.threads() * self.w_tiles * self.n_tiles * 16;
        let stage = self.block_tiles() * self.w_tile + self.block_x() * self.tile.bytes();
        let in_shared = self.splits == 1 && !self.keeps_total;
        self.ring * stage + if in_shared { sums } else { 0 }
    }

    /// Threads that copy weights; the others copy x.
    fn copy_weights(&self) -> usize {
        let (weights, x) = (
            self.block_tiles() * self.w_tile,
            self.block_x() * self.tile.bytes(),
        );
        let share = self.threads() * weights / (weights + x);
        (share / 32 * 32).clamp(32, self.threads() - 32)
    }

    fn constants(&self) -> String {
        constants(&[
            ("W_TILES", self.w_tiles),
            ("N_TILES", self.n_tiles),
            ("RING", self.ring),
        ]) + &flag("KEEPS_TOTAL", self.keeps_total)
            + &sizes(&[
                ("WARPS_R", self.warps_r),
                ("WARPS_N", self.warps_n),
                ("SPLITS", self.splits),
                ("COPY_WEIGHTS", self.copy_weights()),
                ("MIN_BLOCKS", self.blocks),
                ("SHARED_BYTES", self.shared_bytes()),
            ])
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
    let shape = Shape::new(expected, n_in, &weights, &l.card);
    let pairs = pairs.map(|pairs| pairs.grouped(l, shape.block_x() * X_TILE_ROWS));
    let x_blocks = pairs.map_or(shape.x_blocks(m), |pairs| pairs.blocks());
    let n_tiles = x_blocks * shape.block_x();
    let m = pairs.map_or(m, |_| n_tiles * X_TILE_ROWS);
    let common = constants(&[("N_IN", n_in)])
        + &flag("NORM", op.norm.is_some())
        + &shape.tile.constants()
        + &constants_of(pairs.as_ref());

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
    let variant = Variant::new(&SPLIT, common.clone());
    let grid = [superblocks(n_in) as u32, n_tiles as u32, 1];
    let mut split_spec = Spec::new(variant, "split", grid, SPLIT_THREADS, &split);
    let written = superblocks(n_in) * n_tiles * shape.tile.bytes();
    split_spec.traffic = Traffic::rows(m * n_in * 4 + written);

    let variant = Variant::new(
        &SOURCE,
        common + &shape.constants() + &segments(&product.types) + &product.constants,
    );
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
    spec.shared = shape.shared_bytes() as u32;
    product.describe(&mut spec, "matmul", m, n_in);
    let group = pairs.map(|pairs| pairs.group());
    Ok(group.into_iter().chain([split_spec, spec]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

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
                        let tiles = [36, 4];
                        let weights = Weights {
                            types: &[ty],
                            tiles: &tiles,
                            may_split: true,
                        };
                        let shape = Shape::new(m, n_in, &weights, &card);
                        let bytes = shape.shared_bytes() + STATIC_BYTES;
                        assert!(bytes * shape.blocks <= card.shared_bytes, "{shape:?}");
                        assert!(shape.splits <= n_parts(n_in), "{shape:?}");
                        assert!(shape.threads() * shape.blocks <= 1024, "{shape:?}");
                        assert!(shape.block_tiles() * TILE_ROWS <= MOST_BLOCK_ROWS);
                        let by_warpgroups = arch == "sm_90" && m > X_TILE_ROWS;
                        assert_eq!(shape.tile.is_for_warpgroups(), by_warpgroups, "{arch} {m}");
                    }
                }
            }
        }
    }

    #[test]
    fn warpgroups_take_64_rows_at_once_where_blocks_are_long() {
        let shape = |m, n_in, tiles, ty| {
            let weights = Weights {
                types: &[ty],
                tiles: &[tiles],
                may_split: true,
            };
            Shape::new(m, n_in, &weights, &card("sm_90"))
        };
        let integers = quant::TYPES.iter().filter(|t| t.integers);
        let narrow = integers.clone().min_by_key(|t| largest_tile(&[t])).unwrap();
        let rows = |m, n_in, tiles| shape(m, n_in, tiles, narrow).block_x() * X_TILE_ROWS;
        // An 8B's gate and up, down and output.
        assert_eq!([32, 33, 64].map(|m| rows(m, 4096, 1792)), [32, 64, 64]);
        assert_eq!([14336, 4096].map(|n_in| rows(64, n_in, 256)), [64, 32]);
        // Where shared memory is short, sums of parts are in registers.
        let wide = integers.max_by_key(|t| largest_tile(&[t])).unwrap();
        let of = |ty| shape(512, 4096, 1792, ty);
        assert_eq!([narrow, wide].map(|ty| of(ty).keeps_total), [false, true]);
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
        for ((card, outs), m) in cases.flat_map(|case| (2..=64).map(move |m| (case, m))) {
            let tiles = outs.map(|n: usize| n.div_ceil(TILE_ROWS));
            let weights = Weights {
                types: &[ty],
                tiles: &tiles,
                may_split: true,
            };
            let shape = Shape::new(m, 2048, &weights, card);
            let (groups, x_blocks) = (shape.groups(&tiles), shape.x_blocks(m));
            let block = shape.block_tiles() * TILE_ROWS;
            let padded: usize = outs.into_iter().map(most_padded).sum();
            if shape.splits > 1 {
                assert!(groups * block <= padded, "{outs:?} {m}: {shape:?}");
                assert!(x_blocks * shape.block_x() * X_TILE_ROWS <= MOST_SPLIT_ROWS);
                assert!(groups * x_blocks <= padded.div_ceil(TILE_ROWS), "{shape:?}");
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
            let tiles = [n_out / TILE_ROWS];
            let weights = Weights {
                types: &[ty],
                tiles: &tiles,
                may_split: true,
            };
            let shape = Shape::new(m, n_in, &weights, &card);
            let seen = (shape.block_tiles() * TILE_ROWS, shape.splits);
            assert_eq!(seen, (rows, splits), "{m} rows, {n_in} x {n_out}");
        }
    }
}
