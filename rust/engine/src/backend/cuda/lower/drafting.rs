//! What a model drafts by itself: the launches around the passes of its drafter. In front of a round it
//! guesses from what it kept of each sequence, behind every pass it follows.

use super::params::{SlotState, CONSTANTS};
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};

shared! {
    /// draft.cu
    pub struct Begin = "Begin" {
        /// `[n]` u32.
        pub sequences: u64,
        pub state: u64,
        /// `[n_slots][N_EMBD]` f32.
        pub kept: u64,
        /// `[n][N_EMBD]` f32.
        pub hidden: u64,
        /// `[n]` u32, of the guess.
        pub tokens: u64, pub positions: u64, pub slots: u64,
        /// `[n][rows]` u32, of the round.
        pub row_tokens: u64, pub row_positions: u64, pub row_slots: u64, pub row_sequences: u64,
        pub rows: u32, pub n_slots: u32, pub n_ctx: u32, pub unused: u32,
    }

    /// draft.cu
    pub struct Next = "Next" {
        /// `[n][N_VOCAB]` f32.
        pub logits: u64,
        /// `[n][blocks]` u64.
        pub partial: u64,
        /// `[n]` u32, zero.
        pub tickets: u64,
        /// `[n]` u32.
        pub tokens: u64, pub positions: u64, pub slots: u64,
        /// `[n][rows]` u32.
        pub row_tokens: u64, pub row_slots: u64,
        pub rows: u32, pub row: u32,
    }

    /// draft.cu
    pub struct DraftRows = "Rows" {
        /// `[m]` u32.
        pub tokens: u64, pub positions: u64, pub sequences: u64,
        pub state: u64,
        /// `[m]` u32.
        pub next: u64, pub keeps: u64,
        pub m: u32, pub n_slots: u32,
    }

    /// draft.cu
    pub struct Drawn = "Drawn" {
        /// `[m]` u32.
        pub rows: u64, pub sequences: u64,
        pub state: u64,
        /// u32 by row of the pass.
        pub next: u64, pub keeps: u64,
        pub m: u32, pub n_slots: u32,
    }

    /// draft.cu
    pub struct Keep = "Keep" {
        /// `[m][N_EMBD]` f32.
        pub rows: u64,
        /// `[m]` u32.
        pub keeps: u64,
        /// `[n_slots][N_EMBD]` f32.
        pub kept: u64,
    }
}

static DRAFT: Source =
    source!("draft.cu", CONSTANTS, SlotState, Begin, Next, DraftRows, Drawn, Keep);

constants! {
    /// draft.cu
    struct DraftVariant in DRAFT {
        n_vocab: uint32_t, n_tokens: uint32_t, n_embd: uint32_t, moves: bool, threads: uint32_t,
    }
}

const THREADS: usize = 256;

/// Most blocks that look for the largest logit of a row, each at some thousands.
pub const MOST_BLOCKS: usize = 64;
const BLOCK: usize = 4096;

/// The launches of the kernels around a drafter.
#[derive(Debug, Clone, Copy)]
pub struct Launches {
    /// Logits of a row.
    pub n_vocab: usize,
    /// Those of them that are of tokens of the model.
    pub n_tokens: usize,
    /// Numbers of the rows that it goes by; 0 where it goes by tokens alone.
    pub n_embd: usize,
    /// Whether a guess stands behind the one before.
    pub moves: bool,
}

impl Launches {
    /// What the kernels are compiled for.
    pub fn variant(&self) -> Variant {
        DraftVariant {
            n_vocab: self.n_vocab,
            n_tokens: self.n_tokens,
            n_embd: self.n_embd,
            moves: self.moves,
            threads: THREADS,
        }
        .into()
    }

    fn spec<P: crate::backend::cuda::driver::source::Shared>(
        &self,
        entry: &'static str,
        grid: [usize; 2],
        rows: usize,
        params: &P,
    ) -> Spec {
        let grid = [grid[0] as u32, grid[1] as u32, 1];
        let mut spec = Spec::new(self.variant(), entry, grid, THREADS as u32, params);
        spec.traffic = Traffic::rows(rows);
        spec
    }

    /// Makes up the rows of a round and of its first guess, of `n` sequences.
    pub fn begin(&self, n: usize, params: &Begin) -> Spec {
        self.spec("draft_begin", [n, 1], 2 * 4 * n * self.n_embd, params)
    }

    /// Takes the largest logits of `n` sequences.
    pub fn next(&self, n: usize, params: &Next) -> Spec {
        let blocks = self.n_tokens.div_ceil(BLOCK).min(MOST_BLOCKS);
        self.spec("draft_next", [blocks, n], 4 * n * self.n_tokens, params)
    }

    /// Finds the tokens that follow the rows of a step or round.
    pub fn rows(&self, params: &DraftRows) -> Spec {
        let blocks = (params.m as usize).div_ceil(THREADS);
        self.spec("draft_rows", [blocks, 1], 0, params)
    }

    /// Finds the tokens that follow the rows that prompts drew from.
    pub fn drawn(&self, params: &Drawn) -> Spec {
        let blocks = (params.m as usize).div_ceil(THREADS);
        self.spec("draft_drawn", [blocks, 1], 0, params)
    }

    /// Keeps the rows that the next guesses go by, among `m`.
    pub fn keep(&self, m: usize, params: &Keep) -> Spec {
        self.spec("draft_keep", [m, 1], 0, params)
    }
}
