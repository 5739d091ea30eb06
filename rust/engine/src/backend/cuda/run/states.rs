//! Recurrent states of sequences on the card.

use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::lowering::RoundAddresses;
use crate::backend::cuda::lower::rounds::places;
use crate::backend::storage::check_bytes;
use crate::backend::{not_below, ROUND_ROWS};
use crate::error::Result;
use crate::plan::Plan;

/// The states of all slots.
#[derive(Debug)]
pub struct StatePool {
    /// By the plan's states their width, and `[n_slots][width]` f32.
    states: Vec<(usize, DeviceBuffer)>,
    n_slots: usize,
    /// None of a plan without states.
    round: Option<Round>,
}

/// What rounds keep until it is known how many rows count: see [`RoundAddresses`].
#[derive(Debug)]
struct Round {
    kept: Vec<DeviceBuffer>,
    places: DeviceBuffer,
    accepted: DeviceBuffer,
}

impl Round {
    fn new(
        context: &Arc<Context>,
        stream: &Stream,
        plan: &Plan,
        states: &[(usize, DeviceBuffer)],
    ) -> Result<Self> {
        let kept = plan.kept_widths().into_iter();
        let kept =
            kept.map(|width| poisoned(context, width.saturating_mul(ROUND_ROWS * 4), stream));
        let kept = kept.collect::<Result<Vec<_>>>()?;
        let of = |id: usize| [states[id].1.address(), kept[id].address()];
        let table: Vec<[u64; 2]> = places(plan).iter().map(|id| of(id.0)).collect();
        let places = DeviceBuffer::new(context, size_of_val(&*table))?;
        places.write(0, &table, stream)?;
        Ok(Self {
            kept,
            places,
            accepted: DeviceBuffer::new(context, ROUND_ROWS * 4)?,
        })
    }

    fn buffers(&self) -> impl Iterator<Item = &DeviceBuffer> {
        self.kept.iter().chain([&self.places, &self.accepted])
    }
}

/// A buffer of which every number is not-a-number: a kernel that reads what none wrote is seen.
pub fn poisoned(context: &Arc<Context>, bytes: usize, stream: &Stream) -> Result<DeviceBuffer> {
    let buffer = DeviceBuffer::new(context, bytes)?;
    buffer.fill(0xff, stream)?;
    Ok(buffer)
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
            states.push((state.width, poisoned(context, bytes, stream)?));
        }
        let round = (!states.is_empty()).then(|| Round::new(context, stream, plan, &states));
        Ok(Self {
            round: round.transpose()?,
            states,
            n_slots,
        })
    }

    /// Where they lie.
    pub fn addresses(&self) -> Vec<u64> {
        self.states.iter().map(|(_, b)| b.address()).collect()
    }

    /// Where what rounds keep lies.
    pub fn round_addresses(&self) -> RoundAddresses {
        let of = |round: &Round| RoundAddresses {
            kept: round.kept.iter().map(DeviceBuffer::address).collect(),
            places: round.places.address(),
            accepted: round.accepted.address(),
        };
        self.round.as_ref().map(of).unwrap_or_default()
    }

    /// Bytes of all of them, and of what rounds keep.
    pub fn bytes(&self) -> usize {
        let states = self.states.iter().map(|(_, b)| b);
        let round = self.round.iter().flat_map(Round::buffers);
        states.chain(round).map(DeviceBuffer::bytes).sum()
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
