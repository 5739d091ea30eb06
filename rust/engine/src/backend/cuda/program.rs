//! Compiled kernels of one card: variant → function, each compiled and loaded once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::compile::{Compiler, Variant};
use super::device::{Context, Module};
use super::launch::{Launch, Spec};
use crate::error::{Error, Result};

/// The kernels of one context.
#[derive(Debug)]
pub struct Programs {
    context: Arc<Context>,
    compiler: Compiler,
    modules: Mutex<HashMap<Variant, Arc<Module>>>,
}

impl Programs {
    /// An empty set.
    pub fn new(context: Arc<Context>, compiler: Compiler) -> Self {
        Self {
            context,
            compiler,
            modules: Mutex::default(),
        }
    }

    /// The card.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Launches for `specs`. What is not on the card yet is compiled, on all CPU threads, so that
    /// a load does not wait for each kernel in turn.
    pub fn launches(&self, specs: Vec<Spec>) -> Result<Vec<Launch>> {
        let missing: HashSet<&Variant> = {
            let known = self.lock();
            specs
                .iter()
                .map(|s| &s.variant)
                .filter(|v| !known.contains_key(v))
                .collect()
        };
        let images = missing
            .into_par_iter()
            .map(|v| Ok((v.clone(), self.compiler.image(v)?)))
            .collect::<Result<Vec<_>>>()?;
        for (variant, image) in images {
            let module = Module::new(&self.context, &image)?;
            self.lock().insert(variant, module);
        }
        let resolve = |spec: Spec| {
            let module = self.lock().get(&spec.variant).cloned();
            let module =
                module.ok_or_else(|| Error::Internal(format!("{} was not loaded", spec.entry)))?;
            let function = module.function(spec.entry, spec.shared)?;
            Ok(Launch {
                spec,
                function,
                pdl: false,
            })
        };
        specs.into_iter().map(resolve).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Variant, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
