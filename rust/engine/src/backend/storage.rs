//! The parts of a sequence that can be copied out of a backend and back: pages of keys and values, and
//! states.

use super::{Kind, Prefaulted};
use crate::error::{Error, Result};

/// Bytes of the host's memory, of the kind that a device copies to and from fastest.
pub trait HostMemory: std::fmt::Debug + Send + Sync {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Reads and writes of pages and states, each behind everything that was queued before.
pub trait Storage {
    /// By which layout bytes lie in a page and a state: what one backend reads, another one of the
    /// same layout, type of keys and values, and model may write.
    fn layout(&self) -> &'static str;

    /// Bytes of a page in all layers of a kind; none where there are no such layers.
    fn page_bytes(&self, kind: Kind) -> usize;

    /// Bytes of the states of one sequence; none where no layer keeps one.
    fn state_bytes(&self) -> usize;

    /// Copies what a page holds in all layers of its kind.
    ///
    /// # Errors
    /// [`Error::Internal`] for a page that does not exist or another number of bytes,
    /// [`Error::Device`].
    fn read_page(&mut self, kind: Kind, page: u32, to: &mut [u8]) -> Result<()>;

    /// The reverse of [`Storage::read_page`].
    ///
    /// # Errors
    /// As there.
    fn write_page(&mut self, kind: Kind, page: u32, from: &[u8]) -> Result<()>;

    /// Copies the states of the sequence in `slot`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a slot that does not exist, [`Error::Internal`] for another number of
    /// bytes, [`Error::Device`].
    fn read_state(&mut self, slot: usize, to: &mut [u8]) -> Result<()>;

    /// The reverse of [`Storage::read_state`].
    ///
    /// # Errors
    /// As there.
    fn write_state(&mut self, slot: usize, from: &[u8]) -> Result<()>;

    /// Has memory of the host ready for a page or a state: locked, where a device wants that.
    ///
    /// # Errors
    /// [`Error::Memory`].
    fn host_memory(&self, memory: Prefaulted) -> Result<Box<dyn HostMemory>> {
        Ok(Box::new(memory))
    }
}

/// Checks that `found` bytes are those of a page or a state.
///
/// # Errors
/// [`Error::Internal`].
pub(super) fn check_bytes(what: &str, found: usize, wanted: usize) -> Result<()> {
    match found == wanted {
        true => Ok(()),
        false => Err(Error::Internal(format!(
            "{found} bytes for a {what} of {wanted}"
        ))),
    }
}
