//! Mamba-2's scan, over steps and prompts, and over the rows of a round.

use super::lowering::{Lowering, Pass};
use super::params::{Commit, CONSTANTS};
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::ROUND_ROWS;
use crate::error::{Error, Result};
use crate::plan::Mamba2;

shared! {
    /// mamba2.cu
    pub struct Scan = "Params" {
        /// `[m][INNER + CHANNELS + N_HEAD]` f32.
        pub projected: u64,
        /// `[m][CHANNELS]` f32.
        pub convolved: u64,
        /// `[N_HEAD]` f32.
        pub a: u64, pub dt: u64, pub d: u64,
        /// `[n_slots][N_HEAD][D_STATE][HEAD_DIM]` f32.
        pub state: u64,
        /// `[m][N_HEAD][HEAD_DIM]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub n_slots: u32, pub first: u32,
    }

    /// mamba2_round.cu
    pub struct Verify = "Verify" {
        /// As in [`Scan`].
        pub projected: u64, pub convolved: u64, pub a: u64, pub dt: u64, pub d: u64, pub state: u64,
        /// `[ROUND_ROWS][N_HEAD][D_STATE + HEAD_DIM]` f32, then `[ROUND_ROWS][N_HEAD]`.
        pub kept: u64,
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub m: u32, pub n_slots: u32,
    }
}

static MAMBA2: Source = source!("mamba2.cu", CONSTANTS, Scan);
static MAMBA2_ROUND: Source = source!("mamba2_round.cu", CONSTANTS, Verify, Commit);

constants! {
    /// mamba2.cuh
    struct ScanConstants {
        n_head: uint32_t, n_group: uint32_t, head_dim: uint32_t, d_state: uint32_t, columns: uint32_t,
    }

    /// mamba2.cu
    struct ScanVariant in MAMBA2 {
        shape: ScanConstants,
    }

    /// mamba2_round.cu
    struct RoundVariant in MAMBA2_ROUND {
        shape: ScanConstants, most_rows: uint32_t,
    }
}

/// Columns of a state that a block takes, eight a warp: the most of these that heads have whole.
const COLUMNS: [usize; 3] = [32, 16, 8];

/// Rows of a state that lanes share evenly, and the most that a lane's registers hold.
const STATE_MULTIPLE: usize = 16;
const MOST_STATE: usize = 256;

fn constants(op: &Mamba2) -> ScanConstants {
    let whole = COLUMNS
        .iter()
        .find(|columns| op.head_dim.is_multiple_of(**columns));
    ScanConstants {
        n_head: op.n_head,
        n_group: op.n_group,
        head_dim: op.head_dim,
        d_state: op.d_state,
        columns: whole.copied().unwrap_or(COLUMNS[2]),
    }
}

/// The kernels over rounds, of which the one behind the draw is for all layers alike.
pub fn round_variant(op: &Mamba2) -> Variant {
    let shape = constants(op);
    let most_rows = ROUND_ROWS;
    RoundVariant { shape, most_rows }.into()
}

/// Blocks side by side, and the threads of each.
///
/// # Errors
/// [`Error::Argument`] for a shape that there is no kernel for.
fn across(op: &Mamba2, columns: usize) -> Result<(u32, u32)> {
    let fits = op.head_dim.is_multiple_of(columns)
        && op.d_state.is_multiple_of(STATE_MULTIPLE)
        && op.d_state <= MOST_STATE;
    if !fits {
        return Err(Error::Argument {
            name: "plan",
            value: format!(
                "a scan of heads of {} values and {} numbers of state each",
                op.head_dim, op.d_state
            ),
            reason: format!(
                "the CUDA backend supports multiples of {} and of {STATE_MULTIPLE} up to \
                 {MOST_STATE}; use device=\"cpu\"",
                COLUMNS[2]
            ),
        });
    }
    let blocks = op.n_head * (op.head_dim / columns);
    Ok((blocks as u32, (columns / 8 * 32) as u32))
}

/// The launch of a scan: of so many rows the first block, and so many blocks that share the rows.
///
/// # Errors
/// [`Error::Argument`] for a shape that there is no kernel for.
pub fn spec(l: &Lowering, op: &Mamba2, pass: &Pass, (first, rows): (u32, u32)) -> Result<Spec> {
    let shape = constants(op);
    let (across, threads) = across(op, shape.columns)?;
    let params = Scan {
        projected: l.address(op.projected),
        convolved: l.address(op.convolved),
        a: l.vector(Some(op.a))?,
        dt: l.vector(Some(op.dt))?,
        d: l.vector(Some(op.d))?,
        state: l.at.states[op.state.0],
        out: l.address(op.out),
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        n_slots: l.n_slots as u32,
        first,
    };
    let variant = ScanVariant { shape };
    let grid = [across, rows, 1];
    let mut spec = Spec::new(variant, "mamba2", grid, threads, &params);
    spec.label = format!("mamba2 {}", l.plan.states[op.state.0].name);
    Ok(spec)
}

/// The launch over the rows of a round.
///
/// # Errors
/// As [`spec`].
pub fn verify(l: &Lowering, op: &Mamba2, pass: &Pass) -> Result<Spec> {
    let (across, threads) = across(op, constants(op).columns)?;
    let params = Verify {
        projected: l.address(op.projected),
        convolved: l.address(op.convolved),
        a: l.vector(Some(op.a))?,
        dt: l.vector(Some(op.dt))?,
        d: l.vector(Some(op.d))?,
        state: l.at.states[op.state.0],
        kept: l.at.rounds.kept[op.state.0],
        out: l.address(op.out),
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        m: pass.rows as u32,
        n_slots: l.n_slots as u32,
    };
    let grid = [across, pass.rows as u32, 1];
    let mut spec = Spec::new(round_variant(op), "mamba2_verify", grid, threads, &params);
    spec.label = format!("mamba2_verify {}", l.plan.states[op.state.0].name);
    Ok(spec)
}
