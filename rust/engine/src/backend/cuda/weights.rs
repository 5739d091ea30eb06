//! Weights on the card: matrices as units, vectors as float32, each rewritten once at load.

use std::collections::HashMap;
use std::sync::Arc;

use super::compile::Variant;
use super::device::{DeviceBuffer, Stream};
use super::kernels::Repack;
use super::launch::{run_all, Spec};
use super::program::Programs;
use super::shape::{segments, superblocks, UNIT_ROWS};
use crate::backend::Weights;
use crate::error::{Error, Result};
use crate::plan::{Plan, WeightId};

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

/// A matrix as units.
#[derive(Debug)]
pub struct Units {
    pub buffer: DeviceBuffer,
    pub tiles: usize,
}

/// What was uploaded, by weights and row order.
#[derive(Debug, Default)]
pub struct DeviceWeights {
    matrices: HashMap<(Vec<WeightId>, Order), Arc<Units>>,
    vectors: HashMap<WeightId, Arc<DeviceBuffer>>,
}

/// Warps of a block of the repack kernel.
const REPACK_WARPS: u32 = 8;

impl DeviceWeights {
    /// A norm's or bias' values as float32.
    pub fn vector(
        &mut self,
        plan: &Plan,
        id: WeightId,
        weights: &dyn Weights,
        programs: &Programs,
        stream: &Stream,
    ) -> Result<u64> {
        if let Some(buffer) = self.vectors.get(&id) {
            return Ok(buffer.address());
        }
        let w = plan.weight(id);
        let mut values = vec![0.0f32; w.n_in];
        (w.ty.dequantize)(weights.of(w)?, &mut values);
        let buffer = DeviceBuffer::new(programs.context(), values.len() * 4)?;
        buffer.write(0, &values, stream)?;
        let address = buffer.address();
        self.vectors.insert(id, Arc::new(buffer));
        Ok(address)
    }

    /// One matrix, or two joined ones, as units in `order`.
    pub fn matrix(
        &mut self,
        plan: &Plan,
        ids: &[WeightId],
        order: Order,
        weights: &dyn Weights,
        programs: &Programs,
        stream: &Stream,
    ) -> Result<Arc<Units>> {
        let key = (ids.to_vec(), order);
        if let Some(units) = self.matrices.get(&key) {
            return Ok(units.clone());
        }
        let first = plan.weight(ids[0]);
        let row_bytes = first
            .ty
            .row_bytes(first.n_in)
            .ok_or_else(|| Error::Internal(format!("rows of {}", first.name)))?;
        // The file's bytes, as they are, on the card for as long as the rewriting takes.
        let mut files = Vec::new();
        for id in ids {
            let bytes = weights.of(plan.weight(*id))?;
            let staged = DeviceBuffer::new(programs.context(), bytes.len())?;
            staged.write(0, bytes, stream)?;
            files.push(staged);
        }
        let rows = row_addresses(&files, first.n_out, row_bytes, order);
        let tiles = rows.len() / UNIT_ROWS;
        let row_list = DeviceBuffer::new(programs.context(), rows.len() * 8)?;
        row_list.write(0, &rows, stream)?;
        let n_sb = superblocks(first.n_in);
        let n_units = tiles * n_sb;
        let buffer = DeviceBuffer::new(programs.context(), n_units * first.ty.kernel.unit_bytes)?;
        let params = Repack {
            rows: row_list.address(),
            units: buffer.address(),
            tiles: tiles as u32,
            n_sb: n_sb as u32,
            n_in: first.n_in as u32,
            unused: 0,
        };
        let blocks = n_units.div_ceil(REPACK_WARPS as usize) as u32;
        let variant = Variant {
            source: "repack.cu",
            constants: segments(&[first.ty]),
        };
        let spec = Spec::new(
            variant,
            "repack",
            [blocks, 1, 1],
            32 * REPACK_WARPS,
            &params,
        );
        run_all(&programs.launches(vec![spec])?, stream)?;
        // The file's bytes are freed here: the kernel must have read them.
        stream.synchronize()?;
        let units = Arc::new(Units { buffer, tiles });
        self.matrices.insert(key, units.clone());
        Ok(units)
    }

    /// Address and tiles of uploaded units.
    pub fn units(&self, ids: &[WeightId], order: Order) -> Result<(u64, usize)> {
        let found = self.matrices.get(&(ids.to_vec(), order));
        found.map(|u| (u.buffer.address(), u.tiles)).ok_or_else(|| {
            Error::Internal(format!(
                "weights {ids:?} were not uploaded in order {order:?}"
            ))
        })
    }

    /// Address of an uploaded vector.
    pub fn address(&self, id: WeightId) -> Result<u64> {
        let found = self.vectors.get(&id);
        found
            .map(|b| b.address())
            .ok_or_else(|| Error::Internal(format!("vector {} was not uploaded", id.0)))
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> usize {
        let matrices: usize = self.matrices.values().map(|u| u.buffer.bytes()).sum();
        matrices + self.vectors.values().map(|b| b.bytes()).sum::<usize>()
    }
}

/// The address of the row at every place of every tile; 0 where a tile is padded.
fn row_addresses(files: &[DeviceBuffer], n_out: usize, row_bytes: usize, order: Order) -> Vec<u64> {
    let address = |file: usize, row: usize| {
        if row < n_out {
            files[file].address() + (row * row_bytes) as u64
        } else {
            0
        }
    };
    let rows = if order == Order::Joined {
        2 * n_out
    } else {
        n_out
    };
    let tiles = rows.div_ceil(UNIT_ROWS);
    let mut all = Vec::with_capacity(tiles * UNIT_ROWS);
    for tile in 0..tiles {
        for at in 0..UNIT_ROWS {
            all.push(match order {
                Order::Natural => address(0, tile * 8 + at),
                Order::Neighbours => address(0, tile * 8 + 2 * (at % 4) + at / 4),
                Order::Halves { head_dim } => {
                    let per_head = head_dim / 8;
                    let base = tile / per_head * head_dim + tile % per_head * 4;
                    address(0, base + at / 4 * (head_dim / 2) + at % 4)
                }
                Order::Joined => address(at / 4, tile * 4 + at % 4),
            });
        }
    }
    all
}
