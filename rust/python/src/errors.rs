//! `onegraph::Error` and panics become the exception classes of `onegraph.errors`.
use std::panic::{catch_unwind, AssertUnwindSafe};

use onegraph::error::{Error, Kind};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyType;

use crate::exit;

static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

fn class_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "ModelError",
        Kind::Argument => "ArgumentError",
        Kind::Context => "ContextError",
        Kind::Memory => "OutOfMemoryError",
        Kind::Device => "DeviceError",
        Kind::Io => "FileError",
        Kind::Closed => "ClosedError",
        Kind::Cancelled => "CancelledError",
        Kind::Internal => "InternalError",
    }
}

/// Imports the classes now: later, an import would run Python code in the middle of a native call.
/// PyO3 looks at its own class of panics with every exception that it takes over, and makes it at
/// the first.
pub fn import_classes(py: Python<'_>) -> PyResult<()> {
    PanicException::type_object(py);
    let import = || PyModule::import(py, "onegraph.errors").map(Bound::unbind);
    CLASSES.get_or_try_init(py, import).map(drop)
}

/// The exception for an engine error.
pub fn to_py(err: Error) -> PyErr {
    Python::attach(|py| {
        exit::raise_none(py);
        let class = CLASSES
            .get_or_try_init(py, || {
                PyModule::import(py, "onegraph.errors").map(Bound::unbind)
            })
            .and_then(|m| m.bind(py).getattr(class_name(err.kind())))
            .and_then(|c| Ok(c.cast_into::<PyType>()?));
        match class {
            Ok(class) => PyErr::from_type(class, err.to_string()),
            Err(e) => e,
        }
    })
}

/// Runs `f` without the GIL. A panic becomes `InternalError`: PyO3's own `PanicException` is a
/// `BaseException`, which no caller's `except Exception` sees. Where Python ends meanwhile, it does
/// not return (see [`exit`]).
pub fn detached<T: Send>(
    py: Python<'_>,
    f: impl FnOnce() -> onegraph::Result<T> + Send,
) -> PyResult<T> {
    let done = py.detach(|| {
        let done = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied());
            Err(Error::Internal(text.unwrap_or("a panic").to_owned()))
        });
        exit::come_back();
        done
    });
    exit::is_back();
    done.map_err(to_py)
}

/// Takes the GIL back for a moment, within [`detached`]. `f` runs no Python code but on the thread
/// that Python ends with, the main one: signal handlers do not run on others.
pub fn attached<T>(f: impl FnOnce(Python<'_>) -> T) -> T {
    exit::come_back();
    Python::attach(|py| {
        exit::is_back();
        f(py)
    })
}
