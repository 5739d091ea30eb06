//! Which buffers are live where, computed once for a plan.

use crate::plan::{BufferId, Op, Plan};

/// When each buffer of a plan is read or overwritten.
#[derive(Debug, Clone)]
pub struct Liveness {
    /// By buffer, the ops that read it or overwrite it, in order, and whether they read it.
    used: Vec<Vec<(usize, bool)>>,
    logits: BufferId,
}

impl Liveness {
    /// That of the buffers of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let mut used = vec![Vec::new(); plan.buffers.len()];
        for (at, op) in plan.ops.iter().map(Op::signature).enumerate() {
            for id in op.inputs() {
                used[id.0].push((at, true));
            }
            // What an op reads and overwrites it reads first.
            for id in op.overwritten() {
                used[id.0].push((at, false));
            }
        }
        Self {
            used,
            logits: plan.logits,
        }
    }

    /// Whether an op from `from` on reads `id` before it is written again, or it is the logits that a pass
    /// leaves.
    pub fn is_live(&self, from: usize, id: BufferId) -> bool {
        let used = &self.used[id.0];
        let next = used.partition_point(|(at, _)| *at < from);
        used.get(next)
            .map_or(id == self.logits, |(_, reads)| *reads)
    }
}
