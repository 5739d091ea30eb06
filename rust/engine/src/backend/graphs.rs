//! What a backend with graphs is told of them, and says of them.

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
            name: "cuda_graph",
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

    /// Whether steps are captured in pieces.
    pub fn is_piecewise(self) -> bool {
        matches!(self, Self::Piecewise | Self::FullAndPiecewise)
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
