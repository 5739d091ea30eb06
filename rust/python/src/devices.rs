//! What there is to run on, beside the CPU.
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use onegraph::backend::cuda::driver::compile::cache_dir;
use onegraph::backend::cuda::driver::context::Context;
use onegraph::backend::cuda::driver::device;
use onegraph::backend::cuda::driver::info::DeviceInfo;
use onegraph::backend::cuda::driver::nvrtc::Nvrtc;
use onegraph::backend::cuda::driver::peaks;
use onegraph::backend::cuda::run::shapes::{self, Chosen};
use onegraph::engine::{self, Options};
use onegraph::{Error, Result};
use pyo3::prelude::*;
use serde_json::{json, Value};

use crate::errors::{attached, detached, to_py};
use crate::llm::count;

fn card(ordinal: usize) -> Result<(DeviceInfo, Value)> {
    let info = device::info(ordinal)?;
    let (free, error) = match Context::new(ordinal).and_then(|context| context.memory()) {
        Ok((free, _)) => (Some(free), None),
        Err(e) => (None, Some(e.to_string())),
    };
    let described = json!({
        "device": format!("cuda:{ordinal}"),
        "name": info.name,
        "arch": info.arch(),
        "sm_count": info.sm_count,
        "total_bytes": info.total_bytes,
        "free_bytes": free,
        "programmatic_launch": info.has_pdl(),
        "shapes": shapes_of(&info),
        "error": error,
    });
    Ok((info, described))
}

/// Whose shapes the kernels of a card have, and why; or what is wrong with them.
fn shapes_of(info: &DeviceInfo) -> Value {
    match shapes::of(info) {
        Ok((row, chosen)) => json!({
            "card": row.card,
            "arch": format!("sm_{}{}", row.compute.0, row.compute.1),
            "sm_count": row.sm_count,
            "record": row.record,
            "chosen": match &chosen {
                Chosen::Own => "its own",
                Chosen::Nearest => "the nearest",
                Chosen::Named(_) => "named",
            },
            "file": match &chosen {
                Chosen::Named(path) => Some(path.display().to_string()),
                Chosen::Own | Chosen::Nearest => None,
            },
            "error": null,
        }),
        Err(e) => json!({"error": e.to_string()}),
    }
}

/// Cards, driver, compiler and kernel cache as JSON; what is missing says why.
#[pyfunction]
pub fn cuda_devices(py: Python<'_>, nvrtc_folders: Vec<PathBuf>) -> PyResult<String> {
    detached(py, || {
        let found: Result<Vec<_>> = device::count().and_then(|n| (0..n).map(card).collect());
        let (cards, error) = match found {
            Ok(cards) => (cards, None),
            Err(e) => (Vec::new(), Some(e.to_string())),
        };
        let driver = cards
            .first()
            .map(|(info, _)| format!("{}.{}", info.driver / 1000, info.driver % 1000 / 10));
        let nvrtc = match Nvrtc::find(&nvrtc_folders) {
            Ok(nvrtc) => json!({
                "path": nvrtc.path().display().to_string(),
                "version": format!("{}.{}", nvrtc.version().0, nvrtc.version().1),
                "error": null,
            }),
            Err(e) => json!({"path": null, "version": null, "error": e.to_string()}),
        };
        let all = json!({
            "cards": cards.into_iter().map(|(_, described)| described).collect::<Vec<_>>(),
            "driver": driver,
            "error": error,
            "nvrtc": nvrtc,
            "kernel_cache": cache_dir().map(|path| path.display().to_string()),
        });
        Ok(all.to_string())
    })
}

/// Compiles the kernels that a model needs on a card of architecture `arch` into the cache; returns
/// how many there are and how many are new. `progress(done, total)` is called now and then and may
/// raise. For the main thread, since it runs Python code.
#[pyfunction]
#[pyo3(signature = (path, arch, *, n_ctx, max_batch, kv_type, prefill_chunk, nvrtc_folders,
                    progress))]
#[allow(clippy::too_many_arguments)]
pub fn compile_kernels(
    py: Python<'_>,
    path: PathBuf,
    arch: &str,
    n_ctx: Option<i64>,
    max_batch: i64,
    kv_type: String,
    prefill_chunk: Option<i64>,
    nvrtc_folders: Vec<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(usize, usize)> {
    let options = || -> Result<Options> {
        Ok(Options {
            n_ctx: n_ctx.map(|n| count("n_ctx", n)).transpose()?,
            max_batch: count("max_batch", max_batch)?,
            kv_type,
            prefill_chunk: prefill_chunk
                .map(|n| count("prefill_chunk", n))
                .transpose()?,
            nvrtc_folders,
            ..Options::default()
        })
    };
    let options = options().map_err(to_py)?;
    let raised = Mutex::new(None);
    let told = |done, total| {
        let called = attached(|py| {
            py.check_signals()?;
            match &progress {
                Some(f) => f.call1(py, (done, total)).map(|_| ()),
                None => Ok(()),
            }
        });
        called.map_err(|e| {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
            Error::Cancelled
        })
    };
    let done = detached(py, || engine::compile_kernels(&path, &options, arch, &told));
    match raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => done,
    }
}

/// Bytes a second at which card `ordinal` reads its memory, and the bytes that were read for it.
#[pyfunction]
#[pyo3(signature = (ordinal, nvrtc_folders, bytes=None, turns=10))]
pub fn cuda_read_peak(
    py: Python<'_>,
    ordinal: usize,
    nvrtc_folders: Vec<PathBuf>,
    bytes: Option<usize>,
    turns: usize,
) -> PyResult<(f64, usize)> {
    detached(py, || {
        peaks::read_peak(ordinal, &nvrtc_folders, bytes, turns)
    })
}

/// Compares about `sums` sums of sub-blocks on a card with sums of integers: of each type its name,
/// how many they were, and how many are not exact.
#[pyfunction]
pub fn check_sums(
    py: Python<'_>,
    device: &str,
    nvrtc_folders: Vec<PathBuf>,
    sums: i64,
) -> PyResult<Vec<(&'static str, u64, u64)>> {
    let sums: u64 = count("sums", sums).map_err(to_py)?;
    let found = detached(py, || engine::check_sums(device, &nvrtc_folders, sums))?;
    Ok(found.iter().map(|c| (c.ty, c.sums, c.wrong)).collect())
}
