//! The choice of blocks of tokens that attention sees.

use super::attention::KvCodes;
use super::lowering::{Lowering, Pass};
use super::params::{KvView, CONSTANTS};
use crate::backend::cuda::driver::source::{constants, shared, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::{Error, Result};
use crate::plan::Choice;

shared! {
    pub struct Scores = "ScoreParams" {
        /// `[m][N_HEAD][HEAD_DIM]` f32.
        pub q: u64,
        /// `[m][N_BLOCKS]` f32.
        pub out: u64,
        /// `[HEAD_DIM]` f32.
        pub weight: u64,
        /// `[n_ctx][HALF][cos, sin]` f32.
        pub cos_sin: u64,
        pub kv: KvView,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub eps: f32, pub unused: u32,
    }

    pub struct Choose = "ChooseParams" {
        /// `[m][N_BLOCKS]` f32.
        pub scores: u64,
        /// `[m][WORDS]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64,
    }
}

static CHOICE: Source = source!("choice.cu", CONSTANTS, Scores, Choose, KvView);

constants! {
    /// choice.cu
    struct ChoiceVariant in CHOICE {
        head_dim: int, n_head: uint32_t, half: uint32_t, ratio: uint32_t, n_blocks: uint32_t,
        words: uint32_t, top: uint32_t, kv: KvCodes,
    }
}

/// Threads of a block, and blocks of them that go through a row's blocks of tokens.
const THREADS: u32 = 256;
const WARPS: usize = 8;
const MOST_ACROSS: usize = 64;

/// Widths of heads that the kernel takes: a multiple of this, up to so many.
const HEAD_MULTIPLE: usize = 16;
const MOST_HEAD_DIM: usize = 256;

/// The launch of [`Op::Choice`](crate::plan::Op::Choice).
///
/// # Errors
/// [`Error::Argument`] for heads of a width that there is no kernel for.
pub fn spec(l: &Lowering, op: &Choice, pass: &Pass) -> Result<Spec> {
    let variant = ChoiceVariant {
        head_dim: HEAD_MULTIPLE,
        n_head: 1,
        half: 1,
        ratio: 1,
        n_blocks: 1,
        words: 1,
        top: 1,
        kv: KvCodes(l.kv_type),
    };
    let rows = pass.rows as u32;
    match *op {
        Choice::Scores {
            q,
            weight,
            layer,
            out,
            n_head,
            table,
            ratio,
            n,
            eps,
        } => {
            let head_dim = l.plan.buffer(q).width / n_head;
            if !head_dim.is_multiple_of(HEAD_MULTIPLE) || head_dim > MOST_HEAD_DIM {
                return Err(Error::Argument {
                    name: "plan",
                    value: format!("a choice of blocks by heads of {head_dim} numbers"),
                    reason: format!(
                        "the CUDA backend supports multiples of {HEAD_MULTIPLE} up to \
                         {MOST_HEAD_DIM}; use device=\"cpu\""
                    ),
                });
            }
            let variant = ChoiceVariant {
                head_dim,
                n_head,
                half: l.plan.ropes[table].inv_freq.len(),
                ratio,
                n_blocks: n,
                ..variant
            };
            let params = Scores {
                q: l.address(q),
                out: l.address(out),
                weight: l.vector(Some(weight))?,
                cos_sin: l.at.cos_sin[table],
                kv: l.kv(layer)?,
                positions: pass.inputs.positions,
                slots: pass.inputs.slots,
                eps,
                unused: 0,
            };
            let most = (l.n_ctx / ratio).min(n).div_ceil(WARPS);
            let across = most.clamp(1, MOST_ACROSS) as u32;
            let grid = [across, rows, 1];
            Ok(Spec::new(variant, "block_scores", grid, THREADS, &params))
        }
        Choice::Blocks {
            scores,
            out,
            ratio,
            top_k,
            n,
        } => {
            let variant = ChoiceVariant {
                ratio,
                n_blocks: n,
                words: Choice::words(n, ratio),
                top: top_k / ratio,
                ..variant
            };
            let params = Choose {
                scores: l.address(scores),
                out: l.address(out),
                positions: pass.inputs.positions,
            };
            let grid = [rows, 1, 1];
            Ok(Spec::new(variant, "choose_blocks", grid, THREADS, &params))
        }
    }
}
