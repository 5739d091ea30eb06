//! What a captured decode step consists of, and how long its parts take.

use super::backend::CudaBackend;
use super::bandwidth::read_peak;
use super::dispatch::{StepKey, Way};
use super::launch::run_all;
use super::steps::Step;
use super::timing::{launch_us, run_us, IN_A_ROW};
use crate::backend::{GraphKernel, GraphProfile, GraphQuestion};
use crate::error::{Error, Result};

/// Bytes that the read peak is measured on; it need not be more than so many times the level-2
/// cache: what stays in there then counts for little.
const READ_BYTES: usize = 1 << 30;
const CACHES: usize = 16;

impl CudaBackend {
    /// See [`crate::backend::Backend::profile_graph`].
    pub(super) fn profile(
        &mut self,
        slots: &[usize],
        question: &GraphQuestion,
    ) -> Result<GraphProfile> {
        self.finish_queued()?;
        let key = self.steps.way(question.batch_size);
        if key.way == Way::Eager {
            let stats = self.steps.stats().now();
            return Err(Error::Argument {
                name: "batch_size",
                value: question.batch_size.to_string(),
                reason: format!(
                    "with cuda_graph=\"{}\" steps of {:?} rows are captured; choose one of them, or \
                     load with graph_batch_sizes that has it",
                    stats.mode, stats.batch_sizes
                ),
            });
        }
        self.prepare(key)?;
        let slots = &slots[..slots.len().min(question.batch_size)];
        self.start_endless(slots)?;
        let row_slots = slots.iter().map(|slot| *slot as u32).collect();
        self.set_row_slots(row_slots, key.rows)?;
        let profile = self.measure(key, slots, question);
        self.stop_all(slots, profile)
    }

    fn measure(
        &mut self,
        key: StepKey,
        slots: &[usize],
        question: &GraphQuestion,
    ) -> Result<GraphProfile> {
        let Self {
            model,
            sampling,
            steps,
            number,
            ..
        } = self;
        let (context, stream) = (&model.context, &model.stream);
        let Some(step) = steps.get(key) else {
            return Err(Error::Internal(format!("{key:?} is not ready")));
        };
        let graphs = step.graphs();
        let mut shape = (0, 0, 0);
        for (i, graph) in graphs.iter().enumerate() {
            let one = graph.shape()?;
            shape.0 += one.nodes;
            shape.1 += one.edges;
            shape.2 += one.programmatic_edges;
            if let Some(path) = &question.dot {
                // A step in pieces is as many files.
                let numbered = || path.with_extension(format!("{i}.dot"));
                let path = if graphs.len() == 1 {
                    path.clone()
                } else {
                    numbered()
                };
                graph.write_dot(&path)?;
            }
        }
        let list = step.launches();
        let repeats = question.repeats;
        // Every run advances its sequences: each row of runs begins where the first did.
        let mut rewind = |runs: usize| {
            *number = number.wrapping_add(runs as u32);
            slots
                .iter()
                .try_for_each(|slot| sampling.force(*slot, 0, question.position, stream))
        };
        let replay_us = run_us(
            context,
            stream,
            repeats,
            || rewind(IN_A_ROW),
            || step.run(stream),
        )?;
        let eager_us = run_us(
            context,
            stream,
            repeats,
            || rewind(IN_A_ROW),
            || run_all(&list, stream),
        )?;
        let times = launch_us(context, stream, &list, repeats, || rewind(1))?;
        model.kv.take_error().map_or(Ok(()), Err)?;
        let info = &context.info;
        let bytes = READ_BYTES.min(info.l2_bytes.saturating_mul(CACHES));
        let (peak, _) = read_peak(info.ordinal, model.nvrtc_folders(), bytes, repeats)?;
        let kernels = list.iter().zip(times).map(|(launch, us)| GraphKernel {
            kernel: launch.spec.entry,
            label: launch.spec.label.clone(),
            us,
            bytes: launch.spec.bytes,
            grid: launch.spec.grid,
            block: launch.spec.block,
            shared: launch.spec.shared,
        });
        Ok(GraphProfile {
            device: self.limits.device.clone(),
            kind: key.way.name(),
            batch_size: key.rows,
            position: question.position,
            graphs: graphs.len(),
            nodes: shape.0,
            edges: shape.1,
            programmatic_edges: shape.2,
            launches: list.len(),
            replay_us,
            eager_us,
            read_peak_gb_s: peak / 1e9,
            kernels: kernels.collect(),
        })
    }
}

impl Step {
    fn graphs(&self) -> Vec<&super::graph::Graph> {
        match self {
            Self::Full(graph) => vec![graph],
            Self::Pieces(pieces) => pieces.graphs().collect(),
            Self::Eager(_) => Vec::new(),
        }
    }
}
