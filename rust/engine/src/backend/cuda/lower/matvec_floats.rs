//! Rows of activations times weights that are floats.

use super::experts::{address_of, params_of, ExpertConstants, Pairs, RouteConstants};
use super::lowering::{Lowering, Pass};
use super::params::{Experts, MatVecFloats, QkvRotation, Route, Segment, CONSTANTS};
use super::product::{EpilogueConstants, Product};
use super::shape::{superblocks, Segments, MOST_FLOATS_X, TILE_COLS, TILE_ROWS};
use crate::backend::cuda::driver::source::{constants, source, Source};
use crate::backend::cuda::driver::spec::Spec;
use crate::error::Result;
use crate::plan::fuse::{PassFusion, ProductOp};
use crate::quant::QuantType;

static SOURCE: Source = source! {
    "matvec_floats.cu", CONSTANTS, MatVecFloats, Segment, QkvRotation, Experts, Route
};

constants! {
    /// matvec_floats.cu
    struct MatVecFloatsVariant in SOURCE {
        n_in: int, computing: uint32_t, staged: uint32_t, max_m: uint32_t, pairs: uint32_t,
        chunk: uint32_t, shared_bytes: uint32_t, norm: bool, routes: bool, route: RouteConstants,
        types: Segments, experts: ExpertConstants, epilogue: EpilogueConstants,
    }
}

/// The launch of `product` with the `m` rows of `op.x`, or as many as pairs have.
pub fn spec(
    l: &Lowering,
    op: &ProductOp,
    product: &Product,
    (m, pairs): (usize, Option<&Pairs>),
    pass: &Pass,
) -> Result<Spec> {
    let route = match op.fusion {
        PassFusion::Route(route) => Some(route),
        _ => None,
    };
    let (n_in, table) = (product.n_in, &l.shapes.floats);
    let max_m = pairs.map_or(m.next_power_of_two().min(MOST_FLOATS_X), |pairs| pairs.rows);
    let w_pairs = if m >= table.many_rows { 4 } else { 1 };
    let a_superblock = max_m * TILE_COLS * 4;
    let tiles: usize = product.tiles.iter().sum();
    let warps = (tiles * TILE_ROWS / 2).div_ceil(w_pairs);
    // As few warps a block as leave no multiprocessor without one: blocks of other rows count too.
    let of_each_row = (l.card.sm_count as usize / m.div_ceil(max_m)).max(1);
    let computing = warps.div_ceil(of_each_row).clamp(1, table.warps);
    let chunk = (table.x_bytes / a_superblock).clamp(1, superblocks(n_in).max(1));
    let row_bytes = |ty: &&QuantType| ty.row_bytes(TILE_COLS).unwrap_or(usize::MAX);
    let row_bytes = product.types.iter().map(row_bytes).max().unwrap_or(0);
    let staged = superblocks(n_in)
        .saturating_mul(2)
        .saturating_mul(row_bytes);
    let is_staged =
        pairs.is_none() && w_pairs == 1 && staged.saturating_mul(computing) <= table.staged_bytes;
    let staged = if is_staged { staged } else { 0 };
    let shared = chunk * a_superblock + computing * staged;
    let variant = MatVecFloatsVariant {
        n_in,
        computing,
        staged,
        max_m,
        pairs: w_pairs,
        chunk,
        shared_bytes: shared,
        norm: op.norm.is_some(),
        routes: route.is_some(),
        route: RouteConstants::of(route.as_ref().map(|op| (&*l.plan, op))),
        types: Segments(product.types.clone()),
        experts: ExpertConstants::of(pairs),
        epilogue: product.constants.clone(),
    };
    let route_params = match &route {
        Some(route) => params_of(l, route, m)?,
        None => bytemuck::Zeroable::zeroed(),
    };
    let params = MatVecFloats {
        segment: product.segment,
        x: l.source(op.x, pass),
        norm: l.vector(op.norm.map(|n| n.weight))?,
        eps: op.norm.map_or(0.0, |n| n.eps),
        m: m as u32,
        experts: address_of(pairs),
        rotation: product.rotation,
        route: route_params,
        tickets: l.at.scratch.tickets,
    };
    let grid = [
        warps.div_ceil(computing) as u32,
        m.div_ceil(max_m) as u32,
        1,
    ];
    let mut spec = Spec::new(
        variant,
        "matvec_floats",
        grid,
        32 * table.warps as u32,
        &params,
    );
    spec.shared = shared as u32;
    product.describe(&mut spec, "matvec", m, n_in);
    if route.is_some() {
        spec.label += " route";
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::super::pass::specs;
    use super::super::tests::{at, chunk, entries, lowering, step};
    use super::*;
    use crate::quant;

    #[test]
    fn floats_are_multiplied_by_a_kernel_of_their_own() {
        let l = lowering("sm_90", quant::TYPES[0].name, quant::DEFAULT_KV, true);
        for pass in [step(1), step(3), chunk(100, 1)] {
            let list = specs(&l, &pass).unwrap();
            let integers = ["split", "matvec", "matmul"];
            assert!(entries(&list).iter().all(|e| !integers.contains(e)));
            let down = list.iter().find(|s| s.label == "matvec down").unwrap();
            let params: MatVecFloats = down.params().unwrap();
            assert_eq!(down.grid[1] as usize, pass.rows.div_ceil(8));
            assert_eq!((params.x, params.m as usize), (at("act"), pass.rows));
        }
    }
}
