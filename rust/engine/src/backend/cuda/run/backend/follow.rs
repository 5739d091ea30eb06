//! One card of several that decode together: what another one leads it to.

use super::CudaBackend;
use crate::backend::cuda::run::card::Card;
use crate::error::Result;

impl CudaBackend {
    /// Reads so many queued steps, once they are done; what became of them another card tells.
    ///
    /// # Errors
    /// What became of a step.
    pub(in crate::backend::cuda::run) fn read_steps(&mut self, steps: usize) -> Result<()> {
        self.idle = false;
        for _ in 0..steps {
            self.decoder.ring.await_oldest(&self.decoder.card.stream)?;
            self.read_step()?;
        }
        self.sequences.take_events();
        self.decoder.card.kv.take_error().map_or(Ok(()), Err)
    }

    /// Whether the oldest step that was queued is done, or there is none.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where the card has failed.
    pub(in crate::backend::cuda::run) fn oldest_is_done(&self) -> Result<bool> {
        Ok(self.decoder.ring.oldest_is_done() || self.decoder.card.stream.is_idle()?)
    }

    /// Steps that were queued and not read.
    pub(in crate::backend::cuda::run) fn queued_steps(&self) -> usize {
        self.decoder.ring.queued_steps()
    }

    /// Ends the sequence of `slot` without a word of it: another card has found why.
    pub(in crate::backend::cuda::run) fn stop(&mut self, slot: usize) {
        self.sequences.stop(slot);
    }

    /// Whether something of it waits to be told.
    pub(in crate::backend::cuda::run) fn has_events(&self) -> bool {
        self.sequences.has_events()
    }

    /// Its card.
    pub(in crate::backend::cuda::run) fn card(&mut self) -> &mut Card {
        &mut self.decoder.card
    }
}
