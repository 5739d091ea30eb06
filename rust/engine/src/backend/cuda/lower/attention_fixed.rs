//! Attention over a cache of integers. Its kernels compute the same sum, so the choice between them is one
//! of time alone.

use super::attention::{
    describe, page_bytes, parts, AttentionConstants, AttentionOp, RotateConstants, ATTENTION_ROWS,
    MAX_SPLITS, STATIC_BYTES,
};
use super::lowering::{Lowering, Pass, Path};
use super::params::{AttentionFixed, KvView, PromptAttention, CONSTANTS};
use super::shapes::Attention;
use crate::backend::cuda::driver::source::{constants, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::KvShape;
use std::f64::consts::LOG2_E;
use std::ops::Range;

static STEP: Source = source!("attention_fixed.cu", CONSTANTS, AttentionFixed, KvView);
static PROMPT: Source = source! {
    "prompt_attention_fixed.cu", CONSTANTS, PromptAttention, KvView
};

constants! {
    /// attention_fixed.cu
    struct StepVariant in STEP {
        op: AttentionConstants, heads: uint32_t, teams: uint32_t, ring: uint32_t,
        max_splits: uint32_t, norm_rope: bool, values_normed: bool, values_are_keys: bool,
        rotate: RotateConstants, single_row: bool, both_ways: bool, chosen: uint32_t, ratio: uint32_t,
    }

    /// prompt_attention_fixed.cu
    struct PromptVariant in PROMPT {
        op: AttentionConstants, threads: uint32_t, rows: uint32_t, stages: uint32_t,
        shared_bytes: uint32_t, max_splits: uint32_t, warpgroups: bool,
    }
}

/// Threads of a team of attention_fixed.cu, which takes a token block at a time.
const TEAM: usize = 128;

/// Bytes of a number of each of a block's teams together: where rows have several blocks and pages are so
/// short that their reading takes less than their instructions, a block has several teams.
const TEAMS_WIDTH: usize = 4;

/// Shared memory of a block of prompt_attention_fixed.cu that is not pages.
const PROMPT_STATIC_BYTES: usize = 2 << 10;

/// Blocks of attention_fixed.cu that an SM holds.
const BLOCKS_PER_SM: usize = 2;

/// The widest heads that prompt_attention_fixed.cu takes.
const PROMPT_DIM: usize = 128;

/// The launches of one op, behind `before` others of the pass; in one that stores rows are sequences of
/// their own.
pub fn specs(l: &Lowering, op: &AttentionOp, pass: &Pass, before: usize) -> Result<Vec<Spec>> {
    let step_specs = |of, at_once| step_specs(l, op, pass, of, at_once, before);
    let mut specs = match pass.path {
        Path::Decode | Path::Round | Path::Guess => step_specs(0..pass.rows, pass.rows)?,
        Path::Prefill { .. } => {
            let (prompt, rows) = (pass.prompt_rows(), pass.rows);
            let mut specs = match prompt_stages(l, op) {
                Some(stages) if prompt > l.shapes.prompt.few_rows => {
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
    let row_bytes = |id| (l.plan.buffer(id).width * 4) as u64;
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let rows = at_once.min(of.len());
    let group = op.n_head / n_head_kv;
    let page = part_bytes(l, op.kv).max(1);
    let table = &l.shapes.attention;
    let least = match rows == 1 && op.kv.head_dim <= table.teams_dim {
        true => table.teams,
        false => 1,
    };
    let teams = match group <= 8 && rows * n_head_kv < l.card.sm_count as usize {
        true => teams(table, page, l.kv_type.kernel.kv_bytes()).max(least),
        false => 1,
    };
    let room = match rows {
        1 => l.card.shared_bytes * table.shared / 100,
        _ => l.card.shared_bytes / BLOCKS_PER_SM,
    };
    let room = room.saturating_sub(STATIC_BYTES);
    let is_long = rows == 1 && l.n_ctx >= table.long_context;
    let has_many = is_long && group <= 8 && room >= table.long_parts * table.long_teams * page;
    let (parts, heads) = parts(table, group, op.kv.head_dim, rows == 1 && !has_many);
    let teams = match (has_many, rows > 1 && heads > 4) {
        (true, _) => table.long_teams,
        (_, true) => teams.min(table.wide_teams),
        _ => teams,
    };
    let part = teams * page;
    let ring = (room / part).clamp(1, table.parts);
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
    let values = norm_rope.and_then(|t| t.values);
    let variant = StepVariant {
        op: op.constants(l),
        heads,
        teams,
        ring,
        max_splits: MAX_SPLITS,
        norm_rope: norm_rope.is_some(),
        values_normed: values.is_some(),
        values_are_keys: values.is_some_and(|v| v.are_keys),
        rotate: norm_rope.map_or_else(RotateConstants::none, |t| {
            RotateConstants::new(&l.plan, t.rotation)
        }),
        single_row: rows == 1,
        both_ways: op.has_spans(l.n_ctx),
        chosen: op.chosen.map_or(0, |of| of.words),
        ratio: op.chosen.map_or(1, |of| of.ratio),
    };
    let positions = |first: usize| match op.has_spans(l.n_ctx) {
        true => inputs.spans + (first * 8) as u64,
        false => op.last_seen(inputs) + (first * 4) as u64,
    };
    let launch = |first: usize| {
        let params = AttentionFixed {
            q: l.address(op.q) + first as u64 * row_bytes(op.q),
            out: l.address(op.out) + first as u64 * row_bytes(op.out),
            k: op.stored.map_or(0, |stored| l.address(stored.k)),
            v: op.stored.map_or(0, |stored| l.address(stored.v)),
            kv,
            positions: positions(first),
            slots: inputs.slots + (first * 4) as u64,
            partial: l.at.scratch.partial,
            tickets: l.at.scratch.tickets,
            sinks,
            chosen: op.chosen.map_or(0, |of| {
                l.address(of.blocks) + first as u64 * row_bytes(of.blocks)
            }),
            q_weight,
            k_weight,
            cos_sin: norm_rope.map_or(0, |t| l.at.cos_sin[t.rotation.table]),
            eps: norm_rope.map_or(0.0, |t| t.eps),
            scale: scale(op),
            shares: blocks as u32,
            located: u32::from(
                op.stored.is_some() && op.chosen.is_none() && Spec::reads_before_wait(before),
            ),
        };
        let count = (of.end - first).min(at_once) as u32;
        let grid = [of_heads as u32, 1, count];
        let threads = (teams * TEAM) as u32;
        let mut spec = Spec::new(variant.clone(), "attention_fixed", grid, threads, &params);
        spec.shared = (ring * part) as u32;
        spec
    };
    Ok(of.clone().step_by(at_once).map(launch).collect())
}

/// Teams of a block for pages of so many bytes of keys, integers of so many.
fn teams(table: &Attention, page: usize, bytes: usize) -> usize {
    let most = TEAMS_WIDTH / bytes.max(1);
    let fit = (table.team_bytes / page).clamp(1, most);
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
        positions: op.last_seen(&pass.inputs),
        slots: pass.inputs.slots,
        sinks: l.vector(op.sinks)?,
        scale: scale(op),
        m: m as u32,
    };
    let queries = m * (op.n_head / n_head_kv);
    let blocks_of = |warps: usize| queries.div_ceil(warps * 16);
    let (all, few) = (l.shapes.prompt.warps, l.shapes.prompt.few_warps);
    let is_idle = 2 * n_head_kv * blocks_of(all) <= l.card.sm_count as usize;
    let warps = if is_idle { few } else { all };
    let (rows, blocks) = (warps * 16, blocks_of(warps));
    let threads = warps as u32 * 32;
    let shared = stages * 2 * part_bytes(l, op.kv) + query_bytes(op.kv, warps);
    let variant = PromptVariant {
        op: op.constants(l),
        threads: threads as usize,
        rows,
        stages,
        shared_bytes: shared,
        max_splits: MAX_SPLITS,
        warpgroups: l.card.has_warpgroups() && l.kv_type.kernel.kv_bytes() == 2,
    };
    let grid = [n_head_kv as u32, blocks as u32, 1];
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
        .saturating_sub(PROMPT_STATIC_BYTES + query_bytes(op.kv, l.shapes.prompt.warps));
    let most = l.shapes.prompt.pages[usize::from(l.kv_type.kernel.kv_bytes() == 2)];
    let stages = (room / page.max(1)).min(most);
    let heads = op.n_head.is_multiple_of(op.kv.n_head_kv) && !op.has_spans(l.n_ctx);
    (stages >= 2
        && op.kv.head_dim <= PROMPT_DIM
        && heads
        && op.kv.stored() == 2
        && op.chosen.is_none())
    .then_some(stages)
}

#[cfg(test)]
mod tests {
    use super::super::pass::specs;
    use super::super::tests::{
        at, blocks, chunk, entries, lowering, step, superblocks, table, with,
    };
    use super::*;
    use crate::backend::cuda::driver::spec::Kind;
    use crate::plan::fuse::Fused;
    use crate::plan::{Op, Plan};
    use crate::quant;

    /// The first launch of a pass that attends.
    fn attention(l: &Lowering, pass: &Pass) -> Spec {
        let mut list = specs(l, pass).unwrap().into_iter();
        list.find(|s| s.kind == Kind::Attention).expect("a kernel")
    }

    #[test]
    fn a_step_of_sequences_stores_the_newest_tokens_where_it_attends() {
        for kv_type in [blocks(), "I16"] {
            let l = lowering("sm_90", superblocks(), kv_type, true);
            let single = specs(&l, &step(1)).unwrap();
            let wanted = ["embed", "matvec", "attention_fixed", "matvec", "matvec"];
            assert_eq!(entries(&single)[..5], wanted);
            let params: AttentionFixed = single[2].params().unwrap();
            assert_eq!((params.k, params.v), (at("k"), at("v")));
            let room = l.card.shared_bytes * l.shapes.attention.shared / 100;
            assert!(single[2].shared as usize + STATIC_BYTES <= room);
            // Rows of one sequence are stored first, for all of them may be seen.
            let several = specs(&l, &step(3)).unwrap();
            let entries = entries(&several);
            let scatter = entries.iter().position(|e| *e == "kv_scatter_fixed");
            let scatter = scatter.expect("a scatter");
            assert_eq!(entries[scatter + 1], "attention_fixed");
            let params: AttentionFixed = several[scatter + 1].params().unwrap();
            assert_eq!((params.k, params.v), (0, 0));
        }
    }

    #[test]
    fn short_pages_are_taken_by_several_teams() {
        let table = table().attention;
        let found = |kv_type: &str| {
            let ty = quant::kv_by_name(kv_type).unwrap();
            [32, 64, 80, 128, 256]
                .map(|dim| teams(&table, page_bytes(ty, dim), ty.kernel.kv_bytes()))
        };
        assert_eq!(found("I16"), [2, 2, 1, 1, 1]);
        assert_eq!(found(blocks()), [4, 4, 2, 2, 1]);
    }

    #[test]
    fn a_row_alone_of_long_texts_has_many_teams_where_their_parts_have_room() {
        // A page's keys of a head: 16.5 KiB of two bytes a number, half of one.
        let table = table().attention;
        for (arch, n_ctx, kv_type, teams) in [
            ("sm_90", 8192, "I16", table.teams),
            ("sm_90", 8192, blocks(), table.long_teams),
            ("sm_90", 8191, blocks(), 2),
            ("sm_86", 8192, blocks(), 2),
        ] {
            let mut l = lowering(arch, superblocks(), kv_type, true);
            l.n_ctx = n_ctx;
            let of_rows = |rows| attention(&l, &step(rows));
            let single = of_rows(1);
            let threads = teams * TEAM;
            assert_eq!(single.block as usize, threads, "{arch} {n_ctx} {kv_type}");
            assert!(single.variant.constants.has("SINGLE_ROW", true));
            let two = of_rows(2);
            assert!(
                two.block as usize <= 2 * TEAM && two.variant.constants.has("SINGLE_ROW", false)
            );
        }
    }

    #[test]
    fn a_prompt_has_a_kernel_of_its_own_where_two_pages_fit() {
        let table = table().prompt;
        for (arch, kv_type, stages) in [
            ("sm_90", "I16", 4),
            ("sm_86", "I16", 2),
            ("sm_75", "I16", 0),
            ("sm_90", blocks(), 6),
            ("sm_75", blocks(), 0),
        ] {
            let mut l = lowering(arch, superblocks(), kv_type, true);
            let its = attention(&l, &chunk(512, 1));
            if stages == 0 {
                // A row a block, in four launches.
                assert_eq!((its.entry, its.grid[2]), ("attention_fixed", 128));
                continue;
            }
            assert_eq!(its.entry, "prompt_attention_fixed");
            // 4 heads of 512 rows, 128 queries a block, or 64 where that leaves half the SMs idle.
            for (sms, warps, blocks) in [(31, table.warps, 16), (32, table.few_warps, 32)] {
                l.card.sm_count = sms;
                let its = attention(&l, &chunk(512, 1));
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
            let is_its = |s: &Spec| s.entry == "attention_fixed";
            let at = list.iter().position(is_its).unwrap();
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
        use crate::backend::cuda::driver::spec::Reach;
        let of = |window: usize, pass: &Pass| {
            let mut l = lowering("sm_90", superblocks(), "I16", false);
            for fused in &mut l.fused.list {
                if let Fused::Single(Op::Attention { window: its, .. }) = &mut fused.op {
                    *its = Some(window);
                }
            }
            attention(&l, pass)
        };
        for (window, shares) in [(1, 1), (66, 3), (193, 4), (194, 5), (512, 9)] {
            let spec = of(window, &step(1));
            let params: AttentionFixed = spec.params().unwrap();
            assert_eq!(params.shares, shares, "{window}");
            assert!(spec.variant.constants.has("WINDOW", window), "{window}");
            let behind = |position| Reach {
                sequences: 1,
                rows: 1,
                position,
            };
            let [near, far] = [behind(window - 1), behind(4095)];
            assert_eq!(spec.traffic.bytes(&near), spec.traffic.bytes(&far));
            assert_eq!(
                spec.traffic.operations(&near),
                spec.traffic.operations(&far)
            );
        }
        // One that no row is longer than is none.
        for pass in [step(1), chunk(512, 1)] {
            let spec = of(4096, &pass);
            assert!(spec.variant.constants.has("WINDOW", 0));
        }
    }
}
