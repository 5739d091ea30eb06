//! Parts of rows side by side, and ids of all heads of a row.

use super::attention::RotateConstants;
use super::grid::{grid, THREADS};
use super::lowering::{Lowering, Pass};
use super::params::CONSTANTS;
use super::shape::superblocks;
use crate::backend::cuda::driver::constants::Constants;
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::LatentRow;
use crate::plan::BufferId;

shared! {
    pub struct Join = "JoinParams" {
        /// `[parts][first]` f32.
        pub x: u64,
        /// `[parts][second]` f32.
        pub y: u64,
        /// `[parts][first + second]` f32.
        pub out: u64,
        pub n: u64, pub first: u32, pub second: u32,
    }

    pub struct RouteAll = "RouteAllParams" {
        /// `[m][2][ranks]` f32.
        pub out: u64,
        pub ranks: u32, pub unused: u32,
    }
}

shared! {
    /// latent_row.cu
    pub struct LatentParams = "Params" {
        /// `[m][GROUP]` f32.
        pub x: u64,
        /// `[m][2 * HALF]` f32.
        pub y: u64,
        /// `[m][N_HEAD][2 * HALF]` f32.
        pub q: u64,
        /// `[m][GROUP + 2 * HALF]` f32.
        pub out: u64,
        /// `[m][N_HEAD][PLAIN + 2 * HALF]` f32, or 0.
        pub all: u64,
        /// `[m][N_HEAD][PLAIN]` f32, or 0.
        pub plain: u64,
        /// `[GROUP]` f32.
        pub weight: u64,
        /// `[n_ctx][HALF][cos, sin]` f32.
        pub cos_sin: u64,
        /// `[m]` u32.
        pub positions: u64,
        pub eps: f32, pub n_ctx: u32,
    }
}

static LATENT_ROW: Source = source!("latent_row.cu", CONSTANTS, LatentParams);

constants! {
    /// latent_row.cu
    struct LatentVariant in LATENT_ROW {
        group: int, threads: uint32_t, n_head: uint32_t, plain: uint32_t, rotate: RotateConstants,
    }
}

/// Warps of the block of a row, and values of queries that a thread has.
const WARPS: [usize; 2] = [4, 8];
const VALUES: usize = 4;

static SOURCE: Source = source!("heads.cu", CONSTANTS, Join, RouteAll);

fn variant() -> Variant {
    Variant::new(&SOURCE, Constants::default())
}

/// The launch of [`Op::Join`](crate::plan::Op::Join).
pub fn join(l: &Lowering, buffers: [BufferId; 3], of: [usize; 2], pass: &Pass) -> Spec {
    let n = l.elements(buffers[2], pass);
    let [x, y, out] = buffers.map(|id| l.address(id));
    let [first, second] = of.map(|part| part as u32);
    let params = Join {
        x,
        y,
        out,
        n,
        first,
        second,
    };
    Spec::new(variant(), "join", grid(n), THREADS, &params)
}

/// The launch of [`LatentRow`].
pub fn latent_row(l: &Lowering, op: &LatentRow, pass: &Pass) -> Result<Spec> {
    let [group, rotated] = op.of;
    let threads = 32 * superblocks(group).clamp(WARPS[0], WARPS[1]);
    let plain = op
        .cut
        .map_or(0, |cut| l.plan.buffer(cut.plain).width / op.n_head);
    let variant = LatentVariant {
        group,
        threads,
        n_head: op.n_head,
        plain,
        rotate: RotateConstants::new(&l.plan, op.rotation),
    };
    let params = LatentParams {
        x: l.address(op.x),
        y: l.address(op.y),
        q: l.address(op.q),
        out: l.address(op.out),
        all: op.cut.map_or(0, |cut| l.address(cut.all)),
        plain: op.cut.map_or(0, |cut| l.address(cut.plain)),
        weight: l.vector(Some(op.norm.weight))?,
        cos_sin: l.at.cos_sin[op.rotation.table],
        positions: pass.inputs.positions,
        eps: op.norm.eps,
        n_ctx: l.n_ctx as u32,
    };
    let values = op.n_head * (rotated + plain);
    let blocks = 1 + values.div_ceil(threads * VALUES);
    let grid = [pass.rows as u32, blocks as u32, 1];
    let mut spec = Spec::new(variant, "latent_row", grid, threads as u32, &params);
    let moved = 2 * (group + rotated + values) + rotated;
    spec.traffic = Traffic::rows(4 * (pass.rows * moved + group));
    Ok(spec)
}

/// The launch of [`Op::RouteAll`](crate::plan::Op::RouteAll).
pub fn route_all(l: &Lowering, out: BufferId, pass: &Pass) -> Spec {
    let params = RouteAll {
        out: l.address(out),
        ranks: (l.plan.buffer(out).width / 2) as u32,
        unused: 0,
    };
    let grid = [l.rows_of(out, pass) as u32, 1, 1];
    Spec::new(variant(), "route_all", grid, THREADS, &params)
}
