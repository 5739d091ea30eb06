//! The layers that Qwen3.5's families share: of the gated delta rule, and of attention whose output
//! has a gate. State and shapes as in Qwen3-Next (<https://qwenlm.github.io/blog/qwen3_next/>).

use super::build::{Builder, Heads, Scores};
use crate::config::{ChoiceConfig, Config, DeltaConfig};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, RopeStyle};

/// What mixes the tokens of a sequence, layer by layer.
pub struct Mixer<'a> {
    delta: &'a DeltaConfig,
    /// Whether heads of values that share one of keys are neighbours.
    grouped: bool,
    /// Angles of the layers that attend.
    table: usize,
    /// The norm of what a layer reads, where it has one.
    norm: Option<&'static str>,
    /// How layers that attend choose the blocks of tokens that they see, where not all.
    choice: Option<ChoiceConfig>,
    /// What a gate lets through of the rule's heads.
    let_through: fn([BufferId; 3]) -> Op,
}

impl<'a> Mixer<'a> {
    /// Of a model whose file says how its rule is shaped.
    ///
    /// # Errors
    /// [`Error::Metadata`] where it does not say.
    pub fn new(b: &mut Builder<'a>, grouped: bool) -> Result<Self> {
        let c: &Config = b.config;
        let delta = c.delta.as_ref().ok_or_else(|| Error::Metadata {
            key: format!("{}.ssm.conv_kernel", c.arch),
            value: "missing".into(),
            expected: "2 to 16".into(),
        })?;
        // Positions of text are the same in every section of the rotation.
        let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
        Ok(Self {
            delta,
            grouped,
            table,
            norm: Some("attn_norm"),
            choice: c.choice,
            let_through: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        })
    }

    /// The same where what a layer reads needs no norm, and the gate of the rule is logistic.
    pub fn between_streams(self) -> Self {
        Self {
            norm: None,
            let_through: |[gate, x, out]| Op::SigmoidMul { x, gate, out },
            ..self
        }
    }

    /// Adds to `x` what its layer makes of it, by the rule or by attention.
    pub fn add(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<()> {
        let out = self.mix(b, layer, x)?;
        b.add(out, x);
        Ok(())
    }

    /// What a layer makes of `x`.
    pub fn mix(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
        match self.delta.is_recurrent.get(layer) {
            Some(true) => self.recurrent(b, layer, x),
            _ => self.attention(b, layer, x),
        }
    }

    /// Attention of queries that came with a gate each, normalized and rotated; its output times the
    /// logistic function of the gate.
    fn attention(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
        let c = b.config;
        let n_q = c.n_head * c.head_dim;
        let chosen = self.choice.as_ref();
        let chosen = chosen.map(|of| b.choose_blocks(layer, x, of, self.table));
        let chosen = chosen.transpose()?;
        // A head of queries and its gate, head by head.
        let both = b.heads_under(layer, self.norm, x, 2 * c.n_head, b.kv())?;
        let (q, gate) = (b.buffer("queries", n_q), b.buffer("q_gates", n_q));
        for (out, first) in [(q, 0), (gate, c.head_dim)] {
            b.push(Op::Slice {
                x: both.q,
                out,
                n: c.n_head,
                first,
                of: 2 * c.head_dim,
            });
        }
        let heads = Heads {
            q,
            n_head: c.n_head,
            ..both
        };
        b.norm_heads(layer, heads)?;
        b.rotate(heads, self.table, RopeStyle::Halves);
        let let_through = |[x, gate, out]: [BufferId; 3]| Op::SigmoidMul { x, gate, out };
        let scores = Scores {
            chosen,
            ..heads.scores()
        };
        b.attend_gated(layer, heads, scores, gate, let_through)
    }

    /// The gated delta rule over a short convolution of queries, keys and values; its heads,
    /// normalized, through a gate that `z` makes.
    fn recurrent(&self, b: &mut Builder<'_>, layer: usize, x: BufferId) -> Result<BufferId> {
        let DeltaConfig {
            conv_kernel: taps,
            head_dim,
            n_head_k,
            n_head_v,
            ..
        } = *self.delta;
        let c = b.config;
        let (n_embd, n_v) = (c.n_embd, n_head_v * head_dim);
        let channels = 2 * n_head_k * head_dim + n_v;
        let (mixed, qkv) = (b.buffer("mixed", channels), b.buffer("qkv", channels));
        let (z, heads) = (b.buffer("z", n_v), b.buffer("rule", n_v));
        let (alpha, beta) = (b.buffer("alpha", n_head_v), b.buffer("beta", n_head_v));
        let norm = b.norm_before(layer, self.norm)?;
        b.product(x, norm, layer, "attn_qkv", &[n_embd, channels], mixed)?;
        b.product(x, norm, layer, "attn_gate", &[n_embd, n_v], z)?;
        if self.grouped {
            // Of each head of keys the betas of its heads of values, then the alphas.
            let (both, share) = (b.buffer("beta_alpha", 2 * n_head_v), n_head_v / n_head_k);
            b.product(x, norm, layer, "ssm_ba", &[n_embd, 2 * n_head_v], both)?;
            for (out, first) in [(beta, 0), (alpha, share)] {
                b.push(Op::Slice {
                    x: both,
                    out,
                    n: n_head_k,
                    first,
                    of: 2 * share,
                });
            }
        } else {
            b.product(x, norm, layer, "ssm_alpha", &[n_embd, n_head_v], alpha)?;
            b.product(x, norm, layer, "ssm_beta", &[n_embd, n_head_v], beta)?;
        }
        let weight = b.table(&format!("blk.{layer}.ssm_conv1d.weight"), &[taps, channels])?;
        let state = b.state(&format!("conv[{layer}]"), (taps - 1) * channels);
        b.push(Op::ShortConv {
            x: mixed,
            weight,
            bias: None,
            state,
            out: qkv,
            taps,
            silu: true,
            part: None,
            dilation: 1,
        });
        let a = b.weight(&format!("blk.{layer}.ssm_a"), &[n_head_v])?;
        let dt = b.weight(&format!("blk.{layer}.ssm_dt.bias"), &[n_head_v])?;
        let state = b.state(&format!("delta[{layer}]"), n_v * head_dim);
        b.push(Op::DeltaNet {
            qkv,
            alpha,
            beta,
            a,
            dt,
            state,
            out: heads,
            n_head: n_head_v,
            n_head_k,
            grouped: self.grouped,
            head_dim,
            eps: c.rms_eps,
        });
        b.norm_parts(heads, &format!("blk.{layer}.ssm_norm.weight"), head_dim)?;
        let gated = b.buffer("rule_gated", n_v);
        b.push((self.let_through)([z, heads, gated]));
        let out = b.buffer("delta", n_embd);
        b.product(gated, None, layer, "ssm_out", &[n_v, n_embd], out)?;
        Ok(out)
    }
}
