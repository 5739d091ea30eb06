//! Runs any plan on the card with explicit rows and buffers: the surface that tests compare with
//! the interpreter, eagerly or through a captured graph.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::VecDeque;
use std::sync::Arc;

use super::device::Context;
use super::graph::Graph;
use super::launch::{run_all, Launch};
use super::model::{CudaModel, Options, Path};
use super::timing::{launch_us, run_us};
use crate::backend::{Batch, GraphMode, KernelTime, Profile, Runner, RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, Rows};

/// More rows than this are taken for a prompt's.
const STEP_ROWS: usize = 64;

/// Graphs that are kept; the one of the pass longest ago becomes that of a new pass.
const MOST_GRAPHS: usize = 32;

/// A runner on a card.
pub struct CudaRunner {
    // Graphs go first: they use what the model owns.
    graphs: HashMap<(usize, usize), Graph>,
    /// Keys of `graphs`, the pass longest ago first.
    used: VecDeque<(usize, usize)>,
    lists: HashMap<(usize, usize), Vec<Launch>>,
    capture: bool,
    last: (usize, usize),
    model: CudaModel,
}

impl CudaRunner {
    /// A runner on card `ordinal`; with `capture` every pass is a replay.
    pub fn new(
        ordinal: usize,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
        max_rows: usize,
    ) -> Result<Self> {
        let options_model = Options {
            n_slots: options.n_slots,
            n_ctx: options.n_ctx,
            n_pages: options.n_pages,
            kv_type: options.kv_type,
            max_rows,
            max_out: max_rows,
            fuse: options.gpu.fuse,
            pdl: options.gpu.pdl,
            nvrtc_folders: options.gpu.nvrtc_folders.clone(),
        };
        let context = Context::new(ordinal)?;
        let model = CudaModel::new(&context, plan, weights, options_model)?;
        model.load(weights, &[], &|_, _| Ok(()))?;
        Ok(Self {
            graphs: HashMap::new(),
            used: VecDeque::new(),
            lists: HashMap::new(),
            capture: options.gpu.mode != GraphMode::None,
            last: (0, 0),
            model,
        })
    }
}

impl Runner for CudaRunner {
    fn plan(&self) -> &Plan {
        &self.model.plan
    }

    fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        self.model
            .kv
            .map_pages(slot, first, pages, &self.model.stream)
    }

    fn write(&mut self, id: BufferId, rows: &[f32]) -> Result<()> {
        self.model.buffer(id).write(0, rows, &self.model.stream)
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<()> {
        let model = &self.model;
        let (rows, out) = (batch.tokens.len(), batch.out_rows.len());
        for op in &model.plan.ops {
            let Op::Embed { weight, .. } = op else {
                continue;
            };
            let n_vocab = model.plan.weight(*weight).n_out;
            if let Some(token) = batch.tokens.iter().find(|t| **t as usize >= n_vocab) {
                return Err(Error::Argument {
                    name: "token",
                    value: token.to_string(),
                    reason: format!("the vocabulary has {n_vocab} tokens"),
                });
            }
        }
        model.rows.tokens.write(0, batch.tokens, &model.stream)?;
        model
            .rows
            .positions
            .write(0, batch.positions, &model.stream)?;
        model.rows.slots.write(0, batch.slots, &model.stream)?;
        model
            .rows
            .out_rows
            .write(0, batch.out_rows, &model.stream)?;
        let key = (rows, out);
        let list = match self.lists.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let path = if rows > STEP_ROWS {
                    let span = model.kv.n_ctx();
                    Path::Prefill { span }
                } else {
                    Path::Decode { bucket: rows }
                };
                new.insert(model.launches(rows, out, &model.rows.inputs(), path)?)
            }
        };
        if self.capture && !list.is_empty() {
            self.used.retain(|known| *known != key);
            if !self.graphs.contains_key(&key) {
                let oldest = (self.graphs.len() >= MOST_GRAPHS)
                    .then(|| self.used.pop_front())
                    .flatten();
                let graph = match oldest.and_then(|known| self.graphs.remove(&known)) {
                    Some(mut graph) => {
                        graph.update(&model.stream, list)?;
                        graph
                    }
                    None => Graph::capture(&model.stream, list)?,
                };
                self.graphs.insert(key, graph);
            }
            self.used.push_back(key);
            if let Some(graph) = self.graphs.get(&key) {
                graph.replay(&model.stream)?;
            }
        } else {
            run_all(list, &model.stream)?;
        }
        self.last = key;
        model.stream.synchronize()?;
        model.kv.take_error().map_or(Ok(()), Err)
    }

    fn read(&mut self, id: BufferId) -> Result<Vec<f32>> {
        let buffer = self.model.plan.buffer(id);
        let rows = match buffer.rows {
            Rows::Batch => self.last.0,
            Rows::Out => self.last.1,
        };
        let mut values = vec![0.0f32; rows * buffer.width];
        self.model
            .buffer(id)
            .read(0, &mut values, &self.model.stream)?;
        Ok(values)
    }

    fn saturated(&self, slot: usize) -> bool {
        self.model.kv.saturated(slot)
    }

    fn read_kv(&mut self) -> Result<Vec<u8>> {
        self.model.kv.read_all(&self.model.stream)
    }

    fn write_kv(&mut self, bytes: &[u8]) -> Result<()> {
        self.model.kv.write_all(bytes, &self.model.stream)
    }

    fn profile(&mut self, repeats: usize) -> Result<Profile> {
        let list = self.lists.get(&self.last).cloned().unwrap_or_default();
        let graph = self.graphs.get(&self.last);
        let stream = &self.model.stream;
        let context = &self.model.context;
        let again = || match graph {
            Some(graph) => graph.replay(stream),
            None => run_all(&list, stream),
        };
        let whole = run_us(context, stream, repeats, || Ok(()), again)?;
        let times = launch_us(context, stream, &list, repeats.clamp(1, 20), || Ok(()))?;
        let kernels = list.iter().zip(times).map(|(launch, us)| KernelTime {
            label: launch.spec.label.clone(),
            us,
            bytes: launch.spec.bytes,
        });
        Ok(Profile {
            replay_us: whole,
            kernels: kernels.collect(),
        })
    }
}
