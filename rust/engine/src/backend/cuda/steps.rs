//! The decode steps of a backend, ready to run: captured whole, in pieces, or as lists.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::device::Stream;
use super::dispatch::{Dispatch, StepKey, Way};
use super::graph::{Graph, Pieces};
use super::launch::{run_all, Launch};
use crate::backend::{CapturedStep, GraphMode, SharedStats};
use crate::error::{Error, Result};

/// A list of launches, ready to run.
#[derive(Debug)]
pub enum Step {
    Full(Graph),
    Pieces(Pieces),
    Eager(Vec<Launch>),
}

impl Step {
    /// Makes `launches` ready.
    ///
    /// # Errors
    /// What the driver says of a capture.
    pub fn new(way: Way, launches: Vec<Launch>, stream: &Stream) -> Result<Self> {
        Ok(match way {
            Way::Full => Self::Full(Graph::capture(stream, &launches)?),
            Way::Piecewise => Self::Pieces(Pieces::capture(stream, &launches)?),
            Way::Eager => Self::Eager(launches),
        })
    }

    /// Queues it.
    pub fn run(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Full(graph) => graph.replay(stream),
            Self::Pieces(pieces) => pieces.run(stream),
            Self::Eager(launches) => run_all(launches, stream),
        }
    }

    /// What it launches, in order.
    pub fn launches(&self) -> Vec<Launch> {
        match self {
            Self::Full(graph) => graph.launches().to_vec(),
            Self::Pieces(pieces) => pieces.launches(),
            Self::Eager(launches) => launches.clone(),
        }
    }

    /// Graphs in it, and kernels in those.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Full(graph) => (1, graph.launches().len()),
            Self::Pieces(pieces) => {
                let nodes = pieces.graphs().map(|graph| graph.launches().len());
                (pieces.graphs().count(), nodes.sum())
            }
            Self::Eager(_) => (0, 0),
        }
    }
}

/// Every step that was needed so far; their number is bounded by the sizes of the dispatch and the
/// slots.
#[derive(Debug)]
pub struct Steps {
    dispatch: Dispatch,
    ready: HashMap<StepKey, Step>,
    stats: Arc<SharedStats>,
}

impl Steps {
    /// None ready yet.
    pub fn new(mode: GraphMode, dispatch: Dispatch) -> Self {
        let stats = SharedStats::default();
        {
            let mut stats = stats.lock();
            stats.mode = mode.name();
            stats.batch_sizes = dispatch.sizes();
            stats.missed = dispatch.missed();
        }
        Self {
            dispatch,
            ready: HashMap::new(),
            stats: Arc::new(stats),
        }
    }

    /// What became of steps so far.
    pub fn stats(&self) -> &Arc<SharedStats> {
        &self.stats
    }

    /// Steps to capture at load: all of them, or the one that a lone sequence needs.
    pub fn at_load(&self, warmup: bool) -> Vec<StepKey> {
        if warmup {
            return self.dispatch.capture_order();
        }
        vec![self.dispatch.way(1)]
    }

    /// How a step of `rows` rows is run.
    pub fn way(&self, rows: usize) -> StepKey {
        self.dispatch.way(rows)
    }

    /// Every captured step, ascending.
    pub fn captured(&self) -> Vec<StepKey> {
        let captured = self.ready.keys().filter(|key| key.way != Way::Eager);
        let mut keys: Vec<StepKey> = captured.copied().collect();
        keys.sort_unstable_by_key(|key| key.rows);
        keys
    }

    /// As [`Steps::way`], for a step that is run: counts it.
    pub fn choose(&mut self, rows: usize) -> StepKey {
        let key = self.dispatch.choose(rows);
        let mut stats = self.stats.lock();
        match key.way {
            Way::Full => stats.full += 1,
            Way::Piecewise => stats.piecewise += 1,
            Way::Eager => {
                stats.eager += 1;
                stats.missed = self.dispatch.missed();
            }
        }
        key
    }

    /// The step, where it is ready.
    pub fn get(&self, key: StepKey) -> Option<&Step> {
        self.ready.get(&key)
    }

    /// Makes a step ready; a capture is timed from `begun`, and measured.
    ///
    /// # Errors
    /// What the driver says of the capture, with its cause and what to do.
    pub fn add(
        &mut self,
        key: StepKey,
        launches: Vec<Launch>,
        begun: Instant,
        stream: &Stream,
    ) -> Result<()> {
        let free = || stream.context.memory().map_or(0, |m| m.0);
        let before = free();
        let step = Step::new(key.way, launches, stream)
            .map_err(|e| capture_failure(e, &step_name(key.rows), before))?;
        if key.way != Way::Eager {
            let (graphs, nodes) = step.size();
            let captured = CapturedStep {
                kind: key.way.name(),
                batch_size: key.rows,
                graphs,
                nodes,
                seconds: begun.elapsed().as_secs_f64(),
                bytes: before.saturating_sub(free()),
            };
            self.stats.lock().captured.push(captured);
        }
        self.ready.insert(key, step);
        Ok(())
    }
}

/// What a decode step is called in an error.
pub fn step_name(rows: usize) -> String {
    format!("the decode step of {rows} rows")
}

/// Errors by which the driver says that a kernel is not there.
const NO_KERNEL: [&str; 4] = [
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
];

/// Errors after which the context is lost.
const LOST: [&str; 4] = [
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
];

/// Captures `launches`; an error says of `what`, from which cause, and what to do.
///
/// # Errors
/// As [`capture_failure`].
pub fn capture(stream: &Stream, launches: &[Launch], what: &str) -> Result<Graph> {
    let free = stream.context.memory().map_or(0, |m| m.0);
    Graph::capture(stream, launches).map_err(|e| capture_failure(e, what, free))
}

/// What a failed capture of `what` comes from, and what to do, in the order worth trying.
pub fn capture_failure(error: Error, what: &str, free: usize) -> Error {
    let what = format!("capturing {what}");
    let without = "load with cuda_graph=\"none\", which launches every kernel by itself";
    let free = free as f64 / f64::from(1 << 20);
    let reason = |text: &str, codes: &[&str]| codes.iter().any(|code| text.contains(code));
    match error {
        Error::Memory { need, .. } => Error::Memory {
            need: format!("{what}: {need}; {free:.1} MiB were free before it"),
            remedy: format!(
                "1. free memory on the card; 2. capture less: smaller graph_batch_sizes or \
                 graph_max_batch; 3. use a smaller n_ctx or max_batch; 4. {without}"
            ),
        },
        Error::Device {
            what: call,
            reason: said,
            ..
        } => {
            let (cause, first) = if reason(&said, &NO_KERNEL) {
                let advice =
                    "empty the kernel cache (onegraph info --devices says where) and load \
                              again; 2. reinstall onegraph and NVRTC";
                ("a missing kernel", advice)
            } else if reason(&said, &LOST) {
                let advice = "restart the process: the CUDA context is lost; 2. report this";
                ("a kernel that failed", advice)
            } else {
                let advice = "load again; 2. report this with the driver's version";
                ("an illegal call", advice)
            };
            Error::Device {
                what,
                reason: format!("the cause is {cause}: {call} gave {said}"),
                remedy: format!("1. {first}; 3. {without}"),
            }
        }
        // What is wrong with the list itself, such as a launch that became no node.
        Error::Internal(text) => Error::Internal(format!("{what}: {text}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(reason: &str) -> Error {
        Error::Device {
            what: "cuGraphInstantiateWithFlags".into(),
            reason: reason.into(),
            remedy: "see the driver's log".into(),
        }
    }

    #[test]
    fn a_failed_capture_names_its_cause_and_numbers_its_advice() {
        let said = |error| capture_failure(error, &step_name(8), 3 << 20);
        let memory = said(Error::Memory {
            need: "the driver could not give device memory".into(),
            remedy: String::new(),
        });
        assert!(matches!(memory, Error::Memory { .. }));
        let text = memory.to_string();
        for part in [
            "decode step of 8 rows",
            "3.0 MiB were free",
            "2. capture less",
            "4. load with",
        ] {
            assert!(text.contains(part), "{text}");
        }
        for (reason, cause) in [
            (
                "CUDA_ERROR_INVALID_HANDLE (invalid resource handle)",
                "a missing kernel",
            ),
            (
                "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (...)",
                "an illegal call",
            ),
            ("CUDA_ERROR_LAUNCH_FAILED (...)", "a kernel that failed"),
        ] {
            let text = said(device(reason)).to_string();
            assert!(text.contains(&format!("the cause is {cause}")), "{text}");
            assert!(
                text.contains(reason) && text.contains("cuGraphInstantiateWithFlags"),
                "{text}"
            );
            assert!(
                text.contains("1. ") && text.contains("3. load with cuda_graph=\"none\""),
                "{text}"
            );
        }
        let list = said(Error::Internal(
            "3 launches were captured as 2 nodes".into(),
        ));
        assert!(list.to_string().contains("8 rows: 3 launches"), "{list}");
        assert_eq!(said(Error::Cancelled), Error::Cancelled);
    }
}
