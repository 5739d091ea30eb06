//! The ops that are a kernel by themselves, row by row: embedding, norm, rotation, scatter, and
//! what goes element by element.

use super::attention::{KvCodes, RotateConstants};
use super::grid::{grid, THREADS};
use super::layout::Order;
use super::lowering::{Lowering, Pass, Path};
use super::norm;
use super::params::{
    Add, AddRow, Concat, Embed, Gelu, Glu, KvScatter, KvView, Rope, Scale, ScaleBy, ScaleRanks,
    SelectRows, Slice, SlotState, SoftCap, CONSTANTS,
};
use super::shape::Segments;
use super::{choice, exchange, heads, ngrams, recurrence, rounds, streams};
use crate::backend::cuda::driver::constants::Constants;
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::{Error, Result};
use crate::plan::signature::{Operand, Role, Rotation, Used};
use crate::plan::{self, BufferId, Ngram, Op, RopeStyle, TableRow, WeightId};

shared! {
    /// qk_norm_rope.cu
    pub struct QkNormRope = "Params" {
        /// `[m][N_HEAD][HEAD_DIM]` f32.
        pub q: u64,
        /// `[m][N_HEAD_KV][HEAD_DIM]` f32.
        pub k: u64,
        /// The same, or 0.
        pub v: u64,
        /// `[HEAD_DIM]` f32, both.
        pub q_weight: u64,
        pub k_weight: u64,
        /// `[n_ctx][HALF][cos, sin]` f32.
        pub cos_sin: u64,
        /// `[m]` u32.
        pub positions: u64,
        pub eps: f32, pub n_ctx: u32, pub m: u32, pub unused: u32,
    }
}

static EMBED: Source = source!("embed.cu", CONSTANTS, Embed, SlotState);
static ROPE: Source = source!("rope.cu", CONSTANTS, Rope);
static QK_NORM_ROPE: Source = source!("qk_norm_rope.cu", CONSTANTS, QkNormRope);
static KV_SCATTER: Source = source!("kv_scatter_fixed.cu", CONSTANTS, KvScatter, KvView);
static ELEMENTWISE: Source = source! {
    "elementwise.cu", CONSTANTS, Add, Glu, Scale, ScaleBy, ScaleRanks, SoftCap, Gelu, AddRow,
    Slice, Concat, SelectRows
};

constants! {
    /// embed.cu
    struct EmbedVariant in EMBED {
        n_in: int, types: Segments,
    }

    /// rope.cu
    struct RopeVariant in ROPE {
        n_head: int, head_dim: int, half: int, interleaved: int,
    }

    /// qk_norm_rope.cu
    struct QkNormRopeVariant in QK_NORM_ROPE {
        n_head: uint32_t, n_head_kv: uint32_t, head_dim: uint32_t, n_head_v: uint32_t,
        values_are_keys: bool, rotate: RotateConstants,
    }

    /// kv_scatter_fixed.cu
    struct KvScatterVariant in KV_SCATTER {
        n_head_kv: int, head_dim: int, stored: uint32_t, kv: KvCodes,
    }
}

/// The launch of one op, where it has work.
pub fn spec(l: &Lowering, op: &Op, pass: &Pass) -> Result<Option<Spec>> {
    let mut spec = kernel(l, op, pass)?;
    if let Some(spec) = &mut spec {
        spec.traffic = traffic(l, op, pass);
    }
    Ok(spec)
}

/// What an op moves, and computes where it is a recurrence: of each number of a state its decay, and
/// multiplications and additions for what the key finds, for the update and for what the query finds.
fn traffic(l: &Lowering, op: &Op, pass: &Pass) -> Traffic {
    let operations = match *op {
        Op::DeltaNet { state, .. } => 7 * pass.rows * l.plan.states[state.0].width,
        // Here the key finds nothing.
        Op::Mamba2(ref op) => 5 * pass.rows * l.plan.states[op.state.0].width,
        _ => 0,
    };
    Traffic {
        operations: operations as u64,
        ..Traffic::rows(moved(l, op, pass))
    }
}

/// The launches of [`Fused::ConvolvedRule`](crate::plan::fuse::Fused::ConvolvedRule): one where rows are
/// sequences of their own.
pub fn convolved_rule(l: &Lowering, conv: &Op, rule: &Op, pass: &Pass) -> Result<Vec<Spec>> {
    match recurrence::convolved(l, conv, rule, pass)? {
        Some(mut both) => {
            // What one leaves for the other is neither written nor read.
            let conv_op = conv.signature();
            let between = conv_op.outputs().map(|id| l.plan.buffer(id).width);
            let between = 2 * 4 * pass.rows * between.sum::<usize>();
            both.traffic = Traffic {
                rows: (moved(l, conv, pass) + moved(l, rule, pass) - between) as u64,
                ..traffic(l, rule, pass)
            };
            Ok(vec![both])
        }
        None => {
            let both = [spec(l, conv, pass)?, spec(l, rule, pass)?];
            Ok(both.into_iter().flatten().collect())
        }
    }
}

/// The launch of [`plan::fuse::QkNormRope`].
pub fn qk_norm_rope(l: &Lowering, op: &plan::fuse::QkNormRope, pass: &Pass) -> Result<Spec> {
    let plan::fuse::QkNormRope {
        queries,
        keys,
        values,
        head_dim,
        eps,
        rotation,
    } = *op;
    let heads_of = |id| l.plan.buffer(id).width / head_dim;
    let [q, k] = [queries, keys].map(|heads| heads_of(heads.x));
    let are_keys = values.is_some_and(|values| values.are_keys);
    // Warps of their own, where they are no keys.
    let own = values.filter(|values| !values.are_keys);
    let v = own.map_or(0, |values| heads_of(values.out));
    let variant = QkNormRopeVariant {
        n_head: q,
        n_head_kv: k,
        head_dim,
        n_head_v: v,
        values_are_keys: are_keys,
        rotate: RotateConstants::new(&l.plan, rotation),
    };
    let params = QkNormRope {
        q: l.address(queries.x),
        k: l.address(keys.x),
        v: values.map_or(0, |values| l.address(values.out)),
        q_weight: l.vector(Some(queries.weight))?,
        k_weight: l.vector(Some(keys.weight))?,
        cos_sin: l.at.cos_sin[rotation.table],
        positions: pass.inputs.positions,
        eps,
        n_ctx: l.n_ctx as u32,
        m: pass.rows as u32,
        unused: 0,
    };
    let warps = (pass.rows * (q + k + v)) as u32;
    let grid = [warps.div_ceil(THREADS / 32), 1, 1];
    let mut spec = Spec::new(variant, "qk_norm_rope", grid, THREADS, &params);
    let moved = 2 * (q + k + v) + if are_keys { k } else { 0 };
    spec.traffic = Traffic::rows(4 * (pass.rows * moved + 2) * head_dim);
    Ok(spec)
}

/// Bytes that an op reads and writes, what it takes of weights and of the table of angles included.
fn moved(l: &Lowering, op: &Op, pass: &Pass) -> usize {
    let (plan, op) = (&l.plan, op.signature());
    let rows = pass.count(op.rows(plan));
    let floats = |b: &Operand| {
        let times = usize::from(b.access.reads()) + usize::from(b.access.writes());
        times * rows * plan.buffer(b.id).width * 4
    };
    let weight = |used: &Used| {
        let w = plan.weight(used.id);
        match used.role {
            Role::Rows => rows * plan.buffer(op.buffers[0].id).width * 4,
            Role::Lookup => rows * w.ty.row_bytes(w.n_in).unwrap_or(0),
            Role::Hashed { .. } => {
                let written = op.outputs().map(|id| plan.buffer(id).width).sum();
                rows * w.ty.row_bytes(written).unwrap_or(0)
            }
            Role::Matrix => w.n_out * w.ty.row_bytes(w.n_in).unwrap_or(0),
            Role::Scale
            | Role::Bias
            | Role::Shift
            | Role::ProductScale
            | Role::Sink
            | Role::Selection
            | Role::Taps(_)
            | Role::PerHead
            | Role::OfHead
            | Role::Factor
            | Role::PerExpert => w.n_in * 4,
            // Of products alone.
            Role::Experts | Role::ExpertBias => 0,
        }
    };
    let angles = op.rotation.map_or(0, |rotation| {
        rows * plan.ropes[rotation.table].inv_freq.len() * 8
    });
    // What is read of the cache depends on how full it is.
    let stored = op
        .cache
        .filter(|cache| cache.access.writes())
        .map_or(0, |cache| {
            let kv = plan.kv[cache.layer];
            let head_bytes = l.kv_type.kv_head_bytes(kv.head_dim).unwrap_or(0);
            rows * kv.stored() * kv.n_head_kv * head_bytes
        });
    // Once each for every sequence, of which a pass has at most as many as rows.
    let sequences = match pass.one_row_per_sequence() {
        true => rows,
        false => 1,
    };
    let states = op
        .state
        .map_or(0, |s| 2 * sequences * plan.states[s.id.0].width * 4);
    let floats: usize = op.buffers.iter().map(floats).sum();
    let weights: usize = op.weights.iter().map(weight).sum();
    floats + weights + angles + stored + states
}

fn kernel(l: &Lowering, op: &Op, pass: &Pass) -> Result<Option<Spec>> {
    Ok(Some(match *op {
        Op::Embed { weight, out, scale } => embed(l, weight, out, scale, pass)?,
        Op::RmsNorm {
            x,
            weight,
            out,
            group,
            eps,
        } => norm::rms_norm(l, x, (weight, eps), group, out, pass)?,
        Op::LayerNorm {
            x,
            weight,
            bias,
            out,
            eps,
        } => norm::layer_norm(l, [x, out], (weight, bias), eps, pass)?,
        Op::AddRow { x, table, row } => {
            let (n, width) = (l.elements(x, pass), l.plan.buffer(x).width);
            let params = AddRow {
                x: l.address(x),
                table: l.vector(Some(table))?,
                positions: match row {
                    TableRow::First => 0,
                    TableRow::Position => pass.inputs.positions,
                    TableRow::Type => pass.inputs.types,
                },
                n,
                width: width as u32,
                n_rows: (l.plan.weight(table).n_in / width) as u32,
            };
            Spec::new(elementwise(), "add_row", grid(n), THREADS, &params)
        }
        Op::Rope {
            x,
            n_head,
            table,
            style,
        } => rope(l, x, n_head, Rotation { table, style }, pass),
        Op::KvScatter { k, v, layer } => kv_scatter(l, k, v, layer, pass)?,
        Op::Add { x, out } => {
            let n = l.elements(out, pass);
            let (x, out) = (l.address(x), l.address(out));
            Spec::new(elementwise(), "add", grid(n), THREADS, &Add { x, out, n })
        }
        Op::SwiGlu { gate, up, out } => glu(l, "swiglu", [gate, up, out], pass),
        Op::GeGlu { gate, up, out } => glu(l, "geglu", [gate, up, out], pass),
        Op::Gelu { x } => {
            let n = l.elements(x, pass);
            let params = Gelu { x: l.address(x), n };
            Spec::new(elementwise(), "gelu", grid(n), THREADS, &params)
        }
        Op::ReluSquared { x } => {
            let n = l.elements(x, pass);
            let params = Gelu { x: l.address(x), n };
            Spec::new(elementwise(), "relu_squared", grid(n), THREADS, &params)
        }
        Op::Scale { x, factor } => {
            let n = l.elements(x, pass);
            let params = Scale {
                x: l.address(x),
                n,
                factor,
                unused: 0,
            };
            Spec::new(elementwise(), "scale", grid(n), THREADS, &params)
        }
        Op::ScaleBy { x, weight } => {
            let n = l.elements(x, pass);
            let (x, factor) = (l.address(x), l.vector(Some(weight))?);
            let params = ScaleBy { x, n, factor };
            Spec::new(elementwise(), "scale_by", grid(n), THREADS, &params)
        }
        Op::ScaleRanks { routes, weight } => {
            let ranks = l.plan.buffer(routes).width / 2;
            let n = l.elements(routes, pass) / 2;
            let params = ScaleRanks {
                routes: l.address(routes),
                scales: l.vector(Some(weight))?,
                n,
                ranks: ranks as u32,
                n_expert: l.plan.weight(weight).n_in as u32,
            };
            Spec::new(elementwise(), "scale_ranks", grid(n), THREADS, &params)
        }
        Op::SoftCap { x, cap } => {
            let n = l.elements(x, pass);
            let params = SoftCap {
                x: l.address(x),
                n,
                cap,
                rate: (2.0 / f64::from(cap)) as f32,
            };
            Spec::new(elementwise(), "soft_cap", grid(n), THREADS, &params)
        }
        Op::ClampedSwiGlu { gate, up, out } => glu(l, "clamped_swiglu", [gate, up, out], pass),
        Op::SigmoidMul { x, gate, out } => glu(l, "sigmoid_mul", [gate, x, out], pass),
        Op::SoftplusMul { x, gate, out } => glu(l, "softplus_mul", [gate, x, out], pass),
        Op::Slice {
            x,
            out,
            n: parts,
            first,
            of,
        } => {
            let n = l.elements(out, pass);
            let params = Slice {
                x: l.address(x),
                out: l.address(out),
                n,
                width: (l.plan.buffer(out).width / parts) as u32,
                first: first as u32,
                of: of as u32,
                unused: 0,
            };
            Spec::new(elementwise(), "slice", grid(n), THREADS, &params)
        }
        Op::Concat { x, y, out } => {
            let n = l.elements(out, pass);
            let params = Concat {
                x: l.address(x),
                y: l.address(y),
                out: l.address(out),
                n,
                width: l.plan.buffer(x).width as u32,
                unused: 0,
            };
            Spec::new(elementwise(), "concat", grid(n), THREADS, &params)
        }
        Op::Join { x, y, out, of, .. } => heads::join(l, [x, y, out], of, pass),
        Op::RouteAll { out } => heads::route_all(l, out, pass),
        Op::Gather(op) => exchange::gather(l, op, pass)?,
        Op::Streams(ref op) => streams::spec(l, op, pass),
        Op::Choice(ref op) => choice::spec(l, op, pass)?,
        Op::Ngram(Ngram::Tokens { out }) => ngrams::tokens(l, out, pass),
        Op::Ngram(Ngram::Rows {
            recent,
            weight,
            out,
            ref table,
        }) => ngrams::rows(l, [recent, out], weight, table, pass)?,
        Op::ShortConv { .. }
        | Op::GatedConv { .. }
        | Op::DeltaNet { .. }
        | Op::Mamba2(_)
        | Op::Ngram(Ngram::Recent { .. }) => match pass.path {
            Path::Round => rounds::verify(l, op, pass)?,
            Path::Decode | Path::Guess | Path::Prefill { .. } => recurrence::spec(l, op, pass)?,
        },
        // Without a row to pick, and where every row is one, the next op reads `x` itself.
        Op::SelectRows { .. } if pass.out == 0 || pass.all => return Ok(None),
        Op::SelectRows { x, out } => {
            let params = SelectRows {
                x: l.address(x),
                out: l.address(out),
                rows: pass.inputs.out_rows,
                width: l.plan.buffer(x).width as u32,
                unused: 0,
            };
            let grid = [pass.out as u32, 1, 1];
            Spec::new(elementwise(), "select_rows", grid, THREADS, &params)
        }
        Op::Route { .. }
        | Op::MixExperts { .. }
        | Op::MatVec { .. }
        | Op::ExpertMatVec { .. }
        | Op::Attention { .. } => {
            return Err(Error::Internal(format!("{op:?} is no op of its own")))
        }
    }))
}

/// The gate, up and the activation.
fn glu(l: &Lowering, entry: &'static str, buffers: [BufferId; 3], pass: &Pass) -> Spec {
    let [gate, up, out] = buffers.map(|id| l.address(id));
    let n = l.elements(buffers[2], pass);
    let params = Glu {
        gate,
        up,
        out,
        n,
        share: n / l.elements(buffers[0], pass).max(1),
    };
    Spec::new(elementwise(), entry, grid(n), THREADS, &params)
}

/// The kernels that go element by element.
pub fn elementwise() -> Variant {
    Variant::new(&ELEMENTWISE, Constants::default())
}

/// A launch that does nothing: what is left of it is what a launch takes by itself.
pub fn nothing() -> Spec {
    let nowhere = Add { x: 0, out: 0, n: 0 };
    Spec::new(elementwise(), "add", grid(0), THREADS, &nowhere)
}

fn embed(l: &Lowering, weight: WeightId, out: BufferId, scale: f32, pass: &Pass) -> Result<Spec> {
    let w = l.plan.weight(weight);
    let inputs = &pass.inputs;
    let params = Embed {
        weights: l.weights(&[weight], Order::Natural)?,
        out: l.address(out),
        tokens: inputs.tokens,
        positions: inputs.positions,
        slots: inputs.slots,
        state: inputs.state,
        state_slots: inputs.state_slots,
        n_rows: w.n_out as u32,
        scale,
    };
    let variant = EmbedVariant {
        n_in: w.n_in,
        types: Segments(vec![w.ty]),
    };
    let grid = [pass.rows as u32, 1, 1];
    Ok(Spec::new(variant, "embed", grid, THREADS, &params))
}

fn rope(l: &Lowering, x: BufferId, n_head: usize, rotation: Rotation, pass: &Pass) -> Spec {
    let variant = RopeVariant {
        n_head,
        head_dim: l.plan.buffer(x).width / n_head,
        half: l.plan.ropes[rotation.table].inv_freq.len(),
        interleaved: usize::from(rotation.style == RopeStyle::Interleaved),
    };
    let params = Rope {
        x: l.address(x),
        cos_sin: l.at.cos_sin[rotation.table],
        positions: pass.inputs.positions,
        n_ctx: l.n_ctx as u32,
        unused: 0,
    };
    Spec::new(variant, "rope", [pass.rows as u32, 1, 1], THREADS, &params)
}

fn kv_scatter(l: &Lowering, k: BufferId, v: BufferId, layer: usize, pass: &Pass) -> Result<Spec> {
    let entry = "kv_scatter_fixed";
    let shape = l.plan.kv[layer];
    let variant = KvScatterVariant {
        n_head_kv: shape.n_head_kv,
        head_dim: shape.head_dim,
        stored: shape.stored(),
        kv: KvCodes(l.kv_type),
    };
    let params = KvScatter {
        k: l.address(k),
        v: l.address(v),
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        kv: l.kv(layer)?,
    };
    let grid = [pass.rows as u32, 1, 1];
    let mut spec = Spec::new(variant, entry, grid, THREADS, &params);
    spec.label = format!("{entry} {layer}");
    Ok(spec)
}
