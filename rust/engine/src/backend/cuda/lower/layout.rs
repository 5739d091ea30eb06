//! The layout of weights on the card: the order of rows in tiles, how many tiles there are, and the
//! launches that repack a file's rows.

use std::collections::HashSet;

use super::params::{Repack, CONSTANTS};
use super::shape::{superblocks, Segments, TILE_ROWS};
use crate::backend::cuda::driver::source::{constants, source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::{Error, Result};
use crate::plan::fuse::{Epilogue, Fused, FusedOp, Part, RowSlice};
use crate::plan::signature::{Role, Used};
use crate::plan::{Plan, RopeStyle, WeightId};
use crate::quant::QuantType;

static SOURCE: Source = source!("repack.cu", CONSTANTS, Repack);

constants! {
    /// repack.cu
    struct RepackVariant in SOURCE {
        types: Segments,
    }
}

/// Warps of a block of the repack kernel.
const REPACK_WARPS: u32 = 8;

/// Bytes of the address of a row in a list of them.
const ADDRESS: usize = 8;

/// The order of rows in a tile; see `row_of` in epilogue.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    Natural,
    /// Rows 2i and 2i + 1 at places p and p + 8.
    Neighbours,
    /// Rows i and i + head_dim / 2 at places p and p + 8.
    Halves {
        head_dim: usize,
    },
    /// Row i of the first matrix at place p, of the second at p + 8.
    Joined,
    /// The same of the two matrices that one's first and last `half` rows are.
    Parted {
        half: usize,
    },
    /// A slice of the rows.
    Slice(RowSlice),
}

impl Order {
    /// Rows of each matrix in a tile, with those that are left out.
    fn rows_of_a_tile(self) -> usize {
        match self {
            Order::Joined => TILE_ROWS / 2,
            Order::Slice(RowSlice { len, of, .. }) => TILE_ROWS * of / len,
            _ => TILE_ROWS,
        }
    }

    /// Tiles whose rows are contiguous in the file.
    fn tiles_together(self) -> usize {
        match self {
            Order::Halves { head_dim } => (head_dim / TILE_ROWS).max(1),
            Order::Parted { half } => half.div_ceil(TILE_ROWS / 2),
            Order::Slice(RowSlice { len, .. }) => len / TILE_ROWS,
            _ => 1,
        }
    }

    /// Tiles of a matrix of `n_out` rows.
    fn tiles(self, n_out: usize) -> usize {
        match self {
            // Each half is padded by itself.
            Order::Parted { .. } => self.tiles_together(),
            _ => n_out.div_ceil(self.rows_of_a_tile()),
        }
    }

    /// The matrix, and its row, at place `at` of `tile`. In a padded tile the row may lie past the end.
    fn row(self, tile: usize, at: usize) -> (usize, usize) {
        /// Pairs of a tile.
        const PAIRS: usize = TILE_ROWS / 2;
        match self {
            Order::Natural => (0, tile * TILE_ROWS + at),
            Order::Neighbours => (0, tile * TILE_ROWS + 2 * (at % PAIRS) + at / PAIRS),
            Order::Halves { head_dim } => {
                let per_head = head_dim / TILE_ROWS;
                let base = tile / per_head * head_dim + tile % per_head * PAIRS;
                (0, base + at / PAIRS * (head_dim / 2) + at % PAIRS)
            }
            Order::Joined => (at / PAIRS, tile * PAIRS + at % PAIRS),
            Order::Slice(RowSlice { first, len, of }) => {
                let per_slice = len / TILE_ROWS;
                let own = first + tile % per_slice * TILE_ROWS + at;
                (0, tile / per_slice * of + own)
            }
            Order::Parted { half } => {
                let own = tile * PAIRS + at % PAIRS;
                let is_there = own < half;
                (
                    0,
                    if is_there {
                        at / PAIRS * half + own
                    } else {
                        usize::MAX
                    },
                )
            }
        }
    }
}

/// A matrix as tiles, or two joined ones.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub ids: Vec<WeightId>,
    pub order: Order,
    pub ty: &'static QuantType,
    pub n_in: usize,
    /// Rows of each, or of each expert's.
    pub n_out: usize,
    /// Rows of their sums, or where each is a gate of another, of what comes of both.
    pub gives: usize,
    /// Matrices of each, one behind another.
    pub n_expert: usize,
    /// Bytes of a row in the file.
    pub row_bytes: usize,
    /// Of one expert.
    pub expert_tiles: usize,
    /// Of all.
    pub tiles: usize,
}

/// What the ops of a plan read of its weights.
#[derive(Debug, Default)]
pub struct Wanted {
    pub matrices: Vec<Matrix>,
    /// Of which a row of a pass reads a few rows that a hash chooses: they may be larger than a card, and
    /// lie in host memory that it reads.
    pub tables: Vec<Matrix>,
    pub vectors: Vec<WeightId>,
}

/// The weights that fused plans of one set of ids read, each once in each order.
///
/// # Errors
/// [`Error::Internal`] for rows that are no whole blocks.
pub fn wanted<'a>(plans: impl Iterator<Item = (&'a Plan, &'a [FusedOp])>) -> Result<Wanted> {
    let mut found = Wanted::default();
    let (mut matrices, mut vectors) = (HashSet::new(), HashSet::new());
    let all = plans.flat_map(|(plan, fused)| fused.iter().map(move |fused| (plan, fused)));
    for (plan, FusedOp { op, ops, .. }) in all {
        let used = ops.iter().flat_map(|at| plan.ops[*at].signature().weights);
        let (more, whole): (Vec<_>, Vec<_>) = used.partition(|used| used.role.is_vector());
        let alone = |used: Used| (vec![used.id], Order::Natural);
        let is_hashed = |used: &Used| matches!(used.role, Role::Hashed { .. });
        let (tables, whole): (Vec<_>, Vec<_>) = whole.into_iter().partition(is_hashed);
        for (ids, order) in tables.into_iter().map(alone) {
            if matrices.insert((ids.clone(), order)) {
                found.tables.push(Matrix::new(plan, &ids, order)?);
            }
        }
        let of_op = match op {
            Fused::MatVec(op) => arrangement(plan, &op.parts, &op.epilogue),
            _ => whole.into_iter().map(alone).collect(),
        };
        for (ids, order) in of_op {
            if matrices.insert((ids.clone(), order)) {
                found.matrices.push(Matrix::new(plan, &ids, order)?);
            }
        }
        let fresh = more.into_iter().map(|used| used.id);
        found.vectors.extend(fresh.filter(|id| vectors.insert(*id)));
    }
    Ok(found)
}

/// The matrices of a fused product, as it wants them.
pub fn arrangement(
    plan: &Plan,
    parts: &[Part],
    epilogue: &Epilogue,
) -> Vec<(Vec<WeightId>, Order)> {
    let alone = |(part, order): (&Part, Order)| (vec![part.weight], order);
    match epilogue {
        Epilogue::Gated { .. } => match parts {
            [both] => {
                let half = plan.weight(both.weight).n_out / 2;
                vec![alone((both, Order::Parted { half }))]
            }
            _ => vec![(parts.iter().map(|p| p.weight).collect(), Order::Joined)],
        },
        Epilogue::Qkv {
            rotation, head_dim, ..
        } => {
            let order = match rotation.style {
                RopeStyle::Interleaved => Order::Neighbours,
                RopeStyle::Halves => Order::Halves {
                    head_dim: *head_dim,
                },
            };
            let orders = [order, order, Order::Natural];
            parts.iter().zip(orders).map(alone).collect()
        }
        Epilogue::Store | Epilogue::Add { .. } => parts
            .iter()
            .map(|part| alone((part, part.slice.map_or(Order::Natural, Order::Slice))))
            .collect(),
    }
}

/// The kernel that rewrites rows of type `ty`.
pub fn repack_variant(ty: &'static QuantType) -> Variant {
    RepackVariant {
        types: Segments(vec![ty]),
    }
    .into()
}

impl Matrix {
    /// The tiles of `ids`, which are of one shape and type.
    ///
    /// # Errors
    /// [`Error::Internal`] for rows that are no whole blocks.
    pub fn new(plan: &Plan, ids: &[WeightId], order: Order) -> Result<Self> {
        let first = plan.weight(ids[0]);
        let row_bytes = first.ty.row_bytes(first.n_in);
        let expert_tiles = order.tiles(first.n_out);
        Ok(Self {
            ids: ids.to_vec(),
            order,
            ty: first.ty,
            n_in: first.n_in,
            n_out: first.n_out,
            gives: match order {
                Order::Parted { half } => half,
                Order::Slice(RowSlice { len, of, .. }) => first.n_out / of * len,
                _ => first.n_out,
            },
            n_expert: first.n_expert,
            row_bytes: row_bytes
                .ok_or_else(|| Error::Internal(format!("rows of {}", first.name)))?,
            expert_tiles,
            tiles: expert_tiles * first.n_expert,
        })
    }

    /// Bytes of all its tiles.
    pub fn bytes(&self) -> usize {
        self.tiles * self.tile_bytes()
    }

    fn tile_bytes(&self) -> usize {
        superblocks(self.n_in) * self.ty.kernel.tile_bytes
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        (self.ids.len() * self.n_expert * self.n_out * self.row_bytes) as u64
    }

    /// Rows in the file before a tile's, counted over all experts.
    fn rows_before(&self, tile: usize) -> usize {
        let in_expert = tile % self.expert_tiles * self.order.rows_of_a_tile();
        tile / self.expert_tiles * self.n_out + in_expert.min(self.n_out)
    }

    /// Bytes of a slab with the fewest tiles that can be staged, and of one with all of them.
    pub fn slab_bytes(&self) -> (usize, usize) {
        let bytes = |tiles: usize| {
            let rows = tiles * self.order.rows_of_a_tile() * self.row_bytes;
            tiles * TILE_ROWS * ADDRESS + self.ids.len() * rows.next_multiple_of(16)
        };
        (bytes(self.order.tiles_together()), bytes(self.tiles))
    }

    /// Tiles that a slab of `slab_bytes` holds, in whole groups that stand together.
    pub fn tiles_at_once(&self, slab_bytes: usize) -> usize {
        let rows = self.ids.len() * self.order.rows_of_a_tile();
        let a_tile = TILE_ROWS * ADDRESS + rows * self.row_bytes;
        let together = self.order.tiles_together();
        let fit = slab_bytes.saturating_sub(16 * self.ids.len()) / a_tile.max(1);
        (fit / together).max(1) * together
    }

    /// How `tiles` tiles from `first` on lie in a slab at address `slab`.
    pub fn portion(&self, first: usize, tiles: usize, slab: u64) -> Portion {
        let (begin, end) = (self.rows_before(first), self.rows_before(first + tiles));
        let list_bytes = tiles * TILE_ROWS * ADDRESS;
        let part = ((end - begin) * self.row_bytes).next_multiple_of(16);
        let base = slab + list_bytes as u64;
        let mut list = Vec::with_capacity(list_bytes);
        for tile in first..first + tiles {
            for at in 0..TILE_ROWS {
                let (file, own) = self.order.row(tile % self.expert_tiles, at);
                let row = tile / self.expert_tiles * self.n_out;
                let row = row.saturating_add(own);
                // 0 where a tile is padded.
                let address = match own < self.n_out && (begin..end).contains(&row) {
                    true => base + (file * part + (row - begin) * self.row_bytes) as u64,
                    false => 0,
                };
                list.extend(address.to_le_bytes());
            }
        }
        Portion {
            file: begin * self.row_bytes..end * self.row_bytes,
            offsets: (0..self.ids.len()).map(|i| list_bytes + i * part).collect(),
            list,
        }
    }

    /// The launch that rewrites the portion in `slab` as tiles `first` and following of `weights`.
    pub fn repack(&self, first: usize, tiles: usize, slab: u64, weights: u64) -> Spec {
        let n_sb = superblocks(self.n_in);
        let params = Repack {
            rows: slab,
            weights: weights + (first * self.tile_bytes()) as u64,
            tiles: tiles as u32,
            n_sb: n_sb as u32,
            n_in: self.n_in as u32,
            unused: 0,
        };
        let blocks = (tiles * n_sb).div_ceil(REPACK_WARPS as usize) as u32;
        let variant = repack_variant(self.ty);
        let mut spec = Spec::new(
            variant,
            "repack",
            [blocks, 1, 1],
            32 * REPACK_WARPS,
            &params,
        );
        spec.traffic.weights = (tiles * self.tile_bytes()) as u64;
        spec
    }
}

/// Some tiles of a matrix in a slab: the address of the row at each place, then the rows of each
/// matrix as the file has them.
#[derive(Debug)]
pub struct Portion {
    /// Little-endian u64, at offset 0.
    pub list: Vec<u8>,
    /// Bytes of each matrix in the file.
    pub file: std::ops::Range<usize>,
    /// Where those of each matrix begin.
    pub offsets: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Weight;
    use crate::quant;

    /// Each row of both halves stands in one place, across from its partner, and expert by expert.
    #[test]
    fn halves_stand_across_from_each_other_and_what_is_padded_is_nowhere() {
        let mut plan = Plan::default();
        let id = plan.add_weight(Weight {
            name: "both".into(),
            n_in: 32,
            n_out: 20,
            n_expert: 3,
            ty: &quant::TYPES[0],
            share: None,
        });
        let matrix = Matrix::new(&plan, &[id], Order::Parted { half: 10 }).unwrap();
        assert_eq!(
            (matrix.gives, matrix.expert_tiles, matrix.tiles),
            (10, 2, 6)
        );
        // A slab has all tiles of an expert, whatever its size.
        assert_eq!(matrix.tiles_at_once(0), 2);
        let list = |portion: &Portion| -> Vec<u64> {
            let places = portion.list.chunks_exact(8);
            places
                .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
                .collect()
        };
        for (first, tiles) in [(0, 2), (2, 4)] {
            let portion = matrix.portion(first, tiles, 0);
            let expert = first / 2;
            assert_eq!(portion.file.start, expert * 20 * 128);
            assert_eq!(portion.file.len(), tiles * 10 * 128);
            let base = portion.offsets[0] as u64;
            for (i, address) in list(&portion).into_iter().enumerate() {
                let (expert, tile, at) = (i / 32, i / 16 % 2, i % 16);
                let own = tile * 8 + at % 8;
                let row = (expert * 20 + at / 8 * 10 + own) as u64;
                let wanted = if own < 10 { base + row * 128 } else { 0 };
                assert_eq!(address, wanted, "{expert} {tile} {at}");
            }
        }
    }

    #[test]
    fn cuts_of_a_matrix_have_all_of_its_rows_once() {
        let mut plan = Plan::default();
        let id = plan.add_weight(Weight {
            name: "both".into(),
            n_in: 32,
            n_out: 3 * 80,
            n_expert: 1,
            ty: &quant::TYPES[0],
            share: None,
        });
        // Of 80 rows 16 and 64.
        let slices = [(0, 16), (16, 64)].map(|(first, len)| RowSlice { first, len, of: 80 });
        let mut seen = vec![0; 3 * 80];
        for slice in slices {
            let matrix = Matrix::new(&plan, &[id], Order::Slice(slice)).unwrap();
            assert_eq!(
                (matrix.gives, matrix.tiles),
                (3 * slice.len, 3 * slice.len / 16)
            );
            // Two portions: one repetition, then two.
            let together = slice.len / 16;
            assert_eq!(matrix.tiles_at_once(0), together);
            for (first, tiles) in [(0, together), (together, 2 * together)] {
                let portion = matrix.portion(first, tiles, 0);
                let row = first / together * 80;
                assert_eq!(portion.file, row * 128..(row + tiles / together * 80) * 128);
                for (i, b) in portion.list.chunks_exact(8).enumerate() {
                    let address = u64::from_le_bytes(b.try_into().unwrap()) as usize;
                    let found = row + (address - portion.offsets[0]) / 128;
                    let place = first * 16 + i;
                    let wanted = place / slice.len * 80 + slice.first + place % slice.len;
                    assert_eq!(found, wanted, "{slice:?} {place}");
                    seen[found] += 1;
                }
            }
        }
        assert_eq!(seen, vec![1; 3 * 80]);
    }
}
