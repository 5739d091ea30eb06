//! One row of activations times weights that are small integers: the kernel that decode is made of. By
//! experts, of a few rows each by itself.

use super::experts::{self, address_of, ExpertConstants, Pairs, RouteConstants, MOST_RANKS};
use super::fit::fit;
use super::gate::{self, GateConstants};
use super::lowering::{Lowering, Pass};
use super::overflow::overflows;
use super::params::{self, MatVec, Overflows, QkvRotation, Route, Segment, CONSTANTS};
use super::product::{EpilogueConstants, Product};
use super::shape::{largest_tile, minimums, superblocks, Segments, MOST_TICKETS, TILE_ROWS};
use super::shapes;
use crate::backend::cuda::driver::source::{constants, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::{Epilogue, Fused, PassFusion, ProductOp};
use crate::plan::Op;
use crate::quant::QuantType;

static SOURCE: Source = source! {
    "matvec.cu", CONSTANTS, MatVec, Segment, QkvRotation, Overflows, params::Experts,
    params::SharedExpert, params::Gated, Route
};

constants! {
    /// How a block takes the product: no bit of its sums depends on it.
    #[derive(Copy, Eq, Default)]
    struct Tiles {
        n_in: int,
        /// Sums of a superblock of x for minimums.
        minimums: int,
        /// Warps that share a row; and groups of them, each with tiles of its own.
        warps_k: uint32_t, warps_r: uint32_t,
        /// Tiles in flight a warp, and those that are asked for before x.
        ring: uint32_t, ahead: uint32_t,
        /// Tiles of a group between two barriers; and sets of sums: one is written while the other is read.
        round: uint32_t, sets: uint32_t,
        shared_bytes: uint32_t,
        /// Whether columns of x stay in registers from tile to tile.
        holds_columns: bool,
        /// Superblocks of the rows of x, behind each other: of all experts, where a block sums up what they give.
        n_sb: usize,
        /// Bytes of a superblock of x, and of the largest tile.
        x_sb: usize, stage: usize,
        /// Of the product, and the multiprocessors that share them.
        tiles: usize, sms: usize,
    }

    /// matvec.cu
    struct MatVecVariant in SOURCE {
        tiles: Tiles,
        norm: bool, chooses: bool, mixes: bool, chained: bool, shares: bool, adds: bool, several: bool,
        types: Segments, experts: ExpertConstants, gate: GateConstants, route: RouteConstants,
        epilogue: EpilogueConstants,
    }
}

/// Bytes of a superblock of x in shared memory that products with these types read, as the kernel lays it out.
fn x_sb_bytes(types: &[&QuantType]) -> usize {
    let is_read = |in_bytes| types.iter().any(|t| t.kernel.in_bytes == in_bytes);
    let halves = if is_read(false) { (4 * 3 + 2) * 64 } else { 0 };
    let bytes = if is_read(true) { 9 * 64 + 16 + 32 } else { 0 };
    halves + bytes + 4 * minimums(types) + 32 + 64
}

/// Shared memory beside the dynamic and beside what its shape says: a place, a ticket, and the room to
/// align all of it.
const OTHER_STATIC_BYTES: usize = 128;

/// Bytes of the sums of a superblock of a tile.
const P_SB_BYTES: usize = (TILE_ROWS + 4) * 4;

impl Tiles {
    /// The same with so many tiles between two barriers, and so many in flight.
    fn with(self, round: usize, ring: usize) -> Self {
        let mut tiles = Self {
            round,
            ring,
            ahead: self.ahead.min(ring),
            sets: 1 + usize::from(round * self.sms * self.warps_r < self.tiles),
            ..self
        };
        tiles.shared_bytes = tiles.bytes();
        tiles
    }

    /// Of at most `warps` warps, with what `of` says of x and the product, in `shared` bytes; and with what they
    /// have beside them in all that a block may have. As many warps as can be; a light block asks for all its
    /// tiles before x.
    fn fit(
        table: &shapes::MatVec,
        of: Self,
        (warps, is_light): (usize, bool),
        (shared, all): (usize, usize),
    ) -> Option<Self> {
        let form = |warps: usize| {
            let warps_k = of.n_sb.min(warps);
            Self {
                warps_k,
                // Tiles for a block each, where there are not more.
                warps_r: if of.tiles <= of.sms {
                    1
                } else {
                    warps / warps_k
                },
                ahead: if is_light { table.ring } else { table.ahead },
                holds_columns: !is_light,
                ..of
            }
        };
        // Few are not halved but for less than a light block has.
        let fewer = |warps: &usize| {
            let is_more = *warps > table.light_warps;
            let fewer = if is_more { warps - 2 } else { warps / 2 };
            Some(fewer).filter(|warps| *warps > 0)
        };
        let forms = std::iter::successors(Some(warps), fewer).map(form);
        let most_round = |s: &Self| s.tiles.div_ceil(s.sms * s.warps_r).clamp(1, table.round);
        let room = |s: &Self| shared.min(all.saturating_sub(s.static_bytes()));
        let fits = |s: &Self| s.shared_bytes <= room(s);
        fit(forms, most_round, table.ring, Self::with, fits)
    }

    /// What any of them is made of: `chained` rows of `n_in` columns, and tiles of these types.
    fn of(
        (n_in, chained): (usize, usize),
        types: &[&QuantType],
        (tiles, sms): (usize, usize),
    ) -> Self {
        Self {
            n_in,
            minimums: minimums(types),
            n_sb: superblocks(n_in) * chained,
            x_sb: x_sb_bytes(types),
            stage: largest_tile(types),
            tiles,
            sms,
            ..Self::default()
        }
    }

    fn threads(&self) -> usize {
        32 * self.warps_k * self.warps_r
    }

    /// Dynamic shared memory, as the kernel lays it out.
    fn bytes(&self) -> usize {
        let x = self.n_sb.div_ceil(self.warps_k) * self.x_sb;
        let warps = self.warps_k * self.warps_r * (self.ring * self.stage + x);
        let sums = self.sets * self.warps_r * self.round * self.n_sb * P_SB_BYTES;
        warps + 2 * self.n_sb * 4 + sums
    }

    /// Shared memory beside the dynamic, at most: barriers, rotations of the first round, experts and
    /// their shares, where the row is.
    fn static_bytes(&self) -> usize {
        let barriers = self.warps_k * self.warps_r * self.ring * 8;
        let rotations = self.warps_r * self.round * (TILE_ROWS / 2) * 8;
        barriers + rotations + MOST_RANKS * 8 + OTHER_STATIC_BYTES
    }
}

/// The launch of `product` with the one row of `op.x`, or by experts with each, behind `before` others of the
/// pass; none where a row is too long for the shared memory of the card.
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
        let chained = its.ranks + usize::from(is_shared);
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
    let rows = pairs.map_or(1, |pairs| pairs.count / pairs.ranks);
    let of_row = pairs.map_or(1, |pairs| pairs.ranks + usize::from(is_shared));
    // Experts side by side share the card: blocks of one after another's would each ask for their first
    // weights when the one before has ended.
    let m = of_row / chained;
    let sms = (l.card.sm_count as usize / (m * rows)).clamp(1, MOST_TICKETS / rows);
    let table = &l.shapes.matvec;
    let is_short = n_in * chained < table.long_row && product.bytes < table.many_bytes;
    let is_few = |tiles: usize, n_in, sms| tiles * superblocks(n_in) <= table.light_tiles * sms;
    let is_light = pairs.is_none() && n_in < table.long_row && is_few(tiles, n_in, sms);
    // Its neighbours in a step are as wide as the narrower side of this one.
    let width = n_in.min(tiles * TILE_ROWS);
    let is_beside_light =
        pairs.is_some() || is_few(width / TILE_ROWS, width, l.card.sm_count as usize);
    let of = Tiles::of((n_in, chained), &product.types, (tiles, sms));
    let has_room = chained > 1 || !is_beside_light;
    let is_more = (table.warps + 1..=table.most_warps).contains(&of.n_sb);
    let most = if is_more && has_room {
        of.n_sb
    } else {
        table.warps
    };
    let fit = |warps, is_light, per_cent| {
        let all = l.card.shared_bytes;
        Tiles::fit(table, of, (warps, is_light), (all * per_cent / 100, all))
    };
    let (short, long) = (table.shared_short, table.shared_long);
    let shape = match (l.card.has_pdl(), is_short) {
        (false, _) => fit(table.warps, false, 100),
        (true, _) if is_light => fit(table.light_warps, true, table.shared_light),
        (true, _) if is_beside_light => {
            let shape = fit(most, false, if is_short { short } else { long });
            // No more registers than leave a light neighbour its own.
            shape.map(|s| Tiles {
                holds_columns: s.threads() <= table.holding_threads,
                ..s
            })
        }
        (true, true) => {
            let threads = |s: &Option<Tiles>| s.map(|s| s.threads());
            let (some, all) = (fit(most, false, short), fit(most, false, 100));
            if threads(&some) < threads(&all) {
                all
            } else {
                some
            }
        }
        (true, false) => fit(most, false, 100),
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
    let variant = MatVecVariant {
        tiles: shape,
        norm: op.norm.is_some(),
        chooses: route.is_some(),
        mixes: mix.is_some(),
        chained: chained > 1,
        shares: is_shared,
        adds: mix.is_some_and(|mix| mix.adds),
        several: rows > 1,
        types: Segments(product.types.clone()),
        experts: ExpertConstants::of(pairs),
        gate: GateConstants::of(l, gate.as_ref()),
        route: RouteConstants::of(route.as_ref().map(|op| (&*l.plan, op))),
        epilogue: product.constants.clone(),
    };
    let route_params = match &route {
        Some(route) => experts::params_of(l, route, rows)?,
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
    let grid = [sms as u32, m as u32, rows as u32];
    let mut spec = Spec::new(variant, "matvec", grid, shape.threads() as u32, &params);
    spec.shared = shape.shared_bytes as u32;
    product.describe(&mut spec, "matvec", of_row * rows, n_in);
    if gate.is_some() {
        spec.label = spec.label.replacen("matvec", "gate matvec", 1);
    }
    if route.is_some() {
        spec.label = spec.label.replacen("matvec", "route matvec", 1);
    }
    if let Some(mix) = mix {
        spec.label += " mix";
        spec.traffic.rows += 4 * experts::mix_floats(&l.plan, &mix, rows) as u64;
    }
    Ok(Some(spec))
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
    use super::super::tests::table;
    use super::*;
    use crate::quant;

    fn fit(
        ty: &QuantType,
        n_in: usize,
        of: (usize, usize),
        warps: usize,
        room: (usize, usize),
    ) -> Option<Tiles> {
        let table = table().matvec;
        let of = Tiles::of((n_in, 1), &[ty], of);
        Tiles::fit(&table, of, (warps, warps == table.light_warps), room)
    }

    #[test]
    fn shapes_fit_and_only_long_rows_on_small_cards_have_none() {
        let warps = table().matvec.warps;
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for n_in in [32, 576, 896, 2048, 4096, 8960, 14336, 28672] {
                for (sms, shared) in [(20, 64 << 10), (84, 100 << 10), (132, 159 << 10)] {
                    for tiles in [1, 36, 1024, 8016] {
                        let Some(shape) = fit(ty, n_in, (tiles, sms), warps, (shared, shared))
                        else {
                            assert!(n_in * 8 > shared, "{ty:?} {n_in} {shared}");
                            continue;
                        };
                        assert!(shape.bytes() <= shared, "{ty:?} {n_in}: {shape:?}");
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
        // As of an 8B's `ffn_down`, alone on an SM and beside a light neighbour; and of a light product.
        let (all, table) = (227 << 10, table().matvec);
        let room = |per_cent| (all * per_cent / 100, all);
        for ty in quant::TYPES.iter().filter(|t| t.integers) {
            for per_cent in [table.shared_long, 100] {
                let shape = fit(ty, 14336, (256, 132), table.warps, room(per_cent)).unwrap();
                assert_eq!(shape.ahead, table.ahead, "{ty:?} {per_cent}: {shape:?}");
                assert!(shape.ring > table.ahead && shape.holds_columns, "{shape:?}");
                let is_alone = per_cent == 100;
                assert!(!is_alone || shape.warps_k > table.light_warps, "{shape:?}");
            }
            let (warps, room) = (table.light_warps, room(table.shared_light));
            let light = fit(ty, 2048, (128, 132), warps, room).unwrap();
            assert!(
                light.ahead == light.ring && !light.holds_columns,
                "{light:?}"
            );
        }
    }
}
