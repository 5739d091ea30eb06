//! How the engine wakes an event loop: no thread stands between them. The engine's own thread writes a
//! byte to a socket that the loop watches, and never touches the interpreter.
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onegraph::engine::{Bell, Caller};
use onegraph::{Error, Result};
use pyo3::prelude::*;

use crate::errors::to_py;

struct Wire {
    inside: UnixStream,
    outside: UnixStream,
    /// Numbers of those who rang since somebody answered; the socket is readable while there are
    /// any.
    rang: Mutex<BTreeSet<u64>>,
}

impl Wire {
    fn new() -> Result<Self> {
        let pair = || -> std::io::Result<_> {
            let (inside, outside) = UnixStream::pair()?;
            inside.set_nonblocking(true)?;
            outside.set_nonblocking(true)?;
            Ok((inside, outside))
        };
        let (inside, outside) = pair().map_err(|e| Error::Device {
            what: "a pair of sockets to wake the event loop".into(),
            reason: e.to_string(),
            remedy: "close files or raise the limit on open ones".into(),
        })?;
        Ok(Self {
            inside,
            outside,
            rang: Mutex::default(),
        })
    }

    fn rang(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.rang.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> BTreeSet<u64> {
        let mut rang = self.rang();
        // Where nobody rang there is nothing to read, and nobody to name.
        drop((&self.inside).read(&mut [0; 8]));
        std::mem::take(&mut *rang)
    }
}

impl Bell for Wire {
    fn ring(&self, numbers: &[u64]) {
        let mut rang = self.rang();
        let silent = rang.is_empty();
        rang.extend(numbers);
        if silent {
            // One byte at a time is in the socket: there is room for it.
            drop((&self.outside).write(&[1]));
        }
    }
}

/// A file that is readable once a request that was given the bell has something new.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Doorbell {
    bell: Arc<Wire>,
}

impl Doorbell {
    /// Who rings it as `number`: for each piece, or once, `at_end`.
    pub fn caller(&self, number: u64, at_end: bool) -> Caller {
        Caller {
            bell: self.bell.clone(),
            number,
            at_end,
        }
    }
}

#[pymethods]
impl Doorbell {
    #[new]
    fn new() -> PyResult<Self> {
        let bell = Arc::new(Wire::new().map_err(to_py)?);
        Ok(Self { bell })
    }

    fn fileno(&self) -> i32 {
        self.bell.inside.as_raw_fd()
    }

    /// Numbers of the requests that have something new since the last call; the file is not readable
    /// until there is more.
    fn answer(&self) -> Vec<u64> {
        self.bell.answer().into_iter().collect()
    }
}
