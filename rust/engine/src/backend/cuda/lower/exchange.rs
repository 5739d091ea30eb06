//! What several cards gather from each other: the launch, and what its kernels share.

use super::lowering::{Lowering, Pass};
use crate::backend::cuda::driver::source::{constants, shared, source, Source};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::{Error, Result};
use crate::plan::{Gather, Op, Plan, MOST_CARDS};

/// Most blocks of an exchange: few enough that all of them are in flight, whatever else is.
pub const MOST_BLOCKS: usize = 64;

const CONSTANTS: &[(&str, u32)] = &[
    ("MOST_CARDS", MOST_CARDS as u32),
    ("MOST_BLOCKS", MOST_BLOCKS as u32),
];

shared! {
    /// exchange.cu
    pub struct Exchange = "Params" {
        /// `[m][PIECES][PIECE]` f32.
        pub x: u64,
        /// `[m][PIECES][CARDS][PIECE]` f32.
        pub out: u64,
        pub landing: [u64; MOST_CARDS], pub flags: [u64; MOST_CARDS],
        /// One u64.
        pub count: u64,
        /// One u32.
        pub ticket: u64,
        /// One u64 in host memory.
        pub abort: u64,
        pub capacity: u64,
        pub n: u32, pub rank: u32,
    }
}

static EXCHANGE: Source = source!("exchange.cu", CONSTANTS, Exchange);

constants! {
    /// exchange.cu
    struct ExchangeVariant in EXCHANGE {
        cards: uint32_t, piece: uint32_t, pieces: uint32_t,
    }
}

const THREADS: u32 = 256;

/// Groups of four numbers that a thread has before there are more blocks.
const GROUPS: u32 = 2;

/// Numbers that a card gives in one exchange at most, in passes of up to `rows` rows, `out` of which give
/// logits.
pub fn capacity(plan: &Plan, rows: usize, out: usize) -> usize {
    let given = plan.ops.iter().filter_map(|op| match op {
        Op::Gather(op) => {
            let x = plan.buffer(op.x);
            Some(x.rows.of(rows, out) * x.width)
        }
        _ => None,
    });
    given.max().unwrap_or(0)
}

/// The launch of [`Op::Gather`].
///
/// # Errors
/// [`Error::Internal`] of a plan that is not shared.
pub fn gather(l: &Lowering, op: Gather, pass: &Pass) -> Result<Spec> {
    let Gather { x, out, pieces } = op;
    let share = l.plan.share;
    let share = share.ok_or_else(|| Error::Internal("one card's part of no share".into()))?;
    let piece = l.plan.buffer(x).width / pieces;
    let variant = ExchangeVariant {
        cards: share.cards,
        piece,
        pieces,
    };
    let group = if piece.is_multiple_of(4) { 4 } else { 1 };
    let n = (l.elements(x, pass) / group) as u32;
    let at = &l.at.exchange;
    let params = Exchange {
        x: l.address(x),
        out: l.address(out),
        landing: at.landing,
        flags: at.flags,
        count: at.count,
        ticket: at.count + 8,
        abort: at.abort,
        capacity: at.capacity as u64,
        n,
        rank: share.rank as u32,
    };
    let blocks = n.div_ceil(THREADS * GROUPS).clamp(1, MOST_BLOCKS as u32);
    let mut spec = Spec::new(variant, "exchange", [blocks, 1, 1], THREADS, &params);
    spec.label = format!("exchange {}", l.plan.buffer(out).name);
    spec.traffic = Traffic::rows(4 * (n * group as u32) as usize * 2 * share.cards);
    Ok(spec)
}
