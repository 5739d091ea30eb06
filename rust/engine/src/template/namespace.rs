//! `namespace()`: the one object that a template may change.
//!
//! minijinja's own counts its attributes by copying all their names, is false while it is empty,
//! and is never freed once it holds itself. All of ours are known to the meter, which empties them
//! when the rendering ends.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::Value;

use super::given::as_str;
use super::meter::Emptied;

#[derive(Debug, Default)]
struct Attributes {
    /// In the order they were first set, as Python prints them.
    entries: Vec<(Value, Value)>,
    index: HashMap<Arc<str>, usize>,
}

impl Attributes {
    fn set(&mut self, name: Value, value: Value) {
        let Some(text) = as_str(&name) else {
            return;
        };
        let place = self.index.get(text);
        if let Some(entry) = place.and_then(|at| self.entries.get_mut(*at)) {
            entry.1 = value;
            return;
        }
        self.index.insert(Arc::from(text), self.entries.len());
        self.entries.push((name, value));
    }
}

/// A namespace.
#[derive(Default)]
pub(super) struct Namespace {
    attributes: Mutex<Attributes>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It may hold itself.
        f.write_str("Namespace")
    }
}

impl Namespace {
    fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.attributes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Its attributes in order.
    pub fn entries(&self) -> Vec<(Value, Value)> {
        self.lock().entries.clone()
    }

    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Sets an attribute, of which the name is a string.
    pub fn set(&self, name: Value, value: Value) {
        self.lock().set(name, value);
    }
}

impl Emptied for Namespace {
    fn clear(&self) {
        let held = std::mem::take(&mut *self.lock());
        drop(held);
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let attributes = self.lock();
        let at = *attributes.index.get(as_str(key)?)?;
        attributes.entries.get(at).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}
