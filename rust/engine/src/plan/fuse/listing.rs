//! A fused list for people: a line an op, with what it stands for.

use std::fmt::Write;

use super::{FusedOp, FusedPlan, PassShape};
use crate::plan::Plan;

impl FusedPlan {
    /// The list of such a pass. An op that no rule found is listed as in a plan; of others the buffers, the rule
    /// and the ops that it replaced.
    pub fn listed(&self, shape: &PassShape) -> String {
        let mut text = String::new();
        for (at, fused) in self.of_pass(shape).iter().enumerate() {
            let _ = writeln!(text, "  {at:4}  {}", line(&self.plan, fused));
        }
        text
    }
}

fn line(plan: &Plan, fused: &FusedOp) -> String {
    let ops = || fused.ops.iter().map(|at| (at, plan.ops[*at].signature()));
    let Some(rule) = fused.rule else {
        let all = ops().map(|(_, op)| op.listed(plan).to_string());
        return all.collect();
    };
    let operands = fused.op.operands();
    let named = |is: fn(&super::Operand) -> bool| {
        let mut ids = Vec::new();
        for b in operands.iter().filter(|b| is(b)) {
            if !ids.contains(&b.id) {
                ids.push(b.id);
            }
        }
        let names = ids.iter().map(|id| plan.buffer(*id).name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let replaced: Vec<_> = ops().map(|(at, op)| format!("{at} {}", op.name)).collect();
    format!(
        "{} = [{rule}]({}): {}",
        named(|b| b.access.writes()),
        named(|b| b.access.reads()),
        replaced.join(", ")
    )
}
