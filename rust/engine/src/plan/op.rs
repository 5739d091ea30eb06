//! The operations. Each doc comment is the definition: the interpreter follows it, kernels are
//! tested against it. `r` is a row; a row is one token of one sequence.

use serde::{Deserialize, Serialize};

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

/// One operation. Buffers hold float32 rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `out[r] = weight[tokens[r]]`.
    Embed { weight: WeightId, out: BufferId },
    /// `out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight`, for each group `g` of `group`
    /// consecutive values; `weight` has `group` values.
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
    /// `positions[r] * inv_freq` of the plan's rope table.
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
    /// `out[r] = gate[r] / (1 + exp(-gate[r])) * up[r]`.
    SwiGlu {
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
    /// `out[i] = x[out_rows[i]]`: the rows whose logits are wanted.
    SelectRows { x: BufferId, out: BufferId },
}
