//! Attention that sees chosen blocks of tokens.

use super::Builder;
use crate::config::ChoiceConfig;
use crate::error::Result;
use crate::plan::{BufferId, Choice, Chosen, KvShape, Op, RopeStyle};

impl Builder<'_> {
    /// The blocks that rows of a layer see: by queries `indexer.q_proj · x`, normalized and rotated by this table,
    /// and keys `indexer.k_proj · x`, which have a cache of their own behind those of the layers.
    pub fn choose_blocks(
        &mut self,
        layer: usize,
        x: BufferId,
        of: &ChoiceConfig,
        table: usize,
    ) -> Result<Chosen> {
        let (n_embd, dim, n_head, ratio) = (self.config.n_embd, of.head_dim, of.n_head, of.ratio);
        let n = self.config.n_ctx_train.div_ceil(ratio);
        let words = Choice::words(n, ratio);
        let (q, k) = (
            self.buffer("index_q", n_head * dim),
            self.buffer("index_k", dim),
        );
        let (scores, blocks) = (self.buffer("block_scores", n), self.buffer("blocks", words));
        self.product(x, None, layer, "indexer.q_proj", &[n_embd, n_head * dim], q)?;
        self.product(x, None, layer, "indexer.k_proj", &[n_embd, dim], k)?;
        let name = |part: &str| format!("blk.{layer}.indexer.{part}.weight");
        self.norm_parts(q, &name("q_norm"), dim)?;
        self.push(Op::Rope {
            x: q,
            n_head,
            table,
            style: RopeStyle::Halves,
        });
        let cache = self.plan.kv.len();
        self.plan.kv.push(KvShape {
            values_in_keys: Some(dim),
            ..KvShape::new(1, dim)
        });
        self.push(Op::KvScatter {
            k,
            v: k,
            layer: cache,
        });
        let weight = self.weight(&name("k_norm"), &[dim])?;
        self.push(Op::Choice(Choice::Scores {
            q,
            weight,
            layer: cache,
            out: scores,
            n_head,
            table,
            ratio,
            n,
            eps: self.config.rms_eps,
        }));
        self.push(Op::Choice(Choice::Blocks {
            scores,
            out: blocks,
            ratio,
            top_k: of.top_k,
            n,
        }));
        Ok(Chosen {
            blocks,
            words,
            ratio,
        })
    }
}
