//! Streams of work, and marks in them.

use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use crate::error::Result;

/// A queue of work on the card. Not the legacy default stream, which cannot be captured.
#[derive(Debug)]
pub struct Stream {
    pub(in crate::backend::cuda) context: Arc<Context>,
    pub(super) handle: sys::CUstream,
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
            return Ok(Self {
                context: context.clone(),
                handle,
            });
        }
        context.bind()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes one handle, here.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut handle, flags)
        })?;
        Ok(Self {
            context: context.clone(),
            handle,
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

/// A mark in a stream, with a time.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: event handles may be used from any thread that has the context current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle, here.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut handle, 0)
        })?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Marks the present end of `stream`.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles are live as long as their owners.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.handle, stream.handle)
        })
    }

    /// Waits until the mark is reached.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the handle is live as long as `self`.
        check("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(self.handle)
        })
    }

    /// Microseconds from `earlier` to this mark; both are reached.
    pub fn micros_since(&self, earlier: &Event) -> Result<f64> {
        let mut ms = 0.0f32;
        // SAFETY: both handles are live; the driver writes one number, here.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&mut ms, earlier.handle, self.handle)
        })?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.takes_back() {
            // SAFETY: destroys what `new` created, once.
            let _ = check("cuEventDestroy_v2", unsafe {
                sys::cuEventDestroy_v2(self.handle)
            });
        }
    }
}
