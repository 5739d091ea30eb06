//! The ids of an op, all in one place: those of a plan move where it comes behind another one.

use super::drafter::Offsets;
use super::{BufferId, Choice, Gather, Mamba2, Ngram, Norm, Op, Streams, WeightId};

/// Of an op its buffers, and its weights where it has them.
type Ids<'a> = (Vec<&'a mut BufferId>, Vec<Option<&'a mut WeightId>>);

fn of(norm: Option<&mut Norm>) -> Option<&mut WeightId> {
    norm.map(|norm| &mut norm.weight)
}

impl Op {
    /// Moves its ids. States have none to move: a plan that keeps some comes behind no other.
    pub(super) fn shift(&mut self, by: &Offsets) {
        match self {
            Op::Rope { table, .. } => *table += by.ropes,
            Op::KvScatter { layer, .. } | Op::Attention { layer, .. } => *layer += by.layers,
            Op::Choice(Choice::Scores { layer, table, .. }) => {
                *layer += by.layers;
                *table += by.ropes;
            }
            _ => {}
        }
        let (buffers, weights) = self.ids();
        buffers.into_iter().for_each(|id| id.0 += by.buffers);
        let weights = weights.into_iter().flatten();
        weights.for_each(|id| id.0 += by.weights);
    }

    fn ids(&mut self) -> Ids<'_> {
        match self {
            Op::Embed { weight, out, .. } => (vec![out], vec![Some(weight)]),
            Op::RmsNorm { x, weight, out, .. } => (vec![x, out], vec![weight.as_mut()]),
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                ..
            }
            | Op::ShortConv {
                x,
                weight,
                bias,
                out,
                ..
            } => (vec![x, out], vec![Some(weight), bias.as_mut()]),
            Op::AddRow {
                x, table: weight, ..
            }
            | Op::ScaleBy { x, weight }
            | Op::ScaleRanks { routes: x, weight } => (vec![x], vec![Some(weight)]),
            Op::MatVec {
                x,
                norm,
                weight,
                scale,
                bias,
                out,
            } => (
                vec![x, out],
                vec![
                    of(norm.as_mut()),
                    Some(weight),
                    scale.as_mut(),
                    bias.as_mut(),
                ],
            ),
            Op::Gather(Gather { x, out, .. }) => (vec![x, out], vec![]),
            Op::KvScatter { k, v, .. } => (vec![k, v], vec![]),
            Op::Attention {
                q,
                out,
                sinks,
                chosen,
                ..
            } => {
                let chosen = chosen.as_mut().map(|of| &mut of.blocks);
                let buffers = [q, out].into_iter().chain(chosen);
                (buffers.collect(), vec![sinks.as_mut()])
            }
            Op::Streams(Streams::Mean { x, gate, out, .. }) => (vec![x, gate, out], vec![]),
            Op::Streams(Streams::Inject {
                x, gate, streams, ..
            }) => (vec![x, gate, streams], vec![]),
            Op::Streams(Streams::Gate {
                key,
                query,
                value,
                out,
                ..
            }) => (vec![key, query, value, out], vec![]),
            Op::Choice(Choice::Scores { q, weight, out, .. }) => (vec![q, out], vec![Some(weight)]),
            Op::Choice(Choice::Blocks { scores, out, .. }) => (vec![scores, out], vec![]),
            Op::Ngram(Ngram::Tokens { out }) => (vec![out], vec![]),
            Op::Ngram(Ngram::Recent { x, out, .. }) => (vec![x, out], vec![]),
            Op::Ngram(Ngram::Rows {
                recent,
                weight,
                out,
                ..
            }) => (vec![recent, out], vec![Some(weight)]),
            Op::Add { x, out } | Op::Slice { x, out, .. } | Op::SelectRows { x, out } => {
                (vec![x, out], vec![])
            }
            Op::SwiGlu {
                gate: x,
                up: y,
                out,
            }
            | Op::GeGlu {
                gate: x,
                up: y,
                out,
            }
            | Op::ClampedSwiGlu {
                gate: x,
                up: y,
                out,
            }
            | Op::SigmoidMul { x, gate: y, out }
            | Op::SoftplusMul { x, gate: y, out }
            | Op::Join { x, y, out, .. }
            | Op::Concat { x, y, out }
            | Op::MixExperts { x, routes: y, out } => (vec![x, y, out], vec![]),
            Op::GatedConv { x, weight, out, .. } => (vec![x, out], vec![Some(weight)]),
            Op::DeltaNet {
                qkv,
                alpha,
                beta,
                a,
                dt,
                out,
                ..
            } => (vec![qkv, alpha, beta, out], vec![Some(a), Some(dt)]),
            Op::Mamba2(Mamba2 {
                projected,
                convolved,
                a,
                dt,
                d,
                out,
                ..
            }) => (
                vec![projected, convolved, out],
                vec![Some(a), Some(dt), Some(d)],
            ),
            Op::Rope { x, .. }
            | Op::Gelu { x }
            | Op::ReluSquared { x }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::RouteAll { out: x } => (vec![x], vec![]),
            Op::Route {
                logits, bias, out, ..
            } => (vec![logits, out], vec![bias.as_mut()]),
            Op::ExpertMatVec {
                x,
                norm,
                routes,
                weight,
                scale,
                bias,
                out,
                ..
            } => {
                let weights = vec![
                    of(norm.as_mut()),
                    Some(weight),
                    scale.as_mut(),
                    bias.as_mut(),
                ];
                (vec![x, routes, out], weights)
            }
        }
    }
}
