//! Ops that take a state from token to token. Rows of a step are sequences of their own, a block each;
//! those of prompts follow each other, and of the delta rule a block takes all of them. Rows of a round
//! are of rounds.rs.

use super::lowering::{Lowering, Pass, Path};
use super::mamba2;
use super::params::CONSTANTS;
use super::shape::MOST_TICKETS;
use crate::backend::cuda::driver::source::{constants, shared, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Ngram, Op, Plan, RowPart, StateId, WeightId};

shared! {
    /// short_conv.cu
    pub struct ShortConv = "Params" {
        /// `[m][ROW]` f32.
        pub x: u64,
        /// `[CHANNELS][TAPS]` f32, or 0.
        pub weight: u64,
        /// `[CHANNELS]` f32, or 0.
        pub bias: u64,
        /// `[n_slots][KEPT][CHANNELS]` f32.
        pub state: u64,
        /// `[m][CHANNELS]` f32, or `[m][TAPS][CHANNELS]`.
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub n_slots: u32, pub m: u32,
    }

    /// The convolution before the rule: delta_net.cu. Zeros where it makes none.
    pub struct Convolution = "Convolution" {
        /// `[CHANNELS][TAPS]` f32.
        pub weight: u64,
        /// `[n_slots][TAPS - 1][CHANNELS]` f32.
        pub state: u64,
        /// `[m][N_HEAD_K]` u32, zero between launches.
        pub tickets: u64,
    }

    /// delta_net.cu
    pub struct DeltaNet = "Params" {
        /// `[m][2 * N_HEAD_K + N_HEAD][HEAD_DIM]` f32.
        pub qkv: u64,
        /// `[m][N_HEAD]` f32.
        pub alpha: u64, pub beta: u64,
        /// `[N_HEAD]` f32.
        pub a: u64, pub dt: u64,
        /// `[n_slots][N_HEAD][HEAD_DIM][HEAD_DIM]` f32.
        pub state: u64,
        /// `[m][N_HEAD][HEAD_DIM]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub eps: f32, pub n_slots: u32, pub conv: Convolution,
    }

    /// delta_prompt.cu
    pub struct DeltaPrompt = "Params" {
        /// As of [`DeltaNet`].
        pub qkv: u64, pub alpha: u64, pub beta: u64, pub a: u64, pub dt: u64,
        pub state: u64, pub out: u64, pub positions: u64, pub slots: u64,
        pub eps: f32, pub n_slots: u32, pub first: u32, pub unused: u32,
    }
}

static SHORT_CONV: Source = source!("short_conv.cu", CONSTANTS, ShortConv);
static DELTA_NET: Source = source!("delta_net.cu", CONSTANTS, Convolution, DeltaNet);
static DELTA_PROMPT: Source = source!("delta_prompt.cu", CONSTANTS, DeltaPrompt);

constants! {
    /// short_conv.cu
    struct ShortConvVariant in SHORT_CONV {
        shape: ConvConstants, rows: uint32_t,
    }

    /// short_conv.cu, conv_round.cu
    pub struct ConvConstants {
        pub channels: uint32_t, taps: uint32_t, dilation: uint32_t, silu: int, gates: int, recent: bool,
        has_bias: bool, row: uint32_t, first: uint32_t,
    }

    /// delta_net.cu
    struct DeltaNetVariant in DELTA_NET {
        n_head: uint32_t, n_head_k: uint32_t, grouped: bool, head_dim: uint32_t, columns: uint32_t,
        taps: uint32_t, convolves: bool, root: float,
    }

    /// delta_prompt.cu
    struct DeltaPromptVariant in DELTA_PROMPT {
        n_head: uint32_t, n_head_k: uint32_t, grouped: bool, head_dim: uint32_t, columns: uint32_t,
        root: float,
    }
}

/// Threads of a block of short_conv.cu, and rows of prompts that it takes.
const THREADS: u32 = 256;
const TILE_ROWS: usize = 16;

/// Columns of a state that a block takes of a step, eight a warp, and of prompts, 16 a warp, where a head
/// has as many.
const COLUMNS: usize = 32;
const PROMPT_COLUMNS: usize = 64;

/// Threads of a block of delta_prompt.cu that prepare rows.
const PRODUCERS: usize = 128;

/// Widths of heads that the kernels take: a multiple of this, up to so many.
const HEAD_MULTIPLE: usize = 16;
const MOST_HEAD_DIM: usize = 256;

/// How many rows the first block takes, those of prompts, each behind it one; and how many blocks share the rows.
fn blocks(pass: &Pass) -> (u32, u32) {
    let first = pass.prompt_rows().max(1);
    (first as u32, (1 + pass.rows - first) as u32)
}

/// The launch of one such op.
///
/// # Errors
/// [`Error::Argument`] for heads of a width that there is no kernel for.
pub fn spec(l: &Lowering, op: &Op, pass: &Pass) -> Result<Spec> {
    if let Op::DeltaNet { .. } = op {
        return delta_net(l, None, op, pass);
    }
    if let Op::Mamba2(op) = op {
        return mamba2::spec(l, op, pass, blocks(pass));
    }
    let conv = convolution(l, op)?;
    let rows = match pass.one_row_per_sequence() {
        true => 1,
        // A thread computes the first rows of a sequence, which need its state.
        false => TILE_ROWS.max(conv.shape.taps * conv.shape.dilation),
    };
    let params = ShortConv {
        x: l.address(conv.x),
        weight: conv.at.weight,
        bias: l.vector(conv.bias)?,
        state: conv.at.state,
        out: l.address(conv.out),
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        n_slots: l.n_slots as u32,
        m: pass.rows as u32,
    };
    let grid = [
        (conv.shape.channels as u32).div_ceil(THREADS),
        pass.rows.div_ceil(rows) as u32,
        1,
    ];
    let shape = conv.shape;
    let variant = ShortConvVariant { shape, rows };
    let mut spec = Spec::new(variant, "short_conv", grid, THREADS, &params);
    spec.label = format!("short_conv {}", l.plan.states[conv.state.0].name);
    Ok(spec)
}

/// The one launch of a rule and of the convolution before it, where there is one: of rows that are sequences
/// of their own, so few that there is a counter for each head of keys of each, which as many heads share.
///
/// # Errors
/// As of the rule alone.
pub fn convolved(l: &Lowering, conv: &Op, rule: &Op, pass: &Pass) -> Result<Option<Spec>> {
    let Op::DeltaNet {
        n_head, n_head_k, ..
    } = rule
    else {
        return Ok(None);
    };
    let counters = pass.rows * n_head_k;
    // As many blocks count for each.
    let are_even = n_head.is_multiple_of(*n_head_k);
    let is_step = pass.one_row_per_sequence() && pass.path != Path::Round;
    (is_step && are_even && counters <= MOST_TICKETS)
        .then(|| delta_net(l, Some(conv), rule, pass))
        .transpose()
}

/// A convolution: what it reads and writes, its shape, and where its kernel finds the rest.
pub struct Conv {
    pub x: BufferId,
    pub out: BufferId,
    pub bias: Option<WeightId>,
    state: StateId,
    pub shape: ConvConstants,
    pub at: Convolution,
}

/// The error of an op that keeps none.
pub fn no_state(op: &Op) -> Error {
    Error::Internal(format!("{op:?} has no state"))
}

/// # Errors
/// [`Error::Internal`] of another op.
pub fn convolution(l: &Lowering, op: &Op) -> Result<Conv> {
    let (x, weight, bias, out) = match *op {
        Op::ShortConv {
            x,
            weight,
            bias,
            out,
            ..
        } => (x, Some(weight), bias, out),
        Op::GatedConv { x, weight, out, .. } => (x, Some(weight), None, out),
        Op::Ngram(Ngram::Recent { x, out, .. }) => (x, None, None, out),
        _ => return Err(no_state(op)),
    };
    let (shape, state) = conv_constants(&l.plan, op).ok_or_else(|| no_state(op))?;
    let at = Convolution {
        weight: l.vector(weight)?,
        state: l.at.states[state.0],
        tickets: l.at.scratch.tickets,
    };
    Ok(Conv {
        x,
        out,
        bias,
        state,
        shape,
        at,
    })
}

/// The shape of a convolution, and its state. The last rows of a sequence are one without a sum.
pub fn conv_constants(plan: &Plan, op: &Op) -> Option<(ConvConstants, StateId)> {
    let of = |channels, taps| ConvConstants {
        channels,
        taps,
        dilation: 1,
        silu: 0,
        gates: 0,
        recent: false,
        has_bias: false,
        row: channels,
        first: 0,
    };
    let width = |id: BufferId| plan.buffer(id).width;
    match *op {
        Op::ShortConv {
            out,
            state,
            taps,
            silu,
            bias,
            part,
            dilation,
            ..
        } => {
            let channels = width(out);
            let whole = RowPart {
                first: 0,
                of: channels,
            };
            let RowPart { first, of: row } = part.unwrap_or(whole);
            let shape = ConvConstants {
                dilation,
                silu: usize::from(silu),
                has_bias: bias.is_some(),
                row,
                first,
                ..of(channels, taps)
            };
            Some((shape, state))
        }
        Op::GatedConv {
            out, state, taps, ..
        } => {
            let shape = of(width(out), taps);
            let gates = ConvConstants {
                gates: 1,
                row: 3 * shape.channels,
                ..shape
            };
            Some((gates, state))
        }
        Op::Ngram(Ngram::Recent { x, state, n, .. }) => {
            let recent = ConvConstants {
                recent: true,
                ..of(width(x), n)
            };
            Some((recent, state))
        }
        _ => None,
    }
}

/// How many columns of a state a block takes of a step or round.
pub fn columns(head_dim: usize) -> usize {
    match head_dim.is_multiple_of(COLUMNS) {
        true => COLUMNS,
        false => HEAD_MULTIPLE,
    }
}

/// How many it takes of prompts.
fn prompt_columns(head_dim: usize) -> usize {
    match head_dim.is_multiple_of(PROMPT_COLUMNS) {
        true => PROMPT_COLUMNS,
        false => columns(head_dim),
    }
}

/// What a rule reads and writes, without a convolution.
///
/// # Errors
/// [`Error::Argument`] for heads of a width that there is no kernel for.
pub fn delta_params(l: &Lowering, op: &Op, pass: &Pass) -> Result<DeltaNet> {
    let Op::DeltaNet {
        qkv,
        alpha,
        beta,
        a,
        dt,
        state,
        out,
        head_dim,
        eps,
        ..
    } = *op
    else {
        return Err(no_state(op));
    };
    if !head_dim.is_multiple_of(HEAD_MULTIPLE) || head_dim > MOST_HEAD_DIM {
        return Err(Error::Argument {
            name: "plan",
            value: format!("a delta rule of heads of {head_dim} numbers"),
            reason: format!(
                "the CUDA backend supports multiples of {HEAD_MULTIPLE} up to \
                 {MOST_HEAD_DIM}; use device=\"cpu\""
            ),
        });
    }
    Ok(DeltaNet {
        qkv: l.address(qkv),
        alpha: l.address(alpha),
        beta: l.address(beta),
        a: l.vector(Some(a))?,
        dt: l.vector(Some(dt))?,
        state: l.at.states[state.0],
        out: l.address(out),
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        eps,
        n_slots: l.n_slots as u32,
        conv: bytemuck::Zeroable::zeroed(),
    })
}

/// A rule, and the convolution with `silu` that its launch makes first.
fn delta_net(l: &Lowering, conv: Option<&Op>, op: &Op, pass: &Pass) -> Result<Spec> {
    let Op::DeltaNet {
        n_head,
        n_head_k,
        grouped,
        head_dim,
        state,
        ..
    } = *op
    else {
        return Err(no_state(op));
    };
    let conv = conv.map(|conv| convolution(l, conv)).transpose()?;
    let mut params = delta_params(l, op, pass)?;
    if let Some(conv) = &conv {
        (params.qkv, params.conv) = (l.address(conv.x), conv.at);
    }
    let root = (1.0 / (head_dim as f64).sqrt()) as f32;
    let mut spec = if pass.one_row_per_sequence() {
        let columns = columns(head_dim);
        let variant = DeltaNetVariant {
            n_head,
            n_head_k,
            grouped,
            head_dim,
            columns,
            taps: conv.as_ref().map_or(1, |conv| conv.shape.taps),
            convolves: conv.is_some(),
            root,
        };
        let grid = [(n_head * (head_dim / columns)) as u32, pass.rows as u32, 1];
        Spec::new(
            variant,
            "delta_net",
            grid,
            (columns / 8 * 32) as u32,
            &params,
        )
    } else {
        let columns = prompt_columns(head_dim);
        let variant = DeltaPromptVariant {
            n_head,
            n_head_k,
            grouped,
            head_dim,
            columns,
            root,
        };
        let (first, blocks) = blocks(pass);
        let params = DeltaPrompt {
            qkv: params.qkv,
            alpha: params.alpha,
            beta: params.beta,
            a: params.a,
            dt: params.dt,
            state: params.state,
            out: params.out,
            positions: params.positions,
            slots: params.slots,
            eps: params.eps,
            n_slots: params.n_slots,
            first,
            unused: 0,
        };
        let grid = [(n_head * (head_dim / columns)) as u32, blocks, 1];
        Spec::new(
            variant,
            "delta_prompt",
            grid,
            (columns / 16 * 32 + PRODUCERS) as u32,
            &params,
        )
    };
    let before = if conv.is_some() { "conv " } else { "" };
    spec.label = format!("{before}delta_net {}", l.plan.states[state.0].name);
    Ok(spec)
}
