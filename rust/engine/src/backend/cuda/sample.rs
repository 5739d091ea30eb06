//! The sampler on the card: what each slot draws by, and the launches that draw. The kernels follow
//! [`crate::sampler`] bit for bit; what a request asks for lies in device memory, so that one
//! captured list of launches serves every request.

use std::mem::offset_of;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::compile::Variant;
use super::device::{Context, DeviceBuffer, Stream};
use super::launch::Spec;
use crate::backend::{Finish, SlotRequest};
use crate::error::{Error, Result};
use crate::sampler::{self, math, Params};

/// Steps that the ring has room for; the oldest record is overwritten. A power of two.
pub const RING_STEPS: usize = 8;

const THREADS: usize = 256;
/// Tokens that a block looks at together.
const TILE: usize = 4 * THREADS;
/// Bins of the histogram that the filters start from.
const BINS: usize = 8 * THREADS;
/// Tokens that one block sorts; where the filters end among more than these, it scans the row.
const LIST: usize = 2048;
/// Most blocks for one row.
const MAX_BLOCKS: usize = 512;
/// Blocks of one launch that keep every card in production busy.
const BLOCKS_WANTED: usize = 512;
/// Size of `Row` in sample.cu.
const ROW_BYTES: usize = 128;

/// `SlotState` of state.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SlotState {
    seed: u64,
    share: u64,
    stop: u64,
    bias: u64,
    token: u32,
    position: u32,
    live: u32,
    generated: u32,
    max_tokens: u32,
    n_stop: u32,
    only_biased: u32,
    penalizes: u32,
    top_k: u32,
    least_key: u32,
    temperature: f32,
    repeat_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
}

/// `Params` of sample.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Arguments {
    logits: u64,
    slots: u64,
    state: u64,
    counts: u64,
    y: u64,
    rows: u64,
    partial: u64,
    bin_counts: u64,
    bin_masses: u64,
    list: u64,
    ring: u64,
    step: u64,
    max_rows: u32,
    unused: u32,
}

/// One word of the ring: what a step did to one row's slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Which step wrote it; the first is number 1. Another number: not written yet.
    pub step: u32,
    /// Whether the slot decoded; if not, nothing was drawn.
    pub live: bool,
    /// The token drawn; 0 where the draw failed.
    pub token: u32,
    /// Set on the last token of a sequence.
    pub finish: Option<Finish>,
}

impl Record {
    /// Takes a word of the ring apart: the step in its high half; below it bit 31 live, bits 28 and
    /// 29 how the sequence ended (1 stop, 2 length, 3 failed), bit 27 that no token was left, bits 0
    /// to 22 the token, or that of the logit that failed.
    pub fn new(word: u64) -> Self {
        let low = word as u32;
        let token = low & (sampler::MAX_VOCAB as u32 - 1);
        let (token, finish) = match low >> 28 & 3 {
            0 => (token, None),
            1 => (token, Some(Finish::Stop)),
            2 => (token, Some(Finish::Length)),
            _ if low >> 27 & 1 == 1 => (0, Some(Finish::Failed(sampler::nothing_left()))),
            _ => {
                let value = "NaN or inf".into();
                (0, Some(Finish::Failed(Error::Logits { token, value })))
            }
        };
        Self {
            step: (word >> 32) as u32,
            live: low >> 31 == 1,
            token,
            finish,
        }
    }
}

/// What the slots of one model draw by.
#[derive(Debug)]
pub struct Sampling {
    context: Arc<Context>,
    n_slots: usize,
    n_vocab: usize,
    n_ctx: usize,
    max_rows: usize,
    state: DeviceBuffer,
    counts: DeviceBuffer,
    /// By slot, as long as the longest request so far wanted.
    stop: Vec<Option<DeviceBuffer>>,
    bias: Vec<Option<DeviceBuffer>>,
    y: DeviceBuffer,
    rows: DeviceBuffer,
    partial: DeviceBuffer,
    bin_counts: DeviceBuffer,
    bin_masses: DeviceBuffer,
    list: DeviceBuffer,
}

impl Sampling {
    /// Takes the memory for `n_slots` sequences and for launches of up to `max_rows` rows. No slot
    /// is live.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Unsupported`] for too large a vocabulary.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        n_slots: usize,
        n_vocab: usize,
        n_ctx: usize,
        max_rows: usize,
    ) -> Result<Self> {
        if n_vocab > sampler::MAX_VOCAB {
            return Err(Error::Unsupported {
                what: "vocabulary size",
                name: n_vocab.to_string(),
                supported: format!("up to {} tokens", sampler::MAX_VOCAB),
            });
        }
        let take = |bytes: usize| DeviceBuffer::new(context, bytes);
        let sampling = Self {
            context: context.clone(),
            n_slots,
            n_vocab,
            n_ctx,
            max_rows,
            state: take((n_slots + 1) * size_of::<SlotState>())?,
            counts: take(n_slots * n_vocab * 4)?,
            stop: (0..n_slots).map(|_| None).collect(),
            bias: (0..n_slots).map(|_| None).collect(),
            y: take(max_rows * n_vocab.next_multiple_of(4) * 4)?,
            rows: take(max_rows * ROW_BYTES)?,
            partial: take(max_rows * MAX_BLOCKS * 8)?,
            bin_counts: take(max_rows * BINS * 4)?,
            bin_masses: take(max_rows * BINS * 8)?,
            list: take(max_rows * LIST * 8)?,
        };
        sampling.state.fill(0, stream)?;
        // The tickets in there reset themselves from now on.
        sampling.rows.fill(0, stream)?;
        stream.synchronize()?;
        Ok(sampling)
    }

    /// Where the `n_slots + 1` slot states lie; the last is for rows that pad a batch and is never
    /// live.
    pub fn state_address(&self) -> u64 {
        self.state.address()
    }

    /// Makes `slot` ready to draw by `request`; it is not live yet.
    ///
    /// # Errors
    /// [`Error::Argument`] for a parameter out of range, [`Error::Memory`].
    pub fn start(&mut self, slot: usize, request: &SlotRequest, stream: &Stream) -> Result<()> {
        let params = &request.sampling;
        params.validate(self.n_vocab)?;
        self.stop(slot, stream)?;
        if params.penalizes() {
            let mut counts = vec![0u32; self.n_vocab];
            for id in &request.prompt {
                if let Some(count) = counts.get_mut(*id as usize) {
                    *count = sampler::IN_PROMPT;
                }
            }
            self.counts
                .write(slot * self.n_vocab * 4, &counts, stream)?;
        }
        let bias = match params.logit_bias.is_empty() {
            true => 0,
            false => {
                let words = bias_words(params, self.n_vocab);
                keep(&self.context, &mut self.bias[slot], &words, stream)?
            }
        };
        let stop = match request.stop_tokens.is_empty() {
            true => 0,
            false => keep(
                &self.context,
                &mut self.stop[slot],
                &request.stop_tokens,
                stream,
            )?,
        };
        let state = SlotState {
            stop,
            bias,
            max_tokens: u32::try_from(request.max_tokens).unwrap_or(u32::MAX),
            n_stop: request.stop_tokens.len() as u32,
            ..state(params, self.n_vocab)
        };
        self.state
            .write(slot * size_of::<SlotState>(), &[state], stream)
    }

    /// From the next launch on `slot` draws; the prompt's last token stands at `position`.
    pub fn arm(&mut self, slot: usize, position: usize, stream: &Stream) -> Result<()> {
        let position = u32::try_from(position)
            .map_err(|_| Error::Internal(format!("position {position} of slot {slot}")))?;
        let at = self.state_offset(slot)? + offset_of!(SlotState, position);
        self.state.write(at, &[position, 1], stream)
    }

    /// From the next launch on `slot` draws, as if `token`, at `position`, were the last one it drew
    /// and the first one at all.
    pub fn force(
        &mut self,
        slot: usize,
        token: u32,
        position: usize,
        stream: &Stream,
    ) -> Result<()> {
        let position = u32::try_from(position)
            .map_err(|_| Error::Internal(format!("position {position} of slot {slot}")))?;
        let at = self.state_offset(slot)? + offset_of!(SlotState, token);
        self.state.write(at, &[token, position, 1, 0], stream)
    }

    /// Token, position, live flag and number of tokens drawn of `slot`, once all that is queued is
    /// done.
    pub fn progress(&self, slot: usize, stream: &Stream) -> Result<[u32; 4]> {
        let at = self.state_offset(slot)? + offset_of!(SlotState, token);
        let mut words = [0; 4];
        self.state.read(at, &mut words, stream)?;
        Ok(words)
    }

    /// From the next launch on `slot` draws nothing.
    pub fn stop(&mut self, slot: usize, stream: &Stream) -> Result<()> {
        let at = self.state_offset(slot)? + offset_of!(SlotState, live);
        self.state.write(at, &[0u32], stream)
    }

    /// Where in `state` the state of `slot` begins; the padding slot's is never written.
    fn state_offset(&self, slot: usize) -> Result<usize> {
        if slot >= self.n_slots {
            return Err(Error::Internal(format!("slot {slot} of {}", self.n_slots)));
        }
        Ok(slot * size_of::<SlotState>())
    }

    /// The launches that draw for `rows` (at most `max_rows`) rows: logits `[rows][n_vocab]`, slots
    /// `[rows]` (u32). They write [`Record`]s to `ring`, `[RING_STEPS][max_rows]` words of mapped
    /// host memory, at step number % [`RING_STEPS`], and add one to the u32 at `step`, which was 0
    /// before the first step.
    pub fn specs(
        &self,
        logits: u64,
        row_slots: u64,
        rows: usize,
        ring: u64,
        step: u64,
    ) -> Vec<Spec> {
        debug_assert!(rows <= self.max_rows);
        let arguments = Arguments {
            logits,
            slots: row_slots,
            state: self.state.address(),
            counts: self.counts.address(),
            y: self.y.address(),
            rows: self.rows.address(),
            partial: self.partial.address(),
            bin_counts: self.bin_counts.address(),
            bin_masses: self.bin_masses.address(),
            list: self.list.address(),
            ring,
            step,
            max_rows: self.max_rows as u32,
            unused: 0,
        };
        let variant = variant(self.n_vocab, self.n_ctx);
        let tiles = self.n_vocab.div_ceil(TILE).min(MAX_BLOCKS);
        let blocks = BLOCKS_WANTED.div_ceil(rows.max(1)).min(tiles) as u32;
        ["sample_adjust", "sample_bins", "sample_cut", "sample_draw"]
            .map(|entry| {
                let grid = [blocks, rows as u32, 1];
                Spec::new(variant.clone(), entry, grid, THREADS as u32, &arguments)
            })
            .into()
    }
}

/// The kernels for a vocabulary and a context.
pub fn variant(n_vocab: usize, n_ctx: usize) -> Variant {
    let constants = [
        ("N_VOCAB", n_vocab),
        ("N_CTX", n_ctx),
        ("TILE", TILE),
        ("MAX_BLOCKS", MAX_BLOCKS),
        ("BINS", BINS),
        ("LIST", LIST),
        ("RING_STEPS", RING_STEPS),
    ];
    let line = |(name, value)| format!("constexpr uint32_t {name} = {value};\n");
    Variant {
        source: "sample.cu",
        constants: constants.map(line).concat(),
    }
}

/// All of the state that sampling parameters decide.
fn state(params: &Params, n_vocab: usize) -> SlotState {
    let lowest_finite = sampler::key(f32::MIN);
    let least_key = match params.min_p >= f32::MIN_POSITIVE {
        true => sampler::key(math::ln(params.min_p)).max(lowest_finite),
        false => lowest_finite,
    };
    SlotState {
        seed: params.seed,
        share: match params.top_p < 1.0 {
            true => (f64::from(params.top_p) * 4_294_967_296.0).round() as u64,
            false => 1 << 32,
        },
        only_biased: u32::from(params.logit_bias.values().any(|b| *b == f32::INFINITY)),
        penalizes: u32::from(params.penalizes()),
        top_k: match (1..n_vocab).contains(&params.top_k) {
            true => params.top_k as u32,
            false => 0,
        },
        least_key,
        temperature: params.temperature,
        repeat_penalty: params.repeat_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        ..SlotState::zeroed()
    }
}

/// The list of biases as the kernel reads it: for each tile of tokens where its entries begin, the
/// end, then id and value of each entry, by ascending id.
fn bias_words(params: &Params, n_vocab: usize) -> Vec<u32> {
    let tiles = n_vocab.div_ceil(TILE);
    let mut words = vec![0u32; tiles + 1];
    for id in params.logit_bias.keys() {
        words[*id as usize / TILE + 1] += 1;
    }
    for tile in 0..tiles {
        words[tile + 1] += words[tile];
    }
    for (id, value) in &params.logit_bias {
        words.extend([*id, value.to_bits()]);
    }
    words
}

/// Stores `words` in `place`, which grows where it must; returns their address.
fn keep(
    context: &Arc<Context>,
    place: &mut Option<DeviceBuffer>,
    words: &[u32],
    stream: &Stream,
) -> Result<u64> {
    let bytes = size_of_val(words);
    let buffer = match place.take() {
        Some(known) if known.bytes() >= bytes => known,
        outgrown => {
            // Steps in flight may still read it.
            stream.synchronize()?;
            drop(outgrown);
            DeviceBuffer::new(context, bytes)?
        }
    };
    buffer.write(0, words, stream)?;
    Ok(place.insert(buffer).address())
}
