//! Pages and states on the card, copied out and back.

use super::backend::CudaBackend;
use crate::backend::cuda::driver::host::PinnedBytes;
use crate::backend::{HostMemory, Kind, Prefaulted, Storage};
use crate::error::Result;

impl Storage for CudaBackend {
    fn layout(&self) -> &'static str {
        match self.decoder.card.plan().is_long(self.limits.n_ctx) {
            true => "cuda, long",
            false => "cuda",
        }
    }

    fn page_bytes(&self, kind: Kind) -> usize {
        self.decoder.card.kv.pages.page_bytes(kind)
    }

    fn state_bytes(&self) -> usize {
        self.decoder.card.states.slot_bytes()
    }

    fn read_page(&mut self, kind: Kind, page: u32, to: &mut [u8]) -> Result<()> {
        let card = &self.decoder.card;
        card.kv.read_page(kind, page, to, &card.stream)
    }

    fn write_page(&mut self, kind: Kind, page: u32, from: &[u8]) -> Result<()> {
        let card = &self.decoder.card;
        card.kv.write_page(kind, page, from, &card.stream)
    }

    fn read_state(&mut self, slot: usize, to: &mut [u8]) -> Result<()> {
        let card = &self.decoder.card;
        card.states.read_bytes(slot, to, &card.stream)
    }

    fn write_state(&mut self, slot: usize, from: &[u8]) -> Result<()> {
        let card = &self.decoder.card;
        card.states.write_bytes(slot, from, &card.stream)
    }

    fn host_memory(&self, memory: Prefaulted) -> Result<Box<dyn HostMemory>> {
        let context = &self.decoder.card.context;
        Ok(Box::new(PinnedBytes::new(context, memory)?))
    }
}
