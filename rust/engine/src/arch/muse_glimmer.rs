//! Muse Glimmer: a norm before and one behind each block, three layers that see a window and rotate to
//! one that sees all and does not, QK-norm, a gate on what attention gives. Rows begin normalized.

use super::build::{Builder, Scores};
use crate::config::{Config, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{Op, Plan, RopeStyle};

/// The last layer of each so many sees all, where the file does not say.
const PERIOD: usize = 4;

/// Of norms behind blocks; no key says it.
const EPS_BEHIND: f32 = 1e-8;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let missing = |key: &str, expected: &str| Error::Metadata {
        key: format!("{}.{key}", c.arch),
        value: "missing, or 0".into(),
        expected: expected.into(),
    };
    let Some(factor) = c.factors.logits else {
        let expected = "what the logits are multiplied by, 1e-9 to 1e9";
        return Err(missing("logit_scale", expected));
    };
    // Converters write it always; to llama.cpp a missing one is 30, which no key says.
    let Some(cap) = c.logit_cap else {
        let expected = "the cap of the logits, 1e-9 to 1e9";
        return Err(missing("final_logit_softcapping", expected));
    };
    // Without windows no layer would rotate.
    let Some(windows) = &c.window else {
        let expected = "the tokens that layers with a window see, 1 or more";
        return Err(missing("attention.sliding_window", expected));
    };
    // Positions in a window are never far apart, so that they need no scaling.
    let base = c.rope_base_window.unwrap_or(c.rope_base);
    let table = b.rope_table(c.rope_dim, base, &RopeScaling::None)?;
    let (n_embd, n_q) = (c.n_embd, c.n_head * c.head_dim);
    let x = b.embed(1.0)?;
    b.push(Op::RmsNorm {
        x,
        weight: None,
        out: x,
        group: n_embd,
        eps: c.rms_eps,
    });
    for layer in 0..c.n_layer {
        let window = windows.of(layer, PERIOD);
        let heads = b.heads(layer, x, c.n_head, b.kv())?;
        let gate = b.buffer("q_gates", n_q);
        let norm = Some(b.norm(&format!("blk.{layer}.attn_norm.weight"), n_embd)?);
        b.product(x, norm, layer, "attn_gate", &[n_embd, n_q], gate)?;
        b.norm_heads(layer, heads)?;
        if window.is_some() {
            b.rotate(heads, table, RopeStyle::Interleaved);
        }
        let scores = Scores {
            window,
            ..heads.scores()
        };
        let let_through = |[x, gate, out]: [_; 3]| Op::SigmoidMul { x, gate, out };
        let delta = b.attend_gated(layer, heads, scores, gate, let_through)?;
        b.norm_delta_by(layer, delta, "post_attention_norm", EPS_BEHIND)?;
        b.add(delta, x);
        let delta = b.swiglu(layer, x, c.n_ff)?;
        b.norm_delta_by(layer, delta, "post_ffw_norm", EPS_BEHIND)?;
        b.add(delta, x);
    }
    let mut plan = b.logits(x)?;
    let x = plan.logits;
    plan.ops.push(Op::Scale { x, factor });
    plan.ops.push(Op::SoftCap { x, cap });
    Ok(plan)
}
