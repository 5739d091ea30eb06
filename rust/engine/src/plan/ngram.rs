//! Embeddings of n-grams: rows of a table that hashes of a sequence's last tokens choose.

use serde::{Deserialize, Serialize};

use super::signature::{Access, Operand, Over, Role, Signature, StateUse, Used, Width};
use super::{BufferId, StateId, WeightId};

/// Most tokens of an n-gram, and most rows that a token takes of a table.
pub const MOST_NGRAM_TOKENS: usize = 8;
pub const MOST_NGRAM_HEADS: usize = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Ngram {
    /// `out[r] = tokens[r] + 1`, one number: 0 is no token. Whole numbers up to 2^24 are exact.
    Tokens { out: BufferId },
    /// The rows of a sequence's last `n` tokens, the newest first: `out[r][j] = x_(r - j)`, zero before the
    /// first. Its state is what [`Op::ShortConv`](super::Op::ShortConv) of `n` taps has.
    Recent {
        x: BufferId,
        state: StateId,
        out: BufferId,
        n: usize,
    },
    /// `recent[r]` has `n` tokens as [`Ngram::Tokens`] numbers them, the newest first. `t_0` is the first of
    /// them; a later one is `eos` where it is 0 or `eos`, and so is each behind that. For each head `h`, of
    /// which `heads.len() / (n - 1)` in turn are of the pairs, the triples and so on up to `n` tokens:
    /// `mixed` is `t_0 multipliers[0]`, exclusive or `t_1 multipliers[1]` and so on of its tokens, in 64 bits
    /// without sign, of products the lower ones; the row is `offset + mixed mod size`. `out[r]` has the rows
    /// of the heads one after another, expanded as [`Op::Embed`](super::Op::Embed) states it.
    ///
    /// A row of the weight may be several of these, each `width` values.
    Rows {
        recent: BufferId,
        weight: WeightId,
        out: BufferId,
        table: NgramTable,
    },
}

/// Which rows of a table n-grams choose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NgramTable {
    /// Values of a row.
    pub width: usize,
    /// The token that ends texts: what stands before it is of another one.
    pub eos: u32,
    /// One a token of the longest n-grams.
    pub multipliers: Vec<u64>,
    pub heads: Vec<NgramHead>,
}

/// Neighbours of a table, of which a head takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NgramHead {
    pub offset: u64,
    pub size: u64,
}

impl NgramTable {
    /// Heads of each length of n-grams, where there are as many of each and no more than backends take.
    pub fn per_length(&self) -> Option<usize> {
        let lengths = self.multipliers.len().checked_sub(1)?;
        let n = self.heads.len().checked_div(lengths)?;
        let is_even = n > 0 && n.checked_mul(lengths) == Some(self.heads.len());
        let fits =
            self.multipliers.len() <= MOST_NGRAM_TOKENS && self.heads.len() <= MOST_NGRAM_HEADS;
        let have_rows = self.heads.iter().all(|head| head.size > 0);
        (is_even && fits && have_rows).then_some(n)
    }

    /// The rows that the tokens of a row of [`Ngram::Rows`] choose.
    pub fn chosen<'a>(&'a self, recent: &'a [f32]) -> impl Iterator<Item = u64> + 'a {
        let per_length = self.per_length().unwrap_or(1);
        let mut is_cut = false;
        let mut mixed = Vec::with_capacity(self.multipliers.len());
        for (j, (number, multiplier)) in recent.iter().zip(&self.multipliers).enumerate() {
            let token = (*number as u64).wrapping_sub(1);
            is_cut |= j > 0 && (*number < 1.0 || token == u64::from(self.eos));
            let token = if is_cut { self.eos.into() } else { token };
            let before = mixed.last().copied().unwrap_or(0);
            mixed.push(before ^ token.wrapping_mul(*multiplier));
        }
        let row = move |(h, head): (usize, &NgramHead)| {
            let mixed = mixed.get(1 + h / per_length).copied().unwrap_or(0);
            head.offset + mixed % head.size.max(1)
        };
        self.heads.iter().enumerate().map(row)
    }

    /// Rows that the heads take in.
    pub fn rows(&self) -> u64 {
        let end = |head: &NgramHead| head.offset.saturating_add(head.size);
        self.heads.iter().map(end).max().unwrap_or(0)
    }
}

impl Ngram {
    /// As [`Op::signature`](super::Op::signature).
    pub fn signature(&self) -> Signature {
        let read = |id| Operand::new(id, Access::Read);
        let write = |id| Operand::new(id, Access::Write);
        match *self {
            Ngram::Tokens { out } => {
                Signature::new("tokens", Over::Batch, vec![write(out).wide(Width::Of(1))])
            }
            Ngram::Recent { x, state, out, n } => Signature {
                state: Some(StateUse {
                    id: state,
                    per_value: n.saturating_sub(1),
                    head_dim: None,
                }),
                ..Signature::new(
                    "recent",
                    Over::Batch,
                    // Of one row there is nothing to keep.
                    match n {
                        0 | 1 => vec![read(x).wide(Width::Of(usize::MAX))],
                        n => vec![read(x), write(out).wide(Width::Times(n))],
                    },
                )
            },
            Ngram::Rows {
                recent,
                weight,
                out,
                ref table,
            } => {
                let heads = table.per_length().map_or(usize::MAX, |_| table.heads.len());
                let hashed = Role::Hashed {
                    width: table.width,
                    rows: table.rows(),
                };
                Signature {
                    weights: vec![Used {
                        id: weight,
                        role: hashed,
                    }],
                    ..Signature::new(
                        "ngram_rows",
                        Over::Buffers,
                        vec![
                            read(recent).wide(Width::Of(table.multipliers.len())),
                            write(out).wide(Width::Of(heads.saturating_mul(table.width))),
                        ],
                    )
                }
            }
        }
    }
}
