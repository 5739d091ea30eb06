//! What architectures write plans with: shape-checked weights, tables of angles, and the blocks that
//! decoder-only transformers share. A page of this folder puts them in the order of its model.

mod choice;
mod experts;
mod streams;

pub use experts::{Choice, Router};
pub use streams::Streamed;

use crate::config::{Config, RopeScaling};
use crate::error::{Error, Result};
use crate::plan::{
    Buffer, BufferId, Chosen, KvShape, LongFactors, Norm, Op, Plan, RopeStyle, RopeTable, Rows,
    StateId, Temperature, Weight, WeightId,
};

/// Rows of the vocabulary; also the last matrix where a model ties both.
const EMBEDDING: &str = "token_embd.weight";

/// A plan under construction.
pub struct Builder<'a> {
    pub config: &'a Config,
    plan: Plan,
}

/// Queries, keys and values of one layer's attention, of all heads of a row.
#[derive(Clone, Copy)]
pub struct Heads {
    pub q: BufferId,
    pub k: BufferId,
    pub v: BufferId,
    pub n_head: usize,
    pub kv: KvShape,
}

/// What attention does with its scores.
#[derive(Clone, Copy)]
pub struct Scores {
    /// What they are multiplied by.
    pub scale: f32,
    /// Tokens that a row sees, where not all.
    pub window: Option<usize>,
    /// A score a head that takes part in the softmax and has no value.
    pub sinks: Option<WeightId>,
    /// Whether a row sees none behind it.
    pub causal: bool,
    /// The blocks of tokens that it sees, where not all.
    pub chosen: Option<Chosen>,
}

impl Heads {
    /// Scores times `1 / sqrt(head_dim)`, of all tokens.
    pub fn scores(&self) -> Scores {
        Scores {
            scale: 1.0 / (self.kv.head_dim as f32).sqrt(),
            window: None,
            sinks: None,
            causal: true,
            chosen: None,
        }
    }
}

impl<'a> Builder<'a> {
    pub fn new(config: &'a Config) -> Self {
        let none = KvShape::new(0, 0);
        let plan = Plan {
            kv: vec![none; config.n_layer],
            ..Plan::default()
        };
        Self { config, plan }
    }

    /// What comes beside the ops of a plan: of its buffers, weights and layers, and one layer more.
    pub fn beside(config: &'a Config, plan: &Plan) -> Self {
        let mut plan = plan.clone();
        plan.ops.clear();
        plan.kv.push(KvShape::new(0, 0));
        Self { config, plan }
    }

    /// The ops so far, which are taken.
    pub fn take_ops(&mut self) -> Vec<Op> {
        std::mem::take(&mut self.plan.ops)
    }

    /// The next op.
    pub fn push(&mut self, op: Op) {
        self.plan.ops.push(op);
    }

    /// A buffer of a row for each of the batch, by its name and width: layers in turn share it.
    pub fn buffer(&mut self, name: &str, width: usize) -> BufferId {
        self.buffer_over(name, width, Rows::Batch)
    }

    /// The same of other rows.
    fn buffer_over(&mut self, name: &str, width: usize, rows: Rows) -> BufferId {
        let alike = |b: &Buffer| b.name == name && b.width == width && b.rows == rows;
        match self.plan.buffers.iter().position(alike) {
            Some(at) => BufferId(at),
            None => self.plan.add_buffer(name, width, rows),
        }
    }

    /// A weight that may be missing; where it is there, its shape must be `shape`.
    pub fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightId>> {
        let Some(spec) = self.config.tensors.get(name) else {
            return Ok(None);
        };
        let (n_in, n_out, n_expert) = match *shape {
            [n] => (n, 1, 1),
            [n_in, n_out] => (n_in, n_out, 1),
            [n_in, n_out, n_expert] => (n_in, n_out, n_expert),
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
            n_expert,
            ty: spec.ty,
            share: None,
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

    /// A matrix that is used number by number, as a vector of its rows one after another.
    pub fn table(&mut self, name: &str, shape: &[usize; 2]) -> Result<WeightId> {
        let id = self.weight(name, shape)?;
        let weight = &mut self.plan.weights[id.0];
        (weight.n_in, weight.n_out) = (shape[0] * shape[1], 1);
        Ok(id)
    }

    /// What a sequence keeps from token to token: `width` numbers.
    pub fn state(&mut self, name: &str, width: usize) -> StateId {
        self.plan.add_state(name.into(), width)
    }

    /// A table of angles for the first `dims` dimensions of a head: `base`, linear or YaRN scaling, and
    /// the llama3 frequency factors where the file has them. Its number.
    pub fn rope_table(&mut self, dims: usize, base: f64, scaling: &RopeScaling) -> Result<usize> {
        let factors = self.optional("rope_freqs.weight", &[dims / 2])?;
        Ok(self.rope_table_by(dims, base, scaling, factors))
    }

    /// The same with these factors.
    pub fn rope_table_by(
        &mut self,
        dims: usize,
        base: f64,
        scaling: &RopeScaling,
        factors: Option<WeightId>,
    ) -> usize {
        let half = dims / 2;
        let dims = dims as f64;
        let exponent = |i: usize| -2.0 * i as f64 / dims;
        let mut inv_freq: Vec<f64> = (0..half).map(|i| base.powf(exponent(i))).collect();
        let mut scale = 1.0;
        match *scaling {
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
                    dims * rotations.ln() / (2.0 * base.ln())
                };
                let low = dim_of(beta_fast).floor().max(0.0);
                let high = dim_of(beta_slow).ceil().min(dims - 1.0);
                for (i, f) in inv_freq.iter_mut().enumerate() {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    *f *= (1.0 - ramp) + ramp / factor;
                }
                scale = attn_factor * (1.0 + 0.1 * factor.max(1.0).ln());
            }
        }
        let table = RopeTable {
            inv_freq,
            factors,
            scale,
            temperature: None,
            long: None,
            ahead: 0,
        };
        let known = self.plan.ropes.iter().position(|known| *known == table);
        known.unwrap_or_else(|| {
            self.plan.ropes.push(table);
            self.plan.ropes.len() - 1
        })
    }

    /// Other factors for the table of this number in a long context, and a factor of its cosines and sines.
    pub fn lengthen(&mut self, table: usize, long: LongFactors, scale: f64) -> Result<()> {
        let of = self.plan.ropes.get_mut(table);
        let of = of.ok_or_else(|| Error::Internal(format!("table of angles {table}")))?;
        (of.long, of.scale) = (Some(long), scale);
        Ok(())
    }

    /// A table as that of this number, whose heads count more the later their token. Its number.
    pub fn rope_table_at(&mut self, table: usize, temperature: Temperature) -> Result<usize> {
        let of = self.plan.ropes.get(table).cloned();
        let of = of.ok_or_else(|| Error::Internal(format!("table of angles {table}")))?;
        self.plan.ropes.push(RopeTable {
            temperature: Some(temperature),
            ..of
        });
        Ok(self.plan.ropes.len() - 1)
    }

    /// A table as that of this number, whose angles are those of the next position. Its number.
    pub fn rope_table_ahead(&mut self, table: usize) -> Result<usize> {
        let of = self.plan.ropes.get(table).cloned();
        let of = of.ok_or_else(|| Error::Internal(format!("table of angles {table}")))?;
        self.plan.ropes.push(RopeTable { ahead: 1, ..of });
        Ok(self.plan.ropes.len() - 1)
    }

    /// Rotates queries by the angles of one table and keys by those of another.
    pub fn rotate_apart(&mut self, heads: Heads, [q, k]: [usize; 2], style: RopeStyle) {
        for (x, n_head, table) in [(heads.q, heads.n_head, q), (heads.k, heads.kv.n_head_kv, k)] {
            self.push(Op::Rope {
                x,
                n_head,
                table,
                style,
            });
        }
    }

    /// The cache of a layer whose heads are those that the config gives every layer.
    pub fn kv(&self) -> KvShape {
        KvShape::new(self.config.n_head_kv, self.config.head_dim)
    }

    /// The embedding of the tokens times `scale`: the rows that all layers add to.
    pub fn embed(&mut self, scale: f32) -> Result<BufferId> {
        self.embed_by(EMBEDDING, "x", scale)
    }

    /// The same by a table of this name where there is one, into a buffer of that name.
    pub fn embed_by(&mut self, table: &str, name: &str, scale: f32) -> Result<BufferId> {
        let c = self.config;
        let out = self.buffer(name, c.n_embd);
        let shape = [c.n_embd, c.n_vocab];
        let weight = match self.optional(table, &shape)? {
            Some(own) => own,
            None => self.weight(EMBEDDING, &shape)?,
        };
        self.push(Op::Embed { weight, out, scale });
        Ok(out)
    }

    /// `attn_q`, `attn_k` and `attn_v` of `x` under the norm `attn_norm`, in heads of this layer's own
    /// number and width.
    pub fn heads(
        &mut self,
        layer: usize,
        x: BufferId,
        n_head: usize,
        kv: KvShape,
    ) -> Result<Heads> {
        self.heads_under(layer, Some("attn_norm"), x, n_head, kv)
    }

    /// The same under a norm of this name, or under none.
    pub fn heads_under(
        &mut self,
        layer: usize,
        norm: Option<&str>,
        x: BufferId,
        n_head: usize,
        kv: KvShape,
    ) -> Result<Heads> {
        let n_embd = self.config.n_embd;
        let (n_q, n_kv) = (n_head * kv.head_dim, kv.n_head_kv * kv.head_dim);
        let (q, k, v) = (
            self.buffer("q", n_q),
            self.buffer("k", n_kv),
            self.buffer("v", n_kv),
        );
        let norm = self.norm_before(layer, norm)?;
        self.product(x, norm, layer, "attn_q", &[n_embd, n_q], q)?;
        self.product(x, norm, layer, "attn_k", &[n_embd, n_kv], k)?;
        self.product(x, norm, layer, "attn_v", &[n_embd, n_kv], v)?;
        Ok(Heads {
            q,
            k,
            v,
            n_head,
            kv,
        })
    }

    /// Normalizes each head of queries and keys in place, by `attn_q_norm` and `attn_k_norm`.
    pub fn norm_heads(&mut self, layer: usize, heads: Heads) -> Result<()> {
        let width = heads.kv.head_dim;
        for (x, name) in [(heads.q, "attn_q_norm"), (heads.k, "attn_k_norm")] {
            self.norm_parts(x, &format!("blk.{layer}.{name}.weight"), width)?;
        }
        Ok(())
    }

    /// Rotates queries and keys by the angles of a table.
    pub fn rotate(&mut self, heads: Heads, table: usize, style: RopeStyle) {
        self.rotate_apart(heads, [table, table], style);
    }

    /// Stores keys and values, and attends. The layer's cache gets their shape.
    pub fn attention(&mut self, layer: usize, heads: Heads, scores: Scores) -> BufferId {
        let Heads { k, v, kv, .. } = heads;
        if let Some(cache) = self.plan.kv.get_mut(layer) {
            *cache = kv;
        }
        self.push(Op::KvScatter { k, v, layer });
        self.attention_over(layer, heads, scores)
    }

    /// Attends over the cache of a layer, in which the tokens are stored already.
    fn attention_over(&mut self, cache: usize, heads: Heads, scores: Scores) -> BufferId {
        let out = self.buffer("heads", heads.n_head * heads.kv.value_dim());
        self.push(Op::Attention {
            q: heads.q,
            out,
            layer: cache,
            n_head: heads.n_head,
            scale: scores.scale,
            window: scores.window,
            sinks: scores.sinks,
            causal: scores.causal,
            chosen: scores.chosen,
        });
        out
    }

    /// Attention, then the product with `attn_output`: what is to be added to x.
    pub fn attend(&mut self, layer: usize, heads: Heads, scores: Scores) -> Result<BufferId> {
        self.attend_in(layer, layer, heads, scores)
    }

    /// The same by the cache of another layer, which stores in it what it needs itself.
    pub fn attend_in(
        &mut self,
        cache: usize,
        layer: usize,
        heads: Heads,
        scores: Scores,
    ) -> Result<BufferId> {
        let out = self.attention(cache, heads, scores);
        self.attended(layer, heads, out)
    }

    /// The same with what a gate lets through of it, before the product: `let_through` is the op of it, the
    /// gate and where to.
    pub fn attend_gated(
        &mut self,
        layer: usize,
        heads: Heads,
        scores: Scores,
        gate: BufferId,
        let_through: fn([BufferId; 3]) -> Op,
    ) -> Result<BufferId> {
        let x = self.attention(layer, heads, scores);
        let out = self.buffer("gated", heads.n_head * heads.kv.head_dim);
        self.push(let_through([x, gate, out]));
        self.attended(layer, heads, out)
    }

    /// The same over the cache of an earlier layer, to which this one adds nothing.
    pub fn attend_over(
        &mut self,
        layer: usize,
        cache: usize,
        heads: Heads,
        scores: Scores,
    ) -> Result<BufferId> {
        let out = self.attention_over(cache, heads, scores);
        self.attended(layer, heads, out)
    }

    fn attended(&mut self, layer: usize, heads: Heads, out: BufferId) -> Result<BufferId> {
        let n_embd = self.config.n_embd;
        let delta = self.buffer("delta", n_embd);
        let shape = [heads.n_head * heads.kv.head_dim, n_embd];
        self.product(out, None, layer, "attn_output", &shape, delta)?;
        Ok(delta)
    }

    /// `ffn_down · (silu(ffn_gate · x) * (ffn_up · x))` of `x` under the norm `ffn_norm`: what is to be
    /// added to x.
    pub fn swiglu(&mut self, layer: usize, x: BufferId, n_ff: usize) -> Result<BufferId> {
        self.swiglu_under(layer, Some("ffn_norm"), x, n_ff)
    }

    /// The same under a norm of this name, or under none.
    pub fn swiglu_under(
        &mut self,
        layer: usize,
        norm: Option<&str>,
        x: BufferId,
        n_ff: usize,
    ) -> Result<BufferId> {
        self.gated(layer, norm, x, n_ff, |[gate, up, out]| Op::SwiGlu {
            gate,
            up,
            out,
        })
    }

    /// The same with gelu for silu.
    pub fn geglu(&mut self, layer: usize, x: BufferId, n_ff: usize) -> Result<BufferId> {
        self.gated(layer, Some("ffn_norm"), x, n_ff, |[gate, up, out]| {
            Op::GeGlu { gate, up, out }
        })
    }

    /// The same with the op that `activation` makes of gate, up and where to.
    fn gated(
        &mut self,
        layer: usize,
        norm: Option<&str>,
        x: BufferId,
        n_ff: usize,
        activation: fn([BufferId; 3]) -> Op,
    ) -> Result<BufferId> {
        let n_embd = self.config.n_embd;
        let (gate, up, act) = (
            self.buffer("gate", n_ff),
            self.buffer("up", n_ff),
            self.buffer("act", n_ff),
        );
        let delta = self.buffer("delta", n_embd);
        let norm = self.norm_before(layer, norm)?;
        self.product(x, norm, layer, "ffn_gate", &[n_embd, n_ff], gate)?;
        self.product(x, norm, layer, "ffn_up", &[n_embd, n_ff], up)?;
        self.push(activation([gate, up, act]));
        self.product(act, None, layer, "ffn_down", &[n_ff, n_embd], delta)?;
        Ok(delta)
    }

    /// Normalizes, in place, what a block of a layer gives, before it is added.
    pub fn norm_delta(&mut self, layer: usize, delta: BufferId, name: &str) -> Result<()> {
        self.norm_delta_by(layer, delta, name, self.config.rms_eps)
    }

    /// The same by another epsilon than the file's.
    pub fn norm_delta_by(
        &mut self,
        layer: usize,
        delta: BufferId,
        name: &str,
        eps: f32,
    ) -> Result<()> {
        let n_embd = self.config.n_embd;
        let norm = self.norm(&format!("blk.{layer}.{name}.weight"), n_embd)?;
        self.normalize(delta, Norm { eps, ..norm }, delta, n_embd);
        Ok(())
    }

    /// `x = x * factor`.
    pub fn scale(&mut self, x: BufferId, factor: f32) {
        self.push(Op::Scale { x, factor });
    }

    /// A matrix of one row, which files hold as a vector.
    pub fn row(&mut self, name: &str, n_in: usize) -> Result<WeightId> {
        let spec = self.config.tensors.get(name);
        match spec.is_some_and(|spec| spec.shape == [n_in, 1]) {
            true => self.weight(name, &[n_in, 1]),
            false => self.weight(name, &[n_in]),
        }
    }

    /// `x += delta`.
    pub fn add(&mut self, delta: BufferId, x: BufferId) {
        self.push(Op::Add { x: delta, out: x });
    }

    /// The end of the model: of the rows that are wanted the norm `output_norm` and the product with
    /// `output`, or with the embedding where that is missing.
    pub fn logits(self, x: BufferId) -> Result<Plan> {
        self.logits_under("output_norm", x)
    }

    /// The same under a norm of this name.
    pub fn logits_under(mut self, norm: &str, x: BufferId) -> Result<Plan> {
        let norm = self.norm(&format!("{norm}.weight"), self.config.n_embd)?;
        self.logits_of(x, Some(norm))
    }

    /// The same under a norm, or of rows that are normalized.
    pub fn logits_of(mut self, x: BufferId, norm: Option<Norm>) -> Result<Plan> {
        self.head("output", "logits", x, norm)?;
        Ok(self.plan)
    }

    /// Of the rows that are wanted the product with a matrix of this name, with `output` where there is
    /// none, or with the embedding where that is missing, into a buffer of that name.
    pub fn head(
        &mut self,
        matrix: &str,
        name: &str,
        x: BufferId,
        norm: Option<Norm>,
    ) -> Result<()> {
        let c = self.config;
        let last = self.plan.add_buffer("last", c.n_embd, Rows::Out);
        let logits = self.plan.add_buffer(name, c.n_vocab, Rows::Out);
        self.push(Op::SelectRows { x, out: last });
        let shape = [c.n_embd, c.n_vocab];
        let found = match self.optional(&format!("{matrix}.weight"), &shape)? {
            Some(own) => Some((own, matrix)),
            None => self
                .optional("output.weight", &shape)?
                .map(|head| (head, "output")),
        };
        let (weight, scale) = match found {
            Some((head, name)) => (head, self.factor(&format!("{name}.scale"), 1)?),
            None => (self.weight(EMBEDDING, &shape)?, None),
        };
        self.push(Op::MatVec {
            x: last,
            norm,
            weight,
            scale,
            bias: None,
            out: logits,
        });
        self.plan.logits = logits;
        Ok(())
    }

    /// The plan.
    pub fn finish(self) -> Plan {
        self.plan
    }

    /// The end of a model without a head: of the rows that are wanted the states as they are.
    pub fn states(mut self, x: BufferId) -> Plan {
        let out = self.plan.add_buffer("last", self.config.n_embd, Rows::Out);
        self.push(Op::SelectRows { x, out });
        self.plan.logits = out;
        self.plan
    }

    /// The norm of rows before a block of a layer, where it has one.
    pub fn norm_before(&mut self, layer: usize, name: Option<&str>) -> Result<Option<Norm>> {
        let n_embd = self.config.n_embd;
        name.map(|name| self.norm(&format!("blk.{layer}.{name}.weight"), n_embd))
            .transpose()
    }

    /// The norm of the tensor `name`, over rows or parts of `width` values.
    pub fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        Ok(Norm {
            weight: self.weight(name, &[width])?,
            eps: self.config.rms_eps,
        })
    }

    /// Normalizes each `width` values of `x` in place.
    pub fn norm_parts(&mut self, x: BufferId, name: &str, width: usize) -> Result<()> {
        let norm = self.norm(name, width)?;
        self.normalize(x, norm, x, width);
        Ok(())
    }

    /// Each `group` values of `x` normalized, into `out`.
    pub fn normalize(&mut self, x: BufferId, norm: Norm, out: BufferId, group: usize) {
        self.push(Op::RmsNorm {
            x,
            weight: Some(norm.weight),
            out,
            group,
            eps: norm.eps,
        });
    }

    /// What products with a matrix are multiplied by, a number or one for each expert, where the file has
    /// such a tensor: of matrices whose blocks have scales of too few bits for all of their size.
    fn factor(&mut self, name: &str, n_expert: usize) -> Result<Option<WeightId>> {
        let id = self.optional(name, &[n_expert])?;
        if let Some(id) = id {
            let weight = &mut self.plan.weights[id.0];
            (weight.n_in, weight.n_expert) = (1, n_expert);
        }
        Ok(id)
    }

    /// `blk.<layer>.<name>.weight` times `x`, with the scale and the bias where the file has them.
    pub fn product(
        &mut self,
        x: BufferId,
        norm: Option<Norm>,
        layer: usize,
        name: &str,
        shape: &[usize; 2],
        out: BufferId,
    ) -> Result<()> {
        let weight = self.weight(&format!("blk.{layer}.{name}.weight"), shape)?;
        // A router has none; what families call so there is another thing.
        let scale = match name {
            "ffn_gate_inp" => None,
            _ => self.factor(&format!("blk.{layer}.{name}.scale"), 1)?,
        };
        let bias = self.optional(&format!("blk.{layer}.{name}.bias"), &shape[1..])?;
        self.push(Op::MatVec {
            x,
            norm,
            weight,
            scale,
            bias,
            out,
        });
        Ok(())
    }
}
