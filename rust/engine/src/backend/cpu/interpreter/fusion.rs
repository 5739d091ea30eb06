//! Fused lists mean what their plan means: the ops that each fused op stands for, in the order of the list,
//! leave the same bits, although what a fused op does not write is no number behind it.

use std::sync::Arc;

use super::Interpreter;
use crate::backend::{Batch, GpuOptions, Kind, RunnerOptions, Weights};
use crate::error::Result;
use crate::plan::fuse::{Fused, FusedOp, FusedPlan, PassShape};
use crate::plan::sketch::{self as s, id};
use crate::plan::{Op, Plan};
use crate::quant;
use proptest::prelude::*;

/// Of each tensor bytes that make small numbers: those of a norm near 1.
pub(super) struct Numbers(Vec<(String, Vec<u8>)>);

impl Numbers {
    pub(super) fn new(plan: &Plan) -> Self {
        let bytes = |w: &crate::plan::Weight| -> Vec<u8> {
            let mut state = w
                .name
                .bytes()
                .fold(7u32, |sum, b| sum.wrapping_mul(31) ^ u32::from(b));
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 16
            };
            let n = w.n_in * w.n_out * w.n_expert;
            if !w.ty.integers {
                let value = |r: u32| (r as f32 / 65536.0 - 0.25) / 4.0;
                return (0..n).flat_map(|_| value(next()).to_le_bytes()).collect();
            }
            // A scale of 2^-10 before 32 integers.
            let block = |_| {
                [0u8, 0x14]
                    .into_iter()
                    .chain(std::array::from_fn::<u8, 32, _>(|_| next() as u8))
            };
            (0..n / 32).flat_map(block).collect()
        };
        Self(
            plan.weights
                .iter()
                .map(|w| (w.name.clone(), bytes(w)))
                .collect(),
        )
    }
}

impl Weights for Numbers {
    fn bytes(&self, name: &str) -> Result<&[u8]> {
        let found = self.0.iter().find(|w| w.0 == name).unwrap();
        Ok(&found.1)
    }
}

/// What runs `plan` over so many rows, sequences of their own.
pub(super) fn runs(plan: &Arc<Plan>, weights: Arc<dyn Weights>, rows: usize) -> Interpreter {
    let options = RunnerOptions {
        n_slots: rows,
        n_ctx: 64,
        n_pages: rows + 1,
        windows: None,
        kv_type: quant::kv_by_name(quant::TYPES[0].name).unwrap(),
        threads: 1,
        gpu: GpuOptions::default(),
    };
    let mut runs = Interpreter::new(plan.clone(), weights, &options).unwrap();
    for slot in 0..rows {
        let pages = [slot as u32 + 1];
        runs.kv.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
    }
    runs
}

/// What a pass of so many rows leaves where it is wanted, or what went wrong.
fn left(plan: &Arc<Plan>, list: &[FusedOp], rows: usize) -> std::result::Result<Vec<u32>, String> {
    let mut runs = runs(plan, Arc::new(Numbers::new(plan)), rows);
    let each: Vec<u32> = (0..rows as u32).collect();
    let batch = Batch {
        tokens: &each,
        positions: &vec![0; rows],
        slots: &each,
        types: &[],
        out_rows: &each,
    };
    for fused in list {
        let ops: Vec<Op> = fused.ops.iter().map(|at| plan.ops[*at].clone()).collect();
        runs.run(&ops, &batch).map_err(|e| e.to_string())?;
        let written = ops.iter().map(Op::signature);
        let its = fused.op.operands();
        for id in written.flat_map(|op| op.outputs().collect::<Vec<_>>()) {
            if !its.iter().any(|b| b.id == id && b.access.writes()) {
                runs.buffers[id.0].fill(f32::NAN);
            }
        }
    }
    Ok(runs.logits().iter().map(|x| x.to_bits()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn fused_lists_leave_the_bits_of_their_plans(
        bytes in prop::collection::vec(any::<u8>(), 0..150),
        rows in 1usize..3,
        is_step in any::<bool>(),
    ) {
        let plan = Arc::new(s::chosen(&bytes));
        let wanted = left(&plan, &FusedPlan::new(&plan, false).list, rows);
        let fused = FusedPlan::new(&plan, true);
        let shape = PassShape { rows, out: rows, is_step, sms: 4, expert_rows: 2 };
        for list in [fused.of_pass(&shape), fused.list] {
            prop_assert_eq!(&wanted, &left(&plan, &list, rows));
        }
    }
}

#[test]
fn what_is_taken_for_dead_and_is_not_is_seen() {
    let [x, a, b, sum] = ["x", "a", "b", "sum"].map(id);
    let mv = |x, out| s::matvec(x, None, s::weight_id("matrix"), out);
    let embed = s::chosen(&[]).ops[0].clone();
    let ops = vec![embed, mv(x, a), s::add(a, b), mv(a, sum)];
    let plan = Arc::new(s::plan(ops));
    let single = FusedPlan::new(&plan, false).list;
    let wanted = left(&plan, &single, 1).unwrap();
    assert!(wanted.iter().any(|bits| *bits != 0));
    assert_eq!(
        left(&plan, &FusedPlan::new(&plan, true).list, 1).unwrap(),
        wanted
    );
    // As a product that adds.
    let without = s::plan(plan.ops[..3].to_vec());
    let joined = FusedPlan::new(&Arc::new(without), true).list;
    assert!(matches!(joined[1].op, Fused::MatVec(_)) && joined.len() == 2);
    let wrong = [&joined[..], &single[3..]].concat();
    assert_ne!(left(&plan, &wrong, 1), Ok(wanted));
}
