//! DeepSeek-V2, V3, R1, GLM-4.7-Flash and others: multi-head latent attention
//! (<https://arxiv.org/abs/2405.04434>, section 2.1), absorbed: queries are taken to the row that keys and
//! values of all heads are made of, which the cache keeps alone, and each head's value is made of what attention
//! gives. Behind the first layers experts, in groups in the largest.

use super::build::{Builder, Heads, Router, Scores};
use super::glm4moe::{self, Chosen};
use crate::config::{Config, Experts, LatentConfig, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, KvShape, Op, Plan, RopeStyle};

/// What each layer attends by.
struct Latent {
    of: LatentConfig,
    /// Numbers of a head that are rotated, and those that are not.
    rotated: usize,
    plain: usize,
    table: usize,
    scale: f32,
    /// All heads of each row, by number.
    heads: BufferId,
}

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let router = c.experts.map(|experts| Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: Experts {
            n_ff_shared: Some(experts.n_ff * experts.n_shared),
            ..experts
        },
        gating: gating(c, &experts),
        renormalize: experts.renormalizes,
    });
    // Version 3, which chooses by sigmoids, has one that balances their load.
    let of_bias = |name: &String| name.ends_with(".exp_probs_b.bias");
    let are_sigmoids = router
        .as_ref()
        .is_some_and(|of| of.gating == Gating::Sigmoid);
    let chosen: Chosen = match are_sigmoids || c.tensors.keys().any(of_bias) {
        true => Builder::experts_by_bias,
        false => Builder::experts,
    };
    let latent = latent(&mut b)?;
    let x = b.embed(1.0)?;
    b.push(Op::RouteAll { out: latent.heads });
    for layer in 0..c.n_layer {
        let delta = attention(&mut b, layer, x, &latent)?;
        b.add(delta, x);
        match &router {
            Some(router) => {
                let parts = (chosen, router.experts.n_shared > 0);
                glm4moe::feed_forward_by(&mut b, layer, x, router, parts)?;
            }
            None => {
                let delta = b.swiglu(layer, x, c.n_ff)?;
                b.add(delta, x);
            }
        }
    }
    b.logits(x)
}

/// By softmax where the file does not say, but in early files of GLM-4.7-Flash.
fn gating(config: &Config, experts: &Experts) -> Gating {
    const GLM_LAYERS: [usize; 2] = [47, 48];
    const GLM_TOKENS: usize = 154_880;
    let is_glm = GLM_LAYERS.contains(&config.n_layer) && config.n_vocab == GLM_TOKENS;
    match experts.gating {
        None if !is_glm => Gating::Softmax,
        _ => glm4moe::gating(experts),
    }
}

fn latent(b: &mut Builder<'_>) -> Result<Latent> {
    let c = b.config;
    let Some(of) = c.latent else {
        return Err(Error::Metadata {
            key: format!("{}.attention.kv_lora_rank", c.arch),
            value: "missing".into(),
            expected: "the width of the row that keys and values are made of".into(),
        });
    };
    let temperature = c.temperature.map(|of| of.scale.to_string());
    let heads = Some(c.n_head_kv).filter(|n| *n != 1);
    for (value, key, expected) in [
        (temperature, "attention.temperature_scale", "0"),
        (heads.map(|n| n.to_string()), "attention.head_count_kv", "1"),
    ] {
        if let Some(value) = value {
            return Err(Error::Metadata {
                key: format!("{}.{key}", c.arch),
                value,
                expected: format!("{expected}: others are not supported in this architecture"),
            });
        }
    }
    let (scaling, factor) = scaling(c);
    let rotated = c.rope_dim;
    let table = b.rope_table(rotated, c.rope_base, &scaling)?;
    Ok(Latent {
        of,
        rotated,
        plain: of.key_dim - rotated,
        table,
        scale: (factor / (of.key_dim as f64).sqrt()) as f32,
        heads: b.buffer("all_heads", 2 * c.n_head),
    })
}

/// What cosines and sines go by, and a factor of scores. YaRN's `1 + 0.1 m ln(factor)` is one of scores, twice,
/// for `m` that the file has a tenth of; cosines and sines then have none. Where it has no `m`, they have
/// theirs of 1, and so have scores.
fn scaling(c: &Config) -> (RopeScaling, f64) {
    let mut scaling = c.rope_scaling.clone();
    let RopeScaling::Yarn {
        factor,
        attn_factor,
        ..
    } = &mut scaling
    else {
        return (scaling, 1.0);
    };
    let log = 0.1 * factor.max(1.0).ln();
    let m = c.yarn_log_multiplier / 0.1;
    let named = *attn_factor;
    let whole = match m == 0.0 {
        true => named * (1.0 + log),
        false => {
            *attn_factor /= 1.0 + log;
            named * (1.0 + m * log)
        }
    };
    (scaling, whole * whole)
}

/// What attention gives, to be added to x.
fn attention(b: &mut Builder<'_>, layer: usize, x: BufferId, by: &Latent) -> Result<BufferId> {
    let c = b.config;
    let (n_head, rank) = (c.n_head, by.of.rank);
    let kv = KvShape {
        values_in_keys: Some(rank),
        ..KvShape::new(1, rank + by.rotated)
    };
    let style = RopeStyle::Interleaved;
    let norm = |b: &mut Builder<'_>, name: &str, width| {
        b.norm(&format!("blk.{layer}.{name}.weight"), width)
    };

    // The row of the cache: what keys and values are made of, and what all heads' keys have alike.
    let (both, plain, turned) = (
        b.buffer("latent_both", kv.head_dim),
        b.buffer("latent", rank),
        b.buffer("latent_rope", by.rotated),
    );
    let (k, q_all) = (b.buffer("k", kv.head_dim), n_head * by.of.key_dim);
    let before = norm(b, "attn_norm", c.n_embd)?;
    let shape = [c.n_embd, kv.head_dim];
    b.product(x, Some(before), layer, "attn_kv_a_mqa", &shape, both)?;
    let q = b.buffer("q_heads", q_all);
    match by.of.q_rank {
        Some(q_rank) => {
            let row = b.buffer("q_latent", q_rank);
            b.product(x, Some(before), layer, "attn_q_a", &[c.n_embd, q_rank], row)?;
            cut(b, both, [plain, turned], 1, [rank, by.rotated]);
            let norm = norm(b, "attn_q_a_norm", q_rank)?;
            b.product(row, Some(norm), layer, "attn_q_b", &[q_rank, q_all], q)?;
        }
        None => {
            b.product(x, Some(before), layer, "attn_q", &[c.n_embd, q_all], q)?;
            cut(b, both, [plain, turned], 1, [rank, by.rotated]);
        }
    }
    let (q_plain, q_turned, q_absorbed) = (
        b.buffer("q_plain", n_head * by.plain),
        b.buffer("q_rope", n_head * by.rotated),
        b.buffer("q_absorbed", n_head * rank),
    );
    cut(b, q, [q_plain, q_turned], n_head, [by.plain, by.rotated]);

    let of_latent = norm(b, "attn_kv_a_norm", rank)?;
    b.normalize(plain, of_latent, plain, rank);
    for (x, n_head) in [(turned, 1), (q_turned, n_head)] {
        let table = by.table;
        b.push(Op::Rope {
            x,
            n_head,
            table,
            style,
        });
    }
    let of = [rank, by.rotated];
    b.push(Op::Join {
        x: plain,
        y: turned,
        out: k,
        n: 1,
        of,
    });
    let shape = [by.plain, rank, n_head];
    b.product_by_heads(q_plain, by.heads, layer, "attn_k_b", &shape, q_absorbed)?;
    let q = b.buffer("q", n_head * kv.head_dim);
    b.push(Op::Join {
        x: q_absorbed,
        y: q_turned,
        out: q,
        n: n_head,
        of,
    });

    let heads = Heads {
        q,
        k,
        v: k,
        n_head,
        kv,
    };
    let scores = Scores {
        scale: by.scale,
        ..heads.scores()
    };
    let attended = b.attention(layer, heads, scores);
    let values = b.buffer("values", n_head * by.of.value_dim);
    let shape = [rank, by.of.value_dim, n_head];
    b.product_by_heads(attended, by.heads, layer, "attn_v_b", &shape, values)?;
    let delta = b.buffer("delta", c.n_embd);
    let shape = [n_head * by.of.value_dim, c.n_embd];
    b.product(values, None, layer, "attn_output", &shape, delta)?;
    Ok(delta)
}

/// Of `n` parts of x the first numbers and the others, apart.
fn cut(b: &mut Builder<'_>, x: BufferId, out: [BufferId; 2], n: usize, widths: [usize; 2]) {
    let of = widths[0] + widths[1];
    for (out, first) in out.into_iter().zip([0, widths[0]]) {
        b.push(Op::Slice {
            x,
            out,
            n,
            first,
            of,
        });
    }
}
