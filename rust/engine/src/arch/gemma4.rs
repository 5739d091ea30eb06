//! Gemma 4: Gemma 3's norms and GeGLU; layers that see a window and layers that see all have heads of
//! their own widths and numbers; values are normalized, and are keys where a layer has no product for
//! them; the last layers may read what an earlier one has stored; E2B and E4B tell each layer of each
//! token; 26B has experts beside its feed-forward part.

use super::build::{Builder, Heads, Scores};
use crate::config::{Config, RopeScaling, WindowLayers};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, KvShape, Norm, Op, Plan, RopeStyle};

/// Layers of one kind.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub head_dim: usize,
    /// Of angles.
    pub table: usize,
    pub window: Option<usize>,
}

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let kinds = kinds(&mut b)?;
    let x = b.embed((c.n_embd as f32).sqrt())?;
    let ple = match c.n_embd_layer {
        0 => None,
        width => Some(ple(&mut b, x, width)?),
    };
    for layer in 0..c.n_layer {
        let delta = attend(&mut b, &kinds, layer, x)?;
        b.norm_delta(layer, delta, "post_attention_norm")?;
        b.add(delta, x);
        let delta = b.geglu(layer, x, c.n_ff_of[layer])?;
        let router = format!("blk.{layer}.ffn_gate_inp.weight");
        if c.tensors.contains_key(&router) {
            let mixed = experts(&mut b, layer, x)?;
            b.norm_delta(layer, delta, "post_ffw_norm_1")?;
            b.norm_delta(layer, mixed, "post_ffw_norm_2")?;
            b.add(mixed, delta);
        }
        b.norm_delta(layer, delta, "post_ffw_norm")?;
        b.add(delta, x);
        if let Some(ple) = ple {
            let delta = add_ple(&mut b, layer, x, ple)?;
            b.norm_delta(layer, delta, "post_norm")?;
            b.add(delta, x);
        }
        let name = format!("blk.{layer}.layer_output_scale.weight");
        if let Some(weight) = b.optional(&name, &[1])? {
            b.push(Op::ScaleBy { x, weight });
        }
    }
    let mut plan = b.logits(x)?;
    if let Some(cap) = c.logit_cap {
        let x = plan.logits;
        plan.ops.push(Op::SoftCap { x, cap });
    }
    Ok(plan)
}

/// The kind of each layer.
pub(super) fn kinds(b: &mut Builder<'_>) -> Result<Vec<Kind>> {
    let c = b.config;
    let said = c
        .window
        .as_ref()
        .filter(|w| matches!(w.layers, WindowLayers::Each(_)));
    let Some(window) = said else {
        return Err(Error::Metadata {
            key: format!("{}.attention.sliding_window_pattern", c.arch),
            value: "missing, or no window".into(),
            expected: format!("{} bools, which layers see a window", c.n_layer),
        });
    };
    let head_dim = c.local.head_dim.unwrap_or(c.head_dim);
    let rope_dim = c.local.rope_dim.unwrap_or(c.rope_dim);
    if rope_dim > head_dim {
        return Err(Error::Metadata {
            key: format!("{}.rope.dimension_count_swa", c.arch),
            value: rope_dim.to_string(),
            expected: format!("at most {head_dim}, the width of heads that see a window"),
        });
    }
    // Their factors leave most dimensions as they are.
    let factors = b.weight("rope_freqs.weight", &[c.rope_dim / 2])?;
    let global = Kind {
        head_dim: c.head_dim,
        table: b.rope_table_by(c.rope_dim, c.rope_base, &c.rope_scaling, Some(factors)),
        window: None,
    };
    let base = c.rope_base_window.unwrap_or(10_000.0);
    let local = Kind {
        head_dim,
        table: b.rope_table_by(rope_dim, base, &RopeScaling::None, None),
        window: Some(window.tokens),
    };
    // All layers are said: no period is asked for.
    let kind = |layer| match window.of(layer, 1) {
        Some(_) => local,
        None => global,
    };
    Ok((0..c.n_layer).map(kind).collect())
}

/// Attention: what is to be added to x.
fn attend(b: &mut Builder<'_>, kinds: &[Kind], layer: usize, x: BufferId) -> Result<BufferId> {
    let c = b.config;
    let Kind {
        head_dim,
        table,
        window,
    } = kinds[layer];
    let shape = |layer: usize| KvShape::new(c.n_head_kv_of[layer], kinds[layer].head_dim);
    let kv = shape(layer);
    if kv.n_head_kv == 0 {
        return Err(Error::Metadata {
            key: format!("{}.attention.head_count_kv", c.arch),
            value: format!("0 in layer {layer}"),
            expected: "at least one head of keys in each layer".into(),
        });
    }
    let (n_q, n_kv) = (c.n_head * head_dim, kv.n_head_kv * head_dim);
    let heads = Heads {
        q: b.buffer("q", n_q),
        k: b.buffer("k", n_kv),
        v: b.buffer("v", n_kv),
        n_head: c.n_head,
        kv,
    };
    let scores = Scores {
        scale: 1.0,
        window,
        ..heads.scores()
    };
    let norm = Some(b.norm(&format!("blk.{layer}.attn_norm.weight"), c.n_embd)?);
    b.product(x, norm, layer, "attn_q", &[c.n_embd, n_q], heads.q)?;
    let first_shared = c.n_layer - c.n_layer_shared_kv;
    if layer >= first_shared {
        // Of the last layers that store, one is of either kind.
        let back = if window.is_some() { 2 } else { 1 };
        let source = first_shared.checked_sub(back);
        let alike = |from: &usize| kinds[*from].window == window && shape(*from) == kv;
        let Some(source) = source.filter(alike) else {
            return Err(Error::Metadata {
                key: format!("{}.attention.shared_kv_layers", c.arch),
                value: c.n_layer_shared_kv.to_string(),
                expected: format!(
                    "before the layers that share a layer with a window, then one without, with \
                     the heads of layer {layer}"
                ),
            });
        };
        b.norm_parts(
            heads.q,
            &format!("blk.{layer}.attn_q_norm.weight"),
            head_dim,
        )?;
        b.push(Op::Rope {
            x: heads.q,
            n_head: c.n_head,
            table,
            style: RopeStyle::Halves,
        });
        return b.attend_over(layer, source, heads, scores);
    }
    b.product(x, norm, layer, "attn_k", &[c.n_embd, n_kv], heads.k)?;
    let has_values = c
        .tensors
        .contains_key(&format!("blk.{layer}.attn_v.weight"));
    if has_values {
        b.product(x, norm, layer, "attn_v", &[c.n_embd, n_kv], heads.v)?;
    }
    b.push(Op::RmsNorm {
        x: if has_values { heads.v } else { heads.k },
        weight: None,
        out: heads.v,
        group: head_dim,
        eps: c.rms_eps,
    });
    b.norm_heads(layer, heads)?;
    b.rotate(heads, table, RopeStyle::Halves);
    b.attend(layer, heads, scores)
}

/// The experts of x, chosen by `ffn_gate_inp · (x / rms(x) / sqrt(n_embd) * scale)`, with weights that add
/// up to 1 before each is multiplied by its expert's own factor.
fn experts(b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
    let of = b.experts_of_file()?;
    let (n_embd, n_ff, n_used) = (b.config.n_embd, of.n_ff, of.n_used);
    let (logits, routes) = (
        b.buffer("router", of.n_expert),
        b.buffer("routes", 2 * n_used),
    );
    let wide = n_used * n_ff;
    let (gate, up, act) = (
        b.buffer("gate_exps", wide),
        b.buffer("up_exps", wide),
        b.buffer("act_exps", wide),
    );
    let (down, out) = (
        b.buffer("down_exps", n_used * n_embd),
        b.buffer("mixed", n_embd),
    );
    let name = |part: &str| format!("blk.{layer}.{part}");
    let norm = Norm {
        weight: b.weight(&name("ffn_gate_inp.scale"), &[n_embd])?,
        eps: b.config.rms_eps,
    };
    let shape = [n_embd, of.n_expert];
    b.product(x, Some(norm), layer, "ffn_gate_inp", &shape, logits)?;
    b.scale(logits, 1.0 / (n_embd as f32).sqrt());
    b.push(Op::Route {
        logits,
        bias: None,
        out: routes,
        gating: Gating::Softmax,
        renormalize: true,
        scale: 1.0,
        groups: None,
    });
    if let Some(weight) = b.optional(&name("ffn_down_exps.scale"), &[of.n_expert])? {
        b.push(Op::ScaleRanks { routes, weight });
    }
    let norm = Some(b.norm(&name("pre_ffw_norm_2.weight"), n_embd)?);
    let both = [n_embd, 2 * n_ff, of.n_expert];
    // Under a norm each expert has the row itself, without one its own.
    let multiply = |b: &mut Builder<'_>, x, norm: Option<Norm>, weight, out| {
        b.push(Op::ExpertMatVec {
            x,
            ranked: norm.is_none(),
            norm,
            routes,
            weight,
            scale: None,
            bias: None,
            out,
        });
    };
    match b.optional(&name("ffn_gate_up_exps.weight"), &both)? {
        Some(weight) => {
            let halves = b.buffer("gate_up_exps", 2 * wide);
            multiply(b, x, norm, weight, halves);
            for (out, first) in [(gate, 0), (up, n_ff)] {
                b.push(Op::Slice {
                    x: halves,
                    out,
                    n: n_used,
                    first,
                    of: 2 * n_ff,
                });
            }
        }
        None => {
            for (part, out) in [("ffn_gate_exps", gate), ("ffn_up_exps", up)] {
                let shape = [n_embd, n_ff, of.n_expert];
                let weight = b.weight(&name(&format!("{part}.weight")), &shape)?;
                multiply(b, x, norm, weight, out);
            }
        }
    }
    b.push(Op::GeGlu { gate, up, out: act });
    let shape = [n_ff, n_embd, of.n_expert];
    let weight = b.weight(&name("ffn_down_exps.weight"), &shape)?;
    multiply(b, act, None, weight, down);
    b.push(Op::MixExperts {
        x: down,
        routes,
        out,
    });
    Ok(out)
}

/// The per-layer embeddings (PLE) of all layers, `[n_layer * width]`: half of it by a table of its own, half
/// from the embedding.
fn ple(b: &mut Builder<'_>, x: BufferId, width: usize) -> Result<BufferId> {
    let c = b.config;
    let all = c.n_layer * width;
    let (out, projected) = (b.buffer("ple", all), b.buffer("projected", all));
    let weight = b.weight("per_layer_token_embd.weight", &[all, c.n_vocab])?;
    let scale = (width as f32).sqrt();
    b.push(Op::Embed { weight, out, scale });
    let weight = b.weight("per_layer_model_proj.weight", &[c.n_embd, all])?;
    b.push(Op::MatVec {
        x,
        norm: None,
        weight,
        scale: None,
        bias: None,
        out: projected,
    });
    let weight = Some(b.weight("per_layer_proj_norm.weight", &[width])?);
    // The product is divided by sqrt(n_embd), which a norm with this epsilon leaves out.
    b.push(Op::RmsNorm {
        x: projected,
        weight,
        out: projected,
        group: width,
        eps: c.rms_eps * c.n_embd as f32,
    });
    b.add(projected, out);
    b.scale(out, std::f32::consts::FRAC_1_SQRT_2);
    Ok(out)
}

/// `proj · (gelu(inp_gate · x) * the layer's input)`: what is to be added to x.
fn add_ple(b: &mut Builder<'_>, layer: usize, x: BufferId, ple: BufferId) -> Result<BufferId> {
    let (n_embd, width) = (b.config.n_embd, b.config.n_embd_layer);
    let (gate, up, act) = (
        b.buffer("ple_gate", width),
        b.buffer("ple_up", width),
        b.buffer("ple_act", width),
    );
    let delta = b.buffer("delta", n_embd);
    b.push(Op::Slice {
        x: ple,
        out: up,
        n: 1,
        first: layer * width,
        of: b.config.n_layer * width,
    });
    b.product(x, None, layer, "inp_gate", &[n_embd, width], gate)?;
    b.push(Op::GeGlu { gate, up, out: act });
    b.product(act, None, layer, "proj", &[width, n_embd], delta)?;
    Ok(delta)
}
