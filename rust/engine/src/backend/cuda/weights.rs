//! Weights on the card: matrices as units, vectors as float32, each rewritten once at load.

use std::collections::HashMap;
use std::sync::Arc;

use super::compile::Variant;
use super::device::{Context, DeviceBuffer, Stream};
use super::kernels::Repack;
use super::launch::{run_all, Spec};
use super::program::Programs;
use super::shape::{segments, superblocks, UNIT_ROWS};
use super::staging::Staging;
use crate::backend::Weights;
use crate::error::{Error, Result};
use crate::plan::{Plan, WeightId};
use crate::quant::QuantType;

/// Which rows stand together in a tile; see `row_of` in epilogue.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    Natural,
    /// Rows 2i and 2i + 1 at places p and p + 4.
    Neighbours,
    /// Rows i and i + head_dim / 2 at places p and p + 4.
    Halves {
        head_dim: usize,
    },
    /// Row i of the first matrix at place p, of the second at p + 4.
    Joined,
}

impl Order {
    /// Rows of each matrix in a tile.
    fn rows_of_a_tile(self) -> usize {
        match self {
            Order::Joined => UNIT_ROWS / 2,
            _ => UNIT_ROWS,
        }
    }

    /// Tiles whose rows stand together in the file.
    fn tiles_together(self) -> usize {
        match self {
            Order::Halves { head_dim } => (head_dim / UNIT_ROWS).max(1),
            _ => 1,
        }
    }

    /// Which matrix, and which row of it, stands at place `at` of `tile`.
    fn row(self, tile: usize, at: usize) -> (usize, usize) {
        match self {
            Order::Natural => (0, tile * 8 + at),
            Order::Neighbours => (0, tile * 8 + 2 * (at % 4) + at / 4),
            Order::Halves { head_dim } => {
                let per_head = head_dim / 8;
                let base = tile / per_head * head_dim + tile % per_head * 4;
                (0, base + at / 4 * (head_dim / 2) + at % 4)
            }
            Order::Joined => (at / 4, tile * 4 + at % 4),
        }
    }
}

/// A matrix as units, or two joined ones.
#[derive(Debug)]
struct Units {
    ids: Vec<WeightId>,
    order: Order,
    ty: &'static QuantType,
    n_in: usize,
    n_out: usize,
    row_bytes: usize,
    tiles: usize,
    buffer: DeviceBuffer,
}

/// What is or will be uploaded, by weights and row order.
#[derive(Debug, Default)]
pub struct DeviceWeights {
    matrices: Vec<Units>,
    places: HashMap<(Vec<WeightId>, Order), usize>,
    vectors: Vec<(WeightId, DeviceBuffer)>,
}

/// Warps of a block of the repack kernel.
const REPACK_WARPS: u32 = 8;

/// Bytes of the address of a row in a list of them.
const ADDRESS: usize = 8;

impl DeviceWeights {
    /// Takes the memory for a norm's or bias' values, as float32.
    pub fn reserve_vector(
        &mut self,
        plan: &Plan,
        id: WeightId,
        context: &Arc<Context>,
    ) -> Result<()> {
        if self.vectors.iter().all(|(known, _)| *known != id) {
            let buffer = DeviceBuffer::new(context, plan.weight(id).n_in * 4)?;
            self.vectors.push((id, buffer));
        }
        Ok(())
    }

    /// Takes the memory for one matrix, or for two joined ones, as units in `order`.
    pub fn reserve_matrix(
        &mut self,
        plan: &Plan,
        ids: &[WeightId],
        order: Order,
        context: &Arc<Context>,
    ) -> Result<()> {
        let key = (ids.to_vec(), order);
        if self.places.contains_key(&key) {
            return Ok(());
        }
        let first = plan.weight(ids[0]);
        let row_bytes = first
            .ty
            .row_bytes(first.n_in)
            .ok_or_else(|| Error::Internal(format!("rows of {}", first.name)))?;
        let tiles = first.n_out.div_ceil(order.rows_of_a_tile());
        let n_units = tiles * superblocks(first.n_in);
        self.places.insert(key, self.matrices.len());
        self.matrices.push(Units {
            ids: ids.to_vec(),
            order,
            ty: first.ty,
            n_in: first.n_in,
            n_out: first.n_out,
            row_bytes,
            tiles,
            buffer: DeviceBuffer::new(context, n_units * first.ty.kernel.unit_bytes)?,
        });
        Ok(())
    }

    /// Memory to upload through.
    pub fn staging(&self, context: &Arc<Context>) -> Result<Staging> {
        let whole = |u: &Units| u.bytes(u.tiles);
        let least = |u: &Units| u.bytes(u.order.tiles_together());
        let most = |of: &dyn Fn(&Units) -> usize| self.matrices.iter().map(of).max();
        Staging::new(
            context,
            most(&least).unwrap_or(1),
            most(&whole).unwrap_or(1),
        )
    }

    /// Copies and rewrites all of it. `progress` is told the bytes of the file that are done, and of
    /// how many; it may break off.
    ///
    /// # Errors
    /// [`Error::Tensor`], [`Error::Device`], what `progress` says.
    pub fn upload(
        &self,
        plan: &Plan,
        weights: &dyn Weights,
        programs: &Programs,
        staging: &mut Staging,
        stream: &Stream,
        progress: &dyn Fn(u64, u64) -> Result<()>,
    ) -> Result<()> {
        for (id, buffer) in &self.vectors {
            let w = plan.weight(*id);
            let mut values = vec![0.0f32; w.n_in];
            (w.ty.dequantize)(weights.of(w)?, &mut values);
            buffer.write(0, &values, stream)?;
        }
        let file_bytes = |u: &Units| (u.ids.len() * u.n_out * u.row_bytes) as u64;
        let total = self.matrices.iter().map(file_bytes).sum();
        let mut done = 0;
        for units in &self.matrices {
            let files = units
                .ids
                .iter()
                .map(|id| weights.of(plan.weight(*id)))
                .collect::<Result<Vec<_>>>()?;
            let at_once = units.tiles_at_once(staging.slab_bytes());
            for first in (0..units.tiles).step_by(at_once) {
                let tiles = (units.tiles - first).min(at_once);
                progress(done, total)?;
                done += units.stage(&files, first, tiles, programs, staging, stream)?;
            }
        }
        progress(total, total)?;
        // The slabs are freed behind this.
        stream.synchronize()
    }

    /// Address and tiles of a matrix's units.
    pub fn units(&self, ids: &[WeightId], order: Order) -> Result<(u64, usize)> {
        let found = self.places.get(&(ids.to_vec(), order));
        found
            .and_then(|at| self.matrices.get(*at))
            .map(|u| (u.buffer.address(), u.tiles))
            .ok_or_else(|| {
                Error::Internal(format!(
                    "weights {ids:?} were not uploaded in order {order:?}"
                ))
            })
    }

    /// Address of a vector.
    pub fn address(&self, id: WeightId) -> Result<u64> {
        let found = self.vectors.iter().find(|(known, _)| *known == id);
        found
            .map(|(_, b)| b.address())
            .ok_or_else(|| Error::Internal(format!("vector {} was not uploaded", id.0)))
    }

    /// The kernels that rewrite it.
    pub fn variants(&self) -> impl Iterator<Item = Variant> + '_ {
        self.matrices.iter().map(|u| repack_variant(u.ty))
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> usize {
        let matrices: usize = self.matrices.iter().map(|u| u.buffer.bytes()).sum();
        matrices + self.vectors.iter().map(|(_, b)| b.bytes()).sum::<usize>()
    }
}

fn repack_variant(ty: &'static QuantType) -> Variant {
    Variant {
        source: "repack.cu",
        constants: segments(&[ty]),
    }
}

impl Units {
    /// Bytes of a slab with `tiles` tiles: the address of the row at each place, then the rows of
    /// each matrix as the file has them.
    fn bytes(&self, tiles: usize) -> usize {
        let rows = tiles * self.order.rows_of_a_tile() * self.row_bytes;
        tiles * UNIT_ROWS * ADDRESS + self.ids.len() * rows.next_multiple_of(16)
    }

    /// Tiles that a slab of `slab_bytes` holds, in whole groups that stand together.
    fn tiles_at_once(&self, slab_bytes: usize) -> usize {
        let rows = self.ids.len() * self.order.rows_of_a_tile();
        let a_tile = UNIT_ROWS * ADDRESS + rows * self.row_bytes;
        let together = self.order.tiles_together();
        let fit = slab_bytes.saturating_sub(16 * self.ids.len()) / a_tile.max(1);
        (fit / together).max(1) * together
    }

    /// Copies the rows of `tiles` tiles from `first` on, and queues their rewriting; returns the
    /// bytes of the file that these were.
    fn stage(
        &self,
        files: &[&[u8]],
        first: usize,
        tiles: usize,
        programs: &Programs,
        staging: &mut Staging,
        stream: &Stream,
    ) -> Result<u64> {
        let per_tile = self.order.rows_of_a_tile();
        let begin = (first * per_tile).min(self.n_out);
        let end = ((first + tiles) * per_tile).min(self.n_out);
        let list_bytes = tiles * UNIT_ROWS * ADDRESS;
        let part = ((end - begin) * self.row_bytes).next_multiple_of(16);
        let slab = staging.next()?;
        let base = slab.address() + list_bytes as u64;
        let mut list = Vec::with_capacity(list_bytes);
        for tile in first..first + tiles {
            for at in 0..UNIT_ROWS {
                let (file, row) = self.order.row(tile, at);
                // 0 where a tile is padded.
                let address = match (begin..end).contains(&row) {
                    true => base + (file * part + (row - begin) * self.row_bytes) as u64,
                    false => 0,
                };
                list.extend(address.to_le_bytes());
            }
        }
        let mut pieces: Vec<(usize, &[u8])> = vec![(0, &list)];
        let mut copied = 0;
        for (i, (file, id)) in files.iter().zip(&self.ids).enumerate() {
            let rows = file.get(begin * self.row_bytes..end * self.row_bytes);
            let rows = rows.ok_or_else(|| {
                Error::Internal(format!("weight {} has {} bytes", id.0, file.len()))
            })?;
            copied += rows.len() as u64;
            pieces.push((list_bytes + i * part, rows));
        }
        slab.copy(&pieces, stream)?;
        let n_sb = superblocks(self.n_in);
        let unit_bytes = self.ty.kernel.unit_bytes;
        let params = Repack {
            rows: slab.address(),
            units: self.buffer.address() + (first * n_sb * unit_bytes) as u64,
            tiles: tiles as u32,
            n_sb: n_sb as u32,
            n_in: self.n_in as u32,
            unused: 0,
        };
        let blocks = (tiles * n_sb).div_ceil(REPACK_WARPS as usize) as u32;
        let spec = Spec::new(
            repack_variant(self.ty),
            "repack",
            [blocks, 1, 1],
            32 * REPACK_WARPS,
            &params,
        );
        run_all(&programs.launches(vec![spec])?, stream)?;
        slab.done(stream)?;
        Ok(copied)
    }
}
