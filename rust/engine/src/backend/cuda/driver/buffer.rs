//! Memory on the card. Each owner frees what it took.

use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use super::host::HostBuffer;
use super::stream::Stream;
use crate::error::{Error, Result};

/// Bytes on the card.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Takes `bytes` (at least one).
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if context.is_described() {
            address = context.ledger.address();
        } else {
            context.bind()?;
            let free = context.memory().map_or(0, |m| m.0);
            // SAFETY: the driver writes one address, here.
            check("cuMemAlloc_v2", unsafe {
                sys::cuMemAlloc_v2(&mut address, bytes.max(1))
            })
            .map_err(|e| match e {
                Error::Memory { .. } => Error::Memory {
                    need: format!("{bytes} bytes of device memory needed, {free} free"),
                    remedy: "free memory on the card, or use a smaller n_ctx or max_batch".into(),
                },
                e => e,
            })?;
        }
        context.ledger.take(bytes);
        Ok(Self {
            context: context.clone(),
            address,
            bytes,
        })
    }

    /// Where it lies on the card.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues filling the whole buffer with `value`.
    pub fn fill(&self, value: u8, stream: &Stream) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the bytes are inside the buffer, which is live; freeing it waits for the card.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.address, value, self.bytes, stream.handle)
        })
    }

    /// Copies `data` to byte `offset`, after everything queued on `stream`, and returns when `data` may
    /// be reused: at once, unless it is large.
    pub fn write<T: bytemuck::Pod>(
        &self,
        offset: usize,
        data: &[T],
        stream: &Stream,
    ) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.within(offset, bytes.len())?;
        if bytes.is_empty() || self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        // SAFETY: `within` has held the range to the buffer; freeing it waits for the card.
        if unsafe { stream.upload(address, bytes) }? {
            return Ok(());
        }
        // SAFETY: as above; the host bytes live until the wait below.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), stream.handle)
        })?;
        // From pageable memory the driver may still read `data`.
        stream.synchronize()
    }

    /// Copies bytes from `offset` into `data`, after everything queued on `stream`.
    pub fn read<T: bytemuck::Pod>(
        &self,
        offset: usize,
        data: &mut [T],
        stream: &Stream,
    ) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        self.within(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        // SAFETY: `within` has held the range to the buffer; the host bytes live until the wait
        // below.
        check("cuMemcpyDtoHAsync_v2", unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                address,
                bytes.len(),
                stream.handle,
            )
        })?;
        stream.synchronize()
    }

    /// Reads of bytes of buffers, from their offsets on, that wait for the card once, after all.
    ///
    /// # Errors
    /// [`Error::Internal`] for bytes outside a buffer, [`Error::Device`].
    pub fn read_parts(
        parts: &mut [(&DeviceBuffer, usize, &mut [u8])],
        stream: &Stream,
    ) -> Result<()> {
        let queued = parts.iter_mut().try_for_each(|(buffer, offset, part)| {
            buffer.within(*offset, part.len())?;
            if part.is_empty() {
                return Ok(());
            }
            buffer.context.bind()?;
            let address = buffer.address + *offset as u64;
            // SAFETY: `within` has held the range to the buffer; the host bytes live until the wait
            // below, which is reached where a copy fails too.
            check("cuMemcpyDtoHAsync_v2", unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    part.as_mut_ptr().cast(),
                    address,
                    part.len(),
                    stream.handle,
                )
            })
        });
        let waited = stream.synchronize();
        queued.and(waited)
    }

    /// The reverse of [`DeviceBuffer::read_parts`].
    ///
    /// # Errors
    /// As there.
    pub fn write_parts(parts: &[(&DeviceBuffer, usize, &[u8])], stream: &Stream) -> Result<()> {
        let queued = parts.iter().try_for_each(|(buffer, offset, part)| {
            buffer.within(*offset, part.len())?;
            if part.is_empty() {
                return Ok(());
            }
            buffer.context.bind()?;
            let address = buffer.address + *offset as u64;
            // SAFETY: as in `read_parts`.
            check("cuMemcpyHtoDAsync_v2", unsafe {
                sys::cuMemcpyHtoDAsync_v2(address, part.as_ptr().cast(), part.len(), stream.handle)
            })
        });
        let waited = stream.synchronize();
        queued.and(waited)
    }

    /// Queues a copy of `bytes` from byte `from` to byte `to`; the two ranges are apart.
    ///
    /// # Errors
    /// [`Error::Internal`] for ranges outside the buffer or into one another, [`Error::Device`].
    pub fn copy_within(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<()> {
        self.within(from, bytes)?;
        self.within(to, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        if from.abs_diff(to) < bytes {
            let ranges = format!("{bytes} bytes from {from} to {to} of one device buffer");
            return Err(Error::Internal(ranges));
        }
        self.context.bind()?;
        let (source, target) = (self.address + from as u64, self.address + to as u64);
        // SAFETY: `within` has held both ranges to the buffer, which is live; freeing it waits for the
        // card.
        check("cuMemcpyDtoDAsync_v2", unsafe {
            sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream.handle)
        })
    }

    /// Queues a copy from pinned host memory.
    ///
    /// # Safety
    /// Until the stream has passed the copy, nobody writes to `host` or frees it.
    ///
    /// # Errors
    /// [`Error::Internal`] where either has less than `bytes` there, [`Error::Device`].
    pub unsafe fn write_pinned(
        &self,
        offset: usize,
        host: &HostBuffer,
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.within(offset, bytes)?;
        if bytes > host.bytes {
            return Err(Error::Internal(format!(
                "{bytes} bytes of a host buffer of {}",
                host.bytes
            )));
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        // SAFETY: both ranges are held above; the caller keeps the host bytes as they are.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, host.pointer.cast(), bytes, stream.handle)
        })
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Internal(format!(
                "bytes {offset} + {bytes} of a device buffer of {}",
                self.bytes
            ))),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.context.ledger.give(self.bytes);
        if self.context.takes_back() {
            // SAFETY: frees what `new` took, once; the driver waits for work that uses it.
            let _ = check("cuMemFree_v2", unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::DeviceInfo;
    use super::*;

    #[test]
    fn buffers_of_a_described_card_are_counted_and_take_no_work() {
        let info = DeviceInfo::of_arch("sm_90", 132).unwrap();
        let card = Context::described(info);
        let stream = Stream::new(&card).unwrap();
        let a = DeviceBuffer::new(&card, 1000).unwrap();
        let b = DeviceBuffer::new(&card, 3 << 20).unwrap();
        assert_ne!(a.address(), b.address());
        assert_eq!(card.taken(), (1024 + (3 << 20), 1024 + (3 << 20)));
        drop(b);
        assert_eq!(card.taken(), (1024, 1024 + (3 << 20)));
        // Nothing is behind it, and no work can be sent there.
        assert_eq!(a.fill(0, &stream), Ok(()));
        assert!(card.bind().unwrap_err().to_string().contains("not there"));
    }
}
