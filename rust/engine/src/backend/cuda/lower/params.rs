//! The parameter structs of the kernels, as the kernels declare them. Pointers are addresses on the
//! card; comments say what lies there. `m` is the number of rows of a launch.

use super::shape::{TILE_COLS, TILE_ROWS};
use crate::backend::cuda::driver::source::shared;
use crate::backend::PAGE_TOKENS;
use crate::plan::fuse::MOST_PARTS as MOST_SEGMENTS;

/// Slot of rows that only fill a batch up: nothing of them is stored.
pub const PADDING_SLOT: u32 = u32::MAX;

/// Numbers that kv.cuh and weight_tile.cuh share with the host.
pub const CONSTANTS: &[(&str, u32)] = &[
    ("PAGE_TOKENS", PAGE_TOKENS as u32),
    ("PADDING_SLOT", PADDING_SLOT),
    ("NO_EXPERT", u32::MAX),
    ("NO_PAIR", u32::MAX),
    ("TILE_ROWS", TILE_ROWS as u32),
    ("TILE_COLS", TILE_COLS as u32),
    ("MOST_SEGMENTS", MOST_SEGMENTS as u32),
];

shared! {
    /// One matrix of a product: epilogue.cuh.
    pub struct Segment = "Segment" {
        /// `[tiles][superblocks]` (weight_tile.cuh), of each expert where there are some.
        pub weights: u64,
        /// `[m][rows]` f32.
        pub out: u64,
        /// For the first and the second row of a pair, or 0: `[rows]` f32, and one f32, or as many of
        /// each expert.
        pub bias: [u64; 2],
        pub scale: [u64; 2], pub tiles: u32, pub rows: u32,
    }

    /// Where a product reports rows that overflow: fixed.cuh.
    pub struct Overflows = "Overflows" {
        /// `[n_slots]` u64 in host memory: see [`super::overflow`].
        pub words: u64,
        /// `[rows of the pass]` u32.
        pub positions: u64, pub slots: u64,
        /// `[m]` u32, or 0.
        pub rows: u64,
        pub n_slots: u32, pub product: u32,
    }

    /// Where a kernel finds the tokens of one layer: kv.cuh.
    pub struct KvView = "KvView" {
        /// `[n_pages][n_head_kv]` heads' pages of keys.
        pub k: u64,
        /// The same of values.
        pub v: u64,
        /// `[n_slots][pages_per_slot]` u32.
        pub page_table: u64,
        /// One u64 in host memory.
        pub error: u64,
        /// `[n_slots]` u64 in host memory.
        pub saturated: u64,
        /// The same: see [`super::overflow`].
        pub reports: u64,
        pub pages_per_slot: u32, pub n_slots: u32, pub n_ctx: u32, pub n_pages: u32,
        /// Of the op that stores, in the pass.
        pub number: u32,
        pub unused: u32,
    }

    /// By what the epilogue QKV rotates heads: epilogue.cuh. Zeros where there is another.
    pub struct QkvRotation = "QkvRotation" {
        /// `[n_ctx][HEAD_DIM / 2][cos, sin]` f32, of queries.
        pub cos_sin: u64,
        /// The same of keys.
        pub key_cos_sin: u64,
        /// `[m]` u32.
        pub positions: u64,
        pub n_ctx: u32, pub unused: u32,
    }

    /// Which experts the rows of a product go to: experts.cuh. Zeros where there are none.
    pub struct Experts = "Experts" {
        /// `[m][2][ranks]` f32.
        pub routes: u64,
        /// `[blocks of rows]` u32, or 0.
        pub experts: u64,
        /// `[blocks of rows][rows]` u32, or 0.
        pub pairs: u64,
    }

    /// What x goes through before a product, and how it is normalized before that: matvec.cu.
    pub struct Gated = "Gated" {
        /// `[N_IN]` f32, or one, or 0.
        pub by: u64,
        /// `[GATE_GROUP]` f32, or 0.
        pub weight: u64,
        pub eps: f32, pub unused: u32,
    }

    /// The last product of an expert that every row goes to: matvec.cu. Zeros where it has none.
    pub struct SharedExpert = "SharedExpert" {
        /// `[N_IN]` f32.
        pub x: u64,
        /// One f32.
        pub gate: u64,
        /// Its number in the pass.
        pub product: u32,
        pub unused: u32,
    }

    /// How experts are chosen: route.cuh. Zeros where none are.
    pub struct Route = "RouteParams" {
        /// `[m][experts]` f32.
        pub logits: u64,
        /// `[experts]` f32, or 0.
        pub bias: u64, pub scales: u64,
        /// `[m][2][ranks]` f32.
        pub out: u64,
        pub scale: f32, pub m: u32,
    }

    /// matvec.cu
    pub struct MatVec = "Params" {
        pub segment: [Segment; MOST_SEGMENTS],
        /// `[N_IN]` f32.
        pub x: u64,
        /// `[N_IN]` f32, or 0.
        pub norm: u64,
        pub eps: f32, pub located: u16, pub early: u16, pub gated: Gated, pub overflows: Overflows,
        pub experts: Experts, pub shared: SharedExpert, pub rotation: QkvRotation, pub route: Route,
        /// `[rows of the segment]` f32, or 0.
        pub mixed: u64,
        /// `[blocks]` u32 that are zero between launches.
        pub tickets: u64,
    }

    /// matvec_floats.cu
    pub struct MatVecFloats = "Params" {
        pub segment: [Segment; MOST_SEGMENTS],
        /// `[m][N_IN]` f32.
        pub x: u64,
        /// `[N_IN]` f32, or 0.
        pub norm: u64,
        pub eps: f32, pub m: u32, pub experts: Experts, pub rotation: QkvRotation, pub route: Route,
        /// One u32 that is zero between launches.
        pub tickets: u64,
    }

    /// matmul.cu
    pub struct MatMul = "Params" {
        pub segment: [Segment; MOST_SEGMENTS],
        /// `[superblocks][n_tiles]` tiles of eight rows of x.
        pub tiles: u64,
        /// `[m][superblocks]` f32.
        pub squares: u64,
        /// `[parts]` f32 sums of every block, where the columns are split.
        pub partial: u64,
        /// `[blocks of outputs]` u32, zero between launches.
        pub tickets: u64,
        pub eps: f32, pub m: u32, pub n_tiles: u32, pub unused: u32, pub experts: Experts,
        pub rotation: QkvRotation,
    }

    /// skinny.cu
    pub struct Skinny = "Params" {
        pub segment: [Segment; MOST_SEGMENTS],
        /// `[m][N_IN]` f32.
        pub x: u64,
        /// `[N_IN]` f32, or 0.
        pub norm: u64,
        pub eps: f32, pub m: u32, pub overflows: Overflows, pub rotation: QkvRotation,
    }

    /// split.cu
    pub struct Split = "Params" {
        /// `[m][N_IN]` f32.
        pub x: u64,
        /// `[N_IN]` f32, or 0.
        pub norm: u64,
        /// `[superblocks][n_tiles]` tiles of eight rows of x.
        pub tiles: u64,
        /// `[m][superblocks]` f32.
        pub squares: u64,
        pub overflows: Overflows, pub experts: Experts, pub m: u32, pub unused: u32,
    }

    /// repack.cu
    pub struct Repack = "Params" {
        /// `[tiles * 16]` u64, addresses of rows; 0 where a tile is padded.
        pub rows: u64,
        /// `[tiles][n_sb]` (weight_tile.cuh).
        pub weights: u64,
        pub tiles: u32, pub n_sb: u32, pub n_in: u32, pub unused: u32,
    }

    /// embed.cu
    pub struct Embed = "Params" {
        /// `[n_rows / 16][superblocks]` (weight_tile.cuh).
        pub weights: u64,
        /// `[m][N_IN]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub tokens: u64,
        /// `[m]` u32; written where there is `state`.
        pub positions: u64, pub slots: u64,
        /// `[n_slots + 1]` slot states, or 0.
        pub state: u64,
        /// `[m]` u32.
        pub state_slots: u64,
        pub n_rows: u32, pub scale: f32,
    }

    /// round.cuh
    pub struct Commit = "Commit" {
        /// `[layers]` of the addresses of a state and of what is kept of it.
        pub places: u64,
        /// `[m]` u32.
        pub accepted: u64, pub positions: u64, pub slots: u64,
    }

    /// rms_norm.cu
    pub struct RmsNorm = "Params" {
        /// `[groups][GROUP]` f32.
        pub x: u64, pub out: u64,
        /// `[WEIGHTS][GROUP]` f32, or 0.
        pub weight: u64,
        /// One f32, or 0.
        pub factor: u64,
        /// As x, or 0.
        pub gate: u64,
        pub eps: f32, pub groups: u32,
    }

    /// layer_norm.cu
    pub struct LayerNorm = "Params" {
        /// `[rows][GROUP]` f32.
        pub x: u64, pub out: u64,
        /// `[GROUP]` f32, both; the bias may be 0.
        pub weight: u64,
        pub bias: u64,
        pub eps: f32, pub rows: u32,
    }

    /// rope.cu
    pub struct Rope = "Params" {
        /// `[m][N_HEAD * HEAD_DIM]` f32.
        pub x: u64,
        /// `[n_ctx][HALF][cos, sin]` f32.
        pub cos_sin: u64,
        /// `[m]` u32.
        pub positions: u64,
        pub n_ctx: u32, pub unused: u32,
    }

    /// kv_scatter_fixed.cu
    pub struct KvScatter = "Params" {
        /// `[m][N_HEAD_KV * HEAD_DIM]` f32.
        pub k: u64, pub v: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub kv: KvView,
    }

    /// attention_fixed.cu
    pub struct AttentionFixed = "Params" {
        /// `[m][N_HEAD * HEAD_DIM]` f32.
        pub q: u64, pub out: u64,
        /// `[m][N_HEAD_KV * HEAD_DIM]` f32, or 0.
        pub k: u64, pub v: u64,
        pub kv: KvView,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        /// `[m][N_HEAD_KV][MAX_SPLITS * GROUP * (HEAD_DIM + 2)]` f32.
        pub partial: u64,
        /// `[m][N_HEAD_KV]` u32, zero between launches.
        pub tickets: u64,
        /// `[N_HEAD]` f32, or 0.
        pub sinks: u64,
        /// `[m][CHOSEN]` f32, or 0.
        pub chosen: u64,
        /// Where it rotates heads: `[HEAD_DIM]` f32, both.
        pub q_weight: u64,
        pub k_weight: u64,
        /// `[n_ctx][HALF][cos, sin]` f32.
        pub cos_sin: u64,
        pub eps: f32, pub scale: f32, pub shares: u32,
        /// 1: positions and slots were there before the preceding kernel began.
        pub located: u32,
    }

    /// prompt_attention_fixed.cu
    pub struct PromptAttention = "Params" {
        /// `[m][N_HEAD * HEAD_DIM]` f32.
        pub q: u64, pub out: u64,
        pub kv: KvView,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        /// `[N_HEAD]` f32, or 0.
        pub sinks: u64,
        pub scale: f32, pub m: u32,
    }

    /// elementwise.cu
    pub struct Add = "AddParams" {
        /// `[n]` f32.
        pub x: u64, pub out: u64,
        pub n: u64,
    }

    /// elementwise.cu
    pub struct Glu = "GluParams" {
        /// `[n / share]` f32.
        pub gate: u64,
        /// `[n]` f32.
        pub up: u64, pub out: u64,
        pub n: u64, pub share: u64,
    }

    /// elementwise.cu
    pub struct Gelu = "GeluParams" {
        /// `[n]` f32.
        pub x: u64,
        pub n: u64,
    }

    /// elementwise.cu
    pub struct AddRow = "AddRowParams" {
        /// `[n]` f32.
        pub x: u64,
        /// `[n_rows][width]` f32.
        pub table: u64,
        /// `[n / width]` u32, or 0.
        pub positions: u64,
        pub n: u64, pub width: u32, pub n_rows: u32,
    }

    /// elementwise.cu
    pub struct Slice = "SliceParams" {
        /// `[n / width][of]` f32.
        pub x: u64,
        /// `[n]` f32.
        pub out: u64,
        pub n: u64, pub width: u32, pub first: u32, pub of: u32, pub unused: u32,
    }

    /// elementwise.cu
    pub struct Concat = "ConcatParams" {
        /// `[n / (2 * width)][width]` f32.
        pub x: u64, pub y: u64,
        /// `[n]` f32.
        pub out: u64,
        pub n: u64, pub width: u32, pub unused: u32,
    }

    /// elementwise.cu
    pub struct Scale = "ScaleParams" {
        /// `[n]` f32.
        pub x: u64,
        pub n: u64, pub factor: f32, pub unused: u32,
    }

    /// elementwise.cu
    pub struct ScaleBy = "ScaleByParams" {
        /// `[n]` f32.
        pub x: u64,
        pub n: u64,
        /// One f32.
        pub factor: u64,
    }

    /// elementwise.cu
    pub struct ScaleRanks = "ScaleRanksParams" {
        /// `[rows][2][ranks]` f32.
        pub routes: u64,
        /// `[n_expert]` f32.
        pub scales: u64,
        /// Ranks of all rows.
        pub n: u64,
        pub ranks: u32, pub n_expert: u32,
    }

    /// elementwise.cu
    pub struct SoftCap = "SoftCapParams" {
        /// `[n]` f32.
        pub x: u64,
        pub n: u64, pub cap: f32, pub rate: f32,
    }

    /// elementwise.cu
    pub struct SelectRows = "SelectParams" {
        /// `[any][width]` f32.
        pub x: u64,
        /// `[m][width]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub rows: u64,
        pub width: u32, pub unused: u32,
    }

    /// A slot's state, which the graph advances and the host sets for a request: state.cuh.
    pub struct SlotState = "SlotState" {
        pub seed: u64, pub share: u64,
        /// `[n_stop]` u32.
        pub stop: u64,
        /// u32 words, see [`super::sample::bias_words`]; 0: none.
        pub bias: u64,
        pub token: u32, pub position: u32, pub live: u32, pub generated: u32, pub max_tokens: u32,
        pub n_stop: u32, pub only_biased: u32, pub window: u32, pub top_k: u32, pub least_key: u32,
        pub temperature: f32, pub repeat_penalty: f32, pub presence_penalty: f32,
        pub frequency_penalty: f32, pub constrained: u64,
    }
}
