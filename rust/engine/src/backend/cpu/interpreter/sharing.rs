//! The parts of a plan that several cards have, run side by side, leave the bits of the plan.

use std::sync::Arc;

use super::fusion::{runs, Numbers};
use super::Interpreter;
use crate::backend::{Batch, Weights};
use crate::plan::sketch::{self as s, id};
use crate::plan::{Gather, Op, Plan, Share};
use proptest::prelude::*;

/// What ops leave of the logits, or what went wrong; each op is run by all before the next.
fn left(plans: &[Arc<Plan>], weights: &Arc<dyn Weights>, rows: usize) -> Result<Vec<u32>, String> {
    let mut all: Vec<Interpreter> = plans
        .iter()
        .map(|p| runs(p, weights.clone(), rows))
        .collect();
    let each: Vec<u32> = (0..rows as u32).collect();
    let batch = Batch {
        tokens: &each,
        positions: &vec![0; rows],
        slots: &each,
        types: &[],
        out_rows: &each,
    };
    for at in 0..plans[0].ops.len() {
        if let Op::Gather(op) = plans[0].ops[at] {
            gather(&mut all, plans, op, rows);
            continue;
        }
        for (runs, plan) in all.iter_mut().zip(plans) {
            let ops = [plan.ops[at].clone()];
            runs.run(&ops, &batch).map_err(|e| e.to_string())?;
        }
    }
    let bits = |runs: &Interpreter| runs.logits().iter().map(|x| x.to_bits()).collect();
    let found: Vec<Vec<u32>> = all.iter().map(bits).collect();
    assert!(found.iter().all(|other| *other == found[0]));
    Ok(found.into_iter().next().unwrap())
}

fn gather(all: &mut [Interpreter], plans: &[Arc<Plan>], op: Gather, rows: usize) {
    let piece = plans[0].buffer(op.x).width / op.pieces;
    let mut whole = Vec::new();
    for at in 0..rows * op.pieces {
        for runs in all.iter() {
            whole.extend_from_slice(&runs.buffer(op.x)[at * piece..][..piece]);
        }
    }
    for (rank, runs) in all.iter_mut().enumerate() {
        let place = plans[rank]
            .ops
            .iter()
            .any(|o| matches!(o, Op::Gather(other) if *other == op));
        assert!(place, "every card gathers the same");
        runs.set(op.out, &whole);
    }
}

fn shared(plan: &Plan, cards: usize) -> Vec<Arc<Plan>> {
    let of = |rank| Arc::new(plan.shared(Share { rank, cards }));
    let plans: Vec<Arc<Plan>> = (0..cards).map(of).collect();
    plans.iter().for_each(|plan| plan.check().unwrap());
    plans
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn cards_together_leave_the_bits_of_one(
        bytes in prop::collection::vec(any::<u8>(), 0..150),
        rows in 1usize..3,
        cards in 2usize..5,
    ) {
        let plan = s::chosen(&bytes);
        let weights: Arc<dyn Weights> = Arc::new(Numbers::new(&plan));
        let wanted = left(&[Arc::new(plan.clone())], &weights, rows);
        prop_assert_eq!(wanted, left(&shared(&plan, cards), &weights, rows));
    }
}

#[test]
fn a_product_is_split_and_gathered_once_for_those_that_want_it_whole() {
    let [x, a, b, sum] = ["x", "a", "b", "sum"].map(id);
    let mv = |x, out| s::matvec(x, None, s::weight_id("matrix"), out);
    let embed = s::chosen(&[]).ops[0].clone();
    let plan = s::plan(vec![
        embed,
        mv(x, a),
        s::scale(a, 0.5),
        mv(a, b),
        s::add(a, b),
        s::add(b, sum),
    ]);
    let plans = shared(&plan, 2);
    let names: Vec<&str> = plans[1].ops.iter().map(|op| op.signature().name).collect();
    assert_eq!(
        names,
        ["embed", "matvec", "scale", "gather", "matvec", "add", "gather", "add"]
    );
    // Of the matrix each has half of the rows, and no copy of the whole.
    let [Op::MatVec { weight, .. }, Op::MatVec { weight: other, .. }] =
        [1, 4].map(|at| &plans[1].ops[at])
    else {
        panic!("{:?}", plans[1].ops)
    };
    assert_eq!(weight, other);
    let (own, whole) = (
        plans[1].weight(*weight),
        plan.weight(s::weight_id("matrix")),
    );
    assert_eq!((own.n_out * 2, own.n_in), (whole.n_out, whole.n_in));
    assert_eq!(own.share, Some(Share { rank: 1, cards: 2 }));
    // What one card left out is seen.
    let weights: Arc<dyn Weights> = Arc::new(Numbers::new(&plan));
    let wanted = left(&[Arc::new(plan)], &weights, 1).unwrap();
    assert_eq!(left(&plans, &weights, 1).unwrap(), wanted);
    let twice = [plans[1].clone(), plans[1].clone()];
    assert_ne!(left(&twice, &weights, 1).unwrap(), wanted);
}
