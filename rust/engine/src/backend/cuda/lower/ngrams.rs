//! Embeddings of n-grams: numbers of tokens, and the rows of a table that they choose.

use super::layout::Order;
use super::lowering::{Lowering, Pass};
use super::params::{SlotState, CONSTANTS};
use super::shape::Segments;
use crate::backend::cuda::driver::constants::Constants;
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::{BufferId, NgramTable, WeightId, MOST_NGRAM_HEADS, MOST_NGRAM_TOKENS};

shared! {
    /// tokens.cu
    pub struct Tokens = "Params" {
        /// `[m]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub tokens: u64,
        /// `[n_slots + 1]` slot states, or 0.
        pub state: u64,
        /// `[m]` u32.
        pub state_slots: u64,
        pub m: u32, pub unused: u32,
    }

    /// ngram_rows.cu
    pub struct NgramRows = "Params" {
        /// `[n_rows / 16][superblocks]` (weight_tile.cuh).
        pub weights: u64,
        /// `[m][TOKENS]` f32.
        pub recent: u64,
        /// `[m][HEADS][WIDTH]` f32.
        pub out: u64,
        pub eos: u64,
        pub multipliers: [u64; MOST_NGRAM_TOKENS],
        /// By head.
        pub offsets: [u64; MOST_NGRAM_HEADS],
        pub sizes: [u64; MOST_NGRAM_HEADS],
    }
}

static TOKENS: Source = source!("tokens.cu", CONSTANTS, Tokens, SlotState);
static NGRAM_ROWS: Source = source!("ngram_rows.cu", CONSTANTS, NgramRows);

constants! {
    /// ngram_rows.cu
    struct NgramRowsVariant in NGRAM_ROWS {
        n_in: int, width: uint32_t, tokens: uint32_t, heads: uint32_t, types: Segments,
    }
}

/// Threads of a block of tokens.cu, and of one of ngram_rows.cu: a row has few values.
const THREADS: u32 = 128;
const ROW_THREADS: u32 = 64;

/// The launch of [`Ngram::Tokens`](crate::plan::Ngram::Tokens).
pub fn tokens(l: &Lowering, out: BufferId, pass: &Pass) -> Spec {
    let inputs = &pass.inputs;
    let params = Tokens {
        out: l.address(out),
        tokens: inputs.tokens,
        state: inputs.state,
        state_slots: inputs.state_slots,
        m: pass.rows as u32,
        unused: 0,
    };
    let grid = [(pass.rows as u32).div_ceil(THREADS), 1, 1];
    let variant = Variant::new(&TOKENS, Constants::default());
    Spec::new(variant, "tokens", grid, THREADS, &params)
}

/// The launch of [`Ngram::Rows`](crate::plan::Ngram::Rows).
pub fn rows(
    l: &Lowering,
    [recent, out]: [BufferId; 2],
    weight: WeightId,
    table: &NgramTable,
    pass: &Pass,
) -> Result<Spec> {
    let w = l.plan.weight(weight);
    let mut params = NgramRows {
        weights: l.weights(&[weight], Order::Natural)?,
        recent: l.address(recent),
        out: l.address(out),
        eos: table.eos.into(),
        multipliers: [0; MOST_NGRAM_TOKENS],
        offsets: [0; MOST_NGRAM_HEADS],
        sizes: [1; MOST_NGRAM_HEADS],
    };
    for (to, from) in params.multipliers.iter_mut().zip(&table.multipliers) {
        *to = *from;
    }
    let heads = params.offsets.iter_mut().zip(&mut params.sizes);
    for ((offset, size), head) in heads.zip(&table.heads) {
        (*offset, *size) = (head.offset, head.size);
    }
    let variant = NgramRowsVariant {
        n_in: w.n_in,
        width: table.width,
        tokens: table.multipliers.len(),
        heads: table.heads.len(),
        types: Segments(vec![w.ty]),
    };
    let grid = [table.heads.len() as u32, l.rows_of(out, pass) as u32, 1];
    Ok(Spec::new(variant, "ngram_rows", grid, ROW_THREADS, &params))
}
