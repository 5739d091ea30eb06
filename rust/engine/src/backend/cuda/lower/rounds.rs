//! States in a round, which verifies drafts: its rows leave them as they are and keep of each row the few
//! numbers that bring a state forward by it. Behind the draw, which says how many rows of a sequence count,
//! the states go forward by those. So a state is never more than one: a copy of it behind every row would
//! take a hundred times as much, and be written where the row is wrong too.

use super::lowering::{Inputs, Lowering, Pass};
use super::mamba2;
use super::params::{Commit, CONSTANTS};
use super::recurrence::{self, columns, conv_constants, ConvConstants};
use super::sample::RING_STEPS;
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::backend::ROUND_ROWS;
use crate::error::Result;
use crate::plan::{Op, Plan, StateId};

shared! {
    /// conv_round.cu
    pub struct ConvVerify = "Verify" {
        /// `[m][ROW]` f32.
        pub x: u64,
        /// `[CHANNELS][TAPS]` f32, or 0.
        pub weight: u64,
        /// `[CHANNELS]` f32, or 0.
        pub bias: u64,
        /// `[n_slots][KEPT][CHANNELS]` f32.
        pub state: u64,
        /// `[m][CHANNELS]` f32, both; `out` may be `[m][TAPS][CHANNELS]`.
        pub inputs: u64, pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub n_slots: u32, pub unused: u32,
    }

    /// delta_round.cu
    pub struct DeltaVerify = "Verify" {
        /// `[m][2 * N_HEAD_K + N_HEAD][HEAD_DIM]` f32.
        pub qkv: u64,
        /// `[m][N_HEAD]` f32.
        pub alpha: u64, pub beta: u64,
        /// `[N_HEAD]` f32.
        pub a: u64, pub dt: u64,
        /// `[n_slots][N_HEAD][HEAD_DIM][HEAD_DIM]` f32.
        pub state: u64,
        /// `[ROUND_ROWS][N_HEAD][2][HEAD_DIM]` f32, then `[ROUND_ROWS][N_HEAD]`.
        pub kept: u64,
        /// `[m][N_HEAD][HEAD_DIM]` f32.
        pub out: u64,
        /// `[m]` u32.
        pub positions: u64, pub slots: u64,
        pub m: u32, pub n_slots: u32, pub eps: f32, pub unused: u32,
    }

    /// accepted.cu
    pub struct Accepted = "Params" {
        /// `[RING_STEPS][max_rows]` u64 in host memory.
        pub ring: u64,
        /// One u32.
        pub step: u64,
        /// `[m]` u32.
        pub slots: u64, pub accepted: u64,
        pub m: u32, pub max_rows: u32, pub n_slots: u32, pub unused: u32,
    }
}

static CONV_ROUND: Source = source!("conv_round.cu", CONSTANTS, ConvVerify, Commit);
static DELTA_ROUND: Source = source!("delta_round.cu", CONSTANTS, DeltaVerify, Commit);
static ACCEPTED: Source = source!("accepted.cu", CONSTANTS, Accepted);

constants! {
    /// conv_round.cu
    struct ConvVariant in CONV_ROUND {
        shape: ConvConstants,
    }

    /// delta_round.cu
    struct DeltaVariant in DELTA_ROUND {
        n_head: uint32_t, n_head_k: uint32_t, grouped: bool, head_dim: uint32_t, columns: uint32_t,
        most_rows: uint32_t, root: float,
    }

    /// accepted.cu
    struct AcceptedVariant in ACCEPTED {
        most_rows: uint32_t, ring_steps: uint32_t,
    }
}

/// Threads of a block of conv_round.cu.
const THREADS: u32 = 256;

/// Numbers of a state of matrices that a block takes: matrix.cuh.
const COMMIT_BLOCK: usize = 4096;

/// A round that was drawn from.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    pub rows: usize,
    pub inputs: Inputs,
    /// As in [`super::sample::Draw`].
    pub ring: u64,
    pub step: u64,
    /// Rows that the ring has room for.
    pub max_rows: usize,
}

/// The kernel of one such op, and the states of all ops that have the same.
#[derive(Debug)]
struct Group {
    variant: Variant,
    entry: &'static str,
    across: usize,
    states: Vec<StateId>,
}

fn conv_variant(plan: &Plan, op: &Op) -> Option<(ConvVariant, StateId)> {
    let (shape, state) = conv_constants(plan, op)?;
    Some((ConvVariant { shape }, state))
}

fn delta_variant(op: &Op) -> Option<(DeltaVariant, StateId)> {
    let Op::DeltaNet {
        state,
        n_head,
        n_head_k,
        grouped,
        head_dim,
        ..
    } = *op
    else {
        return None;
    };
    let variant = DeltaVariant {
        n_head,
        n_head_k,
        grouped,
        head_dim,
        columns: columns(head_dim),
        most_rows: ROUND_ROWS,
        root: (1.0 / (head_dim as f64).sqrt()) as f32,
    };
    Some((variant, state))
}

/// What keeps states, alike together.
fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for op in &plan.ops {
        let (variant, entry, across, state): (Variant, _, _, _) =
            if let Some((variant, state)) = conv_variant(plan, op) {
                let across = variant.shape.channels.div_ceil(THREADS as usize);
                (variant.into(), "conv_commit", across, state)
            } else if let Some((variant, state)) = delta_variant(op) {
                let blocks = (variant.head_dim * variant.head_dim).div_ceil(COMMIT_BLOCK);
                let across = variant.n_head * blocks;
                (variant.into(), "delta_commit", across, state)
            } else if let Op::Mamba2(op) = op {
                let blocks = (op.d_state * op.head_dim).div_ceil(COMMIT_BLOCK);
                let variant = mamba2::round_variant(op);
                (variant, "mamba2_commit", op.n_head * blocks, op.state)
            } else {
                continue;
            };
        match groups.iter_mut().find(|group| group.variant == variant) {
            Some(group) => group.states.push(state),
            None => groups.push(Group {
                variant,
                entry,
                across,
                states: vec![state],
            }),
        }
    }
    groups
}

/// The order in which kernels find the states of a plan.
pub fn places(plan: &Plan) -> Vec<StateId> {
    groups(plan).into_iter().flat_map(|g| g.states).collect()
}

/// The launch of an op over the rows of a round.
///
/// # Errors
/// As [`recurrence::spec`].
pub fn verify(l: &Lowering, op: &Op, pass: &Pass) -> Result<Spec> {
    let rows = pass.rows as u32;
    let (positions, slots) = (pass.inputs.positions, pass.inputs.slots);
    let n_slots = l.n_slots as u32;
    if let Op::Mamba2(op) = op {
        return mamba2::verify(l, op, pass);
    }
    let Some((variant, state)) = delta_variant(op) else {
        let conv = recurrence::convolution(l, op)?;
        let (variant, state) = conv_variant(&l.plan, op).ok_or_else(|| recurrence::no_state(op))?;
        let params = ConvVerify {
            x: l.address(conv.x),
            weight: conv.at.weight,
            bias: l.vector(conv.bias)?,
            state: conv.at.state,
            inputs: l.at.rounds.kept[state.0],
            out: l.address(conv.out),
            positions,
            slots,
            n_slots,
            unused: 0,
        };
        let across = (variant.shape.channels as u32).div_ceil(THREADS);
        let mut spec = Spec::new(variant, "conv_verify", [across, rows, 1], THREADS, &params);
        spec.label = format!("conv_verify {}", l.plan.states[state.0].name);
        return Ok(spec);
    };
    let rule = recurrence::delta_params(l, op, pass)?;
    let params = DeltaVerify {
        qkv: rule.qkv,
        alpha: rule.alpha,
        beta: rule.beta,
        a: rule.a,
        dt: rule.dt,
        state: rule.state,
        kept: l.at.rounds.kept[state.0],
        out: rule.out,
        positions,
        slots,
        m: rows,
        n_slots,
        eps: rule.eps,
        unused: 0,
    };
    let across = (variant.n_head * (variant.head_dim / variant.columns)) as u32;
    let threads = (variant.columns / 8 * 32) as u32;
    let grid = [across, rows, 1];
    let mut spec = Spec::new(variant, "delta_verify", grid, threads, &params);
    spec.label = format!("delta_verify {}", l.plan.states[state.0].name);
    Ok(spec)
}

/// The launches behind the draw of a round; none of a plan without states.
pub fn commits(l: &Lowering, drawn: &Drawn) -> Vec<Spec> {
    let groups = groups(&l.plan);
    if groups.is_empty() {
        return Vec::new();
    }
    let rows = drawn.rows as u32;
    let accepted = l.at.rounds.accepted;
    let params = Accepted {
        ring: drawn.ring,
        step: drawn.step,
        slots: drawn.inputs.slots,
        accepted,
        m: rows,
        max_rows: drawn.max_rows as u32,
        n_slots: l.n_slots as u32,
        unused: 0,
    };
    let variant = AcceptedVariant {
        most_rows: ROUND_ROWS,
        ring_steps: RING_STEPS,
    };
    let threads = ROUND_ROWS as u32;
    let mut list = vec![Spec::new(variant, "accepted", [1; 3], threads, &params)];
    let mut place = l.at.rounds.places;
    for group in groups {
        let params = Commit {
            places: place,
            accepted,
            positions: drawn.inputs.positions,
            slots: drawn.inputs.slots,
        };
        let layers = group.states.len();
        let grid = [group.across as u32, rows, layers as u32];
        let mut spec = Spec::new(group.variant, group.entry, grid, THREADS, &params);
        let widths = group.states.iter().map(|id| l.plan.states[id.0].width);
        spec.traffic = Traffic::rows(2 * 4 * widths.sum::<usize>());
        list.push(spec);
        place += (layers * size_of::<[u64; 2]>()) as u64;
    }
    list
}

#[cfg(test)]
mod tests {
    use super::super::lowering::{Path, RoundAddresses};
    use super::super::pass::specs;
    use super::super::tests::{entries, lowering, step, superblocks, with};
    use super::*;
    use crate::plan::sketch as s;

    #[test]
    fn states_that_are_alike_go_forward_in_one_launch_behind_a_round_alone() {
        let (x, a, rule) = (s::id("x"), s::id("a"), s::id("rule"));
        let mut plan = s::plan(vec![s::short_conv(x, a, true), s::delta_net(a, rule)]);
        let mut other = s::short_conv(x, a, true);
        if let Op::ShortConv { state, .. } = &mut other {
            *state = plan.add_state("conv of another layer".into(), 3 * 64);
        }
        plan.ops.push(other);
        assert_eq!(plan.kept_widths(), [64, 2 * 32 + 2, 64]);
        let mut l = with(lowering("sm_90", superblocks(), "I16", true), plan);
        assert_eq!(places(&l.plan), [0, 2, 1].map(StateId));
        l.at.buffers = vec![10 << 20; l.plan.buffers.len()];
        l.at.states = vec![1 << 20, 2 << 20, 3 << 20];
        l.at.rounds = RoundAddresses {
            kept: vec![4 << 20, 5 << 20, 6 << 20],
            places: 7 << 20,
            accepted: 8 << 20,
        };
        for name in ["taps", "decay", "dt"] {
            l.at.vectors.insert(s::weight_id(name), 9 << 20);
        }
        let drawn = Drawn {
            rows: 6,
            inputs: step(6).inputs,
            ring: 0,
            step: 0,
            max_rows: 64,
        };
        let list = commits(&l, &drawn);
        assert_eq!(entries(&list), ["accepted", "conv_commit", "delta_commit"]);
        // A row may be the first of its sequence.
        assert_eq!(list[1].grid, [1, 6, 2]);
        assert_eq!(list[2].grid, [2, 6, 1]);
        let at = |spec: &Spec| spec.params::<Commit>().unwrap().places;
        assert_eq!([at(&list[1]), at(&list[2])], [7 << 20, (7 << 20) + 2 * 16]);
        let of = |rows, path| {
            let pass = Pass { path, ..step(rows) };
            let list = specs(&l, &pass).unwrap();
            entries(&list).join(" ")
        };
        for rows in [1, 6] {
            let round = of(rows, Path::Round);
            assert_eq!(round, "conv_verify delta_verify conv_verify", "{rows}");
            assert!(!of(rows, Path::Decode).contains("verify"));
        }
        let without = lowering("sm_90", superblocks(), "I16", true);
        assert!(commits(&without, &drawn).is_empty());
        // A scan keeps of each head B, u and g.
        let plan = s::plan(vec![s::mamba2(x, rule)]);
        assert_eq!(plan.kept_widths(), [0, 2 * (16 + 16 + 1)]);
        l = with(l, plan);
        l.at.states.truncate(2);
        let list = commits(&l, &drawn);
        assert_eq!(entries(&list), ["accepted", "mamba2_commit"]);
        assert_eq!(list[1].grid, [2, 6, 1]);
        for (path, entry) in [(Path::Round, "mamba2_verify"), (Path::Decode, "mamba2")] {
            let pass = Pass { path, ..step(6) };
            assert_eq!(entries(&specs(&l, &pass).unwrap()), [entry]);
        }
    }
}
