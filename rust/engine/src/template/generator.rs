//! What a filter such as `map` gives: elements that are there once. As in Python it is true even
//! when it is empty, has no length, and is empty when it was gone through.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::Value;

use super::meter::{Meter, Outcome};

#[derive(Debug)]
pub(super) struct Generator {
    items: Mutex<VecDeque<Value>>,
}

impl Generator {
    pub fn value(meter: &Meter, items: Vec<Value>) -> Outcome {
        meter.charge_elements(items.len())?;
        Ok(Value::from_object(Generator {
            items: Mutex::new(items.into()),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Value>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The elements that are left; then there are none.
    pub fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.lock()).into()
    }

    pub fn next(&self) -> Option<Value> {
        self.lock().pop_front()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}
