//! Layers that choose experts row by row, and the expert that every row goes to.

use super::Builder;
use crate::config::Experts;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, Groups, Op, WeightId};

/// How the rows of a layer find their experts, and what these do.
pub struct Router {
    /// The norm of the rows.
    pub norm: &'static str,
    /// The op of gate, up and where to.
    pub activation: fn([BufferId; 3]) -> Op,
    pub experts: Experts,
    pub gating: Gating,
    /// Whether the weights of the chosen are divided by their sum.
    pub renormalize: bool,
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
        let name = format!("blk.{layer}.exp_probs_b.bias");
        let bias = self.weight(&name, &[by.experts.n_expert])?;
        self.experts_by(layer, x, by, Some(bias))
    }

    fn experts_by(
        &mut self,
        layer: usize,
        x: BufferId,
        by: &Router,
        bias: Option<WeightId>,
    ) -> Result<BufferId> {
        let (
            n_embd,
            Experts {
                n_expert,
                n_used,
                n_ff,
                scale,
                ..
            },
        ) = (self.config.n_embd, by.experts);
        let (logits, routes) = (
            self.buffer("router", n_expert),
            self.buffer("routes", 2 * n_used),
        );
        let (gate, up, act) = (
            self.buffer("gate_exps", n_used * n_ff),
            self.buffer("up_exps", n_used * n_ff),
            self.buffer("act_exps", n_used * n_ff),
        );
        let (down, delta) = (
            self.buffer("down_exps", n_used * n_embd),
            self.buffer("delta", n_embd),
        );
        let norm = Some(self.norm(&format!("blk.{layer}.{}.weight", by.norm), n_embd)?);
        self.product(x, norm, layer, "ffn_gate_inp", &[n_embd, n_expert], logits)?;
        self.push(Op::Route {
            logits,
            bias,
            out: routes,
            gating: by.gating,
            renormalize: by.renormalize,
            scale,
            groups: by.experts.groups.map(|of| Groups {
                count: of.count,
                used: of.used,
            }),
        });
        let wide = [n_embd, n_ff, n_expert];
        for (name, out) in [("ffn_gate_exps", gate), ("ffn_up_exps", up)] {
            let weight = self.weight(&format!("blk.{layer}.{name}.weight"), &wide)?;
            let scale = self.factor(&format!("blk.{layer}.{name}.scale"), n_expert)?;
            let bias = self.expert_bias(layer, name, n_ff, n_expert)?;
            self.push(Op::ExpertMatVec {
                x,
                ranked: false,
                norm,
                routes,
                weight,
                scale,
                bias,
                out,
            });
        }
        self.push((by.activation)([gate, up, act]));
        let name = format!("blk.{layer}.ffn_down_exps.weight");
        let weight = self.weight(&name, &[n_ff, n_embd, n_expert])?;
        let scale = self.factor(&format!("blk.{layer}.ffn_down_exps.scale"), n_expert)?;
        let bias = self.expert_bias(layer, "ffn_down_exps", n_embd, n_expert)?;
        self.push(Op::ExpertMatVec {
            x: act,
            ranked: true,
            norm: None,
            routes,
            weight,
            scale,
            bias,
            out: down,
        });
        self.push(Op::MixExperts {
            x: down,
            routes,
            out: delta,
        });
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
        let norm = Some(self.norm(&format!("blk.{layer}.{}.weight", by.norm), n_embd)?);
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
        let delta = self.buffer("delta", n_embd);
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
