//! Inspection of a card's backend.

use std::sync::Arc;

use super::{profile, verify};
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::{
    GoOn, GraphCheck, GraphProfile, GraphQuestion, Inspect, SharedStats, StepCheck,
};
use crate::error::Result;

impl Inspect for CudaBackend {
    fn graph_stats(&self) -> Arc<SharedStats> {
        self.stats().clone()
    }

    fn verify_graph(
        &mut self,
        slots: &[usize],
        check: &GraphCheck,
        go_on: GoOn<'_>,
    ) -> Result<Vec<StepCheck>> {
        verify::verify(self, slots, check, go_on)
    }

    fn profile_graph(&mut self, slots: &[usize], question: &GraphQuestion) -> Result<GraphProfile> {
        profile::profile(self, slots, question)
    }
}
