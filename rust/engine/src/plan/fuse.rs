//! The fusion pass: neighbouring ops that one kernel can do become one fused op. A backend that
//! lowers a plan runs fused ops; the interpreter runs the plan itself and stays the oracle.

mod experts;
mod norms;
mod rules;
mod slices;

pub use slices::{RowSlice, TILE_ROWS};

use super::signature::Rotation;
use super::{BufferId, Norm, Op, Plan, RopeStyle, WeightId};

/// What a fused mat-vec does with its sums.
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

/// The gate that `op` is, of what it lets through which, and where that goes.
fn gate(op: &Op) -> Option<(Gate, [BufferId; 3])> {
    match *op {
        Op::SwiGlu { gate, up, out } => Some((Gate::Swi, [gate, up, out])),
        Op::GeGlu { gate, up, out } => Some((Gate::Ge, [gate, up, out])),
        Op::ClampedSwiGlu { gate, up, out } => Some((Gate::ClampedSwi, [gate, up, out])),
        _ => None,
    }
}

/// Most matrices of a fused mat-vec.
pub const MOST_PARTS: usize = 4;

/// One matrix of a fused mat-vec.
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

/// An op of the fused list.
#[derive(Debug, Clone, PartialEq)]
pub enum Fused {
    /// An op that is not fused.
    Single(Op),
    /// Mat-vecs of one `x` with one norm, and what follows them.
    MatVec {
        x: BufferId,
        norm: Option<Norm>,
        /// Whether the op before is the gate that `x` comes from, and nothing else wants that.
        gated: bool,
        /// Set where each part is a matrix for each expert.
        experts: Option<Experts>,
        parts: Vec<Part>,
        epilogue: Epilogue,
    },
    /// `out += x`, normalized as [`Op::RmsNorm`] says; then `out *= factor`, where there is one.
    NormAdd {
        x: BufferId,
        norm: Norm,
        group: usize,
        out: BufferId,
        /// A tensor of one number.
        factor: Option<WeightId>,
    },
    /// `out += ` the sum of two rows, each normalized by its weight as [`Op::RmsNorm`] says, and that sum
    /// normalized by `norm`, of one eps; then `out *= factor`, where there is one.
    NormPair {
        pair: [(BufferId, WeightId); 2],
        norm: Norm,
        group: usize,
        out: BufferId,
        /// A tensor of one number.
        factor: Option<WeightId>,
    },
    /// `out = silu(gate) * x`, normalized as [`Op::RmsNorm`] says.
    NormGate {
        x: BufferId,
        norm: Norm,
        group: usize,
        gate: BufferId,
        out: BufferId,
    },
    /// What [`Op::Route`] chooses by logits that are first multiplied by the factor, where there is one.
    /// Then each weight is multiplied by its expert's, where they have some.
    Route {
        factor: Option<f32>,
        /// [`Op::Route`].
        choice: Op,
        /// A number of each expert.
        scales: Option<WeightId>,
    },
    /// `out = ` what [`Op::MixExperts`] makes of `x`, which nothing else wants; or `out += ` that.
    Mix {
        x: BufferId,
        routes: BufferId,
        out: BufferId,
        adds: bool,
    },
    /// [`Op::ShortConv`] through silu and the [`Op::DeltaNet`] behind it, the only one that wants what it
    /// gives.
    ConvolvedRule { conv: Op, rule: Op },
    /// Heads of queries and keys, in place: each normalized as [`Op::RmsNorm`] says, then rotated. Before
    /// them those of values, where there are some, normalized without a weight.
    QkNormRope {
        queries: NormedHeads,
        keys: NormedHeads,
        values: Option<Values>,
        /// Whether nothing wants them behind the next two ops, those that store keys and values and
        /// that attend.
        attended: bool,
        head_dim: usize,
        eps: f32,
        rotation: Rotation,
    },
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

/// Widest heads that one launch normalizes and rotates, and what their halves are multiples of.
const MOST_ROTATED_DIM: usize = 512;
const ROTATED_MULTIPLE: usize = 8;

/// Widest heads of which a lane has eight values. Of wider ones it has as many of a second 256, and
/// finds partners in other lanes' first ones, up to this half, or in its own second ones.
pub const MOST_NEAR_DIM: usize = 256;
const MOST_NEAR_HALF: usize = 128;
const FAR_HALF: usize = 256;

/// Which experts a product's rows go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub routes: BufferId,
    /// Whether each rank has a row of x of its own.
    pub ranked: bool,
}

/// `plan.ops`, without any fusion.
pub fn singles(plan: &Plan) -> Vec<Fused> {
    plan.ops.iter().map(single).collect()
}

/// Fuses `plan.ops`.
pub fn fuse(plan: &Plan) -> Vec<Fused> {
    let mut fused = Vec::new();
    let mut at = 0;
    while at < plan.ops.len() {
        match mat_vecs(plan, at).or_else(|| between(plan, at)) {
            Some((mut op, used)) => {
                at += used;
                match &mut op {
                    Fused::MatVec { x, gated, .. } => {
                        let is_its = fused.last().and_then(gate_out) == Some(*x);
                        *gated = is_its && !is_live(plan, at, *x);
                    }
                    Fused::QkNormRope {
                        queries,
                        keys,
                        values,
                        attended,
                        ..
                    } => {
                        let values = values.map(|values| values.out);
                        let mut heads = [queries.x, keys.x].into_iter().chain(values);
                        *attended = heads.all(|id| !is_live(plan, at + 2, id));
                    }
                    _ => {}
                }
                fused.push(op);
            }
            None => {
                fused.push(single(&plan.ops[at]));
                at += 1;
            }
        }
    }
    fused
}

/// Where the op leaves what a gate lets through, if it is one that a product's launch can be.
fn gate_out(op: &Fused) -> Option<BufferId> {
    match op {
        Fused::Single(Op::SigmoidMul { out, .. }) | Fused::NormGate { out, .. } => Some(*out),
        _ => None,
    }
}

fn single(op: &Op) -> Fused {
    match product(op) {
        Some((of, part)) => of.fused(vec![part], Epilogue::Store),
        None => Fused::Single(op.clone()),
    }
}

/// The rows that a product multiplies.
#[derive(Clone, Copy, PartialEq)]
struct Multiplied {
    x: BufferId,
    norm: Option<Norm>,
    experts: Option<Experts>,
}

impl Multiplied {
    fn fused(self, parts: Vec<Part>, epilogue: Epilogue) -> Fused {
        Fused::MatVec {
            x: self.x,
            norm: self.norm,
            gated: false,
            experts: self.experts,
            parts,
            epilogue,
        }
    }
}

/// What `op` multiplies, and with what, where it is a product.
fn product(op: &Op) -> Option<(Multiplied, Part)> {
    match *op {
        Op::MatVec {
            x,
            norm,
            weight,
            bias,
            scale,
            out,
        } => {
            let experts = None;
            let part = Part {
                weight,
                scale,
                bias,
                out,
                slice: None,
            };
            Some((Multiplied { x, norm, experts }, part))
        }
        Op::ExpertMatVec {
            x,
            ranked,
            norm,
            routes,
            weight,
            bias,
            scale,
            out,
        } => {
            let experts = Some(Experts { routes, ranked });
            let part = Part {
                weight,
                scale,
                bias,
                out,
                slice: None,
            };
            Some((Multiplied { x, norm, experts }, part))
        }
        _ => None,
    }
}

/// Whether `id` is live: an op from `from` on reads it before it is written again, or it is the logits.
fn is_live(plan: &Plan, from: usize, id: BufferId) -> bool {
    for op in plan.ops.iter().skip(from) {
        let op = op.signature();
        if op.inputs().any(|input| input == id) {
            return true;
        }
        if op.overwritten().any(|output| output == id) {
            return false;
        }
    }
    id == plan.logits
}

/// The mat-vecs from `start` on of one x and one norm, with what follows them; and how many ops that
/// are.
fn mat_vecs(plan: &Plan, start: usize) -> Option<(Fused, usize)> {
    let ops = &plan.ops[start..];
    let (of, first) = product(ops.first()?)?;
    // Products of integers and of floats have different kernels.
    let integers = |id| plan.weight(id).ty.integers;
    let joins = |(its, part): &(Multiplied, Part)| {
        *its == of && integers(part.weight) == integers(first.weight)
    };
    let parts = ops.iter().map_while(|op| product(op).filter(joins));
    let parts: Vec<Part> = parts.map(|(_, part)| part).collect();
    let count = parts.len();
    let at = start + count;
    let (epilogue, used) =
        experts::halves(plan, at, of.x, &parts).unwrap_or_else(|| epilogue(plan, at, of.x, &parts));
    let (parts, used) = match epilogue {
        Epilogue::Store => slices::slices(plan, at, &of, &parts).unwrap_or((parts, used)),
        _ => (parts, used),
    };
    if epilogue == Epilogue::Store && parts.len() > MOST_PARTS {
        return None;
    }
    Some((of.fused(parts, epilogue), count + used))
}

/// What is joined at `at` where no product begins there.
fn between(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    norms::norm_pair(plan, at)
        .or_else(|| norms::norm_add(plan, at))
        .or_else(|| norms::norm_gate(plan, at))
        .or_else(|| experts::mix(plan, at))
        .or_else(|| rules::convolved(plan, at))
        .or_else(|| qkv_norm_rope(plan, at))
        .or_else(|| qk_norm_rope(plan, at))
        .or_else(|| experts::route(plan, at))
}

/// The norms of queries' and keys' heads at `at` and their rotations behind them, alike but for their
/// weights.
fn qk_norm_rope(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let [q_norm, k_norm, q_rope, k_rope] = plan.ops.get(at..at + 4)? else {
        return None;
    };
    let normed = |op: &Op| match *op {
        Op::RmsNorm {
            x,
            weight,
            out,
            group,
            eps,
        } if x == out => Some((NormedHeads { x, weight: weight? }, group, eps)),
        _ => None,
    };
    let ((queries, head_dim, eps), keys) = (normed(q_norm)?, normed(k_norm)?);
    if (keys.1, keys.2) != (head_dim, eps) || keys.0.x == queries.x {
        return None;
    }
    let rotated = |id: BufferId, op: &Op| match *op {
        Op::Rope {
            x,
            n_head,
            table,
            style,
        } if x == id && plan.buffer(x).width == n_head * head_dim => {
            Some(Rotation { table, style })
        }
        _ => None,
    };
    let rotation = rotated(queries.x, q_rope)?;
    let half = plan.ropes[rotation.table].inv_freq.len();
    let are_found =
        rotation.style == RopeStyle::Halves && (half <= MOST_NEAR_HALF || half == FAR_HALF);
    let fits = head_dim <= MOST_ROTATED_DIM
        && head_dim.is_multiple_of(ROTATED_MULTIPLE)
        && half.is_multiple_of(ROTATED_MULTIPLE)
        && (head_dim <= MOST_NEAR_DIM || are_found);
    if rotated(keys.0.x, k_rope) != Some(rotation) || !fits {
        return None;
    }
    let fused = Fused::QkNormRope {
        queries,
        keys: keys.0,
        values: None,
        attended: false,
        head_dim,
        eps,
        rotation,
    };
    Some((fused, 4))
}

/// The norm of values' heads at `at` and those of queries and keys with their rotations behind it, which are
/// apart from it.
fn qkv_norm_rope(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let Op::RmsNorm {
        x,
        weight: None,
        out,
        group,
        eps: own_eps,
    } = plan.ops[at]
    else {
        return None;
    };
    let (mut fused, used) = qk_norm_rope(plan, at + 1)?;
    let Fused::QkNormRope {
        queries,
        keys,
        values,
        head_dim,
        eps,
        ..
    } = &mut fused
    else {
        return None;
    };
    let are_alike = (group, own_eps) == (*head_dim, *eps);
    let are_keys = x == keys.x && plan.buffer(x).width == plan.buffer(out).width;
    let are_apart = ![queries.x, keys.x].contains(&out) && (x == out || are_keys);
    *values = Some(Values { out, are_keys });
    (are_alike && are_apart).then_some((fused, 1 + used))
}

/// The epilogue that the ops from `at` on allow behind products of `x`, and how many of them it
/// stands for. None writes to `x`, of which other blocks of the kernel may still be reading.
fn epilogue(plan: &Plan, at: usize, x: BufferId, parts: &[Part]) -> (Epilogue, usize) {
    let dead = |ids: &[BufferId], from: usize| ids.iter().all(|id| !is_live(plan, from, *id));
    match (parts, &plan.ops[at..]) {
        ([part], [Op::Add { x: sum, out }, ..])
            if *sum == part.out && *out != x && dead(&[*sum], at + 1) =>
        {
            (
                Epilogue::Add {
                    out: *out,
                    scale: 1.0,
                },
                1,
            )
        }
        ([part], [Op::Scale { x: scaled, factor }, Op::Add { x: sum, out }, ..])
            if *scaled == part.out && *sum == part.out && *out != x && dead(&[*sum], at + 2) =>
        {
            let scale = *factor;
            (Epilogue::Add { out: *out, scale }, 2)
        }
        _ => gated(plan, at, x, parts)
            .or_else(|| qkv(plan, at, parts))
            .unwrap_or((Epilogue::Store, 0)),
    }
}

/// [`Epilogue::Gated`], where the op at `at` is it.
fn gated(plan: &Plan, at: usize, x: BufferId, parts: &[Part]) -> Option<(Epilogue, usize)> {
    let [a, b] = parts else {
        return None;
    };
    let (gate, [of, up, out]) = gate(plan.ops.get(at)?)?;
    let is_alone = [of, up].iter().all(|id| !is_live(plan, at + 1, *id));
    let joins = (of, up) == (a.out, b.out)
        && out != x
        && plan.weight(a.weight).ty == plan.weight(b.weight).ty
        && is_alone;
    joins.then_some((Epilogue::Gated { gate, out }, 1))
}

/// [`Epilogue::Qkv`], where the ops from `at` on are RoPE of q and of k.
fn qkv(plan: &Plan, at: usize, parts: &[Part]) -> Option<(Epilogue, usize)> {
    let ([q, k, _], [q_rope, k_rope, ..]) = (parts, &plan.ops[at..]) else {
        return None;
    };
    let (rotation, head_dim) = rotated_whole(plan, q.out, q_rope)?;
    let (key_rotation, key_dim) = rotated_whole(plan, k.out, k_rope)?;
    if (key_rotation.style, key_dim) != (rotation.style, head_dim) || head_dim % 16 != 0 {
        return None;
    }
    let epilogue = Epilogue::Qkv {
        rotation,
        key_table: key_rotation.table,
        head_dim,
    };
    Some((epilogue, 2))
}

/// How `op` rotates the heads of `id`, all of each, and how wide they are.
fn rotated_whole(plan: &Plan, id: BufferId, op: &Op) -> Option<(Rotation, usize)> {
    let &Op::Rope {
        x,
        n_head,
        table,
        style,
    } = op
    else {
        return None;
    };
    let head_dim = plan.buffer(x).width / n_head;
    let is_whole = head_dim == 2 * plan.ropes[table].inv_freq.len();
    (x == id && is_whole).then_some((Rotation { table, style }, head_dim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{KvShape, RopeTable, Rows, Weight};
    use crate::quant;

    pub const X: BufferId = BufferId(0);
    pub const SUM: BufferId = BufferId(4);
    pub const NORM: Norm = Norm {
        weight: WeightId(0),
        eps: 1e-5,
    };

    /// Rows of 64 values in five buffers, a vector and a matrix.
    pub fn plan(ops: Vec<Op>) -> Plan {
        let mut plan = Plan {
            ops,
            ropes: vec![RopeTable {
                inv_freq: vec![1.0; 32],
                factors: None,
                scale: 1.0,
                temperature: None,
            }],
            kv: vec![KvShape {
                n_head_kv: 1,
                head_dim: 64,
            }],
            logits: SUM,
            ..Plan::default()
        };
        for name in ["x", "a", "b", "c", "sum"] {
            plan.add_buffer(name, 64, Rows::Batch);
        }
        for (name, n_in, n_out) in [("norm", 64, 1), ("matrix", 64, 64), ("factor", 1, 1)] {
            plan.add_weight(Weight {
                name: name.into(),
                n_in,
                n_out,
                n_expert: 1,
                ty: &quant::TYPES[0],
            });
        }
        plan.check().unwrap();
        plan
    }

    fn product(norm: Option<Norm>, out: usize) -> Op {
        Op::MatVec {
            x: X,
            norm,
            weight: WeightId(1),
            bias: None,
            scale: None,
            out: BufferId(out),
        }
    }

    pub fn product_of(x: BufferId, out: usize) -> Op {
        Op::MatVec {
            x,
            norm: None,
            weight: WeightId(1),
            bias: None,
            scale: None,
            out: BufferId(out),
        }
    }

    /// The norm and the number of matrices of each fused product.
    fn products(ops: Vec<Op>) -> Vec<(Option<Norm>, usize)> {
        let of = |op| match op {
            Fused::MatVec { norm, parts, .. } => Some((norm, parts.len())),
            _ => None,
        };
        fuse(&plan(ops)).into_iter().filter_map(of).collect()
    }

    #[test]
    fn products_of_one_input_and_norm_are_joined() {
        let normed = || -> Vec<Op> { (1..4).map(|out| product(Some(NORM), out)).collect() };
        assert_eq!(products(normed()), [(Some(NORM), 3)]);
        assert_eq!(singles(&plan(normed())).len(), 3);
    }

    #[test]
    fn products_of_another_norm_or_none_are_not() {
        let other = Norm { eps: 1e-6, ..NORM };
        let ops = [None, Some(NORM), Some(other)];
        let ops = ops.into_iter().zip(1..).map(|(n, out)| product(n, out));
        let wanted = [(None, 1), (Some(NORM), 1), (Some(other), 1)];
        assert_eq!(products(ops.collect()), wanted);
    }

    #[test]
    fn a_residual_is_joined_unless_it_is_the_input() {
        for (out, is_joined) in [(SUM, true), (X, false)] {
            let add = Op::Add {
                x: BufferId(1),
                out,
            };
            let fused = fuse(&plan(vec![product(Some(NORM), 1), add]));
            assert_eq!(fused.len(), if is_joined { 1 } else { 2 });
        }
    }

    #[test]
    fn logits_are_stored_although_no_op_reads_them() {
        let [logits, other] = [SUM, BufferId(1)];
        for (sum, is_joined) in [(logits, false), (other, true)] {
            let add = Op::Add {
                x: sum,
                out: BufferId(2),
            };
            let fused = fuse(&plan(vec![product_of(X, sum.0), add]));
            assert_eq!(fused.len(), if is_joined { 1 } else { 2 });
        }
    }

    #[test]
    fn a_factor_of_the_residual_is_joined_with_it() {
        let scale = Op::Scale {
            x: BufferId(1),
            factor: 0.25,
        };
        let add = Op::Add {
            x: BufferId(1),
            out: SUM,
        };
        let ops = vec![product(None, 1), scale.clone(), add.clone()];
        let fused = fuse(&plan(ops));
        let wanted = Epilogue::Add {
            out: SUM,
            scale: 0.25,
        };
        assert!(matches!(&fused[..], [Fused::MatVec { epilogue, .. }] if *epilogue == wanted));
        // Not where what is scaled is wanted by itself.
        let ops = vec![product(None, 1), scale, add, product_of(BufferId(1), 2)];
        assert_eq!(fuse(&plan(ops)).len(), 4);
    }

    #[test]
    fn norms_and_rotations_of_heads_are_joined_where_they_are_alike() {
        let (q, k) = (BufferId(1), BufferId(2));
        let norm = |x, out, eps| Op::RmsNorm {
            x,
            weight: Some(NORM.weight),
            out,
            group: 64,
            eps,
        };
        let rope = |x, n_head, style| Op::Rope {
            x,
            n_head,
            table: 0,
            style,
        };
        let (halves, eps) = (RopeStyle::Halves, NORM.eps);
        let norms = [norm(q, q, eps), norm(k, k, eps)];
        let ropes = [rope(q, 1, halves), rope(k, 1, halves)];
        let joined = Fused::QkNormRope {
            queries: NormedHeads {
                x: q,
                weight: NORM.weight,
            },
            keys: NormedHeads {
                x: k,
                weight: NORM.weight,
            },
            values: None,
            attended: true,
            head_dim: 64,
            eps,
            rotation: Rotation {
                table: 0,
                style: halves,
            },
        };
        let of = |ops: &[&[Op]]| fuse(&plan(ops.concat()));
        assert_eq!(of(&[&norms, &ropes]), std::slice::from_ref(&joined));
        // With values, of their own or those that keys are before.
        let plain = |x, out, group| Op::RmsNorm {
            x,
            weight: None,
            out,
            group,
            eps,
        };
        let v = BufferId(3);
        for (x, are_keys) in [(v, false), (k, true)] {
            let mut wanted = joined.clone();
            if let Fused::QkNormRope { values, .. } = &mut wanted {
                *values = Some(Values { out: v, are_keys });
            }
            assert_eq!(of(&[&[plain(x, v, 64)], &norms, &ropes]), [wanted]);
        }
        for other in [
            plain(q, v, 64),
            plain(k, k, 64),
            plain(v, v, 32),
            plain(SUM, v, 64),
        ] {
            let found = of(&[std::slice::from_ref(&other), &norms, &ropes]);
            assert_eq!(found, [Fused::Single(other), joined.clone()]);
        }
        let apart: [[&[Op]; 2]; 5] = [
            [&norms, &[ropes[0].clone()]],
            [&norms, &[ropes[0].clone(), ropes[0].clone()]],
            [
                &norms,
                &[ropes[0].clone(), rope(k, 1, RopeStyle::Interleaved)],
            ],
            [&[norms[0].clone(), norm(k, k, 1e-3)], &ropes],
            [&[norms[0].clone(), norm(k, BufferId(3), eps)], &ropes],
        ];
        for ops in apart {
            assert_eq!(of(&ops).len(), ops.concat().len(), "{ops:?}");
        }
    }

    #[test]
    fn an_activation_is_joined_unless_it_is_the_input() {
        for (out, is_joined) in [(SUM, true), (X, false)] {
            let products = [1, 2].map(|out| product(Some(NORM), out));
            let (gate, up) = (BufferId(1), BufferId(2));
            for act in [
                Op::SwiGlu { gate, up, out },
                Op::GeGlu { gate, up, out },
                Op::ClampedSwiGlu { gate, up, out },
            ] {
                let ops = products.iter().cloned().chain([act]).collect();
                assert_eq!(fuse(&plan(ops)).len(), if is_joined { 1 } else { 2 });
            }
        }
    }

    /// Its rows are rounded before they are multiplied: not the sum that a product with a norm has.
    #[test]
    fn a_norm_of_its_own_stays_one() {
        let norm = Op::RmsNorm {
            x: SUM,
            weight: Some(NORM.weight),
            out: X,
            group: 64,
            eps: NORM.eps,
        };
        let fused = fuse(&plan(vec![norm.clone(), product(None, 1)]));
        assert_eq!(fused.len(), 2);
        assert_eq!(fused[0], Fused::Single(norm));
    }
}
