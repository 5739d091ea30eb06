//! Hyper-connections: what stands between the parallel streams of a row and its layers' blocks.

use serde::{Deserialize, Serialize};

use super::signature::{Access, Operand, Over, Signature, Width};
use super::BufferId;

/// A row has `n` streams one after another, each as wide as a row of other models. `sigma(g)` is the
/// logistic function as [`Op::SigmoidMul`](super::Op::SigmoidMul) states it, of which 0 or 1 would hide what
/// is infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Streams {
    /// What a block reads: `out[r][c]` is the mean of `x[r][s][c] sigma(gate[r][s][c])` over the streams,
    /// each product rounded, added in order from the first, then times `float(1 / n)`.
    Mean {
        x: BufferId,
        gate: BufferId,
        out: BufferId,
        n: usize,
    },
    /// What a block gives: `streams[r][s][c] += x[r][c] (2 sigma(gate[r][s] float(1 / n)))`, in place, each
    /// step rounded.
    Inject {
        x: BufferId,
        gate: BufferId,
        streams: BufferId,
        n: usize,
    },
    /// A row let through to each stream by how a key of the stream's goes with its query:
    /// `d = sum_c key[r][s][c] query[r][s][c]` in the order of the sum of squares of
    /// [`Op::RmsNorm`](super::Op::RmsNorm); `t = d float(1 / sqrt(width of value))`;
    /// `m = sqrt(max(|t|, 1e-6))`, with the sign of `t`, or 0 where that is zero; then
    /// `out[r][s][c] = value[r][c] sigma(m)`. NaN where `t` is infinite or not a number.
    Gate {
        key: BufferId,
        query: BufferId,
        value: BufferId,
        out: BufferId,
        n: usize,
    },
}

impl Streams {
    /// As [`Op::signature`](super::Op::signature).
    pub fn signature(&self) -> Signature {
        let read = |id| Operand::new(id, Access::Read);
        // Of no streams no buffer is as wide.
        let wide = |operand: Operand, n: usize| {
            operand.wide(match n {
                0 => Width::Of(usize::MAX),
                n => Width::Times(n),
            })
        };
        let (name, buffers) = match *self {
            Streams::Mean { x, gate, out, n } => (
                "mean_streams",
                vec![
                    wide(read(x), n),
                    wide(read(gate), n),
                    Operand::new(out, Access::Write),
                ],
            ),
            Streams::Inject {
                x,
                gate,
                streams,
                n,
            } => (
                "inject_streams",
                vec![
                    wide(Operand::new(streams, Access::Update), n),
                    read(x),
                    read(gate).wide(Width::Of(n)),
                ],
            ),
            Streams::Gate {
                key,
                query,
                value,
                out,
                n,
            } => (
                "gate_streams",
                vec![
                    wide(read(key), n),
                    wide(read(query), n),
                    read(value),
                    wide(Operand::new(out, Access::Write), n),
                ],
            ),
        };
        Signature::new(name, Over::Buffers, buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{self as s, id};
    use super::Streams;

    #[test]
    fn streams_are_as_many_rows_side_by_side() {
        let plan = s::plan(Vec::new());
        let fits = |op: Streams| op.signature().fits(&plan);
        let (narrow, wide, one) = (id("x"), id("both"), id("share"));
        let n = plan.buffer(wide).width / plan.buffer(narrow).width;
        assert!(n > 1);
        let mean = |x, gate, out, n| fits(Streams::Mean { x, gate, out, n });
        assert!(mean(wide, wide, narrow, n));
        for (x, gate, out, n) in [
            (wide, wide, narrow, n + 1),
            (wide, wide, narrow, 0),
            (wide, narrow, narrow, n),
            (narrow, wide, narrow, n),
            (narrow, narrow, narrow, 1),
        ] {
            assert!(!mean(x, gate, out, n));
        }
        let inject = |x, gate, streams, n| {
            fits(Streams::Inject {
                x,
                gate,
                streams,
                n,
            })
        };
        assert!(inject(narrow, one, id("a"), 1));
        assert!(!inject(narrow, one, narrow, 1));
        assert!(!inject(narrow, one, wide, n));
        assert!(!inject(narrow, narrow, wide, n));
        let gate = |key, query, value, out, n| {
            fits(Streams::Gate {
                key,
                query,
                value,
                out,
                n,
            })
        };
        assert!(gate(narrow, id("a"), narrow, id("b"), 1));
        assert!(!gate(narrow, id("a"), narrow, narrow, 1));
        assert!(!gate(wide, narrow, narrow, id("b"), 1));
    }
}
