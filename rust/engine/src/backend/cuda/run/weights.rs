//! Weights on the card: matrices as tiles, vectors as float32, each rewritten once at load. Tables whose rows
//! are hashed are matrices in host memory, pinned, that the card reads through the bus: a token needs few rows.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::launch::run_all;
use crate::backend::cuda::driver::program::Programs;
use crate::backend::cuda::driver::source::Variant;
use crate::backend::cuda::driver::staging::Staging;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::layout::{repack_variant, Matrix, Wanted};
use crate::backend::cuda::lower::lowering::Addresses;
use crate::backend::Weights;
use crate::error::{Error, Result};
use crate::plan::{Plan, WeightId};

/// What is or will be uploaded.
#[derive(Debug)]
pub struct DeviceWeights {
    matrices: Vec<(Matrix, DeviceBuffer)>,
    tables: Vec<(Matrix, HostBuffer)>,
    vectors: Vec<(WeightId, DeviceBuffer)>,
}

impl DeviceWeights {
    /// Takes the memory for all of it.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, plan: &Plan, wanted: Wanted) -> Result<Self> {
        let Wanted {
            matrices,
            tables,
            vectors,
        } = wanted;
        let matrix = |matrix: Matrix| {
            let buffer = DeviceBuffer::new(context, matrix.bytes())?;
            Ok((matrix, buffer))
        };
        let table = |matrix: Matrix| {
            let bytes = matrix.bytes();
            let buffer = HostBuffer::new(context, bytes).map_err(|e| match e {
                Error::Memory { .. } => Error::Memory {
                    need: format!("{bytes} bytes of pinned host memory for a table of n-grams"),
                    remedy: "free memory of the host, or raise the limit of the container".into(),
                },
                e => e,
            })?;
            Ok((matrix, buffer))
        };
        let vector = |id: WeightId| {
            let buffer = DeviceBuffer::new(context, plan.weight(id).vector_len() * 4)?;
            Ok((id, buffer))
        };
        Ok(Self {
            matrices: matrices.into_iter().map(matrix).collect::<Result<_>>()?,
            tables: tables.into_iter().map(table).collect::<Result<_>>()?,
            vectors: vectors.into_iter().map(vector).collect::<Result<_>>()?,
        })
    }

    /// Matrices and tables, each with where the card sees it.
    fn tiles(&self) -> impl Iterator<Item = (&Matrix, u64)> {
        let on_card = self.matrices.iter().map(|(m, b)| (m, b.address()));
        on_card.chain(self.tables.iter().map(|(m, b)| (m, b.address())))
    }

    /// Says where it lies.
    pub fn place(&self, at: &mut Addresses) {
        for (matrix, address) in self.tiles() {
            let key = (matrix.ids.clone(), matrix.order);
            at.matrices.insert(key, address);
        }
        let vectors = self.vectors.iter().map(|(id, b)| (*id, b.address()));
        at.vectors.extend(vectors);
    }

    /// Memory to upload through.
    pub fn staging(&self, context: &Arc<Context>) -> Result<Staging> {
        let sizes = self.tiles().map(|(matrix, _)| matrix.slab_bytes());
        let (least, most) = sizes.fold((1, 1), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        Staging::new(context, least, most)
    }

    /// Copies and rewrites all of it. `progress` is told the bytes of the file that are done, and
    /// of how many; it may break off.
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
            let mut values = vec![0.0f32; w.vector_len()];
            weights.vector(w, &mut values)?;
            buffer.write(0, &values, stream)?;
        }
        let total = self.tiles().map(|(m, _)| m.file_bytes()).sum();
        let mut done = 0;
        for (matrix, address) in self.tiles() {
            let files = matrix
                .ids
                .iter()
                .map(|id| weights.of(plan.weight(*id)))
                .collect::<Result<Vec<_>>>()?;
            let at_once = matrix.tiles_at_once(staging.slab_bytes());
            for first in (0..matrix.tiles).step_by(at_once) {
                let tiles = (matrix.tiles - first).min(at_once);
                progress(done, total)?;
                let slab = staging.oldest();
                let portion = matrix.portion(first, tiles, slab.address());
                let mut pieces: Vec<(usize, &[u8])> = vec![(0, &portion.list)];
                for ((file, id), offset) in files.iter().zip(&matrix.ids).zip(portion.offsets) {
                    let rows = file.get(portion.file.clone()).ok_or_else(|| {
                        Error::Internal(format!("weight {} has {} bytes", id.0, file.len()))
                    })?;
                    done += rows.len() as u64;
                    pieces.push((offset, rows));
                }
                slab.copy(&pieces, stream)?;
                let spec = matrix.repack(first, tiles, slab.address(), address);
                run_all(&programs.launches(vec![spec])?, stream)?;
            }
        }
        progress(total, total)?;
        // The slabs are freed behind this.
        stream.synchronize()
    }

    /// The kernels that rewrite it.
    pub fn variants(&self) -> impl Iterator<Item = Variant> + '_ {
        self.tiles().map(|(m, _)| repack_variant(m.ty))
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> usize {
        let matrices = self.matrices.iter().map(|(_, b)| b.bytes());
        matrices
            .chain(self.vectors.iter().map(|(_, b)| b.bytes()))
            .sum()
    }
}
