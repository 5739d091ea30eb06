//! Hyper-connections: what stands between the streams of a row and a block.

use super::lowering::{Lowering, Pass};
use super::norm::{threads, RowConstants};
use super::params::CONSTANTS;
use crate::backend::cuda::driver::source::{constants, shared, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::plan::{BufferId, Streams};

shared! {
    pub struct Mean = "MeanParams" {
        /// `[m][STREAMS][GROUP]` f32.
        pub x: u64, pub gate: u64,
        /// `[m][GROUP]` f32.
        pub out: u64,
    }

    pub struct Inject = "InjectParams" {
        /// `[m][GROUP]` f32.
        pub x: u64,
        /// `[m][STREAMS]` f32.
        pub gate: u64,
        /// `[m][STREAMS][GROUP]` f32.
        pub streams: u64,
    }

    pub struct Gate = "GateParams" {
        /// `[m][STREAMS][GROUP]` f32.
        pub key: u64, pub query: u64,
        /// `[m][GROUP]` f32.
        pub value: u64,
        /// `[m][STREAMS][GROUP]` f32.
        pub out: u64,
        pub scale: f32, pub unused: u32,
    }
}

static STREAMS: Source = source!("streams.cu", CONSTANTS, Mean, Inject, Gate);

constants! {
    /// streams.cu
    struct StreamsVariant in STREAMS {
        row: RowConstants, streams: uint32_t,
    }
}

/// Threads of a block of which each has a value of a row.
const THREADS: u32 = 128;

/// The launch of [`Op::Streams`](crate::plan::Op::Streams).
pub fn spec(l: &Lowering, op: &Streams, pass: &Pass) -> Spec {
    let at = |id| l.address(id);
    let launch = |row: BufferId, streams: usize| {
        let group = l.plan.buffer(row).width;
        // Key, query and value.
        let threads = threads(group, 3);
        let row_constants = RowConstants { group, threads };
        let variant = StreamsVariant {
            row: row_constants,
            streams,
        };
        let rows = l.rows_of(row, pass) as u32;
        (variant, [(group as u32).div_ceil(THREADS), rows, 1])
    };
    match *op {
        Streams::Mean { x, gate, out, n } => {
            let (variant, grid) = launch(out, n);
            let params = Mean {
                x: at(x),
                gate: at(gate),
                out: at(out),
            };
            Spec::new(variant, "mean_streams", grid, THREADS, &params)
        }
        Streams::Inject {
            x,
            gate,
            streams,
            n,
        } => {
            let (variant, grid) = launch(x, n);
            let params = Inject {
                x: at(x),
                gate: at(gate),
                streams: at(streams),
            };
            Spec::new(variant, "inject_streams", grid, THREADS, &params)
        }
        Streams::Gate {
            key,
            query,
            value,
            out,
            n,
        } => {
            let (variant, [_, rows, _]) = launch(value, n);
            let (group, threads) = (variant.row.group, variant.row.threads as u32);
            let params = Gate {
                key: at(key),
                query: at(query),
                value: at(value),
                out: at(out),
                scale: (1.0 / (group as f64).sqrt()) as f32,
                unused: 0,
            };
            let grid = [rows * n as u32, 1, 1];
            Spec::new(variant, "gate_streams", grid, threads, &params)
        }
    }
}
