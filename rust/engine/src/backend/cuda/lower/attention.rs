//! Attention: one kernel for steps, another for prompts where the cache and the card take it. Over
//! integers: `attention_fixed`.

use super::lowering::{constants, flag, sizes, Lowering, Pass, Path};
use super::params::{Attention, KvView, PromptAttention, CONSTANTS};
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::{Kind, Spec, Traffic};
use crate::backend::PAGE_TOKENS;
use crate::error::{Error, Result};
use crate::plan::fuse::Values;
use crate::plan::signature::Turn;
use crate::plan::{BufferId, KvShape, Plan, RopeStyle, WeightId};

static SOURCE: Source = source!("attention.cu", CONSTANTS, Attention, KvView);
static PROMPT: Source = source!("prompt_attention.cu", CONSTANTS, PromptAttention, KvView);

/// Splits of one row's attention; see attention.cu.
pub const MAX_SPLITS: usize = 32;

/// Threads of a block of attention.cu, in two teams that take a split each.
const THREADS: u32 = 256;
const TEAMS: usize = 2;

/// Splits of a row that one block of attention.cu takes by itself.
const BLOCK_SPLITS: usize = 4;

/// Most query heads of a block of attention_fixed.cu, and most numbers that they have together: more do
/// not fit the registers.
const BLOCK_HEADS: usize = 16;
const BLOCK_WIDTH: usize = 2048;

/// Heads of a block of one row: norms, turns and scores of eight would be most of its time. (Behind 64, 512,
/// 2,048 and 8,000 tokens of a Qwen3-30B-A3B on an H200 1,676 -> 1,586, 1,800 -> 1,731, 1,863 -> 1,823 and
/// 2,089 -> 2,046 us a step. Where the blocks of long texts have many teams, twice as many blocks read every
/// page: behind 32,000 2,726 -> 3,042.)
const ALONE_HEADS: usize = 4;

/// Rows of one launch over a prompt of a kernel for steps: its partial sums take memory.
pub const ATTENTION_ROWS: usize = 128;

/// Positions that the shortest passes over a prompt are launched for; longer ones double it.
const LEAST_SPAN: usize = 512;

/// Threads of a block of prompt_attention.cu.
const PROMPT_THREADS: u32 = 128;

/// Query rows of a block of prompt_attention.cu.
const PROMPT_QUERIES: usize = 64;

/// An attention op of a plan.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp {
    pub q: BufferId,
    pub out: BufferId,
    pub layer: usize,
    /// Of the layer's cache.
    pub kv: KvShape,
    pub n_head: usize,
    pub scale: f32,
    /// Tokens that a row sees, where these are not all.
    pub window: Option<usize>,
    /// A logit a head, where softmax has one more.
    pub sinks: Option<WeightId>,
    /// Keys and values of the rows, where it stores them itself.
    pub newest: Option<(BufferId, BufferId)>,
    /// What it does with the heads of queries and of those keys before.
    pub turned: Option<Turned>,
}

/// How heads are normalized and turned: [`Fused::TurnedHeads`](crate::plan::fuse::Fused::TurnedHeads).
#[derive(Debug, Clone, Copy)]
pub struct Turned {
    pub queries: WeightId,
    pub keys: WeightId,
    /// What it does with the values that it stores.
    pub values: Option<Values>,
    pub eps: f32,
    pub turn: Turn,
}

impl Turned {
    /// What turn.cuh is compiled for.
    pub fn constants(plan: &Plan, turn: Turn) -> String {
        sizes(&[("HALF", plan.ropes[turn.table].inv_freq.len())])
            + &flag("INTERLEAVED", turn.style == RopeStyle::Interleaved)
    }
}

impl AttentionOp {
    /// What kernels know of it as constants: a window of 0 where rows of up to `n_ctx` tokens see all.
    pub fn constants(&self, n_ctx: usize) -> String {
        let shape = [
            ("N_HEAD", self.n_head),
            ("N_HEAD_KV", self.kv.n_head_kv),
            ("HEAD_DIM", self.kv.head_dim),
        ];
        let window = self.window.filter(|tokens| *tokens < n_ctx).unwrap_or(0);
        constants(&shape) + &sizes(&[("WINDOW", window)]) + &flag("HAS_SINKS", self.sinks.is_some())
    }

    /// Most splits of a row of up to `tokens` tokens: each has a page at least.
    pub fn most_splits(&self, tokens: usize) -> usize {
        let all = tokens.div_ceil(PAGE_TOKENS);
        // A window ends anywhere in its last page.
        let in_window = |window: usize| (window - 1).div_ceil(PAGE_TOKENS) + 1;
        let pages = self.window.map_or(all, |window| all.min(in_window(window)));
        pages.clamp(1, MAX_SPLITS)
    }
}

/// Memory that the blocks of one row merge through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergeBytes {
    /// `[rows][n_head_kv][parts][MAX_SPLITS][heads of a part][HEAD_DIM + 2]` f32.
    pub partial: usize,
    /// `[rows][n_head_kv][parts]` u32, zero between launches.
    pub tickets: usize,
}

impl MergeBytes {
    /// For passes of up to `rows` rows, `out` of them in a step.
    pub fn new(plan: &Plan, rows: usize, out: usize) -> Self {
        let mut most = Self {
            partial: 0,
            tickets: 0,
        };
        for (n_head, kv) in plan.attentions() {
            let group = n_head / kv.n_head_kv.max(1);
            // Which of the kernels it is depends on the cache, of which this is not told.
            let dim = kv.head_dim;
            for (parts, heads) in [
                parts(group, dim, false),
                parts(group, dim, true),
                float_parts(group, dim, true),
                float_parts(group, dim, false),
            ] {
                let split_floats = heads * (kv.head_dim + 2);
                // A step's attention is one launch, whatever its rows.
                let blocks = out.max(ATTENTION_ROWS).min(rows) * kv.n_head_kv * parts;
                most.partial = most.partial.max(blocks * MAX_SPLITS * split_floats * 4);
                most.tickets = most.tickets.max(blocks * 4);
            }
        }
        most
    }
}

/// Blocks of attention_fixed.cu that share a group of query heads, of one row alone or of several, and heads
/// of each but the last. Its products take four at a time.
pub fn parts(group: usize, head_dim: usize, alone: bool) -> (usize, usize) {
    let most = match alone {
        true => ALONE_HEADS,
        false => (BLOCK_WIDTH / head_dim.max(1) / 4 * 4).clamp(4, BLOCK_HEADS),
    };
    even_parts(group, most)
}

/// The same of attention.cu, whose lanes have fewer heads' sums the more numbers each has, and of keys and
/// values of float32, which take twice the registers of float16.
fn float_parts(group: usize, head_dim: usize, in_halves: bool) -> (usize, usize) {
    let width = match (head_dim, in_halves) {
        (0..=128, _) | (129..=256, true) => BLOCK_WIDTH,
        (129..=256, false) | (_, true) => BLOCK_WIDTH / 2,
        (_, false) => BLOCK_WIDTH / 4,
    };
    even_parts(group, (width / head_dim.max(1)).clamp(1, BLOCK_HEADS))
}

/// As few parts as have at most `most` heads, and the heads of each but the last.
fn even_parts(group: usize, most: usize) -> (usize, usize) {
    let parts = group.div_ceil(most).max(1);
    (parts, group.div_ceil(parts))
}

/// The launches of one op.
pub fn specs(l: &Lowering, op: &AttentionOp, pass: &Pass) -> Result<Vec<Spec>> {
    let span = match pass.path {
        Path::Decode { .. } => None,
        Path::Prefill { steps: 1.., .. } => {
            return Err(Error::Internal(
                "a step beside a prompt over a cache whose sums depend on the pass".into(),
            ))
        }
        Path::Prefill { span, .. } => Some(span.min(l.n_ctx)),
    };
    let mut specs = match span.and_then(|_| prompt_shared(l, op.n_head, op.kv)) {
        Some(shared) => vec![prompt_spec(l, op, pass, shared)?],
        None => split_specs(l, op, pass, span)?,
    };
    describe(l, op, pass, &mut specs);
    Ok(specs)
}

/// What the launches of an op say of themselves.
pub fn describe(l: &Lowering, op: &AttentionOp, pass: &Pass, specs: &mut [Spec]) {
    let head_bytes = l.kv_type.kv_head_bytes(op.kv.head_dim).unwrap_or(0);
    let width = l.plan.buffer(op.q).width;
    // Queries in, sums out; of each token the keys and values of all heads.
    let rows = pass.rows * width * 8 / specs.len().max(1);
    for spec in specs {
        spec.kind = Kind::Attention;
        spec.traffic = Traffic {
            per_token: (2 * op.kv.n_head_kv * head_bytes) as u64,
            most_tokens: op.window.map(|tokens| (tokens * pass.rows) as u64),
            ..Traffic::rows(rows)
        };
        spec.label = format!("{} {}", spec.entry, op.layer);
    }
}

fn variant(
    l: &Lowering,
    op: &AttentionOp,
    source: &'static Source,
    more: &[(&str, usize)],
) -> Variant {
    Variant::new(
        source,
        op.constants(l.n_ctx) + &l.kv_type.kernel.kv_line() + &sizes(more),
    )
}

/// What the kernels for prompts are told; scores are multiplied with `scale`.
pub fn prompt_params(
    l: &Lowering,
    op: &AttentionOp,
    pass: &Pass,
    scale: f32,
) -> Result<PromptAttention> {
    Ok(PromptAttention {
        q: l.address(op.q),
        out: l.address(op.out),
        kv: l.kv(op.layer)?,
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        sinks: l.vector(op.sinks)?,
        scale,
        m: pass.rows as u32,
    })
}

/// A prompt's rows on tensor cores.
fn prompt_spec(l: &Lowering, op: &AttentionOp, pass: &Pass, shared: u32) -> Result<Spec> {
    let n_head_kv = op.kv.n_head_kv;
    let params = prompt_params(l, op, pass, op.scale)?;
    let queries = pass.rows * (op.n_head / n_head_kv);
    let blocks = queries.div_ceil(PROMPT_QUERIES) as u32;
    let grid = [n_head_kv as u32, blocks, 1];
    let more = [
        ("THREADS", PROMPT_THREADS as usize),
        ("ROWS", PROMPT_QUERIES),
        ("SHARED_BYTES", shared as usize),
    ];
    let variant = variant(l, op, &PROMPT, &more);
    let mut spec = Spec::new(variant, "prompt_attention", grid, PROMPT_THREADS, &params);
    spec.shared = shared;
    Ok(spec)
}

/// Rows whose tokens are cut into splits, of a step or of a prompt with positions below `span`.
fn split_specs(
    l: &Lowering,
    op: &AttentionOp,
    pass: &Pass,
    span: Option<usize>,
) -> Result<Vec<Spec>> {
    let n_head_kv = op.kv.n_head_kv;
    let kv = l.kv(op.layer)?;
    let width = l.plan.buffer(op.q).width;
    let at_once = span.map_or(pass.rows, |_| ATTENTION_ROWS);
    let tokens = span.unwrap_or(l.n_ctx);
    let splits = op.most_splits(tokens);
    let (group, head_dim) = (op.n_head / n_head_kv, op.kv.head_dim);
    let (parts, heads) = float_parts(group, head_dim, l.kv_type.kernel.kv_in_halves());
    let alone = match heads * head_dim <= 1024 {
        true => BLOCK_SPLITS,
        false => TEAMS,
    };
    let blocks = match splits <= alone {
        true => 1,
        false => splits.div_ceil(TEAMS),
    };
    let row_bytes = (width * 4) as u64;
    let inputs = &pass.inputs;
    let sinks = l.vector(op.sinks)?;
    let part = |first: usize| {
        let params = Attention {
            q: l.address(op.q) + first as u64 * row_bytes,
            out: l.address(op.out) + first as u64 * row_bytes,
            kv,
            positions: inputs.positions + (first * 4) as u64,
            slots: inputs.slots + (first * 4) as u64,
            partial: l.at.scratch.partial,
            tickets: l.at.scratch.tickets,
            sinks,
            scale: op.scale,
            alone: u32::from(pass.are_alone()),
        };
        let count = (pass.rows - first).min(at_once) as u32;
        let grid = [(n_head_kv * parts) as u32, blocks as u32, count];
        let more = [
            ("HEADS", heads),
            ("THREADS", THREADS as usize),
            ("TEAMS", TEAMS),
            ("MAX_SPLITS", MAX_SPLITS),
            ("BLOCK_SPLITS", alone),
        ];
        let variant = variant(l, op, &SOURCE, &more);
        Spec::new(variant, "attention", grid, THREADS, &params)
    };
    Ok((0..pass.rows).step_by(at_once).map(part).collect())
}

/// What the attention of a prompt's pass is launched for whose positions end before `end`: kernels for
/// prompts and those over integers look by themselves, the others have blocks for every split of that
/// many.
pub fn prompt_span(l: &Lowering, end: usize) -> usize {
    let exactly = l.kv_type.sums_kv_exactly();
    let looks_itself = |(n_head, kv)| exactly || prompt_shared(l, n_head, kv).is_some();
    if l.plan.attentions().all(looks_itself) {
        return l.n_ctx;
    }
    end.next_power_of_two().max(LEAST_SPAN)
}

/// Shared memory of a prompt's attention, where this cache and card take that kernel: keys and
/// values as float16, and two pages of them fit beside the queries.
fn prompt_shared(l: &Lowering, n_head: usize, kv: KvShape) -> Option<u32> {
    let (dim, page) = (kv.head_dim, PAGE_TOKENS);
    let shared = 2 * page * (dim * 4 + 16) + PROMPT_QUERIES * dim * 4;
    // Its static part, in whole kilobytes.
    let fits = shared + 1024 <= l.card.shared_bytes;
    let halves = l.kv_type.kernel.kv_in_halves();
    let heads = n_head.is_multiple_of(kv.n_head_kv);
    (fits && halves && heads && dim.is_multiple_of(16) && dim <= 128).then_some(shared as u32)
}

#[cfg(test)]
mod tests {
    use super::super::pass::specs;
    use super::super::tests::{blocks, chunk, halves, lowering, step, superblocks};
    use super::*;
    use crate::plan::fuse::Fused;
    use crate::plan::Op;

    /// The attention of `pass` over a cache of `kv_type`, rows of which see so many tokens.
    fn attention(kv_type: &str, n_ctx: usize, window: usize, pass: &Pass) -> Spec {
        let mut l = lowering("sm_90", superblocks(), kv_type, false);
        for op in &mut l.fused {
            if let Fused::Single(Op::Attention { window: its, .. }) = op {
                *its = Some(window);
            }
        }
        l.n_ctx = n_ctx;
        let list = specs(&l, pass).unwrap();
        let its = list.into_iter().find(|s| s.kind == Kind::Attention);
        its.expect("a kernel")
    }

    #[test]
    fn a_window_takes_blocks_for_its_own_pages_alone() {
        // Splits of a page two to a block, or up to four in one.
        for (window, blocks) in [(1, 1), (66, 1), (193, 1), (194, 3), (512, 5)] {
            let spec = attention(halves(), 4096, window, &step(1));
            assert_eq!(spec.grid, [1, blocks, 1], "{window}");
            let constant = format!("WINDOW = {window};");
            assert!(spec.variant.constants.contains(&constant), "{window}");
            assert_eq!(spec.traffic.total(4096), spec.traffic.total(window as u64));
        }
        // One that no row is longer than is none.
        for pass in [step(1), chunk(512, 1)] {
            for kv_type in [halves(), blocks(), "I16"] {
                let spec = attention(kv_type, 4096, 4096, &pass);
                assert!(spec.variant.constants.contains("WINDOW = 0;"), "{kv_type}");
            }
        }
    }
}
