//! Mixture of experts: the launches that route, that group rows by expert and that sum up their outputs;
//! and the constants of a product by experts.

use super::lowering::{Lowering, Pass};
use super::params::{self, Route, CONSTANTS};
use super::shape::MOST_BLOCK_X;
use crate::backend::cuda::driver::source::{constants, shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::{Spec, Traffic};
use crate::error::Result;
use crate::plan::fuse::{Experts, Fused, FusedOp, MixOp, ProductOp, RouteOp};
use crate::plan::{BufferId, Gating, Plan, WeightId};

pub use crate::plan::fuse::MOST_RANKS;

shared! {
    pub struct Group = "GroupParams" {
        /// `[m][2][ranks]` f32.
        pub routes: u64,
        /// `[blocks]` u32.
        pub experts: u64,
        /// `[blocks][rows]` u32.
        pub pairs: u64,
        pub m: u32, pub blocks: u32,
    }

    pub struct Mix = "MixParams" {
        /// `[m][ranks][width]` f32.
        pub x: u64,
        /// `[m][2][ranks]` f32.
        pub routes: u64,
        /// `[m][width]` f32.
        pub out: u64,
        pub m: u32, pub width: u32,
    }
}

static SOURCE: Source = source!("experts.cu", CONSTANTS, Route, Group, Mix);

constants! {
    /// What experts.cuh is compiled for.
    #[derive(Copy)]
    pub struct ExpertConstants {
        ranks: uint32_t, n_expert: uint32_t,
        /// Rows of a block.
        rows_of_expert: uint32_t,
        ranked: bool, grouped: bool,
    }

    /// What route.cuh is compiled for.
    pub struct RouteConstants with { GATING_SOFTMAX, GATING_SIGMOID, GATING_SELECTED_SOFTMAX } {
        gating: int, route_experts: uint32_t, route_ranks: uint32_t, biased: bool,
        renormalize: bool, ranks_scaled: bool, logit_factor_bits: bits,
        /// 1: none.
        route_groups: uint32_t, route_groups_used: uint32_t,
    }

    /// experts.cu
    struct ExpertsVariant in SOURCE {
        experts: ExpertConstants, route: RouteConstants, adds: bool,
    }
}

const THREADS: u32 = 256;

/// Blocks that keep every card busy.
const MOST_BLOCKS: u64 = 1024;

/// Threads of the block that groups pairs: as experts.cu has them.
fn group_threads(n_expert: usize) -> u32 {
    match n_expert {
        0..=256 => 1024,
        257..=512 => 512,
        _ => 256,
    }
}

/// The ranks of a buffer of routes.
pub fn ranks(plan: &Plan, routes: BufferId) -> usize {
    plan.buffer(routes).width / 2
}

/// Blocks of `rows` rows that `pairs` pairs take at most, whichever of `n_expert` experts they chose:
/// each expert that has some fills all of its blocks but one.
pub fn blocks(pairs: usize, n_expert: usize, rows: usize) -> usize {
    let chosen = n_expert.min(pairs);
    (pairs - chosen) / rows + chosen
}

/// Bytes of the lists of blocks and of their pairs, for passes of up to `rows` rows.
pub fn list_bytes(plan: &Plan, fused: &[FusedOp], rows: usize) -> usize {
    let of = |fused: &FusedOp| match &fused.op {
        Fused::MatVec(ProductOp {
            experts: Some(experts),
            parts,
            ..
        }) => {
            let pairs = rows.saturating_mul(ranks(plan, experts.routes));
            // Blocks of one row are the most, those of many rows hold the most that are empty.
            let chosen = plan.weight(parts[0].weight).n_expert.min(pairs);
            let padded = pairs.saturating_add(chosen.saturating_mul(MOST_BLOCK_X));
            pairs
                .saturating_add(padded)
                .saturating_mul(size_of::<u32>())
        }
        _ => 0,
    };
    fused.iter().map(of).max().unwrap_or(0)
}

/// A product's rows as pairs of a row and a rank.
#[derive(Debug, Clone, Copy)]
pub struct Pairs {
    pub ranks: usize,
    pub n_expert: usize,
    /// Of all rows.
    pub count: usize,
    pub at: params::Experts,
    is_grouped: bool,
    ranked: bool,
    /// Rows of a block.
    pub rows: usize,
}

impl Pairs {
    /// The pairs of `m` rows that multiply with `weight`, each a block of its own.
    pub fn new(l: &Lowering, experts: Experts, weight: WeightId, m: usize) -> Self {
        let ranks = ranks(&l.plan, experts.routes);
        Self {
            ranks,
            n_expert: l.plan.weight(weight).n_expert,
            count: m * ranks,
            at: params::Experts {
                routes: l.address(experts.routes),
                experts: 0,
                pairs: 0,
            },
            is_grouped: false,
            ranked: experts.ranked,
            rows: 1,
        }
    }

    /// The same, grouped into blocks of `rows` rows.
    pub fn grouped(self, l: &Lowering, rows: usize) -> Self {
        let mut grouped = Self {
            is_grouped: true,
            rows,
            ..self
        };
        let lists = l.at.scratch.groups;
        grouped.at.experts = lists;
        grouped.at.pairs = lists + (grouped.blocks() * size_of::<u32>()) as u64;
        grouped
    }

    /// Blocks of rows, at most.
    pub fn blocks(&self) -> usize {
        blocks(self.count, self.n_expert, self.rows)
    }

    /// The launch that groups them.
    pub fn group(&self) -> Spec {
        let params = Group {
            routes: self.at.routes,
            experts: self.at.experts,
            pairs: self.at.pairs,
            m: (self.count / self.ranks) as u32,
            blocks: self.blocks() as u32,
        };
        let variant = variant(ExpertConstants::of(Some(self)), None, false);
        let threads = group_threads(self.n_expert);
        let mut spec = Spec::new(variant, "group", [1, 1, 1], threads, &params);
        spec.traffic = Traffic::rows(self.count * 8 + self.blocks() * self.rows * 4);
        spec
    }
}

impl ExpertConstants {
    /// Of a product by experts, or of one without.
    pub fn of(pairs: Option<&Pairs>) -> Self {
        let none = Self::new(0, 1);
        pairs.map_or(none, |pairs| Self {
            ranks: pairs.ranks,
            n_expert: pairs.n_expert,
            rows_of_expert: pairs.rows,
            ranked: pairs.ranked,
            grouped: pairs.is_grouped,
        })
    }

    /// Of a kernel beside products.
    fn new(ranks: usize, n_expert: usize) -> Self {
        Self {
            ranks,
            n_expert,
            rows_of_expert: 1,
            ranked: false,
            grouped: false,
        }
    }
}

/// Where a kernel finds the experts of its rows.
pub fn address_of(pairs: Option<&Pairs>) -> params::Experts {
    pairs.map_or_else(bytemuck::Zeroable::zeroed, |pairs| pairs.at)
}

fn variant(experts: ExpertConstants, route: Option<(&Plan, &RouteOp)>, adds: bool) -> Variant {
    ExpertsVariant {
        experts,
        route: RouteConstants::of(route),
        adds,
    }
    .into()
}

impl RouteConstants {
    /// Where experts are chosen, and where none are.
    pub fn of(route: Option<(&Plan, &RouteOp)>) -> Self {
        let gating = match route.map(|(_, op)| op.gating) {
            None | Some(Gating::Softmax) => 0,
            Some(Gating::Sigmoid) => 1,
            Some(Gating::SelectedSoftmax) => 2,
        };
        let groups = route.and_then(|(_, op)| op.groups);
        let is = |f: fn(&RouteOp) -> bool| route.is_some_and(|(_, op)| f(op));
        Self {
            gating,
            route_experts: route.map_or(1, |(plan, op)| plan.buffer(op.logits).width),
            route_ranks: route.map_or(1, |(plan, op)| ranks(plan, op.out)),
            biased: is(|op| op.bias.is_some()),
            renormalize: is(|op| op.renormalize),
            ranks_scaled: is(|op| op.scales.is_some()),
            logit_factor_bits: route.map_or(1.0, |(_, op)| op.factor),
            route_groups: groups.map_or(1, |of| of.count),
            route_groups_used: groups.map_or(1, |of| of.used),
        }
    }
}

/// How the choice is told of, for `m` rows.
pub fn params_of(l: &Lowering, op: &RouteOp, m: usize) -> Result<Route> {
    Ok(Route {
        logits: l.address(op.logits),
        bias: l.vector(op.bias)?,
        scales: l.vector(op.scales)?,
        out: l.address(op.out),
        scale: op.scale,
        m: m as u32,
    })
}

/// The launch that chooses experts.
pub fn route(l: &Lowering, op: &RouteOp, pass: &Pass) -> Result<Spec> {
    let m = l.rows_of(op.logits, pass);
    let experts = ExpertConstants::new(ranks(&l.plan, op.out), l.plan.buffer(op.logits).width);
    let variant = variant(experts, Some((&l.plan, op)), false);
    // A warp a row; few rows still are blocks of their own.
    let warps = m.clamp(1, THREADS as usize / 32);
    let grid = [m.div_ceil(warps) as u32, 1, 1];
    Ok(Spec::new(
        variant,
        "route",
        grid,
        32 * warps as u32,
        &params_of(l, op, m)?,
    ))
}

/// Floats of `m` rows that a mix reads and writes.
pub fn mix_floats(plan: &Plan, op: &MixOp, m: usize) -> usize {
    let (ranks, width) = (ranks(plan, op.routes), plan.buffer(op.out).width);
    m * (ranks * (width + 1) + width * (1 + usize::from(op.adds)))
}

/// The launch that sums up what experts give.
pub fn mix(l: &Lowering, op: &MixOp, pass: &Pass) -> Spec {
    let (m, width) = (l.rows_of(op.out, pass), l.plan.buffer(op.out).width);
    let params = Mix {
        x: l.address(op.x),
        routes: l.address(op.routes),
        out: l.address(op.out),
        m: m as u32,
        width: width as u32,
    };
    let variant = variant(
        ExpertConstants::new(ranks(&l.plan, op.routes), 1),
        None,
        op.adds,
    );
    let n = (m * width) as u64;
    let blocks = n.div_ceil(u64::from(THREADS)).clamp(1, MOST_BLOCKS);
    let mut spec = Spec::new(variant, "mix", [blocks as u32, 1, 1], THREADS, &params);
    spec.traffic = Traffic::rows(4 * mix_floats(&l.plan, op, m));
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many pairs each expert has, and no fewer than the worst case takes.
    #[test]
    fn blocks_hold_every_choice_and_some_choice_takes_all() {
        for n_expert in 1..5usize {
            for pairs in 0..9usize {
                for rows in 1..4usize {
                    let most = blocks(pairs, n_expert, rows);
                    let mut worst = 0;
                    for choice in 0..(pairs + 1).pow(n_expert as u32) {
                        let counts = (0..n_expert).map(|e| choice / (pairs + 1).pow(e as u32));
                        let counts: Vec<_> = counts.map(|c| c % (pairs + 1)).collect();
                        if counts.iter().sum::<usize>() == pairs {
                            let taken = counts.iter().map(|c| c.div_ceil(rows)).sum();
                            worst = worst.max(taken);
                        }
                    }
                    assert_eq!(most, worst, "{n_expert} {pairs} {rows}");
                }
            }
        }
    }
}
