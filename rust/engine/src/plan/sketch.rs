//! Ops in a line each, for tests: what an op has beside its buffers and weights is what most have.

use super::{
    BufferId, Gating, KvShape, Mamba2, Norm, Op, Plan, RopeStyle, RopeTable, Rows, StateId, Weight,
    WeightId,
};
use crate::quant;

pub const EPS: f32 = 1e-5;

/// A norm by `weight`.
pub fn norm_of(weight: WeightId) -> Option<Norm> {
    Some(Norm { weight, eps: EPS })
}

/// A table of angles of so many frequencies.
pub fn angles(half: usize) -> Vec<RopeTable> {
    vec![RopeTable {
        inv_freq: vec![1.0; half],
        factors: None,
        scale: 1.0,
        temperature: None,
        long: None,
        ahead: 0,
    }]
}

/// A weight of `[n_in, n_out, n_expert]`.
pub fn weight(
    plan: &mut Plan,
    name: &str,
    [n_in, n_out, n_expert]: [usize; 3],
    ty: &str,
) -> WeightId {
    plan.add_weight(Weight {
        name: name.into(),
        n_in,
        n_out,
        n_expert,
        ty: quant::by_name(ty).unwrap(),
        share: None,
    })
}

pub fn matvec(x: BufferId, norm: Option<Norm>, weight: WeightId, out: BufferId) -> Op {
    Op::MatVec {
        x,
        norm,
        weight,
        scale: None,
        bias: None,
        out,
    }
}

/// Of a row for all ranks where there is a norm, of one for each where not.
pub fn by_experts(
    x: BufferId,
    norm: Option<Norm>,
    routes: BufferId,
    weight: WeightId,
    out: BufferId,
) -> Op {
    Op::ExpertMatVec {
        x,
        ranked: norm.is_none(),
        norm,
        routes,
        weight,
        scale: None,
        bias: None,
        out,
    }
}

pub fn norm(x: BufferId, weight: Option<WeightId>, out: BufferId, group: usize) -> Op {
    Op::RmsNorm {
        x,
        weight,
        out,
        group,
        eps: EPS,
    }
}

pub fn rope(x: BufferId, n_head: usize, style: RopeStyle) -> Op {
    Op::Rope {
        x,
        n_head,
        table: 0,
        style,
    }
}

/// Of the first layer.
pub fn attention(q: BufferId, out: BufferId, n_head: usize) -> Op {
    Op::Attention {
        q,
        out,
        layer: 0,
        n_head,
        scale: 0.1,
        window: None,
        sinks: None,
        causal: true,
        chosen: None,
    }
}

/// The same.
pub fn kv_scatter(k: BufferId, v: BufferId) -> Op {
    Op::KvScatter { k, v, layer: 0 }
}

pub fn add(x: BufferId, out: BufferId) -> Op {
    Op::Add { x, out }
}

pub fn swiglu([gate, up, out]: [BufferId; 3]) -> Op {
    Op::SwiGlu { gate, up, out }
}

pub fn sigmoid_mul(x: BufferId, gate: BufferId, out: BufferId) -> Op {
    Op::SigmoidMul { x, gate, out }
}

pub fn slice(x: BufferId, out: BufferId, n: usize, first: usize, of: usize) -> Op {
    Op::Slice {
        x,
        out,
        n,
        first,
        of,
    }
}

pub fn scale(x: BufferId, factor: f32) -> Op {
    Op::Scale { x, factor }
}

pub fn scale_by(x: BufferId, weight: WeightId) -> Op {
    Op::ScaleBy { x, weight }
}

pub fn scale_ranks(routes: BufferId, weight: WeightId) -> Op {
    Op::ScaleRanks { routes, weight }
}

pub fn route(logits: BufferId, out: BufferId) -> Op {
    Op::Route {
        logits,
        bias: None,
        out,
        gating: Gating::Softmax,
        renormalize: true,
        scale: 1.0,
        groups: None,
    }
}

pub fn mix(x: BufferId, routes: BufferId, out: BufferId) -> Op {
    Op::MixExperts { x, routes, out }
}

/// The buffers of [`plan`], in order, by their widths: five alike first.
const BUFFERS: [(&str, usize); 26] = [
    ("x", 64),
    ("a", 64),
    ("b", 64),
    ("c", 64),
    ("sum", 64),
    ("both", 256),
    ("routes", 4),
    ("gates", 128),
    ("ups", 128),
    ("acts", 128),
    ("downs", 128),
    ("router", 8),
    ("share", 1),
    ("first", 32),
    ("second", 32),
    ("quarter", 16),
    ("rest", 48),
    ("alpha", 2),
    ("beta", 2),
    ("rule", 32),
    ("shared_gate", 64),
    ("shared_up", 64),
    ("shared_act", 64),
    ("shared_gated", 64),
    ("last", 64),
    ("projected", 98),
];

/// The weights of [`plan`], in order, by their shapes, and whether they are [`integers`].
const WEIGHTS: [(&str, [usize; 3], bool); 15] = [
    ("norm", [64, 1, 1], false),
    ("matrix", [64, 64, 1], false),
    ("factor", [1, 1, 1], false),
    ("of_both", [64, 128, 8], false),
    ("factors", [8, 1, 1], false),
    ("integers", [64, 64, 1], true),
    ("of_gates", [64, 64, 8], true),
    ("of_ups", [64, 64, 8], true),
    ("of_downs", [64, 64, 8], true),
    ("of_router", [64, 8, 1], false),
    ("of_share", [64, 1, 1], false),
    ("taps", [256, 1, 1], false),
    ("decay", [2, 1, 1], false),
    ("dt", [2, 1, 1], false),
    ("table", [64, 16, 1], false),
];

/// The type of blocks that are a float16 and 32 signed bytes.
pub fn integers() -> &'static quant::QuantType {
    let mut types = quant::TYPES.iter();
    types
        .find(|ty| (ty.block_elems, ty.block_bytes) == (32, 34))
        .unwrap()
}

/// The buffer of a name in [`plan`].
pub fn id(name: &str) -> BufferId {
    BufferId(BUFFERS.iter().position(|b| b.0 == name).unwrap())
}

/// The weight of a name in [`plan`].
pub fn weight_id(name: &str) -> WeightId {
    WeightId(WEIGHTS.iter().position(|w| w.0 == name).unwrap())
}

/// A head of 64 values a row, two of eight experts, a rule's two heads of 16; `sum` is what is wanted.
pub fn plan(ops: Vec<Op>) -> Plan {
    let mut plan = Plan {
        ops,
        ropes: angles(32),
        kv: vec![KvShape::new(1, 64)],
        logits: id("sum"),
        ..Plan::default()
    };
    for (name, width) in BUFFERS {
        plan.add_buffer(name, width, Rows::Batch);
    }
    for (name, shape, is_integers) in WEIGHTS {
        let ty = if is_integers {
            integers()
        } else {
            &quant::TYPES[0]
        };
        weight(&mut plan, name, shape, ty.name);
    }
    plan.add_state("conv".into(), 3 * 64);
    plan.add_state("delta".into(), 32 * 16);
    plan.check().unwrap();
    plan
}

pub fn short_conv(x: BufferId, out: BufferId, silu: bool) -> Op {
    Op::ShortConv {
        x,
        weight: weight_id("taps"),
        bias: None,
        state: StateId(0),
        out,
        taps: 4,
        silu,
        part: None,
        dilation: 1,
    }
}

pub fn delta_net(qkv: BufferId, out: BufferId) -> Op {
    Op::DeltaNet {
        qkv,
        alpha: id("alpha"),
        beta: id("beta"),
        a: weight_id("decay"),
        dt: weight_id("dt"),
        state: StateId(1),
        out,
        n_head: 2,
        n_head_k: 1,
        grouped: false,
        head_dim: 16,
        eps: EPS,
    }
}

/// Two heads of 16 values of 16 numbers each, of one group.
pub fn mamba2(convolved: BufferId, out: BufferId) -> Op {
    Op::Mamba2(Mamba2 {
        projected: id("projected"),
        convolved,
        a: weight_id("decay"),
        dt: weight_id("dt"),
        d: weight_id("decay"),
        state: StateId(1),
        out,
        n_head: 2,
        n_group: 1,
        head_dim: 16,
        d_state: 16,
    })
}

/// A plan that these bytes choose: pieces of models over few buffers, of which now and then an op is missing or
/// one more is between.
pub fn chosen(bytes: &[u8]) -> Plan {
    let mut bytes = bytes.iter().map(|byte| usize::from(*byte));
    let mut list = Vec::new();
    for (i, x) in ["x", "a", "b", "c", "sum"].map(id).into_iter().enumerate() {
        list.push(Op::Embed {
            weight: weight_id("table"),
            out: x,
            scale: 1.0 + i as f32,
        });
    }
    let mut plan = plan(list);
    while let Some(piece) = bytes.next() {
        let mut pick = |n: usize| bytes.next().unwrap_or(0) % n;
        let [a, b, c, d] = std::array::from_fn(|_| BufferId(pick(5)));
        let ops = self::piece(piece % 11, [a, b, c, d], &mut pick);
        for op in ops {
            let (is_missing, is_behind) = (pick(24) == 1, pick(24) == 1);
            let more = is_behind.then(|| scale(BufferId(pick(5)), 0.5));
            let all = (!is_missing).then_some(op).into_iter().chain(more);
            let fitting: Vec<_> = all.filter(|op| op.signature().fits(&plan)).collect();
            plan.ops.extend(fitting);
        }
    }
    plan.check().unwrap();
    plan
}

/// The ops of a piece of a model, of four buffers that are alike.
fn piece(
    kind: usize,
    [a, b, c, d]: [BufferId; 4],
    pick: &mut impl FnMut(usize) -> usize,
) -> Vec<Op> {
    let row_norm = norm_of(weight_id("norm"));
    let weight = weight_id(["matrix", "integers"][pick(2)]);
    let norm_in = [None, row_norm][pick(2)];
    let mv = |x, out| matvec(x, norm_in, weight, out);
    let normed = |x, out| norm(x, Some(weight_id("norm")), out, 64);
    let act = |[gate, up, out]: [BufferId; 3], kind| match kind {
        0 => swiglu([gate, up, out]),
        1 => Op::GeGlu { gate, up, out },
        _ => Op::ClampedSwiGlu { gate, up, out },
    };
    let head = |x, style| rope(x, 1, style);
    let style = [RopeStyle::Halves, RopeStyle::Interleaved][pick(2)];
    match kind {
        0 => match pick(4) {
            0 => vec![mv(a, b), add(b, c)],
            1 => vec![mv(a, b), scale(b, 0.25), add(b, c)],
            2 => vec![mv(a, b), mv(a, c), act([b, c, d], pick(3))],
            _ => vec![mv(a, b), mv(a, c), mv(a, d), head(b, style), head(c, style)],
        },
        1 => match pick(3) {
            0 => vec![normed(a, b), add(b, c)],
            1 => vec![normed(a, a), add(a, c), scale_by(c, weight_id("factor"))],
            _ => vec![
                normed(a, b),
                swiglu([c, b, d]),
                matvec(d, None, weight_id("integers"), a),
            ],
        },
        2 => vec![
            normed(a, a),
            normed(b, b),
            add(b, a),
            normed(a, a),
            add(a, c),
        ],
        3 => {
            let [both, gate, up, out] = ["both", "gates", "ups", "acts"].map(id);
            let half = |out, first| slice(both, out, 2, first, 128);
            let all = by_experts(a, row_norm, id("routes"), weight_id("of_both"), both);
            vec![
                all,
                half(gate, 0),
                half(up, 64),
                act([gate, up, out], pick(3)),
            ]
        }
        4 => routed_experts([a, b], pick),
        5 => {
            let half = |name, first| slice(a, id(name), 2, first, 32);
            vec![mv(b, a), mv(b, c), half("first", 0), half("second", 16)]
        }
        6 => {
            let mut ops = vec![normed(a, a), normed(b, b), head(a, style), head(b, style)];
            match pick(3) {
                0 => ops.insert(0, norm(c, None, c, 64)),
                1 => ops.insert(0, norm(b, None, c, 64)),
                _ => {}
            }
            ops.extend([kv_scatter(b, c), attention(a, d, 1)]);
            ops
        }
        7 => match pick(3) {
            0 => vec![short_conv(a, b, true), mamba2(b, id("rule"))],
            _ => vec![short_conv(a, b, true), delta_net(b, id("rule"))],
        },
        8 => vec![
            sigmoid_mul(a, b, c),
            matvec(c, None, weight_id("integers"), d),
            add(d, a),
        ],
        9 => {
            let both = Op::Join {
                x: a,
                y: b,
                out: id("gates"),
                n: 1,
                of: [64, 64],
            };
            let ups = id("ups");
            let cut = [slice(ups, d, 1, 0, 128), slice(ups, c, 1, 64, 128)];
            let ops = [normed(a, a), head(b, style), head(c, style), both];
            let begin = 2 * pick(2);
            let ops = cut.into_iter().skip(begin).chain(ops);
            ops.chain([mv(d, a), mv(d, b)]).collect()
        }
        _ => match pick(2) {
            0 => vec![
                mv(a, b),
                Op::ReluSquared { x: b },
                // Each group by weights of its own.
                norm(b, Some(weight_id("norm")), b, 32),
                add(b, a),
            ],
            _ => vec![add(a, b), normed(c, d), mv(a, d)],
        },
    }
}

/// A layer's experts, beside one that every row goes to.
fn routed_experts([x, delta]: [BufferId; 2], pick: &mut impl FnMut(usize) -> usize) -> Vec<Op> {
    let row_norm = norm_of(weight_id("norm"));
    let [gate, up, act, gated] = ["shared_gate", "shared_up", "shared_act", "shared_gated"].map(id);
    let [router, share, routes] = ["router", "share", "routes"].map(id);
    let [gates, ups, acts, downs] = ["gates", "ups", "acts", "downs"].map(id);
    let of = |name| weight_id(name);
    let shared = pick(3) > 0;
    let mut ops = Vec::new();
    if shared {
        ops.extend([
            matvec(x, row_norm, of("integers"), gate),
            matvec(x, row_norm, of("integers"), up),
            swiglu([gate, up, act]),
            matvec(x, row_norm, of("of_share"), share),
        ]);
    }
    ops.push(matvec(x, row_norm, of("of_router"), router));
    ops.extend((pick(3) == 0).then(|| scale(router, 0.5)));
    ops.push(route(router, routes));
    ops.extend((pick(3) == 0).then(|| scale_ranks(routes, of("factors"))));
    ops.extend([
        by_experts(x, row_norm, routes, of("of_gates"), gates),
        by_experts(x, row_norm, routes, of("of_ups"), ups),
        swiglu([gates, ups, acts]),
        by_experts(acts, None, routes, of("of_downs"), downs),
        mix(downs, routes, delta),
    ]);
    ops.extend((pick(8) > 0).then(|| add(delta, x)));
    if shared {
        ops.extend([
            sigmoid_mul(act, share, gated),
            matvec(gated, None, of("integers"), delta),
            add(delta, x),
        ]);
    }
    ops
}
