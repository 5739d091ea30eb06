//! What the rows of a pass are, on the card.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::lower::lowering::Inputs;
use crate::error::Result;

/// Each `[rows]` of u32.
#[derive(Debug)]
pub struct RowBuffers {
    pub tokens: DeviceBuffer,
    pub positions: DeviceBuffer,
    /// Row of the page table.
    pub slots: DeviceBuffer,
    pub out_rows: DeviceBuffer,
    /// Which slot state a row has, where it has one.
    pub state_slots: DeviceBuffer,
}

impl RowBuffers {
    /// Buffers for up to `rows` rows.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(context: &Arc<Context>, rows: usize) -> Result<Self> {
        let buffer = || DeviceBuffer::new(context, rows * 4);
        Ok(Self {
            tokens: buffer()?,
            positions: buffer()?,
            slots: buffer()?,
            out_rows: buffer()?,
            state_slots: buffer()?,
        })
    }

    /// Their addresses, for rows that the host gives.
    pub fn inputs(&self) -> Inputs {
        Inputs {
            tokens: self.tokens.address(),
            positions: self.positions.address(),
            slots: self.slots.address(),
            out_rows: self.out_rows.address(),
            state_slots: self.state_slots.address(),
            state: 0,
        }
    }
}
