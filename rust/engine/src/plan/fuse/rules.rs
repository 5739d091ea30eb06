//! What is joined of layers that keep a state.

use super::{is_live, Fused};
use crate::plan::{Op, Plan};

/// The convolution at `at` and the rule behind it.
pub fn convolved(plan: &Plan, at: usize) -> Option<(Fused, usize)> {
    let [conv, rule, ..] = &plan.ops[at..] else {
        return None;
    };
    let Op::ShortConv {
        x, out, silu: true, ..
    } = conv
    else {
        return None;
    };
    let Op::DeltaNet {
        qkv,
        alpha,
        beta,
        out: its,
        ..
    } = rule
    else {
        return None;
    };
    // Blocks of the rule may still be convolving x.
    let is_apart = ![x, out].contains(&its) && ![alpha, beta].contains(&out);
    let is_dead = !is_live(plan, at + 2, *out);
    let fused = || Fused::ConvolvedRule {
        conv: conv.clone(),
        rule: rule.clone(),
    };
    (qkv == out && is_apart && is_dead).then(|| (fused(), 2))
}

#[cfg(test)]
mod tests {
    use super::super::fuse;
    use super::super::tests::plan;
    use super::*;
    use crate::plan::{BufferId, Rows, Weight};
    use crate::quant;

    /// Whether a convolution of one buffer and the rule that reads another's are joined, the first's way
    /// through silu or not, with some ops behind them.
    fn are_joined(silu: bool, reads: usize, behind: impl FnOnce(BufferId) -> Vec<Op>) -> bool {
        let mut plan = plan(Vec::new());
        let mut buffer = |name: &str, width| plan.add_buffer(name, width, Rows::Batch);
        let x = buffer("mixed", 64);
        let outs = [buffer("qkv", 64), buffer("other", 64)];
        let [alpha, beta, out] =
            [("alpha", 2), ("beta", 2), ("rule", 32)].map(|(n, w)| buffer(n, w));
        let mut vector = |name: &str, n_in| {
            plan.add_weight(Weight {
                name: name.into(),
                n_in,
                n_out: 1,
                n_expert: 1,
                ty: &quant::TYPES[0],
            })
        };
        let (weight, a, dt) = (vector("taps", 4 * 64), vector("a", 2), vector("dt", 2));
        let kept = plan.add_state("conv".into(), 3 * 64);
        let state = plan.add_state("delta".into(), 32 * 16);
        plan.ops = vec![
            Op::ShortConv {
                x,
                weight,
                state: kept,
                out: outs[0],
                taps: 4,
                silu,
            },
            Op::DeltaNet {
                qkv: outs[reads],
                alpha,
                beta,
                a,
                dt,
                state,
                out,
                n_head: 2,
                n_head_k: 1,
                head_dim: 16,
                eps: 1e-6,
            },
        ];
        plan.ops.extend(behind(outs[0]));
        plan.check().unwrap();
        let found = fuse(&plan);
        found
            .iter()
            .any(|op| matches!(op, Fused::ConvolvedRule { .. }))
    }

    #[test]
    fn a_convolution_is_joined_with_the_rule_that_alone_reads_it() {
        assert!(are_joined(true, 0, |_| Vec::new()));
        assert!(!are_joined(false, 0, |_| Vec::new()));
        assert!(!are_joined(true, 1, |_| Vec::new()));
        let factor = 2.0;
        assert!(!are_joined(true, 0, |x| vec![Op::Scale { x, factor }]));
    }
}
