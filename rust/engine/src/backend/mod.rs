//! Backends run plans. A backend owns the KV cache, the page table and, in a slot per sequence in flight,
//! the decode state: position, last token, sampler, limits. The engine above only assigns pages to slots,
//! feeds prompts, requests steps and collects tokens.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::plan::{self, BufferId, Plan};
use crate::quant::QuantType;
use crate::sampler::{self, Allowed};
use crate::weights::Model;

pub mod cpu;
pub mod cuda;
mod graphs;
mod inspect;
mod memory;
mod parts;
mod prefaulted;
mod storage;
mod windows;

pub use graphs::{
    none_on, CapturedStep, GoOn, GraphCheck, GraphKernel, GraphMode, GraphProfile, GraphQuestion,
    GraphStats, KernelStamps, Moment, Profiled, SharedStats, StepCheck,
};
pub use inspect::Inspect;
pub use memory::{check_state, not_below, pages_of, pool_pages, KvLayer, KvPages, Needs};
pub use parts::{Part, TextPart};
pub use prefaulted::Prefaulted;
pub use storage::{HostMemory, Storage};
pub use windows::{Kind, Windows};

/// Tokens in a KV page. Page 0 is reserved: padding rows live there, no sequence does.
pub const PAGE_TOKENS: usize = 64;

/// Bytes of weights by name. The model file is one; tests make others.
pub trait Weights: Send + Sync {
    /// The bytes of a tensor in its file encoding.
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] where there is none of that name.
    fn bytes(&self, name: &str) -> Result<&[u8]>;

    /// The bytes of a plan's tensor, as many as its shape and type take: of one that is shared, this card's.
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] where there are none or another number.
    fn of(&self, w: &plan::Weight) -> Result<Cow<'_, [u8]>> {
        let bytes = self.bytes(&w.name)?;
        let cards = w.share.map_or(1, |share| share.cards);
        let expected = w.bytes().and_then(|own| own.checked_mul(cards));
        if expected != Some(bytes.len()) {
            return Err(Error::Tensor {
                name: w.name.clone(),
                found: format!("{} bytes", bytes.len()),
                expected: match expected {
                    Some(n) => format!("{n} bytes"),
                    None => format!("rows of whole blocks of {} weights", w.ty.block_elems),
                },
                remedy: "the file is damaged: fetch it again".into(),
            });
        }
        let Some(share) = w.share else {
            return Ok(Cow::Borrowed(bytes));
        };
        let own = bytes.len() / (share.cards * w.n_expert.max(1));
        let mut parts = bytes
            .chunks_exact((own * share.cards).max(1))
            .map(|all| &all[own * share.rank..][..own]);
        Ok(match w.n_expert {
            1 => Cow::Borrowed(parts.next().unwrap_or_default()),
            _ => Cow::Owned(parts.collect::<Vec<_>>().concat()),
        })
    }

    /// The numbers of a plan's tensor of one row.
    ///
    /// # Errors
    /// As [`Weights::of`]; [`crate::Error::Tensor`] where one of them is infinite or NaN: what ops do
    /// with vectors can hide that, such as a sink or an expert's bias of -inf.
    fn vector(&self, w: &plan::Weight, to: &mut [f32]) -> Result<()> {
        (w.ty.dequantize)(&self.of(w)?, to);
        match to.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(at) => Err(Error::Tensor {
                name: w.name.clone(),
                found: format!("{} as number {at} of {}", to[at], to.len()),
                expected: "finite numbers".into(),
                remedy: "the file is damaged: fetch it again".into(),
            }),
        }
    }
}

impl Weights for Model {
    fn bytes(&self, name: &str) -> Result<&[u8]> {
        Model::bytes(self, name)
    }
}

/// The rows of one forward pass; all slices but `out_rows` have one entry a row.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub tokens: &'a [u32],
    /// Where in its sequence each row's token stands.
    pub positions: &'a [u32],
    /// Which row of the page table each row's sequence uses.
    pub slots: &'a [u32],
    /// Which text of a pair each row is of, 0 or 1; all of the first where it is empty.
    pub types: &'a [u32],
    /// The rows whose logits are wanted.
    pub out_rows: &'a [u32],
}

/// How much a backend can hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// What it runs on, for people: `cpu (2 threads, avx512)`.
    pub device: String,
    pub n_vocab: usize,
    /// Sequences in flight.
    pub n_slots: usize,
    /// Tokens a sequence may have.
    pub n_ctx: usize,
    /// Pages in the pool, the reserved page 0 included.
    pub n_pages: usize,
    /// The pool of layers that see a window, where they have one.
    pub windows: Option<Windows>,
}

impl Limits {
    /// Pages of layers that see a window, page 0 included; none where they have no pool.
    pub fn n_windowed(&self) -> usize {
        self.windows.map_or(0, |windows| windows.n_pages)
    }
}

/// What a slot needs to know about the sequence that it is to decode.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRequest {
    pub sampling: sampler::Params,
    /// The tokens of the prompt: penalties count them.
    pub prompt: Vec<u32>,
    /// Tokens that end the sequence.
    pub stop_tokens: Vec<u32>,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Whether it draws among the tokens alone that [`Backend::allow`] names.
    pub constrained: bool,
}

/// Why a slot stopped by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    /// It drew one of its stop tokens.
    Stop,
    /// It generated `max_tokens`, or its context is full.
    Length,
    /// It cannot go on; the event's token is none. Other slots are not touched.
    Failed(Error),
}

/// Draft tokens to follow the one drawn last in a slot (speculative decoding). They need not be right:
/// a step verifies them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub slot: usize,
    pub tokens: Vec<u32>,
}

/// Most rows of a step that verifies drafts, of all its sequences together.
pub const ROUND_ROWS: usize = 64;

/// Most tokens that a model drafts for a sequence in a round: further ones are seldom right.
pub const MOST_GUESSED: usize = 7;

/// Steps of one token that are queued at most before their tokens are read.
pub const STEPS_AHEAD: usize = 2;

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub slot: usize,
    /// 0 for the first generated token of the request.
    pub index: usize,
    pub token: u32,
    /// Set on the last token of a sequence.
    pub finish: Option<Finish>,
    /// Where the request asked for them.
    pub logprobs: Option<sampler::Logprobs>,
    /// Which row of its step gave it: the first, or that of the last of so many drafted tokens.
    pub row: usize,
    /// Tokens that the step verified for its slot.
    pub drafted: usize,
}

/// By which of its two ways a model computes logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsPath {
    /// Chunks of many rows.
    Prefill,
    /// Each token forced through the one-row decode step.
    Decode,
}

/// Runs any plan on explicit rows and buffers: the surface that tests compare backends on, op by
/// op.
pub trait Runner: Send {
    /// The plan that runs.
    fn plan(&self) -> &Plan;

    /// Gives pages to `slot`, from its page `first` on.
    fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()>;

    /// Sets the rows of a buffer that the plan reads before it writes it.
    fn write(&mut self, id: BufferId, rows: &[f32]) -> Result<()>;

    /// Runs every op on the rows of `batch`.
    ///
    /// # Errors
    /// [`crate::Error::KvBounds`] where a position is outside the cache; the other rows are stored.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<()>;

    /// The rows of a buffer after a step.
    fn read(&mut self, id: BufferId) -> Result<Vec<f32>>;

    /// Whether a key or value stored for `slot` was beyond what the cache's type holds, so that the
    /// largest magnitude stands in its place.
    fn saturated(&self, slot: usize) -> bool;

    /// Every byte of the KV pool.
    fn read_kv(&mut self) -> Result<Vec<u8>>;

    /// Overwrites the whole KV pool.
    fn write_kv(&mut self, bytes: &[u8]) -> Result<()>;

    /// The states of `slot`, those of [`Plan::states`] one after another.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a slot that does not exist.
    fn read_state(&mut self, slot: usize) -> Result<Vec<f32>>;

    /// Gives `slot` states that [`Runner::read_state`] gave, of this slot or another.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a slot that does not exist or another number of values.
    fn write_state(&mut self, slot: usize, values: &[f32]) -> Result<()>;

    /// Times the last pass again, `repeats` times.
    ///
    /// # Errors
    /// [`Error::Device`] where the backend has no clock of its own.
    fn profile(&mut self, _repeats: usize) -> Result<Profile> {
        Err(Error::Device {
            what: "profiling a pass".into(),
            reason: "this device has no clock".into(),
            remedy: "use device=\"cuda\" on a machine with an NVIDIA card".into(),
        })
    }
}

/// Times of one pass, by the device's clock.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Profile {
    /// One whole pass, the median, in microseconds: a replay where passes are captured.
    pub replay_us: f64,
    pub kernels: Vec<KernelTime>,
}

/// One kernel of a pass.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelTime {
    /// Its name in its source, and what it works on.
    pub kernel: &'static str,
    pub label: String,
    /// Median time from the end of its predecessor, alone on the device, in microseconds.
    pub us: f64,
    /// Bytes of weights that it reads.
    pub bytes: u64,
    /// Bytes of rows that it reads and writes.
    pub rows: u64,
    pub grid: [u32; 3],
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// What it is compiled for, by name.
    pub constants: Vec<(String, String)>,
}

/// How a [`Runner`] is set up.
#[derive(Debug, Clone)]
pub struct RunnerOptions {
    pub n_slots: usize,
    pub n_ctx: usize,
    /// Pages in the pool, page 0 included.
    pub n_pages: usize,
    /// The pool of layers that see a window; none: their pages are those of all layers.
    pub windows: Option<Windows>,
    /// Encoding of keys and values.
    pub kv_type: &'static QuantType,
    /// CPU threads.
    pub threads: usize,
    /// What concerns a GPU only.
    pub gpu: GpuOptions,
}

/// How a GPU runs a plan.
#[derive(Debug, Clone)]
pub struct GpuOptions {
    /// Which passes are replays of captured graphs.
    pub mode: GraphMode,
    /// Whether neighbouring ops become one kernel.
    pub fuse: bool,
    /// Programmatic dependent launch; none: where the card has it.
    pub pdl: Option<bool>,
    /// Folders to look for NVRTC in, before the system's.
    pub nvrtc_folders: Vec<PathBuf>,
    /// Batch sizes to capture, ascending; none: 1, 2, 4, 8, then in steps.
    pub batch_sizes: Option<Vec<usize>>,
    /// The largest batch to capture; none: as many as there are slots.
    pub max_batch: Option<usize>,
    /// Whether a step is rounded up to a captured size by rows that change nothing.
    pub padding: bool,
    /// Whether every batch size is captured at load.
    pub warmup: bool,
    /// Most rows of one pass over a prompt, a power of two.
    pub prefill_chunk: usize,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            mode: GraphMode::Full,
            fuse: true,
            pdl: None,
            nvrtc_folders: Vec::new(),
            batch_sizes: None,
            max_batch: None,
            padding: true,
            warmup: false,
            prefill_chunk: cuda::run::prefill::DEFAULT_CHUNK,
        }
    }
}

/// Rows that a runner on a GPU has buffers for.
const RUNNER_ROWS: usize = 512;

/// A runner on `device`: `cpu`, `cuda` or `cuda:N`.
///
/// # Errors
/// Errors of the plan, the weights or memory.
pub fn runner(
    device: &str,
    plan: Plan,
    weights: Arc<dyn Weights>,
    options: &RunnerOptions,
) -> Result<Box<dyn Runner>> {
    plan.check()?;
    let plan = Arc::new(plan);
    let card = match device {
        "cuda" => Some(0),
        _ => device.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
    };
    match (device, card) {
        ("cpu", _) => Ok(Box::new(cpu::Interpreter::new(plan, weights, options)?)),
        (_, Some(n)) => {
            let runner =
                cuda::run::runner::CudaRunner::new(n, plan, &*weights, options, RUNNER_ROWS)?;
            Ok(Box::new(runner))
        }
        _ => Err(Error::Unsupported {
            what: "device",
            name: device.into(),
            supported: "cpu, cuda, cuda:N".into(),
        }),
    }
}

/// Rows of a chunk of a prompt on a CPU before any chunk was timed.
const FIRST_SLICE: usize = 32;

/// Rows of a slice of a prompt from which on more would not make a CPU faster.
const MOST_SLICE: usize = 512;

/// What [`Backend::slice`] is of a CPU.
fn slice_of(rest: usize, rows: Option<usize>, stepping: usize) -> usize {
    let rows = rows.map_or(FIRST_SLICE, |rows| rows.saturating_sub(stepping).max(1));
    rest.min(rows).min(MOST_SLICE)
}

/// A device that decodes. Keys and values of a token, and the states behind it, have the same bits whatever
/// pass computed them: they serve every sequence that begins with these tokens.
pub trait Backend: Send {
    /// What it can hold.
    fn limits(&self) -> &Limits;

    /// Gives pages of a `kind` to `slot`, from its page `first` on; each page that is written has one
    /// owner.
    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()>;

    /// Queues a copy of what the page `from` holds in all layers of the `kind` to the page `to`.
    ///
    /// # Errors
    /// [`Error::Internal`] for a page that does not exist.
    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()>;

    /// Pages and states, to be copied out and back; none where that is not offered.
    fn storage(&mut self) -> Option<&mut dyn Storage> {
        None
    }

    /// Makes `slot` ready for a new sequence.
    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()>;

    /// Says what a constrained `slot` may draw next: a set for the next draw, or where a step verifies a
    /// draft of its, one for each of its rows. Every draw of a constrained slot needs one of its own,
    /// before [`Backend::feed`] draws, [`Backend::draw`], or [`Backend::decode_drafted`].
    ///
    /// # Errors
    /// [`Error::Internal`] for a slot that is not constrained or sets of another vocabulary.
    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()>;

    /// Feeds parts of prompts, each of a slot of its own, in as few passes as hold them. With `step` a
    /// decode step of every slot that decodes is a part of the first. Gives the slots whose part could not
    /// be fed, each with why; what ails one that decodes comes as its [`Finish::Failed`].
    ///
    /// # Errors
    /// Of all slots; [`Error::Internal`] for a step where it is not [`Backend::is_settled`].
    fn feed(&mut self, parts: &[Part<'_>], step: bool) -> Result<Vec<(usize, Error)>>;

    /// Feeds one such part. With `last`, the first token is drawn and the slot decodes from then on.
    ///
    /// # Errors
    /// As [`Backend::feed`], and that slot's own.
    fn prefill(&mut self, slot: usize, tokens: &[u32], start: usize, last: bool) -> Result<()> {
        let part = Part {
            slot,
            tokens,
            start,
            last,
            next: None,
        };
        let failed = self.feed(&[part], false)?;
        failed.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
    }

    /// How many of prompts' `rest` tokens to feed in one call, beside a step of `stepping` sequences, which
    /// is not to take longer than `rows` rows do, where the caller knows; between calls a request may be
    /// cancelled and others decode.
    fn slice(&self, rest: usize, rows: Option<usize>, stepping: usize) -> usize {
        slice_of(rest, rows, stepping)
    }

    /// Whether [`Backend::feed`] has room for a step of so many sequences.
    fn steps_beside_prompts(&self, sequences: usize) -> bool;

    /// Queues one decode step of every slot that decodes. An error is one of all slots; what ails
    /// one slot comes as its [`Finish::Failed`]. Where one of them is constrained the step stops before
    /// its draw, which [`Backend::draw`] queues: the sets that it needs are made while it computes.
    fn decode(&mut self) -> Result<()>;

    /// Whether a step stopped before its draw.
    fn awaits_draw(&self) -> bool;

    /// Queues the draw of the step that stopped before it.
    ///
    /// # Errors
    /// [`Error::Internal`] where a slot that may still draw has no set, or steps before it were not
    /// drained.
    fn draw(&mut self) -> Result<()>;

    /// The same step where some slots have a draft, one each, all together of up to [`ROUND_ROWS`] rows:
    /// the token drawn last and each drafted one is a row. The slot draws from its rows in turn, each with
    /// the index, penalties and ends that steps of one token would have, for as long as what it drew is
    /// the draft's next token. So its tokens are those that it would have drawn without; a step gives at
    /// least one and at most one more than were drafted. Of what a wrong draft left in the cache nothing
    /// is ever read, and its states are those behind the last row that counted.
    ///
    /// # Errors
    /// As [`Backend::decode`]; [`Error::Internal`] where it is not [`Backend::is_settled`], for a token of
    /// no vocabulary and too many rows.
    fn decode_drafted(&mut self, drafts: &[Draft]) -> Result<()>;

    /// Most tokens that the model itself drafts for a sequence in a round; 0 where it has nothing to do
    /// that by.
    fn most_guessed(&self) -> usize {
        0
    }

    /// A step as [`Backend::decode_drafted`], of drafts of up to `tokens` each that the model guesses for
    /// every slot that decodes and is not constrained.
    ///
    /// # Errors
    /// As [`Backend::decode_drafted`].
    fn decode_guessed(&mut self, _tokens: usize) -> Result<()> {
        Err(no_drafter())
    }

    /// Whether steps that guess nothing leave what guesses behind, since it goes by tokens alone:
    /// [`Backend::follow`] lets it catch up.
    fn lags(&self) -> bool {
        false
    }

    /// Has what guesses follow parts of texts that are in their pages already.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn follow(&mut self, _parts: Vec<Part<'_>>) -> Result<()> {
        Err(no_drafter())
    }

    /// Refuses drafts that no step can verify: of `rows` rows together with the tokens drawn last.
    ///
    /// # Errors
    /// As [`Backend::decode_drafted`].
    fn check_round(&self, drafts: &[Draft], rows: usize) -> Result<()> {
        let n_vocab = self.limits().n_vocab;
        let mut tokens = drafts.iter().flat_map(|draft| &draft.tokens);
        let wrong = if let Some(token) = tokens.find(|token| **token as usize >= n_vocab) {
            format!("token {token} of {n_vocab} is drafted")
        } else if !self.is_settled() || rows > ROUND_ROWS {
            let is_behind = !self.is_settled();
            format!("{rows} rows of drafts behind a step: {is_behind}")
        } else {
            return Ok(());
        };
        Err(Error::Internal(wrong))
    }

    /// What a further row of a step takes, of the time of a step of one row. Nothing but the length of
    /// drafts depends on it.
    fn row_cost(&self) -> f32;

    /// Whether every step that was queued was drained, and none awaits its draw: what was drawn last is
    /// known.
    fn is_settled(&self) -> bool;

    /// The tokens drawn since the last call, in order. With `wait`, blocks until the oldest queued
    /// step is done; where nothing is queued it returns at once.
    fn drain(&mut self, wait: bool) -> Result<Vec<Event>>;

    /// Whether another decode step may be queued before [`Backend::drain`].
    fn may_queue(&self) -> bool;

    /// Pauses the sequence of `slot` or resumes it; its state is kept.
    /// Does nothing where there is none.
    fn set_paused(&mut self, slot: usize, paused: bool);

    /// [`Backend::set_paused`]: the pages of `slot` may be given to another one until it goes on.
    ///
    /// # Errors
    /// [`Error::Internal`] where it is not [`Backend::is_settled`]: a step may still use the pages.
    fn pause(&mut self, slot: usize) -> Result<()> {
        if !self.is_settled() {
            return Err(Error::Internal(format!(
                "slot {slot} is paused behind a step"
            )));
        }
        self.set_paused(slot, true);
        Ok(())
    }

    /// Ends the sequence of `slot`: tokens of steps still queued are dropped, its pages may be
    /// given to another slot.
    fn release(&mut self, slot: usize) -> Result<()>;

    /// Its graphs, where it has some, to look at.
    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        None
    }

    /// Whether a key or value of the sequence in `slot` was beyond what the cache's type holds, so
    /// that the largest magnitude stands in its place; [`Backend::release`] forgets it.
    fn saturated(&self, slot: usize) -> bool;

    /// Time spent so far on choosing tokens; zero where that is part of the step.
    fn sampling_time(&self) -> Duration;

    /// The logits after each of `tokens`, `[tokens.len(), n_vocab]`, the first token at position
    /// `start`; draws nothing.
    fn logits(
        &mut self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        path: LogitsPath,
    ) -> Result<Vec<f32>>;

    /// Feeds parts of texts, each of a slot of its own, in as few passes as hold them, and gives of each the
    /// hidden states behind the last tokens of it that are wanted, `[wanted, n_embd]`: the rows under the
    /// model's last norm, by [`Plan::hidden`]; or why there are none. The head is not computed. No bit
    /// depends on how a text is cut, or on those beside it; of a plan that looks ahead none is.
    ///
    /// # Errors
    /// Of all parts; [`Error::Internal`] of a plan without.
    fn hidden(&mut self, parts: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>>;
}

/// The error of a plan without a drafter.
fn no_drafter() -> Error {
    Error::Internal("a plan without a drafter".into())
}

/// The error of a plan that has no hidden states.
fn no_hidden() -> Error {
    Error::Internal("a plan that picks no rows for its head".into())
}
