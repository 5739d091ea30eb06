//! The inputs of a pass's rows on the card: tokens, positions, slots.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::lowering::Inputs;
use crate::backend::cuda::lower::params::PADDING_SLOT;
use crate::error::Result;

/// Each `[rows]` of u32.
#[derive(Debug)]
pub struct RowBuffers {
    pub tokens: DeviceBuffer,
    pub positions: DeviceBuffer,
    /// The last position of the row's sequence in the pass, where an op looks ahead.
    pub ends: Option<DeviceBuffer>,
    /// Row of the page table.
    pub slots: DeviceBuffer,
    pub out_rows: DeviceBuffer,
    /// Which slot state a row has, where it has one.
    pub state_slots: DeviceBuffer,
}

impl RowBuffers {
    /// Buffers for up to `rows` rows, of a plan that looks ahead or not.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(context: &Arc<Context>, rows: usize, looks_ahead: bool) -> Result<Self> {
        let buffer = || DeviceBuffer::new(context, rows * 4);
        Ok(Self {
            tokens: buffer()?,
            positions: buffer()?,
            ends: looks_ahead.then(buffer).transpose()?,
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
            ends: self.ends.as_ref().map_or(0, DeviceBuffer::address),
            slots: self.slots.address(),
            out_rows: self.out_rows.address(),
            state_slots: self.state_slots.address(),
            state: 0,
        }
    }

    /// Says what the rows of the next pass are.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn write(&self, rows: &Rows, stream: &Stream) -> Result<()> {
        self.tokens.write(0, &rows.tokens, stream)?;
        self.write_places(&rows.slots, &rows.positions, stream)?;
        self.out_rows.write(0, &rows.wanted, stream)
    }

    /// Says where the rows of the next pass stand.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn write_places(&self, slots: &[u32], positions: &[u32], stream: &Stream) -> Result<()> {
        self.positions.write(0, positions, stream)?;
        if let Some(ends) = &self.ends {
            ends.write(0, &last_positions(slots, positions), stream)?;
        }
        self.slots.write(0, slots, stream)
    }
}

/// Of each row the last position of those beside it that are of its slot.
fn last_positions(slots: &[u32], positions: &[u32]) -> Vec<u32> {
    let mut rest = positions;
    let runs = slots.chunk_by(|a, b| a == b).flat_map(|its| {
        let (run, more) = rest.split_at(its.len());
        rest = more;
        std::iter::repeat_n(run.last().copied().unwrap_or(0), its.len())
    });
    runs.collect()
}

/// What the rows of a pass are, on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// Those that give logits.
    wanted: Vec<u32>,
}

impl Rows {
    /// Adds tokens of `slot` from position `start` on, of which the `wanted` last give logits.
    pub fn push(&mut self, slot: usize, tokens: &[u32], start: usize, wanted: usize) {
        self.tokens.extend(tokens);
        self.positions.extend((start as u32..).take(tokens.len()));
        self.slots.resize(self.tokens.len(), slot as u32);
        let end = self.tokens.len() as u32;
        self.wanted.extend(end - wanted as u32..end);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds padding up to `rows` rows, which stores nothing and which nothing reads.
    pub fn pad(&mut self, rows: usize) {
        self.tokens.resize(rows, 0);
        self.positions.resize(rows, 0);
        self.slots.resize(rows, PADDING_SLOT);
    }

    /// Has `wanted` rows give logits: for those that nothing reads the first row does again.
    pub fn pad_wanted(&mut self, wanted: usize) {
        self.wanted.resize(wanted, 0);
    }
}
