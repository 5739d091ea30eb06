//! LFM2: layers of a short convolution between two gates, some of attention in their place, each with
//! SwiGLU behind it (<https://arxiv.org/abs/2511.23404>).

use super::build::{Builder, Scores};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, RopeStyle};

/// The norm before the logits: named as if it stood behind the embedding.
pub const LAST_NORM: &str = "token_embd_norm";

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let mixer = Mixer::new(&mut b, c.window.as_ref().map(|w| w.tokens))?;
    let x = b.embed(1.0)?;
    for layer in 0..c.n_layer {
        let delta = mixer.mix(&mut b, layer, x)?;
        b.add(delta, x);
        let delta = b.swiglu(layer, x, c.n_ff)?;
        b.add(delta, x);
    }
    b.logits_under(LAST_NORM, x)
}

/// What mixes the tokens of a sequence.
pub struct Mixer {
    taps: usize,
    table: usize,
    /// Tokens that a row sees where it attends, where not all.
    window: Option<usize>,
}

impl Mixer {
    /// # Errors
    /// [`Error::Metadata`] where the file does not say how many tokens a convolution sees.
    pub fn new(b: &mut Builder<'_>, window: Option<usize>) -> Result<Self> {
        let c = b.config;
        let taps = c.conv_taps.ok_or_else(|| Error::Metadata {
            key: format!("{}.shortconv.l_cache", c.arch),
            value: "missing".into(),
            expected: "2 to 16".into(),
        })?;
        let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
        Ok(Self {
            taps,
            table,
            window,
        })
    }

    /// The block of a layer, of x under `attn_norm`: what is to be added to x. A layer without heads
    /// of keys is a convolution.
    pub fn mix(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
        let c = b.config;
        let mut kv = b.kv();
        kv.n_head_kv = c.n_head_kv_of.get(layer).copied().unwrap_or(0);
        if kv.n_head_kv == 0 {
            return self.convolution(b, layer, x);
        }
        let heads = b.heads(layer, x, c.n_head, kv)?;
        b.norm_heads(layer, heads)?;
        b.rotate(heads, self.table, RopeStyle::Halves);
        let scores = Scores {
            window: self.window,
            ..heads.scores()
        };
        b.attend(layer, heads, scores)
    }

    fn convolution(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
        let (n, taps) = (b.config.n_embd, self.taps);
        let (gated, mixed) = (b.buffer("gates", 3 * n), b.buffer("mixed", n));
        let norm = Some(b.norm(&format!("blk.{layer}.attn_norm.weight"), n)?);
        b.product(x, norm, layer, "shortconv.in_proj", &[n, 3 * n], gated)?;
        let weight = b.table(&format!("blk.{layer}.shortconv.conv.weight"), &[taps, n])?;
        let state = b.state(&format!("conv[{layer}]"), (taps - 1) * n);
        b.push(Op::GatedConv {
            x: gated,
            weight,
            state,
            out: mixed,
            taps,
        });
        let delta = b.buffer("delta", n);
        b.product(mixed, None, layer, "shortconv.out_proj", &[n, n], delta)?;
        Ok(delta)
    }
}
