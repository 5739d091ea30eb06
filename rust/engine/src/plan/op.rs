//! The operations. Each doc comment is the definition: the interpreter follows it, kernels are
//! tested against it. `r` is a row; a row is one token of one sequence.

use serde::{Deserialize, Serialize};

use super::signature::{
    Access, CacheUse, Constant, Operand, Over, Parts, Role, Signature, Turn, Used, Width,
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

/// An RMSNorm over whole rows, where it is part of a product.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// A vector as long as the rows.
    pub weight: WeightId,
    pub eps: f32,
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
    /// order. Then `f = 1 / sqrt(sum / group + eps)` and `(x * f) * weight`, each step rounded.
    RmsNorm {
        x: BufferId,
        weight: WeightId,
        out: BufferId,
        group: usize,
        eps: f32,
    },
    /// `out[r] = weight · x[r] + bias`, or of `x[r]` as [`Op::RmsNorm`] makes it, by a stated sum:
    /// all operations below are IEEE float32 with subnormals, round to nearest, ties to even; `fma`
    /// rounds once.
    ///
    /// **A norm** is one group, the row, and stands around the sum: what is multiplied below is not
    /// `x[k]` but `x[k] * norm.weight[k]`, rounded once, and each sum, once it is whole, is multiplied
    /// by `f` of the row, rounded once, before the bias is added. `f` is that of [`Op::RmsNorm`], with
    /// the squares of x itself and every step as stated there.
    ///
    /// **Weights that are small integers** (types with [`crate::quant::Integers`]; each type's file
    /// states its `q`, its sub-blocks, scales and offsets). The columns of a row are cut into
    /// superblocks of 256, the last one filled up with zeros; a superblock has 8 sub-blocks of 32
    /// columns or 16 of 16, each with one scale `d s`.
    ///
    /// 1. *x as block fixed point*, for each row and superblock: `field = bits(max |x|) >> 23`, not
    ///    below 24; above 245 (2^119 and more, infinite, NaN) there is no product but
    ///    [`crate::Error::Activations`]. With `e = field - 126`, `X = rint(x * 2^(23 - e))`, so that
    ///    `|X| <= 2^23`. In limbs: `z = x * 2^(11 - e)`, `hi = rint(z)`,
    ///    `lo = rint((z - hi) * 4096)`, `X = 4096 hi + lo`, both limbs at most 2048 in size.
    /// 2. *Sub-block j*: `T_j = float(sum q X)`, the exact integer rounded once. The sums of `q hi`
    ///    and of `q lo` are below 2^24 for every type, so float32 holds them whatever the order, and
    ///    `T_j = fma(C_hi, 4096, C_lo)`.
    /// 3. *Offsets*. Where sub-blocks have minimums `m_j` in units of one `dmin`:
    ///    `M = float(sum_j m_j S_j)`, `S_j = sum X` over sub-block `j`, the exact integer rounded
    ///    once. As `S_j = 2^14 u_j + v_j` with `v_j` from -2^13 to 2^13 - 1, the sums of `m_j u_j`
    ///    and of `m_j v_j` are below 2^24, and `M = fma(sum m_j u_j, 2^14, sum m_j v_j)`. Where each
    ///    sub-block has an offset `m_j` of its own, it takes part by `float(S_j)`, rounded once.
    /// 4. *Superblock*: for `t` = 0, 1, 2, 3: `p = -(dmin M)`, rounded once, where `t` = 0 and there
    ///    are shared minimums, else `p = +0`; then for `j = t, t + 4, ...`, to 7 or 15:
    ///    `p = fma(d s_j, T_j, p)` and, with offsets of their own, `p = fma(m_j, float(S_j), p)`;
    ///    then `y = fma(2^(e - 23), p, y)`. `d s_j` has no rounding: 11 bits by at most 8. Missing
    ///    sub-blocks of the last superblock add nothing, which is what zeros add.
    /// 5. *Parts*: `n` superblocks are cut into `P = min(8, n)` runs, run `i` from `floor(i n / P)` to
    ///    `floor((i + 1) n / P)` ([`super::parts::parts`]). In a run, `y` starts from +0 and takes the
    ///    superblocks in order; then the runs are added in order, `((y_0 + y_1) + y_2) + ...`.
    /// 6. With a norm, the sum is multiplied by `f`. Then the bias is added.
    ///
    /// What makes these sums exact is asserted when a type is compiled:
    /// [`crate::quant::Integers::PROOF`].
    ///
    /// **Weights that are floats** (all other types): each is a float32 as it is. Lane `l` of 32 starts
    /// from +0 and takes columns `l, l + 32, ...` in order, `y_l = fma(w, x, y_l)`; then the lanes are
    /// folded in halves, `y_l = y_l + y_(l + n)` for `n` = 16, 8, 4, 2, 1; then come `f` and the bias
    /// as above.
    MatVec {
        x: BufferId,
        norm: Option<Norm>,
        weight: WeightId,
        bias: Option<WeightId>,
        out: BufferId,
    },
    /// Rotates, in place, the first `2 * len(inv_freq)` values of each head of `x[r]` by the angles
    /// `positions[r] * inv_freq` of the plan's rope table of this number: `u` becomes `fma(u, cos, -(v sin))` and
    /// `v` `fma(u, sin, v cos)`; cosine and sine are of float64, rounded.
    Rope {
        x: BufferId,
        n_head: usize,
        table: usize,
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
    /// `0..=positions[r]`: `out[r][h] = sum_t softmax_t(scale * q[r][h]·K[t][kv]) * V[t][kv]`. With a
    /// `window`, at least 1, `t` is above `positions[r] - window`: a row sees that many tokens, its own
    /// included, and no page is read of which it sees none, so that such pages need not be mapped.
    /// With `sinks`, a logit for each head, `sinks[h]` is one more score of the softmax, of value 0.
    ///
    /// **Over a cache of integers** (`i16`) by a stated sum, with operations as in [`Op::MatVec`]. A key
    /// or value is an integer `K` or `V` of at most 32767 in size times the unit `u` of its block, up to
    /// 128 consecutive dimensions of a head of a token; `u` has 8 bits, and is 0 in a cleared page.
    /// What a row does not see has weight 0, and no part in a maximum.
    ///
    /// 0. *Storage*: a NaN becomes 0, what is above `32767 * 2^35` in size becomes that. `u` is
    ///    `(max |x|) / 32767`, rounded, then rounded up to the upper 16 bits of a float32, at least
    ///    2^-126; an integer is `rint(x * (1 / u))` of the exact product by the rounded reciprocal.
    /// 1. *q as fixed point*, for each head: from `max |q|` of 2^50 on, or of no number, all of
    ///    `out[r][h]` is NaN. With `a = max(max |q|, 2^-100)`, `Q = rint(q * (32639 / a))` of the exact
    ///    product by the rounded quotient, so that `|Q| <= 32639 = 127 * 256 + 127`; `F = c * a`,
    ///    `c = float(scale * log2(exp(1)) / (64 * 32639))`, computed in float64.
    /// 2. *Scores*: `T_b = float(sum K Q)` over block `b`, the exact integer rounded once;
    ///    `s = T_0 u_0`, then `s = fma(T_b, u_b, s)` for the following blocks.
    /// 3. *Weights*, in units of 64 tokens, of positions 64i to 64i + 63 as far as the row sees them,
    ///    from the unit of the first token that it sees:
    ///    `M = ceil(((max s) F) * 64)`; `z = min(max(fma(s, F, fma(M, -1/64, 1)), 0), 1)`, of no number
    ///    0; `p = 2^(64 z - 64)` ([`exp2_unit`](crate::sampler::math::exp2_unit)), so that no weight is
    ///    below 2^-64. From `|M|` of 2^23 on `z` is 1 for `s = max s`, else 0. Then
    ///    `l = float(sum rint(p * 2^22)) * (65535 * 2^-38)`, or NaN where `M` is not finite.
    /// 4. *Values*, for each block: `v = p u` for each token of the unit; `field = bits(max v) >> 23`,
    ///    not below 24, and `E = field - 126`; `w = rint(v * (65535 * 2^-E))` of the exact product, at
    ///    most 65535; for each dimension `o = float(sum w V) * 2^(E - 16)`, the exact integer rounded
    ///    once. (In `w` are 65535ths of 2^E, in `o` 65536ths: hence the factor of `l`.)
    /// 5. *Units joined*: `(M, l, o)` and the next `(M_1, l_1, o_1)` become, with `M' = max(M, M_1)`,
    ///    `f = 2^(M - M')` and `f_1 = 2^(M_1 - M')`, zero for exponents below -126, `(M',
    ///    fma(l_1, f_1, l f), fma(o_1, f_1, o f))`. Of `n` units a split is a run of `ceil(n / 32)`
    ///    from the first on, so there are at most 32. The units of a split are joined in order, the first
    ///    as it is, then the splits in the same way.
    /// 6. *A sink* is joined last, as a unit of one token without values: with
    ///    `s = sinks[h] * float(log2(exp(1)) / 64)`, rounded, and `F` = 1 step 3 gives `M_1` and `l_1`,
    ///    and `(M, l, o)` becomes `(M', fma(l_1, f_1, l f), o f)`. Then `out = o / l`.
    ///
    /// Every sum of integers is below 2^37. Cut into bytes, of which those of `Q` are all signed, the sums
    /// of products are below 2^23.
    ///
    /// Over other caches the order of sums is the backend's own.
    Attention {
        q: BufferId,
        out: BufferId,
        layer: usize,
        n_head: usize,
        scale: f32,
        window: Option<usize>,
        sinks: Option<WeightId>,
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
                norm,
                weight,
                bias,
                out,
            } => {
                let matrix = Some(used(weight, Role::Matrix));
                let scale = norm.map(|norm| used(norm.weight, Role::Scale));
                let bias = bias.map(|id| used(id, Role::Bias));
                let out = write(out).wide(Width::Product);
                Signature {
                    weights: [scale, matrix, bias].into_iter().flatten().collect(),
                    constant: norm.map(|norm| Constant::Epsilon(norm.eps)),
                    ..Signature::new("matvec", Over::Buffers, vec![read(x), out])
                }
            }
            Op::Rope {
                x,
                n_head,
                table,
                style,
            } => Signature {
                parts: Parts::Heads(n_head),
                turn: Some(Turn { table, style }),
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
                window,
                sinks,
            } => Signature {
                weights: sinks.map(|id| used(id, Role::Sink)).into_iter().collect(),
                parts: Parts::Heads(n_head),
                window,
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
