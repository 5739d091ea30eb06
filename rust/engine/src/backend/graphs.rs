//! CUDA graphs of a backend: modes, statistics, checks and profiles.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// How decode steps are captured and replayed; the CPU has nothing to capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphMode {
    /// The whole step is one graph.
    Full,
    /// Graphs between attentions, which run eagerly.
    Piecewise,
    /// Full up to the largest captured size, piecewise above it.
    FullAndPiecewise,
    /// Every launch by itself.
    None,
}

impl GraphMode {
    const NAMES: [(&'static str, Self); 4] = [
        ("full", Self::Full),
        ("piecewise", Self::Piecewise),
        ("full_and_piecewise", Self::FullAndPiecewise),
        ("none", Self::None),
    ];

    /// The mode of a name.
    ///
    /// # Errors
    /// [`Error::Argument`] lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(n, _)| *n == name);
        found.map(|(_, mode)| *mode).ok_or_else(|| Error::Argument {
            name: "graph.mode",
            value: format!("{name:?}"),
            reason: format!("must be one of {}", Self::NAMES.map(|(n, _)| n).join(", ")),
        })
    }

    /// Its public name.
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, mode)| *mode == self);
        found.map_or("none", |(name, _)| name)
    }

    /// Whether whole steps are captured.
    pub fn is_full(self) -> bool {
        matches!(self, Self::Full | Self::FullAndPiecewise)
    }
}

/// A decode step that was captured.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct CapturedStep {
    /// `full` or `piecewise`.
    pub kind: &'static str,
    /// Rows of the step.
    pub batch_size: usize,
    /// Graphs that it consists of.
    pub graphs: usize,
    /// Kernels in them.
    pub nodes: usize,
    /// What capture and the warm-up before it took.
    pub seconds: f64,
    /// Device memory that the driver took for it.
    pub bytes: usize,
}

/// What became of decode steps so far.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct GraphStats {
    /// Name of the [`GraphMode`].
    pub mode: &'static str,
    /// Sizes that steps are rounded up to, ascending; empty where nothing is captured.
    pub batch_sizes: Vec<usize>,
    /// In the order of their capture.
    pub captured: Vec<CapturedStep>,
    /// Steps that one graph replayed.
    pub full: u64,
    /// Steps that graphs between attentions replayed.
    pub piecewise: u64,
    /// Steps launched kernel by kernel.
    pub eager: u64,
    /// Why eager steps were eager: each condition of a replay, and how many steps missed it.
    pub missed: Vec<(&'static str, u64)>,
}

/// [`GraphStats`] that the engine's thread writes and any other may read.
#[derive(Debug, Default)]
pub struct SharedStats(Mutex<GraphStats>);

impl SharedStats {
    /// The figures so far.
    pub fn now(&self) -> GraphStats {
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, GraphStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to compare replays on.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphCheck {
    /// Tokens that the step is forced through, one after another, from an empty sequence on.
    pub ids: Vec<u32>,
    /// Sizes whose steps are compared; none: those captured so far.
    pub batch_sizes: Option<Vec<usize>>,
    /// A logit `x` may differ from the eager `e` by `atol + rtol * |e|`; both 0: by no bit.
    pub rtol: f64,
    pub atol: f64,
}

impl GraphCheck {
    /// Checks all but the tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] names the tolerance and its value.
    pub fn validate(&self) -> Result<()> {
        for (name, value) in [("rtol", self.rtol), ("atol", self.atol)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::Argument {
                    name,
                    value: value.to_string(),
                    reason: "must be a finite number, 0 or more".into(),
                });
            }
        }
        Ok(())
    }

    /// Whether every bit counts.
    pub fn is_exact(&self) -> bool {
        self.rtol == 0.0 && self.atol == 0.0
    }

    /// Whether a replayed logit is near enough.
    pub fn accepts(&self, eager: f32, replayed: f32) -> bool {
        let (e, x) = (f64::from(eager), f64::from(replayed));
        eager.to_bits() == replayed.to_bits() || (e - x).abs() <= self.atol + self.rtol * e.abs()
    }
}

/// How a captured step compares with the same step launched kernel by kernel, from the same state.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StepCheck {
    /// `full` or `piecewise`.
    pub kind: &'static str,
    /// Rows of the step.
    pub batch_size: usize,
    /// Of those, rows with a sequence; the others are padding.
    pub sequences: usize,
    /// Steps compared.
    pub steps: usize,
    /// Logits compared, and those too far from the eager ones.
    pub logits: usize,
    pub logits_wrong: usize,
    /// Largest distance of a logit; infinite where one of a pair is not a number.
    pub max_difference: f32,
    /// Bytes of keys and values compared, and those that differ.
    pub kv_bytes: usize,
    pub kv_bytes_wrong: usize,
    /// Steps after which the drawn token, the position or the finished flag of a sequence differ.
    pub states_wrong: usize,
    /// Whether all is as it was asked to be. With a tolerance, keys and values and what is drawn may
    /// differ: they follow from logits and sums that may.
    pub ok: bool,
}

/// What is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiled {
    /// The captured step that so many rows are rounded up to.
    Step { batch_size: usize },
    /// The passes of a prompt of so many tokens, and the draw behind it.
    Prompt { tokens: usize },
}

/// What to describe, and how to time it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphQuestion {
    pub what: Profiled,
    /// Tokens of each sequence before the step or the prompt: attention reads as many more.
    pub position: usize,
    /// Times that each measurement is repeated; the median counts.
    pub repeats: usize,
    /// Where to write the graph in Graphviz' DOT language.
    pub dot: Option<PathBuf>,
    /// Whether to run the step with stamps too: see [`KernelStamps`].
    pub stamps: bool,
}

impl GraphQuestion {
    /// Steps that are timed in a row, so that the host's part is hidden: the sequence must have room
    /// for as many tokens from `position` on.
    pub const IN_A_ROW: usize = 8;
}

/// What a captured step, or the passes of a prompt, consist of, and how long their parts take by the
/// device's clock.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GraphProfile {
    pub device: String,
    /// `full` or `piecewise`.
    pub kind: &'static str,
    /// Rows of the step; of a prompt 1, and its tokens.
    pub batch_size: usize,
    pub prompt: usize,
    pub position: usize,
    pub graphs: usize,
    /// Of all graphs of the step.
    pub nodes: usize,
    pub edges: usize,
    /// Edges across which the successor may start early.
    pub programmatic_edges: usize,
    /// Kernels of the step, whether in a graph or not.
    pub launches: usize,
    /// The step replayed, and launched kernel by kernel; microseconds.
    pub replay_us: f64,
    pub eager_us: f64,
    /// What of a kernel's time by itself is its start and end: that of one that does nothing. In a
    /// replay the ends of kernels and the starts of those behind them overlap.
    pub boundary_us: f64,
    /// Gigabytes (1e9 bytes) a second that a kernel reads that does nothing else.
    pub read_peak_gb_s: f64,
    /// 1e12 operations a second of a kernel that only multiplies float16.
    pub multiply_peak_tflop_s: f64,
    /// In the order of the step.
    pub kernels: Vec<GraphKernel>,
}

/// One kernel of a step.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GraphKernel {
    /// Its kind: the name in the source.
    pub kernel: &'static str,
    /// Kind and what it works on.
    pub label: String,
    /// Time from the end of its predecessor, launched by itself; microseconds.
    pub us: f64,
    /// Bytes of weights that it reads.
    pub bytes: u64,
    /// All bytes that it has to read and write: weights, keys and values, rows.
    pub moved: u64,
    /// Operations of products, attention and recurrences: two of a multiplication and its addition.
    pub operations: u64,
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Where they were asked for.
    pub stamps: Option<KernelStamps>,
}

/// When the blocks of a kernel came to which moment of a replay.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelStamps {
    /// SMs that had a block of it, and those that had several.
    pub sms: usize,
    pub crowded: usize,
    /// In their order.
    pub moments: Vec<Moment>,
}

/// A moment of a kernel's blocks, of the first of them, the middle one and the last: microseconds from
/// the first stamp of the step.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Moment {
    /// `begun`; `asked`: the first weights, keys or values were; `waited`: the preceding kernel has
    /// ended; `ready`: activations are there; `summed`: the block's own sums are; `ended`.
    pub name: &'static str,
    pub first: f64,
    pub median: f64,
    pub last: f64,
}

/// The error for a request for graphs on a device without them.
pub fn none_on(device: &str) -> Error {
    Error::Device {
        what: format!("device {device:?}"),
        reason: "it captures no graphs: graphs are CUDA graphs".into(),
        remedy: "load with device=\"cuda\" on a machine with an NVIDIA card".into(),
    }
}

/// What [`crate::backend::Inspect::verify_graph`] asks now and then: whether to go on.
pub type GoOn<'a> = &'a dyn Fn() -> bool;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rtol: f64, atol: f64) -> GraphCheck {
        GraphCheck {
            ids: vec![1],
            batch_sizes: None,
            rtol,
            atol,
        }
    }

    #[test]
    fn without_tolerance_every_bit_counts() {
        let exact = check(0.0, 0.0);
        assert!(exact.is_exact() && exact.accepts(1.5, 1.5) && exact.accepts(f32::NAN, f32::NAN));
        assert!(!exact.accepts(1.0, 1.0f32.next_up()));
        assert!(!exact.accepts(1.0, f32::NAN) && !exact.accepts(f32::NAN, 1.0));
        let near = check(1e-3, 1e-6);
        assert!(near.accepts(100.0, 100.09) && !near.accepts(100.0, 100.11));
        assert!(near.accepts(0.0, 9e-7) && !near.accepts(0.0, f32::NAN));
    }

    #[test]
    fn a_tolerance_is_a_finite_number() {
        assert_eq!(check(0.0, 1e-3).validate(), Ok(()));
        for (rtol, atol, said) in [(-1.0, 0.0, "rtol = -1"), (0.0, f64::NAN, "atol = NaN")] {
            let text = check(rtol, atol).validate().unwrap_err().to_string();
            assert!(text.contains(said) && text.contains("0 or more"), "{text}");
        }
    }
}
