//! The launches that draw. The kernels follow [`crate::sampler`] bit for bit; what a request asks
//! for lies in device memory, so that one captured list of launches serves every request.

use bytemuck::Zeroable;

use super::params::{SlotState, CONSTANTS};
use crate::backend::cuda::driver::source::{constants, shared, Layout, Shared, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::backend::Finish;
use crate::error::Error;
use crate::sampler::{self, math, Params};

static SOURCE: Source = Source {
    name: "sample.cu",
    text: include_str!("../../../../kernels/sample.cu"),
    constants: CONSTANTS,
    layouts: &[Arguments::LAYOUT, SlotState::LAYOUT, ROW],
};

/// Steps that the ring has room for; the oldest record is overwritten. A power of two.
pub const RING_STEPS: usize = 8;

const THREADS: usize = 256;
/// Tokens that a block looks at together.
pub const TILE: usize = 4 * THREADS;
/// Bins of the histogram that the filters start from.
pub const BINS: usize = 8 * THREADS;
/// Tokens that one block sorts; where the filters end among more than these, it scans the row.
pub const LIST: usize = 2048;
/// Most blocks for one row.
pub const MAX_BLOCKS: usize = 512;
/// Blocks of one launch that keep every card in production busy.
const BLOCKS_WANTED: usize = 512;
/// What the kernels of one step tell each other about a row; the host only makes room for it.
const ROW: Layout = Layout {
    name: "Row",
    bytes: 128,
    fields: &[],
};

/// Bytes of it.
pub const ROW_BYTES: usize = ROW.bytes;

shared! {
    /// What the kernels of a draw work on.
    pub struct Arguments = "Params" {
        /// `[rows][n_vocab]` f32.
        pub logits: u64,
        /// `[rows]` u32.
        pub slots: u64,
        /// `[n_slots + 1]` slot states.
        pub state: u64,
        /// `[n_slots][n_vocab]` u32.
        pub counts: u64,
        /// `[n_slots][n_ctx]` u32.
        pub history: u64,
        /// `[rows][n_vocab, in whole fours]` f32.
        pub y: u64,
        /// `[rows]` of [`ROW`].
        pub rows: u64,
        /// `[rows][MAX_BLOCKS]` u64.
        pub partial: u64,
        /// `[rows][BINS]` u32.
        pub bin_counts: u64,
        /// `[rows][BINS]` u64.
        pub bin_masses: u64,
        /// `[rows][LIST]` u64.
        pub list: u64,
        /// `[RING_STEPS][max_rows]` u64 in host memory.
        pub ring: u64,
        /// One u32: steps done.
        pub step: u64,
        /// `[rows]` u32, where drafts are verified.
        pub tokens: u64, pub positions: u64,
        /// `[rows][mask_words]` u32 in host memory.
        pub masks: u64,
        pub max_rows: u32, pub unused: u32,
    }
}

constants! {
    /// sample.cu
    struct SampleVariant in SOURCE {
        n_vocab: uint32_t, n_ctx: uint32_t, tile: uint32_t, max_blocks: uint32_t, bins: uint32_t,
        list: uint32_t, ring_steps: uint32_t, verifies: bool,
    }
}

/// For what the kernels are compiled and how many rows there is memory for.
#[derive(Debug, Clone, Copy)]
pub struct SampleShape {
    pub n_vocab: usize,
    pub n_ctx: usize,
    pub max_rows: usize,
}

/// One draw to lower.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// At most `max_rows`.
    pub rows: usize,
    /// `[rows][n_vocab]` f32.
    pub logits: u64,
    /// `[rows]` u32.
    pub slots: u64,
    /// Where [`Record`]s go, at step number % [`RING_STEPS`]: `[RING_STEPS][max_rows]` u64 of
    /// mapped host memory.
    pub ring: u64,
    /// The u32 to which each draw adds one; 0 before the first.
    pub step: u64,
    pub drafts: Option<Drafts>,
}

/// Rows of drafts to verify: those of a slot are neighbours, the token drawn last and its draft.
#[derive(Debug, Clone, Copy)]
pub struct Drafts {
    /// `[rows]` u32.
    pub tokens: u64,
    /// `[rows]` u32.
    pub positions: u64,
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
    /// 29 how the sequence ended (1 stop, 2 length, 3 failed), bit 27 that no token was left, bits
    /// 0 to 22 the token, or that of the logit that failed.
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

/// The launches of a draw, with what of their arguments is of every draw.
pub fn specs(at: &Arguments, shape: &SampleShape, draw: &Draw) -> Vec<Spec> {
    debug_assert!(draw.rows <= shape.max_rows);
    let arguments = Arguments {
        logits: draw.logits,
        slots: draw.slots,
        ring: draw.ring,
        step: draw.step,
        tokens: draw.drafts.map_or(0, |drafts| drafts.tokens),
        positions: draw.drafts.map_or(0, |drafts| drafts.positions),
        max_rows: shape.max_rows as u32,
        ..*at
    };
    let variant = variant(shape.n_vocab, shape.n_ctx, draw.drafts.is_some());
    let tiles = shape.n_vocab.div_ceil(TILE).min(MAX_BLOCKS);
    let blocks = BLOCKS_WANTED.div_ceil(draw.rows.max(1)).min(tiles) as u32;
    let grid = [blocks, draw.rows as u32, 1];
    // A greedy row is done with the first kernel: it reads the logits and writes what it makes of
    // them.
    let all = draw.rows * shape.n_vocab * 8;
    let row = draw.rows * ROW_BYTES;
    let spec = |entry, grid, bytes| {
        let mut spec = Spec::new(variant.clone(), entry, grid, THREADS as u32, &arguments);
        spec.traffic = Traffic::rows(bytes);
        spec
    };
    let draws = [
        ("sample_adjust", all),
        ("sample_bins", row),
        ("sample_cut", row),
        ("sample_draw", row),
    ];
    let draws = draws.map(|(entry, bytes)| spec(entry, grid, bytes));
    let each = [draw.rows as u32, 1, 1];
    let accept = draw.drafts.map(|_| spec("sample_accept", each, row));
    draws.into_iter().chain(accept).collect()
}

/// Words of a row of masks, of which the host writes two at once.
pub fn mask_words(n_vocab: usize) -> usize {
    n_vocab.div_ceil(64) * 2
}

/// The kernels for a vocabulary and a context, which draw at once or verify drafts.
pub fn variant(n_vocab: usize, n_ctx: usize, verifies: bool) -> Variant {
    SampleVariant {
        n_vocab,
        n_ctx,
        tile: TILE,
        max_blocks: MAX_BLOCKS,
        bins: BINS,
        list: LIST,
        ring_steps: RING_STEPS,
        verifies,
    }
    .into()
}

/// All of the state that sampling parameters decide.
pub fn state(params: &Params, n_vocab: usize) -> SlotState {
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
        window: match (params.penalizes(), params.repeat_last_n) {
            (false, _) => 0,
            (true, None) => u32::MAX,
            (true, Some(n)) => u32::try_from(n).unwrap_or(u32::MAX),
        },
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
pub fn bias_words(params: &Params, n_vocab: usize) -> Vec<u32> {
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
