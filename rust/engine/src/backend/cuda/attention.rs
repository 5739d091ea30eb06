//! Attention: one kernel for steps, another for prompts where the cache and the card take it, a
//! third for both over a cache in blocks.

use super::compile::Variant;
use super::kernels as params;
use super::launch::Spec;
use super::model::{constants, labelled, CudaModel, Inputs, Path};
use crate::backend::PAGE_TOKENS;
use crate::plan::{BufferId, Op};

/// Splits of one row's attention; see attention.cu.
pub const MAX_SPLITS: usize = 32;

/// Threads of a block of attention.cu, in two teams that take a split each.
const THREADS: u32 = 256;
const TEAMS: usize = 2;

/// Splits of a row that one block of attention.cu takes by itself.
const BLOCK_SPLITS: usize = 4;

/// Rows of one launch of attention.cu over a prompt: its partial sums take memory.
pub const ATTENTION_ROWS: usize = 128;

/// Positions that the shortest passes over a prompt are launched for; longer ones double it.
const LEAST_SPAN: usize = 512;

/// Query rows of a block of prompt_attention.cu.
const PROMPT_QUERIES: usize = 64;

/// An attention op of a plan.
pub(super) struct Attention {
    pub q: BufferId,
    pub out: BufferId,
    pub layer: usize,
    pub n_head: usize,
    pub scale: f32,
}

impl CudaModel {
    /// The launches of one op for `rows` rows.
    pub(super) fn attention(
        &self,
        op: &Attention,
        rows: usize,
        inputs: &Inputs,
        path: Path,
    ) -> Vec<Spec> {
        let kv = self.plan.kv;
        let kv_struct = self.kv.ty.kernel.kv_struct();
        let text = constants(&[
            ("N_HEAD", op.n_head),
            ("N_HEAD_KV", kv.n_head_kv),
            ("HEAD_DIM", kv.head_dim),
        ]) + &format!("using Kv = {kv_struct};\n");
        let variant = |source| Variant {
            source,
            constants: text.clone(),
        };
        let view = self.kv.view(op.layer);
        let (q, out) = (self.address(op.q), self.address(op.out));
        let span = match path {
            Path::Decode { .. } => None,
            Path::Prefill { span } => Some(span.min(self.kv.n_ctx())),
        };
        if let Some(shared) = span.and_then(|_| self.prompt_shared(op.n_head)) {
            let p = params::PromptAttention {
                q,
                out,
                kv: view,
                positions: inputs.positions,
                slots: inputs.slots,
                scale: op.scale,
                m: rows as u32,
            };
            let queries = rows * (op.n_head / kv.n_head_kv);
            let blocks = queries.div_ceil(PROMPT_QUERIES) as u32;
            let grid = [kv.n_head_kv as u32, blocks, 1];
            let variant = variant("prompt_attention.cu");
            let mut spec = Spec::new(variant, "prompt_attention", grid, 128, &p);
            spec.shared = shared;
            return vec![labelled(spec, op.layer)];
        }
        let at_once = span.map_or(rows, |_| ATTENTION_ROWS);
        let tokens = span.unwrap_or(self.kv.n_ctx());
        let splits = tokens.div_ceil(PAGE_TOKENS).min(MAX_SPLITS);
        let group_floats = self.plan.buffer(op.q).width / kv.n_head_kv;
        let alone = if group_floats <= 1024 {
            BLOCK_SPLITS
        } else {
            TEAMS
        };
        let blocks = if splits <= alone {
            1
        } else {
            splits.div_ceil(TEAMS)
        };
        let row_bytes = (self.plan.buffer(op.q).width * 4) as u64;
        let part = |first: usize| {
            let p = params::Attention {
                q: q + first as u64 * row_bytes,
                out: out + first as u64 * row_bytes,
                kv: view,
                positions: inputs.positions + (first * 4) as u64,
                slots: inputs.slots + (first * 4) as u64,
                partial: self.partial.address(),
                tickets: self.tickets.address(),
                scale: op.scale,
                alone: u32::from(rows == 1 || inputs.state != 0),
            };
            let count = (rows - first).min(at_once);
            if self.kv.ty.kernel.kv_in_blocks() {
                let grid = [kv.n_head_kv as u32, splits as u32, count as u32];
                let variant = variant("attention_blocks.cu");
                return labelled(
                    Spec::new(variant, "attention_blocks", grid, 128, &p),
                    op.layer,
                );
            }
            let grid = [kv.n_head_kv as u32, blocks as u32, count as u32];
            let spec = Spec::new(variant("attention.cu"), "attention", grid, THREADS, &p);
            labelled(spec, op.layer)
        };
        (0..rows).step_by(at_once).map(part).collect()
    }

    /// What the attention of a prompt's pass is launched for whose positions end before `end`: the
    /// kernel for prompts looks by itself, the other one has blocks for every split of that many.
    pub(super) fn prompt_span(&self, end: usize) -> usize {
        let looks_itself = |op: &Op| match op {
            Op::Attention { n_head, .. } => self.prompt_shared(*n_head).is_some(),
            _ => true,
        };
        if self.plan.ops.iter().all(looks_itself) {
            return self.kv.n_ctx();
        }
        end.next_power_of_two().max(LEAST_SPAN)
    }

    /// Shared memory of a prompt's attention, where this cache and card take that kernel: keys and
    /// values as float16, and two pages of them fit beside the queries.
    fn prompt_shared(&self, n_head: usize) -> Option<u32> {
        let (dim, page) = (self.plan.kv.head_dim, PAGE_TOKENS);
        let shared = 2 * page * (dim * 4 + 16) + PROMPT_QUERIES * dim * 4;
        // Its static part, in whole kilobytes.
        let fits = shared + 1024 <= self.context.info.shared_bytes;
        let halves = self.kv.ty.kernel.kv_in_halves();
        let heads = n_head.is_multiple_of(self.plan.kv.n_head_kv);
        (fits && halves && heads && dim.is_multiple_of(16) && dim <= 128).then_some(shared as u32)
    }
}
