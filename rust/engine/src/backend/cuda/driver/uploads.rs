//! Small asynchronous copies to the card through pinned memory, a double buffer: one half is filled
//! while the card reads the other.

use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use super::event::Event;
use super::host::HostBuffer;
use crate::error::Result;

/// Bytes of a half; what is larger is not small.
const HALF_BYTES: usize = 256 << 10;

/// Where copies begin: no two share a word.
const ALIGN: usize = 16;

#[derive(Debug)]
struct Half {
    memory: HostBuffer,
    /// Bytes that copies were given since the card has read all of it.
    used: usize,
    /// Reached once the card has read what was put there before the other half was begun, where it
    /// was marked then.
    read: Event,
    is_marked: bool,
}

impl Half {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self {
            memory: HostBuffer::new(context, HALF_BYTES)?,
            used: 0,
            read: Event::new(context)?,
            is_marked: false,
        })
    }
}

/// Pinned memory of one stream, taken by the first copy.
#[derive(Debug, Default)]
pub struct Uploads {
    halves: Option<[Half; 2]>,
    /// The half that is being filled.
    current: usize,
}

impl Uploads {
    /// Queues a copy of `bytes` to `address`, behind what is queued on a stream of `context`; they may be
    /// reused at once. Says whether they were few enough.
    ///
    /// # Safety
    /// As many bytes at `address` are of memory of the card that is live until the stream has passed the
    /// copy. The stream is live, is the same in all calls, and has passed them before this is dropped.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], [`crate::Error::Device`].
    pub unsafe fn queue(
        &mut self,
        address: u64,
        bytes: &[u8],
        context: &Arc<Context>,
        stream: sys::CUstream,
    ) -> Result<bool> {
        if bytes.len() > HALF_BYTES {
            return Ok(false);
        }
        let halves = match &mut self.halves {
            Some(halves) => halves,
            none => {
                let half = || Half::new(context);
                none.insert([half()?, half()?])
            }
        };
        if halves[self.current].used + bytes.len() > HALF_BYTES {
            let full = &mut halves[self.current];
            // SAFETY: the caller answers for the stream.
            unsafe { full.read.record(stream) }?;
            full.is_marked = true;
            let next = &mut halves[1 - self.current];
            if next.is_marked {
                next.read.synchronize()?;
            }
            (next.used, next.is_marked) = (0, false);
            self.current = 1 - self.current;
        }
        let half = &mut halves[self.current];
        let place = half.memory.place(half.used, bytes.len())?;
        half.used = (half.used + bytes.len()).next_multiple_of(ALIGN);
        // SAFETY: `place` is as large, and behind all that was queued since the card has read this half.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        // SAFETY: the caller answers for the target; the source stays as it is until `read` is reached,
        // and freeing it waits for the stream.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, place.cast(), bytes.len(), stream)
        })?;
        Ok(true)
    }
}
