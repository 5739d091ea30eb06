//! What architectures write plans with: shape-checked weights, the rope table, and the blocks that
//! decoder-only transformers share.

use crate::config::{Config, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{
    BufferId, KvShape, Norm, Op, Plan, RopeStyle, RopeTable, Rows, Weight, WeightId,
};

/// A plan under construction.
pub struct Builder<'a> {
    pub config: &'a Config,
    plan: Plan,
}

/// What distinguishes one pre-norm transformer with SwiGLU from another.
pub struct Traits {
    pub rope: RopeStyle,
    /// RMSNorm over each head of q and k before the rotation.
    pub qk_norm: bool,
}

impl<'a> Builder<'a> {
    pub fn new(config: &'a Config) -> Self {
        let plan = Plan {
            buffers: Vec::new(),
            weights: Vec::new(),
            ops: Vec::new(),
            ropes: Vec::new(),
            kv: Vec::new(),
            logits: BufferId(0),
        };
        Self { config, plan }
    }

    /// A weight that may be missing; where it is there, its shape must be `shape`.
    pub fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightId>> {
        let Some(spec) = self.config.tensors.get(name) else {
            return Ok(None);
        };
        let (n_in, n_out) = match *shape {
            [n] => (n, 1),
            [n_in, n_out] => (n_in, n_out),
            _ => {
                return Err(Error::Internal(format!(
                    "weight {name} with shape {shape:?}"
                )))
            }
        };
        if spec.shape != shape {
            return Err(Error::Tensor {
                name: name.to_owned(),
                found: format!("the shape {:?}", spec.shape),
                expected: format!("{shape:?}"),
                remedy: "the metadata and the tensors disagree: convert or fetch the model again"
                    .into(),
            });
        }
        let weight = Weight {
            name: name.to_owned(),
            n_in,
            n_out,
            ty: spec.ty,
        };
        Ok(Some(self.plan.add_weight(weight)))
    }

    /// A weight that must be there with this shape.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<WeightId> {
        self.optional(name, shape)?.ok_or_else(|| Error::Tensor {
            name: name.to_owned(),
            found: "nothing".into(),
            expected: format!("a tensor of shape {shape:?}"),
            remedy: "the file does not hold the whole model: fetch it again".into(),
        })
    }

    /// A rope table of the config: base, linear and YaRN scaling, and the llama3 frequency factors
    /// where the file has them. Its number.
    pub fn rope_table(&mut self) -> Result<usize> {
        let c = self.config;
        let half = c.rope_dim / 2;
        let dims = c.rope_dim as f64;
        let exponent = |i: usize| -2.0 * i as f64 / dims;
        let mut inv_freq: Vec<f64> = (0..half).map(|i| c.rope_base.powf(exponent(i))).collect();
        let mut scale = 1.0;
        match c.rope_scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => inv_freq.iter_mut().for_each(|f| *f /= factor),
            RopeScaling::Yarn {
                factor,
                original_ctx,
                attn_factor,
                beta_fast,
                beta_slow,
            } => {
                // Section 3.2 of the paper: the dimension that rotates `beta` times over the
                // original context.
                let dim_of = |beta: f64| {
                    let rotations = original_ctx as f64 / (beta * 2.0 * std::f64::consts::PI);
                    dims * rotations.ln() / (2.0 * c.rope_base.ln())
                };
                let low = dim_of(beta_fast).floor().max(0.0);
                let high = dim_of(beta_slow).ceil().min(dims - 1.0);
                for (i, f) in inv_freq.iter_mut().enumerate() {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    *f *= (1.0 - ramp) + ramp / factor;
                }
                scale = attn_factor * (1.0 + 0.1 * factor.ln());
            }
        }
        let factors = self.optional("rope_freqs.weight", &[half])?;
        self.plan.ropes.push(RopeTable {
            inv_freq,
            factors,
            scale,
        });
        Ok(self.plan.ropes.len() - 1)
    }

    /// The whole model: embedding, `n_layer` blocks of attention and feed-forward with residuals,
    /// final norm, LM head (tied to the embedding where `output.weight` is missing).
    pub fn decoder(mut self, traits: &Traits) -> Result<Plan> {
        let c = self.config;
        let (n_q, n_kv) = (c.n_head * c.head_dim, c.n_head_kv * c.head_dim);
        let table = self.rope_table()?;
        let cache = KvShape {
            n_head_kv: c.n_head_kv,
            head_dim: c.head_dim,
        };
        self.plan.kv = vec![cache; c.n_layer];

        let x = self.plan.add_buffer("x", c.n_embd, Rows::Batch);
        let q = self.plan.add_buffer("q", n_q, Rows::Batch);
        let k = self.plan.add_buffer("k", n_kv, Rows::Batch);
        let v = self.plan.add_buffer("v", n_kv, Rows::Batch);
        let heads = self.plan.add_buffer("heads", n_q, Rows::Batch);
        let gate = self.plan.add_buffer("gate", c.n_ff, Rows::Batch);
        let up = self.plan.add_buffer("up", c.n_ff, Rows::Batch);
        let act = self.plan.add_buffer("act", c.n_ff, Rows::Batch);
        let delta = self.plan.add_buffer("delta", c.n_embd, Rows::Batch);
        let last = self.plan.add_buffer("last", c.n_embd, Rows::Out);
        let logits = self.plan.add_buffer("logits", c.n_vocab, Rows::Out);

        let embedding = self.weight("token_embd.weight", &[c.n_embd, c.n_vocab])?;
        self.plan.ops.push(Op::Embed {
            weight: embedding,
            out: x,
        });
        for layer in 0..c.n_layer {
            let norm = Some(self.norm(&format!("blk.{layer}.attn_norm.weight"), c.n_embd)?);
            self.matvec(x, norm, layer, "attn_q", &[c.n_embd, n_q], q)?;
            self.matvec(x, norm, layer, "attn_k", &[c.n_embd, n_kv], k)?;
            self.matvec(x, norm, layer, "attn_v", &[c.n_embd, n_kv], v)?;
            if traits.qk_norm {
                self.norm_heads(q, &format!("blk.{layer}.attn_q_norm.weight"))?;
                self.norm_heads(k, &format!("blk.{layer}.attn_k_norm.weight"))?;
            }
            self.plan.ops.extend([
                Op::Rope {
                    x: q,
                    n_head: c.n_head,
                    table,
                    style: traits.rope,
                },
                Op::Rope {
                    x: k,
                    n_head: c.n_head_kv,
                    table,
                    style: traits.rope,
                },
                Op::KvScatter { k, v, layer },
                Op::Attention {
                    q,
                    out: heads,
                    layer,
                    n_head: c.n_head,
                    scale: 1.0 / (c.head_dim as f32).sqrt(),
                    window: None,
                    sinks: None,
                },
            ]);
            self.matvec(heads, None, layer, "attn_output", &[n_q, c.n_embd], delta)?;
            self.plan.ops.push(Op::Add { x: delta, out: x });
            let norm = Some(self.norm(&format!("blk.{layer}.ffn_norm.weight"), c.n_embd)?);
            self.matvec(x, norm, layer, "ffn_gate", &[c.n_embd, c.n_ff], gate)?;
            self.matvec(x, norm, layer, "ffn_up", &[c.n_embd, c.n_ff], up)?;
            self.plan.ops.push(Op::SwiGlu { gate, up, out: act });
            self.matvec(act, None, layer, "ffn_down", &[c.n_ff, c.n_embd], delta)?;
            self.plan.ops.push(Op::Add { x: delta, out: x });
        }
        self.plan.ops.push(Op::SelectRows { x, out: last });
        let norm = self.norm("output_norm.weight", c.n_embd)?;
        let head = match self.optional("output.weight", &[c.n_embd, c.n_vocab])? {
            Some(head) => head,
            None => embedding,
        };
        self.plan.ops.push(Op::MatVec {
            x: last,
            norm: Some(norm),
            weight: head,
            bias: None,
            out: logits,
        });
        self.plan.logits = logits;
        Ok(self.plan)
    }

    /// The norm of the tensor `name`, over rows or parts of `width` values.
    fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        Ok(Norm {
            weight: self.weight(name, &[width])?,
            eps: self.config.rms_eps,
        })
    }

    /// Normalizes each head of `x` in place.
    fn norm_heads(&mut self, x: BufferId, name: &str) -> Result<()> {
        let group = self.config.head_dim;
        let Norm { weight, eps } = self.norm(name, group)?;
        self.plan.ops.push(Op::RmsNorm {
            x,
            weight,
            out: x,
            group,
            eps,
        });
        Ok(())
    }

    /// `blk.<layer>.<name>.weight`, with the bias where the file has one.
    fn matvec(
        &mut self,
        x: BufferId,
        norm: Option<Norm>,
        layer: usize,
        name: &str,
        shape: &[usize; 2],
        out: BufferId,
    ) -> Result<()> {
        let weight = self.weight(&format!("blk.{layer}.{name}.weight"), shape)?;
        let bias = self.optional(&format!("blk.{layer}.{name}.bias"), &shape[1..])?;
        self.plan.ops.push(Op::MatVec {
            x,
            norm,
            weight,
            bias,
            out,
        });
        Ok(())
    }
}
