//! LFM2 with experts: in all but the first layers a bias has a part in which experts are chosen, and
//! their weights are divided by their sum.

use super::build::{Builder, Router};
use super::lfm2::{Mixer, LAST_NORM};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{Gating, Op, Plan};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let experts = b.experts_of_file()?;
    let gating = match experts.gating {
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SelectedSoftmax,
        _ => {
            return Err(Error::Metadata {
                key: format!("{}.expert_gating_func", c.arch),
                value: "missing".into(),
                expected: "1 for a softmax, 2 for sigmoids, 3 for a softmax of those chosen".into(),
            })
        }
    };
    let router = Router {
        norm: Some("ffn_norm"),
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts,
        gating,
        renormalize: true,
    };
    let mixer = Mixer::new(&mut b, None)?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let delta = mixer.mix(&mut b, layer, x)?;
        b.add(delta, x);
        let delta = match layer < experts.n_layer_dense {
            true => b.swiglu(layer, x, c.n_ff)?,
            false => b.experts_by_bias(layer, x, &router)?,
        };
        b.add(delta, x);
    }
    b.logits_under(LAST_NORM, x)
}
