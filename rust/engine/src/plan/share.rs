//! A plan for one of several cards that compute together (tensor parallelism): products, heads and
//! experts are split by rows, and what every card needs whole is gathered. No sum is cut, so each number
//! has the bits that it has on one card.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::signature::{Access, Operand, Over, Parts, Signature, Width};
use super::{BufferId, KvShape, Op, Plan, Weight, WeightId};

/// Most cards of one model.
pub const MOST_CARDS: usize = 4;

/// Rows that a card's part of a product has at least: a tile of them.
const LEAST_ROWS: usize = 16;

/// Which part of what is split is a card's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// From 0 on, below `cards`.
    pub rank: usize,
    pub cards: usize,
}

/// Of several cards: `out[r]` is what all of them have of it, where `x[r]` is this one's. Of each of `pieces`
/// pieces of a row it is every card's part, by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    pub x: BufferId,
    pub out: BufferId,
    pub pieces: usize,
}

impl Gather {
    /// As [`Op::signature`].
    pub(super) fn signature(self) -> Signature {
        let x = Operand::new(self.x, Access::Read);
        let out = Operand::new(self.out, Access::Write).wide(Width::Cards);
        Signature {
            parts: Parts::Heads(self.pieces),
            ..Signature::new("gather", Over::Buffers, vec![x, out])
        }
    }
}

/// Where the numbers of a buffer are at a place of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Whole,
    /// Each card has its part of each of so many pieces of a row.
    Part(usize),
    Both(usize),
}

impl Plan {
    /// The plan of one of several cards. What does not divide evenly, every card computes whole. Without
    /// [`Plan::drafter`].
    pub fn shared(&self, share: Share) -> Plan {
        let mut sharing = Sharing::new(self, share);
        for op in &self.ops {
            if !sharing.split(op) {
                sharing.whole(op);
            }
        }
        sharing.need_whole(self.logits);
        sharing.plan
    }
}

struct Sharing<'a> {
    from: &'a Plan,
    plan: Plan,
    share: Share,
    /// Of a buffer, this card's part.
    parts: HashMap<BufferId, BufferId>,
    held: HashMap<BufferId, Held>,
    weights: HashMap<WeightId, WeightId>,
    /// Layers whose heads are split.
    layers: Vec<bool>,
}

impl<'a> Sharing<'a> {
    fn new(from: &'a Plan, share: Share) -> Self {
        let mut layers: Vec<bool> = from.kv.iter().map(|kv| share.divides_layer(kv)).collect();
        for op in &from.ops {
            if let Op::Attention { layer, n_head, .. } = *op {
                layers[layer] &= n_head.is_multiple_of(share.cards);
            }
        }
        let mut plan = Plan {
            ops: Vec::new(),
            drafter: None,
            share: Some(share),
            ..from.clone()
        };
        for (kv, _) in plan.kv.iter_mut().zip(&layers).filter(|(_, split)| **split) {
            kv.n_head_kv /= share.cards;
        }
        Self {
            from,
            plan,
            share,
            parts: HashMap::new(),
            held: HashMap::new(),
            weights: HashMap::new(),
            layers,
        }
    }

    fn width(&self, id: BufferId) -> usize {
        self.from.buffer(id).width
    }

    fn held(&self, id: BufferId) -> Held {
        self.held.get(&id).copied().unwrap_or(Held::Whole)
    }

    /// Whether this card's part of it is there, and of how many pieces.
    fn pieces(&self, id: BufferId) -> Option<usize> {
        match self.held(id) {
            Held::Whole => None,
            Held::Part(pieces) | Held::Both(pieces) => Some(pieces),
        }
    }

    fn part(&mut self, id: BufferId) -> BufferId {
        if let Some(part) = self.parts.get(&id) {
            return *part;
        }
        let whole = self.from.buffer(id);
        let (name, width) = (
            format!("{}.part", whole.name),
            whole.width / self.share.cards,
        );
        let part = self.plan.add_buffer(&name, width, whole.rows);
        self.parts.insert(id, part);
        part
    }

    /// Has all of it on every card.
    fn need_whole(&mut self, id: BufferId) {
        if let Held::Part(pieces) = self.held(id) {
            let x = self.part(id);
            let out = id;
            self.plan.ops.push(Op::Gather(Gather { x, out, pieces }));
            self.held.insert(id, Held::Both(pieces));
        }
    }

    /// This card's part of whole heads; false where it does not divide.
    fn need_part(&mut self, id: BufferId) -> Option<BufferId> {
        if self.pieces(id) == Some(1) {
            return Some(self.part(id));
        }
        let Share { rank, cards } = self.share;
        if !self.width(id).is_multiple_of(cards) {
            return None;
        }
        self.need_whole(id);
        let (out, of) = (self.part(id), self.width(id));
        let first = rank * (of / cards);
        self.plan.ops.push(Op::Slice {
            x: id,
            out,
            n: 1,
            first,
            of,
        });
        self.held.insert(id, Held::Both(1));
        Some(out)
    }

    /// The part of `id` that an op writes.
    fn write_part(&mut self, id: BufferId, pieces: usize) -> BufferId {
        self.held.insert(id, Held::Part(pieces));
        self.part(id)
    }

    /// This card's rows of a matrix, or numbers of a vector.
    fn weight(&mut self, id: WeightId) -> WeightId {
        if let Some(known) = self.weights.get(&id) {
            return *known;
        }
        let whole = self.from.weight(id);
        let cards = self.share.cards;
        let (n_in, n_out) = match whole.n_out {
            1 => (whole.n_in / cards, 1),
            n => (whole.n_in, n / cards),
        };
        self.plan.weights.push(Weight {
            n_in,
            n_out,
            share: Some(self.share),
            ..whole.clone()
        });
        let own = WeightId(self.plan.weights.len() - 1);
        self.weights.insert(id, own);
        own
    }

    /// Whether the rows of a matrix can be split.
    fn splits(&self, id: WeightId) -> bool {
        let n_out = self.from.weight(id).n_out;
        n_out.is_multiple_of(self.share.cards * LEAST_ROWS)
    }

    /// The op as it is, over whole rows.
    fn whole(&mut self, op: &Op) {
        let signature = op.signature();
        for id in signature.inputs() {
            self.need_whole(id);
        }
        for id in signature.outputs() {
            self.held.insert(id, Held::Whole);
        }
        self.plan.ops.push(op.clone());
    }

    /// This card's part of the op, where it has one.
    fn split(&mut self, op: &Op) -> bool {
        let made = match *op {
            Op::MatVec { .. } | Op::ExpertMatVec { .. } => self.product(op),
            Op::Rope { .. } | Op::RmsNorm { .. } | Op::Slice { .. } => self.heads(op),
            Op::KvScatter { .. } | Op::Attention { .. } => self.attention(op),
            _ => self.elements(op),
        };
        made.map(|op| self.plan.ops.push(op)).is_some()
    }

    fn product(&mut self, op: &Op) -> Option<Op> {
        let mut op = op.clone();
        let (weight, bias, pieces) = match &op {
            Op::MatVec { weight, bias, .. } => (*weight, *bias, 1),
            Op::ExpertMatVec {
                weight,
                bias,
                routes,
                ..
            } if !self.from.goes_to_all(*routes) => (*weight, *bias, self.width(*routes) / 2),
            _ => return None,
        };
        if !self.splits(weight) {
            return None;
        }
        for id in op.signature().inputs() {
            self.need_whole(id);
        }
        let (own, own_bias) = (self.weight(weight), bias.map(|id| self.weight(id)));
        match &mut op {
            Op::MatVec {
                weight, bias, out, ..
            }
            | Op::ExpertMatVec {
                weight, bias, out, ..
            } => {
                (*weight, *bias) = (own, own_bias);
                *out = self.write_part(*out, pieces);
            }
            _ => return None,
        }
        Some(op)
    }

    fn heads(&mut self, op: &Op) -> Option<Op> {
        let cards = self.share.cards;
        let mut op = op.clone();
        match &mut op {
            Op::Rope { x, n_head, .. } => {
                let is_split = self.pieces(*x) == Some(1) && n_head.is_multiple_of(cards);
                if !is_split {
                    return None;
                }
                *n_head /= cards;
                *x = self.write_part(*x, 1);
            }
            Op::RmsNorm {
                x,
                weight,
                out,
                group,
                ..
            } => {
                let of_group = weight.is_none_or(|id| self.from.weight(id).n_in == *group);
                let width = self.width(*x) / cards;
                let is_split = self.pieces(*x) == Some(1) && width.is_multiple_of(*group);
                if !(is_split && of_group) {
                    return None;
                }
                *x = self.part(*x);
                *out = self.write_part(*out, 1);
            }
            Op::Slice { x, out, n, .. } => {
                if self.pieces(*x) != Some(1) || !n.is_multiple_of(cards) {
                    return None;
                }
                *n /= cards;
                *x = self.part(*x);
                *out = self.write_part(*out, 1);
            }
            _ => return None,
        }
        Some(op)
    }

    fn attention(&mut self, op: &Op) -> Option<Op> {
        let mut op = op.clone();
        match &mut op {
            Op::KvScatter { k, v, layer } => {
                if !self.layers[*layer] {
                    return None;
                }
                (*k, *v) = (self.need_part(*k)?, self.need_part(*v)?);
            }
            Op::Attention {
                q,
                out,
                layer,
                n_head,
                sinks,
                ..
            } => {
                if !self.layers[*layer] {
                    return None;
                }
                *q = self.need_part(*q)?;
                *n_head /= self.share.cards;
                *sinks = sinks.map(|id| self.weight(id));
                *out = self.write_part(*out, 1);
            }
            _ => return None,
        }
        Some(op)
    }

    /// Of what goes number by number, the part where all of it is split alike.
    fn elements(&mut self, op: &Op) -> Option<Op> {
        let mut op = op.clone();
        match &mut op {
            Op::Gelu { x }
            | Op::ReluSquared { x }
            | Op::Scale { x, .. }
            | Op::ScaleBy { x, .. }
            | Op::SoftCap { x, .. } => {
                let pieces = self.pieces(*x)?;
                *x = self.write_part(*x, pieces);
            }
            Op::Add { x, out } => {
                let pieces = self.alike(&[*x, *out])?;
                *x = self.part(*x);
                *out = self.write_part(*out, pieces);
            }
            Op::SwiGlu { gate, up, out }
            | Op::GeGlu { gate, up, out }
            | Op::ClampedSwiGlu { gate, up, out } => {
                let pieces = self.alike(&[*gate, *up])?;
                (*gate, *up) = (self.part(*gate), self.part(*up));
                *out = self.write_part(*out, pieces);
            }
            Op::SigmoidMul { x, gate, out } | Op::SoftplusMul { x, gate, out } => {
                // A gate of one number for several has them by heads.
                let pieces = self.alike(&[*x, *gate])?;
                let is_whole = self.width(*x) == self.width(*gate);
                if !is_whole && pieces != 1 {
                    return None;
                }
                (*x, *gate) = (self.part(*x), self.part(*gate));
                *out = self.write_part(*out, pieces);
            }
            Op::MixExperts { x, routes, out } => {
                let ranks = self.width(*routes) / 2;
                if self.pieces(*x) != Some(ranks) {
                    return None;
                }
                self.need_whole(*routes);
                *x = self.part(*x);
                *out = self.write_part(*out, 1);
            }
            _ => return None,
        }
        Some(op)
    }

    /// The pieces of all of them, where they are split alike.
    fn alike(&self, ids: &[BufferId]) -> Option<usize> {
        let first = self.pieces(*ids.first()?)?;
        let same = ids.iter().all(|id| self.pieces(*id) == Some(first));
        same.then_some(first)
    }
}

impl Share {
    /// Whether each card can have as many heads of a layer's cache.
    fn divides_layer(self, kv: &KvShape) -> bool {
        kv.values_in_keys.is_none() && kv.n_head_kv > 0 && kv.n_head_kv.is_multiple_of(self.cards)
    }
}
