//! Buffers, weights and the list of operations.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Drafter, KvShape, Ngram, Norm, Op, Share};
use crate::error::{Error, Result};
use crate::quant::{self, QuantType};

/// Index into [`Plan::buffers`].
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BufferId(pub usize);

/// Index into [`Plan::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightId(pub usize);

/// Index into [`Plan::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateId(pub usize);

/// How many rows a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One for each row of the batch.
    Batch,
    /// One for each row whose logits are wanted.
    Out,
}

impl Rows {
    /// How many these are in a pass of `batch` rows, `out` of which give logits.
    pub fn of(self, batch: usize, out: usize) -> usize {
        match self {
            Rows::Batch => batch,
            Rows::Out => out,
        }
    }
}

/// A named array of float32, `[rows, width]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub width: usize,
    pub rows: Rows,
}

impl Buffer {
    /// Its bytes in a pass of `batch` rows, `out` of which give logits; 2^64 - 1 for more than
    /// there can be.
    pub fn bytes(&self, batch: usize, out: usize) -> usize {
        let values = self.rows.of(batch, out).saturating_mul(self.width);
        values.saturating_mul(size_of::<f32>())
    }
}

/// A tensor of the model file that the plan reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    pub name: String,
    /// `n_in` values a row.
    pub n_in: usize,
    /// Rows; 1 for a vector.
    pub n_out: usize,
    /// Matrices or vectors of this shape, one behind another: of a router's experts, else 1.
    #[serde(default = "one")]
    pub n_expert: usize,
    /// Which rows of each of the file's they are, or numbers of each vector, where that is not all.
    #[serde(default)]
    pub share: Option<Share>,
    #[serde(serialize_with = "type_name", deserialize_with = "type_by_name")]
    pub ty: &'static QuantType,
}

impl Weight {
    /// Its bytes in the file; `None` where rows are no whole blocks, or they overflow.
    pub fn bytes(&self) -> Option<usize> {
        self.expert_bytes()?.checked_mul(self.n_expert)
    }

    /// Bytes in the file of one of its matrices or vectors; `None` as [`Weight::bytes`].
    pub fn expert_bytes(&self) -> Option<usize> {
        self.ty.row_bytes(self.n_in)?.checked_mul(self.n_out)
    }

    /// Values in all, of vectors: what backends keep as float32.
    pub fn vector_len(&self) -> usize {
        self.n_in.saturating_mul(self.n_expert)
    }
}

fn one() -> usize {
    1
}

fn type_name<S: serde::Serializer>(ty: &&'static QuantType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(ty.name)
}

fn type_by_name<'de, D: serde::Deserializer<'de>>(d: D) -> Result<&'static QuantType, D::Error> {
    quant::by_name(&String::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// Angles of the rotary embedding: `(position + ahead) * inv_freq[i] / factors[i]`; cosine and sine are
/// multiplied by `scale` (YaRN's attention factor) and by what `temperature` says of the position, all
/// in float64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeTable {
    pub inv_freq: Vec<f64>,
    /// A tensor of divisors, one a frequency (llama3 scaling).
    pub factors: Option<WeightId>,
    pub scale: f64,
    #[serde(default)]
    pub temperature: Option<Temperature>,
    #[serde(default)]
    pub long: Option<LongFactors>,
    #[serde(default)]
    pub ahead: u32,
}

/// Divisors in the place of `factors` where a context may have more than so many tokens (LongRoPE,
/// <https://arxiv.org/abs/2402.13753>).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LongFactors {
    pub factors: WeightId,
    pub above: usize,
}

/// A factor of the heads that are rotated, larger the later their token:
/// `1 + by ln(floor(position / every) + 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    pub by: f64,
    /// Positions with the same factor.
    pub every: u32,
}

impl Temperature {
    /// The factor of a position.
    fn of(self, position: u32) -> f64 {
        // Of the first positions it is 1 to the bit.
        1.0 + self.by * (f64::from(position / self.every.max(1)) + 1.0).ln()
    }
}

impl RopeTable {
    /// What cosine and sine of a position are multiplied by.
    pub fn scale_at(&self, position: u32) -> f64 {
        self.scale * self.temperature.map_or(1.0, |t| t.of(position))
    }

    /// The divisors in a context of up to `n_ctx` tokens: by what it may hold, not by what it holds, so that
    /// all its keys are rotated alike.
    pub fn factors_in(&self, n_ctx: usize) -> Option<WeightId> {
        match self.long.filter(|long| n_ctx > long.above) {
            Some(long) => Some(long.factors),
            None => self.factors,
        }
    }

    /// The frequencies, divided by the values of `factors` where there are any.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let mut inv_freq = self.inv_freq.clone();
        let divided = inv_freq.iter_mut().zip(factors.unwrap_or_default());
        divided.for_each(|(f, d)| *f /= f64::from(*d));
        inv_freq
    }

    /// Bytes of the cosines and sines of `positions` positions, as float32.
    pub fn bytes(&self, positions: usize) -> usize {
        let angles = positions.saturating_mul(self.inv_freq.len());
        angles.saturating_mul(2 * size_of::<f32>())
    }
}

/// What a sequence keeps from token to token beside keys and values: float32 numbers, all zero before
/// its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    /// Numbers of one sequence.
    pub width: usize,
}

/// The end of a pass that gives hidden states: the norm that logits are computed under, of every row and
/// in place, and no product with the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hidden {
    /// Ops of the plan before it; those behind are the head.
    pub after: usize,
    /// `[rows, n_embd]`: the hidden states, once the pass is over.
    pub x: BufferId,
    /// None where the rows are normalized before.
    pub norm: Option<Norm>,
}

impl Hidden {
    /// The op in the place of the head, of rows of `width` values.
    pub fn op(&self, width: usize) -> Option<Op> {
        let norm = self.norm?;
        Some(Op::RmsNorm {
            x: self.x,
            weight: Some(norm.weight),
            out: self.x,
            group: width,
            eps: norm.eps,
        })
    }
}

/// A model, or a piece of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub buffers: Vec<Buffer>,
    pub weights: Vec<Weight>,
    pub ops: Vec<Op>,
    pub ropes: Vec<RopeTable>,
    /// By layer.
    pub kv: Vec<KvShape>,
    #[serde(default)]
    pub states: Vec<State>,
    /// The last buffer written: `[out rows, n_vocab]`.
    pub logits: BufferId,
    #[serde(default)]
    pub drafter: Option<Box<Drafter>>,
    /// Which card's it is, of several.
    #[serde(default)]
    pub share: Option<Share>,
}

impl Plan {
    /// This plan, and those of its drafter.
    pub fn parts(&self) -> impl Iterator<Item = &Plan> {
        let drafter = self.drafter.iter().flat_map(|d| [&d.follow, &d.guess]);
        std::iter::once(self).chain(drafter)
    }

    /// Whether a context of up to `n_ctx` tokens has other angles than a shorter one.
    pub fn is_long(&self, n_ctx: usize) -> bool {
        let long = |table: &RopeTable| table.long.is_some_and(|long| n_ctx > long.above);
        self.ropes.iter().any(long)
    }

    /// The buffer of an id that this plan handed out.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// The weight of an id that this plan handed out.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// Of each op that attends to the tokens in a cache its heads, and the shape of the cache.
    pub fn attentions(&self) -> impl Iterator<Item = (usize, KvShape)> + '_ {
        let attends = |op: &Op| {
            let op = op.signature();
            Some((op.attends()?, *self.kv.get(op.cache?.layer)?))
        };
        self.parts().flat_map(|part| &part.ops).filter_map(attends)
    }

    /// How a pass ends that gives hidden states instead of logits; none of a plan that picks no rows, or
    /// does something else with them than the product of a head.
    pub fn hidden(&self) -> Option<Hidden> {
        let picks = |op: &Op| match op {
            Op::SelectRows { x, out } => Some((*x, *out)),
            _ => None,
        };
        let after = self.ops.iter().position(|op| picks(op).is_some())?;
        let (x, picked) = picks(self.ops.get(after)?)?;
        let norm = match self.ops.get(after + 1) {
            Some(Op::MatVec { x, norm, .. }) if *x == picked => *norm,
            Some(_) => return None,
            None => None,
        };
        Some(Hidden { after, x, norm })
    }

    /// Whether each row goes to all experts of these routes, so that rows have all of them in common.
    pub fn goes_to_all(&self, routes: BufferId) -> bool {
        let all = |op: &Op| matches!(op, Op::RouteAll { out } if *out == routes);
        self.ops.iter().any(all)
    }

    /// Whether rows see tokens behind them: such a model makes vectors of whole texts, and goes on from
    /// none.
    pub fn looks_ahead(&self) -> bool {
        self.ops.iter().any(|op| op.signature().looks_ahead)
    }

    /// Tokens that it has a row of its embedding for; where it has none, those it has logits of.
    pub fn n_vocab(&self) -> usize {
        let embedding = self.ops.iter().find_map(|op| match op {
            Op::Embed { weight, .. } => Some(self.weight(*weight).n_out),
            _ => None,
        });
        embedding.unwrap_or_else(|| self.buffer(self.logits).width)
    }

    /// By layer, how many tokens the ops see that attend to its cache, where none of them sees all.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let mut seen = vec![Some(0); self.kv.len()];
        let ops = self.parts().flat_map(|part| &part.ops);
        for op in ops.map(Op::signature) {
            let layer = op.cache.filter(|_| op.attends().is_some());
            if let Some(most) = layer.and_then(|cache| seen.get_mut(cache.layer)) {
                // A text that is looked at both ways is kept as a whole.
                let window = op.window.filter(|_| !op.looks_ahead);
                *most = most.zip(window).map(|(a, b)| a.max(b));
            }
        }
        let attended = |window: Option<usize>| window.filter(|tokens| *tokens > 0);
        seen.into_iter().map(attended).collect()
    }

    /// Bytes of all tables of angles for `positions` positions.
    pub fn rope_bytes(&self, positions: usize) -> usize {
        let tables = self.ropes.iter().map(|table| table.bytes(positions));
        tables.fold(0, usize::saturating_add)
    }

    /// Bytes of the states of one sequence.
    pub fn state_bytes(&self) -> usize {
        let bytes = |s: &State| s.width.saturating_mul(size_of::<f32>());
        self.states.iter().map(bytes).fold(0, usize::saturating_add)
    }

    /// By state, how many numbers of a row bring it forward by that row: of a convolution its input, of the
    /// delta rule `K`, `w` and `g` of each head, of Mamba-2 `B`, `u` and `g`. Backends keep them of rows that may turn out not to count.
    pub fn kept_widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.states.len()];
        for op in &self.ops {
            let (state, width) = match *op {
                Op::ShortConv { state, out, .. } | Op::GatedConv { state, out, .. } => {
                    (state, self.buffer(out).width)
                }
                Op::DeltaNet {
                    state, out, n_head, ..
                } => (
                    state,
                    self.buffer(out)
                        .width
                        .saturating_mul(2)
                        .saturating_add(n_head),
                ),
                Op::Ngram(Ngram::Recent { state, x, .. }) => (state, self.buffer(x).width),
                Op::Mamba2(ref op) => {
                    let of_head = op.d_state.saturating_add(op.head_dim).saturating_add(1);
                    (op.state, op.n_head.saturating_mul(of_head))
                }
                _ => continue,
            };
            widths[state.0] = width;
        }
        widths
    }

    /// Adds a state.
    pub fn add_state(&mut self, name: String, width: usize) -> StateId {
        self.states.push(State { name, width });
        StateId(self.states.len() - 1)
    }

    /// Adds a buffer.
    pub fn add_buffer(&mut self, name: &str, width: usize, rows: Rows) -> BufferId {
        self.buffers.push(Buffer {
            name: name.into(),
            width,
            rows,
        });
        BufferId(self.buffers.len() - 1)
    }

    /// Adds a weight; a tensor used twice (tied embeddings) is one weight.
    pub fn add_weight(&mut self, weight: Weight) -> WeightId {
        let at = self.weights.iter().position(|w| w.name == weight.name);
        WeightId(at.unwrap_or_else(|| {
            self.weights.push(weight);
            self.weights.len() - 1
        }))
    }
}

impl Plan {
    /// Checks that ids exist and widths fit together. Plans of [`crate::arch`] do; one that came
    /// from outside may not.
    ///
    /// # Errors
    /// [`Error::Argument`] names the op and what does not fit.
    pub fn check(&self) -> Result<()> {
        self.parts().try_for_each(Self::check_part)
    }

    fn check_part(&self) -> Result<()> {
        for (i, op) in self.ops.iter().enumerate() {
            let bad = |reason: String| Error::Argument {
                name: "plan",
                value: format!("op {i}, {op:?}"),
                reason,
            };
            let op = op.signature();
            let n = self.buffers.len();
            if let Some(b) = op.buffers.iter().find(|b| b.id.0 >= n) {
                return Err(bad(format!("buffer {} does not exist", b.id.0)));
            }
            let n = self.weights.len();
            if let Some(w) = op.weights.iter().find(|w| w.id.0 >= n) {
                return Err(bad(format!("weight {} does not exist", w.id.0)));
            }
            if let Some(s) = op.state.filter(|s| s.id.0 >= self.states.len()) {
                return Err(bad(format!("state {} does not exist", s.id.0)));
            }
            if !op.fits(self) {
                return Err(bad(
                    "the widths or rows do not fit together, or the output is an input".into(),
                ));
            }
        }
        let divided = |table: &RopeTable| {
            let long = table.long.map(|long| long.factors);
            let ids = table.factors.into_iter().chain(long);
            ids.map(|id| (id, table.inv_freq.len())).collect::<Vec<_>>()
        };
        for (id, n) in self.ropes.iter().flat_map(divided) {
            let fits = |w: &Weight| (w.n_in, w.n_out, w.n_expert) == (n, 1, 1);
            if !self.weights.get(id.0).is_some_and(fits) {
                return Err(Error::Argument {
                    name: "plan",
                    value: format!("rope factors in weight {}", id.0),
                    reason: format!("they must be a vector of {n} values"),
                });
            }
        }
        if self.logits.0 >= self.buffers.len() {
            return Err(Error::Argument {
                name: "plan",
                value: format!("logits in buffer {}", self.logits.0),
                reason: format!("there are {} buffers", self.buffers.len()),
            });
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "buffers (float32, name[rows, width]):")?;
        for x in &self.buffers {
            let rows = match x.rows {
                Rows::Batch => "batch",
                Rows::Out => "out",
            };
            writeln!(f, "  {}[{rows}, {}]", x.name, x.width)?;
        }
        let alike = self
            .kv
            .chunk_by(|a, b| a == b)
            .map(|layers| format!("{} layers x {}", layers.len(), layers[0]));
        writeln!(f, "kv: {}", alike.collect::<Vec<_>>().join(", "))?;
        if !self.states.is_empty() {
            let all = self.state_bytes();
            writeln!(
                f,
                "states (float32): {} of {all} bytes a sequence",
                self.states.len()
            )?;
        }
        writeln!(f, "ops:")?;
        for (i, op) in self.ops.iter().enumerate() {
            writeln!(f, "  {i:4}  {}", op.signature().listed(self))?;
        }
        Ok(())
    }
}
