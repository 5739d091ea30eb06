//! Recurrent states of sequences on the card.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::not_below;
use crate::backend::storage::check_bytes;
use crate::error::Result;
use crate::plan::Plan;

/// The states of all slots.
#[derive(Debug)]
pub struct StatePool {
    /// By the plan's states their width, and `[n_slots][width]` f32.
    states: Vec<(usize, DeviceBuffer)>,
    n_slots: usize,
}

impl StatePool {
    /// Takes their memory. None has a meaning before its sequence's first token.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        plan: &Plan,
        n_slots: usize,
    ) -> Result<Self> {
        let mut states = Vec::with_capacity(plan.states.len());
        for state in &plan.states {
            let bytes = state.width.saturating_mul(n_slots).saturating_mul(4);
            let buffer = DeviceBuffer::new(context, bytes)?;
            // Not numbers, so that one that is read before is seen.
            buffer.fill(0xff, stream)?;
            states.push((state.width, buffer));
        }
        Ok(Self { states, n_slots })
    }

    /// Where they lie.
    pub fn addresses(&self) -> Vec<u64> {
        self.states.iter().map(|(_, b)| b.address()).collect()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.states.iter().map(|(_, b)| b.bytes()).sum()
    }

    fn check(&self, slot: usize) -> Result<()> {
        match slot < self.n_slots {
            true => Ok(()),
            false => Err(not_below("slot", slot, self.n_slots)),
        }
    }

    /// The states of `slot`, one after another, behind everything queued.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a slot that does not exist, [`crate::Error::Device`].
    pub fn read(&self, slot: usize, stream: &Stream) -> Result<Vec<f32>> {
        self.check(slot)?;
        let mut all = Vec::new();
        for (width, buffer) in &self.states {
            let mut values = vec![0.0f32; *width];
            buffer.read(slot * width * 4, &mut values, stream)?;
            all.extend(values);
        }
        Ok(all)
    }

    /// Bytes of the states of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.states.iter().map(|(width, _)| width * 4).sum()
    }

    /// The bytes of the states of `slot`, one after another, behind everything queued.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a slot that does not exist, [`crate::Error::Internal`] for
    /// another number of bytes, [`crate::Error::Device`].
    pub fn read_bytes(&self, slot: usize, to: &mut [u8], stream: &Stream) -> Result<()> {
        self.check(slot)?;
        check_bytes("state", to.len(), self.slot_bytes())?;
        let mut parts = Vec::new();
        let mut rest = to;
        for (width, buffer) in &self.states {
            let (part, more) = rest.split_at_mut(width * 4);
            parts.push((buffer, slot * width * 4, part));
            rest = more;
        }
        DeviceBuffer::read_parts(&mut parts, stream)
    }

    /// The reverse of [`StatePool::read_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn write_bytes(&self, slot: usize, from: &[u8], stream: &Stream) -> Result<()> {
        self.check(slot)?;
        check_bytes("state", from.len(), self.slot_bytes())?;
        let mut parts = Vec::new();
        let mut rest = from;
        for (width, buffer) in &self.states {
            let (part, more) = rest.split_at(width * 4);
            parts.push((buffer, slot * width * 4, part));
            rest = more;
        }
        DeviceBuffer::write_parts(&parts, stream)
    }

    /// Makes the states of `slot` zeros, as those of a sequence that begins.
    ///
    /// # Errors
    /// As [`StatePool::write`].
    pub fn clear(&self, slot: usize, stream: &Stream) -> Result<()> {
        let width = self.states.iter().map(|(width, _)| width).sum();
        self.write(slot, &vec![0.0; width], stream)
    }

    /// Gives `slot` states that [`StatePool::read`] gave, of any slot, behind everything queued.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a slot that does not exist or another number of values,
    /// [`crate::Error::Device`].
    pub fn write(&self, slot: usize, values: &[f32], stream: &Stream) -> Result<()> {
        self.check(slot)?;
        let width: usize = self.states.iter().map(|(width, _)| width).sum();
        crate::backend::check_state(values.len(), width)?;
        let mut rest = values;
        for (width, buffer) in &self.states {
            let (values, more) = rest.split_at(*width);
            buffer.write(slot * width * 4, values, stream)?;
            rest = more;
        }
        Ok(())
    }
}
