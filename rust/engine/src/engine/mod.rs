//! A loaded model that serves requests: one thread owns the backend, callers hand it jobs through a
//! bounded queue and wait for tickets. Many sequences decode together (continuous batching).

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::backend::cpu::{self, CpuBackend};
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::run::card::LoadTimes;
use crate::backend::cuda::run::prefill::{chunk_of, MOST_CHUNK};
use crate::backend::cuda::study::exact_sums::{self, SumCheck};
use crate::backend::cuda::study::{fit::fit, offline};
use crate::backend::cuda::{CardsBackend, CudaBackend};
use crate::backend::{
    none_on, Backend, Inspect, Limits, LogitsPath, RunnerOptions, SharedStats, Windows,
};
use crate::config::PoolingType;
use crate::error::{Error, Result};
use crate::grammar::{Constraint, Grammars};
use crate::pages::BlockManager;
use crate::plan::Plan;
use crate::quant;
use crate::tokenizer::Tokenizer;
use crate::weights::Model;

mod bell;
mod checks;
mod constrain;
mod dense;
pub mod device;
mod drafts;
mod embedding;
mod executor;
mod gate;
mod lookup;
pub(crate) mod memory;
mod options;
mod pace;
mod policy;
mod pooling;
mod prefixes;
mod queue;
pub(crate) mod ranking;
mod request;
mod scheduler;
mod stats;
#[cfg(test)]
mod tests;
pub mod text;
mod ticket;

pub use crate::backend::{
    GraphCheck, GraphMode, GraphProfile, GraphQuestion, GraphStats, Profiled, StepCheck,
};
pub use crate::pages::{Places, Salt, MAX_SALT_BYTES};
pub use bell::{Bell, Caller};
pub use embedding::EmbedRequest;
pub use lookup::MOST_DRAFTED;
pub use options::{GraphOptions, Options, Speculate, DEFAULT_CTX, DEFAULT_DIR_BYTES, MAX_BATCH};
pub use pooling::Pooling;
pub use prefixes::PrefixKeeping;
pub use queue::close_all;
pub use request::{
    FinishReason, Finished, LengthReason, Piece, Request, StoppedBy, Timings, Usage,
    DEFAULT_MAX_TOKENS, MAX_PRIORITY, MAX_STOP_TOKENS, PRIORITY_STEP,
};
pub use stats::{Done, Stats};
pub use ticket::{Ticket, Wait, POLL};

use dense::Dense;
use device::Device;
use executor::{panic_error, Executor};
use options::in_range;
use queue::{Job, Look, Running, Shared, Work};
use ranking::Head;
use request::Outlet;

/// How far loading has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is going on, for people.
    pub stage: Cow<'static, str>,
    pub done: u64,
    /// 0 where it is not known.
    pub total: u64,
}

/// What is known of a model once it is loaded.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub path: PathBuf,
    /// The device's name, as [`Options::device`] takes it; never `auto`.
    pub device: String,
    pub limits: Limits,
    /// The context that the model was trained for.
    pub n_ctx_train: usize,
    /// Numbers of a hidden state.
    pub n_embd: usize,
    /// Whether it sees a whole text at once: it makes vectors, and generates nothing.
    pub looks_ahead: bool,
    /// How the file pools them, where it says so.
    pub pooling: Option<PoolingType>,
    /// That of a reranker.
    pub head: Option<Arc<Head>>,
    /// Behind the pooling of embeddings.
    pub dense: Option<Arc<Dense>>,
    pub tokenizer: Arc<Tokenizer>,
    /// Why `auto` took the CPU; none where it did not.
    pub no_card: Option<&'static str>,
    /// The source of the chat template, where the file has one.
    pub chat_template: Option<String>,
    pub load_seconds: f64,
    /// What became of decode steps so far, where there are graphs.
    pub graphs: Option<Arc<SharedStats>>,
    /// What drafts.
    pub speculate: Speculate,
    /// Whether layers keep states beside the pages of a sequence.
    pub keeps_states: bool,
    /// Seconds of its parts that ran side by side, where they are known.
    pub load_parts: Vec<(&'static str, f64)>,
    /// The context that would have been, had the card's memory held it.
    pub wanted_ctx: usize,
    /// Why kernels that were compiled are not kept for the next load; none where all are.
    pub unkept_kernels: Option<String>,
    /// Sequences that have ended and of whose keys or values some were beyond what the cache's type
    /// holds, so that its largest magnitude stands in their place.
    pub saturated: Arc<AtomicU64>,
    /// How prefixes are kept.
    pub prefixes: PrefixKeeping,
}

/// A loaded model. May be used from many threads at once; dropping or closing it ends all
/// requests.
pub struct Engine {
    loaded: Loaded,
    grammars: Grammars,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A backend and what is to be said of it.
type Parts = (Box<dyn Backend>, Loaded);

enum News {
    Progress(Progress),
    Done(Result<Box<Loaded>>),
}

/// Sends progress from the loading thread; remembers whether anyone still wants the model.
struct Reporter {
    to: mpsc::Sender<News>,
    shared: Arc<Shared>,
}

impl Reporter {
    fn at(&self, stage: impl Into<Cow<'static, str>>, done: u64, total: u64) -> Result<()> {
        let stage = stage.into();
        let progress = Progress { stage, done, total };
        let gone = self.to.send(News::Progress(progress)).is_err();
        if gone || self.shared.is_closing() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }
}

/// A model that is being loaded, by a thread of its own; dropping it breaks that off.
pub struct Loading {
    news: Receiver<News>,
    shared: Arc<Shared>,
    now: Progress,
    /// Until the model has it.
    thread: Option<JoinHandle<()>>,
}

impl Loading {
    fn begin(
        prefix_cache: bool,
        load: impl FnOnce(&Reporter) -> Result<Parts> + Send + 'static,
    ) -> Result<Self> {
        let started = Instant::now();
        let shared = Shared::new();
        let (to, news) = mpsc::channel();
        let reporter = Reporter {
            to,
            shared: shared.clone(),
        };
        let running = Running(shared.clone());
        let body = move || {
            // Goes last: what the thread has is gone when it says so.
            let running = running;
            let parts = catch_unwind(AssertUnwindSafe(|| load(&reporter)))
                .unwrap_or_else(|payload| Err(panic_error(&*payload)));
            let (mut backend, mut loaded) = match parts {
                Ok(parts) => parts,
                Err(e) => return drop(reporter.to.send(News::Done(Err(e)))),
            };
            loaded.load_seconds = started.elapsed().as_secs_f64();
            let tokenizer = loaded.tokenizer.clone();
            let saturated = loaded.saturated.clone();
            let (seconds, speculate) = (loaded.load_seconds, loaded.speculate);
            let pool = BlockManager::new(backend.limits(), prefix_cache, saturated);
            let pool = match loaded.prefixes.keep(pool, prefix_cache, &mut *backend) {
                Ok(pool) => pool,
                Err(e) => return drop(reporter.to.send(News::Done(Err(e)))),
            };
            let executor = Executor::new(
                backend,
                pool,
                tokenizer,
                running.0.clone(),
                seconds,
                speculate,
            );
            if reporter.to.send(News::Done(Ok(Box::new(loaded)))).is_ok() {
                drop(reporter);
                executor.serve();
            }
        };
        let thread = Builder::new()
            .name("onegraph-engine".into())
            .spawn(body)
            .map_err(|e| Error::Device {
                what: "a thread for the model".into(),
                reason: e.to_string(),
                remedy: "end other programs or raise the limit on threads".into(),
            })?;
        Ok(Self {
            news,
            shared,
            now: Progress {
                stage: "open".into(),
                done: 0,
                total: 0,
            },
            thread: Some(thread),
        })
    }

    /// How far it has come after `timeout` at most; or the model, which comes once.
    ///
    /// # Errors
    /// What is wrong with the file, the options, the device or the memory; [`Error::Cancelled`]
    /// after [`Loading::cancel`].
    pub fn next(&mut self, timeout: Duration) -> Result<ControlFlow<Engine, Progress>> {
        match self.news.recv_timeout(timeout) {
            Ok(News::Progress(next)) => self.now = next,
            Ok(News::Done(loaded)) => {
                let loaded = *loaded?;
                return Ok(ControlFlow::Break(Engine {
                    grammars: Grammars::new(loaded.tokenizer.clone()),
                    loaded,
                    shared: self.shared.clone(),
                    thread: Mutex::new(self.thread.take()),
                }));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Internal("loading ended without a result".into()))
            }
        }
        Ok(ControlFlow::Continue(self.now.clone()))
    }

    /// Breaks it off, soon.
    pub fn cancel(&self) {
        self.shared.close();
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if self.thread.is_some() && !self.shared.is_forked() {
            self.cancel();
        }
    }
}

impl Engine {
    /// Begins to load the GGUF file at `path`.
    ///
    /// # Errors
    /// What is wrong with the options; [`Error::Device`] where there is no thread to be had.
    pub fn begin(path: impl AsRef<Path>, options: &Options) -> Result<Loading> {
        options.validate()?;
        let (path, options) = (path.as_ref().to_owned(), options.clone());
        Loading::begin(options.prefix_cache, move |reporter| {
            load(&path, &options, reporter)
        })
    }

    /// Loads the GGUF file at `path`. `progress` is called on this thread every 20 ms or so and may
    /// break off.
    ///
    /// # Errors
    /// As [`Engine::begin`] and [`Loading::next`]; [`Error::Cancelled`] where `progress` broke off.
    pub fn load(
        path: impl AsRef<Path>,
        options: &Options,
        progress: impl FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        Self::finish(Self::begin(path, options)?, progress)
    }

    fn finish(
        mut loading: Loading,
        mut progress: impl FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Self> {
        loop {
            match loading.next(POLL)? {
                ControlFlow::Break(engine) => return Ok(engine),
                ControlFlow::Continue(now) if progress(&now).is_break() => {
                    return Err(Error::Cancelled)
                }
                ControlFlow::Continue(_) => {}
            }
        }
    }

    /// What is known of the model.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Compiles a constraint and keeps it; the first one looks at the vocabulary too, a third of a second
    /// for 128,000 tokens. A request that comes with one does as much where it has to.
    ///
    /// # Errors
    /// [`Error::Argument`] says what is wrong with it; [`Error::Unsupported`] for a vocabulary that
    /// cannot be constrained.
    pub fn prepare_constraint(&self, constraint: &Constraint) -> Result<()> {
        self.grammars.prepare(constraint)
    }

    /// Whether a text is one of a constraint's, from its beginning to its end.
    ///
    /// # Errors
    /// As [`Engine::prepare_constraint`]; [`Error::Constraint`] where that takes too long to find out.
    pub fn fits(&self, constraint: &Constraint, text: &str) -> Result<bool> {
        self.grammars.fits(constraint, text)
    }

    /// Queues a request; `None` where the queue stays full for `timeout`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a parameter or token out of range, [`Error::Context`] for a prompt
    /// that leaves no room for an answer, [`Error::Closed`], [`Error::Forked`].
    pub fn submit(&self, request: &Request, timeout: Duration) -> Result<Option<Ticket<Piece>>> {
        self.submit_waking(request, None, timeout)
    }

    /// [`Engine::submit`]; `caller` is called whenever the ticket has something new, its end
    /// included; for what one step gave several tickets, each bell is rung once.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_waking(
        &self,
        request: &Request,
        caller: Option<Caller>,
        timeout: Duration,
    ) -> Result<Option<Ticket<Piece>>> {
        let tokens = self.check(request)?;
        let (out, items) = mpsc::channel();
        let (constraint, budget) = (request.constraint.as_ref(), request.thinking.as_ref());
        let work = Work::Generate {
            request: Box::new(request.clone()),
            out: Outlet::new(out, caller),
            guide: self.grammars.follow(constraint, budget)?.map(Box::new),
            save: None,
        };
        self.push(
            work,
            tokens,
            items,
            request.priority,
            request.asked,
            timeout,
        )
    }

    /// The logits after each of `ids`, in order, `[any number of rows, n_vocab]` at a time; `None`
    /// where the queue stays full for `timeout`.
    ///
    /// # Errors
    /// As [`Engine::submit`]; the whole context may be used.
    pub fn logits(
        &self,
        ids: &[u32],
        path: LogitsPath,
        timeout: Duration,
    ) -> Result<Option<Ticket<Vec<f32>>>> {
        self.check_ids(ids)?;
        let (out, items) = mpsc::channel();
        let work = Work::Logits {
            ids: ids.to_vec(),
            path,
            out,
        };
        self.push(work, ids.len(), items, 0, None, timeout)
    }

    /// Compares captured decode steps with the same steps launched kernel by kernel, from the same
    /// state, on `check`'s tokens; other requests wait. `None` where the queue stays full for
    /// `timeout`.
    ///
    /// # Errors
    /// [`Error::Argument`] for tokens, sizes and tolerances; [`Error::Device`] where there are no
    /// graphs.
    pub fn verify_graph(
        &self,
        check: &GraphCheck,
        timeout: Duration,
    ) -> Result<Option<Ticket<Vec<StepCheck>>>> {
        self.shared.check_open()?;
        check.validate()?;
        self.check_generates("ids", check.ids.len())?;
        self.check_tokens("ids", &check.ids)?;
        self.check_length(&check.ids)?;
        let (out, items) = mpsc::channel();
        let tokens = check.ids.len();
        let check = check.clone();
        let look: Look = Box::new(move |backend, slots, cancelled| {
            let go_on = || !cancelled.load(Ordering::Relaxed);
            let verified = |b: &mut dyn Backend| graphs_of(b)?.verify_graph(slots, &check, &go_on);
            drop(out.send(backend.and_then(verified)));
        });
        let sequences = self.loaded.limits.n_slots;
        self.push(
            Work::Inspect { sequences, look },
            tokens,
            items,
            0,
            None,
            timeout,
        )
    }

    /// What the captured decode step of a batch, or the passes of a prompt, consist of, and how long
    /// their parts take; other requests wait. `None` where the queue stays full for `timeout`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch, prompt, position or number of repeats out of range;
    /// [`Error::Device`] where there are no graphs.
    pub fn profile_graph(
        &self,
        question: &GraphQuestion,
        timeout: Duration,
    ) -> Result<Option<Ticket<GraphProfile>>> {
        self.shared.check_open()?;
        let Limits { n_slots, n_ctx, .. } = self.loaded.limits;
        self.check_generates("position", question.position)?;
        let last = n_ctx.saturating_sub(GraphQuestion::IN_A_ROW);
        in_range("position", question.position, 0, last)?;
        let (sequences, prompt) = match question.what {
            Profiled::Step { batch_size } => (batch_size, 0),
            Profiled::Prompt { tokens } => {
                in_range("prompt", tokens, 1, last - question.position)?;
                (1, tokens)
            }
        };
        in_range("batch_size", sequences, 1, n_slots)?;
        let tokens = question.position + prompt + GraphQuestion::IN_A_ROW;
        in_range("repeats", question.repeats, 1, 10_000)?;
        let (out, items) = mpsc::channel();
        let question = question.clone();
        let look: Look = Box::new(move |backend, slots, _| {
            let profile = |b: &mut dyn Backend| graphs_of(b)?.profile_graph(slots, &question);
            drop(out.send(backend.and_then(profile)));
        });
        self.push(
            Work::Inspect { sequences, look },
            tokens,
            items,
            0,
            None,
            timeout,
        )
    }

    /// What waits, runs and is taken right now, and what was done so far.
    ///
    /// # Errors
    /// As [`Engine::check_open`].
    pub fn stats(&self) -> Result<Stats> {
        self.shared.check_open()?;
        let now = self.shared.now();
        let slots = self.loaded.limits.n_slots;
        let states = match self.loaded.keeps_states {
            true => Places {
                total: slots,
                free: slots.saturating_sub(now.running + now.preempted),
                sequences: now.running + now.preempted,
                prefixes: 0,
            },
            false => Places::default(),
        };
        Ok(Stats {
            queued: self.shared.waiting(),
            running: now.running,
            feeding: now.feeding,
            slots,
            preempted: now.preempted,
            pages_swapped_out: now.pages_swapped_out,
            pages: now.pages,
            window_pages: now.window_pages,
            states,
            done: now.done,
            graphs: self.loaded.graphs.as_ref().map(|graphs| graphs.now()),
        })
    }

    fn push<T>(
        &self,
        work: Work,
        tokens: usize,
        items: Receiver<Result<T>>,
        priority: i32,
        asked: Option<Instant>,
        timeout: Duration,
    ) -> Result<Option<Ticket<T>>> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let job = Job {
            cancelled: cancelled.clone(),
            submitted: asked.unwrap_or_else(Instant::now),
            priority,
            tokens,
            work,
        };
        let queued = self.shared.push(job, timeout)?;
        Ok(queued.ok().map(|()| Ticket {
            items: Mutex::new(items),
            cancelled,
            over: AtomicBool::new(false),
            shared: self.shared.clone(),
        }))
    }

    /// A seed for a request that has none.
    pub fn draw_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher};
        // The standard library's own random keys; 48 bits pass through JSON and float unharmed.
        std::hash::RandomState::new().build_hasher().finish() >> 16
    }

    /// Whether requests are taken.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`], or the panic that ended the engine.
    pub fn check_open(&self) -> Result<()> {
        self.shared.check_open()
    }

    /// Ends all requests, frees the memory, and waits until that is done. May be called again.
    pub fn close(&self) {
        if self.shared.is_forked() {
            return;
        }
        self.shared.close();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // A panic was turned into the fate that requests learn.
            drop(thread.join());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.shared.is_forked() {
            self.shared.close();
        }
    }
}

fn load(path: &Path, options: &Options, reporter: &Reporter) -> Result<Parts> {
    let device = device::resolve(&options.device)?;
    if let Device::Cuda(_) = device {
        quant::check_kv_on_card(options.kv_type()?)?;
    }
    reporter.at("open", 0, 0)?;
    let mut model = Model::open(path)?;
    let speculate = options.drafts_by().on(&device)?;
    let (config, plan, mut n_ctx) = drafts::plan_of(&mut model, options, speculate)?;
    let model = Arc::new(model);
    model.check_data(plan.weights.iter().map(|w| w.name.as_str()))?;
    if plan.looks_ahead() && device != Device::Cpu {
        n_ctx = context_of_texts(options, n_ctx)?;
    }
    reporter.at("tokenizer", 0, 0)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&model.gguf)?);
    let runner = runner(options, &plan, n_ctx)?;
    let (keeps_states, looks_ahead) = (!plan.states.is_empty(), plan.looks_ahead());
    let (mut parts, mut unkept_kernels) = (Vec::new(), None);
    let mut backend: Box<dyn Backend> = match device {
        Device::Cpu => {
            let needs = cpu::needs(&plan, &runner)?;
            let room = memory::check(&plan, &needs, &runner, &memory::Room::here());
            room.map_err(|e| drafts::with_share(e, &plan))?;
            read_ahead(&model, &plan, reporter)?;
            Box::new(CpuBackend::new(plan, model.clone(), &runner)?)
        }
        Device::Cuda(ref numbers) => {
            reporter.at("memory", 0, 0)?;
            let cards = numbers.iter().map(|number| Context::new(*number));
            let cards = cards.collect::<Result<Vec<_>>>()?;
            let free = cards.iter().map(|card| Ok(card.memory()?.0 as u64));
            let free = free.collect::<Result<Vec<_>>>()?.into_iter().min();
            let (info, free) = (&cards[0].info, free.unwrap_or_default());
            let own = memory::own(&plan, numbers);
            let may_shrink = options.n_ctx.is_none();
            let runner = fit(info, &own, &*model, &runner, may_shrink, free)
                .map_err(|e| drafts::with_share(e, &plan))?;
            let told = |stage: String, done, total| reporter.at(stage, done, total);
            let (backend, times, unkept): (Box<dyn Backend>, _, _) = match numbers[..] {
                [number] => {
                    let backend = CudaBackend::new(number, plan, &*model, &runner, &told)?;
                    let (times, unkept) = (backend.load_times(), backend.unkept_kernels());
                    (Box::new(backend), times, unkept)
                }
                _ => {
                    let backend = CardsBackend::new(numbers, &plan, &*model, &runner, &told)?;
                    let (times, unkept) = (backend.load_times(), backend.unkept_kernels());
                    (Box::new(backend), times, unkept)
                }
            };
            let LoadTimes { upload, compile } = times;
            parts.extend([("upload", upload), ("compile", compile)]);
            unkept_kernels = unkept;
            backend
        }
    };
    model.check_unchanged()?;
    let loaded = Loaded {
        path: path.to_owned(),
        device: device.name(),
        limits: backend.limits().clone(),
        n_ctx_train: config.n_ctx_train,
        n_embd: config.n_embd,
        looks_ahead,
        pooling: config.pooling,
        head: Head::read(&config, &model)?,
        dense: Dense::read(&config, &model)?,
        tokenizer,
        no_card: (options.device == "auto" && device == Device::Cpu).then(device::no_card),
        chat_template: model
            .gguf
            .get_str("tokenizer.chat_template")?
            .map(str::to_owned),
        load_seconds: 0.0,
        graphs: backend.inspect().map(|graphs| graphs.graph_stats()),
        speculate,
        keeps_states,
        load_parts: parts,
        wanted_ctx: n_ctx,
        unkept_kernels,
        saturated: Arc::default(),
        prefixes: PrefixKeeping::new(options, &model, reporter)?,
    };
    Ok((backend, loaded))
}

/// Compiles the kernels that the model at `path` needs on a card of architecture `arch`, such as
/// `sm_90`, into the cache: no card is needed. Returns how many there are, and how many were not
/// there before. `progress` may break off.
///
/// # Errors
/// What is wrong with the file, the options or the architecture; [`Error::Device`] without a
/// compiler; what `progress` says.
pub fn compile_kernels(
    path: &Path,
    options: &Options,
    arch: &str,
    progress: &dyn Fn(u64, u64) -> Result<()>,
) -> Result<(usize, usize)> {
    options.validate()?;
    let mut model = Model::open(path)?;
    let (_, plan, n_ctx) = drafts::plan_of(&mut model, options, options.drafts_by())?;
    let runner = runner(options, &plan, n_ctx)?;
    let variants = offline::variants(arch, &plan, &model, &runner)?;
    let fresh = offline::compile(arch, &variants, &options.nvrtc_folders, progress)?;
    Ok((variants.len(), fresh))
}

/// Compares `sums` sums of sub-blocks on the card that `device` means, or somewhat more, with sums of
/// integers: the products of every model stand on their being exact.
///
/// # Errors
/// As [`exact_sums::check`], and [`Error::Device`] for a device that is no card.
pub fn check_sums(device: &str, nvrtc_folders: &[PathBuf], sums: u64) -> Result<Vec<SumCheck>> {
    match device::resolve(device)? {
        Device::Cuda(cards) => {
            let first = cards.first().copied().unwrap_or_default();
            exact_sums::check(first, nvrtc_folders, sums)
        }
        Device::Cpu => Err(Error::Device {
            what: format!("device {device:?}"),
            reason: "its sums are of integers, there is nothing to compare them with".into(),
            remedy: "use device=\"cuda\" on a machine with an NVIDIA card".into(),
        }),
    }
}

/// The graphs of a backend.
fn graphs_of(backend: &mut dyn Backend) -> Result<&mut dyn Inspect> {
    let device = backend.limits().device.clone();
    backend.inspect().ok_or_else(|| none_on(&device))
}

/// Tokens of a prompt that layers with windows have pages for at once, at least: as many as a CPU is
/// fed, whatever is chosen for a card.
const LEAST_FED: usize = 512;

/// What backends are told for sequences of `plan` and `n_ctx` tokens.
pub(crate) fn runner(options: &Options, plan: &Plan, n_ctx: usize) -> Result<RunnerOptions> {
    let mut gpu = options.gpu()?;
    gpu.prefill_chunk = options.prefill_chunk.unwrap_or_else(|| chunk_of(plan));
    let chunk = gpu.prefill_chunk.max(LEAST_FED);
    if plan.looks_ahead() {
        let whole = n_ctx.next_power_of_two().min(MOST_CHUNK);
        gpu.prefill_chunk = gpu.prefill_chunk.max(whole);
    }
    Ok(RunnerOptions {
        n_slots: options.max_batch,
        n_ctx,
        n_pages: options.pool_pages(n_ctx),
        windows: Windows::of(plan, options.max_batch, n_ctx, chunk),
        kv_type: options.kv_type()?,
        threads: options.cpu_threads(),
        gpu,
    })
}

/// The context of a model that has whole texts in one pass, on a card: what passes hold.
fn context_of_texts(options: &Options, n_ctx: usize) -> Result<usize> {
    match options.n_ctx {
        Some(n) if n > MOST_CHUNK => Err(Error::Argument {
            name: "n_ctx",
            value: n.to_string(),
            reason: format!(
                "the model is an encoder, and a card has all of a text in one pass, of up to \
                 {MOST_CHUNK} tokens; use at most that, or device=\"cpu\""
            ),
        }),
        _ => Ok(n_ctx.min(MOST_CHUNK)),
    }
}

/// Touches every page of the weights, so that loading takes the time that the disk takes, visibly,
/// and not the first prompt.
fn read_ahead(model: &Model, plan: &Plan, reporter: &Reporter) -> Result<()> {
    const SLICE: usize = 16 << 20;
    const PAGE: usize = 4096;
    let total = plan.weights.iter().try_fold(0, |sum, w| {
        Ok::<_, Error>(sum + model.bytes(&w.name)?.len() as u64)
    })?;
    let mut done = 0;
    for weight in &plan.weights {
        for slice in model.bytes(&weight.name)?.chunks(SLICE) {
            let sum = slice.iter().step_by(PAGE).fold(0u8, |a, b| a ^ b);
            std::hint::black_box(sum);
            done += slice.len() as u64;
            reporter.at("weights", done, total)?;
        }
    }
    Ok(())
}
