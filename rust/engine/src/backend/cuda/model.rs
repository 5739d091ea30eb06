//! A plan on the card: weights, cache, buffers, and the list of launches for a number of rows.
//! Eager mode runs that list, a graph is a recording of it.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use super::attention::{Attention, ATTENTION_ROWS, MAX_SPLITS};
use super::compile::{Compiler, Variant};
use super::device::{Context, DeviceBuffer, Stream};
use super::kernels as params;
use super::kv::KvPool;
use super::launch::{Launch, Spec};
use super::matmul::SplitRows;
use super::matvec::MatVec;
use super::program::Programs;
use super::shape::segments;
use super::weights::{DeviceWeights, Order};
use crate::backend::Weights;
use crate::error::{Error, Result};
use crate::plan::fuse::{fuse, Fused, Rules};
use crate::plan::{BufferId, Op, Plan, RopeStyle, Rows, WeightId};
use crate::quant::QuantType;

/// Threads of the element-wise kernels.
const THREADS: u32 = 256;

/// How a model is put on a card.
#[derive(Debug, Clone)]
pub struct Options {
    pub n_slots: usize,
    pub n_ctx: usize,
    /// Pages in the pool, page 0 included.
    pub n_pages: usize,
    pub kv_type: &'static QuantType,
    /// Most rows of one forward pass.
    pub max_rows: usize,
    /// Most rows of logits of one pass.
    pub max_out: usize,
    /// Whether neighbouring ops become one kernel.
    pub fuse: bool,
    /// Whether a kernel may start before its predecessor has ended; none: where the card can.
    pub pdl: Option<bool>,
    /// Folders where the Python package of NVRTC keeps its library.
    pub nvrtc_folders: Vec<std::path::PathBuf>,
}

/// A plan on the card.
#[derive(Debug)]
pub struct CudaModel {
    pub plan: Arc<Plan>,
    fused: Vec<Fused>,
    options: Options,
    weights: DeviceWeights,
    pub kv: KvPool,
    buffers: Vec<DeviceBuffer>,
    pub(super) turns: DeviceBuffer,
    pub(super) split: SplitRows,
    /// Inputs of passes whose rows the host gives.
    pub rows: RowBuffers,
    pub(super) partial: DeviceBuffer,
    pub(super) tickets: DeviceBuffer,
    programs: Programs,
    pub stream: Stream,
    pub context: Arc<Context>,
}

/// Seconds that the parts of loading took, side by side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadTimes {
    /// From the file to units on the card.
    pub upload: f64,
    /// Kernels, from their sources or from the cache, onto the card.
    pub compile: f64,
}

/// What the rows of a pass are, each `[rows]` of u32.
#[derive(Debug)]
pub struct RowBuffers {
    pub tokens: DeviceBuffer,
    pub positions: DeviceBuffer,
    /// Row of the page table.
    pub slots: DeviceBuffer,
    pub out_rows: DeviceBuffer,
    /// Which slot state a row has, where it has one.
    pub state_slots: DeviceBuffer,
}

impl RowBuffers {
    /// Buffers for up to `rows` rows.
    pub fn new(context: &Arc<Context>, rows: usize) -> Result<Self> {
        let buffer = || DeviceBuffer::new(context, rows * 4);
        Ok(Self {
            tokens: buffer()?,
            positions: buffer()?,
            slots: buffer()?,
            out_rows: buffer()?,
            state_slots: buffer()?,
        })
    }

    /// Their addresses, for rows that the host gives.
    pub fn inputs(&self) -> Inputs {
        Inputs {
            tokens: self.tokens.address(),
            positions: self.positions.address(),
            slots: self.slots.address(),
            out_rows: self.out_rows.address(),
            state_slots: self.state_slots.address(),
            state: 0,
        }
    }
}

/// Addresses of what the rows of a pass are; with `state`, tokens and positions come from there.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    pub tokens: u64,
    pub positions: u64,
    pub slots: u64,
    pub out_rows: u64,
    pub state_slots: u64,
    pub state: u64,
}

pub(super) fn constants(list: &[(&str, usize)]) -> String {
    list.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "constexpr int {name} = {value};");
        text
    })
}

/// Which kernels a pass uses. Their sums differ in the last bits, so it is the caller who says which,
/// never the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Steps, compiled for at least `bucket` rows.
    Decode { bucket: usize },
    /// A part of a prompt, all of whose positions are below `span`.
    Prefill { span: usize },
}

/// One pass to lower.
pub(super) struct Pass {
    pub rows: usize,
    pub out: usize,
    pub inputs: Inputs,
    pub path: Path,
    /// Whether every row's logits are wanted, in order: then no row is picked.
    pub all: bool,
}

pub(super) fn labelled(mut spec: Spec, layer: usize) -> Spec {
    spec.label = format!("{} {layer}", spec.entry);
    spec
}

impl CudaModel {
    /// Takes all the memory that passes need; [`CudaModel::load`] fills it.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Argument`], [`Error::Tensor`].
    pub fn new(
        context: &Arc<Context>,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: Options,
    ) -> Result<Self> {
        let stream = Stream::new(context)?;
        let compiler = Compiler::new(context.info.number(), &options.nvrtc_folders);
        let programs = Programs::new(context.clone(), compiler);
        let kv = KvPool::new(
            context,
            &stream,
            plan.kv,
            options.kv_type,
            options.n_pages,
            options.n_slots,
            options.n_ctx,
        )?;
        let rows = options.max_rows;
        let buffer = |bytes: usize| -> Result<DeviceBuffer> {
            let buffer = DeviceBuffer::new(context, bytes)?;
            // Not-a-number: a kernel that reads what none wrote is seen.
            buffer.fill(0xff, &stream)?;
            Ok(buffer)
        };
        let buffers = plan
            .buffers
            .iter()
            .map(|b| {
                let rows = match b.rows {
                    Rows::Batch => rows,
                    Rows::Out => options.max_out,
                };
                buffer(b.width * rows * 4)
            })
            .collect::<Result<Vec<_>>>()?;
        let group = plan
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Attention { n_head, .. } => Some(n_head / plan.kv.n_head_kv.max(1)),
                _ => None,
            })
            .max()
            .unwrap_or(1);
        let split_floats = group * (plan.kv.head_dim + 2);
        // A step's attention is one launch, whatever its rows.
        let attention_rows = options.max_out.max(ATTENTION_ROWS).min(rows);
        let heads = attention_rows * plan.kv.n_head_kv;
        let partial = buffer(heads * MAX_SPLITS * split_floats * 4)?;
        let tickets = buffer(heads * 4)?;
        tickets.fill(0, &stream)?;
        let half = plan.rope.inv_freq.len();
        let turns = DeviceBuffer::new(context, options.n_ctx * half * 8)?;
        if !context.is_described() {
            let values = Self::turns(&plan, weights, options.n_ctx)?;
            turns.write(0, &values, &stream)?;
        }
        let rules = Rules {
            fuse: options.fuse,
            scatter: !options.kv_type.kernel.kv_in_blocks(),
        };
        let fused = fuse(&plan, rules);
        let widest = fused.iter().filter_map(|op| match op {
            Fused::MatVec { x, .. } => Some(plan.buffer(*x).width),
            Fused::Single(_) => None,
        });
        let split = SplitRows::new(context, &stream, rows, widest.max().unwrap_or(0))?;
        let mut model = Self {
            fused,
            kv,
            buffers,
            turns,
            split,
            rows: RowBuffers::new(context, rows)?,
            partial,
            tickets,
            weights: DeviceWeights::default(),
            programs,
            stream,
            context: context.clone(),
            plan,
            options,
        };
        model.reserve()?;
        Ok(model)
    }

    /// Cosine and sine of every position, `[n_ctx][half][2]`, as the interpreter computes them.
    fn turns(plan: &Plan, weights: &dyn Weights, n_ctx: usize) -> Result<Vec<f32>> {
        use rayon::prelude::*;
        let table = &plan.rope;
        let mut inv_freq = table.inv_freq.clone();
        if let Some(id) = table.factors {
            let w = plan.weight(id);
            let mut factors = vec![0.0f32; w.n_in];
            (w.ty.dequantize)(weights.of(w)?, &mut factors);
            inv_freq
                .iter_mut()
                .zip(factors)
                .for_each(|(f, d)| *f /= f64::from(d));
        }
        let turns = (0..n_ctx).into_par_iter().flat_map_iter(|position| {
            inv_freq.iter().flat_map(move |f| {
                let (sin, cos) = (position as f64 * f).sin_cos();
                [(cos * table.scale) as f32, (sin * table.scale) as f32]
            })
        });
        Ok(turns.collect())
    }

    /// Takes the memory for the weights of every op.
    fn reserve(&mut self) -> Result<()> {
        let mut reserved = DeviceWeights::default();
        let plan = self.plan.clone();
        for op in &self.fused {
            let (matrices, vectors) = match op {
                Fused::MatVec {
                    norm,
                    parts,
                    epilogue,
                    ..
                } => {
                    let biases = parts.iter().filter_map(|p| p.bias);
                    let vectors = norm.map(|n| n.0).into_iter().chain(biases).collect();
                    (self.arrangement(parts, epilogue), vectors)
                }
                Fused::Single(Op::Embed { weight, .. }) => {
                    (vec![(vec![*weight], Order::Natural)], vec![])
                }
                Fused::Single(Op::RmsNorm { weight, .. }) => (vec![], vec![*weight]),
                Fused::Single(_) => (vec![], vec![]),
            };
            for (ids, order) in matrices {
                reserved.reserve_matrix(&plan, &ids, order, &self.context)?;
            }
            for id in vectors {
                reserved.reserve_vector(&plan, id, &self.context)?;
            }
        }
        self.weights = reserved;
        Ok(())
    }

    /// Uploads the weights, and meanwhile compiles the kernels of `specs`; others are compiled on
    /// first use. `progress` is told the bytes that are done, and of how many; it may break off.
    ///
    /// # Errors
    /// [`Error::Tensor`], [`Error::Device`], [`Error::Memory`], what `progress` says.
    pub fn load(
        &self,
        weights: &dyn Weights,
        specs: &[Spec],
        progress: &dyn Fn(u64, u64) -> Result<()>,
    ) -> Result<LoadTimes> {
        let mut staging = self.weights.staging(&self.context)?;
        if self.context.is_described() {
            return Ok(LoadTimes::default());
        }
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| {
                let compiled = self.programs.prepare(specs.iter().map(|s| &s.variant));
                compiled.map(|()| begun.elapsed().as_secs_f64())
            });
            let uploaded = self.weights.upload(
                &self.plan,
                weights,
                &self.programs,
                &mut staging,
                &self.stream,
                progress,
            );
            let upload = begun.elapsed().as_secs_f64();
            let compile = compiling.join().unwrap_or_else(|_| {
                Err(Error::Internal(
                    "the thread that compiles ended early".into(),
                ))
            });
            uploaded?;
            Ok(LoadTimes {
                upload,
                compile: compile?,
            })
        })
    }

    /// Folders to look for NVRTC in.
    pub(super) fn nvrtc_folders(&self) -> &[std::path::PathBuf] {
        &self.options.nvrtc_folders
    }

    /// The kernels that rewrite the weights.
    pub(super) fn repack_variants(&self) -> impl Iterator<Item = Variant> + '_ {
        self.weights.variants()
    }

    /// Bytes of weights on the card.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// The buffer of a plan's buffer.
    pub fn buffer(&self, id: BufferId) -> &DeviceBuffer {
        &self.buffers[id.0]
    }

    /// Most rows of logits of one pass.
    pub fn max_out(&self) -> usize {
        self.options.max_out
    }

    /// The launches for `rows` rows of which `out` give logits.
    pub fn launches(
        &self,
        rows: usize,
        out: usize,
        inputs: &Inputs,
        path: Path,
    ) -> Result<Vec<Launch>> {
        let mut list = self
            .programs
            .launches(self.specs(rows, out, inputs, path)?)?;
        self.chain(&mut list);
        Ok(list)
    }

    /// As [`CudaModel::specs`] for a pass that gives the logits of all its rows, in order.
    pub fn step_specs(&self, rows: usize, inputs: &Inputs) -> Result<Vec<Spec>> {
        self.lower_pass(Pass {
            rows,
            out: rows,
            inputs: *inputs,
            path: Path::Decode { bucket: rows },
            all: true,
        })
    }

    /// The same, before anything is compiled.
    pub fn specs(&self, rows: usize, out: usize, inputs: &Inputs, path: Path) -> Result<Vec<Spec>> {
        let pass = Pass {
            rows,
            out,
            inputs: *inputs,
            path,
            all: false,
        };
        self.lower_pass(pass)
    }

    fn lower_pass(&self, pass: Pass) -> Result<Vec<Spec>> {
        let Pass { rows, out, .. } = pass;
        if rows == 0 || rows > self.options.max_rows || out > self.options.max_out {
            return Err(Error::Internal(format!(
                "{rows} rows, {out} of them out, in one pass"
            )));
        }
        let mut list = Vec::new();
        for op in &self.fused {
            self.lower(op, &pass, &mut list)?;
        }
        Ok(list)
    }

    /// Launches for any specs of this card.
    pub fn compile(&self, specs: Vec<Spec>) -> Result<Vec<Launch>> {
        let mut list = self.programs.launches(specs)?;
        self.chain(&mut list);
        Ok(list)
    }

    /// Whether launches are programmatic.
    fn pdl(&self) -> bool {
        self.options.pdl.unwrap_or(true) && self.context.info.has_pdl()
    }

    /// Lets each launch start before its predecessor has ended, where the card can.
    fn chain(&self, list: &mut [Launch]) {
        let pdl = self.pdl();
        // The first has no predecessor in the list: it waits for all that came before.
        for launch in list.iter_mut().skip(1) {
            launch.pdl = pdl;
        }
    }

    pub(super) fn rows_of(&self, id: BufferId, rows: usize, out: usize) -> usize {
        match self.plan.buffer(id).rows {
            Rows::Batch => rows,
            Rows::Out => out,
        }
    }

    /// The buffer that an op reads: where no row is picked, the one to pick from.
    pub(super) fn source(&self, id: BufferId, pass: &Pass) -> u64 {
        let picked = self.plan.ops.iter().find_map(|op| match op {
            Op::SelectRows { x, out } if *out == id && pass.all => Some(*x),
            _ => None,
        });
        self.address(picked.unwrap_or(id))
    }

    pub(super) fn address(&self, id: BufferId) -> u64 {
        self.buffers[id.0].address()
    }

    fn lower(&self, op: &Fused, pass: &Pass, list: &mut Vec<Spec>) -> Result<()> {
        let Pass {
            rows,
            out: out_rows,
            inputs,
            ..
        } = *pass;
        let op = match op {
            Fused::MatVec {
                x,
                norm,
                parts,
                epilogue,
            } => {
                let op = MatVec {
                    x: *x,
                    norm: *norm,
                    parts,
                    epilogue,
                };
                return self.mat_vec(&op, pass, list);
            }
            Fused::Single(op) => op,
        };
        let plan = &self.plan;
        let dim = plan.kv.head_dim;
        let (positions, slots) = (inputs.positions, inputs.slots);
        let kv_struct = self.kv.ty.kernel.kv_struct();
        let elements =
            |id: BufferId| (self.rows_of(id, rows, out_rows) * plan.buffer(id).width) as u64;
        let grid = |n: u64| [n.div_ceil(u64::from(THREADS)).clamp(1, 1024) as u32, 1, 1];
        let launch = match *op {
            Op::MatVec { .. } => {
                return Err(Error::Internal("a mat-vec that was not fused".into()))
            }
            Op::Embed { weight, out } => {
                let w = plan.weight(weight);
                let text = constants(&[("N_IN", w.n_in)]) + &segments(&[w.ty]);
                let variant = Variant {
                    source: "embed.cu",
                    constants: text,
                };
                let units = self.units(&[weight], Order::Natural)?;
                let p = params::Embed {
                    units: units.0,
                    out: self.address(out),
                    tokens: inputs.tokens,
                    positions,
                    slots,
                    state: inputs.state,
                    state_slots: inputs.state_slots,
                    n_rows: w.n_out as u32,
                    unused: 0,
                };
                Spec::new(variant, "embed", [rows as u32, 1, 1], THREADS, &p)
            }
            Op::RmsNorm {
                x,
                weight,
                out,
                group,
                eps,
            } => {
                let variant = Variant {
                    source: "rms_norm.cu",
                    constants: constants(&[("GROUP", group)]),
                };
                let groups = elements(x) / group as u64;
                let p = params::RmsNorm {
                    x: self.source(x, pass),
                    out: self.address(out),
                    weight: self.vector(weight)?,
                    eps,
                    groups: groups as u32,
                };
                Spec::new(variant, "rms_norm", [groups as u32, 1, 1], 256, &p)
            }
            Op::Rope { x, n_head, style } => {
                let text = constants(&[
                    ("N_HEAD", n_head),
                    ("HEAD_DIM", plan.buffer(x).width / n_head),
                    ("HALF", plan.rope.inv_freq.len()),
                    ("INTERLEAVED", usize::from(style == RopeStyle::Interleaved)),
                ]);
                let variant = Variant {
                    source: "rope.cu",
                    constants: text,
                };
                let p = params::Rope {
                    x: self.address(x),
                    turns: self.turns.address(),
                    positions,
                    n_ctx: self.kv.n_ctx() as u32,
                    unused: 0,
                };
                Spec::new(variant, "rope", [rows as u32, 1, 1], THREADS, &p)
            }
            Op::KvScatter { k, v, layer } => {
                let text = constants(&[("N_HEAD_KV", plan.kv.n_head_kv), ("HEAD_DIM", dim)])
                    + &format!("using Kv = {kv_struct};\n");
                let (source, entry) = match self.kv.ty.kernel.kv_in_blocks() {
                    true => ("kv_scatter_blocks.cu", "kv_scatter_blocks"),
                    false => ("kv_scatter.cu", "kv_scatter"),
                };
                let variant = Variant {
                    source,
                    constants: text,
                };
                let p = params::KvScatter {
                    k: self.address(k),
                    v: self.address(v),
                    positions,
                    slots,
                    kv: self.kv.view(layer),
                };
                labelled(
                    Spec::new(variant, entry, [rows as u32, 1, 1], THREADS, &p),
                    layer,
                )
            }
            Op::Attention {
                q,
                out,
                layer,
                n_head,
                scale,
            } => {
                let op = Attention {
                    q,
                    out,
                    layer,
                    n_head,
                    scale,
                };
                list.extend(self.attention(&op, rows, &inputs, pass.path));
                return Ok(());
            }
            Op::Add { x, out } => {
                let variant = Variant {
                    source: "elementwise.cu",
                    constants: String::new(),
                };
                let n = elements(out);
                let p = params::Add {
                    x: self.address(x),
                    out: self.address(out),
                    n,
                };
                Spec::new(variant, "add", grid(n), THREADS, &p)
            }
            Op::SwiGlu { gate, up, out } => {
                let variant = Variant {
                    source: "elementwise.cu",
                    constants: String::new(),
                };
                let n = elements(out);
                let (gate, up) = (self.address(gate), self.address(up));
                let p = params::SwiGlu {
                    gate,
                    up,
                    out: self.address(out),
                    n,
                };
                Spec::new(variant, "swiglu", grid(n), THREADS, &p)
            }
            Op::SelectRows { x, out } => {
                let variant = Variant {
                    source: "elementwise.cu",
                    constants: String::new(),
                };
                let p = params::SelectRows {
                    x: self.address(x),
                    out: self.address(out),
                    rows: inputs.out_rows,
                    width: plan.buffer(x).width as u32,
                    unused: 0,
                };
                if out_rows == 0 || pass.all {
                    return Ok(());
                }
                Spec::new(variant, "select_rows", [out_rows as u32, 1, 1], THREADS, &p)
            }
        };
        list.push(launch);
        Ok(())
    }

    /// Address and tiles of uploaded units.
    pub(super) fn units(&self, ids: &[WeightId], order: Order) -> Result<(u64, usize)> {
        self.weights.units(ids, order)
    }

    pub(super) fn vector(&self, id: WeightId) -> Result<u64> {
        self.weights.address(id)
    }
}
