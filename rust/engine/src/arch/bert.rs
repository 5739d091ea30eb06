//! BERT, an encoder: each row sees all of its text, positions are learned, a LayerNorm behind each block,
//! GELU. Its vectors are the product; it generates nothing. What other encoders share with it is here.

use super::build::{Builder, Heads, Scores};
use crate::config::{Config, PoolingType};
use crate::error::Result;
use crate::plan::{BufferId, Op, Plan, TableRow};

/// The layer whose cache all use: what one has stored none but itself reads, in the same pass.
const CACHE: usize = 0;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let c = config;
    let x = embed(&mut b, true)?;
    for layer in 0..c.n_layer {
        let heads = b.heads_under(layer, None, x, c.n_head, b.kv())?;
        attend(&mut b, layer, heads, x)?;
        let delta = feed_forward(&mut b, layer, x)?;
        b.add(delta, x);
        layer_norm(&mut b, x, &format!("blk.{layer}.layer_output_norm"))?;
    }
    Ok(b.states(x))
}

/// The rows that all layers add to: of tokens, of types, and of positions, where these are learned. A text
/// is of the first type, a document beside a query of the second.
pub fn embed(b: &mut Builder, learned: bool) -> Result<BufferId> {
    const TYPES: &str = "token_types.weight";
    let c = b.config;
    let x = b.embed(1.0)?;
    if let Some(types) = c.tensors.get(TYPES) {
        let n_types = types.shape.get(1).copied().unwrap_or(1);
        let ranks = c.pooling == Some(PoolingType::Rank);
        let row = match ranks && n_types > 1 {
            true => TableRow::Type,
            false => TableRow::First,
        };
        add_row(b, x, TYPES, n_types, row)?;
    }
    if learned {
        let name = "position_embd.weight";
        add_row(b, x, name, c.n_ctx_train, TableRow::Position)?;
    }
    layer_norm(b, x, "token_embd_norm")?;
    Ok(x)
}

/// Adds what all tokens of the text give, and normalizes the sum.
pub fn attend(b: &mut Builder, layer: usize, heads: Heads, x: BufferId) -> Result<()> {
    let n_embd = b.config.n_embd;
    let scores = Scores {
        causal: false,
        ..heads.scores()
    };
    let attended = b.attention(CACHE, heads, scores);
    let delta = b.buffer("delta", n_embd);
    let shape = [heads.n_head * heads.kv.head_dim, n_embd];
    b.product(attended, None, layer, "attn_output", &shape, delta)?;
    b.add(delta, x);
    layer_norm(b, x, &format!("blk.{layer}.attn_output_norm"))
}

/// `ffn_down · gelu(ffn_up · x)`: what is to be added to x.
pub fn feed_forward(b: &mut Builder, layer: usize, x: BufferId) -> Result<BufferId> {
    let c = b.config;
    let (inner, delta) = (b.buffer("up", c.n_ff), b.buffer("delta", c.n_embd));
    b.product(x, None, layer, "ffn_up", &[c.n_embd, c.n_ff], inner)?;
    b.push(Op::Gelu { x: inner });
    b.product(inner, None, layer, "ffn_down", &[c.n_ff, c.n_embd], delta)?;
    Ok(delta)
}

/// Adds a row of a table of so many.
fn add_row(b: &mut Builder, x: BufferId, name: &str, rows: usize, row: TableRow) -> Result<()> {
    let table = b.table(name, &[b.config.n_embd, rows])?;
    b.push(Op::AddRow { x, table, row });
    Ok(())
}

/// Normalizes `x` in place.
pub fn layer_norm(b: &mut Builder, x: BufferId, name: &str) -> Result<()> {
    let width = [b.config.n_embd];
    let weight = b.weight(&format!("{name}.weight"), &width)?;
    let bias = b.weight(&format!("{name}.bias"), &width)?;
    b.push(Op::LayerNorm {
        x,
        weight,
        bias: Some(bias),
        out: x,
        eps: b.config.rms_eps,
    });
    Ok(())
}
