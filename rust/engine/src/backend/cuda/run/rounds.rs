//! Which drafts a step can verify.

use super::backend::CudaBackend;
use crate::backend::{Backend, Draft, ROUND_ROWS};
use crate::error::{Error, Result};

impl CudaBackend {
    /// Refuses drafts that no step can verify.
    pub(super) fn check_round(
        &self,
        drafts: &[Draft],
        rows: usize,
        sequences: usize,
    ) -> Result<()> {
        let n_vocab = self.limits().n_vocab;
        let mut tokens = drafts.iter().flat_map(|draft| &draft.tokens);
        let wrong = if let Some(token) = tokens.find(|token| **token as usize >= n_vocab) {
            format!("token {token} of {n_vocab} is drafted")
        } else if !self.is_settled() || rows > ROUND_ROWS.max(sequences) {
            format!(
                "{rows} rows of drafts behind a step: {}",
                !self.is_settled()
            )
        } else if !self.decoder.card.plan().states.is_empty() {
            "a draft for a state, which keeps it".into()
        } else {
            return Ok(());
        };
        Err(Error::Internal(wrong))
    }
}
