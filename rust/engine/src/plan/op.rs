//! The operations. Each doc comment is the definition: the interpreter follows it, kernels are
//! tested against it. `r` is a row; a row is one token of one sequence.

use serde::{Deserialize, Serialize};

use super::signature::{
    Access, CacheUse, Constant, Operand, Over, Parts, Role, Signature, Used, Width,
};
use super::{BufferId, WeightId};

/// Which two values of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeStyle {
    /// `2i` and `2i + 1`.
    Interleaved,
    /// `i` and `i + rope_dim / 2`.
    Halves,
}

impl RopeStyle {
    /// In listings.
    pub fn name(self) -> &'static str {
        match self {
            RopeStyle::Interleaved => "interleaved",
            RopeStyle::Halves => "halves",
        }
    }
}

/// One operation. Buffers hold float32 rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `out[r] = weight[tokens[r]]`, the row expanded to float32 as the file format says; products of
    /// scales and integers are exact.
    Embed { weight: WeightId, out: BufferId },
    /// `out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight`, for each group `g` of `group`
    /// consecutive values; `weight` has `group` values. The sum of the squares: of every 256 values
    /// in turn, the last ones padded with zeros, 32 chains of 8 consecutive values, each by fused
    /// multiply-adds from zero; the chains folded in halves, 16, 8, 4, 2, 1; then these sums in
    /// order. Then `(x * (1 / sqrt(mean + eps))) * weight`, each step rounded.
    RmsNorm {
        x: BufferId,
        weight: WeightId,
        out: BufferId,
        group: usize,
        eps: f32,
    },
    /// `out[r] = weight · x[r] + bias`.
    MatVec {
        x: BufferId,
        weight: WeightId,
        bias: Option<WeightId>,
        out: BufferId,
    },
    /// Rotates, in place, the first `2 * len(inv_freq)` values of each head of `x[r]` by the angles
    /// `positions[r] * inv_freq` of the plan's rope table: `u` becomes `fma(u, cos, -(v sin))` and
    /// `v` `fma(u, sin, v cos)`; cosine and sine are of float64, rounded.
    Rope {
        x: BufferId,
        n_head: usize,
        style: RopeStyle,
    },
    /// Stores `k[r]` and `v[r]` as token `positions[r]` of the sequence `slots[r]` in the cache of
    /// `layer`: page `page_table[slots[r]][positions[r] / page]`, entry `positions[r] % page`. A
    /// position at or past the limit, or a page that is not mapped, writes nothing and raises the
    /// error word.
    KvScatter {
        k: BufferId,
        v: BufferId,
        layer: usize,
    },
    /// For each head `h` of `q[r]`, with `kv = h / (n_head / n_head_kv)` and `t` over
    /// `0..=positions[r]`: `out[r][h] = sum_t softmax_t(scale * q[r][h]·K[t][kv]) * V[t][kv]`.
    Attention {
        q: BufferId,
        out: BufferId,
        layer: usize,
        n_head: usize,
        scale: f32,
    },
    /// `out[r] += x[r]`.
    Add { x: BufferId, out: BufferId },
    /// `out[r] = gate[r] / (1 + exp(-gate[r])) * up[r]`, as `(gate (t / (1 + e))) up` with `e` the
    /// `exp` of `sampler/math.rs` of `-|gate|`, zero below -87, and `t` 1, or `e` for a gate below 0.
    SwiGlu {
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
    /// `out[i] = x[out_rows[i]]`: the rows whose logits are wanted.
    SelectRows { x: BufferId, out: BufferId },
}

impl Op {
    /// What it reads and writes, and over which rows: one row of this table an op.
    pub fn signature(&self) -> Signature {
        let read = |id| Operand::new(id, Access::Read);
        let write = |id| Operand::new(id, Access::Write);
        let replace = |id| Operand::new(id, Access::Replace);
        let update = |id| Operand::new(id, Access::Update);
        let used = |id, role| Used { id, role };
        match *self {
            Op::Embed { weight, out } => Signature {
                weights: vec![used(weight, Role::Lookup)],
                ..Signature::new("embed", Over::Batch, vec![write(out)])
            },
            Op::RmsNorm {
                x,
                weight,
                out,
                group,
                eps,
            } => Signature {
                weights: vec![used(weight, Role::Scale)],
                parts: Parts::Groups(group),
                constant: Some(Constant::Epsilon(eps)),
                ..Signature::new("rms_norm", Over::Buffers, vec![read(x), replace(out)])
            },
            Op::MatVec {
                x,
                weight,
                bias,
                out,
            } => {
                let bias = bias.map(|id| used(id, Role::Bias));
                let out = write(out).wide(Width::Product);
                Signature {
                    weights: [used(weight, Role::Matrix)]
                        .into_iter()
                        .chain(bias)
                        .collect(),
                    ..Signature::new("matvec", Over::Buffers, vec![read(x), out])
                }
            }
            Op::Rope { x, n_head, style } => Signature {
                parts: Parts::Heads(n_head),
                rope: Some(style),
                ..Signature::new("rope", Over::Batch, vec![update(x)])
            },
            Op::KvScatter { k, v, layer } => {
                let buffers = [k, v].map(|id| read(id).wide(Width::Cache));
                Signature {
                    cache: Some(CacheUse {
                        layer,
                        access: Access::Write,
                    }),
                    ..Signature::new("kv_scatter", Over::Batch, buffers.into())
                }
            }
            Op::Attention {
                q,
                out,
                layer,
                n_head,
                scale,
            } => Signature {
                parts: Parts::Heads(n_head),
                cache: Some(CacheUse {
                    layer,
                    access: Access::Read,
                }),
                constant: Some(Constant::Scale(scale)),
                ..Signature::new("attention", Over::Batch, vec![read(q), write(out)])
            },
            Op::Add { x, out } => Signature::new("add", Over::Buffers, vec![update(out), read(x)]),
            Op::SwiGlu { gate, up, out } => {
                let buffers = vec![read(gate), read(up), write(out)];
                Signature::new("swiglu", Over::Buffers, buffers)
            }
            Op::SelectRows { x, out } => {
                Signature::new("select_rows", Over::Picked, vec![read(x), write(out)])
            }
        }
    }
}
