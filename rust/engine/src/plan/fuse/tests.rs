//! What rules make of small plans, and what the driver holds of every plan.

use super::rule::{stands_for, Match, Site};
use super::*;
use crate::plan::sketch::{self as s, id, norm_of, weight_id};
use crate::plan::RopeStyle::{self, Halves, Interleaved};
use crate::plan::RowPart;
use proptest::prelude::*;

const X: BufferId = BufferId(0);
const A: BufferId = BufferId(1);
const B: BufferId = BufferId(2);
const C: BufferId = BufferId(3);
const SUM: BufferId = BufferId(4);

/// The fused ops of every pass.
fn fuse(ops: &[Op]) -> Vec<FusedOp> {
    let mut plan = s::plan(Vec::new());
    plan.ops = ops.to_vec();
    plan.check().unwrap();
    FusedPlan::new(&Arc::new(plan), true).list
}

/// How many ops each of the fused ones stands for.
fn counts(ops: &[Op]) -> Vec<usize> {
    fuse(ops).iter().map(|fused| fused.ops.len()).collect()
}

fn only(ops: &[Op]) -> Fused {
    let mut list = fuse(ops);
    assert_eq!(list.len(), 1, "{list:?}");
    list.remove(0).op
}

fn product(op: Fused) -> ProductOp {
    match op {
        Fused::MatVec(product) => product,
        other => panic!("{other:?}"),
    }
}

/// By a matrix of floats.
fn mv(x: BufferId, out: BufferId) -> Op {
    s::matvec(x, None, weight_id("matrix"), out)
}

fn normed(x: BufferId, out: BufferId) -> Op {
    s::matvec(x, norm_of(weight_id("norm")), weight_id("matrix"), out)
}

fn norm(x: BufferId, out: BufferId) -> Op {
    s::norm(x, Some(weight_id("norm")), out, 64)
}

fn factor(x: BufferId) -> Op {
    s::scale_by(x, weight_id("factor"))
}

#[test]
fn products_of_one_input_and_norm_are_joined() {
    let ops = [A, B, C].map(|out| normed(X, out));
    assert_eq!(product(only(&ops)).parts.len(), 3);
    let plan = Arc::new(s::plan(ops.to_vec()));
    assert_eq!(FusedPlan::new(&plan, false).list.len(), 3);
    // Not those of another norm or none, nor floats with integers.
    let mut other = normed(X, C);
    if let Op::MatVec {
        norm: Some(norm), ..
    } = &mut other
    {
        norm.eps = 1e-6;
    }
    assert_eq!(counts(&[mv(X, A), normed(X, B), other]), [1; 3]);
    let integers = s::matvec(X, None, weight_id("integers"), B);
    assert_eq!(counts(&[mv(X, A), integers]), [1; 2]);
}

#[test]
fn a_residual_is_joined_with_its_factor_unless_it_is_the_input_or_wanted_itself() {
    let epilogue = |scale| Epilogue::Add { out: SUM, scale };
    let ops = [normed(X, A), s::add(A, SUM)];
    assert_eq!(product(only(&ops)).epilogue, epilogue(1.0));
    let scaled = [normed(X, A), s::scale(A, 0.25), s::add(A, SUM)];
    assert_eq!(product(only(&scaled)).epilogue, epilogue(0.25));
    assert_eq!(counts(&[&scaled[..], &[mv(A, B)]].concat()), [1; 4]);
    assert_eq!(counts(&[normed(X, A), s::add(A, X)]), [1, 1]);
    // Logits are stored although no op reads them.
    assert_eq!(counts(&[mv(X, SUM), s::add(SUM, B)]), [1, 1]);
    assert_eq!(counts(&[mv(X, A), s::add(A, B)]), [2]);
}

#[test]
fn an_activation_is_joined_unless_it_is_the_input() {
    for (out, wanted) in [(SUM, vec![3]), (X, vec![2, 1])] {
        let (gate, up) = (A, B);
        for act in [
            Op::SwiGlu { gate, up, out },
            Op::GeGlu { gate, up, out },
            Op::ClampedSwiGlu { gate, up, out },
        ] {
            assert_eq!(counts(&[normed(X, A), normed(X, B), act]), wanted);
        }
    }
}

#[test]
fn norms_and_rotations_of_heads_are_joined_where_they_are_alike() {
    let weight = weight_id("norm");
    let [queries, keys] = [A, B].map(|x| NormedHeads { x, weight });
    let joined = QkNormRope {
        queries,
        keys,
        values: None,
        head_dim: 64,
        eps: s::EPS,
        rotation: Rotation {
            table: 0,
            style: Halves,
        },
    };
    let rope = |x, style: RopeStyle| s::rope(x, 1, style);
    let (norms, ropes) = ([norm(A, A), norm(B, B)], [rope(A, Halves), rope(B, Halves)]);
    let heads = [&norms[..], &ropes].concat();
    assert_eq!(only(&heads), Fused::QkNormRope(joined));
    // With values, of their own or those that keys are before.
    let plain = |x, out, group| s::norm(x, None, out, group);
    let behind = |op: Op| [&[op][..], &heads].concat();
    for (x, are_keys) in [(C, false), (B, true)] {
        let values = Some(Values { out: C, are_keys });
        let wanted = Fused::QkNormRope(QkNormRope { values, ..joined });
        assert_eq!(only(&behind(plain(x, C, 64))), wanted);
    }
    for other in [
        plain(A, C, 64),
        plain(B, B, 64),
        plain(C, C, 32),
        plain(SUM, C, 64),
    ] {
        assert_eq!(counts(&behind(other)), [1, 4]);
    }
    let mut with_eps = norms.clone();
    if let Op::RmsNorm { eps, .. } = &mut with_eps[1] {
        *eps = 1e-3;
    }
    let apart: [[&[Op]; 2]; 5] = [
        [&norms, &ropes[..1]],
        [&norms, &[ropes[0].clone(), ropes[0].clone()]],
        [&norms, &[ropes[0].clone(), rope(B, Interleaved)]],
        [&with_eps, &ropes],
        [&[norms[0].clone(), norm(B, C)], &ropes],
    ];
    for ops in apart.map(|ops| ops.concat()) {
        assert_eq!(counts(&ops), vec![1; ops.len()], "{ops:?}");
    }
}

/// Its rows are rounded before they are multiplied: not the sum that a product with a norm has.
#[test]
fn a_norm_of_its_own_stays_one() {
    assert_eq!(counts(&[norm(SUM, X), normed(X, A)]), [1, 1]);
}

#[test]
fn a_norm_is_joined_with_the_residual_or_the_gate_alone() {
    let gated = |gate, up, out| s::swiglu([gate, up, out]);
    for (ops, wanted) in [
        (vec![norm(A, A), s::add(A, SUM)], vec![2]),
        (vec![norm(A, B), s::add(B, SUM)], vec![2]),
        // A factor of the sum is joined too, one of something else is not.
        (vec![norm(A, A), s::add(A, SUM), factor(SUM)], vec![3]),
        (vec![norm(A, A), s::add(A, SUM), factor(B)], vec![2, 1]),
        // What is normalized is what is added to.
        (vec![norm(A, B), s::add(B, A)], vec![1, 1]),
        // Another sum, and a norm that is read again.
        (vec![norm(A, B), s::add(A, SUM)], vec![1, 1]),
        (vec![norm(A, A), s::add(A, SUM), mv(A, B)], vec![1; 3]),
        (vec![norm(A, A), gated(B, A, C)], vec![2]),
        (vec![norm(A, B), gated(C, B, SUM)], vec![2]),
        // The gate is what is normalized, or what was goes to another place.
        (vec![norm(A, A), gated(A, B, C)], vec![1, 1]),
        (vec![norm(A, B), gated(C, B, A)], vec![1, 1]),
        // What the norm gives is read again.
        (vec![norm(A, A), gated(B, A, C), mv(A, B)], vec![1; 3]),
    ] {
        assert_eq!(counts(&ops), wanted, "{ops:?}");
    }
}

#[test]
fn a_latent_row_is_made_at_once_where_nothing_else_wants_its_parts() {
    let style = RopeStyle::Interleaved;
    let join = |x, y| Op::Join {
        x,
        y,
        out: id("gates"),
        n: 1,
        of: [64, 64],
    };
    let row = [
        norm(A, A),
        s::rope(B, 1, style),
        s::rope(C, 1, style),
        join(A, B),
    ];
    let weight = weight_id("norm");
    let wanted = Fused::LatentRow(LatentRow {
        x: A,
        norm: norm_of(weight).unwrap(),
        y: B,
        q: C,
        n_head: 1,
        out: id("gates"),
        of: [64, 64],
        rotation: Rotation { table: 0, style },
        cut: None,
    });
    assert_eq!(only(&row), wanted);
    // Queries that are cut from heads.
    let cut = |first, second| {
        let all = id("ups");
        let parts = [s::slice(all, X, 1, 0, 128), s::slice(all, C, 1, first, 128)];
        [&parts[..], &row[..second]].concat()
    };
    match only(&cut(64, 4)) {
        Fused::LatentRow(LatentRow { cut: Some(of), .. }) => {
            assert_eq!((of.all, of.plain), (id("ups"), X));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(counts(&cut(0, 4)), [1, 1, 4]);
    assert_eq!(counts(&cut(64, 3)), [1; 5]);
    let other = s::rope(C, 1, RopeStyle::Halves);
    let [first, second, third, fourth] = row;
    for ops in [
        // Another rotation of queries, parts in another order, or one that is read again.
        vec![first.clone(), second.clone(), other, fourth.clone()],
        vec![first.clone(), second.clone(), third.clone(), join(B, A)],
        vec![first, second, third, fourth, s::add(B, SUM)],
    ] {
        assert_eq!(counts(&ops), vec![1; ops.len()], "{ops:?}");
    }
}

#[test]
fn norms_that_meet_are_joined_where_nothing_else_wants_them() {
    let weight = weight_id("norm");
    let wanted = |factor| {
        Fused::NormPair(NormPair {
            pair: [(A, weight), (B, weight)],
            norm: norm_of(weight).unwrap(),
            group: 64,
            out: SUM,
            factor,
        })
    };
    let chain = [
        norm(A, A),
        norm(B, B),
        s::add(B, A),
        norm(A, A),
        s::add(A, SUM),
    ];
    assert_eq!(only(&chain), wanted(None));
    let with = |more: Op| [&chain[..], &[more]].concat();
    assert_eq!(only(&with(factor(SUM))), wanted(Some(weight_id("factor"))));
    // Elsewhere than in place.
    let apart = [
        norm(A, C),
        norm(B, B),
        s::add(B, C),
        norm(C, C),
        s::add(C, SUM),
    ];
    assert_eq!(only(&apart), wanted(None));
    let replaced = |i: usize, by: Op| {
        let mut ops = chain.to_vec();
        ops[i] = by;
        ops
    };
    for ops in [
        // Something between is read again.
        with(mv(A, B)),
        with(mv(B, C)),
        // The second norm is one of the first, the sum goes elsewhere, or to what is normalized.
        replaced(1, norm(A, B)),
        replaced(2, s::add(C, A)),
        replaced(3, norm(C, A)),
        replaced(4, s::add(A, B)),
        // The residual is what is between.
        vec![
            norm(A, C),
            norm(B, B),
            s::add(B, C),
            norm(C, A),
            s::add(A, C),
        ],
    ] {
        assert!(counts(&ops).iter().all(|n| *n < 5), "{ops:?}");
    }
}

#[test]
fn halves_of_a_product_and_their_gate_are_joined_where_they_are_all_of_it() {
    let [both, routes, gate, up, out] = ["both", "routes", "gates", "ups", "acts"].map(id);
    let all = s::by_experts(
        X,
        norm_of(weight_id("norm")),
        routes,
        weight_id("of_both"),
        both,
    );
    let half = |out, first| s::slice(both, out, 2, first, 128);
    let of = |halves: [Op; 2], more: &[Op]| {
        let gated = Op::GeGlu { gate, up, out };
        [&[all.clone()][..], &halves, &[gated], more].concat()
    };
    let found = product(only(&of([half(gate, 0), half(up, 64)], &[])));
    let wanted = Epilogue::Gated {
        gate: Gate::Ge,
        out,
    };
    assert_eq!((found.parts.len(), found.epilogue), (1, wanted));
    for ops in [
        // The gate is the second half, one half is both, one begins elsewhere, or is read again.
        of([half(up, 0), half(gate, 64)], &[]),
        of([half(gate, 0), half(gate, 64)], &[]),
        of([half(gate, 0), half(up, 32)], &[]),
        of([half(gate, 0), half(up, 64)], &[s::add(gate, out)]),
    ] {
        assert_eq!(counts(&ops), vec![1; ops.len()]);
    }
}

#[test]
fn factors_before_and_behind_a_choice_of_experts_are_joined_with_it() {
    let [logits, routes] = ["router", "routes"].map(id);
    let before = s::scale(logits, 0.5);
    let behind = s::scale_ranks(routes, weight_id("factors"));
    let choice = s::route(logits, routes);
    let Fused::Route(alone) = only(std::slice::from_ref(&choice)) else {
        panic!("no choice");
    };
    assert_eq!((alone.factor, alone.scales), (1.0, None));
    for (has_before, has_behind) in [(true, true), (true, false), (false, true)] {
        let all = [
            (has_before, &before),
            (true, &choice),
            (has_behind, &behind),
        ];
        let ops: Vec<Op> = all
            .iter()
            .filter(|op| op.0)
            .map(|op| op.1.clone())
            .collect();
        let wanted = RouteOp {
            factor: if has_before { 0.5 } else { 1.0 },
            scales: has_behind.then_some(weight_id("factors")),
            ..alone
        };
        assert_eq!(only(&ops), Fused::Route(wanted));
    }
    // Logits that are wanted scaled are scaled; and so are others.
    let read = s::scale(logits, 2.0);
    assert_eq!(counts(&[before, choice.clone(), read, mv(X, A)]), [1; 4]);
    assert_eq!(counts(&[s::scale(SUM, 0.5), choice]), [1, 1]);
}

#[test]
fn a_few_rows_are_summed_up_one_by_one_where_they_choose_their_experts() {
    let [routes, acts, downs] = ["routes", "acts", "downs"].map(id);
    let by = s::by_experts(acts, None, routes, weight_id("of_downs"), downs);
    let of = |first: &Op, rows| {
        let rest = [s::add(X, A), by.clone(), s::mix(downs, routes, SUM)];
        let plan = Arc::new(s::plan([&[first.clone()][..], &rest].concat()));
        let list = FusedPlan::new(&plan, true).of_pass(&shape((rows, true)));
        list.iter().map(|fused| fused.ops.len()).collect::<Vec<_>>()
    };
    let (chosen, all) = (s::route(id("router"), routes), Op::RouteAll { out: routes });
    assert_eq!([of(&chosen, 1), of(&all, 1)], [[1, 1, 2]; 2]);
    assert_eq!(of(&chosen, 2), [1, 1, 2]);
    assert_eq!(of(&all, 2), [1; 4]);
    assert_eq!(of(&chosen, 3), [1; 4]);
}

#[test]
fn sums_that_are_taken_apart_are_products_with_some_of_the_rows() {
    let [first, second] = ["first", "second"].map(id);
    let half = |out, first| s::slice(B, out, 2, first, 32);
    let both = [half(first, 0), half(second, 16)];
    let of = |before: &[Op], more: &[Op]| [before, &both, more].concat();
    let found = product(only(&of(&[mv(X, B), mv(X, A)], &[])));
    let slice = |first| {
        Some(RowSlice {
            first,
            len: 16,
            of: 32,
        })
    };
    let parts: Vec<_> = found
        .parts
        .iter()
        .map(|part| (part.out, part.slice))
        .collect();
    let wanted = [(first, slice(0)), (second, slice(16)), (A, None)];
    assert_eq!((&parts[..], found.epilogue), (&wanted[..], Epilogue::Store));
    let mut biased = mv(X, B);
    if let Op::MatVec { bias, .. } = &mut biased {
        *bias = Some(weight_id("norm"));
    }
    let [quarter, rest] = ["quarter", "rest"].map(id);
    for ops in [
        // Read again; a bias of its own; in another order; not all of it; of no whole tiles.
        of(&[mv(X, B)], &[s::add(B, X)]),
        of(&[biased], &[]),
        vec![mv(X, B), half(second, 16), half(first, 0)],
        vec![mv(X, B), half(first, 0), half(second, 0)],
        vec![mv(X, B), half(quarter, 0), half(rest, 8)],
        vec![mv(X, B), half(first, 0)],
        // More matrices than a launch has.
        of(&[mv(X, B), mv(X, A), mv(X, C), mv(X, SUM)], &[]),
    ] {
        let is_slice = |op: &Op| matches!(op, Op::Slice { .. });
        let left = fuse(&ops).into_iter().filter(|fused| match &fused.op {
            Fused::Single(op) => is_slice(op),
            _ => false,
        });
        let wanted = ops.iter().filter(|op| is_slice(op));
        assert_eq!(left.count(), wanted.count(), "{ops:?}");
    }
}

#[test]
fn a_convolution_is_joined_with_the_rule_that_alone_reads_it() {
    let of = |silu, reads, more: &[Op]| {
        let ops = [s::short_conv(X, A, silu), s::delta_net(reads, id("rule"))];
        counts(&[&ops[..], more].concat())
    };
    assert_eq!(of(true, A, &[]), [2]);
    assert_eq!(of(false, A, &[]), [1, 1]);
    assert_eq!(of(true, B, &[]), [1, 1]);
    assert_eq!(of(true, A, &[s::scale(A, 2.0)]), [1; 3]);
    // Nor one from a bias, or of a part of a row: these are Mamba-2's.
    let mut biased = s::short_conv(X, A, true);
    if let Op::ShortConv { bias, .. } = &mut biased {
        *bias = Some(weight_id("norm"));
    }
    assert_eq!(counts(&[biased, s::delta_net(A, id("rule"))]), [1, 1]);
    let mut parted = s::short_conv(id("both"), A, true);
    if let Op::ShortConv { part, .. } = &mut parted {
        *part = Some(RowPart { first: 64, of: 256 });
    }
    assert_eq!(counts(&[parted, s::delta_net(A, id("rule"))]), [1, 1]);
}

#[test]
fn norms_of_groups_with_weights_of_their_own_are_joined_with_nothing() {
    let norm = |out, group| s::norm(A, Some(weight_id("norm")), out, group);
    assert_eq!(counts(&[norm(B, 64), s::add(B, SUM)]), [2]);
    assert_eq!(counts(&[norm(B, 32), s::add(B, SUM)]), [1, 1]);
    let gate = s::swiglu([C, B, SUM]);
    assert_eq!(counts(&[norm(B, 32), gate]), [1, 1]);
}

#[test]
fn a_buffer_is_live_until_it_is_overwritten_or_read_for_the_last_time() {
    let live = Liveness::new(&s::plan(vec![mv(X, A), s::add(A, SUM), mv(SUM, A)]));
    let of = |id| [0, 1, 2, 3].map(|from| live.is_live(from, id));
    assert_eq!(of(A), [false, true, false, false]);
    assert_eq!(of(X), [true, false, false, false]);
    // Added to before it is read; and the logits, although no op reads them.
    assert_eq!(of(SUM), [true; 4]);
    assert_eq!(of(B), [false; 4]);
}

/// Passes of one row and of several, in steps and in prompts.
pub const SHAPES: [(usize, bool); 4] = [(1, true), (1, false), (3, true), (20, false)];

pub fn shape((rows, is_step): (usize, bool)) -> PassShape {
    PassShape {
        rows,
        out: rows,
        is_step,
        // As many as a matrix of 64 rows has tiles, so that ranks are chained.
        sms: 4,
        expert_rows: 2,
    }
}

/// The lists of a plan by these rules, of every pass and of each kind of pass.
fn lists(rules: &[Rule], plan: &Arc<Plan>) -> Vec<Vec<FusedOp>> {
    let fused = FusedPlan::by(rules, plan, true);
    let of_passes = SHAPES.map(|of| fused.of_pass_by(rules, &shape(of)));
    [fused.list].into_iter().chain(of_passes).collect()
}

proptest! {
    #[test]
    fn any_order_of_rules_gives_the_same_list_with_each_op_once(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        rules in Just(RULES.to_vec()).prop_shuffle(),
    ) {
        let plan = Arc::new(s::chosen(&bytes));
        let found = lists(RULES, &plan);
        for list in &found {
            let mut ops: Vec<_> = list.iter().flat_map(|fused| &fused.ops).collect();
            ops.sort_unstable();
            prop_assert!(ops.into_iter().copied().eq(0..plan.ops.len()));
        }
        prop_assert_eq!(found, lists(&rules, &plan));
    }
}

/// So that what is held of random plans is held of each rule.
#[test]
fn random_plans_have_what_each_rule_finds() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(any::<u8>(), 200..300);
    let mut left: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
    for _ in 0..200 {
        let bytes = strategy.new_tree(&mut runner).unwrap().current();
        for fused in lists(RULES, &Arc::new(s::chosen(&bytes))).concat() {
            left.retain(|name| Some(*name) != fused.rule);
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_match_that_drops_a_read_or_a_write_stands_for_nothing() {
    let plan = s::plan(vec![mv(X, A), s::add(A, SUM), mv(B, C), s::add(C, SUM)]);
    let FusedPlan { live, list, .. } = FusedPlan::new(&Arc::new(plan.clone()), false);
    let (scale, gate) = (1.0, Gate::Swi);
    let adds = |out| Epilogue::Add { out, scale };
    let gated = Epilogue::Gated { gate, out: SUM };
    for (x, epilogue, count, is_right) in [
        (X, adds(SUM), 2, true),
        // The sum is not written, or to another place; what was there is not read; nor is x, but another.
        (X, Epilogue::Store, 2, false),
        (X, adds(B), 2, false),
        (X, gated, 2, false),
        (C, adds(SUM), 2, false),
        // An op that is covered beside them reads and writes more, or one too few is covered.
        (X, adds(SUM), 3, false),
        (X, adds(SUM), 1, false),
    ] {
        let (plan, list) = (&plan, &list[..]);
        let mut op = product(list[0].op.clone());
        (op.x, op.epilogue) = (x, epilogue);
        let found = Match::of(Fused::MatVec(op), count).unwrap();
        let stands = stands_for(&Site { plan, list }, &live, &found);
        assert_eq!(stands, is_right, "{found:?}");
    }
}
