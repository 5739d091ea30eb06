//! The scan of Mamba-2's layers.

use serde::{Deserialize, Serialize};

use super::signature::{Access, Operand, Over, Parts, Role, Signature, StateUse, Used, Width};
use super::{BufferId, StateId, WeightId};

/// Mamba-2's scan and the gate behind it (<https://arxiv.org/abs/2405.21060>), for each of `n_head` heads
/// `h` of `head_dim` values; the `n_head / n_group` heads of a group are neighbours and share its `B` and
/// `C`, `d_state` numbers each. `convolved[r]` has the heads of `x`, then the groups of `B`, then those of
/// `C`; `projected[r]` has the heads of `z`, then as many numbers as `convolved`, which the convolution
/// reads, then `t`, a number a head. Its state is a matrix `S[i][c]` a head,
/// `[n_head][d_state][head_dim]`; see [`Op::ShortConv`](super::Op::ShortConv) for whose.
///
/// 1. *Step*: `s` is softplus of `t + dt[h]`, and `g = exp(a[h] * s)`, both as
///    [`Op::DeltaNet`](super::Op::DeltaNet) states them of its `z`.
/// 2. *Recurrence*, for each value `c`: `u = s * x[c]`; `S[i][c] = fma(B[i], u, g * S[i][c])`.
/// 3. *Output*: `y = sum_i S[i][c] C[i]`, in 16 chains, chain `j` from +0 by `fma(S, C, y)` over
///    `i = j, j + 16, ...`; of each four in turn `w = (y_0 + y_1) + (y_2 + y_3)`, and of these four
///    `(w_0 + w_1) + (w_2 + w_3)`. Then `out[r][h][c]` is `y' = fma(d[h], x[c], y)` through the gate:
///    `(z (t / (1 + e))) y'`, `e` and `t` as in [`Op::SwiGlu`](super::Op::SwiGlu).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    pub projected: BufferId,
    pub convolved: BufferId,
    pub a: WeightId,
    pub dt: WeightId,
    pub d: WeightId,
    pub state: StateId,
    pub out: BufferId,
    pub n_head: usize,
    pub n_group: usize,
    pub head_dim: usize,
    pub d_state: usize,
}

impl Mamba2 {
    /// Values of all heads.
    pub fn inner(&self) -> usize {
        self.n_head.saturating_mul(self.head_dim)
    }

    /// Numbers of `x`, `B` and `C`.
    pub fn channels(&self) -> usize {
        let shared = self.n_group.saturating_mul(self.d_state);
        self.inner().saturating_add(shared.saturating_mul(2))
    }

    /// As [`Op::signature`](super::Op::signature).
    pub fn signature(&self) -> Signature {
        // Of groups of unequal sizes, or of no state, no buffer is as wide.
        let is_even = self.n_group > 0 && self.n_head.is_multiple_of(self.n_group);
        let channels = match is_even && self.d_state > 0 {
            true => self.channels(),
            false => usize::MAX,
        };
        let projected = self.inner().saturating_add(channels);
        let read = |id, width| Operand::new(id, Access::Read).wide(Width::Of(width));
        let per_head = |id| Used {
            id,
            role: Role::PerHead,
        };
        Signature {
            weights: [self.a, self.dt, self.d].map(per_head).into(),
            parts: Parts::Heads(self.n_head),
            state: Some(StateUse {
                id: self.state,
                per_value: self.d_state,
                head_dim: Some(self.head_dim),
            }),
            ..Signature::new(
                "mamba2",
                Over::Batch,
                vec![
                    read(self.projected, projected.saturating_add(self.n_head)),
                    read(self.convolved, channels),
                    Operand::new(self.out, Access::Write),
                ],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{self as s, id, weight_id};
    use super::super::Op;
    use super::Mamba2;

    #[test]
    fn a_scan_fits_buffers_weights_and_a_state_of_its_shape() {
        let plan = s::plan(Vec::new());
        let fits = |change: fn(&mut Mamba2)| {
            let mut op = s::mamba2(id("x"), id("rule"));
            if let Op::Mamba2(op) = &mut op {
                change(op);
            }
            op.signature().fits(&plan)
        };
        assert!(fits(|_| {}));
        let wrong: [fn(&mut Mamba2); 9] = [
            // Another shape than that of the buffers or of the state.
            |op| op.n_head = 1,
            |op| op.head_dim = 8,
            |op| (op.n_head, op.head_dim) = (1, 32),
            |op| op.d_state = 8,
            |op| op.n_group = 2,
            // None at all.
            |op| op.n_group = 0,
            |op| (op.d_state, op.n_group) = (0, 1),
            // What it reads is of other widths, or a weight not of a number a head.
            |op| op.projected = id("x"),
            |op| op.d = weight_id("norm"),
        ];
        for (i, change) in wrong.into_iter().enumerate() {
            assert!(!fits(change), "{i}");
        }
    }
}
