//! Parts of rows side by side, and ids of all heads of a row.

use super::grid::{grid, THREADS};
use super::lowering::{Lowering, Pass};
use super::params::CONSTANTS;
use crate::backend::cuda::driver::constants::Constants;
use crate::backend::cuda::driver::source::{shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
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
