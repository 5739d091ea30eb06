//! Qwen3.5 with experts: the same layers; of each layer's experts a softmax over all chooses some,
//! whose weights are divided by their sum, and one more is every row's, times a gate.

use super::build::{Builder, Router};
use super::delta::Mixer;
use crate::config::Config;
use crate::error::Result;
use crate::plan::{BufferId, Gating, Op, Plan};

pub fn plan(config: &Config) -> Result<Plan> {
    layers(config, false)
}

/// The same where heads of values that share one of keys may be neighbours.
pub fn layers(config: &Config, grouped: bool) -> Result<Plan> {
    let mut b = Builder::new(config);
    let router = router(&b)?;
    let mixer = Mixer::new(&mut b, grouped)?;
    let x = b.embed(1.0)?;
    for n in 0..config.n_layer {
        layer(&mut b, &mixer, &router, n, x)?;
    }
    b.logits(x)
}

fn router(b: &Builder<'_>) -> Result<Router> {
    Ok(Router {
        norm: Some("post_attention_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: b.experts_of_file()?,
        gating: Gating::Softmax,
        renormalize: true,
    })
}

fn layer(
    b: &mut Builder<'_>,
    mixer: &Mixer<'_>,
    router: &Router,
    layer: usize,
    x: BufferId,
) -> Result<()> {
    mixer.add(b, layer, x)?;
    let shared = b.shared_expert(layer, x, router, true)?;
    let delta = b.experts(layer, x, router)?;
    b.add(delta, x);
    let delta = b.gate_shared(layer, shared)?;
    b.add(delta, x);
    Ok(())
}

/// The layer behind the others that guesses further tokens: it attends, so its heads are in no groups.
pub fn drafts(b: &mut Builder<'_>, x: BufferId) -> Result<()> {
    let router = router(b)?;
    let mixer = Mixer::new(b, false)?;
    layer(b, &mixer, &router, b.config.n_layer, x)
}
