//! Buffers, weights and the list of operations.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Op, RopeStyle};
use crate::error::{Error, Result};
use crate::quant::{self, QuantType};

/// Index into [`Plan::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub usize);

/// Index into [`Plan::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightId(pub usize);

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
    #[serde(serialize_with = "type_name", deserialize_with = "type_by_name")]
    pub ty: &'static QuantType,
}

impl Weight {
    /// Its bytes in the file; `None` where rows are no whole blocks, or they overflow.
    pub fn bytes(&self) -> Option<usize> {
        self.ty.row_bytes(self.n_in)?.checked_mul(self.n_out)
    }
}

fn type_name<S: serde::Serializer>(ty: &&'static QuantType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(ty.name)
}

fn type_by_name<'de, D: serde::Deserializer<'de>>(d: D) -> Result<&'static QuantType, D::Error> {
    quant::by_name(&String::deserialize(d)?).map_err(serde::de::Error::custom)
}

/// Angles of the rotary embedding: `position * inv_freq[i] / factors[i]`; cosine and sine are
/// multiplied by `scale` (YaRN's attention factor).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeTable {
    pub inv_freq: Vec<f64>,
    /// A tensor of divisors, one a frequency (llama3 scaling).
    pub factors: Option<WeightId>,
    pub scale: f64,
}

impl RopeTable {
    /// Bytes of the cosines and sines of `positions` positions, as float32.
    pub fn bytes(&self, positions: usize) -> usize {
        let angles = positions.saturating_mul(self.inv_freq.len());
        angles.saturating_mul(2 * size_of::<f32>())
    }
}

/// Shape of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvShape {
    pub n_layer: usize,
    pub n_head_kv: usize,
    pub head_dim: usize,
}

/// A model, or a piece of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub buffers: Vec<Buffer>,
    pub weights: Vec<Weight>,
    pub ops: Vec<Op>,
    pub rope: RopeTable,
    pub kv: KvShape,
    /// The last buffer written: `[out rows, n_vocab]`.
    pub logits: BufferId,
}

impl Plan {
    /// The buffer of an id that this plan handed out.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// The weight of an id that this plan handed out.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
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

impl Op {
    /// The buffers of this op.
    pub fn buffers(&self) -> Vec<BufferId> {
        match *self {
            Op::Embed { out, .. } => vec![out],
            Op::RmsNorm { x, out, .. } => vec![x, out],
            Op::MatVec { x, out, .. } => vec![x, out],
            Op::Rope { x, .. } => vec![x],
            Op::KvScatter { k, v, .. } => vec![k, v],
            Op::Attention { q, out, .. } => vec![q, out],
            Op::Add { x, out } => vec![x, out],
            Op::SwiGlu { gate, up, out } => vec![gate, up, out],
            Op::SelectRows { x, out } => vec![x, out],
        }
    }

    /// The weights of this op.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embed { weight, .. } | Op::RmsNorm { weight, .. } => vec![weight],
            Op::MatVec { weight, bias, .. } => [Some(weight), bias].into_iter().flatten().collect(),
            _ => vec![],
        }
    }
}

impl Plan {
    /// Checks that ids exist and widths fit together. Plans of [`crate::arch`] do; one that came
    /// from outside may not.
    ///
    /// # Errors
    /// [`Error::Argument`] names the op and what does not fit.
    pub fn check(&self) -> Result<()> {
        for (i, op) in self.ops.iter().enumerate() {
            let bad = |reason: String| Error::Argument {
                name: "plan",
                value: format!("op {i}, {op:?}"),
                reason,
            };
            if let Some(id) = op
                .buffers()
                .into_iter()
                .find(|id| id.0 >= self.buffers.len())
            {
                return Err(bad(format!("buffer {} does not exist", id.0)));
            }
            if let Some(id) = op
                .weights()
                .into_iter()
                .find(|id| id.0 >= self.weights.len())
            {
                return Err(bad(format!("weight {} does not exist", id.0)));
            }
            let width = |id: &BufferId| self.buffer(*id).width;
            let kv_width = self.kv.n_head_kv * self.kv.head_dim;
            let fits = match op {
                Op::Embed { weight, out } => self.weight(*weight).n_in == width(out),
                Op::RmsNorm {
                    x,
                    weight,
                    out,
                    group,
                    ..
                } => {
                    width(x) == width(out)
                        && *group > 0
                        && width(x) % group == 0
                        && self.weight(*weight).n_in == *group
                        && self.weight(*weight).n_out == 1
                }
                Op::MatVec {
                    x,
                    weight,
                    bias,
                    out,
                } => {
                    let w = self.weight(*weight);
                    let bias = bias.is_none_or(|b| self.weight(b).n_in == w.n_out);
                    w.n_in == width(x) && w.n_out == width(out) && bias && x != out
                }
                Op::Rope { x, n_head, .. } => {
                    *n_head > 0
                        && width(x) % n_head == 0
                        && width(x) / n_head >= 2 * self.rope.inv_freq.len()
                }
                Op::KvScatter { k, v, layer } => {
                    *layer < self.kv.n_layer && width(k) == kv_width && width(v) == kv_width
                }
                Op::Attention {
                    q,
                    out,
                    layer,
                    n_head,
                    ..
                } => {
                    *layer < self.kv.n_layer
                        && width(q) == n_head * self.kv.head_dim
                        && width(out) == width(q)
                        && q != out
                        && n_head % self.kv.n_head_kv.max(1) == 0
                }
                Op::Add { x, out } | Op::SelectRows { x, out } => {
                    width(x) == width(out) && x != out
                }
                Op::SwiGlu { gate, up, out } => {
                    width(gate) == width(out) && width(up) == width(out) && gate != out && up != out
                }
            };
            let rows = |id: &BufferId| self.buffer(*id).rows;
            let fits = fits
                && match op {
                    Op::SelectRows { x, out } => rows(x) == Rows::Batch && rows(out) == Rows::Out,
                    // These read something of each row of the batch: its token, position or slot.
                    Op::Embed { .. }
                    | Op::Rope { .. }
                    | Op::KvScatter { .. }
                    | Op::Attention { .. } => op.buffers().iter().all(|b| rows(b) == Rows::Batch),
                    _ => op.buffers().windows(2).all(|b| rows(&b[0]) == rows(&b[1])),
                };
            if !fits {
                return Err(bad(
                    "the widths or rows do not fit together, or the output is an input".into(),
                ));
            }
        }
        if let Some(id) = self.rope.factors {
            let n = self.rope.inv_freq.len();
            let fits = |w: &Weight| w.n_in == n && w.n_out == 1;
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
        let b = |id: &BufferId| self.buffer(*id).name.as_str();
        let w = |id: &WeightId| {
            let w = self.weight(*id);
            if w.n_out == 1 {
                format!("{} {}[{}]", w.name, w.ty.name, w.n_in)
            } else {
                format!("{} {}[{}, {}]", w.name, w.ty.name, w.n_out, w.n_in)
            }
        };
        writeln!(f, "buffers (float32, name[rows, width]):")?;
        for x in &self.buffers {
            let rows = match x.rows {
                Rows::Batch => "batch",
                Rows::Out => "out",
            };
            writeln!(f, "  {}[{rows}, {}]", x.name, x.width)?;
        }
        let KvShape {
            n_layer,
            n_head_kv,
            head_dim,
        } = self.kv;
        writeln!(f, "kv: {n_layer} layers x {n_head_kv} heads x {head_dim}")?;
        writeln!(f, "ops:")?;
        for (i, op) in self.ops.iter().enumerate() {
            write!(f, "  {i:4}  ")?;
            match op {
                Op::Embed { weight, out } => writeln!(f, "{} = embed({})", b(out), w(weight)),
                Op::RmsNorm {
                    x,
                    weight,
                    out,
                    group,
                    eps,
                } => {
                    writeln!(
                        f,
                        "{} = rms_norm({}, {}, group {group}, eps {eps:e})",
                        b(out),
                        b(x),
                        w(weight)
                    )
                }
                Op::MatVec {
                    x,
                    weight,
                    bias,
                    out,
                } => {
                    write!(f, "{} = matvec({}, {}", b(out), b(x), w(weight))?;
                    if let Some(bias) = bias {
                        write!(f, ", bias {}", w(bias))?;
                    }
                    writeln!(f, ")")
                }
                Op::Rope { x, n_head, style } => {
                    let style = match style {
                        RopeStyle::Interleaved => "interleaved",
                        RopeStyle::Halves => "halves",
                    };
                    writeln!(f, "{0} = rope({0}, {n_head} heads, {style})", b(x))
                }
                Op::KvScatter { k, v, layer } => {
                    writeln!(f, "kv[{layer}] = kv_scatter({}, {})", b(k), b(v))
                }
                Op::Attention {
                    q,
                    out,
                    layer,
                    n_head,
                    scale,
                } => writeln!(
                    f,
                    "{} = attention({}, kv[{layer}], {n_head} heads, scale {scale})",
                    b(out),
                    b(q)
                ),
                Op::Add { x, out } => writeln!(f, "{0} = add({0}, {1})", b(out), b(x)),
                Op::SwiGlu { gate, up, out } => {
                    writeln!(f, "{} = swiglu({}, {})", b(out), b(gate), b(up))
                }
                Op::SelectRows { x, out } => writeln!(f, "{} = select_rows({})", b(out), b(x)),
            }?;
        }
        Ok(())
    }
}
