//! Memory that several cards store into for each other.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::exchange::MOST_BLOCKS;
use crate::backend::cuda::lower::lowering::ExchangeAddresses;
use crate::error::Result;
use crate::plan::{Share, MOST_CARDS};

/// One card's.
#[derive(Debug)]
pub struct Exchange {
    share: Share,
    capacity: usize,
    landing: DeviceBuffer,
    flags: DeviceBuffer,
    count: DeviceBuffer,
    abort: Arc<HostBuffer>,
}

impl Exchange {
    /// Takes the memory for exchanges of up to `capacity` numbers of a card.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(
        context: &Arc<Context>,
        share: Share,
        capacity: usize,
        stream: &Stream,
    ) -> Result<Self> {
        // Groups of four begin where they may be copied together.
        let capacity = capacity.next_multiple_of(4);
        let exchange = Self {
            share,
            capacity,
            landing: DeviceBuffer::new(context, 2 * MOST_CARDS * capacity * 4)?,
            flags: DeviceBuffer::new(context, MOST_CARDS * MOST_BLOCKS * 8)?,
            count: DeviceBuffer::new(context, 16)?,
            abort: Arc::new(HostBuffer::new(context, 8)?),
        };
        exchange.landing.fill(0xff, stream)?;
        exchange.flags.fill(0, stream)?;
        exchange.count.fill(0, stream)?;
        stream.synchronize()?;
        Ok(exchange)
    }

    /// Its own addresses; of other cards', those that this one does not know yet, zero.
    pub fn addresses(&self) -> ExchangeAddresses {
        let mut at = ExchangeAddresses {
            count: self.count.address(),
            abort: self.abort.address(),
            capacity: self.capacity,
            ..ExchangeAddresses::default()
        };
        at.landing[self.share.rank] = self.landing.address();
        at.flags[self.share.rank] = self.flags.address();
        at
    }

    /// What ends all its waits.
    pub fn abort(&self) -> Abort {
        Abort(self.abort.clone())
    }
}

/// Ends the waits of a card for others.
#[derive(Debug, Clone)]
pub struct Abort(Arc<HostBuffer>);

impl Abort {
    /// Ends all that are under way, and all that come.
    pub fn raise(&self) {
        if let Some(word) = self.0.words().first() {
            word.store(1, Ordering::Release);
        }
    }
}
