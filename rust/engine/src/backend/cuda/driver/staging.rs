//! Uploads of a file's bytes through two pinned slabs, a double buffer: one is filled while the
//! other is copied.

use std::sync::Arc;

use super::buffer::DeviceBuffer;
use super::context::Context;
use super::event::Event;
use super::host::HostBuffer;
use super::stream::Stream;
use crate::error::{Error, Result};

/// Bytes of a slab, where there are as many: a few milliseconds of a transfer.
const SLAB_BYTES: usize = 32 << 20;

/// Threads that fill a slab: one alone copies more slowly than a card takes.
const THREADS: usize = 4;

/// From here on a copy is worth threads.
const LEAST_THREADED: usize = 1 << 20;

/// Pinned memory and as much on the card.
#[derive(Debug)]
pub struct Slab {
    host: HostBuffer,
    device: DeviceBuffer,
    /// Reached once the card has read what is in `host`.
    read: Option<Event>,
}

/// Two slabs, used one after the other.
#[derive(Debug)]
pub struct Staging {
    slabs: [Slab; 2],
    bytes: usize,
    next: usize,
}

impl Staging {
    /// Slabs for pieces of at least `least` bytes, of which no more than `most` are to be copied at
    /// once.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, least: usize, most: usize) -> Result<Self> {
        let bytes = SLAB_BYTES.min(most).max(least);
        let slab = || -> Result<Slab> {
            Ok(Slab {
                host: HostBuffer::new(context, bytes)?,
                device: DeviceBuffer::new(context, bytes)?,
                read: None,
            })
        };
        Ok(Self {
            slabs: [slab()?, slab()?],
            bytes,
            next: 0,
        })
    }

    /// Bytes of a slab.
    pub fn slab_bytes(&self) -> usize {
        self.bytes
    }

    /// The slab that was used longest ago.
    pub fn oldest(&mut self) -> &mut Slab {
        self.next ^= 1;
        &mut self.slabs[self.next]
    }
}

impl Slab {
    /// Where it lies on the card.
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// Copies each piece to its offset in the slab, once the card has read what was there, and
    /// queues the slab's transfer to the card.
    pub fn copy(&mut self, pieces: &[(usize, &[u8])], stream: &Stream) -> Result<()> {
        self.wait()?;
        // SAFETY: the card has read it, and it is queued nowhere else.
        let host = unsafe { self.host.bytes_mut() };
        let mut end = 0;
        for (offset, piece) in pieces {
            let room = host.len();
            let to = host
                .get_mut(*offset..*offset + piece.len())
                .ok_or_else(|| {
                    Error::Internal(format!(
                        "bytes {offset} + {} of a slab of {room}",
                        piece.len()
                    ))
                })?;
            fill(to, piece);
            end = end.max(*offset + piece.len());
        }
        let read = Event::new(&stream.context)?;
        // SAFETY: only this function writes to `host`, and its drop frees it: both wait for `read`.
        unsafe { self.device.write_pinned(0, &self.host, end, stream) }?;
        let marked = stream.record(&read);
        if marked.is_err() {
            // Without the mark, all that is queued is waited for.
            stream.synchronize()?;
        }
        self.read = Some(read);
        marked
    }

    /// Waits until the card has read what is in `host`.
    fn wait(&mut self) -> Result<()> {
        self.read.take().map_or(Ok(()), |read| read.synchronize())
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // An error is one of the context: nothing runs there any more.
        let _ = self.wait();
    }
}

/// Copies on a few threads: what is read may have to come from the disk, page by page.
fn fill(to: &mut [u8], from: &[u8]) {
    if from.len() < LEAST_THREADED {
        return to.copy_from_slice(from);
    }
    let part = from.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_copy_is_whole() {
        for n in [0, 1, LEAST_THREADED - 1, LEAST_THREADED, LEAST_THREADED + 5] {
            let from: Vec<u8> = (0..n).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![0; n];
            fill(&mut to, &from);
            assert!(to == from, "{n}");
        }
    }
}
