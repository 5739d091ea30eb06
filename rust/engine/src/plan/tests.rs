//! What is said of each op, and that a plan's checks and listings go by it.

use super::drafter::Offsets;
use super::signature::{Over, Role};
use super::{
    BufferId, Gating, Groups, KvShape, Norm, Op, Plan, RopeStyle, RopeTable, Rows, TableRow,
    Weight, WeightId,
};
use crate::quant;

const A: BufferId = BufferId(0);
const B: BufferId = BufferId(1);
const C: BufferId = BufferId(2);
const WANTED: BufferId = BufferId(3);
const TOKEN: BufferId = BufferId(4);
const WIDE: BufferId = BufferId(5);
const ROUTES: BufferId = BufferId(6);
const QUARTER: BufferId = BufferId(7);

const TABLE: WeightId = WeightId(0);
const MATRIX: WeightId = WeightId(1);
const BIAS: WeightId = WeightId(2);
const NORM: WeightId = WeightId(3);
const ROWS_OF_96: WeightId = WeightId(4);
const ROW_NORM: WeightId = WeightId(5);
const SELECTION: WeightId = WeightId(6);
const EXPERTS: WeightId = WeightId(7);
const EXPERT_BIAS: WeightId = WeightId(8);
const SINKS: WeightId = WeightId(9);
const FACTOR: WeightId = WeightId(10);
const OF_EXPERTS: WeightId = WeightId(11);

/// Rows of 64 values, four heads of 16 with a cache of two.
fn plan(ops: Vec<Op>) -> Plan {
    let mut plan = Plan {
        ops,
        ropes: vec![RopeTable {
            inv_freq: vec![1.0; 8],
            factors: None,
            scale: 1.0,
            temperature: None,
            long: None,
            ahead: 0,
        }],
        kv: vec![KvShape::new(2, 16); 3],
        logits: WANTED,
        ..Plan::default()
    };
    for (name, width, rows) in [
        ("a", 64, Rows::Batch),
        ("b", 64, Rows::Batch),
        ("c", 64, Rows::Batch),
        ("wanted", 64, Rows::Out),
        ("token", 32, Rows::Batch),
        ("wide", 96, Rows::Batch),
        ("routes", 8, Rows::Batch),
        ("quarter", 16, Rows::Batch),
    ] {
        plan.add_buffer(name, width, rows);
    }
    for (name, n_in, n_out, n_expert) in [
        ("table", 64, 100, 1),
        ("m", 64, 96, 1),
        ("bias", 96, 1, 1),
        ("norm", 16, 1, 1),
        ("rows_of_96", 96, 2, 1),
        ("row_norm", 64, 1, 1),
        ("selection", 32, 1, 1),
        ("experts", 16, 24, 5),
        ("expert_bias", 24, 1, 5),
        ("sinks", 4, 1, 1),
        ("factor", 1, 1, 1),
        ("of_experts", 5, 1, 1),
    ] {
        plan.add_weight(Weight {
            name: name.into(),
            n_in,
            n_out,
            n_expert,
            ty: &quant::TYPES[0],
            share: None,
        });
    }
    plan
}

/// An op and what its signature says.
struct Case {
    op: Op,
    inputs: &'static [BufferId],
    outputs: &'static [BufferId],
    overwritten: &'static [BufferId],
    weights: &'static [(WeightId, Role)],
    over: Over,
    /// The layer that it reads, and the one that it writes.
    cache: (Option<usize>, Option<usize>),
    listed: &'static str,
}

const CASES: &[Case] = &[
    Case {
        op: Op::Embed {
            weight: TABLE,
            out: A,
            scale: 1.0,
        },
        inputs: &[],
        outputs: &[A],
        overwritten: &[A],
        weights: &[(TABLE, Role::Lookup)],
        over: Over::Batch,
        cache: (None, None),
        listed: "a = embed(table F32[100, 64])",
    },
    Case {
        op: Op::Embed {
            weight: TABLE,
            out: B,
            scale: 8.0,
        },
        inputs: &[],
        outputs: &[B],
        overwritten: &[B],
        weights: &[(TABLE, Role::Lookup)],
        over: Over::Batch,
        cache: (None, None),
        listed: "b = embed(table F32[100, 64], scale 8)",
    },
    Case {
        op: Op::RmsNorm {
            x: A,
            weight: Some(NORM),
            out: B,
            group: 16,
            eps: 1e-5,
        },
        inputs: &[A],
        outputs: &[B],
        overwritten: &[B],
        weights: &[(NORM, Role::Scale)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "b = rms_norm(a, norm F32[16], group 16, eps 1e-5)",
    },
    Case {
        op: Op::MatVec {
            x: A,
            norm: Some(Norm {
                weight: ROW_NORM,
                eps: 1e-6,
            }),
            weight: MATRIX,
            scale: None,
            bias: Some(BIAS),
            out: WIDE,
        },
        inputs: &[A],
        outputs: &[WIDE],
        overwritten: &[WIDE],
        weights: &[
            (ROW_NORM, Role::Scale),
            (MATRIX, Role::Matrix),
            (BIAS, Role::Bias),
        ],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wide = matvec(a, row_norm F32[64], m F32[96, 64], bias bias F32[96], eps 1e-6)",
    },
    Case {
        op: Op::MatVec {
            x: A,
            norm: None,
            weight: MATRIX,
            bias: Some(BIAS),
            scale: None,
            out: WIDE,
        },
        inputs: &[A],
        outputs: &[WIDE],
        overwritten: &[WIDE],
        weights: &[(MATRIX, Role::Matrix), (BIAS, Role::Bias)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wide = matvec(a, m F32[96, 64], bias bias F32[96])",
    },
    Case {
        op: Op::Rope {
            x: A,
            n_head: 4,
            table: 0,
            style: RopeStyle::Halves,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[],
        weights: &[],
        over: Over::Batch,
        cache: (None, None),
        listed: "a = rope(a, 4 heads, halves)",
    },
    Case {
        op: Op::KvScatter {
            k: TOKEN,
            v: TOKEN,
            layer: 2,
        },
        inputs: &[TOKEN, TOKEN],
        outputs: &[],
        overwritten: &[],
        weights: &[],
        over: Over::Batch,
        cache: (None, Some(2)),
        listed: "kv[2] = kv_scatter(token, token)",
    },
    Case {
        op: Op::Attention {
            q: A,
            out: B,
            layer: 1,
            n_head: 4,
            scale: 0.25,
            window: None,
            sinks: None,
            causal: true,
            chosen: None,
        },
        inputs: &[A],
        outputs: &[B],
        overwritten: &[B],
        weights: &[],
        over: Over::Batch,
        cache: (Some(1), None),
        listed: "b = attention(a, kv[1], 4 heads, scale 0.25)",
    },
    Case {
        op: Op::Attention {
            q: A,
            out: B,
            layer: 1,
            n_head: 4,
            scale: 0.25,
            window: None,
            sinks: None,
            causal: false,
            chosen: None,
        },
        inputs: &[A],
        outputs: &[B],
        overwritten: &[B],
        weights: &[],
        over: Over::Batch,
        cache: (Some(1), None),
        listed: "b = attention(a, kv[1], 4 heads, scale 0.25, both ways)",
    },
    Case {
        op: Op::Attention {
            q: A,
            out: B,
            layer: 0,
            n_head: 4,
            scale: 0.5,
            window: Some(128),
            sinks: Some(SINKS),
            causal: true,
            chosen: None,
        },
        inputs: &[A],
        outputs: &[B],
        overwritten: &[B],
        weights: &[(SINKS, Role::Sink)],
        over: Over::Batch,
        cache: (Some(0), None),
        listed: "b = attention(a, kv[0], sinks sinks F32[4], 4 heads, scale 0.5, window 128)",
    },
    Case {
        op: Op::Route {
            logits: TOKEN,
            bias: Some(SELECTION),
            out: ROUTES,
            gating: Gating::Sigmoid,
            renormalize: true,
            scale: 2.5,
            groups: None,
        },
        inputs: &[TOKEN],
        outputs: &[ROUTES],
        overwritten: &[ROUTES],
        weights: &[(SELECTION, Role::Selection)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "routes = route_sigmoid(token, selection selection F32[32], scale 2.5)",
    },
    Case {
        op: Op::Route {
            logits: TOKEN,
            bias: None,
            out: ROUTES,
            gating: Gating::Softmax,
            renormalize: false,
            scale: 1.0,
            groups: Some(Groups { count: 4, used: 2 }),
        },
        inputs: &[TOKEN],
        outputs: &[ROUTES],
        overwritten: &[ROUTES],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "routes = route_softmax(token, scale 1, 2 of 4 groups)",
    },
    Case {
        op: Op::RouteAll { out: ROUTES },
        inputs: &[],
        outputs: &[ROUTES],
        overwritten: &[ROUTES],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "routes = route_all()",
    },
    Case {
        op: Op::Join {
            x: A,
            y: TOKEN,
            out: WIDE,
            n: 4,
            of: [16, 8],
        },
        inputs: &[A, TOKEN],
        outputs: &[WIDE],
        overwritten: &[WIDE],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wide = join(a, token)",
    },
    Case {
        op: Op::ExpertMatVec {
            x: A,
            ranked: true,
            norm: None,
            routes: ROUTES,
            weight: EXPERTS,
            bias: Some(EXPERT_BIAS),
            scale: None,
            out: WIDE,
        },
        inputs: &[A, ROUTES],
        outputs: &[WIDE],
        overwritten: &[WIDE],
        weights: &[(EXPERTS, Role::Experts), (EXPERT_BIAS, Role::ExpertBias)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wide = expert_matvec(a, routes, experts F32[5, 24, 16], bias expert_bias F32[5, 1, 24])",
    },
    Case {
        op: Op::MixExperts {
            x: A,
            routes: ROUTES,
            out: QUARTER,
        },
        inputs: &[A, ROUTES],
        outputs: &[QUARTER],
        overwritten: &[QUARTER],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "quarter = mix_experts(a, routes)",
    },
    Case {
        op: Op::Add { x: A, out: B },
        inputs: &[B, A],
        outputs: &[B],
        overwritten: &[],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "b = add(b, a)",
    },
    Case {
        op: Op::SwiGlu {
            gate: A,
            up: B,
            out: C,
        },
        inputs: &[A, B],
        outputs: &[C],
        overwritten: &[C],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "c = swiglu(a, b)",
    },
    Case {
        op: Op::GeGlu {
            gate: A,
            up: B,
            out: C,
        },
        inputs: &[A, B],
        outputs: &[C],
        overwritten: &[C],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "c = geglu(a, b)",
    },
    Case {
        op: Op::Scale {
            x: WANTED,
            factor: 0.125,
        },
        inputs: &[WANTED],
        outputs: &[WANTED],
        overwritten: &[],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wanted = scale(wanted, scale 0.125)",
    },
    Case {
        op: Op::RmsNorm {
            x: A,
            weight: None,
            out: A,
            group: 32,
            eps: 1e-6,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[A],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "a = rms_norm(a, group 32, eps 1e-6)",
    },
    Case {
        op: Op::ScaleBy {
            x: A,
            weight: FACTOR,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[],
        weights: &[(FACTOR, Role::Factor)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "a = scale_by(a, factor F32[1])",
    },
    Case {
        op: Op::ScaleRanks {
            routes: ROUTES,
            weight: OF_EXPERTS,
        },
        inputs: &[ROUTES],
        outputs: &[ROUTES],
        overwritten: &[],
        weights: &[(OF_EXPERTS, Role::PerExpert)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "routes = scale_ranks(routes, of_experts F32[5])",
    },
    Case {
        op: Op::SoftCap {
            x: WANTED,
            cap: 30.0,
        },
        inputs: &[WANTED],
        outputs: &[WANTED],
        overwritten: &[],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "wanted = soft_cap(wanted, scale 30)",
    },
    Case {
        op: Op::Gelu { x: A },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[],
        weights: &[],
        over: Over::Buffers,
        cache: (None, None),
        listed: "a = gelu(a)",
    },
    Case {
        op: Op::LayerNorm {
            x: A,
            weight: ROW_NORM,
            bias: Some(ROW_NORM),
            out: A,
            eps: 1e-5,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[A],
        weights: &[(ROW_NORM, Role::Scale), (ROW_NORM, Role::Shift)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "a = layer_norm(a, row_norm F32[64], bias row_norm F32[64], eps 1e-5)",
    },
    Case {
        op: Op::LayerNorm {
            x: A,
            weight: ROW_NORM,
            bias: None,
            out: A,
            eps: 1e-5,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[A],
        weights: &[(ROW_NORM, Role::Scale)],
        over: Over::Buffers,
        cache: (None, None),
        listed: "a = layer_norm(a, row_norm F32[64], eps 1e-5)",
    },
    Case {
        op: Op::AddRow {
            x: A,
            table: ROW_NORM,
            row: TableRow::Position,
        },
        inputs: &[A],
        outputs: &[A],
        overwritten: &[],
        weights: &[(ROW_NORM, Role::Rows)],
        over: Over::Batch,
        cache: (None, None),
        listed: "a = add_row_of_position(a, row_norm F32[64])",
    },
    Case {
        op: Op::SelectRows { x: A, out: WANTED },
        inputs: &[A],
        outputs: &[WANTED],
        overwritten: &[WANTED],
        weights: &[],
        over: Over::Picked,
        cache: (None, None),
        listed: "wanted = select_rows(a)",
    },
];

#[test]
fn each_op_says_what_it_reads_and_writes() {
    let plan = plan(vec![]);
    for case in CASES {
        let op = case.op.signature();
        assert_eq!(op.inputs().collect::<Vec<_>>(), case.inputs, "{op:?}");
        assert_eq!(op.outputs().collect::<Vec<_>>(), case.outputs, "{op:?}");
        let overwritten: Vec<_> = op.overwritten().collect();
        assert_eq!(overwritten, case.overwritten, "{op:?}");
        let weights: Vec<_> = op.weights.iter().map(|w| (w.id, w.role)).collect();
        assert_eq!(weights, case.weights, "{op:?}");
        assert_eq!(op.over, case.over, "{op:?}");
        let layer = |writes| op.cache.filter(|c| c.access.writes() == writes);
        let cache = (layer(false).map(|c| c.layer), layer(true).map(|c| c.layer));
        assert_eq!(cache, case.cache, "{op:?}");
        assert_eq!(op.listed(&plan).to_string(), case.listed);
        assert!(op.fits(&plan), "{op:?}");
    }
}

#[test]
fn ids_move_with_their_plan() {
    let by = Offsets {
        buffers: 10,
        weights: 20,
        ropes: 30,
        layers: 40,
    };
    for case in CASES {
        let (mut op, mut wanted) = (case.op.clone(), case.op.signature());
        op.shift(&by);
        let buffers = wanted.buffers.iter_mut().map(|b| &mut b.id);
        buffers.chain(&mut wanted.routes).for_each(|id| id.0 += 10);
        wanted.weights.iter_mut().for_each(|w| w.id.0 += 20);
        wanted.rotation.iter_mut().for_each(|r| r.table += 30);
        wanted.cache.iter_mut().for_each(|c| c.layer += 40);
        assert_eq!(op.signature(), wanted, "{:?}", case.op);
    }
}

#[test]
fn a_listing_has_a_line_for_each_op() {
    let plan = plan(CASES.iter().map(|case| case.op.clone()).collect());
    plan.check().unwrap();
    let listing = plan.to_string();
    for (i, case) in CASES.iter().enumerate() {
        let line = format!("\n  {i:4}  {}\n", case.listed);
        assert!(listing.contains(&line), "{listing}");
    }
}

#[test]
fn an_op_runs_over_the_rows_of_its_buffers() {
    let plan = plan(vec![]);
    let norm = |x, out| Op::RmsNorm {
        x,
        weight: Some(NORM),
        out,
        group: 16,
        eps: 0.0,
    };
    assert_eq!(norm(A, B).signature().rows(&plan), Rows::Batch);
    // In place too.
    let wanted = norm(WANTED, WANTED).signature();
    assert_eq!(wanted.rows(&plan), Rows::Out);
    assert!(wanted.fits(&plan));
    assert!(!norm(A, WANTED).signature().fits(&plan));
    let pick = Op::SelectRows { x: A, out: WANTED }.signature();
    assert_eq!(pick.rows(&plan), Rows::Out);
}

#[test]
fn heads_are_those_of_the_ops_that_read_the_cache() {
    let plan = plan(CASES.iter().map(|case| case.op.clone()).collect());
    assert_eq!(plan.attentions().collect::<Vec<_>>(), [(4, plan.kv[2]); 3]);
}

#[test]
fn what_does_not_go_together_does_not_fit() {
    let matvec = |weight, bias, out| Op::MatVec {
        x: A,
        norm: None,
        weight,
        bias,
        scale: None,
        out,
    };
    let normed = |weight| Op::MatVec {
        x: A,
        norm: Some(Norm { weight, eps: 0.0 }),
        weight: MATRIX,
        scale: None,
        bias: None,
        out: WIDE,
    };
    let attention = |out, layer, n_head| Op::Attention {
        q: A,
        out,
        layer,
        n_head,
        scale: 1.0,
        window: None,
        sinks: None,
        causal: true,
        chosen: None,
    };
    let special = |window, sinks: Option<WeightId>| Op::Attention {
        q: A,
        out: B,
        layer: 0,
        n_head: 4,
        scale: 1.0,
        window,
        sinks,
        causal: sinks.is_some(),
        chosen: None,
    };
    let groups = |count, used| Op::Route {
        logits: TOKEN,
        bias: None,
        out: ROUTES,
        gating: Gating::Softmax,
        renormalize: false,
        scale: 1.0,
        groups: Some(Groups { count, used }),
    };
    let bad = [
        // Groups of other sizes, more of them than there are, of one expert each, or of too few.
        groups(3, 2),
        groups(4, 5),
        groups(32, 8),
        groups(16, 1),
        groups(0, 0),
        // Parts of other widths.
        Op::Join {
            x: TOKEN,
            y: A,
            out: WIDE,
            n: 4,
            of: [16, 8],
        },
        // Of another width.
        matvec(MATRIX, None, B),
        matvec(NORM, None, WIDE),
        Op::Add { x: A, out: WIDE },
        Op::KvScatter {
            k: TOKEN,
            v: A,
            layer: 0,
        },
        // A norm is a vector as long as the rows that are multiplied.
        normed(NORM),
        normed(TABLE),
        // A matrix is no bias, whatever the length of its rows.
        matvec(MATRIX, Some(ROWS_OF_96), WIDE),
        // An output that is an input.
        attention(A, 0, 4),
        Op::Add { x: A, out: A },
        // Heads that are not those of the cache, or none at all.
        attention(B, 0, 2),
        attention(B, 0, 0),
        // Rows that see nothing, and sinks that are not one a head.
        special(Some(0), None),
        special(None, Some(NORM)),
        // A table of no whole rows.
        Op::AddRow {
            x: A,
            table: ROWS_OF_96,
            row: TableRow::First,
        },
        // A layer that the cache does not have.
        attention(B, 3, 4),
        // Rows that are not those of the batch.
        Op::Embed {
            weight: TABLE,
            out: WANTED,
            scale: 1.0,
        },
        Op::SelectRows { x: WANTED, out: B },
    ];
    for op in bad {
        let text = format!("{op:?}");
        let error = plan(vec![op]).check().unwrap_err().to_string();
        assert!(
            error.contains(&text) && error.contains("do not fit together"),
            "{error}"
        );
    }
}
