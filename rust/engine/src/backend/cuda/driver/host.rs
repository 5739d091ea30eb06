//! Memory of the host that the card sees. Each owner frees what it took.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use crate::backend::{HostMemory, Prefaulted};
use crate::error::{Error, Result};

/// Pinned host memory that the card can read and write too.
#[derive(Debug)]
pub struct HostBuffer {
    context: Arc<Context>,
    pub(super) pointer: *mut u8,
    address: u64,
    pub(super) bytes: usize,
}

// SAFETY: the memory is owned, and reached through `&self` by atomics and through `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Takes `bytes`, zeroed.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        if context.is_described() {
            return Ok(Self {
                context: context.clone(),
                pointer: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
                address: context.ledger.address(),
                bytes: 0,
            });
        }
        context.bind()?;
        let mut pointer = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the driver writes one pointer, here.
        check("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&mut pointer, bytes, flags)
        })?;
        let mut buffer = Self {
            context: context.clone(),
            pointer: pointer.cast(),
            address: 0,
            bytes,
        };
        // SAFETY: the pointer was taken just above, mapped; the driver writes one address.
        check("cuMemHostGetDevicePointer_v2", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut buffer.address, pointer, 0)
        })?;
        // SAFETY: it is new, so nothing queued on the card uses it.
        unsafe { buffer.bytes_mut() }.fill(0);
        Ok(buffer)
    }

    /// Where the card sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where `bytes` bytes from `offset` on are.
    ///
    /// # Errors
    /// [`Error::Internal`] where there are not as many.
    pub fn place(&mut self, offset: usize, bytes: usize) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: inside the allocation.
            Some(end) if end <= self.bytes => Ok(unsafe { self.pointer.add(offset) }),
            _ => Err(Error::Internal(format!(
                "bytes {offset} + {bytes} of a host buffer of {}",
                self.bytes
            ))),
        }
    }

    /// The memory.
    ///
    /// # Safety
    /// While the slice lives, nothing queued on the card reads or writes it.
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pointer is valid for `bytes` bytes while `self` lives; where there are none
        // it is dangling and aligned. The caller keeps the card away.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// The memory as 64-bit words that the card may be writing.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as above, and pinned memory is page-aligned; atomics may change under a shared
        // borrow.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.bytes / 8) }
    }
}

/// Memory of the process, pinned, that the card is never asked to reach behind the host's back: copies to
/// and from it are waited for.
#[derive(Debug)]
pub struct PinnedBytes {
    context: Arc<Context>,
    memory: Prefaulted,
}

impl PinnedBytes {
    /// Pins `memory`.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, mut memory: Prefaulted) -> Result<Self> {
        context.bind()?;
        let bytes = memory.bytes_mut();
        // SAFETY: the memory is there, and stays until `drop` has unpinned it.
        check("cuMemHostRegister_v2", unsafe {
            sys::cuMemHostRegister_v2(
                bytes.as_mut_ptr().cast(),
                bytes.len().max(1),
                sys::CU_MEMHOSTREGISTER_PORTABLE,
            )
        })?;
        Ok(Self {
            context: context.clone(),
            memory,
        })
    }
}

impl HostMemory for PinnedBytes {
    fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        // Where the context is gone, so is the lock.
        if self.context.takes_back() && self.context.bind().is_ok() {
            // SAFETY: unpins what `new` pinned, once.
            let _ = check("cuMemHostUnregister", unsafe {
                sys::cuMemHostUnregister(self.memory.bytes_mut().as_mut_ptr().cast())
            });
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.context.takes_back() {
            // SAFETY: frees what `new` took, once; the driver waits for work that uses it.
            let _ = check("cuMemFreeHost", unsafe {
                sys::cuMemFreeHost(self.pointer.cast())
            });
        }
    }
}
