//! What a rule is, and the driver that applies rules to a list: the longest match that stands for the ops
//! it covers, from the first op on.

use super::liveness::Liveness;
use super::{Fused, FusedOp, PassShape, ProductOp};
use crate::plan::signature::{are_apart, Signature};
use crate::plan::{BufferId, Norm, Op, Plan};

/// What a rule sees: the plan, and the ops of a list from one on.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    pub plan: &'a Plan,
    pub list: &'a [FusedOp],
}

/// A fused op that a rule has found.
#[derive(Debug)]
pub struct Match {
    pub op: Fused,
    /// Ops of the list that it covers, from the first on.
    pub count: usize,
    /// One of those that it does not cover, which then comes before it.
    pub stands: Option<usize>,
}

/// How a rule of every pass finds its fused op: where weights lie goes by it.
type OfPlan = fn(&Site<'_>) -> Option<Match>;
/// The same of one of such passes as it says.
type OfPass = fn(&Site<'_>, &PassShape) -> Option<Match>;

/// A rule says what matches and what is bound; the driver knows what is dead behind a match, and what may not
/// be written beside what.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// As listings call it.
    pub name: &'static str,
    find: Find,
}

#[derive(Debug, Clone, Copy)]
enum Find {
    Plan(OfPlan),
    Pass(OfPass),
}

impl Rule {
    pub const fn plan(name: &'static str, find: OfPlan) -> Self {
        let find = Find::Plan(find);
        Self { name, find }
    }

    pub const fn pass(name: &'static str, find: OfPass) -> Self {
        let find = Find::Pass(find);
        Self { name, find }
    }

    /// What it finds where it is of every pass, and there is no shape, or where it is of some, and that is
    /// their shape.
    fn find(&self, site: &Site<'_>, shape: Option<&PassShape>) -> Option<Match> {
        match (self.find, shape) {
            (Find::Plan(find), None) => find(site),
            (Find::Pass(find), Some(shape)) => find(site, shape),
            (Find::Plan(_), Some(_)) | (Find::Pass(_), None) => None,
        }
    }
}

/// [`Op::RmsNorm`] by a weight, as it stands in a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normed {
    pub x: BufferId,
    pub norm: Norm,
    pub group: usize,
    pub out: BufferId,
}

impl<'a> Site<'a> {
    /// The op of this place.
    pub fn get(&self, at: usize) -> Option<&'a Fused> {
        self.list.get(at).map(|fused| &fused.op)
    }

    /// The same, if it is one that no rule has a form for.
    pub fn op(&self, at: usize) -> Option<&'a Op> {
        match self.get(at)? {
            Fused::Single(op) => Some(op),
            _ => None,
        }
    }

    /// The same, if it is a product.
    pub fn product(&self, at: usize) -> Option<&'a ProductOp> {
        match self.get(at)? {
            Fused::MatVec(product) => Some(product),
            _ => None,
        }
    }

    /// The same, if it is a norm by a weight, of all groups alike.
    pub fn norm(&self, at: usize) -> Option<Normed> {
        match *self.op(at)? {
            Op::RmsNorm {
                x,
                weight: Some(weight),
                out,
                group,
                eps,
            } if self.plan.weight(weight).n_in == group => Some(Normed {
                x,
                norm: Norm { weight, eps },
                group,
                out,
            }),
            _ => None,
        }
    }

    /// What is added to what, if the op of this place does that.
    pub fn add(&self, at: usize) -> Option<[BufferId; 2]> {
        match *self.op(at)? {
            Op::Add { x, out } => Some([x, out]),
            _ => None,
        }
    }

    /// Whether all matrices of a product are integers.
    pub fn are_integers(&self, of: &ProductOp) -> bool {
        let mut types = of.parts.iter().map(|part| self.plan.weight(part.weight).ty);
        types.all(|ty| ty.integers)
    }

    /// Values of a row.
    pub fn width(&self, id: BufferId) -> usize {
        self.plan.buffer(id).width
    }
}

impl Match {
    /// Of the first `count` ops.
    pub fn of(op: Fused, count: usize) -> Option<Self> {
        Some(Self {
            op,
            count,
            stands: None,
        })
    }
}

/// `list` with what the rules of every pass find, or those of passes of `shape`.
pub fn apply(
    plan: &Plan,
    live: &Liveness,
    rules: &[Rule],
    list: &[FusedOp],
    shape: Option<&PassShape>,
) -> Vec<FusedOp> {
    let mut fused = Vec::with_capacity(list.len());
    let mut at = 0;
    while let Some(first) = list.get(at) {
        let site = Site {
            plan,
            list: &list[at..],
        };
        let found = rules
            .iter()
            .filter_map(|rule| Some((rule.name, rule.find(&site, shape)?)));
        let found = found.filter(|(_, found)| stands_for(&site, live, found));
        let Some((rule, found)) = found.max_by_key(|(_, found)| found.count) else {
            fused.push(first.clone());
            at += 1;
            continue;
        };
        fused.extend(found.stands.map(|i| site.list[i].clone()));
        let ops = covered(&site, &found);
        at += found.count;
        fused.push(FusedOp {
            op: found.op,
            rule: Some(rule),
            ops,
        });
    }
    fused
}

/// The ops of the plan that a match stands for.
fn covered(site: &Site<'_>, found: &Match) -> Vec<usize> {
    let list = site.list.iter().take(found.count).enumerate();
    let its = list.filter(|(i, _)| Some(*i) != found.stands);
    its.flat_map(|(_, fused)| fused.ops.iter().copied())
        .collect()
}

/// Whether a match is what the ops that it covers are: it reads what they read of others and nothing else,
/// writes what is live of what they write, and no block of it writes what another one may still be reading.
pub fn stands_for(site: &Site<'_>, live: &Liveness, found: &Match) -> bool {
    let ops = covered(site, found);
    let signatures = |ops: &[usize]| -> Vec<Signature> {
        ops.iter()
            .map(|op| site.plan.ops[*op].signature())
            .collect()
    };
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for op in signatures(&ops) {
        read.extend(op.inputs().filter(|id| !written.contains(id)));
        written.extend(op.outputs());
    }
    let its = found.op.operands();
    let reads = its.iter().filter(|b| b.access.reads()).map(|b| b.id);
    let writes = its.iter().filter(|b| b.access.writes()).map(|b| b.id);
    let [reads, writes]: [Vec<_>; 2] = [reads.collect(), writes.collect()];
    // What is read of others and again of what an op left there is not the same value twice.
    let times = |list: &[BufferId], id| list.iter().filter(|its| **its == id).count();
    let is_read = |id: &BufferId| times(&reads, *id) <= times(&read, *id);
    let behind = ops.last().map_or(0, |last| last + 1);
    let is_left = |id: &BufferId| writes.contains(id) || !live.is_live(behind, *id);
    let is_after = found.stands.is_none_or(|i| {
        let stands = signatures(&site.list[i].ops);
        let moved: Vec<usize> = ops
            .iter()
            .copied()
            .filter(|op| *op < site.list[i].ops[0])
            .collect();
        let moved = signatures(&moved);
        stands.iter().all(|a| moved.iter().all(|b| a.commutes(b)))
    });
    let has_same = reads.iter().all(is_read)
        && read.iter().all(|id| reads.contains(id))
        && writes.iter().all(|id| written.contains(id))
        && written.iter().all(is_left);
    has_same && are_apart(&its) && is_after
}
