//! Memory of the process that is there already.
//!
//! What takes long about memory that a card copies to and from is not to lock its pages but to have them:
//! of 8 MiB 6 ms, or 2 ms in huge pages, where locking takes 0.7 ms (an H100's host). So that may be done
//! on another thread, ahead of its use.

use memmap2::MmapMut;

use super::HostMemory;
use crate::error::{Error, Result};

/// What a huge page has, and begins at a multiple of.
const HUGE: usize = 2 << 20;

/// Anonymous memory, each page of which was written: it is zeroed, and there.
#[derive(Debug)]
pub struct Touched {
    map: MmapMut,
    first: usize,
    bytes: usize,
}

impl Touched {
    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(bytes: usize) -> Result<Self> {
        let no_room = || Error::no_room("a kept prefix", bytes);
        let spare = if bytes < HUGE { 0 } else { HUGE };
        let length = bytes.max(1).checked_add(spare).ok_or_else(no_room)?;
        let mut map = MmapMut::map_anon(length).map_err(|_| no_room())?;
        // In small pages it works too.
        #[cfg(target_os = "linux")]
        drop(map.advise(memmap2::Advice::HugePage));
        let first = match spare {
            0 => 0,
            _ => map.as_ptr().align_offset(HUGE).min(spare),
        };
        map[first..][..bytes].fill(0);
        Ok(Self { map, first, bytes })
    }
}

impl HostMemory for Touched {
    fn bytes(&self) -> &[u8] {
        &self.map[self.first..][..self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.first..][..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_bytes_and_begins_where_huge_pages_do() {
        for bytes in [0, 1, 4095, 3 << 20] {
            let mut memory = Touched::new(bytes).unwrap();
            assert_eq!(memory.bytes(), vec![0; bytes]);
            memory.bytes_mut().fill(7);
            assert!(bytes < HUGE || memory.bytes().as_ptr().align_offset(HUGE) == 0);
        }
        let text = Touched::new(usize::MAX).unwrap_err().to_string();
        assert!(text.contains("a kept prefix"), "{text}");
    }
}
