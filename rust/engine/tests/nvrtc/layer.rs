//! Plans of one layer, of each kind that kernels are made for.

use onegraph::plan::{
    BufferId, Choice, Chosen, Gating, Groups, KvShape, Mamba2, Ngram, NgramHead, NgramTable, Norm,
    Op, Plan, RopeStyle, RopeTable, RowPart, Rows, Streams, Weight, WeightId,
};
use onegraph::quant::{self, QuantType};

const HEAD_DIM: usize = 128;
const N_HEAD: usize = 8;
const N_HEAD_KV: usize = 2;
const N_EMBD: usize = N_HEAD * HEAD_DIM;
const N_FF_EXP: usize = 768;
const N_FF: usize = 2 * N_EMBD;
const N_VOCAB: usize = 512;

/// A model of one layer whose matrices are of one type.
pub struct Layer {
    pub plan: Plan,
    pub ty: &'static QuantType,
}

impl Layer {
    fn weight(&mut self, ty: &'static QuantType, n_in: usize, n_out: usize) -> WeightId {
        let name = format!("w{}", self.plan.weights.len());
        self.plan.add_weight(Weight {
            name,
            n_in,
            n_out,
            n_expert: 1,
            ty,
            share: None,
        })
    }

    fn vector(&mut self, n: usize) -> WeightId {
        self.weight(quant::by_name("F32").unwrap(), n, 1)
    }

    fn buffer(&mut self, width: usize, rows: Rows) -> BufferId {
        let name = format!("b{}", self.plan.buffers.len());
        self.plan.add_buffer(&name, width, rows)
    }

    fn norm(&mut self) -> Option<Norm> {
        self.norm_of(N_EMBD)
    }

    fn norm_of(&mut self, width: usize) -> Option<Norm> {
        let weight = self.vector(width);
        Some(Norm { weight, eps: 1e-5 })
    }

    fn norm_heads(&mut self, x: BufferId) {
        let weight = self.vector(HEAD_DIM);
        self.plan.ops.push(Op::RmsNorm {
            x,
            weight: Some(weight),
            out: x,
            group: HEAD_DIM,
            eps: 1e-5,
        });
    }

    fn rotate(&mut self, q: BufferId, k: BufferId, style: RopeStyle) {
        let head_dim = 2 * self.plan.ropes[0].inv_freq.len();
        for x in [q, k] {
            self.plan.ops.push(Op::Rope {
                x,
                n_head: self.plan.buffer(x).width / head_dim,
                table: 0,
                style,
            });
        }
    }

    fn product(&mut self, x: BufferId, norm: Option<Norm>, out: BufferId, bias: bool) {
        let (n_in, n_out) = (self.plan.buffer(x).width, self.plan.buffer(out).width);
        let weight = self.weight(self.ty, n_in, n_out);
        let bias = bias.then(|| self.vector(n_out));
        self.plan.ops.push(Op::MatVec {
            x,
            norm,
            weight,
            bias,
            scale: None,
            out,
        });
    }

    /// Ops with states; of the widest heads there are, and of usual ones.
    fn recur(&mut self) {
        for (head_dim, n_head, n_head_k, grouped) in
            [(128, 4, 2, false), (256, 2, 1, false), (128, 4, 2, true)]
        {
            let channels = (2 * n_head_k + n_head) * head_dim;
            let width = n_head * head_dim;
            let (x, qkv) = (
                self.buffer(channels, Rows::Batch),
                self.buffer(channels, Rows::Batch),
            );
            let (alpha, beta) = (
                self.buffer(n_head, Rows::Batch),
                self.buffer(n_head, Rows::Batch),
            );
            let (out, gated) = (
                self.buffer(width, Rows::Batch),
                self.buffer(width, Rows::Batch),
            );
            let taps = 4;
            let weight = self.vector(taps * channels);
            let (a, dt) = (self.vector(n_head), self.vector(n_head));
            let (norm, last) = (self.vector(head_dim), self.buffer(width, Rows::Batch));
            let state = self.plan.add_state("conv".into(), (taps - 1) * channels);
            let matrix = self.plan.add_state("delta".into(), width * head_dim);
            self.plan.ops.extend([
                Op::ShortConv {
                    x,
                    weight,
                    bias: None,
                    state,
                    out: qkv,
                    taps,
                    silu: true,
                    part: None,
                    dilation: 1,
                },
                Op::DeltaNet {
                    qkv,
                    alpha,
                    beta,
                    a,
                    dt,
                    state: matrix,
                    out,
                    n_head,
                    n_head_k,
                    grouped,
                    head_dim,
                    eps: 1e-6,
                },
                Op::SigmoidMul {
                    x: out,
                    gate: out,
                    out: gated,
                },
                Op::RmsNorm {
                    x: out,
                    weight: Some(norm),
                    out,
                    group: head_dim,
                    eps: 1e-6,
                },
                Op::SwiGlu {
                    gate: gated,
                    up: out,
                    out: last,
                },
            ]);
        }
        let (x, out) = (
            self.buffer(3 * N_EMBD, Rows::Batch),
            self.buffer(N_EMBD, Rows::Batch),
        );
        let taps = 3;
        let weight = self.vector(taps * N_EMBD);
        let state = self
            .plan
            .add_state("gated_conv".into(), (taps - 1) * N_EMBD);
        self.plan.ops.push(Op::GatedConv {
            x,
            weight,
            state,
            out,
            taps,
        });
    }

    /// Layers of Mamba-2; of the largest state there is, and of usual ones.
    fn scan(&mut self) {
        for (n_head, n_group, head_dim, d_state) in [(64, 8, 64, 128), (24, 1, 64, 256)] {
            let inner = n_head * head_dim;
            let channels = inner + 2 * n_group * d_state;
            let wide = inner + channels + n_head;
            let taps = 4;
            let [projected, convolved, out] =
                [wide, channels, inner].map(|width| self.buffer(width, Rows::Batch));
            let (weight, bias) = (self.vector(taps * channels), self.vector(channels));
            let [a, dt, d] = [(); 3].map(|()| self.vector(n_head));
            let norm = self.vector(inner);
            let state = self.plan.add_state("conv".into(), (taps - 1) * channels);
            let matrix = self.plan.add_state("scan".into(), inner * d_state);
            self.plan.ops.extend([
                Op::ShortConv {
                    x: projected,
                    weight,
                    bias: Some(bias),
                    state,
                    out: convolved,
                    taps,
                    silu: true,
                    part: Some(RowPart {
                        first: inner,
                        of: wide,
                    }),
                    dilation: 1,
                },
                Op::Mamba2(Mamba2 {
                    projected,
                    convolved,
                    a,
                    dt,
                    d,
                    state: matrix,
                    out,
                    n_head,
                    n_group,
                    head_dim,
                    d_state,
                }),
                Op::RmsNorm {
                    x: out,
                    weight: Some(norm),
                    out,
                    group: inner / n_group,
                    eps: 1e-5,
                },
            ]);
        }
    }

    /// Hyper-connections, and embeddings of n-grams with their convolution.
    fn stream(&mut self) {
        let (n, width, tokens, row) = (4, 2560, 3, 160);
        let wide = n * width;
        let [x, key, out] = [(); 3].map(|()| self.buffer(wide, Rows::Batch));
        let [mean, value] = [(); 2].map(|()| self.buffer(width, Rows::Batch));
        let gate = self.buffer(n, Rows::Batch);
        let (numbers, recent) = (
            self.buffer(1, Rows::Batch),
            self.buffer(tokens, Rows::Batch),
        );
        let heads = vec![
            NgramHead {
                offset: 5,
                size: 97
            };
            16
        ];
        let rows = self.buffer(heads.len() * row, Rows::Batch);
        let (table, taps) = (self.weight(self.ty, 8 * row, 64), self.vector(4 * wide));
        let last = self.plan.add_state("tokens".into(), tokens - 1);
        let state = self.plan.add_state("dilated".into(), 9 * wide);
        self.plan.ops.extend([
            Op::Streams(Streams::Mean {
                x,
                gate: key,
                out: mean,
                n,
            }),
            Op::Streams(Streams::Inject {
                x: mean,
                gate,
                streams: x,
                n,
            }),
            Op::Streams(Streams::Gate {
                key,
                query: x,
                value,
                out,
                n,
            }),
            Op::ShortConv {
                x: out,
                weight: taps,
                bias: None,
                state,
                out: key,
                taps: 4,
                silu: true,
                part: None,
                dilation: 3,
            },
            Op::Ngram(Ngram::Tokens { out: numbers }),
            Op::Ngram(Ngram::Recent {
                x: numbers,
                state: last,
                out: recent,
                n: tokens,
            }),
            Op::Ngram(Ngram::Rows {
                recent,
                weight: table,
                out: rows,
                table: NgramTable {
                    width: row,
                    eos: 7,
                    multipliers: vec![3, 5, 7],
                    heads,
                },
            }),
        ]);
    }

    /// Attention that sees chosen blocks of tokens.
    fn choose(&mut self, q: BufferId, out: BufferId) {
        let (ratio, n, n_head) = (4, 1024, 4);
        let words = Choice::words(n, ratio);
        let index = self.buffer(n_head * HEAD_DIM, Rows::Batch);
        let (scores, blocks) = (self.buffer(n, Rows::Batch), self.buffer(words, Rows::Batch));
        let weight = self.vector(HEAD_DIM);
        let layer = self.plan.kv.len();
        self.plan.kv.push(KvShape {
            values_in_keys: Some(HEAD_DIM),
            ..KvShape::new(1, HEAD_DIM)
        });
        self.plan.ops.extend([
            Op::Choice(Choice::Scores {
                q: index,
                weight,
                layer,
                out: scores,
                n_head,
                table: 0,
                ratio,
                n,
                eps: 1e-6,
            }),
            Op::Choice(Choice::Blocks {
                scores,
                out: blocks,
                ratio,
                top_k: 2048,
                n,
            }),
            Op::Attention {
                q,
                out,
                layer: 0,
                n_head: N_HEAD,
                scale: 0.1,
                window: None,
                sinks: None,
                causal: true,
                chosen: Some(Chosen {
                    blocks,
                    words,
                    ratio,
                }),
            },
        ]);
    }

    fn route(&mut self, logits: BufferId, bias: Option<WeightId>, out: BufferId) {
        self.plan.ops.push(Op::Route {
            groups: None,
            logits,
            bias,
            out,
            gating: Gating::Softmax,
            renormalize: true,
            scale: 1.0,
        });
    }

    /// By a matrix for each expert; without a norm x has a row for each rank.
    fn by_experts(
        &mut self,
        (x, norm): (BufferId, Option<Norm>),
        routes: BufferId,
        [n_in, n_out, n_expert]: [usize; 3],
        scale: Option<WeightId>,
        out: BufferId,
    ) {
        let weight = self.weight(self.ty, n_in, n_out);
        self.plan.weights[weight.0].n_expert = n_expert;
        self.plan.ops.push(Op::ExpertMatVec {
            x,
            ranked: norm.is_none(),
            norm,
            routes,
            weight,
            bias: None,
            scale,
            out,
        });
    }

    /// Four of 64 experts of x, added to it.
    pub fn experts(&mut self, x: BufferId) {
        const RANKS: usize = 4;
        let logits = self.buffer(64, Rows::Batch);
        let routes = self.buffer(2 * RANKS, Rows::Batch);
        let [gate, up, act] = [(); 3].map(|()| self.buffer(RANKS * N_FF_EXP, Rows::Batch));
        let (down, delta) = (
            self.buffer(RANKS * N_EMBD, Rows::Batch),
            self.buffer(N_EMBD, Rows::Batch),
        );
        let norm = self.norm();
        self.product(x, norm, logits, false);
        let bias = self.vector(64);
        self.route(logits, Some(bias), routes);
        for (x, norm, out, n_in, n_out) in [
            (x, norm, gate, N_EMBD, N_FF_EXP),
            (x, norm, up, N_EMBD, N_FF_EXP),
            (act, None, down, N_FF_EXP, N_EMBD),
        ] {
            if out == down {
                self.plan.ops.push(Op::SwiGlu { gate, up, out: act });
            }
            // Products with a scale and without end in kernels apart.
            let scale = (out == down).then(|| self.vector(1));
            if let Some(scale) = scale {
                self.plan.weights[scale.0].n_expert = 64;
            }
            self.by_experts((x, norm), routes, [n_in, n_out, 64], scale, out);
        }
        self.plan.ops.push(Op::MixExperts {
            x: down,
            routes,
            out: delta,
        });
        self.plan.ops.push(Op::Add { x: delta, out: x });
    }

    /// With gelu, what a block gives is normalized before it is added.
    pub fn plan(ty: &'static QuantType, style: RopeStyle, gelu: bool) -> Plan {
        let plan = Plan {
            kv: vec![KvShape::new(N_HEAD_KV, HEAD_DIM)],
            ..with_rope(HEAD_DIM)
        };
        let mut layer = Self { plan, ty };
        let l = &mut layer;
        let wide = |l: &mut Self| l.buffer(N_EMBD, Rows::Batch);
        let (x, q, heads, delta) = (wide(l), wide(l), wide(l), wide(l));
        let k = l.buffer(N_HEAD_KV * HEAD_DIM, Rows::Batch);
        let v = l.buffer(N_HEAD_KV * HEAD_DIM, Rows::Batch);
        let (gate, up) = (l.buffer(N_FF, Rows::Batch), l.buffer(N_FF, Rows::Batch));
        let act = l.buffer(N_FF, Rows::Batch);
        let last = l.buffer(N_EMBD, Rows::Out);
        let logits = l.buffer(N_VOCAB, Rows::Out);
        let weight = l.weight(ty, N_EMBD, N_VOCAB);
        l.plan.ops.push(Op::Embed {
            weight,
            out: x,
            scale: 1.0,
        });
        let norm = l.norm();
        for out in [q, k, v] {
            l.product(x, norm, out, true);
        }
        l.rotate(q, k, style);
        l.recur();
        l.scan();
        l.stream();
        l.choose(q, heads);
        l.norm_heads(q);
        l.norm_heads(k);
        l.rotate(q, k, style);
        l.plan.ops.push(Op::KvScatter { k, v, layer: 0 });
        l.plan.ops.push(Op::Attention {
            q,
            out: heads,
            layer: 0,
            n_head: N_HEAD,
            scale: 0.1,
            window: None,
            sinks: None,
            causal: true,
            chosen: None,
        });
        l.norm_heads(heads);
        l.product(heads, None, delta, false);
        l.plan.ops.push(Op::Add { x: delta, out: x });
        let norm = l.norm();
        l.product(x, norm, gate, false);
        l.product(x, norm, up, false);
        let out = act;
        l.plan.ops.push(match gelu {
            true => Op::GeGlu { gate, up, out },
            false => Op::SwiGlu { gate, up, out },
        });
        l.product(act, None, delta, false);
        if gelu {
            let Norm { weight, eps } = l.norm().unwrap();
            l.plan.ops.push(Op::RmsNorm {
                x: delta,
                weight: Some(weight),
                out: delta,
                group: N_EMBD,
                eps,
            });
        }
        l.plan.ops.push(Op::Add { x: delta, out: x });
        l.plan.ops.push(Op::SelectRows { x, out: last });
        let norm = l.norm();
        l.product(last, norm, logits, false);
        l.plan.logits = logits;
        layer.plan
    }
}

/// A plan without ops that can rotate heads.
fn with_rope(head_dim: usize) -> Plan {
    Plan {
        ropes: vec![RopeTable {
            inv_freq: vec![1.0; head_dim / 2],
            factors: None,
            scale: 1.0,
            temperature: None,
            long: None,
            ahead: 0,
        }],
        logits: BufferId(0),
        ..Plan::default()
    }
}

/// The products of a layer of an 8B, values in a type of six bits where llama.cpp's mixes have them so.
pub fn few_rows(ty: &'static QuantType) -> Plan {
    const N_HEAD: usize = 32;
    const N_HEAD_KV: usize = 8;
    const N_EMBD: usize = N_HEAD * HEAD_DIM;
    const N_FF: usize = 14336;
    let plan = Plan {
        kv: vec![KvShape::new(N_HEAD_KV, HEAD_DIM)],
        ..with_rope(HEAD_DIM)
    };
    let mut layer = Layer { plan, ty };
    let l = &mut layer;
    let [x, q] = [(); 2].map(|()| l.buffer(N_EMBD, Rows::Batch));
    let [k, v] = [(); 2].map(|()| l.buffer(N_HEAD_KV * HEAD_DIM, Rows::Batch));
    let [gate, up, act] = [(); 3].map(|()| l.buffer(N_FF, Rows::Batch));
    let delta = l.buffer(N_EMBD, Rows::Batch);
    let norm = l.norm_of(N_EMBD);
    l.product(x, norm, q, false);
    l.product(x, norm, k, false);
    if ["Q4_K", "Q5_K"].contains(&ty.name) {
        l.ty = quant::by_name("Q6_K").unwrap();
    }
    l.product(x, norm, v, false);
    l.ty = ty;
    l.rotate(q, k, RopeStyle::Interleaved);
    l.plan.ops.push(Op::KvScatter { k, v, layer: 0 });
    let norm = l.norm_of(N_EMBD);
    l.product(x, norm, gate, false);
    l.product(x, norm, up, false);
    l.plan.ops.push(Op::SwiGlu { gate, up, out: act });
    l.product(act, None, delta, false);
    l.plan.ops.push(Op::Add { x: delta, out: x });
    layer.plan
}

/// As of a Qwen3.5-35B-A3B: products of one x of four parts, two of them rows of one matrix; and experts beside
/// one that every row goes to, of a type of its own.
pub fn shared_expert(ty: &'static QuantType, shared: &'static QuantType) -> Plan {
    const WIDTH: usize = 2048;
    const N_FF: usize = 512;
    const N_EXPERT: usize = 64;
    const RANKS: usize = 8;
    let mut layer = Layer {
        plan: with_rope(HEAD_DIM),
        ty,
    };
    let l = &mut layer;
    let [x, delta] = [(); 2].map(|()| l.buffer(WIDTH, Rows::Batch));
    let [q, gates] = [(); 2].map(|()| l.buffer(4 * HEAD_DIM, Rows::Batch));
    let both = l.buffer(8 * HEAD_DIM, Rows::Batch);
    let [k, v] = [(); 2].map(|()| l.buffer(2 * HEAD_DIM, Rows::Batch));
    let norm = l.norm_of(WIDTH);
    l.product(x, norm, both, false);
    l.product(x, norm, k, false);
    l.product(x, norm, v, false);
    l.ty = shared;
    for (out, first) in [(q, 0), (gates, HEAD_DIM)] {
        l.plan.ops.push(Op::Slice {
            x: both,
            out,
            n: 4,
            first,
            of: 2 * HEAD_DIM,
        });
    }
    let (share, logits) = (l.buffer(1, Rows::Batch), l.buffer(N_EXPERT, Rows::Batch));
    let routes = l.buffer(2 * RANKS, Rows::Batch);
    let [gate, up, act, gated] = [(); 4].map(|()| l.buffer(N_FF, Rows::Batch));
    l.product(x, norm, gate, false);
    l.product(x, norm, up, false);
    l.plan.ops.push(Op::SwiGlu { gate, up, out: act });
    l.ty = quant::by_name("F32").unwrap();
    l.product(x, norm, share, false);
    l.product(x, norm, logits, false);
    l.ty = ty;
    l.route(logits, None, routes);
    let [gates, ups, acts] = [(); 3].map(|()| l.buffer(RANKS * N_FF, Rows::Batch));
    let downs = l.buffer(RANKS * WIDTH, Rows::Batch);
    for (x, norm, out) in [(x, norm, gates), (x, norm, ups), (acts, None, downs)] {
        if out == downs {
            let (gate, up, out) = (gates, ups, acts);
            l.plan.ops.push(Op::SwiGlu { gate, up, out });
        }
        let (n_in, n_out) = match out == downs {
            true => (N_FF, WIDTH),
            false => (WIDTH, N_FF),
        };
        l.by_experts((x, norm), routes, [n_in, n_out, N_EXPERT], None, out);
    }
    l.plan.ops.extend([
        Op::MixExperts {
            x: downs,
            routes,
            out: delta,
        },
        Op::Add { x: delta, out: x },
        Op::SigmoidMul {
            x: act,
            gate: share,
            out: gated,
        },
    ]);
    l.ty = shared;
    l.product(gated, None, delta, false);
    l.plan.ops.push(Op::Add { x: delta, out: x });
    layer.plan
}

/// What stands beside attention over latent rows.
pub fn beside_latent() -> Plan {
    const N_HEAD: usize = 4;
    let mut plan = with_rope(64);
    let mut buffer = |name, width| plan.add_buffer(name, width, Rows::Batch);
    let (x, y) = (buffer("x", N_HEAD * 512), buffer("y", N_HEAD * 64));
    let (out, all) = (buffer("out", N_HEAD * 576), buffer("all", 2 * N_HEAD));
    let (logits, routes) = (buffer("logits", 256), buffer("routes", 16));
    let (plain, turned, k) = (buffer("plain", 512), buffer("turned", 64), buffer("k", 576));
    let (heads, rest) = (buffer("heads", N_HEAD * 256), buffer("rest", N_HEAD * 192));
    let of = [512, 64];
    let n = N_HEAD;
    let cut = |out, first| Op::Slice {
        x: heads,
        out,
        n,
        first,
        of: 256,
    };
    let mut vector = |name: &str, n_in| {
        plan.add_weight(Weight {
            name: name.into(),
            n_in,
            n_out: 1,
            n_expert: 1,
            ty: quant::by_name("F32").unwrap(),
            share: None,
        })
    };
    let (bias, norm) = (vector("bias", 256), vector("norm", 512));
    let rope = |x, n_head| Op::Rope {
        x,
        n_head,
        table: 0,
        style: RopeStyle::Interleaved,
    };
    plan.ops = vec![
        Op::RouteAll { out: all },
        cut(rest, 0),
        cut(y, 192),
        Op::RmsNorm {
            x: plain,
            weight: Some(norm),
            out: plain,
            group: 512,
            eps: 1e-6,
        },
        rope(turned, 1),
        rope(y, N_HEAD),
        Op::Join {
            x: plain,
            y: turned,
            out: k,
            n: 1,
            of,
        },
        Op::Join { x, y, out, n, of },
        Op::Route {
            logits,
            bias: Some(bias),
            out: routes,
            gating: Gating::Sigmoid,
            renormalize: true,
            scale: 2.5,
            groups: Some(Groups { count: 8, used: 4 }),
        },
    ];
    plan.logits = plan.add_buffer("last", 1, Rows::Out);
    plan
}

/// Of rows of `width` values, and heads of `head_dim`.
pub fn between(ty: &'static QuantType, width: usize, head_dim: usize, are_keys: bool) -> Plan {
    const RANKS: usize = 8;
    let plan = with_rope(head_dim);
    let mut layer = Layer { plan, ty };
    let l = &mut layer;
    let [a, b, c, x] = [(); 4].map(|()| l.buffer(width, Rows::Batch));
    let [q, heads] = [(); 2].map(|()| l.buffer(N_HEAD * head_dim, Rows::Batch));
    let [k, v] = [(); 2].map(|()| l.buffer(N_HEAD_KV * head_dim, Rows::Batch));
    let (logits, routes) = (l.buffer(128, Rows::Batch), l.buffer(2 * RANKS, Rows::Batch));
    let norm = |l: &mut Layer, x, out, group, is_weighted: bool| {
        let weight = is_weighted.then(|| l.vector(group));
        l.plan.ops.push(Op::RmsNorm {
            x,
            weight,
            out,
            group,
            eps: 1e-6,
        });
    };
    let from = if are_keys { k } else { v };
    norm(l, from, v, head_dim, false);
    norm(l, q, q, head_dim, true);
    norm(l, k, k, head_dim, true);
    l.rotate(q, k, RopeStyle::Halves);
    // Wider ones are too wide for it on some cards.
    if head_dim <= 256 {
        l.plan.kv.push(KvShape::new(N_HEAD_KV, head_dim));
        l.plan.ops.push(Op::KvScatter { k, v, layer: 0 });
        l.plan.ops.push(Op::Attention {
            q,
            out: heads,
            layer: 0,
            n_head: N_HEAD,
            scale: 1.0,
            window: None,
            sinks: None,
            causal: true,
            chosen: None,
        });
    }
    norm(l, c, c, width, true);
    l.plan.ops.push(Op::Add { x: c, out: x });
    l.product(x, None, logits, false);
    l.plan.ops.push(Op::Scale {
        x: logits,
        factor: 0.5,
    });
    l.route(logits, None, routes);
    let weight = l.vector(128);
    l.plan.ops.push(Op::ScaleRanks { routes, weight });
    norm(l, a, a, width, true);
    norm(l, b, b, width, true);
    l.plan.ops.push(Op::Add { x: b, out: a });
    norm(l, a, a, width, true);
    let weight = l.vector(1);
    l.plan
        .ops
        .extend([Op::Add { x: a, out: x }, Op::ScaleBy { x, weight }]);
    l.plan.logits = logits;
    layer.plan
}
