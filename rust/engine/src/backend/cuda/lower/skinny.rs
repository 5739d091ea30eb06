//! A few rows of activations times weights that are small integers, on cards with clusters: what steps of a
//! small batch are made of.

use super::experts::constants_of;
use super::lowering::{constants, flag, sizes, Lowering, Pass};
use super::overflow::overflows;
use super::params;
use super::params::{Overflows, QkvRotation, Segment, Skinny, CONSTANTS};
use super::product::Product;
use super::shape::{largest_tile, segments, superblocks, TILE_COLS, TILE_ROWS};
use super::x_tile::{XTile, X_TILE_ROWS};
use crate::backend::cuda::driver::info::{DeviceInfo, MOST_CLUSTER};
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::ProductOp;
use crate::plan::parts::{longest_part, MOST_PARTS};
use crate::quant::QuantType;

static SOURCE: Source = source!(
    "skinny.cu",
    CONSTANTS,
    Skinny,
    Segment,
    QkvRotation,
    Overflows,
    params::Experts
);

/// Most rows of activations.
pub const MOST_ROWS: usize = X_TILE_ROWS;

/// Blocks of a cluster: one a part of a row, and one a pair of rows of a tile.
const CLUSTER: usize = MOST_PARTS;
const _: () = assert!(CLUSTER == MOST_CLUSTER && CLUSTER == TILE_ROWS / 2);

/// Rows both of whose limbs are columns of one product.
const PACKED_ROWS: usize = X_TILE_ROWS / 2;

/// Most tiles in flight a warp.
const MOST_TILES: usize = 8;

/// Warps of a block: four a scheduler hide each other's latencies. (With 8, of which the card put two blocks
/// on some SMs and none on others, steps of two rows took 1.2 times as long on an H100.)
const WARPS: usize = 16;

/// The same for up to four rows on cards with wgmma, for which 96 registers are enough: an 8B has 17 or 18
/// tiles of its narrow matrices a cluster, of which sixteen warps took one or two behind the others. (Steps of
/// two rows on an H200: 8B 2,128 -> 2,050 us, 1B 612 -> 603; with 18 warps 2,097 and 620, with 19, 21, 22 and
/// 24 more than with 20.)
const PACKED_WARPS: usize = 20;

/// Warps of a block for five to eight rows on cards without wgmma: the compiler takes more registers there
/// than sixteen warps leave each, and for some types side by side more than twelve do.
const FEW_WARPS: usize = 8;

/// Tiles of weights a warp for five to eight rows, where a cluster has more tiles than warps: what is read of
/// x serves both. (Steps of eight rows of an 8B on an H200: of mostly four bits 2,795 -> 2,594 us, of six 3,613
/// -> 3,388; with 8, 10 and 11 warps the first took 2,711, 2,710 and 2,638.)
const PAIR: usize = 2;
const PAIR_WARPS: usize = 12;

/// Bytes of a tile from which pairs are worth it, those of four bits a weight. With fewer, unpacking takes the
/// most: of three bits 2,968 -> 3,220 us, of two the same.
const LEAST_PAIRED: usize = TILE_ROWS * TILE_COLS / 2;

/// Superblocks of a part up to which one tile a warp is worth the while where pairs do not fit. Longer parts
/// are matmul.cu's: with an 8B's `ffn_down` of six bits its step takes 40 us less.
const MOST_UNPAIRED_SB: usize = 4;

/// Shared memory of a block, in per cent of what an SM can give to one.
const SHARED: usize = 90;

/// Bytes of a tile, of each of several matrices, from which 96 registers are too few: those of six bits a
/// weight.
const LEAST_WIDE: usize = TILE_ROWS * TILE_COLS * 3 / 4;

/// Tiles a warp that are asked for before x: what is asked for first arrives first.
const AHEAD: usize = 2;

/// The same where warps are `PACKED_WARPS`. (Two instead, steps of two rows on an H200: 8B 2,027 -> 2,050 us,
/// 1B 588 -> 603. One for eight rows too: 1B 749 -> 739, 8B as long, and registers spill.)
const PACKED_AHEAD: usize = 1;

const BARRIER_BYTES: usize = 8;

/// Shared memory of a block beside the dynamic: barriers of the rings, rotations and places.
const STATIC_BYTES: usize = 6 << 10;

/// Everything the kernel is compiled for but its epilogue. No bit of its sums depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    n_in: usize,
    warps: usize,
    /// Tiles of weights that a warp multiplies at once: a group.
    w_tiles: usize,
    /// Groups in flight a warp, a tile of each of their tiles.
    ring: usize,
    /// Groups of a warp between two cluster barriers.
    round: usize,
    /// Sets of sums: one is written while the other is read.
    sets: usize,
    /// Clusters of the grid: all that the card holds at once.
    clusters: usize,
    /// Bytes of a tile of the largest type of each tile of a group.
    stage: usize,
    tile: XTile,
}

impl Shape {
    /// For `m` rows and matrices of so many tiles; none where the card has no room for it, or matmul.cu is
    /// faster.
    fn new(
        m: usize,
        n_in: usize,
        types: &[&QuantType],
        tiles: &[usize],
        card: &DeviceInfo,
    ) -> Option<Self> {
        let all = tiles.iter().sum::<usize>();
        // One without tiles would end while others still store sums of squares in it.
        let clusters = all.min(card.clusters as usize);
        if clusters == 0 || superblocks(n_in) < MOST_PARTS {
            return None;
        }
        let fit = |warps, w_tiles| Self::fit(m, n_in, types, all, clusters, (warps, w_tiles), card);
        if m <= PACKED_ROWS {
            let are_wide =
                types.len() > 1 && types.iter().all(|ty| ty.kernel.tile_bytes >= LEAST_WIDE);
            let has_more = card.has_warpgroups() && !are_wide;
            // Rows so long that shared memory is too little for more have fewer.
            let more = has_more.then(|| fit(PACKED_WARPS, 1)).flatten();
            return more.or_else(|| fit(WARPS, 1));
        }
        if !card.has_warpgroups() {
            return fit(FEW_WARPS, 1);
        }
        let are_many = all.div_ceil(clusters) > WARPS;
        // Tiles of a pair are neighbours in one matrix.
        let pair_up = tiles.iter().all(|tiles| tiles % PAIR == 0)
            && types.iter().all(|ty| ty.kernel.tile_bytes >= LEAST_PAIRED);
        if are_many && pair_up {
            let pairs = fit(PAIR_WARPS, PAIR);
            if pairs.is_some() || longest_part(superblocks(n_in)) > MOST_UNPAIRED_SB {
                return pairs;
            }
        }
        fit(WARPS, 1)
    }

    /// With so many warps of so many tiles, for `tiles` tiles on so many clusters.
    fn fit(
        m: usize,
        n_in: usize,
        types: &[&QuantType],
        tiles: usize,
        clusters: usize,
        (warps, w_tiles): (usize, usize),
        card: &DeviceInfo,
    ) -> Option<Self> {
        let tile = match m {
            ..=PACKED_ROWS => XTile::packed(types),
            _ => XTile::new(types, false),
        };
        let at_once = clusters * warps * w_tiles;
        let shape = |round, ring| Self {
            n_in,
            warps,
            w_tiles,
            ring,
            round,
            sets: 1 + usize::from(round * at_once < tiles),
            clusters,
            stage: w_tiles * largest_tile(types),
            tile,
        };
        let most = tiles
            .div_ceil(at_once)
            .clamp(1, 32 / (tile.rows() * w_tiles));
        // As few cluster barriers as can be, then as many tiles in flight; where that is too little, all there is.
        let all = card.shared_bytes - STATIC_BYTES;
        for shared in [all.min(card.shared_bytes * SHARED / 100), all] {
            for round in (1..=most).rev() {
                let mut shapes = (2..=MOST_TILES).rev().map(|ring| shape(round, ring));
                if let Some(found) = shapes.find(|s| s.shared_bytes() <= shared) {
                    return Some(found);
                }
            }
        }
        None
    }

    fn threads(&self) -> usize {
        32 * self.warps
    }

    /// Tiles a warp that are asked for before x.
    fn ahead(&self) -> usize {
        match self.warps {
            PACKED_WARPS => PACKED_AHEAD,
            _ => AHEAD,
        }
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn shared_bytes(&self) -> usize {
        let n_sb = superblocks(self.n_in);
        let x = longest_part(n_sb) * self.tile.bytes();
        let squares = n_sb * self.tile.rows() * 4;
        let sums = MOST_PARTS * self.round_tiles() * 2 * self.tile.rows() * 4;
        self.warps * self.ring * self.stage + x + squares + self.sets * (sums + BARRIER_BYTES)
    }

    /// Tiles of a cluster between two barriers.
    fn round_tiles(&self) -> usize {
        self.warps * self.round * self.w_tiles
    }

    fn constants(&self) -> String {
        constants(&[
            ("N_IN", self.n_in),
            ("W_TILES", self.w_tiles),
            ("N_TILES", 1),
        ]) + &sizes(&[
            ("WARPS", self.warps),
            ("RING", self.ring),
            ("SETS", self.sets),
            ("AHEAD", self.ahead()),
            ("ROUND", self.round),
            ("SHARED_BYTES", self.shared_bytes()),
        ]) + &self.tile.constants()
    }
}

/// The launch of `product` with the `m` rows of `op.x`; none where there is no room for it, or matmul.cu is
/// faster.
pub fn spec(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    m: usize,
    pass: &Pass,
) -> Result<Option<Spec>> {
    let tiles = &product.tiles;
    let Some(shape) = Shape::new(m, product.n_in, &product.types, tiles, &l.card) else {
        return Ok(None);
    };
    let variant = Variant::new(
        &SOURCE,
        shape.constants()
            + &flag("NORM", op.norm.is_some())
            + &segments(&product.types)
            + &constants_of(None)
            + &product.constants,
    );
    let params = Skinny {
        segment: product.segment,
        x: l.source(op.x, pass),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        eps: op.norm.map_or(0.0, |n| n.eps),
        m: m as u32,
        overflows: overflows(l, op, pass),
        rotation: product.rotation,
    };
    let grid = [(shape.clusters * CLUSTER) as u32, 1, 1];
    let mut spec = Spec::new(variant, "skinny", grid, shape.threads() as u32, &params);
    spec.cluster = CLUSTER as u32;
    spec.shared = shape.shared_bytes() as u32;
    product.describe(&mut spec, "skinny", m, product.n_in);
    Ok(Some(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    #[test]
    fn shapes_fit_and_are_of_cards_with_clusters_and_rows_of_all_parts() {
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for arch in ["sm_75", "sm_86", "sm_90", "sm_100", "sm_120"] {
                let card = DeviceInfo::of_arch(arch, 132).unwrap();
                for (m, tiles) in [(2, 1), (4, 36), (5, 128), (8, 8016)] {
                    for n_in in [576, 1792, 2048, 3072, 4096, 14336] {
                        let Some(shape) = Shape::new(m, n_in, &[ty], &[tiles], &card) else {
                            let wide = n_in >= 1793 && card.shared_bytes > 99 << 10;
                            let paired = card.has_warpgroups() && m == 8 && n_in == 14336;
                            assert!(
                                !(card.clusters > 0 && wide) || paired,
                                "{ty:?} {arch} {n_in}"
                            );
                            continue;
                        };
                        assert!(card.clusters > 0 && n_in > 1792, "{shape:?}");
                        assert!(shape.tile.rows() >= m, "{shape:?}");
                        assert!((1..=tiles).contains(&shape.clusters), "{shape:?}");
                        let bytes = shape.shared_bytes() + STATIC_BYTES;
                        assert!(bytes <= card.shared_bytes, "{ty:?} {n_in}: {shape:?}");
                        // A thread ends one pair of rows a round.
                        let pairs = shape.round_tiles() * shape.tile.rows();
                        assert!(
                            pairs <= shape.threads() && shape.ring >= shape.ahead(),
                            "{shape:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn warps_have_pairs_where_tiles_are_many_and_even_and_rows_more_than_four() {
        let card = DeviceInfo::of_arch("sm_90", 132).unwrap();
        // Of a type whose tiles are the smallest from so many bytes on.
        let shape = |bytes, m, n_in, tiles: &[usize]| {
            let types = quant::TYPES.iter().filter(|t| t.integers);
            let types = types.filter(|t| t.kernel.tile_bytes >= bytes);
            let ty = types.min_by_key(|t| t.kernel.tile_bytes).unwrap();
            let shape = Shape::new(m, n_in, &[ty], tiles, &card);
            shape.map(|s| (s.warps, s.w_tiles))
        };
        let (pairs, ones) = (Some((PAIR_WARPS, PAIR)), Some((WARPS, 1)));
        let (four, six) = (LEAST_PAIRED, 3 * LEAST_PAIRED / 2 + 1);
        let eight = 2 * LEAST_PAIRED;
        assert_eq!(shape(four, 5, 4096, &[256, 64, 64]), pairs);
        assert_eq!(shape(six, 8, 4096, &[8016]), pairs);
        assert_eq!(
            shape(four, 4, 4096, &[256, 64, 64]),
            Some((PACKED_WARPS, 1))
        );
        assert_eq!(shape(four, 8, 2048, &[128]), ones);
        assert_eq!(shape(four, 8, 4096, &[257, 64, 64]), ones);
        assert_eq!(shape(0, 8, 4096, &[1792]), ones);
        // Where its tiles leave no room, and where x does.
        assert_eq!(shape(eight, 8, 4096, &[1792]), ones);
        assert_eq!(shape(six, 8, 14336, &[256]), None);
        assert_eq!(shape(four, 8, 14336, &[256]), pairs);
    }

    #[test]
    fn up_to_four_rows_have_more_warps_where_registers_and_shared_memory_are_enough() {
        let warps = |arch, n_in, bytes: &[usize]| {
            let card = DeviceInfo::of_arch(arch, 132).unwrap();
            let types = bytes.iter().map(|bytes| {
                let types = quant::TYPES.iter().filter(|t| t.integers);
                let types = types.filter(|t| t.kernel.tile_bytes >= *bytes);
                types.min_by_key(|t| t.kernel.tile_bytes).unwrap()
            });
            let types: Vec<_> = types.collect();
            let tiles = vec![256; types.len()];
            Shape::new(4, n_in, &types, &tiles, &card).map(|s| (s.warps, s.ahead()))
        };
        let (more, fewer) = (Some((PACKED_WARPS, PACKED_AHEAD)), Some((WARPS, AHEAD)));
        let (four, six, eight) = (LEAST_PAIRED, LEAST_WIDE, 2 * LEAST_PAIRED);
        assert_eq!(warps("sm_90", 4096, &[four, four, six]), more);
        assert_eq!(warps("sm_90", 4096, &[six]), more);
        assert_eq!(warps("sm_90", 14336, &[eight]), more);
        assert_eq!(warps("sm_90", 4096, &[six, six, six]), fewer);
        assert_eq!(warps("sm_90", 28672, &[eight]), fewer);
        assert_eq!(warps("sm_100", 4096, &[four]), fewer);
    }
}
