//! Kernels for a card that is not here: compiled into the cache, which then goes where the card is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use crate::backend::cuda::driver::compile::Compiler;
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::driver::source::Variant;
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::{RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// The interval of progress reports.
const TELL: Duration = Duration::from_millis(50);

/// Every kernel that serving `plan` with `options` runs on a card of architecture `arch`, whatever
/// its number of multiprocessors: in powers of two, between which no tile changes twice.
///
/// # Errors
/// [`Error::Unsupported`] for the architecture, and what is wrong with the options.
pub fn variants(
    arch: &str,
    plan: &Arc<Plan>,
    weights: &dyn Weights,
    options: &RunnerOptions,
) -> Result<Vec<Variant>> {
    let mut found = HashSet::new();
    for bits in 0..=10 {
        let card = DeviceInfo::of_arch(arch, 1 << bits)?;
        let backend = CudaBackend::described(card, plan.clone(), weights, options)?;
        found.extend(backend.variants()?);
    }
    let mut sorted: Vec<Variant> = found.into_iter().collect();
    sorted.sort_by(|a, b| (a.source.name, &a.constants).cmp(&(b.source.name, &b.constants)));
    Ok(sorted)
}

/// Compiles `variants` for `arch` on all CPU threads, through the cache; returns how many were not
/// there before. `progress` is told how many are done, and of how many; it may break off.
///
/// # Errors
/// Errors of the compiler or of `progress`.
pub fn compile(
    arch: &str,
    variants: &[Variant],
    nvrtc_folders: &[std::path::PathBuf],
    progress: &dyn Fn(u64, u64) -> Result<()>,
) -> Result<usize> {
    let compiler = Compiler::new(DeviceInfo::of_arch(arch, 1)?.number(), nvrtc_folders);
    let (done, fresh) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cancelled = AtomicBool::new(false);
    let one = |variant: &Variant| {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let is_new = !compiler.is_cached(variant);
        compiler.image(variant)?;
        fresh.fetch_add(usize::from(is_new), Ordering::Relaxed);
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let tell = || progress(done.load(Ordering::Relaxed) as u64, variants.len() as u64);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| variants.par_iter().try_for_each(one));
        let mut told = Ok(());
        while !working.is_finished() && told.is_ok() {
            std::thread::sleep(TELL);
            told = tell();
        }
        cancelled.store(told.is_err(), Ordering::Relaxed);
        let worked = working.join();
        told?;
        worked.unwrap_or_else(|_| Err(Error::Internal("the compiling thread ended early".into())))
    })?;
    tell()?;
    Ok(fresh.into_inner())
}
