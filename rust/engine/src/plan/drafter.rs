//! What drafts tokens: plans beside a model's, by its ids.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{BufferId, Op, Plan};

/// What guesses tokens behind the next one. Its plans have the model's buffers, weights and layers by the
/// same ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drafter {
    /// Over the rows of passes of the model: stores what its layers keep of them.
    pub follow: Plan,
    /// The logits of the token behind one more.
    pub guess: Plan,
    /// Where it goes by the model's rows: each with the token that follows it, so that it stands at the
    /// position of the row (multi-token prediction, <https://arxiv.org/abs/2412.19437>, section 2.2). Else
    /// it is a model that goes by the tokens alone.
    pub by: Option<ByRows>,
}

/// The rows that a drafter goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByRows {
    /// `[rows, n_embd]` of `follow`: the rows of the pass under the model's last norm.
    pub rows: BufferId,
    /// `[rows, n_embd]` of `guess`: one of those, in its place then what the next guess goes by.
    pub hidden: BufferId,
    /// Whether each guess stands at the position behind that of the one before: it stores keys and values.
    pub moves: bool,
}

impl Plan {
    /// The plan with this drafter, and with all that it has beside `ops` and `logits`: one set of ids.
    pub fn with_drafter(self, follow: Vec<Op>, guess: Plan, by: Option<ByRows>) -> Self {
        let follow = Plan {
            ops: follow,
            ..guess.clone()
        };
        let plan = Plan {
            ops: self.ops,
            logits: self.logits,
            ..guess.clone()
        };
        Plan {
            drafter: Some(Box::new(Drafter { follow, guess, by })),
            ..plan
        }
    }

    /// Layers of the model's own, those of a drafter are behind them.
    pub fn own_layers(&self) -> usize {
        let follow = self.drafter.iter().flat_map(|d| &d.follow.ops);
        follow.filter_map(stored_in).min().unwrap_or(self.kv.len())
    }

    /// This plan with the buffers, weights, angles and layers of `other` behind its own, under names with
    /// this prefix, and with the ops and logits of `other` in the place of its own.
    pub fn joined(mut self, other: Plan, prefix: &str) -> Self {
        let by = Offsets {
            buffers: self.buffers.len(),
            weights: self.weights.len(),
            ropes: self.ropes.len(),
            layers: self.kv.len(),
        };
        let Plan {
            mut buffers,
            mut weights,
            mut ops,
            mut ropes,
            kv,
            mut logits,
            ..
        } = other;
        let buffer_names = buffers.iter_mut().map(|b| &mut b.name);
        let names = buffer_names.chain(weights.iter_mut().map(|w| &mut w.name));
        names.for_each(|name| name.insert_str(0, prefix));
        for table in &mut ropes {
            let long = table.long.as_mut().map(|long| &mut long.factors);
            let factors = table.factors.iter_mut().chain(long);
            factors.for_each(|id| id.0 += by.weights);
        }
        ops.iter_mut().for_each(|op| op.shift(&by));
        logits.0 += by.buffers;
        self.buffers.extend(buffers);
        self.weights.extend(weights);
        self.ropes.extend(ropes);
        self.kv.extend(kv);
        (self.ops, self.logits) = (ops, logits);
        self
    }
}

/// How far the ids of a plan move that comes behind another one.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    pub buffers: usize,
    pub weights: usize,
    pub ropes: usize,
    pub layers: usize,
}

/// The layer that an op stores keys and values in.
fn stored_in(op: &Op) -> Option<usize> {
    let cache = op.signature().cache?;
    cache.access.writes().then_some(cache.layer)
}

/// The ops up to the last that stores keys and values, those alone that they come from.
pub fn storing(ops: &[Op]) -> Vec<Op> {
    let mut wanted = HashSet::new();
    let mut kept = Vec::new();
    for op in ops.iter().rev() {
        let signature = op.signature();
        if stored_in(op).is_some() || signature.outputs().any(|out| wanted.contains(&out)) {
            signature.overwritten().for_each(|out| {
                wanted.remove(&out);
            });
            wanted.extend(signature.inputs());
            kept.push(op.clone());
        }
    }
    kept.reverse();
    kept
}
