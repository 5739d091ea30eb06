//! One row of activations times weights that are small integers: the kernel that decode is made of.

use super::experts::{self, address_of, constants_of, route_constants, Pairs, MOST_RANKS};
use super::gate;
use super::lowering::{constants, flag, sizes, Lowering, Pass};
use super::overflow::overflows;
use super::params::{self, MatVec, Overflows, QkvRotation, Route, Segment, CONSTANTS};
use super::product::Product;
use super::shape::{largest_tile, minimums, segments, superblocks, MOST_TICKETS, TILE_ROWS};
use crate::backend::cuda::driver::source::{source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::{Epilogue, Fused, PassFusion, ProductOp};
use crate::plan::Op;
use crate::quant::QuantType;

static SOURCE: Source = source!(
    "matvec.cu",
    CONSTANTS,
    MatVec,
    Segment,
    QkvRotation,
    Overflows,
    params::Experts,
    params::SharedExpert,
    params::Gated,
    Route
);

/// Bytes of a superblock of x in shared memory, as the kernel lays it out, in so many forms and with so many
/// sums for minimums.
const fn x_sb_bytes(forms: usize, minimums: usize) -> usize {
    forms * 8 * (2 * 64 + 16) + minimums / 8 * 64 + 32 + 128
}

/// Forms of x that these types are multiplied with: float16, bytes.
fn forms(types: &[&QuantType]) -> usize {
    let any = |in_bytes| types.iter().any(|t| t.kernel.in_bytes == in_bytes);
    usize::from(any(false)) + usize::from(any(true))
}

/// Shared memory beside the dynamic and beside what its shape says: a place, a ticket, and the room to
/// align all of it.
const OTHER_STATIC_BYTES: usize = 128;

/// Bytes of the sums of a superblock of a tile.
const P_SB_BYTES: usize = (4 * TILE_ROWS + 4) * 4;

/// Warps of a block: four a scheduler hide each other's latencies. (With 8, so that two blocks fit an
/// SM, 8B made 437 instead of 527 tokens per second on an H200, 1B 1,768 instead of 2,036.)
const WARPS: usize = 16;

/// Warps of a block at most, where a few more than `WARPS` have a superblock each. (27B, of twenty: 6,792 ->
/// 6,556 us a step on an H200.)
const MOST_WARPS: usize = 20;

/// Tiles of a group of warps between two barriers, and most tiles in flight a warp.
const ROUND: usize = 4;
const MOST_TILES: usize = 8;

/// Shared memory of a block, in per cent of what an SM can give to one: short rows leave room for a
/// light successor, long ones, whose activations take more, too, where any is light. (49 and 62 made 494
/// instead of 527 tokens per second at 8B on an H200, the same at 1B.) Where none is, short rows still
/// leave some to attention unless it costs them warps, and long ones leave none: 8B 1,799 -> 1,757 us a
/// step, 8B of eight bits 2,611 -> 2,251, 27B 7,528 -> 6,800; so much for short ones too 1,757 -> 1,773.
const SHARED_SHORT: usize = 61;
const SHARED_LONG: usize = 70;

/// Tiles of a block up to which a product is light: it has fewer warps and so little shared memory that
/// its block begins, and asks for all that it will read, beside one of any predecessor.
const LIGHT_TILES: usize = 16;
const LIGHT_WARPS: usize = 8;
const SHARED_LIGHT: usize = 30;

/// Tiles a warp that are asked for before x, where a block has many: what is asked for first arrives
/// first, and x is late behind a whole ring of them. (By time stamps on an H200, of gate and up at 1B: x
/// after 2.1 us instead of 2.9.)
const AHEAD: usize = 1;

/// Threads of a block up to which columns of x in registers, some thirty each, leave a light neighbour
/// its own. (16 warps of 1B with them: 494 -> 525 us a step; without, 8B 1,838 -> 1,872, 3B 1,067 -> 1,086.)
const HOLDING_THREADS: usize = 384;

/// Columns from which rows are long, and bytes of weights from which a kernel is long enough to prefer
/// tiles in flight to a neighbour.
const LONG_ROW: usize = 6144;
const MANY_BYTES: usize = 128 << 20;

/// Everything the kernel is compiled for but its epilogue. No bit of its sums depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    n_in: usize,
    /// Rows of x behind each other: of all experts, where a block sums up what they give.
    chained: usize,
    /// Warps that share a row.
    warps_k: usize,
    /// Groups of `warps_k` warps in a block, each with tiles of its own.
    warps_r: usize,
    /// Tiles in flight a warp, and those that are asked for before x.
    ring: usize,
    ahead: usize,
    /// Tiles of a group between two barriers.
    round: usize,
    /// Sets of sums: one is written while the other is read.
    sets: usize,
    /// Bytes of the largest tile.
    stage: usize,
    /// Forms of x.
    forms: usize,
    /// Sums of a superblock of x for minimums: there is room for eight where no type has any.
    minimums: usize,
    /// Whether columns of x stay in registers from tile to tile.
    holds_columns: bool,
}

impl Shape {
    /// A shape of at most `warps` warps for `tiles` tiles on `sms` SMs that fits `shared` bytes, and with
    /// what it has beside them all that a block may have, where there is one. One of `LIGHT_WARPS` asks
    /// for all its tiles before x.
    fn new(
        (n_in, chained): (usize, usize),
        types: &[&QuantType],
        tiles: usize,
        sms: usize,
        warps: usize,
        (shared, all): (usize, usize),
    ) -> Option<Self> {
        let n_sb = superblocks(n_in) * chained;
        let is_light = warps == LIGHT_WARPS;
        let shape = |warps: usize, round, ring| {
            let warps_k = n_sb.min(warps);
            // Tiles for a block each, where there are not more.
            let warps_r = if tiles <= sms { 1 } else { warps / warps_k };
            Self {
                n_in,
                chained,
                warps_k,
                warps_r,
                ring,
                ahead: if is_light { ring } else { AHEAD },
                round,
                sets: 1 + usize::from(round * sms * warps_r < tiles),
                stage: largest_tile(types),
                forms: forms(types),
                minimums: minimums(types).max(8),
                holds_columns: !is_light,
            }
        };
        // As many warps as can be, then as few barriers, then as many tiles in flight.
        let mut warps = warps;
        while warps > 0 {
            let most = tiles.div_ceil(sms * shape(warps, 1, 2).warps_r);
            for round in (1..=most.clamp(1, ROUND)).rev() {
                let shapes = (2..=MOST_TILES).rev().map(|ring| shape(warps, round, ring));
                let fits = |s: &Self| {
                    s.shared_bytes() <= shared && s.shared_bytes() + s.static_bytes() <= all
                };
                if let Some(found) = shapes.into_iter().find(fits) {
                    return Some(found);
                }
            }
            // Few are not halved but for less than a light block has.
            warps = if warps > LIGHT_WARPS {
                warps - 2
            } else {
                warps / 2
            };
        }
        None
    }

    fn threads(&self) -> usize {
        32 * self.warps_k * self.warps_r
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn shared_bytes(&self) -> usize {
        let n_sb = superblocks(self.n_in) * self.chained;
        let x = n_sb.div_ceil(self.warps_k) * x_sb_bytes(self.forms, self.minimums);
        let warps = self.warps_k * self.warps_r * (self.ring * self.stage + x);
        let sums = self.sets * self.warps_r * self.round * n_sb * P_SB_BYTES;
        warps + 2 * n_sb * 4 + sums
    }

    /// Shared memory beside the dynamic, at most: barriers, rotations of the first round, experts and
    /// their shares, where the row is.
    fn static_bytes(&self) -> usize {
        let barriers = self.warps_k * self.warps_r * self.ring * 8;
        let rotations = self.warps_r * self.round * (TILE_ROWS / 2) * 8;
        barriers + rotations + MOST_RANKS * 8 + OTHER_STATIC_BYTES
    }

    fn constants(&self) -> String {
        constants(&[("N_IN", self.n_in), ("MINIMUMS", self.minimums)])
            + &sizes(&[
                ("WARPS_K", self.warps_k),
                ("WARPS_R", self.warps_r),
                ("RING", self.ring),
                ("AHEAD", self.ahead),
                ("ROUND", self.round),
                ("SETS", self.sets),
                ("SHARED_BYTES", self.shared_bytes()),
            ])
            + &flag("HOLDS_COLUMNS", self.holds_columns)
    }
}

/// The launch of `product` with the one row of `op.x`, behind `before` others of the pass; none where
/// the row is too long for the shared memory of the card. With `pairs`, one launch has all of them.
pub fn spec(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    pairs: Option<&Pairs>,
    pass: &Pass,
    before: usize,
) -> Result<Option<Spec>> {
    let (is_mixed, is_chained) = match op.fusion {
        PassFusion::Mix { is_chained, .. } => (true, is_chained),
        _ => (false, false),
    };
    let is_shared = op.shared.is_some();
    if let Some(its) = pairs.filter(|_| is_chained) {
        let chained = its.count + usize::from(is_shared);
        if let Some(spec) = launch(l, op, product, (pairs, chained), pass, before)? {
            return Ok(Some(spec));
        }
    }
    // An expert that every row goes to adds to the sum in its turn.
    if is_mixed && is_shared {
        return Ok(None);
    }
    launch(l, op, product, (pairs, 1), pass, before)
}

/// With pairs, a block has the tiles of `chained` experts behind each other.
fn launch(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    (pairs, chained): (Option<&Pairs>, usize),
    pass: &Pass,
    before: usize,
) -> Result<Option<Spec>> {
    let n_in = product.n_in;
    let tiles = product
        .tiles
        .iter()
        .sum::<usize>()
        .max(product.shared_tiles);
    let is_shared = op.shared.is_some();
    let count = pairs.map_or(1, |pairs| pairs.count + usize::from(is_shared));
    // Experts side by side share the card: blocks of one after another's would each ask for their first
    // weights when the one before has ended.
    let m = count / chained;
    let sms = (l.card.sm_count as usize / m).clamp(1, MOST_TICKETS);
    let is_short = n_in * chained < LONG_ROW && product.bytes < MANY_BYTES;
    let is_few = |tiles: usize, n_in, sms| tiles * superblocks(n_in) <= LIGHT_TILES * sms;
    let is_light = pairs.is_none() && n_in < LONG_ROW && is_few(tiles, n_in, sms);
    // Its neighbours in a step are as wide as the narrower side of this one.
    let width = n_in.min(tiles * TILE_ROWS);
    let is_beside_light =
        pairs.is_some() || is_few(width / TILE_ROWS, width, l.card.sm_count as usize);
    let n_sb = superblocks(n_in) * chained;
    let has_room = chained > 1 || !is_beside_light;
    let most = match n_sb > WARPS && n_sb <= MOST_WARPS && has_room {
        true => n_sb,
        false => WARPS,
    };
    let shape = |warps, per_cent| {
        let all = l.card.shared_bytes;
        let shared = (all * per_cent / 100, all);
        Shape::new((n_in, chained), &product.types, tiles, sms, warps, shared)
    };
    let shape = match (l.card.has_pdl(), is_short) {
        (false, _) => shape(WARPS, 100),
        (true, _) if is_light => shape(LIGHT_WARPS, SHARED_LIGHT),
        (true, true) if is_beside_light => beside_light(shape(most, SHARED_SHORT)),
        (true, false) if is_beside_light => beside_light(shape(most, SHARED_LONG)),
        (true, true) => {
            let threads = |s: &Option<Shape>| s.map(|s| s.threads());
            let (some, all) = (shape(most, SHARED_SHORT), shape(most, 100));
            if threads(&some) < threads(&all) {
                all
            } else {
                some
            }
        }
        (true, false) => shape(most, 100),
    };
    let Some(shape) = shape else {
        return Ok(None);
    };
    let (gate, route, mix) = match op.fusion {
        PassFusion::Gate(gate) => (Some(gate), None, None),
        PassFusion::Choice(route) => (None, Some(route), None),
        PassFusion::Mix { mix, .. } => (None, None, Some(mix)),
        PassFusion::Nothing | PassFusion::Route(_) => (None, None, None),
    };
    let variant = Variant::new(
        &SOURCE,
        shape.constants()
            + &flag("NORM", op.norm.is_some())
            + &flag("CHOOSES", route.is_some())
            + &flag("MIXES", mix.is_some())
            + &flag("CHAINED", chained > 1)
            + &flag("SHARES", is_shared)
            + &flag("ADDS", mix.is_some_and(|mix| mix.adds))
            + &segments(&product.types)
            + &constants_of(pairs)
            + &gate::constants(l, gate.as_ref())
            + &route_constants(route.as_ref().map(|op| (&*l.plan, op)))
            + &product.constants,
    );
    let route_params = match &route {
        Some(route) => experts::params_of(l, route, 1)?,
        None => bytemuck::Zeroable::zeroed(),
    };
    let params = MatVec {
        segment: product.segment,
        x: l.source(gate.map_or(op.x, |gate| gate.x), pass),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        eps: op.norm.map_or(0.0, |n| n.eps),
        // The first kernel of a pass may write the positions.
        located: u16::from(Spec::reads_before_wait(before)),
        early: u16::from(Spec::reads_before_wait(before) && reads_early(l, op)),
        gated: gate::params(l, gate.as_ref())?,
        overflows: overflows(l, op, pass),
        experts: address_of(pairs),
        shared: product.shared,
        rotation: product.rotation,
        route: route_params,
        mixed: mix.map_or(0, |mix| l.address(mix.out)),
        tickets: l.at.scratch.tickets,
    };
    // One block an SM, idle ones too: what room there is beside it is one block's of the successor.
    let grid = sms;
    let grid = [grid as u32, m as u32, 1];
    let mut spec = Spec::new(variant, "matvec", grid, shape.threads() as u32, &params);
    spec.shared = shape.shared_bytes() as u32;
    product.describe(&mut spec, "matvec", count, n_in);
    if gate.is_some() {
        spec.label = spec.label.replacen("matvec", "gate matvec", 1);
    }
    if route.is_some() {
        spec.label = spec.label.replacen("matvec", "route matvec", 1);
    }
    if let Some(mix) = mix {
        spec.label += " mix";
        spec.traffic.rows += 4 * experts::mix_floats(&l.plan, &mix, 1) as u64;
    }
    Ok(Some(spec))
}

/// `shape` with no more registers than leave a light neighbour its own.
fn beside_light(shape: Option<Shape>) -> Option<Shape> {
    shape.map(|s| Shape {
        holds_columns: s.threads() <= HOLDING_THREADS,
        ..s
    })
}

/// Whether what the sums of `op` are added to was there before the preceding kernel began: that kernel
/// writes something else, and no kernel lets its successor begin before its own predecessor has ended.
fn reads_early(l: &Lowering, op: &ProductOp) -> bool {
    let Epilogue::Add { out, .. } = op.epilogue else {
        return false;
    };
    let before = op.number.checked_sub(1).and_then(|i| l.fused.list.get(i));
    match before.map(|before| &before.op) {
        Some(Fused::Single(Op::Attention { out: its, .. })) => *its != out,
        Some(Fused::MatVec(ProductOp {
            epilogue: Epilogue::Gated { out: its, .. },
            ..
        })) => *its != out,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    #[test]
    fn shapes_fit_and_only_long_rows_on_small_cards_have_none() {
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for n_in in [32, 576, 896, 2048, 4096, 8960, 14336, 28672] {
                for (sms, shared) in [(20, 64 << 10), (84, 100 << 10), (132, 159 << 10)] {
                    for tiles in [1, 36, 1024, 8016] {
                        let room = (shared, shared);
                        let shape = Shape::new((n_in, 1), &[ty], tiles, sms, WARPS, room);
                        let Some(shape) = shape else {
                            assert!(n_in * 8 > shared, "{ty:?} {n_in} {shared}");
                            continue;
                        };
                        assert!(shape.shared_bytes() <= shared, "{ty:?} {n_in}: {shape:?}");
                        assert!(shape.warps_k <= superblocks(n_in), "{shape:?}");
                        let one = shape.round * sms * shape.warps_r >= tiles;
                        assert_eq!(shape.sets, if one { 1 } else { 2 }, "{shape:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_rows_that_leave_memory_for_few_warps_are_not_light() {
        // As of an 8B's `ffn_down`, alone on an SM and beside a light neighbour.
        let all = 227 << 10;
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for per_cent in [SHARED_LONG, 100] {
                let room = (all * per_cent / 100, all);
                let shape = Shape::new((14336, 1), &[ty], 256, 132, WARPS, room).unwrap();
                assert_eq!(shape.ahead, AHEAD, "{ty:?} {per_cent}: {shape:?}");
                assert!(
                    shape.ring > AHEAD && shape.holds_columns,
                    "{ty:?}: {shape:?}"
                );
                if per_cent == 100 {
                    assert!(shape.warps_k > LIGHT_WARPS, "{ty:?}: {shape:?}");
                }
            }
        }
        let room = (all * SHARED_LIGHT / 100, all);
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            let shape = Shape::new((2048, 1), &[ty], 128, 132, LIGHT_WARPS, room).unwrap();
            assert!(
                shape.ahead == shape.ring && !shape.holds_columns,
                "{shape:?}"
            );
        }
    }
}
