//! What a load uploads, compiles and captures.

use super::{CudaBackend, Key, Progress};
use crate::backend::cuda::driver::ahead::spared;
use crate::backend::cuda::driver::source::Variant;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::run::dispatch::default_sizes;
use crate::backend::cuda::run::ready::Way;
use crate::backend::{RunnerOptions, Weights};
use crate::error::Result;

impl CudaBackend {
    /// Uploads the model and captures the step of one row.
    ///
    /// # Errors
    /// As [`CudaBackend::new`].
    pub(in crate::backend::cuda::run) fn load(
        &mut self,
        weights: &dyn Weights,
        options: &RunnerOptions,
        progress: Progress<'_>,
    ) -> Result<()> {
        let keys = match self.looks_ahead() {
            true => Vec::new(),
            false => self.dispatch.at_load(options.gpu.warmup),
        };
        let mut specs = Vec::new();
        for key in &keys {
            specs.extend(self.decoder.specs(*key)?);
        }
        if options.gpu.warmup {
            // So no running request waits for a compiler when others join.
            specs.extend(self.serving_specs()?);
        }
        let told = |done, total| progress("weights".into(), done, total);
        self.load_times = self.decoder.card.load(weights, &specs, &told)?;
        let total = keys.len() as u64;
        for (done, key) in (0..).zip(keys) {
            let gib = self.decoder.card.context.memory()?.0 as f64 / f64::from(1 << 30);
            let stage = format!("capture batch {}, {gib:.1} GiB free", key.rows);
            progress(stage, done, total)?;
            self.prepare(key)?;
        }
        // Of several cards one compiles, the others find it in the cache.
        let share = self.decoder.card.plan().share;
        let spared = match share {
            Some(share) if share.rank > 0 => 0,
            _ => spared(),
        };
        if !options.gpu.warmup && spared > 0 {
            // The first prompts find them compiled, or being compiled.
            let serving = self.serving_specs()?;
            self._ahead = Some(self.decoder.card.compile_ahead(serving, spared));
        }
        Ok(())
    }

    /// What prompts and steps consist of, of any length and any number of sequences; of a model that has
    /// none, what texts do.
    fn serving_specs(&self) -> Result<Vec<Spec>> {
        let n_slots = self.limits.n_slots;
        if self.looks_ahead() {
            return self.chunks.hidden_specs(&self.decoder, self.chunks.most);
        }
        let mut specs = self.chunks.prompt_specs(&self.decoder, self.limits.n_ctx)?;
        // Up to eight rows each number has kernels of its own; above, a few share some.
        let mut rows: Vec<usize> = (1..=n_slots.min(8)).collect();
        rows.extend(default_sizes(n_slots));
        rows.extend(self.dispatch.sizes());
        rows.sort_unstable();
        rows.dedup();
        for rows in rows {
            specs.extend(self.decoder.specs(self.dispatch.way(rows))?);
        }
        Ok(specs)
    }

    /// Every kernel that loading, prompts and steps may run.
    ///
    /// # Errors
    /// [`Error::Internal`].
    pub fn variants(&self) -> Result<Vec<Variant>> {
        let mut specs = self.serving_specs()?;
        if !self.looks_ahead() {
            specs.extend(self.chunks.logits_specs(&self.decoder, self.limits.n_ctx)?);
            // Without graphs a step has as many rows as sequences.
            for rows in 1..=self.limits.n_slots.min(8) {
                specs.extend(self.decoder.specs(Key::step(Way::Eager, rows))?);
            }
        }
        let used = specs.into_iter().map(|s| s.variant);
        Ok(used.chain(self.decoder.card.repack_variants()).collect())
    }
}
