//! Fusion: adjacent ops that one launch can do become one fused op. One driver applies the rules of one
//! table: first those for every pass to the plan, then those for certain passes to the result. A backend
//! that lowers a plan runs fused ops; the interpreter runs the plan itself and remains the oracle.

mod experts;
mod latent;
mod listing;
mod liveness;
mod norms;
mod pass;
mod products;
mod rotations;
mod rule;
mod slices;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::signature::{Access, Operand, Rotation};
use super::{BufferId, Gating, Groups, Norm, Op, Plan, Rows, WeightId};
use liveness::Liveness;
use rule::{apply, Rule};

pub use pass::{MOST_FLOATS_X, MOST_RANKS};
pub use rotations::MOST_NEAR_DIM;
pub use slices::{RowSlice, TILE_ROWS};

/// The rules, in any order: of those that match, the one that covers the most ops is applied.
const RULES: &[Rule] = &[
    Rule::plan("products", products::products),
    Rule::plan("product, add", products::residual),
    Rule::plan("products, activation", products::activation),
    Rule::plan("product, halves, activation", products::halves),
    Rule::plan("products, rope", products::qkv),
    Rule::plan("products, slices", slices::slices),
    Rule::plan("norm, add", norms::norm_add),
    Rule::plan("norms, add, norm, add", norms::norm_pair),
    Rule::plan("norm, gate", norms::norm_gate),
    Rule::plan("norms, rope", rotations::norm_rope),
    Rule::plan("convolution, delta rule", rotations::convolved),
    Rule::plan("factor, route, factors", experts::route),
    Rule::plan("norm, rope, join", latent::row),
    Rule::plan("mix", experts::mix),
    Rule::plan("mix, add", experts::mix_add),
    Rule::pass("heads, store, attention", pass::stored),
    Rule::pass("gate, product", pass::gated),
    Rule::pass("route, product by experts", pass::choice),
    Rule::pass(
        "route, product by experts, shared product",
        pass::shared_choice,
    ),
    Rule::pass("router, route", pass::routed),
    Rule::pass("product by experts, mix", pass::mix),
    Rule::pass("product by experts, mix, shared product", pass::shared_mix),
];

/// What becomes of a product's sums.
#[derive(Debug, Clone, PartialEq)]
pub enum Epilogue {
    /// `out = sum`.
    Store,
    /// `out += sum * scale`: a residual. A scale of 1 changes nothing.
    Add { out: BufferId, scale: f32 },
    /// Two matrices of the same shape, or the halves of one's rows: `out` is what the gate lets through.
    Gated { gate: Gate, out: BufferId },
    /// Three matrices: rotate q and k. Keys are rotated as queries are, by a table of their own.
    Qkv {
        rotation: Rotation,
        key_table: usize,
        head_dim: usize,
    },
}

/// A gate as an op of its own states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// [`Op::SwiGlu`].
    Swi,
    /// [`Op::GeGlu`].
    Ge,
    /// [`Op::ClampedSwiGlu`].
    ClampedSwi,
}

/// Most matrices of a fused product.
pub const MOST_PARTS: usize = 4;

/// One matrix of a fused product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    pub weight: WeightId,
    pub scale: Option<WeightId>,
    pub bias: Option<WeightId>,
    /// Where its sums go; not written where the epilogue takes them elsewhere.
    pub out: BufferId,
    /// Which of its rows they are, where that is not all.
    pub slice: Option<RowSlice>,
}

/// Which experts a product's rows go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub routes: BufferId,
    /// Whether each rank has a row of x of its own.
    pub ranked: bool,
}

/// Products of one `x` with one norm, what follows them, and in some passes what is around them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProductOp {
    /// Its place in [`FusedPlan::list`].
    pub number: usize,
    pub x: BufferId,
    pub norm: Option<Norm>,
    /// Set where each part is a matrix for each expert.
    pub experts: Option<Experts>,
    pub parts: Vec<Part>,
    pub epilogue: Epilogue,
    /// What its launch makes too, where there is room for it.
    pub fusion: PassFusion,
    /// The same product of an expert that every row goes to: one rank more of a first product, one term more
    /// of a last one, behind its gate.
    pub shared: Option<Box<ProductOp>>,
}

/// What some passes fuse into a product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PassFusion {
    Nothing,
    /// Before it: the gate of its x.
    Gate(GateOp),
    /// Before a product by experts: their routing.
    Choice(RouteOp),
    /// Behind a router's product: the routing by its logits.
    Route(RouteOp),
    /// Behind a product by experts: their weighted sum. Where it is chained, a block has its tiles of all of
    /// them.
    Mix {
        mix: MixOp,
        is_chained: bool,
    },
}

/// `out = silu(gate) * x`, with x normalized as [`Op::RmsNorm`] says, or [`Op::SigmoidMul`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateOp {
    pub x: BufferId,
    pub gate: BufferId,
    pub out: BufferId,
    /// Of groups of so many values, where these are normalized first.
    pub norm: Option<(Norm, usize)>,
}

/// What [`Op::Route`] chooses by logits that are first multiplied by the factor. Then each weight is
/// multiplied by its expert's, where they have some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouteOp {
    pub logits: BufferId,
    pub bias: Option<WeightId>,
    pub out: BufferId,
    pub gating: Gating,
    pub renormalize: bool,
    pub scale: f32,
    pub groups: Option<Groups>,
    /// 1 changes nothing.
    pub factor: f32,
    /// A number of each expert.
    pub scales: Option<WeightId>,
}

/// `out = ` what [`Op::MixExperts`] makes of `x`; or `out += ` that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixOp {
    pub x: BufferId,
    pub routes: BufferId,
    pub out: BufferId,
    pub adds: bool,
}

/// `out += x`, normalized as [`Op::RmsNorm`] says; then `out *= factor`, where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormAdd {
    pub x: BufferId,
    pub norm: Norm,
    pub group: usize,
    pub out: BufferId,
    /// A tensor of one number.
    pub factor: Option<WeightId>,
}

/// `out += ` the sum of two rows, each normalized by its weight as [`Op::RmsNorm`] says, and that sum
/// normalized by `norm`, of one eps; then `out *= factor`, where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormPair {
    pub pair: [(BufferId, WeightId); 2],
    pub norm: Norm,
    pub group: usize,
    pub out: BufferId,
    /// A tensor of one number.
    pub factor: Option<WeightId>,
}

/// Heads of queries and keys, in place: each normalized as [`Op::RmsNorm`] says, then rotated. Before
/// them those of values, where there are some, normalized without a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNormRope {
    pub queries: NormedHeads,
    pub keys: NormedHeads,
    pub values: Option<Values>,
    pub head_dim: usize,
    pub eps: f32,
    pub rotation: Rotation,
}

/// Heads that are normalized by one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormedHeads {
    pub x: BufferId,
    pub weight: WeightId,
}

/// Heads of values that are normalized beside queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values {
    pub out: BufferId,
    /// Whether they are the keys as they were before, else what is in `out`.
    pub are_keys: bool,
}

/// `out = ` x, normalized as [`Op::RmsNorm`] says, then y, rotated; and heads of queries, rotated in place, or
/// cut from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentRow {
    pub x: BufferId,
    pub norm: Norm,
    pub y: BufferId,
    pub q: BufferId,
    pub n_head: usize,
    pub out: BufferId,
    /// Widths of x and y.
    pub of: [usize; 2],
    pub rotation: Rotation,
    pub cut: Option<Cut>,
}

/// Heads whose last values are rotated, and where the others go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    pub all: BufferId,
    pub plain: BufferId,
}

/// What attention stores before it attends: keys and values of the rows, and what it makes of their heads
/// before that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored {
    pub k: BufferId,
    pub v: BufferId,
    pub norm_rope: Option<QkNormRope>,
}

/// An op of a fused list.
#[derive(Debug, Clone, PartialEq)]
pub enum Fused {
    /// An op that no rule has a form for.
    Single(Op),
    MatVec(ProductOp),
    NormAdd(NormAdd),
    NormPair(NormPair),
    Gate(GateOp),
    Route(RouteOp),
    Mix(MixOp),
    QkNormRope(QkNormRope),
    LatentRow(LatentRow),
    /// [`Op::ShortConv`] through silu and the [`Op::DeltaNet`] behind it.
    ConvolvedRule {
        conv: Op,
        rule: Op,
    },
    /// [`Op::Attention`] behind what it stores.
    Attention {
        attention: Op,
        stored: Stored,
    },
}

/// A fused op, the rule that found it, if one did, and the ops of the plan that it stands for, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedOp {
    pub op: Fused,
    pub rule: Option<&'static str>,
    pub ops: Vec<usize>,
}

/// What fusion goes by of a pass, and of the card that it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassShape {
    pub rows: usize,
    /// Rows that give logits.
    pub out: usize,
    /// Whether each row is the newest token of a sequence of its own.
    pub is_step: bool,
    /// Multiprocessors of the card.
    pub sms: usize,
    /// Rows up to which products by experts take each by itself, at least 1.
    pub expert_rows: usize,
}

/// The fused ops of a plan.
#[derive(Debug, Clone)]
pub struct FusedPlan {
    plan: Arc<Plan>,
    live: Liveness,
    /// Of every pass.
    pub list: Vec<FusedOp>,
}

impl FusedPlan {
    /// `plan`, fused, or each op by itself.
    pub fn new(plan: &Arc<Plan>, is_fused: bool) -> Self {
        Self::by(RULES, plan, is_fused)
    }

    fn by(rules: &[Rule], plan: &Arc<Plan>, is_fused: bool) -> Self {
        let live = Liveness::new(plan);
        let single = |(at, op)| FusedOp {
            op: single(op),
            rule: None,
            ops: vec![at],
        };
        let mut list: Vec<_> = plan.ops.iter().enumerate().map(single).collect();
        if is_fused {
            list = apply(plan, &live, rules, &list, None);
        }
        for (at, fused) in list.iter_mut().enumerate() {
            if let Fused::MatVec(product) = &mut fused.op {
                product.number = at;
            }
        }
        Self {
            plan: plan.clone(),
            live,
            list,
        }
    }

    /// The list of such a pass.
    pub fn of_pass(&self, shape: &PassShape) -> Vec<FusedOp> {
        self.of_pass_by(RULES, shape)
    }

    fn of_pass_by(&self, rules: &[Rule], shape: &PassShape) -> Vec<FusedOp> {
        apply(&self.plan, &self.live, rules, &self.list, Some(shape))
    }
}

impl PassShape {
    /// How many rows it has of a kind.
    pub fn count(&self, rows: Rows) -> usize {
        rows.of(self.rows, self.out)
    }
}

/// The op by itself: of what rules bind, their form.
fn single(op: &Op) -> Fused {
    match *op {
        Op::Route {
            logits,
            bias,
            out,
            gating,
            renormalize,
            scale,
            groups,
        } => Fused::Route(RouteOp {
            logits,
            bias,
            out,
            gating,
            renormalize,
            scale,
            groups,
            factor: 1.0,
            scales: None,
        }),
        _ => products::single(op).map_or_else(|| Fused::Single(op.clone()), Fused::MatVec),
    }
}

impl ProductOp {
    /// What it reads and writes.
    fn operands(&self) -> Vec<Operand> {
        let mut list = Vec::new();
        let mut add = |access, id| list.push(Operand::new(id, access));
        match self.fusion {
            PassFusion::Gate(gate) => [gate.x, gate.gate]
                .into_iter()
                .for_each(|id| add(Access::Read, id)),
            _ => add(Access::Read, self.x),
        }
        match (self.fusion, self.experts) {
            (PassFusion::Choice(route), _) => {
                add(Access::Read, route.logits);
                add(Access::Write, route.out);
            }
            (_, Some(experts)) => add(Access::Read, experts.routes),
            (_, None) => {}
        }
        match (self.fusion, &self.epilogue) {
            (PassFusion::Mix { mix, .. }, _) => add(mix.access(), mix.out),
            (_, Epilogue::Add { out, .. }) => add(Access::Update, *out),
            (_, Epilogue::Gated { out, .. }) => add(Access::Write, *out),
            (_, Epilogue::Store | Epilogue::Qkv { .. }) => {
                self.parts
                    .iter()
                    .for_each(|part| add(Access::Write, part.out));
            }
        }
        if let PassFusion::Route(route) = self.fusion {
            add(Access::Write, route.out);
        }
        let of_shared = self.shared.iter().flat_map(|shared| shared.operands());
        // What it adds to is the mix of the others.
        let is_added = |b: &Operand| b.access == Access::Update;
        list.extend(of_shared.filter(|b| !is_added(b)));
        list
    }
}

impl MixOp {
    fn access(&self) -> Access {
        match self.adds {
            true => Access::Update,
            false => Access::Write,
        }
    }
}

impl Fused {
    /// What its launch reads and writes, and how: blocks of it may still be reading what is read while others
    /// write. What ops that it stands for leave for each other is neither.
    pub fn operands(&self) -> Vec<Operand> {
        let read = |id| Operand::new(id, Access::Read);
        let write = |id| Operand::new(id, Access::Write);
        let update = |id| Operand::new(id, Access::Update);
        match self {
            Self::Single(op) => op.signature().buffers,
            Self::MatVec(product) => product.operands(),
            Self::NormAdd(op) => vec![read(op.x), update(op.out)],
            Self::NormPair(op) => {
                let [a, b] = op.pair.map(|(x, _)| read(x));
                vec![a, b, update(op.out)]
            }
            Self::Gate(op) => vec![read(op.x), read(op.gate), write(op.out)],
            Self::Route(op) => vec![read(op.logits), write(op.out)],
            Self::Mix(op) => vec![
                read(op.x),
                read(op.routes),
                Operand::new(op.out, op.access()),
            ],
            Self::QkNormRope(op) => {
                let values = op.values.map(|v| match v.are_keys {
                    true => write(v.out),
                    false => update(v.out),
                });
                let heads = [op.queries.x, op.keys.x].map(update);
                heads.into_iter().chain(values).collect()
            }
            Self::LatentRow(op) => {
                let heads = match op.cut {
                    Some(cut) => vec![read(cut.all), write(cut.plain), write(op.q)],
                    None => vec![update(op.q)],
                };
                let row = [read(op.x), read(op.y), write(op.out)];
                row.into_iter().chain(heads).collect()
            }
            Self::ConvolvedRule { conv, rule } => {
                let [conv, rule] = [conv, rule].map(Op::signature);
                let inner: Vec<_> = conv.outputs().collect();
                let all = conv.buffers.into_iter().chain(rule.buffers);
                all.filter(|b| !inner.contains(&b.id)).collect()
            }
            Self::Attention { attention, stored } => {
                let mut list = attention.signature().buffers;
                // Values that are the keys are not looked at.
                let values = stored.norm_rope.and_then(|heads| heads.values);
                let own = (!values.is_some_and(|v| v.are_keys)).then_some(stored.v);
                list.extend([stored.k].into_iter().chain(own).map(read));
                list
            }
        }
    }
}
