//! Products of several matrices that files keep as one, taken apart by slices.

use super::build::Builder;
use crate::error::Result;
use crate::plan::{BufferId, Op};

impl Builder<'_> {
    /// The parts of a row, one after another.
    pub fn take_apart(&mut self, x: BufferId, parts: &[(BufferId, usize)]) {
        let of = parts.iter().map(|(_, width)| width).sum();
        let mut first = 0;
        for (out, width) in parts {
            self.push(Op::Slice {
                x,
                out: *out,
                n: 1,
                first,
                of,
            });
            first += width;
        }
    }

    /// SwiGLU of `x` under the norm `ffn_norm`, where the rows of `ffn_up` are those of the gate, then
    /// those of up.
    pub fn swiglu_fused(&mut self, layer: usize, x: BufferId, n_ff: usize) -> Result<BufferId> {
        let n_embd = self.config.n_embd;
        let both = self.buffer("gate_up", 2 * n_ff);
        let (gate, up, out) = (
            self.buffer("gate", n_ff),
            self.buffer("up", n_ff),
            self.buffer("act", n_ff),
        );
        let delta = self.buffer("delta", n_embd);
        let norm = Some(self.norm(&format!("blk.{layer}.ffn_norm.weight"), n_embd)?);
        self.product(x, norm, layer, "ffn_up", &[n_embd, 2 * n_ff], both)?;
        self.take_apart(both, &[(gate, n_ff), (up, n_ff)]);
        self.push(Op::SwiGlu { gate, up, out });
        self.product(out, None, layer, "ffn_down", &[n_ff, n_embd], delta)?;
        Ok(delta)
    }
}
