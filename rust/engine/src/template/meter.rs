//! What a rendering is charged for, and how it fails.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use minijinja::{Error, ErrorKind, Value};

use super::limits::Stop;

/// What one element of a list is charged.
pub(super) const ELEMENT: usize = 32;
/// Macros may hold each other; a chain of them is freed by recursion.
const NAMESPACE: u64 = 64 * 1024;
/// What one entry of a mapping is charged, its key's text apart: a pair of values, their place in
/// the index, and room to grow.
pub(super) const ENTRY: usize = 192;

pub(super) type Outcome<T = Value> = std::result::Result<T, Error>;

/// An error of the template itself.
pub(super) fn fail(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// What may hold itself, and is freed only once it holds nothing.
pub(super) trait Emptied: std::fmt::Debug + Send + Sync {
    /// Drops what it holds.
    fn clear(&self);
}

/// Counts the bytes a rendering makes and looks at. Fuel counts steps, and one step may double a
/// string: only this bounds time and memory.
#[derive(Debug)]
pub(super) struct Meter {
    left: AtomicU64,
    /// The most that one step may take, so that none keeps Ctrl-C waiting.
    step: usize,
    pub stop: Arc<Stop>,
    /// The message of `raise_exception`.
    pub raised: Mutex<Option<String>>,
    /// All that were made: they may hold each other, and are emptied with the meter.
    namespaces: Mutex<Vec<Arc<dyn Emptied>>>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Ok(namespaces) = self.namespaces.get_mut() {
            // All are held here while each is emptied, so that a chain is not freed by recursion.
            namespaces.iter().for_each(|namespace| namespace.clear());
        }
    }
}

impl Meter {
    pub fn new(bytes: u64, step: usize, stop: Arc<Stop>) -> Self {
        Meter {
            left: AtomicU64::new(bytes),
            step,
            stop,
            raised: Mutex::new(None),
            namespaces: Mutex::new(Vec::new()),
        }
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes `bytes` off; fails where that is more than is left, or where the rendering shall end.
    pub fn charge(&self, bytes: usize) -> Outcome<()> {
        self.stop.check(bytes)?;
        if bytes > self.step {
            return Err(Error::new(
                ErrorKind::OutOfFuel,
                "the template builds or searches too much text at once",
            ));
        }
        // One thread renders; the atomic only satisfies minijinja's bounds.
        match self.left.load(Ordering::Relaxed).checked_sub(bytes as u64) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Error::new(
                ErrorKind::OutOfFuel,
                "the template builds or searches too much text",
            )),
        }
    }

    pub fn charge_elements(&self, n: usize) -> Outcome<()> {
        self.charge(n.saturating_mul(ELEMENT))
    }

    pub fn charge_namespace(&self) -> Outcome<()> {
        self.charge(NAMESPACE as usize)
    }

    /// An attribute of a namespace about to be set.
    pub fn charge_attribute(&self, name: &str) -> Outcome<()> {
        self.charge(ENTRY.saturating_add(name.len()))
    }

    /// Keeps a namespace, to empty it in the end.
    pub fn know(&self, namespace: Arc<dyn Emptied>) {
        if let Ok(mut namespaces) = self.namespaces.lock() {
            namespaces.push(namespace);
        }
    }
}
