//! Inspection of the graphs of a backend.

use std::sync::Arc;

use super::graphs::{GoOn, GraphCheck, GraphProfile, GraphQuestion, SharedStats, StepCheck};
use crate::error::Result;

/// What a backend lets one look at whose decode steps are captured.
pub trait Inspect {
    /// What became of decode steps so far.
    fn graph_stats(&self) -> Arc<SharedStats>;

    /// Compares captured steps with the same steps launched kernel by kernel, from the same state, on
    /// sequences in `slots`, which have pages for the tokens and nothing else to do.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a size that is not captured; [`crate::Error::Cancelled`].
    fn verify_graph(
        &mut self,
        slots: &[usize],
        check: &GraphCheck,
        go_on: GoOn<'_>,
    ) -> Result<Vec<StepCheck>>;

    /// What the captured step of a batch consists of, and how long its parts take, on sequences in
    /// `slots`, which have pages for `position` and some more tokens.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a size that is not captured.
    fn profile_graph(&mut self, slots: &[usize], question: &GraphQuestion) -> Result<GraphProfile>;
}
