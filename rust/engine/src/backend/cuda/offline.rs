//! Kernels for a card that is not here: compiled into the cache, which then goes where the card is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;

use super::backend::CudaBackend;
use super::compile::{Compiler, Variant};
use super::device::{Context, DeviceInfo, MIN_DRIVER};
use crate::backend::{RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// How often a caller is told how far it is.
const TELL: Duration = Duration::from_millis(50);

/// Compute capabilities, and the most shared memory in KiB that a block may ask for (CUDA C++
/// Programming Guide, table of technical specifications).
const ARCHITECTURES: [(u32, u32, usize); 9] = [
    (7, 5, 64),
    (8, 0, 163),
    (8, 6, 99),
    (8, 7, 163),
    (8, 9, 99),
    (9, 0, 227),
    (10, 0, 227),
    (10, 3, 227),
    (12, 0, 99),
];

impl DeviceInfo {
    /// A card of architecture `name`, such as `sm_90`, with `sm_count` multiprocessors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] lists the architectures.
    pub fn of_arch(name: &str, sm_count: u32) -> Result<Self> {
        let known = ARCHITECTURES
            .iter()
            .find(|(major, minor, _)| name == format!("sm_{major}{minor}"));
        let Some((major, minor, shared_kib)) = known else {
            let all = ARCHITECTURES.map(|(major, minor, _)| format!("sm_{major}{minor}"));
            return Err(Error::Unsupported {
                what: "GPU architecture",
                name: name.into(),
                supported: all.join(", "),
            });
        };
        Ok(Self {
            ordinal: 0,
            name: name.into(),
            compute: (*major, *minor),
            sm_count,
            l2_bytes: 0,
            shared_bytes: shared_kib << 10,
            total_bytes: 0,
            driver: MIN_DRIVER,
        })
    }
}

/// Every kernel that serving `plan` with `options` runs on a card of architecture `arch`, whatever its
/// number of multiprocessors: in powers of two, between which no tile changes twice.
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
        let card = Context::described(DeviceInfo::of_arch(arch, 1 << bits)?);
        let backend = CudaBackend::on(&card, plan.clone(), weights, options)?;
        found.extend(backend.variants()?);
    }
    let mut sorted: Vec<Variant> = found.into_iter().collect();
    sorted.sort_by(|a, b| (a.source, &a.constants).cmp(&(b.source, &b.constants)));
    Ok(sorted)
}

/// Compiles `variants` for `arch` on all CPU threads, through the cache; returns how many were not
/// there before. `progress` is told how many are done, and of how many; it may break off.
///
/// # Errors
/// What the compiler says, or `progress`.
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
        let is_new = !compiler.is_cached(variant)?;
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
