//! `_native.PlanRunner`: any plan on any backend, with explicit buffers. Tests stand on it; it is no
//! part of the public interface.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use onegraph::backend::{self, Batch, GpuOptions, GraphMode, Runner, RunnerOptions, Weights};
use onegraph::plan::{BufferId, Plan};
use onegraph::weights::Model;
use onegraph::{arch, quant, Error};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{detached, to_py};

struct Tensors(HashMap<String, Vec<u8>>);

impl Weights for Tensors {
    fn bytes(&self, name: &str) -> onegraph::Result<&[u8]> {
        self.0
            .get(name)
            .map(Vec::as_slice)
            .ok_or_else(|| Error::Tensor {
                name: name.to_owned(),
                found: "nothing".into(),
                expected: "bytes".into(),
                remedy: "pass it in weights".into(),
            })
    }
}

/// Runs a plan, given as JSON, on `device`.
#[pyclass(module = "onegraph._native")]
pub struct PlanRunner {
    inner: Mutex<Box<dyn Runner>>,
}

impl PlanRunner {
    fn inner(&mut self) -> &mut dyn Runner {
        self.inner
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
    }

    fn id(&mut self, name: &str) -> PyResult<BufferId> {
        let buffers = &self.inner().plan().buffers;
        buffers
            .iter()
            .position(|b| b.name == name)
            .map(BufferId)
            .ok_or_else(|| {
                to_py(Error::Argument {
                    name: "buffer",
                    value: name.to_owned(),
                    reason: "the plan has none with this name".into(),
                })
            })
    }
}

fn json_error(e: &serde_json::Error) -> PyErr {
    to_py(Error::Argument {
        name: "plan",
        value: "the JSON".into(),
        reason: e.to_string(),
    })
}

/// A plan of the drafter of a model.
fn part_of(plan: Plan, name: &str) -> onegraph::Result<Plan> {
    match (plan.drafter, name) {
        (Some(drafter), "follow") => Ok(drafter.follow),
        (Some(drafter), "guess") => Ok(drafter.guess),
        (drafter, _) => Err(Error::Argument {
            name: "part",
            value: name.into(),
            reason: format!("drafter: {}", drafter.is_some()),
        }),
    }
}

#[pymethods]
impl PlanRunner {
    #[new]
    /// `plan` is JSON with its `weights`, or, without them, the path of a model, of which `part` is one of
    /// `model`, `follow` and `guess`, its drafter's: that of the file `draft` where one is named.
    #[pyo3(signature = (device, plan, weights=None, *, n_slots=1, n_ctx=64, n_pages=2, kv_type="F32", threads=1, capture=false, fuse=true, pdl=None, nvrtc_folders=vec![], part="model", draft=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        device: &str,
        plan: &str,
        weights: Option<HashMap<String, Vec<u8>>>,
        n_slots: usize,
        n_ctx: usize,
        n_pages: usize,
        kv_type: &str,
        threads: usize,
        capture: bool,
        fuse: bool,
        pdl: Option<bool>,
        nvrtc_folders: Vec<std::path::PathBuf>,
        part: &str,
        draft: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let kv_type = quant::kv_by_name(kv_type).map_err(to_py)?;
        let options = RunnerOptions {
            n_slots,
            n_ctx,
            n_pages,
            windows: None,
            kv_type,
            threads,
            gpu: GpuOptions {
                mode: if capture {
                    GraphMode::Full
                } else {
                    GraphMode::None
                },
                fuse,
                pdl,
                nvrtc_folders,
                ..GpuOptions::default()
            },
        };
        let inner = match weights {
            Some(weights) => {
                let plan: Plan = serde_json::from_str(plan).map_err(|e| json_error(&e))?;
                detached(py, || {
                    backend::runner(device, plan, Arc::new(Tensors(weights)), &options)
                })?
            }
            None => detached(py, || {
                let mut model = Model::open(plan)?;
                let config = model.config()?;
                let plan = arch::plan(&config)?;
                let plan = match (part, draft) {
                    ("model", _) => plan,
                    (_, None) => part_of(arch::with_drafter(&config, plan)?, part)?,
                    (_, Some(file)) => {
                        let draft = Model::open(file)?;
                        let plan = arch::with_draft(plan, &draft.config()?)?;
                        model.take_in(draft, arch::DRAFT);
                        part_of(plan, part)?
                    }
                };
                backend::runner(device, plan, Arc::new(model), &options)
            })?,
        };
        Ok(Self {
            inner: Mutex::new(inner),
        })
    }

    fn map_pages(&mut self, slot: usize, first: usize, pages: Vec<u32>) -> PyResult<()> {
        self.inner().map_pages(slot, first, &pages).map_err(to_py)
    }

    /// Sets a buffer: float32, little-endian, `[rows, width]`.
    fn write(&mut self, name: &str, rows: &[u8]) -> PyResult<()> {
        let id = self.id(name)?;
        self.inner().write(id, &floats(rows)).map_err(to_py)
    }

    #[pyo3(signature = (tokens, positions, slots, out_rows, types = Vec::new()))]
    fn forward(
        &mut self,
        py: Python<'_>,
        tokens: Vec<u32>,
        positions: Vec<u32>,
        slots: Vec<u32>,
        out_rows: Vec<u32>,
        types: Vec<u32>,
    ) -> PyResult<()> {
        let runner = self.inner();
        detached(py, || {
            runner.forward(&Batch {
                tokens: &tokens,
                positions: &positions,
                slots: &slots,
                types: &types,
                out_rows: &out_rows,
            })
        })
    }

    /// A buffer: float32, little-endian, `[rows, width]`.
    fn read<'py>(&mut self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let id = self.id(name)?;
        let runner = self.inner();
        let values = detached(py, || runner.read(id))?;
        Ok(PyBytes::new(py, &bytes_of(&values)))
    }

    /// Times the last pass again, as JSON: `replay_us` and the fields of each kernel.
    fn profile(&mut self, py: Python<'_>, repeats: usize) -> PyResult<String> {
        let runner = self.inner();
        let profile = detached(py, || runner.profile(repeats))?;
        serde_json::to_string(&profile).map_err(|e| json_error(&e))
    }

    fn saturated(&mut self, slot: usize) -> bool {
        self.inner().saturated(slot)
    }

    fn read_kv<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let runner = self.inner();
        let bytes = detached(py, || runner.read_kv())?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn write_kv(&mut self, bytes: &[u8]) -> PyResult<()> {
        self.inner().write_kv(bytes).map_err(to_py)
    }

    /// What `slot` keeps beside keys and values: float32, little-endian.
    fn read_state<'py>(&mut self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyBytes>> {
        let runner = self.inner();
        let values = detached(py, || runner.read_state(slot))?;
        Ok(PyBytes::new(py, &bytes_of(&values)))
    }

    fn write_state(&mut self, slot: usize, values: &[u8]) -> PyResult<()> {
        let values = floats(values);
        self.inner().write_state(slot, &values).map_err(to_py)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
