//! The end of Python while threads are in the engine.
//!
//! A thread that left the interpreter and comes back once that is being finalized is ended by CPython
//! (before 3.14) by unwinding its stack, and Rust aborts the process where a foreign unwinding meets
//! its frames. PyO3 panics where it sees it coming, in a destructor, which aborts as well. So the way
//! back is closed before: an exit handler says that the end begins and waits for those who are on
//! their way back already; a thread that comes later stays out for ever, which is what CPython 3.14 does
//! with such threads. They are daemons: Python has joined all others by then.
//!
//! For the same reason no Python code runs below a Rust frame of such a thread, since CPython may end
//! it there: what is to be called meanwhile, a progress function for one, is called by the Python side
//! between two native calls. Only `errors::detached` and `errors::attached` go out and come in. What
//! PyO3 keeps in a `PyOnceLock` goes out as well, for a moment, at its first use: `intern!` and the
//! derived `FromPyObject`, which is made of it, the classes of `collections.abc`, and an error that
//! is looked into. None is used here but while the module is imported.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Duration;

use onegraph::engine;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// The thread that ends the interpreter: it alone may go on using it.
static LAST: OnceLock<ThreadId> = OnceLock::new();
static ENDING: AtomicBool = AtomicBool::new(false);
/// Threads that were let back in and may not have the interpreter yet.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// How long the end waits for the threads of models: less than a slice of a prompt is usual.
const PATIENCE: Duration = Duration::from_secs(2);

/// To be called before a thread takes the interpreter back. Does not return once the end has begun.
pub fn come_back() {
    // Counted first, then asked: either this thread sees the end, or the end sees this thread.
    RETURNING.fetch_add(1, Ordering::SeqCst);
    if is_over() {
        RETURNING.fetch_sub(1, Ordering::SeqCst);
        stay_out();
    }
}

/// Whether Python ends, and not by this thread.
fn is_over() -> bool {
    ENDING.load(Ordering::SeqCst) && LAST.get() != Some(&thread::current().id())
}

fn stay_out() -> ! {
    loop {
        thread::park();
    }
}

/// To be called by a thread that has the interpreter and is about to raise an error: where Python
/// ends, its models were closed for that and not by the program, which has no use for the news.
pub fn raise_none(py: Python<'_>) {
    if is_over() {
        py.detach(|| stay_out());
    }
}

/// To be called when it has it.
pub fn is_back() {
    RETURNING.fetch_sub(1, Ordering::SeqCst);
}

/// Closes the way back, and all models: nothing works on a device that is about to go away.
#[pyfunction]
fn end(py: Python<'_>) {
    LAST.get_or_init(|| thread::current().id());
    ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        while RETURNING.load(Ordering::SeqCst) != 0 {
            thread::sleep(Duration::from_millis(1));
        }
        engine::close_all(PATIENCE);
    });
}

/// In a fork only the thread that forked is there.
#[pyfunction]
fn forked() {
    RETURNING.store(0, Ordering::SeqCst);
}

/// Asks Python to say when it ends, and when it forks.
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let atexit = PyModule::import(py, "atexit")?;
    atexit.call_method1("register", (wrap_pyfunction!(end, module)?,))?;
    let os = PyModule::import(py, "os")?;
    // Systems without forks have no such function.
    if let Ok(register) = os.getattr("register_at_fork") {
        let handler = [("after_in_child", wrap_pyfunction!(forked, module)?)];
        register.call((), Some(&handler.into_py_dict(py)?))?;
    }
    Ok(())
}
