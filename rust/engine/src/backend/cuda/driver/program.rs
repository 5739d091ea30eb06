//! Compiled kernels of one card: variant → function, each compiled and loaded once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::ahead::Ahead;
use super::compile::Compiler;
use super::context::Context;
use super::launch::Launch;
use super::module::Module;
use super::source::Variant;
use super::spec::Spec;
use crate::error::{Error, Result};

/// The kernels of one context.
#[derive(Debug)]
pub struct Programs {
    context: Arc<Context>,
    compiler: Arc<Compiler>,
    modules: Mutex<HashMap<Variant, Arc<Module>>>,
}

impl Programs {
    /// An empty set.
    pub fn new(context: Arc<Context>, compiler: Compiler) -> Self {
        Self {
            context,
            compiler: Arc::new(compiler),
            modules: Mutex::default(),
        }
    }

    /// Launches for `specs`. What is not on the card yet is compiled, on all CPU threads, so that
    /// a load does not wait for each kernel in turn.
    pub fn launches(&self, specs: Vec<Spec>) -> Result<Vec<Launch>> {
        self.prepare(specs.iter().map(|s| &s.variant))?;
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

    /// Compiles what is not on the card yet, and puts it there.
    pub fn prepare<'a>(&self, variants: impl Iterator<Item = &'a Variant>) -> Result<()> {
        let missing: HashSet<&Variant> = {
            let known = self.lock();
            variants.filter(|v| !known.contains_key(v)).collect()
        };
        let _urgent = (!missing.is_empty()).then(|| self.compiler.urge());
        let image = |v: &Variant| Ok((v.clone(), self.compiler.image(v)?));
        // A lone one does not wait until the others of another thread have left a worker.
        let images: Vec<_> = match missing.len() {
            0 | 1 => missing.into_iter().map(image).collect::<Result<_>>()?,
            _ => missing.into_par_iter().map(image).collect::<Result<_>>()?,
        };
        for (variant, image) in images {
            let module = Module::new(&self.context, &image)?;
            self.lock().insert(variant, module);
        }
        Ok(())
    }

    /// Has what `specs` run compiled on the side, by so many `threads`.
    pub fn compile_ahead(&self, specs: Vec<Spec>, threads: usize) -> Ahead {
        let mut seen = HashSet::new();
        let variants = specs.into_iter().map(|spec| spec.variant);
        let variants = variants.filter(|variant| seen.insert(variant.clone()));
        Ahead::new(&self.compiler, variants.collect(), threads)
    }

    /// As [`Compiler::unkept`].
    pub fn unkept(&self) -> Option<&str> {
        self.compiler.unkept()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Variant, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
