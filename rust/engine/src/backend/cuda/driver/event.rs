//! Events: markers in streams.

use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use crate::error::Result;

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

    /// Marks the present end of a stream.
    ///
    /// # Safety
    /// The stream is live.
    ///
    /// # Errors
    /// [`crate::error::Error::Device`].
    pub(super) unsafe fn record(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the handle is live as long as `self`, the stream by the caller's word.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.handle, stream)
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
