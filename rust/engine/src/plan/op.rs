//! The operations. Each doc comment is the definition: the interpreter follows it, kernels are
//! tested against it. `r` is a row; a row is one token of one sequence.

use serde::{Deserialize, Serialize};

use super::attributes::{Gating, Groups, Norm, RopeStyle, RowPart, TableRow};
use super::signature::{
    Access, CacheUse, Constant, Operand, Over, Parts, Role, Rotation, Signature, StateUse, Used,
    Width,
};
use super::{
    convolution, BufferId, Choice, Chosen, Gather, Mamba2, Ngram, StateId, Streams, WeightId,
};

/// The default of factors: 1 changes nothing.
fn one() -> f32 {
    1.0
}

/// The default of convolutions.
fn apart() -> usize {
    1
}

/// The default of attention.
fn yes() -> bool {
    true
}

/// Counts up with every change of a bit that a definition below states: what was computed by another
/// arithmetic, and kept, is not read.
pub const ARITHMETIC: u32 = 2;

/// One operation. Buffers hold float32 rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `out[r] = weight[tokens[r]] * scale`, the row expanded to float32 as the file format says; products
    /// of scales and integers are exact. The product with `scale` is rounded; 1 changes nothing.
    Embed {
        weight: WeightId,
        out: BufferId,
        #[serde(default = "one")]
        scale: f32,
    },
    /// `out[r][g] = x[r][g] / sqrt(mean(x[r][g]^2) + eps) * weight`, for each group `g` of `group`
    /// consecutive values; `weight` has `group` values, or as many as a row has, of which each group takes its
    /// own; all 1 where there is none. The sum of the squares: of every 256 values
    /// in turn, the last ones padded with zeros, 32 chains of 8 consecutive values, each by fused
    /// multiply-adds from zero; the chains folded in halves, 16, 8, 4, 2, 1; then these sums in
    /// order. Then `f = 1 / sqrt(sum / group + eps)`, NaN where the sum is infinite, and
    /// `(x * f) * weight`, each step rounded.
    RmsNorm {
        x: BufferId,
        weight: Option<WeightId>,
        out: BufferId,
        group: usize,
        eps: f32,
    },
    /// `out[r] = (x[r] - mean) / sqrt(variance + eps) * weight + bias`. The mean is `sum / width`, the sum in
    /// the order of that of the squares in [`Op::RmsNorm`], by additions from zero; then `d = x - mean`;
    /// the variance is the sum of the squares of `d`, as there, by `width`. Then
    /// `f = 1 / sqrt(variance + eps)`, NaN where that is zero, and `fma(d * f, weight, bias)`, each step
    /// rounded; the bias is all 0 where there is none.
    LayerNorm {
        x: BufferId,
        weight: WeightId,
        bias: Option<WeightId>,
        out: BufferId,
        eps: f32,
    },
    /// `x[r] += table[i]`, in place: `i` is 0, `positions[r]` or `types[r]`. The table is a vector of rows as wide as x,
    /// one after another; a row that it does not have is NaN.
    AddRow {
        x: BufferId,
        table: WeightId,
        row: TableRow,
    },
    /// `out[r] = (weight · x[r]) scale + bias`, or of `x[r]` as [`Op::RmsNorm`] makes it, by a stated sum:
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
    /// 1. *x as block fixed point*, for each row. For each block `b` of 32 columns:
    ///    `field_b = bits(max |x|) >> 23`, not below 24; above 243 (2^117 and more, infinite, NaN) there
    ///    is no product but [`crate::Error::Activations`]. With `e_b = field_b - 126`, `X` is
    ///    `Z = rint(x * 2^(14 - e_b))`, `|Z| <= 2^14`, rounded to 11 significant bits, as a float16 has.
    ///    For each superblock: `e = max e_b`, and `H` is `X * 2^(e_b - e)` rounded to a multiple of
    ///    2^-20, which does nothing where `e - e_b <= 20`; so `H` is a float16, and so is `H / 16`. As
    ///    integers: with `k = min(e - e_b, 20)`, `X' = rint(X * 2^(k - (e - e_b)))` and `H = 2^-k X'`.
    /// 2. *Sub-block j*: `T_j = float(sum q H)`, the exact sum rounded once. The sums of `q X'` are
    ///    below 2^24 for `|q|` up to 31, or with 16 columns 63; for others those of both parts of
    ///    `q = 16 hi + lo` are, and `T_j` is the rounded sum of these.
    /// 3. *Offsets*. `S_j = sum H` over sub-block `j`, a float32. Where sub-blocks have minimums `m_j`
    ///    in units of one `dmin`: over all 8 or all 16, `E = max(field - 126, -2)` with
    ///    `field = bits(max |S_j|) >> 23`, `S'_j = rint(S_j * 2^(14 - E))`, `|S'_j| <= 2^14`, and
    ///    `M = 2^(E - 14) * sum m_j S'_j`: 8 minimums of up to 63, or 16 of up to 15, sum up to less
    ///    than 2^24. Where each sub-block has an offset `m_j` of its own, it takes part by `S_j`.
    /// 4. *Superblock*, which counts in 2^24, so that scales may be any powers of two
    ///    ([`crate::quant::Scale`]): `p = -(dmin (2^-24 M))`, rounded once, where there are shared
    ///    minimums, else `p = +0`; then for `j` = 0 to 7 or 15: `p = fma(d s_j, 2^-24 T_j, p)` and, with
    ///    offsets of their own, `p = fma(m_j, 2^-24 S_j, p)`; then `y = fma(2^(e + 10), p, y)`. `d s_j`
    ///    has no rounding: 11 bits by at most 8. Missing sub-blocks of the last superblock add nothing,
    ///    which is what zeros add.
    /// 5. *Parts*: `n` superblocks are cut into `P = min(8, n)` runs, run `i` from `floor(i n / P)` to
    ///    `floor((i + 1) n / P)` ([`super::parts::parts`]). In a run, `y` starts from +0 and takes the
    ///    superblocks in order; then the runs are added in order, `((y_0 + y_1) + y_2) + ...`.
    /// 6. With a norm, the sum is multiplied by `f`, then with a `scale`, which is a number, by that, each
    ///    product rounded. Then the bias is added.
    ///
    /// What makes these sums exact is asserted when a type is compiled:
    /// [`crate::quant::Integers::PROOF`].
    ///
    /// **Weights that are floats** (all other types): each is a float32 as it is. Lane `l` of 32 starts
    /// from +0 and takes columns `l, l + 32, ...` in order, `y_l = fma(w, x, y_l)`; then the lanes are
    /// folded in halves, `y_l = y_l + y_(l + n)` for `n` = 16, 8, 4, 2, 1; then come `f`, the scale and
    /// the bias as above.
    MatVec {
        x: BufferId,
        norm: Option<Norm>,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
        out: BufferId,
    },
    /// Rotates, in place, the first `2 * len(inv_freq)` values of each head of `x[r]` by the angles
    /// `positions[r] * inv_freq` of the plan's rope table of this number: `u` becomes `fma(u, cos, -(v sin))` and
    /// `v` `fma(u, sin, v cos)`; cosine and sine are of float64, times what the table says of the
    /// position ([`super::RopeTable::scale_at`]), rounded.
    Rope {
        x: BufferId,
        n_head: usize,
        table: usize,
        style: RopeStyle,
    },
    /// Stores `k[r]` and `v[r]` as token `positions[r]` of the sequence `slots[r]` in the cache of
    /// `layer`: page `page_table[slots[r]][positions[r] / page]`, entry `positions[r] % page`. A
    /// position at or past the limit, or a page that is not mapped, writes nothing and raises the
    /// error word. Where the layer's values are in its keys ([`KvShape`](super::KvShape)), `v` is `k`, and
    /// is stored once.
    KvScatter {
        k: BufferId,
        v: BufferId,
        layer: usize,
    },
    /// For each head `h` of `q[r]`, with `kv = h / (n_head / n_head_kv)` and `t` over
    /// `0..=positions[r]`: `out[r][h] = sum_t softmax_t(scale * q[r][h]·K[t][kv]) * V[t][kv]`. With a
    /// `window`, at least 1, `t` is above `positions[r] - window`: a row sees that many tokens, its own
    /// included, and no page is read of which it sees none, so that such pages need not be mapped.
    /// Where it is not `causal`, `t` is over `0..=e`, `e` the largest position of the row's sequence in the
    /// pass: a row sees those behind it too, and all of a sequence is one pass. A `window` is around the row
    /// then: `t` is at most `floor(window / 2)` from `positions[r]`.
    /// With `sinks`, a logit for each head, `sinks[h]` is one more score of the softmax, of value 0.
    /// NaN where no score but that is above -infinity. Keys and values are finite: those that are not end
    /// their sequence ([`crate::Error::KvValues`]). Where the layer's values are in its keys, `V[t]` is the first
    /// numbers of `K[t]`, and `out[r][h]` has as many.
    ///
    /// **Over a cache of integers**
    /// ([`sums_kv_exactly`](crate::quant::QuantType::sums_kv_exactly)) by a stated sum, with operations
    /// as in [`Op::MatVec`]. A key or value is an integer `K` or `V` times the scale `u` of its block,
    /// consecutive dimensions of a head of a token; `u` is 0 in a cleared page. What a row does not see
    /// has weight 0, and no part in a maximum.
    ///
    /// 0. *Storage* in 16 bits: blocks of up to 128 dimensions, integers of at most 32767 in size. What is
    ///    above `32767 * 2^35` in size becomes that, a NaN, whose sequence ends, 0. `u` is `(max |x|) / 32767`,
    ///    rounded, then rounded up to the upper 16 bits of a float32, at least 2^-126; an integer is
    ///    `rint(x * (1 / u))` of the exact product by the rounded reciprocal. In 8 bits: blocks of up to
    ///    32, integers from -128 to 127, `u` a float16. What is above `127 * 65504` in size becomes that,
    ///    a NaN, whose sequence ends, 0. With `d = (max |x|) / 127`, rounded, and `i = 1 / d`, rounded, or 0 where
    ///    that is not finite, an integer is `x i`, rounded, then to the nearest, halves away from zero;
    ///    `u` is `min(d, 65504)`, rounded to a float16.
    /// 1. *q as fixed point*, for each head: from `max |q|` of 2^50 on, or of no number, all of
    ///    `out[r][h]` is NaN. With `a = max(max |q|, 2^-100)`, `Q = rint(q * (32639 / a))` of the exact
    ///    product by the rounded quotient, so that `|Q| <= 32639 = 127 * 256 + 127`; `F = c * a`,
    ///    `c = float(scale * log2(exp(1)) / (64 * 32639))`, computed in float64.
    /// 2. *Scores*: `T_b = float(sum K Q)` over block `b`, the exact integer rounded once;
    ///    `s = T_0 u_0`, then `s = fma(T_b, u_b, s)` for the following blocks.
    /// 3. *Weights*, by token blocks of 64, positions 64i to 64i + 63 as far as the row sees them,
    ///    from the block of the first token that it sees:
    ///    `M = ceil(((max s) F) * 64)`; `z = min(max(fma(s, F, fma(M, -1/64, 1)), 0), 1)`, of no number
    ///    0; `p = 2^(64 z - 64)` ([`exp2_unit`](crate::sampler::math::exp2_unit)), so that no weight is
    ///    below 2^-64. From `|M|` of 2^23 on `z` is 1 for `s = max s`, else 0. Then
    ///    `l = float(sum rint(p * 2^22)) * (65535 * 2^-38)`, or NaN where `M` is not finite.
    /// 4. *Values*, for each block: `v = p u` for each token of the token block; `field = bits(max v) >> 23`,
    ///    not below 24, and `E = field - 126`; `w = rint(v * (65535 * 2^-E))` of the exact product, at
    ///    most 65535; for each dimension `o = float(sum w V) * 2^(E - 16)`, the exact integer rounded
    ///    once. (In `w` are 65535ths of 2^E, in `o` 65536ths: hence the factor of `l`.)
    /// 5. *Token blocks joined*: `(M, l, o)` and the next `(M_1, l_1, o_1)` become, with `M' = max(M, M_1)`,
    ///    `f = 2^(M - M')` and `f_1 = 2^(M_1 - M')`, zero for exponents below -126, `(M',
    ///    fma(l_1, f_1, l f), fma(o_1, f_1, o f))`. Of `n` token blocks a split is a run of `ceil(n / 32)`
    ///    from the first on, so there are at most 32. Those of a split are joined in order, the first
    ///    as it is, then the splits in the same way.
    /// 6. *A sink* is joined last, as a token block of one token without values: with
    ///    `s = sinks[h] * float(log2(exp(1)) / 64)`, rounded, and `F` = 1 step 3 gives `M_1` and `l_1`,
    ///    and `(M, l, o)` becomes `(M', fma(l_1, f_1, l f), o f)`. Then `out = o / l`.
    ///
    /// Every sum of integers is below 2^37, those of 8 bits below 2^30. Cut into bytes, of which those of
    /// `Q` are all signed, the sums of products are below 2^23.
    ///
    /// Over other caches, which the CPU alone has, the order of sums is its own.
    ///
    /// Where blocks are `chosen`, a row sees their tokens alone: those of a set bit of its row of that buffer, and
    /// none behind it. Splits are the same; a token block of which a row sees nothing is joined to none.
    Attention {
        q: BufferId,
        out: BufferId,
        layer: usize,
        n_head: usize,
        scale: f32,
        window: Option<usize>,
        sinks: Option<WeightId>,
        #[serde(default = "yes")]
        causal: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chosen: Option<Chosen>,
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
    /// `out[r] = x[r] * t / (1 + e)` of `gate[r]`: times its logistic function, `e` and `t` as in
    /// [`Op::SwiGlu`]; the quotient rounded, then the product. Where there are fewer numbers in `gate[r]`
    /// than in `x[r]`, a divisor of theirs, each counts for as many consecutive values:
    /// `gate[r][c / (width of x / width of gate)]`. NaN where the gate is infinite, which 0 or 1 would hide.
    SigmoidMul {
        x: BufferId,
        gate: BufferId,
        out: BufferId,
    },
    /// The same with `s` of the gate for its logistic function: softplus, as [`Op::DeltaNet`] states it
    /// of `z`. NaN where the gate is infinite.
    SoftplusMul {
        x: BufferId,
        gate: BufferId,
        out: BufferId,
    },
    /// Of `x[r]`, parts of `of` values, from each the values from `first` on: `out[r]` has `n` parts
    /// of as many as it has room for.
    Slice {
        x: BufferId,
        out: BufferId,
        n: usize,
        first: usize,
        of: usize,
    },
    /// `out[r]` has `n` parts, each `of[0]` values of `x[r]`, then `of[1]` of `y[r]`: both in their order.
    Join {
        x: BufferId,
        y: BufferId,
        out: BufferId,
        n: usize,
        of: [usize; 2],
    },
    /// `out[r]` is `x[r]`, then `y[r]`.
    Concat {
        x: BufferId,
        y: BufferId,
        out: BufferId,
    },
    /// A causal convolution over the tokens of a sequence, each value by itself:
    /// `out[r][c] = sum_j weight[c][j] * x_(r - taps + 1 + j)[c]`, where `x_s` are the inputs of the
    /// sequence's tokens in order, zero before its first: from +0 by `fma(weight, x, y)` for `j` = 0 to
    /// `taps - 1`. With `silu` that is `y (t / (1 + e))`, as in [`Op::SwiGlu`].
    ///
    /// **A state** is the sequence's own: that of the slot `slots[r]`. A row at position 0 finds zeros
    /// whatever was there; every other row finds what the row before it left, in this pass or an earlier
    /// one. Rows of a sequence stand together, in the order of their positions. A row of no slot (padding)
    /// touches no state, and what it gives is no number of any sequence.
    ///
    /// Here it is the last `taps - 1` inputs, `[taps - 1][channels]`, the oldest first.
    ///
    /// With a `bias` the sum is from `bias[c]` instead of +0. With a `part`, the inputs are those of
    /// `x[r]` from its `first` on, of `of` values. With a `dilation` `d` the inputs are `d` tokens apart,
    /// `x_(r - (taps - 1 - j) d)`, and the state is the last `(taps - 1) d` of them.
    ShortConv {
        x: BufferId,
        weight: WeightId,
        #[serde(default)]
        bias: Option<WeightId>,
        state: StateId,
        out: BufferId,
        taps: usize,
        silu: bool,
        #[serde(default)]
        part: Option<RowPart>,
        #[serde(default = "apart")]
        dilation: usize,
    },
    /// A short convolution between two gates. `x[r]` has three parts as wide as `out`, `b`, `c` and `u`:
    /// `out[r] = c * y`, `y` the convolution of [`Op::ShortConv`] of the products `b * u`, each of which
    /// is rounded, and so is `c * y`. Its state is that of [`Op::ShortConv`]: the last products.
    GatedConv {
        x: BufferId,
        weight: WeightId,
        state: StateId,
        out: BufferId,
        taps: usize,
    },
    /// The gated delta rule (<https://arxiv.org/abs/2412.06464>), for each of `n_head` heads `h` of
    /// values, which take the head `h % n_head_k` of queries and keys, or where they are `grouped`, the
    /// head `h / (n_head / n_head_k)`; all are of `d` numbers, `d` the width of `out` by `n_head`.
    /// `qkv[r]` has the heads of `q`, then those of `k`, then those of `v`. Its state is a matrix
    /// `S[i][c]` a head, `[n_head][d][d]`; see [`Op::ShortConv`] for whose.
    ///
    /// 1. *Directions*: `f = 1 / sqrt(sum + eps)` of q and of k, the sum of the squares as in
    ///    [`Op::RmsNorm`]; `Q = q * (f * float(1 / sqrt(d)))`, `K = k * f`, each step rounded.
    /// 2. *Gates*: `z = alpha + dt[h]`; `s = max(z, 0) + ln(1 + e)`, `e` the `exp` of `-|z|`, and the
    ///    logarithm `ln_1p_reduced(e)` of `sampler/math.rs` for `e` below 0.4, else `ln(1 + e)`;
    ///    `g = exp(a[h] * s)`, 1 where `a s` is above 0, zero below -87, NaN where `z` is infinite.
    ///    `b = t / (1 + e)` of `beta`, as in [`Op::SigmoidMul`].
    /// 3. *Recurrence*, for each column `c`: `u = sum_i S[i][c] K[i]`;
    ///    `w = fma(-g, u, v[c]) * b`; `S[i][c] = fma(K[i], w, g * S[i][c])`;
    ///    `out[r][h][c] = sum_i S[i][c] Q[i]`. A sum is four chains, chain `t` from +0 by
    ///    `fma(S, K, y)` over `i = t, t + 4, ...`, then `(y_0 + y_1) + (y_2 + y_3)`.
    DeltaNet {
        qkv: BufferId,
        alpha: BufferId,
        beta: BufferId,
        a: WeightId,
        dt: WeightId,
        state: StateId,
        out: BufferId,
        n_head: usize,
        n_head_k: usize,
        /// Whether those of values that share one of keys are neighbours.
        grouped: bool,
        head_dim: usize,
        eps: f32,
    },
    /// [`Mamba2`] states it.
    Mamba2(Mamba2),
    /// [`Streams`] states it.
    Streams(Streams),
    /// [`Choice`] states it.
    Choice(Choice),
    /// [`Ngram`] states it.
    Ngram(Ngram),
    /// `out[r] = gelu(gate[r]) * up[r]`, with the form of `gelu` by tanh, `g / 2 (1 + tanh(u))` of
    /// `u = sqrt(2/pi) (g + 0.044715 g^3)`, which is `g / (1 + exp(-2u))`. As
    /// `(gate (t / (1 + e))) up` with `z = gate fma(gate gate, b, a)`, `a = float(sqrt(8/pi))` and
    /// `b = float(0.044715 sqrt(8/pi))`, and `e` and `t` as in [`Op::SwiGlu`], with `z` for the gate:
    /// a gate whose square is infinite is itself, or zero.
    GeGlu {
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
    /// `out[r] = (g logistic(1.702 g)) (u + 1)` of `g = gate[r]`, at most 7, and `u = up[r]`, from -7 to
    /// 7: as `(g (t / (1 + e))) (u + 1)`, `e` and `t` as in [`Op::SwiGlu`], with `float(1.702) g` for the
    /// gate. NaN where one of the two is infinite.
    ClampedSwiGlu {
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
    /// `x[r] = gelu(x[r])`, in place, by the normal distribution: `x Phi(x)`. With `b = |x|`,
    /// `t = 1 / fma(0.3, b, 1)`, `p` the polynomial of [`gelu_tail`](crate::sampler::math::gelu_tail) of `t` by
    /// fused multiply-adds, and `e` the `exp` of [`Op::SwiGlu`], zero below -87, of `-(b b) / 2`, it is
    /// `q = (t p) e`, which is `Phi(-b)`; then `x q` for x below 0, else `fma(-x, q, x)`. NaN of what is
    /// infinite.
    Gelu { x: BufferId },
    /// `x[r] = max(x[r], 0)^2`, in place, rounded; NaN of what is infinite.
    ReluSquared { x: BufferId },
    /// `x[r] = x[r] * factor`, in place, rounded.
    Scale { x: BufferId, factor: f32 },
    /// `x[r] = x[r] * weight[0]`, in place, rounded: the factor is a tensor of one number.
    ScaleBy { x: BufferId, weight: WeightId },
    /// `x[r] = cap tanh(x[r] / cap)`, in place: with `e` the `exp` of [`Op::SwiGlu`], zero below -87, of
    /// `-(|x| k)`, `k = float(2 / cap)` computed in float64, it is `cap ((1 - e) / (1 + e))`, each step
    /// rounded, negative for `x` below 0. NaN of what is infinite.
    SoftCap { x: BufferId, cap: f32 },
    /// `out[i] = x[out_rows[i]]`: the rows whose logits are wanted.
    SelectRows { x: BufferId, out: BufferId },
    /// Chooses `k` of the `n` experts that `logits[r]` has a value for, largest first, and what each
    /// counts: `out[r]` is `k` ids, whole numbers as float32, then `k` weights.
    ///
    /// 1. *Gates*: of softmax `g_i = exp(logits_i - m)`, `m` the largest logit, with the `exp` of
    ///    [`Op::SwiGlu`], zero below -87; of sigmoid `g_i = t / (1 + e)` as stated there.
    /// 2. *Sum*, of softmax over all: lane `l` of 32 adds `g_l, g_(l + 32), ...` in order from +0,
    ///    then the lanes are folded in halves, 16, 8, 4, 2, 1. `p_i = g_i / sum`; of sigmoid `p_i = g_i`.
    /// 3. *Choice*: by `logits_i`, or where there is a `bias` by `p_i + bias_i` (of the softmax of
    ///    those selected, `logits_i + bias_i`). The largest is first; of equals, and the two zeros are
    ///    equal, the one of the lower id. What is not a number is below all that is. With `groups`, of
    ///    `count` of neighbours, all of one size, only experts of `used` are compared: of the groups of the
    ///    largest scores, by the order of experts. A group's score is the largest of its experts' or, where
    ///    there is a `bias`, the sum of the two that come first, rounded.
    /// 4. *Weights*, of those chosen in the order of their choice: `w_j = p_i`; of the softmax of those
    ///    selected `g_j = exp(logits_j - m)`, `m` the largest of theirs, and `w_j = g_j / ((g_0 + g_1) +
    ///    ...)`. With `renormalize` `w_j = w_j / max((w_0 + w_1) + ..., 2^-14)`. Then `w_j * scale`.
    ///
    /// Where a logit is infinite or not a number, all weights of the row are NaN (0x7fc00000): the ids are
    /// still valid, and the outputs are NaN, which the next product reports.
    Route {
        logits: BufferId,
        bias: Option<WeightId>,
        out: BufferId,
        gating: Gating,
        renormalize: bool,
        scale: f32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        groups: Option<Groups>,
    },
    /// All experts of each row: `out[r]` is the ids from 0 on, then as many weights 1.
    RouteAll { out: BufferId },
    /// `out[r][j] = (weight[e_j] · x[r]) scale[e_j] + bias[e_j]` for each rank `j` of `routes[r]`, `e_j`
    /// its id; or, where x is `ranked`, of `x[r][j]`. Each is the sum that [`Op::MatVec`] states, its
    /// norm included, which is one of the row that is multiplied. A number in the place of an id that
    /// is not from 0 up to the number of experts stands for 0.
    ExpertMatVec {
        x: BufferId,
        /// Whether each rank has a row of x of its own.
        ranked: bool,
        norm: Option<Norm>,
        routes: BufferId,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
        out: BufferId,
    },
    /// `w_j = w_j * weight[e_j]` of each rank of `routes[r]`, in place, rounded: a factor for each expert.
    /// A number in the place of an id is taken as [`Op::ExpertMatVec`] takes it.
    ScaleRanks { routes: BufferId, weight: WeightId },
    /// Of several cards: see there.
    Gather(Gather),
    /// `out[r] = sum_j w_j x[r][j]` over the ranks of `routes[r]`, `w_j` their weights: `y = w_0 x_0`,
    /// rounded, then `y = fma(w_j, x_j, y)` in order.
    MixExperts {
        x: BufferId,
        routes: BufferId,
        out: BufferId,
    },
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
            Op::Embed { weight, out, scale } => Signature {
                weights: vec![used(weight, Role::Lookup)],
                constant: (scale != 1.0).then_some(Constant::Scale(scale)),
                ..Signature::new("embed", Over::Batch, vec![write(out)])
            },
            Op::RmsNorm {
                x,
                weight,
                out,
                group,
                eps,
            } => Signature {
                weights: weight.map(|id| used(id, Role::Scale)).into_iter().collect(),
                parts: Parts::Groups(group),
                constant: Some(Constant::Epsilon(eps)),
                ..Signature::new("rms_norm", Over::Buffers, vec![read(x), replace(out)])
            },
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                eps,
            } => Signature {
                weights: [
                    Some(used(weight, Role::Scale)),
                    bias.map(|id| used(id, Role::Shift)),
                ]
                .into_iter()
                .flatten()
                .collect(),
                constant: Some(Constant::Epsilon(eps)),
                ..Signature::new("layer_norm", Over::Buffers, vec![read(x), replace(out)])
            },
            Op::AddRow { x, table, row } => Signature {
                weights: vec![used(table, Role::Rows)],
                ..Signature::new(
                    match row {
                        TableRow::First => "add_first_row",
                        TableRow::Position => "add_row_of_position",
                        TableRow::Type => "add_row_of_type",
                    },
                    Over::Batch,
                    vec![update(x)],
                )
            },
            Op::MatVec {
                x,
                norm,
                weight,
                scale,
                bias,
                out,
            } => {
                let matrix = Some(used(weight, Role::Matrix));
                let norm_scale = norm.map(|norm| used(norm.weight, Role::Scale));
                let factor = scale.map(|id| used(id, Role::ProductScale));
                let bias = bias.map(|id| used(id, Role::Bias));
                let out = write(out).wide(Width::Product);
                Signature {
                    weights: [norm_scale, matrix, factor, bias]
                        .into_iter()
                        .flatten()
                        .collect(),
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
                rotation: Some(Rotation { table, style }),
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
                causal,
                chosen,
            } => Signature {
                weights: sinks.map(|id| used(id, Role::Sink)).into_iter().collect(),
                parts: Parts::Heads(n_head),
                window,
                cache: Some(CacheUse {
                    layer,
                    access: Access::Read,
                }),
                looks_ahead: !causal,
                constant: Some(Constant::Scale(scale)),
                ..Signature::new(
                    "attention",
                    Over::Batch,
                    [
                        Some(read(q)),
                        chosen.map(|of| read(of.blocks).wide(of.width())),
                        Some(write(out).wide(Width::Attended)),
                    ]
                    .into_iter()
                    .flatten()
                    .collect(),
                )
            },
            Op::Add { x, out } => Signature::new("add", Over::Buffers, vec![update(out), read(x)]),
            Op::SwiGlu { gate, up, out } => {
                let buffers = vec![read(gate), read(up), write(out)];
                Signature::new("swiglu", Over::Buffers, buffers)
            }
            Op::SigmoidMul { x, gate, out } => {
                let buffers = vec![read(x), read(gate).wide(Width::Share), write(out)];
                Signature::new("sigmoid_mul", Over::Buffers, buffers)
            }
            Op::SoftplusMul { x, gate, out } => {
                let buffers = vec![read(x), read(gate).wide(Width::Share), write(out)];
                Signature::new("softplus_mul", Over::Buffers, buffers)
            }
            Op::Slice {
                x,
                out,
                n,
                first,
                of,
            } => Signature {
                parts: Parts::Sliced { n, first, of },
                ..Signature::new(
                    "slice",
                    Over::Buffers,
                    vec![read(x).wide(Width::Of(n.saturating_mul(of))), write(out)],
                )
            },
            Op::Join { x, y, out, n, of } => {
                let wide = |id, part: usize| read(id).wide(Width::Of(n.saturating_mul(part)));
                let both = of[0].saturating_add(of[1]).saturating_mul(n);
                let out = write(out).wide(Width::Of(both));
                Signature::new(
                    "join",
                    Over::Buffers,
                    vec![wide(x, of[0]), wide(y, of[1]), out],
                )
            }
            Op::Concat { x, y, out } => {
                let buffers = vec![read(x), read(y), write(out).wide(Width::Times(2))];
                Signature::new("concat", Over::Buffers, buffers)
            }
            Op::ShortConv { .. } | Op::GatedConv { .. } => match convolution::signature(self) {
                Some(signature) => signature,
                None => Signature::new("convolution", Over::Batch, Vec::new()),
            },
            Op::DeltaNet {
                qkv,
                alpha,
                beta,
                a,
                dt,
                state,
                out,
                n_head,
                n_head_k,
                grouped,
                head_dim,
                eps,
            } => {
                // Without heads of keys there are none to take, and groups are of one size: else no buffer
                // is as wide.
                let heads = match n_head_k {
                    0 => usize::MAX,
                    n if grouped && !n_head.is_multiple_of(n) => usize::MAX,
                    n => n.saturating_mul(2).saturating_add(n_head),
                };
                let per_head = |id| read(id).wide(Width::Of(n_head));
                let qkv = read(qkv).wide(Width::Of(heads.saturating_mul(head_dim)));
                Signature {
                    weights: vec![used(a, Role::PerHead), used(dt, Role::PerHead)],
                    parts: Parts::Heads(n_head),
                    state: Some(StateUse {
                        id: state,
                        per_value: head_dim,
                        head_dim: Some(head_dim),
                    }),
                    constant: Some(Constant::Epsilon(eps)),
                    ..Signature::new(
                        "delta_net",
                        Over::Batch,
                        vec![qkv, per_head(alpha), per_head(beta), write(out)],
                    )
                }
            }
            Op::GeGlu { gate, up, out } => {
                let buffers = vec![read(gate), read(up), write(out)];
                Signature::new("geglu", Over::Buffers, buffers)
            }
            Op::ClampedSwiGlu { gate, up, out } => {
                let buffers = vec![read(gate), read(up), write(out)];
                Signature::new("clamped_swiglu", Over::Buffers, buffers)
            }
            Op::Gelu { x } => Signature::new("gelu", Over::Buffers, vec![update(x)]),
            Op::ReluSquared { x } => Signature::new("relu_squared", Over::Buffers, vec![update(x)]),
            Op::Mamba2(ref op) => op.signature(),
            Op::Streams(ref op) => op.signature(),
            Op::Choice(ref op) => op.signature(),
            Op::Ngram(ref op) => op.signature(),
            Op::Scale { x, factor } => Signature {
                constant: Some(Constant::Scale(factor)),
                ..Signature::new("scale", Over::Buffers, vec![update(x)])
            },
            Op::ScaleBy { x, weight } => Signature {
                weights: vec![used(weight, Role::Factor)],
                ..Signature::new("scale_by", Over::Buffers, vec![update(x)])
            },
            Op::SoftCap { x, cap } => Signature {
                constant: Some(Constant::Scale(cap)),
                ..Signature::new("soft_cap", Over::Buffers, vec![update(x)])
            },
            Op::SelectRows { x, out } => {
                Signature::new("select_rows", Over::Picked, vec![read(x), write(out)])
            }
            Op::Route {
                logits,
                bias,
                out,
                gating,
                scale,
                groups,
                ..
            } => {
                let name = match gating {
                    Gating::Softmax => "route_softmax",
                    Gating::Sigmoid => "route_sigmoid",
                    Gating::SelectedSoftmax => "route_selected_softmax",
                };
                let buffers = vec![read(logits), write(out).wide(Width::Routes)];
                Signature {
                    weights: bias
                        .map(|id| used(id, Role::Selection))
                        .into_iter()
                        .collect(),
                    routes: Some(out),
                    groups,
                    constant: Some(Constant::Scale(scale)),
                    ..Signature::new(name, Over::Buffers, buffers)
                }
            }
            Op::RouteAll { out } => Signature {
                routes: Some(out),
                ..Signature::new(
                    "route_all",
                    Over::Buffers,
                    vec![write(out).wide(Width::Routes)],
                )
            },
            Op::ExpertMatVec {
                x,
                ranked,
                norm,
                routes,
                weight,
                scale,
                bias,
                out,
            } => {
                let x = read(x).wide(if ranked { Width::Ranks } else { Width::Row });
                let routed = read(routes).wide(Width::Routes);
                let out = write(out).wide(Width::RankedProduct);
                let norm_scale = norm.map(|norm| used(norm.weight, Role::Scale));
                let matrix = Some(used(weight, Role::Experts));
                let factor = scale.map(|id| used(id, Role::ProductScale));
                let bias = bias.map(|id| used(id, Role::ExpertBias));
                Signature {
                    weights: [norm_scale, matrix, factor, bias]
                        .into_iter()
                        .flatten()
                        .collect(),
                    routes: Some(routes),
                    constant: norm.map(|norm| Constant::Epsilon(norm.eps)),
                    ..Signature::new("expert_matvec", Over::Buffers, vec![x, routed, out])
                }
            }
            Op::ScaleRanks { routes, weight } => Signature {
                weights: vec![used(weight, Role::PerExpert)],
                routes: Some(routes),
                ..Signature::new(
                    "scale_ranks",
                    Over::Buffers,
                    vec![update(routes).wide(Width::Routes)],
                )
            },
            Op::Gather(op) => op.signature(),
            Op::MixExperts { x, routes, out } => {
                let x = read(x).wide(Width::Ranks);
                let routed = read(routes).wide(Width::Routes);
                Signature {
                    routes: Some(routes),
                    ..Signature::new("mix_experts", Over::Buffers, vec![x, routed, write(out)])
                }
            }
        }
    }
}
