//! Layers that choose experts row by row, and the expert that every row goes to.

use super::Builder;
use crate::config::Experts;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, Groups, Norm, Op, WeightId};

/// The last product of experts.
const DOWN: &str = "ffn_down_exps";

/// How the rows of a layer find their experts, and what these do.
pub struct Router {
    /// The norm of the rows, where there is one.
    pub norm: Option<&'static str>,
    /// The op of gate, up and where to.
    pub activation: fn([BufferId; 3]) -> Op,
    pub experts: Experts,
    pub gating: Gating,
    /// Whether the weights of the chosen are divided by their sum.
    pub renormalize: bool,
}

/// How experts are chosen.
pub struct Choice {
    pub experts: Experts,
    pub gating: Gating,
    pub renormalize: bool,
    /// What has a part in which are chosen.
    pub bias: Option<WeightId>,
}

/// An expert that every row goes to, before its last product.
pub struct SharedExpert {
    act: BufferId,
    /// One number a row, where it has a gate.
    gate: Option<BufferId>,
    n_ff: usize,
}

impl Builder<'_> {
    /// The experts that the file has.
    ///
    /// # Errors
    /// [`Error::Metadata`] where it has none.
    pub fn experts_of_file(&self) -> Result<Experts> {
        let experts = self.config.experts;
        experts.ok_or_else(|| Error::Metadata {
            key: format!("{}.expert_count", self.config.arch),
            value: "missing".into(),
            expected: "the number of experts of a layer".into(),
        })
    }

    /// The experts of `x` under a norm, by the router `ffn_gate_inp`: of those chosen `ffn_down_exps` of
    /// the activation of `ffn_gate_exps · x` and `ffn_up_exps · x`, weighted and summed. What is to be
    /// added to x.
    pub fn experts(&mut self, layer: usize, x: BufferId, by: &Router) -> Result<BufferId> {
        self.experts_by(layer, x, by, None)
    }

    /// The same, where `exp_probs_b` has a part in which experts are chosen.
    pub fn experts_by_bias(&mut self, layer: usize, x: BufferId, by: &Router) -> Result<BufferId> {
        let bias = self.selection(layer, by.experts.n_expert)?;
        self.experts_by(layer, x, by, Some(bias))
    }

    /// The bias of a layer's choice.
    pub fn selection(&mut self, layer: usize, n_expert: usize) -> Result<WeightId> {
        self.weight(&format!("blk.{layer}.exp_probs_b.bias"), &[n_expert])
    }

    fn experts_by(
        &mut self,
        layer: usize,
        x: BufferId,
        by: &Router,
        bias: Option<WeightId>,
    ) -> Result<BufferId> {
        let (n_embd, of) = (self.config.n_embd, by.experts);
        let (logits, routes) = (
            self.buffer("router", of.n_expert),
            self.buffer("routes", 2 * of.n_used),
        );
        let wide = of.n_used * of.n_ff;
        let (gate, up, act) = (
            self.buffer("gate_exps", wide),
            self.buffer("up_exps", wide),
            self.buffer("act_exps", wide),
        );
        let (down, delta) = (
            self.buffer("down_exps", of.n_used * n_embd),
            self.buffer("delta", n_embd),
        );
        let norm = self.norm_before(layer, by.norm)?;
        let choice = Choice {
            experts: of,
            gating: by.gating,
            renormalize: by.renormalize,
            bias,
        };
        self.route(layer, (x, norm), &choice, [logits, routes])?;
        let shape = [n_embd, of.n_ff, of.n_expert];
        for (name, out) in [("ffn_gate_exps", gate), ("ffn_up_exps", up)] {
            self.expert_product(layer, name, (x, norm), routes, shape, out)?;
        }
        self.push((by.activation)([gate, up, act]));
        self.mixed_experts(layer, (act, routes), &of, n_embd, [down, delta])?;
        Ok(delta)
    }

    /// The weights of the experts that the router `ffn_gate_inp` chooses for `x` under a norm.
    fn route(
        &mut self,
        layer: usize,
        (x, norm): (BufferId, Option<Norm>),
        by: &Choice,
        [logits, out]: [BufferId; 2],
    ) -> Result<()> {
        let (n_embd, n_expert) = (self.config.n_embd, by.experts.n_expert);
        self.product(x, norm, layer, "ffn_gate_inp", &[n_embd, n_expert], logits)?;
        self.push(Op::Route {
            logits,
            bias: by.bias,
            out,
            gating: by.gating,
            renormalize: by.renormalize,
            scale: by.experts.scale,
            groups: by.experts.groups.map(|of| Groups {
                count: of.count,
                used: of.used,
            }),
        });
        Ok(())
    }

    /// A product by the experts of a row, of x under a norm; under none of a row of each rank.
    fn expert_product(
        &mut self,
        layer: usize,
        name: &str,
        (x, norm): (BufferId, Option<Norm>),
        routes: BufferId,
        shape: [usize; 3],
        out: BufferId,
    ) -> Result<()> {
        let [_, n_out, n_expert] = shape;
        let weight = self.weight(&format!("blk.{layer}.{name}.weight"), &shape)?;
        let scale = self.factor(&format!("blk.{layer}.{name}.scale"), n_expert)?;
        let bias = self.expert_bias(layer, name, n_out, n_expert)?;
        self.push(Op::ExpertMatVec {
            x,
            ranked: name == DOWN,
            norm,
            routes,
            weight,
            scale,
            bias,
            out,
        });
        Ok(())
    }

    /// The weighted sum of what `ffn_down_exps` gives of the ranks' rows, of so many values.
    fn mixed_experts(
        &mut self,
        layer: usize,
        (x, routes): (BufferId, BufferId),
        of: &Experts,
        n_out: usize,
        [down, out]: [BufferId; 2],
    ) -> Result<()> {
        let shape = [of.n_ff, n_out, of.n_expert];
        self.expert_product(layer, DOWN, (x, None), routes, shape, down)?;
        self.push(Op::MixExperts {
            x: down,
            routes,
            out,
        });
        Ok(())
    }

    /// The square of what is positive of a product of x under a norm.
    pub fn squared(
        &mut self,
        layer: usize,
        (x, norm): (BufferId, Option<Norm>),
        name: &str,
        n_ff: usize,
    ) -> Result<BufferId> {
        let out = self.buffer(name, n_ff);
        let shape = [self.config.n_embd, n_ff];
        self.product(x, norm, layer, name, &shape, out)?;
        self.push(Op::ReluSquared { x: out });
        Ok(out)
    }

    /// Experts of x under a norm, each `ffn_down_exps` of the square of what is positive of `ffn_up_exps`,
    /// weighted and summed. What they multiply and give is narrower than rows where the file says so:
    /// `ffn_latent_down` makes it, and `ffn_latent_up` what is to be added to x.
    pub fn squared_experts(
        &mut self,
        layer: usize,
        (x, norm): (BufferId, Option<Norm>),
        by: &Choice,
    ) -> Result<BufferId> {
        let (n_embd, of) = (self.config.n_embd, by.experts);
        let (logits, routes) = (
            self.buffer("router", of.n_expert),
            self.buffer("routes", 2 * of.n_used),
        );
        let up = self.buffer("up_exps", of.n_used * of.n_ff);
        let delta = self.buffer("delta", n_embd);
        let (rows, n_in) = match of.n_latent {
            Some(n) => {
                let latent = self.buffer("latent", n);
                self.product(x, norm, layer, "ffn_latent_down", &[n_embd, n], latent)?;
                ((latent, None), n)
            }
            None => ((x, norm), n_embd),
        };
        self.route(layer, (x, norm), by, [logits, routes])?;
        let shape = [n_in, of.n_ff, of.n_expert];
        self.expert_product(layer, "ffn_up_exps", rows, routes, shape, up)?;
        self.push(Op::ReluSquared { x: up });
        let down = self.buffer("down_exps", of.n_used * n_in);
        let mixed = match of.n_latent {
            Some(n) => self.buffer("mixed", n),
            None => delta,
        };
        self.mixed_experts(layer, (up, routes), &of, n_in, [down, mixed])?;
        if let Some(n) = of.n_latent {
            self.product(mixed, None, layer, "ffn_latent_up", &[n, n_embd], delta)?;
        }
        Ok(delta)
    }

    /// The expert that every row goes to, of `x` under the router's norm, up to its product with
    /// `ffn_down_shexp`: the activation of `ffn_gate_shexp · x` and `ffn_up_shexp · x`. Its gate,
    /// where it has one, comes last, so that it stands beside the router, which multiplies the same rows.
    pub fn shared_expert(
        &mut self,
        layer: usize,
        x: BufferId,
        by: &Router,
        is_gated: bool,
    ) -> Result<SharedExpert> {
        let c = self.config;
        let missing = || Error::Metadata {
            key: format!("{}.expert_shared_feed_forward_length", c.arch),
            value: "missing".into(),
            expected: "the width of the expert that every row goes to".into(),
        };
        // Without a word of its own it is as wide as a model without experts.
        let n_ff = by.experts.n_ff_shared.or(Some(c.n_ff).filter(|n| *n > 0));
        let (n_embd, n_ff) = (c.n_embd, n_ff.ok_or_else(missing)?);
        let (up, act) = (
            self.buffer("up_shexp", n_ff),
            self.buffer("act_shexp", n_ff),
        );
        let inner = self.buffer("gate_shexp", n_ff);
        let norm = self.norm_before(layer, by.norm)?;
        self.product(x, norm, layer, "ffn_gate_shexp", &[n_embd, n_ff], inner)?;
        self.product(x, norm, layer, "ffn_up_shexp", &[n_embd, n_ff], up)?;
        self.push((by.activation)([inner, up, act]));
        if !is_gated {
            let gate = None;
            return Ok(SharedExpert { act, gate, n_ff });
        }
        let gate = self.buffer("share", 1);
        let weight = self.row(&format!("blk.{layer}.ffn_gate_inp_shexp.weight"), n_embd)?;
        self.push(Op::MatVec {
            x,
            norm,
            weight,
            scale: None,
            bias: None,
            out: gate,
        });
        let gate = Some(gate);
        Ok(SharedExpert { act, gate, n_ff })
    }

    /// `ffn_down_shexp` of the activation, times the logistic function of the gate, where it has one: what
    /// is to be added to x. The factor is of a row, so it may as well stand before the product, where rows are narrow
    /// and behind which the sum is part of the product.
    pub fn gate_shared(&mut self, layer: usize, of: SharedExpert) -> Result<BufferId> {
        self.gate_shared_into(layer, of, "delta")
    }

    /// The same into a buffer of another name.
    pub fn gate_shared_into(
        &mut self,
        layer: usize,
        of: SharedExpert,
        name: &str,
    ) -> Result<BufferId> {
        let SharedExpert { act, gate, n_ff } = of;
        let n_embd = self.config.n_embd;
        let x = match gate {
            Some(gate) => {
                let out = self.buffer("gated_shexp", n_ff);
                self.push(Op::SigmoidMul { x: act, gate, out });
                out
            }
            None => act,
        };
        let delta = self.buffer(name, n_embd);
        self.product(x, None, layer, "ffn_down_shexp", &[n_ff, n_embd], delta)?;
        Ok(delta)
    }

    /// `blk.<layer>.<name>.weight`, a matrix a head of shape `[n_in, n_out, n_head]`, each times its part of
    /// `x`, with the scale where the file has one. `all` routes to each in turn.
    pub fn product_by_heads(
        &mut self,
        x: BufferId,
        all: BufferId,
        layer: usize,
        name: &str,
        shape: &[usize; 3],
        out: BufferId,
    ) -> Result<()> {
        let weight = self.weight(&format!("blk.{layer}.{name}.weight"), shape)?;
        let scale = self.factor(&format!("blk.{layer}.{name}.scale"), shape[2])?;
        self.push(Op::ExpertMatVec {
            x,
            ranked: true,
            norm: None,
            routes: all,
            weight,
            scale,
            bias: None,
            out,
        });
        Ok(())
    }

    /// A vector of `n` for each expert, where the file has them.
    fn expert_bias(
        &mut self,
        layer: usize,
        name: &str,
        n: usize,
        n_expert: usize,
    ) -> Result<Option<WeightId>> {
        let id = self.optional(&format!("blk.{layer}.{name}.bias"), &[n, n_expert])?;
        if let Some(id) = id {
            let weight = &mut self.plan.weights[id.0];
            (weight.n_out, weight.n_expert) = (1, n_expert);
        }
        Ok(id)
    }
}
