//! Cohere's Command R7B and Command A: one LayerNorm without a bias before attention and the feed-forward
//! part, which stand side by side; three layers that see a window and rotate to one that sees all and
//! does not. Command R is the same without windows.

use super::build::{Builder, Scores};
use crate::config::{Config, Window};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, RopeStyle};

/// The last layer of each so many sees all, where the file does not say.
const PERIOD: usize = 4;

pub fn plan(config: &Config) -> Result<Plan> {
    let Some(windows) = &config.window else {
        let expected = "the tokens that layers with a window see, 1 or more";
        return Err(missing(config, "attention.sliding_window", expected));
    };
    layers(config, Some(windows))
}

/// Of `command-r`, whose layers all see all and rotate.
pub fn plan_without_windows(config: &Config) -> Result<Plan> {
    layers(config, None)
}

fn layers(config: &Config, windows: Option<&Window>) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let Some(factor) = c.factors.logits else {
        let expected = "what the logits are multiplied by, 1e-9 to 1e9";
        return Err(missing(c, "logit_scale", expected));
    };
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = b.embed(1.0)?;
    let normed = b.buffer("normed", c.n_embd);
    for layer in 0..c.n_layer {
        layer_norm(&mut b, x, &format!("blk.{layer}.attn_norm"), normed)?;
        let window = windows.and_then(|w| w.of(layer, PERIOD));
        let heads = b.heads_under(layer, None, normed, c.n_head, b.kv())?;
        if window.is_some() || windows.is_none() {
            b.rotate(heads, table, RopeStyle::Interleaved);
        }
        let scores = Scores {
            window,
            ..heads.scores()
        };
        let delta = b.attend(layer, heads, scores)?;
        b.add(delta, x);
        let delta = b.swiglu_under(layer, None, normed, c.n_ff)?;
        b.add(delta, x);
    }
    layer_norm(&mut b, x, "output_norm", normed)?;
    let mut plan = b.logits_of(normed, None)?;
    let x = plan.logits;
    plan.ops.push(Op::Scale { x, factor });
    Ok(plan)
}

fn layer_norm(b: &mut Builder, x: BufferId, name: &str, out: BufferId) -> Result<()> {
    let weight = b.weight(&format!("{name}.weight"), &[b.config.n_embd])?;
    b.push(Op::LayerNorm {
        x,
        weight,
        bias: None,
        out,
        eps: b.config.rms_eps,
    });
    Ok(())
}

fn missing(config: &Config, key: &str, expected: &str) -> Error {
    Error::Metadata {
        key: format!("{}.{key}", config.arch),
        value: "missing, or 0".into(),
        expected: expected.into(),
    }
}
