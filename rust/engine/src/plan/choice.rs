//! The choice of blocks of tokens that attention sees.

use serde::{Deserialize, Serialize};

use super::attributes::RopeStyle;
use super::signature::{
    Access, CacheUse, Constant, Operand, Over, Parts, Role, Rotation, Signature, Used, Width,
};
use super::{BufferId, WeightId};

/// Tokens whose bits are one number of [`Choice::Blocks`]: those of a page.
pub const WORD_TOKENS: usize = 64;

/// What attention sees: of the blocks of `ratio` tokens those that [`Choice::Blocks`] chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    pub blocks: BufferId,
    /// Numbers of a row.
    pub words: usize,
    pub ratio: usize,
}

/// Blocks are `ratio` tokens of a sequence in turn, 4 to 64 of them by powers of two; a row sees the whole
/// ones up to its own position, which are `floor((position + 1) / ratio)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Choice {
    /// A score of each whole block `b` that row `r` sees; others of the `n` numbers of `out[r]` are left as they
    /// are. The block's key is the mean of those that the cache of `layer` has of one head, as it keeps them:
    /// added in order from the first, times `float(1 / ratio)`; then normalized by `weight` as
    /// [`Op::RmsNorm`](super::Op::RmsNorm) states it, and rotated by halves as [`Op::Rope`](super::Op::Rope)
    /// does at the position of its first token. For each head of `q[r]` in turn
    /// `d = sum_i key[i] q[r][h][i]`: lane `l` of 32 from +0 takes `i = l, l + 32, ...` by `fma(key, q, y)`, then
    /// the lanes are folded in halves, 16, 8, 4, 2, 1. The score is the sum of `max(d, 0)` of the heads, in
    /// order; 0 where it is not a number, or a page is not mapped.
    Scores {
        q: BufferId,
        weight: WeightId,
        layer: usize,
        out: BufferId,
        n_head: usize,
        table: usize,
        ratio: usize,
        n: usize,
        eps: f32,
    },
    /// `out[r]` has a number for each [`WORD_TOKENS`] tokens, of whose bits the lowest is the first block's: set
    /// where it is one of the `top_k / ratio` whole blocks of the largest scores, of equals the earlier ones,
    /// and of the block that is not whole yet. Zero behind the position.
    Blocks {
        scores: BufferId,
        out: BufferId,
        ratio: usize,
        top_k: usize,
        n: usize,
    },
}

impl Chosen {
    /// How wide its buffer must be; of blocks that pages do not have, none is.
    pub fn width(&self) -> Width {
        Width::Of(match is_ratio(self.ratio) {
            true => self.words,
            false => usize::MAX,
        })
    }
}

fn is_ratio(ratio: usize) -> bool {
    ratio.is_power_of_two() && (4..=WORD_TOKENS).contains(&ratio)
}

impl Choice {
    /// Numbers of a row of [`Choice::Blocks`] over `n` scores.
    pub fn words(n: usize, ratio: usize) -> usize {
        n.saturating_mul(ratio).div_ceil(WORD_TOKENS)
    }

    /// As [`Op::signature`](super::Op::signature).
    pub fn signature(&self) -> Signature {
        let read = |id| Operand::new(id, Access::Read);
        let write = |id| Operand::new(id, Access::Write);
        // Of blocks that pages do not have no buffer is as wide.
        let wide = |operand: Operand, n: usize, ratio: usize| {
            operand.wide(Width::Of(match is_ratio(ratio) {
                true => n,
                false => usize::MAX,
            }))
        };
        match *self {
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
            } => Signature {
                weights: vec![Used {
                    id: weight,
                    role: Role::OfHead,
                }],
                parts: Parts::Heads(n_head),
                cache: Some(CacheUse {
                    layer,
                    access: Access::Read,
                }),
                rotation: Some(Rotation {
                    table,
                    style: RopeStyle::Halves,
                }),
                constant: Some(Constant::Epsilon(eps)),
                ..Signature::new(
                    "block_scores",
                    Over::Batch,
                    vec![read(q), wide(write(out), n, ratio)],
                )
            },
            Choice::Blocks {
                scores,
                out,
                ratio,
                n,
                ..
            } => Signature::new(
                "choose_blocks",
                Over::Batch,
                vec![
                    wide(read(scores), n, ratio),
                    write(out).wide(Width::Of(Self::words(n, ratio))),
                ],
            ),
        }
    }
}
