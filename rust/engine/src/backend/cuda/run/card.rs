//! A plan on a card: all its memory, and the launches for a number of rows. Eager mode runs those,
//! a graph is a recording of them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use super::exchange::{Abort, Exchange};
use super::kv::KvPool;
use super::rows::RowBuffers;
use super::shapes;
use super::states::{poisoned, StatePool};
use super::weights::DeviceWeights;
use crate::backend::cuda::driver::ahead::Ahead;
use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::compile::Compiler;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::launch::Launch;
use crate::backend::cuda::driver::program::Programs;
use crate::backend::cuda::driver::ranges::Range;
use crate::backend::cuda::driver::source::Variant;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::attention;
use crate::backend::cuda::lower::exchange::capacity;
use crate::backend::cuda::lower::layout::wanted;
use crate::backend::cuda::lower::lowering::{
    Addresses, ExchangeAddresses, Lowering, Pass, ScratchAddresses,
};
use crate::backend::cuda::lower::overflow;
use crate::backend::cuda::lower::params::KvView;
use crate::backend::cuda::lower::pass::{self, Scratch};
use crate::backend::cuda::lower::rounds::{self, Drawn};
use crate::backend::{no_drafter, RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::fuse::FusedPlan;
use crate::plan::{BufferId, Plan, RopeTable};

/// A plan on a card.
#[derive(Debug)]
pub struct Card {
    lowering: Lowering,
    /// Of the drafter what follows and what guesses, where the plan has one.
    drafter: Vec<Lowering>,
    weights: DeviceWeights,
    pub kv: KvPool,
    pub states: StatePool,
    buffers: Vec<DeviceBuffer>,
    _angles: Vec<DeviceBuffer>,
    /// A word a slot: see [`overflow`]. Behind its own, those of the cards whose reports are heard here.
    overflows: Vec<Arc<HostBuffer>>,
    exchange: Option<Exchange>,
    /// The same of the drafter, which nobody reads.
    _unheard: HostBuffer,
    scratch: ScratchBuffers,
    /// Inputs of passes whose rows the host gives.
    pub rows: RowBuffers,
    programs: Programs,
    nvrtc_folders: Vec<PathBuf>,
    /// Whether kernels are launched by programmatic dependent launch.
    pdl: bool,
    pub stream: Stream,
    pub context: Arc<Context>,
}

/// Which plan of a drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrafterPart {
    Follow,
    Guess,
}

/// Memory that kernels share beside the buffers of the plan.
#[derive(Debug)]
struct ScratchBuffers {
    partial: DeviceBuffer,
    tickets: DeviceBuffer,
    tiles: DeviceBuffer,
    squares: DeviceBuffer,
    sums: DeviceBuffer,
    groups: DeviceBuffer,
}

/// Seconds that the parts of loading took, side by side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadTimes {
    /// From the file to tiles on the card.
    pub upload: f64,
    /// Kernels, from their sources or from the cache, onto the card.
    pub compile: f64,
}

impl ScratchBuffers {
    fn new(context: &Arc<Context>, bytes: &Scratch, stream: &Stream) -> Result<Self> {
        let buffer = |bytes| poisoned(context, bytes, stream);
        let scratch = Self {
            partial: buffer(bytes.merge.partial)?,
            tickets: buffer(bytes.tickets())?,
            tiles: buffer(bytes.products.tiles)?,
            squares: buffer(bytes.products.squares)?,
            sums: buffer(bytes.products.sums)?,
            groups: buffer(bytes.groups)?,
        };
        scratch.tickets.fill(0, stream)?;
        Ok(scratch)
    }

    fn addresses(&self) -> ScratchAddresses {
        ScratchAddresses {
            partial: self.partial.address(),
            tickets: self.tickets.address(),
            tiles: self.tiles.address(),
            squares: self.squares.address(),
            sums: self.sums.address(),
            groups: self.groups.address(),
        }
    }
}

/// Cosine and sine of every position, `[n_ctx][half][2]`, as the interpreter computes them.
fn cos_sin(
    plan: &Plan,
    table: &RopeTable,
    weights: &dyn Weights,
    n_ctx: usize,
) -> Result<Vec<f32>> {
    use rayon::prelude::*;
    let mut factors = None;
    if let Some(id) = table.factors_in(n_ctx) {
        let w = plan.weight(id);
        let values = factors.insert(vec![0.0f32; w.n_in]);
        weights.vector(w, values)?;
    }
    let inv_freq = table.frequencies(factors.as_deref());
    let pairs = (0..n_ctx).into_par_iter().flat_map_iter(|position| {
        let scale = table.scale_at(position as u32);
        let at = (position + table.ahead as usize) as f64;
        inv_freq.iter().flat_map(move |f| {
            let (sin, cos) = (at * f).sin_cos();
            [(cos * scale) as f32, (sin * scale) as f32]
        })
    });
    Ok(pairs.collect())
}

impl Card {
    /// Takes all the memory that passes of up to `max_rows` rows need, `max_out` of which give
    /// logits; [`Card::load`] fills it.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Argument`], [`Error::Tensor`].
    pub fn new(
        context: &Arc<Context>,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
        max_rows: usize,
        max_out: usize,
    ) -> Result<Self> {
        let n_ctx = options.n_ctx;
        let stream = Stream::new(context)?;
        let compiler = Compiler::new(context.info.number(), &options.gpu.nvrtc_folders);
        attention::check(&context.info, options.kv_type, &plan.kv)?;
        let kv = KvPool::new(context, &stream, &plan, options)?;
        let states = StatePool::new(context, &stream, &plan, options.n_slots)?;
        let sizes = plan.buffers.iter().map(|b| b.bytes(max_rows, max_out));
        let buffers = sizes.map(|bytes| poisoned(context, bytes, &stream));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let mut angles = Vec::with_capacity(plan.ropes.len());
        for table in &plan.ropes {
            let buffer = DeviceBuffer::new(context, table.bytes(n_ctx))?;
            if !context.is_described() {
                buffer.write(0, &cos_sin(&plan, table, weights, n_ctx)?, &stream)?;
            }
            angles.push(buffer);
        }
        let overflows = Arc::new(HostBuffer::new(context, 8 * options.n_slots)?);
        let exchange = match plan.share {
            Some(share) => {
                let capacity = capacity(&plan, max_rows, max_out);
                Some(Exchange::new(context, share, capacity, &stream)?)
            }
            None => None,
        };
        let shapes = shapes::of(&context.info)?.0;
        let drafter = plan.drafter.as_ref();
        let drafter = drafter.map(|d| [d.follow.clone(), d.guess.clone()].map(Arc::new));
        let parts = std::iter::once(plan.clone()).chain(drafter.into_iter().flatten());
        let fused = parts.map(|part| (FusedPlan::new(&part, options.gpu.fuse), part));
        let fused: Vec<(FusedPlan, Arc<Plan>)> = fused.collect();
        let lists = || fused.iter().map(|(fused, part)| (&**part, &fused.list[..]));
        let bytes = Scratch::of_all(lists(), &shapes, max_rows, max_out);
        let scratch = ScratchBuffers::new(context, &bytes, &stream)?;
        let weights = DeviceWeights::new(context, &plan, wanted(lists())?)?;
        let unheard = HostBuffer::new(context, 8 * options.n_slots)?;
        let own = fused.first().map_or(&[][..], |(fused, _)| &fused.list);
        // What ails a drafter's numbers is nobody's.
        let own_layers = plan.own_layers();
        let view = |layer| {
            let view = kv.view(layer, overflow::storing(own, layer), overflows.address());
            match layer < own_layers {
                true => view,
                false => KvView {
                    reports: unheard.address(),
                    saturated: unheard.address(),
                    ..view
                },
            }
        };
        let mut at = Addresses {
            buffers: buffers.iter().map(DeviceBuffer::address).collect(),
            kv: (0..plan.kv.len()).map(view).collect(),
            cos_sin: angles.iter().map(DeviceBuffer::address).collect(),
            states: states.addresses(),
            rounds: states.round_addresses(),
            overflows: overflows.address(),
            scratch: scratch.addresses(),
            exchange: exchange
                .as_ref()
                .map_or_else(Default::default, Exchange::addresses),
            ..Addresses::default()
        };
        weights.place(&mut at);
        let rows = RowBuffers::new(context, max_rows, Some(&plan))?;
        let mut lowerings = fused.into_iter().map(|(fused, plan)| Lowering {
            plan,
            fused,
            shapes: shapes.clone(),
            card: context.info.clone(),
            kv_type: options.kv_type,
            n_slots: options.n_slots,
            n_ctx,
            max_rows,
            max_out,
            at: at.clone(),
        });
        let lowering = lowerings.next();
        let lowering = lowering.ok_or_else(|| Error::Internal("a model without a plan".into()))?;
        let drafter: Vec<Lowering> = lowerings
            .map(|l| Lowering {
                at: Addresses {
                    overflows: unheard.address(),
                    ..l.at
                },
                ..l
            })
            .collect();
        Ok(Self {
            lowering,
            drafter,
            _unheard: unheard,
            weights,
            kv,
            states,
            buffers,
            _angles: angles,
            overflows: vec![overflows],
            exchange,
            scratch,
            rows,
            programs: Programs::new(context.clone(), compiler),
            nvrtc_folders: options.gpu.nvrtc_folders.clone(),
            pdl: context.info.uses_pdl(options.gpu.pdl),
            stream,
            context: context.clone(),
        })
    }

    /// Where its exchanges store and wait, of a card of several.
    pub fn exchange_addresses(&self) -> ExchangeAddresses {
        self.lowering.at.exchange
    }

    /// What ends its waits for other cards.
    pub fn abort(&self) -> Option<Abort> {
        self.exchange.as_ref().map(Exchange::abort)
    }

    /// Tells it where all cards are, itself included; before anything is made of its addresses. The first
    /// hears what all of them report.
    pub fn meet(&mut self, all: &[ExchangeAddresses], heard: &[Arc<HostBuffer>]) {
        let at = &mut self.lowering.at.exchange;
        for (rank, other) in all.iter().enumerate() {
            at.landing[rank] = other.landing[rank];
            at.flags[rank] = other.flags[rank];
        }
        self.overflows.extend_from_slice(heard);
    }

    /// The words that its kernels report in.
    pub fn reports(&self) -> Arc<HostBuffer> {
        self.overflows[0].clone()
    }

    /// As [`Programs::unkept`].
    pub fn unkept_kernels(&self) -> Option<&str> {
        self.programs.unkept()
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
        let _range = Range::new(|| "load".into());
        std::thread::scope(|scope| {
            let compiling = scope.spawn(|| {
                let _range = Range::new(|| "compile".into());
                let compiled = self.programs.prepare(specs.iter().map(|s| &s.variant));
                compiled.map(|()| begun.elapsed().as_secs_f64())
            });
            let uploaded = self.weights.upload(
                self.plan(),
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

    /// As [`Programs::compile_ahead`].
    pub fn compile_ahead(&self, specs: Vec<Spec>, threads: usize) -> Ahead {
        self.programs.compile_ahead(specs, threads)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.lowering.plan
    }

    /// Most rows of logits of one pass.
    pub fn max_out(&self) -> usize {
        self.lowering.max_out
    }

    /// Folders to look for NVRTC in.
    pub fn nvrtc_folders(&self) -> &[PathBuf] {
        &self.nvrtc_folders
    }

    /// Bytes of weights on the card.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes of the plan's buffers on the card, of the states of sequences, and of what rounds keep of them.
    pub fn activation_bytes(&self) -> usize {
        let buffers = self.buffers.iter().map(DeviceBuffer::bytes);
        buffers.chain([self.states.bytes()]).sum()
    }

    /// The kernels that rewrite the weights.
    pub fn repack_variants(&self) -> impl Iterator<Item = Variant> + '_ {
        self.weights.variants()
    }

    /// The buffer of a plan's buffer.
    pub fn buffer(&self, id: BufferId) -> &DeviceBuffer {
        &self.buffers[id.0]
    }

    /// Makes every activation, and what attention merges, not-a-number.
    pub fn poison(&self) -> Result<()> {
        let buffers = self.buffers.iter().chain([&self.scratch.partial]);
        buffers
            .into_iter()
            .try_for_each(|b| b.fill(0xff, &self.stream))
    }

    /// What a pass consists of, before anything is compiled.
    ///
    /// # Errors
    /// [`Error::Internal`] for more rows than there is memory for.
    pub fn specs(&self, pass: &Pass) -> Result<Vec<Spec>> {
        pass::specs(&self.lowering, pass)
    }

    /// What the drafter's part of a pass consists of, as [`Card::specs`].
    ///
    /// # Errors
    /// As there; [`Error::Internal`] of a plan without a drafter.
    pub fn drafter_specs(&self, part: DrafterPart, pass: &Pass) -> Result<Vec<Spec>> {
        let lowering = self.drafter.get(part as usize).ok_or_else(no_drafter)?;
        pass::specs(lowering, pass)
    }

    /// What brings states forward by the rows of a round that count.
    pub fn commits(&self, drawn: &Drawn) -> Vec<Spec> {
        rounds::commits(&self.lowering, drawn)
    }

    /// Launches of `specs`, with [`Launch::pdl`] where that is used.
    ///
    /// # Errors
    /// [`Error::Device`] where there is no compiler or the card refuses the code.
    pub fn launches(&self, specs: Vec<Spec>) -> Result<Vec<Launch>> {
        let mut list = self.programs.launches(specs)?;
        // The first has no predecessor in the list: it waits for all that came before.
        for launch in list.iter_mut().skip(1) {
            launch.pdl = self.pdl;
        }
        Ok(list)
    }

    /// The error of numbers of `slot` up to this position that have no place, if there were any since the
    /// last call; what is behind it is of a step that was launched ahead.
    pub fn take_overflow(&self, slot: usize, until: u64) -> Option<Error> {
        let words = self
            .overflows
            .iter()
            .filter_map(|all| all.words().get(slot));
        let mut found = None;
        for word in words {
            let position = overflow::position(word.load(Ordering::Acquire));
            if position.is_some_and(|at| at <= until) {
                let word = word.swap(0, Ordering::AcqRel);
                let error = overflow::error(word, slot, self.plan(), &self.lowering.fused.list);
                found = found.or(error);
            }
        }
        found
    }

    /// Begins to look at `slot` anew, behind everything queued: steps that were launched ahead may
    /// still report of the sequence that has ended.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn forget(&self, slot: usize) -> Result<()> {
        self.kv.forget_saturated(slot, &self.stream)?;
        self.stream.clear_word(&self.overflows[0], slot)
    }

    /// Waits for all that is queued; a refused token is an error.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::KvBounds`].
    pub fn settle(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.kv.take_error().map_or(Ok(()), Err)
    }
}
