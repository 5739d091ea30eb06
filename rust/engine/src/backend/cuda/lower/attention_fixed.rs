//! Attention over a cache of integers. Its kernels compute the same sum, so the choice between them is one
//! of time alone.

use super::attention::{
    describe, page_bytes, parts, rotation_constants, AttentionOp, ATTENTION_ROWS, MAX_SPLITS,
    STATIC_BYTES,
};
use super::lowering::{flag, sizes, Lowering, Pass, Path};
use super::params::{AttentionFixed, KvView, PromptAttention, CONSTANTS};
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::KvShape;
use std::f64::consts::LOG2_E;
use std::ops::Range;

static STEP: Source = source!("attention_fixed.cu", CONSTANTS, AttentionFixed, KvView);
static PROMPT: Source = source!(
    "prompt_attention_fixed.cu",
    CONSTANTS,
    PromptAttention,
    KvView
);

/// Threads of a team of attention_fixed.cu, which takes a token block at a time. Where rows have several blocks
/// and pages are so short that their reading takes less than their instructions, a block has several
/// teams: as many as have so many bytes of keys together, two of two bytes a number and four of one. A
/// single row has two up to this width: its short texts need no joining then.
const TEAM: usize = 128;
const TEAMS_BYTES: usize = 18 << 10;
const TEAMS_WIDTH: usize = 4;
const SINGLE_ROW_TEAMS: usize = 2;
const SINGLE_ROW_TEAMS_DIM: usize = 128;

/// Teams of a block at most where there are several rows and more heads than four, two tiles of them: two
/// blocks on an SM leave more of them too few registers a thread.
const WIDE_TEAMS: usize = 2;

/// Teams of a single row from this context on, where so many parts of theirs have room: the more tokens are
/// at work on an SM, the less each waits for the others, but of short texts most have none. (1B on an H200
/// behind 64, 128, 512, 2,048, 16,384 and 32,000 tokens: two teams 470, 491, 497, 533, 750 and 943 us a step,
/// four 479, 482, 507, 527, 718 and 843.)
const MANY_TEAMS_CONTEXT: usize = 8192;
const MANY_TEAMS: usize = 4;
const MANY_PARTS: usize = 4;

/// Shared memory of a block of prompt_attention_fixed.cu that is not pages.
const PROMPT_STATIC_BYTES: usize = 2 << 10;

/// Most parts, a page's keys or its values, in a block's shared memory: more gain nothing.
const MOST_PARTS: usize = 6;

/// Blocks of attention_fixed.cu that an SM holds.
const BLOCKS_PER_SM: usize = 2;

/// Of shared memory, in hundredths, what the one block an SM has of a single row takes. A step of 8B on an
/// H200 with 50, 60, 66 and 76: 1,833, 1,832, 1,818 and 1,808 us behind 100 tokens, 2,554, 2,554, 2,462
/// and 2,448 behind 16,384 (`onegraph graph --position`).
const SINGLE_ROW_SHARED: usize = 76;

/// Warps of a block of prompt_attention_fixed.cu, of 16 queries each: where blocks of the first would leave
/// half the card idle, the second. And the widest heads it takes.
const PROMPT_WARPS: usize = 8;
const FEW_WARPS: usize = 4;
const PROMPT_DIM: usize = 128;

/// Rows of prompts that the kernel for steps takes: each reads the pages by itself, but all SMs do at once,
/// where the other kernel has so few blocks that one after another they take the longer. (Behind 7,680
/// tokens of an 8B model on an H100 that takes 0.45 ms a layer for 8 rows as for 64.)
const FEW_ROWS: usize = 32;

/// Most pages in its shared memory, of one byte a number and of two.
const PROMPT_STAGES: [usize; 2] = [6, 4];

/// The launches of one op, behind `before` others of the pass; in one that stores rows are sequences of
/// their own.
pub fn specs(l: &Lowering, op: &AttentionOp, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
    let step_specs = |of, at_once| step_specs(l, op, pass, of, at_once, before);
    let mut specs = match pass.path {
        Path::Decode => step_specs(0..pass.rows, pass.rows)?,
        Path::Prefill { .. } => {
            let (prompt, rows) = (pass.prompt_rows(), pass.rows);
            let mut specs = match prompt_stages(l, op) {
                Some(stages) if prompt > FEW_ROWS => {
                    vec![prompt_spec(l, op, pass, prompt, stages)?]
                }
                _ => step_specs(0..prompt, ATTENTION_ROWS)?,
            };
            specs.extend(step_specs(prompt..rows, rows - prompt)?);
            specs
        }
    };
    describe(l, op, pass, &mut specs);
    Ok(specs)
}

/// Bytes of a page's keys of one head.
fn part_bytes(l: &Lowering, kv: KvShape) -> usize {
    page_bytes(l.kv_type, kv.head_dim)
}

/// What scores are multiplied with, of a largest query of 1: weights are powers of 2^64.
fn scale(op: &AttentionOp) -> f32 {
    (f64::from(op.scale) * LOG2_E / (64.0 * 32639.0)) as f32
}

fn variant(
    l: &Lowering,
    op: &AttentionOp,
    source: &'static Source,
    more: &[(&str, usize)],
) -> Variant {
    let more = [more, &[("MAX_SPLITS", MAX_SPLITS)]].concat();
    let kv = l.kv_type.kernel.kv_line();
    Variant::new(source, op.constants(l.n_ctx) + &kv + &sizes(&more))
}

/// What attention_fixed.cu is compiled for where it rotates heads, and where it does not.
fn norm_rope_constants(l: &Lowering, op: &AttentionOp) -> String {
    let norm_rope = op.stored.and_then(|stored| stored.norm_rope);
    let how = norm_rope.map(|t| rotation_constants(&l.plan, t.rotation));
    let none = || sizes(&[("HALF", 8)]) + &flag("INTERLEAVED", false);
    let values = norm_rope.and_then(|t| t.values);
    flag("NORM_ROPE", how.is_some())
        + &flag("VALUES_NORMED", values.is_some())
        + &flag("VALUES_ARE_KEYS", values.is_some_and(|v| v.are_keys))
        + &how.unwrap_or_else(none)
}

/// Some rows of a pass by the kernel for steps, up to `at_once` in a launch.
fn step_specs(
    l: &Lowering,
    op: &AttentionOp,
    pass: &Pass,
    of: Range<usize>,
    at_once: usize,
    before: usize,
) -> Result<Vec<Spec>> {
    let n_head_kv = op.kv.n_head_kv;
    let kv = l.kv(op.layer)?;
    let row_bytes = (l.plan.buffer(op.q).width * 4) as u64;
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let rows = at_once.min(of.len());
    let group = op.n_head / n_head_kv;
    let page = part_bytes(l, op.kv).max(1);
    let least = match rows == 1 && op.kv.head_dim <= SINGLE_ROW_TEAMS_DIM {
        true => SINGLE_ROW_TEAMS,
        false => 1,
    };
    let teams = match group <= 8 && rows * n_head_kv < l.card.sm_count as usize {
        true => teams(page, l.kv_type.kernel.kv_bytes()).max(least),
        false => 1,
    };
    let room = match rows {
        1 => l.card.shared_bytes * SINGLE_ROW_SHARED / 100,
        _ => l.card.shared_bytes / BLOCKS_PER_SM,
    };
    let room = room.saturating_sub(STATIC_BYTES);
    let is_long = rows == 1 && l.n_ctx >= MANY_TEAMS_CONTEXT;
    let has_many = is_long && group <= 8 && room >= MANY_PARTS * MANY_TEAMS * page;
    let (parts, heads) = parts(group, op.kv.head_dim, rows == 1 && !has_many);
    let teams = match (has_many, rows > 1 && heads > 4) {
        (true, _) => MANY_TEAMS,
        (_, true) => teams.min(WIDE_TEAMS),
        _ => teams,
    };
    let part = teams * page;
    let ring = (room / part).clamp(1, MOST_PARTS);
    // As many blocks a row as keep the card busy.
    let splits = op.most_splits(l.n_ctx);
    let sms = l.card.sm_count as usize;
    let of_row = n_head_kv * parts;
    // One row leaves every SM room for a block of its successor; several fill the card.
    let blocks = match rows {
        1 => (sms / of_row).max(1),
        _ => (sms * BLOCKS_PER_SM).div_ceil(rows * of_row),
    };
    let blocks = blocks.min(splits);
    let of_heads = match rows {
        1 => (of_row * blocks).max(sms),
        _ => of_row * blocks,
    };
    let inputs = &pass.inputs;
    let sinks = l.vector(op.sinks)?;
    let norm_rope = op.stored.and_then(|stored| stored.norm_rope);
    let q_weight = l.vector(norm_rope.map(|t| t.queries.weight))?;
    let k_weight = l.vector(norm_rope.map(|t| t.keys.weight))?;
    let launch = |first: usize| {
        let params = AttentionFixed {
            q: l.address(op.q) + first as u64 * row_bytes,
            out: l.address(op.out) + first as u64 * row_bytes,
            k: op.stored.map_or(0, |stored| l.address(stored.k)),
            v: op.stored.map_or(0, |stored| l.address(stored.v)),
            kv,
            positions: inputs.positions + (first * 4) as u64,
            slots: inputs.slots + (first * 4) as u64,
            partial: l.at.scratch.partial,
            tickets: l.at.scratch.tickets,
            sinks,
            q_weight,
            k_weight,
            cos_sin: norm_rope.map_or(0, |t| l.at.cos_sin[t.rotation.table]),
            eps: norm_rope.map_or(0.0, |t| t.eps),
            scale: scale(op),
            shares: blocks as u32,
            located: u32::from(op.stored.is_some() && Spec::reads_before_wait(before)),
        };
        let count = (of.end - first).min(at_once) as u32;
        let more = [("HEADS", heads), ("TEAMS", teams), ("RING", ring)];
        let grid = [of_heads as u32, 1, count];
        let mut variant = variant(l, op, &STEP, &more);
        variant.constants += &norm_rope_constants(l, op);
        variant.constants += &flag("SINGLE_ROW", rows == 1);
        let threads = (teams * TEAM) as u32;
        let mut spec = Spec::new(variant, "attention_fixed", grid, threads, &params);
        spec.shared = (ring * part) as u32;
        spec
    };
    Ok(of.clone().step_by(at_once).map(launch).collect())
}

/// Teams of a block for pages of so many bytes of keys, integers of so many.
fn teams(page: usize, bytes: usize) -> usize {
    let most = TEAMS_WIDTH / bytes.max(1);
    let fit = (TEAMS_BYTES / page).clamp(1, most);
    1 << fit.ilog2()
}

/// The first `m` rows of a pass by the kernel for prompts.
fn prompt_spec(
    l: &Lowering,
    op: &AttentionOp,
    pass: &Pass,
    m: usize,
    stages: usize,
) -> Result<Spec> {
    let n_head_kv = op.kv.n_head_kv;
    let params = PromptAttention {
        q: l.address(op.q),
        out: l.address(op.out),
        kv: l.kv(op.layer)?,
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        sinks: l.vector(op.sinks)?,
        scale: scale(op),
        m: m as u32,
    };
    let queries = m * (op.n_head / n_head_kv);
    let blocks_of = |warps: usize| queries.div_ceil(warps * 16);
    let is_idle = 2 * n_head_kv * blocks_of(PROMPT_WARPS) <= l.card.sm_count as usize;
    let warps = if is_idle { FEW_WARPS } else { PROMPT_WARPS };
    let (rows, blocks) = (warps * 16, blocks_of(warps));
    let threads = warps as u32 * 32;
    let shared = stages * 2 * part_bytes(l, op.kv) + query_bytes(op.kv, warps);
    let more = [
        ("THREADS", threads as usize),
        ("ROWS", rows),
        ("STAGES", stages),
        ("SHARED_BYTES", shared),
    ];
    let grid = [n_head_kv as u32, blocks as u32, 1];
    let mut variant = variant(l, op, &PROMPT, &more);
    let by_warpgroups = l.card.has_warpgroups() && l.kv_type.kernel.kv_bytes() == 2;
    variant.constants += &flag("WARPGROUPS", by_warpgroups);
    let mut spec = Spec::new(variant, "prompt_attention_fixed", grid, threads, &params);
    spec.shared = shared as u32;
    Ok(spec)
}

/// Shared memory for the queries of a block of prompt_attention_fixed.cu, which keeps narrow ones in
/// registers: two bytes a number, dimensions in whole steps of 32.
fn query_bytes(kv: KvShape, warps: usize) -> usize {
    match kv.head_dim {
        ..=64 => 0,
        dim => warps * 16 * dim.next_multiple_of(32) * 2,
    }
}

/// Pages in shared memory of a prompt's attention, where this shape and card take that kernel.
fn prompt_stages(l: &Lowering, op: &AttentionOp) -> Option<usize> {
    let page = 2 * part_bytes(l, op.kv);
    let room = l
        .card
        .shared_bytes
        .saturating_sub(PROMPT_STATIC_BYTES + query_bytes(op.kv, PROMPT_WARPS));
    let most = PROMPT_STAGES[usize::from(l.kv_type.kernel.kv_bytes() == 2)];
    let stages = (room / page.max(1)).min(most);
    let heads = op.n_head.is_multiple_of(op.kv.n_head_kv);
    (stages >= 2 && op.kv.head_dim <= PROMPT_DIM && heads).then_some(stages)
}

#[cfg(test)]
mod tests {
    use super::super::lowering::Inputs;
    use super::super::pass::specs;
    use super::super::tests::{at, blocks, chunk, entries, lowering, step, superblocks, with};
    use super::*;
    use crate::backend::cuda::driver::spec::Kind;
    use crate::plan::fuse::Fused;
    use crate::plan::{Op, Plan};
    use crate::quant;

    #[test]
    fn a_step_of_sequences_stores_the_newest_tokens_where_it_attends() {
        for kv_type in [blocks(), "I16"] {
            let l = lowering("sm_90", superblocks(), kv_type, true);
            let single = specs(&l, &step(1)).unwrap();
            let wanted = ["embed", "matvec", "attention_fixed", "matvec", "matvec"];
            assert_eq!(entries(&single)[..5], wanted);
            let params: AttentionFixed = single[2].params().unwrap();
            assert_eq!((params.k, params.v), (at("k"), at("v")));
            let room = l.card.shared_bytes * SINGLE_ROW_SHARED / 100;
            assert!(single[2].shared as usize + STATIC_BYTES <= room);
            // Rows of one sequence are stored first, for all of them may be seen.
            let several = Pass {
                inputs: Inputs {
                    state: 0,
                    ..step(3).inputs
                },
                ..step(3)
            };
            let several = specs(&l, &several).unwrap();
            let scatter = entries(&several)
                .iter()
                .position(|e| *e == "kv_scatter_fixed");
            let scatter = scatter.expect("a scatter");
            assert_eq!(entries(&several)[scatter + 1], "attention_fixed");
            let params: AttentionFixed = several[scatter + 1].params().unwrap();
            assert_eq!((params.k, params.v), (0, 0));
        }
    }

    #[test]
    fn short_pages_are_taken_by_several_teams() {
        let found = |kv_type: &str| {
            let ty = quant::kv_by_name(kv_type).unwrap();
            [32, 64, 80, 128, 256].map(|dim| teams(page_bytes(ty, dim), ty.kernel.kv_bytes()))
        };
        assert_eq!(found("I16"), [2, 2, 1, 1, 1]);
        assert_eq!(found(blocks()), [4, 4, 2, 2, 1]);
    }

    #[test]
    fn a_row_alone_of_long_texts_has_many_teams_where_their_parts_have_room() {
        // A page's keys of a head: 16.5 KiB of two bytes a number, half of one.
        for (arch, n_ctx, kv_type, teams) in [
            ("sm_90", 8192, "I16", SINGLE_ROW_TEAMS),
            ("sm_90", 8192, blocks(), MANY_TEAMS),
            ("sm_90", 8191, blocks(), 2),
            ("sm_86", 8192, blocks(), 2),
        ] {
            let mut l = lowering(arch, superblocks(), kv_type, true);
            l.n_ctx = n_ctx;
            let of_rows = |rows| {
                let list = specs(&l, &step(rows)).unwrap();
                let its = list.into_iter().find(|s| s.entry == "attention_fixed");
                its.expect("a kernel")
            };
            let single = of_rows(1);
            assert_eq!(
                single.block as usize,
                teams * TEAM,
                "{arch} {n_ctx} {kv_type}"
            );
            assert!(single.variant.constants.contains("SINGLE_ROW = true"));
            let two = of_rows(2);
            assert!(
                two.block as usize <= 2 * TEAM
                    && two.variant.constants.contains("SINGLE_ROW = false")
            );
        }
    }

    #[test]
    fn a_prompt_has_a_kernel_of_its_own_where_two_pages_fit() {
        for (arch, kv_type, stages) in [
            ("sm_90", "I16", 4),
            ("sm_86", "I16", 2),
            ("sm_75", "I16", 0),
            ("sm_90", blocks(), 6),
            ("sm_75", blocks(), 0),
        ] {
            let mut l = lowering(arch, superblocks(), kv_type, true);
            let list = specs(&l, &chunk(512, 1)).unwrap();
            let its = list.iter().find(|s| s.entry.contains("attention_fixed"));
            let its = its.expect("a kernel");
            if stages == 0 {
                // A row a block, in four launches.
                assert_eq!((its.entry, its.grid[2]), ("attention_fixed", 128));
                continue;
            }
            assert_eq!(its.entry, "prompt_attention_fixed");
            // 4 heads of 512 rows, 128 queries a block, or 64 where that leaves half the SMs idle.
            for (sms, warps, blocks) in [(31, PROMPT_WARPS, 16), (32, FEW_WARPS, 32)] {
                l.card.sm_count = sms;
                let list = specs(&l, &chunk(512, 1)).unwrap();
                let its = list.iter().find(|s| s.entry == "prompt_attention_fixed");
                let its = its.expect("a kernel");
                assert_eq!((its.grid, its.block), ([1, blocks, 1], warps as u32 * 32));
                let kv = l.plan.kv[0];
                let pages = stages * 2 * part_bytes(&l, kv);
                assert_eq!(its.shared as usize, pages + query_bytes(kv, warps));
                assert!(its.shared as usize + PROMPT_STATIC_BYTES <= l.card.shared_bytes);
            }
        }
    }

    #[test]
    fn rows_of_a_step_beside_a_prompt_have_the_kernel_for_steps() {
        let l = lowering("sm_90", superblocks(), "I16", true);
        let path = Path::Prefill { steps: 8 };
        let pass = Pass {
            path,
            ..chunk(64, 9)
        };
        let list = specs(&l, &pass).unwrap();
        let scatter = list.iter().position(|s| s.entry == "kv_scatter_fixed");
        let scatter = scatter.expect("all rows are stored before any is looked at");
        let [prompt, step] = &list[scatter + 1..scatter + 3] else {
            panic!("{:?}", entries(&list))
        };
        assert_eq!(
            (prompt.entry, step.entry),
            ("prompt_attention_fixed", "attention_fixed")
        );
        let prompt: PromptAttention = prompt.params().unwrap();
        assert_eq!((prompt.q, prompt.m), (at("q"), 56));
        let its: AttentionFixed = step.params().unwrap();
        let row_bytes = 512 * 4;
        assert_eq!(its.q, at("q") + 56 * row_bytes);
        assert_eq!(its.positions, pass.inputs.positions + 56 * 4);
        assert_eq!((step.grid[2], its.k), (8, 0));
    }

    #[test]
    fn what_the_first_launch_writes_is_read_before_the_wait_behind_two_alone() {
        let mut l = lowering("sm_90", superblocks(), "I16", true);
        let mut plan = Plan::clone(&l.plan);
        let attends = |op: &Op| matches!(op, Op::KvScatter { .. } | Op::Attention { .. });
        let its: Vec<Op> = plan.ops.iter().filter(|op| attends(op)).cloned().collect();
        let of = |l: &Lowering| {
            let list = specs(l, &step(1)).unwrap();
            let at = list
                .iter()
                .position(|s| s.entry == "attention_fixed")
                .unwrap();
            (at, list[at].params::<AttentionFixed>().unwrap().located)
        };
        assert_eq!(of(&l), (2, 1));
        // Right behind the kernel that writes positions and slots.
        plan.ops.retain(|op| !attends(op));
        plan.ops.splice(1..1, its);
        l = with(l, plan);
        assert_eq!(of(&l), (1, 0));
    }

    #[test]
    fn a_window_ends_the_splits_of_a_row() {
        let attention = |window: usize, pass: &Pass| {
            let mut l = lowering("sm_90", superblocks(), "I16", false);
            for fused in &mut l.fused.list {
                if let Fused::Single(Op::Attention { window: its, .. }) = &mut fused.op {
                    *its = Some(window);
                }
            }
            let list = specs(&l, pass).unwrap();
            let its = list.into_iter().find(|s| s.kind == Kind::Attention);
            its.expect("a kernel")
        };
        for (window, shares) in [(1, 1), (66, 3), (193, 4), (194, 5), (512, 9)] {
            let spec = attention(window, &step(1));
            let params: AttentionFixed = spec.params().unwrap();
            assert_eq!(params.shares, shares, "{window}");
            let constant = format!("WINDOW = {window};");
            assert!(spec.variant.constants.contains(&constant), "{window}");
            assert_eq!(spec.traffic.total(4096), spec.traffic.total(window as u64));
        }
        // One that no row is longer than is none.
        for pass in [step(1), chunk(512, 1)] {
            let spec = attention(4096, &pass);
            assert!(spec.variant.constants.contains("WINDOW = 0;"));
        }
    }
}
