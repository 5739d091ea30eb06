//! `_native.Stop`: how a thread that works for somebody learns that nobody wants the work any more.
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use onegraph::Error;
use pyo3::prelude::*;

use crate::errors::to_py;

type Told = Arc<AtomicBool>;

thread_local! {
    /// Those that this thread works within.
    static WITHIN: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// Ends what a thread does within it: entered by the thread, told by another one.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Stop {
    told: Told,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self {
            told: Told::default(),
        }
    }

    /// Ends it soon, or before it begins.
    fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    fn __enter__(&self) {
        WITHIN.with_borrow_mut(|within| within.push(self.told.clone()));
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        WITHIN.with_borrow_mut(|within| drop(within.pop()));
    }
}

/// Whether the work of this thread is not wanted any more.
pub fn is_told() -> bool {
    WITHIN.with_borrow(|within| within.iter().any(|told| told.load(Ordering::Relaxed)))
}

/// Raises where a signal came, and `CancelledError` where the work of this thread is not wanted any
/// more.
pub fn check(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    go_on()
}

/// Raises `CancelledError` where the work of this thread is not wanted any more.
#[pyfunction]
pub fn go_on() -> PyResult<()> {
    match is_told() {
        true => Err(to_py(Error::Cancelled)),
        false => Ok(()),
    }
}
