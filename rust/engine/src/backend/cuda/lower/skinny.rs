//! A few rows of activations times weights that are small integers, on cards with clusters: what steps of a
//! small batch are made of.

use super::experts::ExpertConstants;
use super::fit::fit;
use super::lowering::{Lowering, Pass};
use super::overflow::overflows;
use super::params;
use super::params::{Overflows, QkvRotation, Segment, Skinny, CONSTANTS};
use super::product::{EpilogueConstants, Product};
use super::shape::{largest_tile, superblocks, Segments, TILE_COLS, TILE_ROWS};
use super::shapes;
use super::x_tile::{XTile, X_TILE_ROWS};
use crate::backend::cuda::driver::info::{DeviceInfo, MOST_CLUSTER};
use crate::backend::cuda::driver::source::{constants, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::ProductOp;
use crate::plan::parts::{longest_part, MOST_PARTS};
use crate::quant::QuantType;

static SOURCE: Source = source! {
    "skinny.cu", CONSTANTS, Skinny, Segment, QkvRotation, Overflows, params::Experts
};

constants! {
    /// How a block takes the product: no bit of its sums depends on it.
    #[derive(Copy, Eq, Default)]
    struct Tiles {
        n_in: int,
        /// Rows of x, at most.
        rows: uint32_t,
        /// Tiles of weights that a warp multiplies at once, a group; and of x.
        w_tiles: int, n_tiles: int,
        warps: uint32_t,
        /// Groups in flight a warp, a tile of each of their tiles.
        ring: uint32_t,
        /// Sets of sums: one is written while the other is read.
        sets: uint32_t,
        /// Groups a warp that are asked for before x, and those between two cluster barriers.
        ahead: uint32_t, round: uint32_t,
        shared_bytes: uint32_t, tile: XTile,
        /// Clusters of the grid: all that the card holds at once.
        clusters: usize,
        /// Bytes of a tile of the largest type of each tile of a group.
        stage: usize,
        /// Of the product.
        tiles: usize,
    }

    /// skinny.cu
    struct SkinnyVariant in SOURCE {
        tiles: Tiles, norm: bool, types: Segments, experts: ExpertConstants,
        epilogue: EpilogueConstants,
    }
}

/// Most rows of activations.
pub const MOST_ROWS: usize = X_TILE_ROWS;

/// Blocks of a cluster: one a part of a row, and one a pair of rows of a tile.
const CLUSTER: usize = MOST_PARTS;
const _: () = assert!(CLUSTER == MOST_CLUSTER && CLUSTER == TILE_ROWS / 2);

/// Rows up to which a block has more warps.
const FEW_ROWS: usize = X_TILE_ROWS / 2;

/// Tiles of weights a warp for five to eight rows, where a cluster has more tiles than warps.
const PAIR: usize = 2;

const BARRIER_BYTES: usize = 8;

/// Shared memory of a block beside the dynamic: barriers of the rings, rotations and places.
const STATIC_BYTES: usize = 6 << 10;

impl Tiles {
    /// The same with so many tiles between two barriers, and so many in flight.
    fn with(self, round: usize, ring: usize) -> Self {
        let at_once = self.clusters * self.warps * self.w_tiles;
        let mut tiles = Self {
            round,
            ring,
            sets: 1 + usize::from(round * at_once < self.tiles),
            ..self
        };
        tiles.shared_bytes = tiles.bytes();
        tiles
    }

    /// For `m` rows and matrices of so many tiles; none where the card has no room for it, or matmul.cu is
    /// faster.
    fn new(
        table: &shapes::Skinny,
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
        let fit = |warps, w_tiles, ahead| {
            let of = Self {
                n_in,
                rows: m.next_multiple_of(FEW_ROWS),
                w_tiles,
                n_tiles: 1,
                warps,
                ahead,
                tile: XTile::new(types, false),
                clusters,
                stage: w_tiles * largest_tile(types),
                tiles: all,
                ..Self::default()
            };
            let most_round = |s: &Self| {
                let most = all.div_ceil(clusters * warps * w_tiles);
                most.clamp(1, 32 / (s.rows * w_tiles))
            };
            // Where that is too little, all there is.
            let all = card.shared_bytes - STATIC_BYTES;
            let some = all.min(card.shared_bytes * table.shared / 100);
            let fit = |room| {
                let fits = |s: &Self| s.shared_bytes <= room;
                fit([of], most_round, table.ring, Self::with, fits)
            };
            fit(some).or_else(|| fit(all))
        };
        let bytes = |bits: usize| TILE_ROWS * TILE_COLS * bits / 8;
        let are_of = |bits| types.iter().all(|ty| ty.kernel.tile_bytes >= bytes(bits));
        if m <= FEW_ROWS {
            let are_wide = are_of(8) || (types.len() > 1 && are_of(table.wide_bits));
            let has_more = card.has_warpgroups() && !are_wide;
            // Rows so long that shared memory is too little for more have fewer.
            let more = || fit(table.more_warps, 1, table.more_ahead);
            let more = has_more.then(more).flatten();
            return more.or_else(|| fit(table.warps, 1, table.ahead));
        }
        if !card.has_warpgroups() {
            return fit(table.few_warps, 1, table.ahead);
        }
        let are_many = all.div_ceil(clusters) > table.warps;
        // Tiles of a pair are neighbours in one matrix.
        if are_many && tiles.iter().all(|tiles| tiles % PAIR == 0) && are_of(table.pair_bits) {
            let pairs = fit(table.pair_warps, PAIR, table.ahead);
            if pairs.is_some() || longest_part(superblocks(n_in)) > table.unpaired_superblocks {
                return pairs;
            }
        }
        fit(table.warps, 1, table.ahead)
    }

    fn threads(&self) -> usize {
        32 * self.warps
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn bytes(&self) -> usize {
        let n_sb = superblocks(self.n_in);
        let x = longest_part(n_sb) * self.tile.bytes();
        let squares = n_sb * self.rows * 4;
        let sums = MOST_PARTS * self.round_tiles() * 2 * self.rows * 4;
        self.warps * self.ring * self.stage + x + squares + self.sets * (sums + BARRIER_BYTES)
    }

    /// Tiles of a cluster between two barriers.
    fn round_tiles(&self) -> usize {
        self.warps * self.round * self.w_tiles
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
    let (table, types) = (&l.shapes.skinny, &product.types);
    let Some(shape) = Tiles::new(table, m, product.n_in, types, tiles, &l.card) else {
        return Ok(None);
    };
    let variant = SkinnyVariant {
        tiles: shape,
        norm: op.norm.is_some(),
        types: Segments(product.types.clone()),
        experts: ExpertConstants::of(None),
        epilogue: product.constants.clone(),
    };
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
    spec.shared = shape.shared_bytes as u32;
    product.describe(&mut spec, "skinny", m, product.n_in);
    Ok(Some(spec))
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;
    use crate::quant;

    /// Bytes of a tile of eight bits a weight.
    const TILE: usize = TILE_ROWS * TILE_COLS;

    /// The type whose tiles are the smallest from so many bytes on.
    fn of_bytes(bytes: usize) -> &'static QuantType {
        let types = quant::TYPES.iter().filter(|t| t.integers);
        let types = types.filter(|t| t.kernel.tile_bytes >= bytes);
        types.min_by_key(|t| t.kernel.tile_bytes).unwrap()
    }

    #[test]
    fn shapes_fit_and_are_of_cards_with_clusters_and_rows_of_all_parts() {
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for arch in ["sm_75", "sm_86", "sm_90", "sm_100", "sm_120"] {
                let card = DeviceInfo::of_arch(arch, 132).unwrap();
                for (m, tiles) in [(2, 1), (4, 36), (5, 128), (8, 8016)] {
                    for n_in in [576, 1792, 2048, 3072, 4096, 14336] {
                        let Some(shape) =
                            Tiles::new(&table().skinny, m, n_in, &[ty], &[tiles], &card)
                        else {
                            let wide = n_in >= 1793 && card.shared_bytes > 99 << 10;
                            let paired = card.has_warpgroups() && m == 8 && n_in == 14336;
                            assert!(
                                !(card.clusters > 0 && wide) || paired,
                                "{ty:?} {arch} {n_in}"
                            );
                            continue;
                        };
                        assert!(card.clusters > 0 && n_in > 1792, "{shape:?}");
                        assert!((1..=tiles).contains(&shape.clusters), "{shape:?}");
                        let bytes = shape.bytes() + STATIC_BYTES;
                        assert!(bytes <= card.shared_bytes, "{ty:?} {n_in}: {shape:?}");
                        // A thread ends one pair of rows a round.
                        assert!(shape.rows >= m, "{shape:?}");
                        let pairs = shape.round_tiles() * shape.rows;
                        assert!(
                            pairs <= shape.threads() && shape.ring >= shape.ahead,
                            "{shape:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn warps_have_pairs_where_tiles_are_many_and_even_and_rows_more_than_four() {
        let (table, card) = (table().skinny, DeviceInfo::of_arch("sm_90", 132).unwrap());
        let shape = |bytes, m, n_in, tiles: &[usize]| {
            let shape = Tiles::new(&table, m, n_in, &[of_bytes(bytes)], tiles, &card);
            shape.map(|s| (s.warps, s.w_tiles))
        };
        let (pairs, ones) = (Some((table.pair_warps, PAIR)), Some((table.warps, 1)));
        let (four, six) = (TILE / 2, 3 * TILE / 4 + 1);
        let eight = TILE;
        assert_eq!(shape(four, 5, 4096, &[256, 64, 64]), pairs);
        // Where its tiles leave no room.
        assert_eq!(shape(six, 8, 4096, &[8016]), ones);
        assert_eq!(
            shape(four, 4, 4096, &[256, 64, 64]),
            Some((table.more_warps, 1))
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
        let table = table().skinny;
        let warps = |arch, n_in, bytes: &[usize]| {
            let card = DeviceInfo::of_arch(arch, 132).unwrap();
            let types: Vec<_> = bytes.iter().map(|bytes| of_bytes(*bytes)).collect();
            let tiles = vec![256; types.len()];
            Tiles::new(&table, 4, n_in, &types, &tiles, &card).map(|s| (s.warps, s.ahead))
        };
        let more = Some((table.more_warps, table.more_ahead));
        let fewer = Some((table.warps, table.ahead));
        let (four, six, eight) = (TILE / 2, 3 * TILE / 4, TILE);
        assert_eq!(warps("sm_90", 4096, &[four, four, six]), more);
        assert_eq!(warps("sm_90", 4096, &[six]), more);
        assert_eq!(warps("sm_90", 14336, &[eight]), fewer);
        assert_eq!(warps("sm_90", 4096, &[six, six, six]), fewer);
        assert_eq!(warps("sm_90", 28672, &[eight]), fewer);
        assert_eq!(warps("sm_100", 4096, &[four]), fewer);
    }
}
