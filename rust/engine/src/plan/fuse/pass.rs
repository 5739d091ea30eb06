//! What is fused in some passes alone. Most of it is of one row, or by experts of a few: there each block
//! computes the little that comes before a product by itself.

use super::rule::{Match, Site};
use super::{
    Epilogue, Fused, GateOp, PassFusion, PassShape, ProductOp, Stored, MOST_NEAR_DIM, TILE_ROWS,
};
use crate::plan::Op;

/// Most rows of a product of floats whose last block chooses their experts: those of one block.
pub const MOST_FLOATS_X: usize = 8;

/// Most ranks that a product by experts chooses, or whose sums it sums up: a lane of a warp has each.
pub const MOST_RANKS: usize = 32;

/// Widest groups that are normalized on the way to a product, and narrowest: a warp has 256 values at a time,
/// a lane eight.
const MOST_GROUP: usize = 256;
const LEAST_GROUP: usize = 8;

/// Whether it is a product of integers of one row.
fn is_of_one_row(site: &Site<'_>, shape: &PassShape, of: &ProductOp) -> bool {
    shape.count(site.plan.buffer(of.x).rows) == 1 && site.are_integers(of)
}

/// Whether it is a product of integers by experts whose rows are multiplied one by one: of so few that hardly
/// two have an expert in common, and half as many where what experts give is summed up across blocks. Where rows
/// go to all, of one.
fn is_row_by_row(site: &Site<'_>, shape: &PassShape, of: &ProductOp) -> bool {
    let rows = shape.count(site.plan.buffer(of.x).rows);
    // What a layer's experts give is as wide as what they are given.
    let weight = site.plan.weight(of.parts[0].weight);
    let chosen = (of.experts).filter(|experts| !site.plan.goes_to_all(experts.routes));
    let is_last = chosen.is_some_and(|experts| experts.ranked);
    let width = if is_last { weight.n_out } else { weight.n_in };
    let most = match (chosen, fills(width, shape)) {
        (None, _) => 1,
        (Some(_), true) => shape.expert_rows,
        (Some(_), false) => shape.expert_rows / 2,
    };
    (1..=most.max(1)).contains(&rows) && site.are_integers(of)
}

/// The ranks that a product by experts has, if a launch of one row has room for them.
fn ranks(site: &Site<'_>, of: &ProductOp) -> Option<usize> {
    let ranks = site.width(of.experts?.routes) / 2;
    (ranks <= MOST_RANKS).then_some(ranks)
}

/// Whether two products may be of one launch: of one norm and one kind.
fn are_alike(site: &Site<'_>, a: &ProductOp, b: &ProductOp) -> bool {
    let are_scaled = |of: &ProductOp| of.parts.iter().any(|part| part.scale.is_some());
    let integers = site.are_integers(a) && site.are_integers(b);
    integers && a.norm == b.norm && are_scaled(a) == are_scaled(b)
}

/// The store of keys and values right before attention, and what is made of their heads before that, where
/// each row is a sequence's own: attention of a prompt reads rows of its own pass, so all of them are
/// stored first.
pub fn stored(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let (norm_rope, at) = match site.get(0)? {
        Fused::QkNormRope(heads) => (Some(*heads), 1),
        _ => (None, 0),
    };
    let (
        &Fused::Single(Op::KvScatter { k, v, layer }),
        Fused::Single(attention @ Op::Attention { q, layer: its, .. }),
    ) = (site.get(at)?, site.get(at + 1)?)
    else {
        return None;
    };
    let fits = norm_rope.is_none_or(|heads| {
        (heads.queries.x, heads.keys.x) == (*q, k)
            && heads.values.is_none_or(|values| values.out == v)
            && heads.head_dim == site.plan.kv[layer].head_dim
            && heads.head_dim <= MOST_NEAR_DIM
    });
    let attention = attention.clone();
    let stored = Stored { k, v, norm_rope };
    let fused = Fused::Attention { attention, stored };
    Match::of(fused, at + 2).filter(|_| shape.is_step && layer == *its && fits)
}

/// The gate of a product's x, if a warp can let a row through: a gate each, or one for all; and whole groups
/// that lanes share.
fn gate(site: &Site<'_>, at: usize, of: &ProductOp) -> Option<GateOp> {
    let &Fused::Gate(gate) = site.get(at)? else {
        return None;
    };
    let (width, gates) = (site.width(of.x), site.width(gate.gate));
    let fits = match gate.norm {
        None => gates == width || gates == 1,
        Some((_, group)) => {
            let lanes_share =
                (LEAST_GROUP..=MOST_GROUP).contains(&group) && group.is_power_of_two();
            gates == width && lanes_share && width.is_multiple_of(group)
        }
    };
    let is_its = gate.out == of.x && of.norm.is_none() && of.experts.is_none();
    (fits && is_its).then_some(gate)
}

pub fn gated(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let of = site.product(1)?;
    let fusion = PassFusion::Gate(gate(site, 0, of)?);
    let fused = Fused::MatVec(ProductOp {
        fusion,
        ..of.clone()
    });
    Match::of(fused, 2).filter(|_| is_of_one_row(site, shape, of))
}

/// The choice at this place and the product by experts behind it, whose blocks each find out theirs.
fn chosen(site: &Site<'_>, shape: &PassShape, at: usize) -> Option<ProductOp> {
    let of = site.product(at + 1)?;
    let &Fused::Route(route) = site.get(at)? else {
        return None;
    };
    ranks(site, of)?;
    let is_its = of.experts.map(|experts| experts.routes) == Some(route.out);
    (is_its && is_row_by_row(site, shape, of)).then(|| ProductOp {
        fusion: PassFusion::Choice(route),
        ..of.clone()
    })
}

/// With the router before it, which stands, so that the choice is not the router's.
pub fn choice(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let stands = site.product(0).map(|_| 0);
    let at = usize::from(stands.is_some());
    Some(Match {
        op: Fused::MatVec(chosen(site, shape, at)?),
        count: at + 2,
        stands,
    })
}

/// The first product of an expert that every row goes to, and the next but one, the router's comes between,
/// by those that are chosen.
pub fn shared_choice(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let (shared, router) = (site.product(0)?, site.product(1)?);
    let mut of = chosen(site, shape, 2)?;
    let gate = |of: &ProductOp| match of.epilogue {
        Epilogue::Gated { gate, .. } => Some(gate),
        _ => None,
    };
    let is_like = are_alike(site, shared, &of)
        && (shared.x, router.x) == (of.x, of.x)
        && gate(shared)? == gate(&of)?
        && shared.experts.is_none();
    of.shared = Some(Box::new(shared.clone()));
    is_like.then_some(Match {
        op: Fused::MatVec(of),
        count: 4,
        stands: Some(1),
    })
}

/// A router's product, and the choice by its logits.
pub fn routed(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let of = site.product(0)?;
    let &Fused::Route(route) = site.get(1)? else {
        return None;
    };
    let m = shape.count(site.plan.buffer(of.x).rows);
    let gives = of.parts.iter().any(|part| part.out == route.logits);
    let is_plain = of.experts.is_none() && of.epilogue == Epilogue::Store;
    // Rows of one block, so that one block ends last.
    let is_one_block = (1..=MOST_FLOATS_X).contains(&m) && !site.are_integers(of);
    let fused = Fused::MatVec(ProductOp {
        fusion: PassFusion::Route(route),
        ..of.clone()
    });
    Match::of(fused, 2).filter(|_| gives && is_plain && is_one_block)
}

/// A product by experts and the weighted sum of what they give.
pub fn mix(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    Match::of(Fused::MatVec(mixed(site, shape)?), 2)
}

fn mixed(site: &Site<'_>, shape: &PassShape) -> Option<ProductOp> {
    let of = site.product(0)?;
    let &Fused::Mix(mix) = site.get(1)? else {
        return None;
    };
    ranks(site, of)?;
    let is_its = of.experts.map(|experts| experts.routes) == Some(mix.routes);
    let is_whole = matches!(&of.parts[..], [part] if part.out == mix.x);
    let is_plain = of.epilogue == Epilogue::Store;
    (is_its && is_whole && is_plain && is_row_by_row(site, shape, of)).then(|| ProductOp {
        fusion: PassFusion::Mix {
            mix,
            is_chained: chains(site, shape, of),
        },
        ..of.clone()
    })
}

/// Whether SMs have hardly more or fewer tiles of so many rows than others, each of them whole.
fn fills(rows: usize, shape: &PassShape) -> bool {
    let (tiles, sms) = (rows.div_ceil(TILE_ROWS), shape.sms);
    4 * tiles.div_ceil(sms) * sms <= 5 * tiles
}

/// Whether blocks that sum up what experts give have their tiles of all of these: where no factor of a norm
/// comes before the sum.
fn chains(site: &Site<'_>, shape: &PassShape, of: &ProductOp) -> bool {
    of.norm.is_none() && fills(site.plan.weight(of.parts[0].weight).n_out, shape)
}

/// The same, and the last product of an expert that every row goes to, behind its gate, which adds to it.
pub fn shared_mix(site: &Site<'_>, shape: &PassShape) -> Option<Match> {
    let mut of = mixed(site, shape)?;
    let shared = site.product(3)?;
    let gate = gate(site, 2, shared).filter(|g| g.norm.is_none() && site.width(g.gate) == 1)?;
    let PassFusion::Mix { mix, is_chained } = of.fusion else {
        return None;
    };
    let [a, b] = [&of, shared].map(|of| site.plan.weight(of.parts[0].weight));
    let is_like = are_alike(site, shared, &of)
        && (a.n_in, a.n_out) == (b.n_in, b.n_out)
        && shared.epilogue
            == Epilogue::Add {
                out: mix.out,
                scale: 1.0,
            }
        && is_chained
        && ranks(site, &of)? < MOST_RANKS;
    of.shared = Some(Box::new(ProductOp {
        fusion: PassFusion::Gate(gate),
        ..shared.clone()
    }));
    Match::of(Fused::MatVec(of), 4).filter(|_| is_like)
}
