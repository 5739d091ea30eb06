//! What a model is, before it is loaded.
use std::path::PathBuf;

use onegraph::arch;
use onegraph::config::Config;
use onegraph::engine::Options;
use onegraph::error::{Error, Result};
use onegraph::info::ModelInfo;
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

/// The plan, one op a line, or as JSON.
#[pyfunction]
#[pyo3(signature = (path, json=false))]
pub fn model_plan(py: Python<'_>, path: PathBuf, json: bool) -> PyResult<String> {
    detached(py, || {
        let model = Model::open(&path)?;
        arch::find(Config::architecture(&model.gguf)?)?;
        let plan = arch::plan(&model.config()?)?;
        if json {
            to_json(&plan)
        } else {
            Ok(plan.to_string())
        }
    })
}
