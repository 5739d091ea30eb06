//! Nomic's BERT: rotated heads in the place of learned positions, one matrix of queries, keys and values,
//! SwiGLU, no biases. The one with experts has GELU, and biases; every second layer has the experts.

use super::bert;
use super::build::{Builder, Heads};
use crate::config::{Config, Experts};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, Op, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    layers(config, |b, layer, x| {
        b.swiglu_under(layer, None, x, b.config.n_ff)
    })
}

/// Of `nomic-bert-moe`.
pub fn plan_with_experts(config: &Config) -> Result<Plan> {
    let all = Builder::new(config).experts_of_file()?;
    let every = all.every.ok_or_else(|| Error::Metadata {
        key: format!("{}.moe_every_n_layers", config.arch),
        value: "missing".into(),
        expected: "2 or more: the second of so many layers has experts".into(),
    })?;
    layers(config, |b, layer, x| match layer % every == 1 {
        true => experts(b, layer, x, &all),
        false => bert::feed_forward(b, layer, x),
    })
}

/// The plan of layers with such a feed-forward part: what is to be added to x.
fn layers(
    config: &Config,
    feed_forward: impl Fn(&mut Builder, usize, BufferId) -> Result<BufferId>,
) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = bert::embed(&mut b, false)?;
    for layer in 0..c.n_layer {
        let heads = heads(&mut b, layer, x)?;
        b.rotate(heads, table, RopeStyle::Halves);
        bert::attend(&mut b, layer, heads, x)?;
        let delta = feed_forward(&mut b, layer, x)?;
        b.add(delta, x);
        bert::layer_norm(&mut b, x, &format!("blk.{layer}.layer_output_norm"))?;
    }
    Ok(b.states(x))
}

/// `ffn_down_exps · gelu(ffn_up_exps · x)` of the experts that have the largest shares of a softmax over
/// all, times these shares, summed. Each is as wide as the part of a layer without experts.
fn experts(b: &mut Builder, layer: usize, x: BufferId, all: &Experts) -> Result<BufferId> {
    let (n_embd, n_ff) = (b.config.n_embd, b.config.n_ff);
    let (n_expert, n_used) = (all.n_expert, all.n_used);
    let (logits, routes) = (b.buffer("router", n_expert), b.buffer("routes", 2 * n_used));
    b.product(x, None, layer, "ffn_gate_inp", &[n_embd, n_expert], logits)?;
    b.push(Op::Route {
        logits,
        bias: None,
        out: routes,
        gating: Gating::Softmax,
        renormalize: false,
        scale: all.scale,
        groups: None,
    });
    let (up, down) = (
        b.buffer("up_exps", n_used * n_ff),
        b.buffer("down_exps", n_used * n_embd),
    );
    for (x, name, shape, out) in [
        (x, "ffn_up_exps", [n_embd, n_ff, n_expert], up),
        (up, "ffn_down_exps", [n_ff, n_embd, n_expert], down),
    ] {
        let weight = b.weight(&format!("blk.{layer}.{name}.weight"), &shape)?;
        b.push(Op::ExpertMatVec {
            x,
            ranked: x == up,
            norm: None,
            routes,
            weight,
            scale: None,
            bias: None,
            out,
        });
        if out == up {
            b.push(Op::Gelu { x: up });
        }
    }
    let delta = b.buffer("delta", n_embd);
    b.push(Op::MixExperts {
        x: down,
        routes,
        out: delta,
    });
    Ok(delta)
}

/// Queries, keys and values of a layer: the thirds of one product.
fn heads(b: &mut Builder, layer: usize, x: BufferId) -> Result<Heads> {
    let (c, kv) = (b.config, b.kv());
    let (n_q, n_kv) = (c.n_head * kv.head_dim, kv.n_head_kv * kv.head_dim);
    let of = n_q + 2 * n_kv;
    let all = b.buffer("qkv", of);
    b.product(x, None, layer, "attn_qkv", &[c.n_embd, of], all)?;
    let mut first = 0;
    let [q, k, v] = [("q", n_q), ("k", n_kv), ("v", n_kv)].map(|(name, width)| {
        let out = b.buffer(name, width);
        b.push(Op::Slice {
            x: all,
            out,
            n: 1,
            first,
            of,
        });
        first += width;
        out
    });
    Ok(Heads {
        q,
        k,
        v,
        n_head: c.n_head,
        kv,
    })
}
