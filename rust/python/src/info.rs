//! What a model is, before it is loaded.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onegraph::arch;
use onegraph::backend::cuda::driver::device;
use onegraph::backend::cuda::driver::info::DeviceInfo;
use onegraph::backend::cuda::lower::shapes::Shapes;
use onegraph::config::Config;
use onegraph::engine::Options;
use onegraph::error::{Error, Result};
use onegraph::info::ModelInfo;
use onegraph::plan::fuse::{FusedPlan, PassShape};
use onegraph::plan::Plan;
use onegraph::quant::DEFAULT_KV;
use onegraph::weights::Model;
use pyo3::prelude::*;

use crate::errors::detached;

fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Internal(format!("no JSON: {e}")))
}

/// [`ModelInfo`] as JSON.
#[pyfunction]
#[pyo3(signature = (path, n_ctx=None, max_batch=8, kv_type=DEFAULT_KV, device="auto"))]
pub fn model_info(
    py: Python<'_>,
    path: PathBuf,
    n_ctx: Option<usize>,
    max_batch: usize,
    kv_type: &str,
    device: &str,
) -> PyResult<String> {
    let options = Options {
        n_ctx,
        max_batch,
        kv_type: kv_type.to_owned(),
        device: device.to_owned(),
        ..Options::default()
    };
    detached(py, || {
        to_json(&ModelInfo::new(&Model::open(&path)?, &options)?)
    })
}

/// The card that a plan is fused for where there is none: an H100 or H200.
const ARCH: (&str, u32) = ("sm_90", 132);

fn plan_of(path: &Path) -> Result<Plan> {
    let model = Model::open(path)?;
    arch::find(Config::architecture(&model.gguf)?)?;
    arch::plan(&model.config()?)
}

/// The fused plan of a step of `rows` rows, one op a line: on the first card, or where there is none on one
/// of 132 multiprocessors.
#[pyfunction]
pub fn fused_plan(py: Python<'_>, path: PathBuf, rows: usize) -> PyResult<String> {
    detached(py, || {
        let plan = Arc::new(plan_of(&path)?);
        let card = device::info(0).or_else(|_| DeviceInfo::of_arch(ARCH.0, ARCH.1))?;
        let shape = PassShape {
            rows,
            out: rows,
            is_step: true,
            sms: card.sm_count as usize,
            expert_rows: Shapes::of(&card)?.matvec.expert_rows,
        };
        Ok(FusedPlan::new(&plan, true).listed(&shape))
    })
}

/// The plan, one op a line, or as JSON.
#[pyfunction]
#[pyo3(signature = (path, json=false))]
pub fn model_plan(py: Python<'_>, path: PathBuf, json: bool) -> PyResult<String> {
    detached(py, || {
        let plan = plan_of(&path)?;
        if json {
            to_json(&plan)
        } else {
            Ok(plan.to_string())
        }
    })
}
