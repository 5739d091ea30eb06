//! Products of several matrices that files keep as one, taken apart by slices.

use super::build::{Builder, Heads};
use crate::error::Result;
use crate::plan::{BufferId, KvShape, Op};

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

    /// Heads of `x` under the norm `attn_norm`, where the rows of `attn_qkv` are those of queries, keys and
    /// values.
    pub fn heads_fused(
        &mut self,
        layer: usize,
        x: BufferId,
        n_head: usize,
        kv: KvShape,
    ) -> Result<Heads> {
        let n_embd = self.config.n_embd;
        let (n_q, n_kv) = (n_head * kv.head_dim, kv.n_head_kv * kv.head_dim);
        let all = self.buffer("qkv", n_q + 2 * n_kv);
        let (q, k, v) = (
            self.buffer("q", n_q),
            self.buffer("k", n_kv),
            self.buffer("v", n_kv),
        );
        let norm = Some(self.norm(&format!("blk.{layer}.attn_norm.weight"), n_embd)?);
        self.product(x, norm, layer, "attn_qkv", &[n_embd, n_q + 2 * n_kv], all)?;
        self.take_apart(all, &[(q, n_q), (k, n_kv), (v, n_kv)]);
        Ok(Heads {
            q,
            k,
            v,
            n_head,
            kv,
        })
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
