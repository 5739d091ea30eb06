//! Nomic's BERT: rotated heads in the place of learned positions, one matrix of queries, keys and values,
//! SwiGLU, no biases.

use super::bert;
use super::build::{Builder, Heads};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{BufferId, Op, Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let table = b.rope_table(c.rope_dim, c.rope_base, &c.rope_scaling)?;
    let x = bert::embed(&mut b, false)?;
    for layer in 0..c.n_layer {
        let heads = heads(&mut b, layer, x)?;
        b.rotate(heads, table, RopeStyle::Halves);
        bert::attend(&mut b, layer, heads, x)?;
        let delta = b.swiglu_under(layer, None, x, c.n_ff)?;
        b.add(delta, x);
        bert::layer_norm(&mut b, x, &format!("blk.{layer}.layer_output_norm"))?;
    }
    Ok(b.states(x))
}

/// Queries, keys and values of a layer: the thirds of one product.
fn heads(b: &mut Builder, layer: usize, x: BufferId) -> Result<Heads> {
    let (c, kv) = (b.config, b.kv());
    let (n_q, n_kv) = (c.n_head * kv.head_dim, kv.n_head_kv * kv.head_dim);
    let of = n_q + 2 * n_kv;
    let all = b.buffer("qkv", of);
    b.product(x, None, layer, "attn_qkv", &[c.n_embd, of], all)?;
    let mut first = 0;
    let [q, k, v] = [("q", n_q), ("k", n_kv), ("v", n_kv)].map(|(name, width)| {
        let out = b.buffer(name, width);
        b.push(Op::Slice {
            x: all,
            out,
            n: 1,
            first,
            of,
        });
        first += width;
        out
    });
    Ok(Heads {
        q,
        k,
        v,
        n_head: c.n_head,
        kv,
    })
}
