//! Streams of work.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use super::event::Event;
use super::host::HostBuffer;
use super::uploads::Uploads;
use crate::error::{Error, Result};

/// A queue of work on the card. Not the legacy default stream, which cannot be captured.
#[derive(Debug)]
pub struct Stream {
    pub(in crate::backend::cuda) context: Arc<Context>,
    pub(super) handle: sys::CUstream,
    uploads: Mutex<Uploads>,
}

// SAFETY: stream handles may be used from any thread that has the context current.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        if context.is_described() {
            return Ok(Self::of(context, handle));
        }
        context.bind()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes one handle, here.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut handle, flags)
        })?;
        Ok(Self::of(context, handle))
    }

    fn of(context: &Arc<Context>, handle: sys::CUstream) -> Self {
        Self {
            context: context.clone(),
            handle,
            uploads: Mutex::default(),
        }
    }

    /// [`Uploads::queue`] of this stream.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub(super) unsafe fn upload(&self, address: u64, bytes: &[u8]) -> Result<bool> {
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller answers for the address; the stream is the one that owns them.
        unsafe { uploads.queue(address, bytes, &self.context, self.handle) }
    }

    /// Marks the present end.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the handle is live as long as `self`.
        unsafe { event.record(self.handle) }
    }

    /// Queues zeroing a 64-bit word of host memory.
    ///
    /// # Errors
    /// [`Error::Internal`] for a word outside it, [`Error::Device`].
    pub fn clear_word(&self, host: &HostBuffer, index: usize) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        if index >= host.bytes / 8 {
            return Err(Error::Internal(format!(
                "word {index} of a host buffer of {} bytes",
                host.bytes
            )));
        }
        self.context.bind()?;
        let at = host.address() + 8 * index as u64;
        // SAFETY: the bytes are inside the buffer, which is live; freeing it waits for the card.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(at, 0, 8, self.handle)
        })
    }

    /// Waits until all that is queued is done.
    pub fn synchronize(&self) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the handle is live as long as `self`.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(self.handle)
        })
    }

    /// Whether all that is queued is done.
    ///
    /// # Errors
    /// [`Error::Device`] where something queued has failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: a live stream handle.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.takes_back() {
            // SAFETY: the handle is live as long as `self`.
            let _ = check("cuStreamSynchronize", unsafe {
                sys::cuStreamSynchronize(self.handle)
            });
            // SAFETY: destroys what `new` created, once.
            let _ = check("cuStreamDestroy_v2", unsafe {
                sys::cuStreamDestroy_v2(self.handle)
            });
        }
    }
}
