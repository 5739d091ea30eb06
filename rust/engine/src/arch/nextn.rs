//! The layer behind a model's own that guesses further tokens (multi-token prediction; `nextn` in GGUF):
//! `eh_proj · [enorm(embedding of a token) ; hnorm(row before it)]`, a layer as the model's own, a norm
//! that gives the next row, and the head. Of several such layers the first guesses all.

use super::build::Builder;
use super::{qwen35, qwen35moe};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{storing, BufferId, ByRows, Op, Plan};

/// What its layer adds to a row.
type Layer = fn(&mut Builder<'_>, BufferId) -> Result<()>;

/// Architectures whose files have one.
const LAYERS: &[(&str, Layer)] = &[
    ("qwen35", qwen35::drafts),
    ("qwen35moe", qwen35moe::drafts),
    ("qwen3next", qwen35moe::drafts),
];

/// The plan with a drafter, where the file has one: some converters count its layer and leave it out.
///
/// # Errors
/// [`crate::Error::Tensor`] names a tensor of it that is missing or of the wrong shape.
pub fn with_drafter(config: &Config, plan: Plan) -> Result<Plan> {
    let layer = LAYERS.iter().find(|(arch, _)| *arch == config.arch);
    let joins = name(config, "eh_proj.weight");
    let has_one = config.n_layer_nextn > 0 && config.tensors.contains_key(&joins);
    let Some((_, layer)) = layer.filter(|_| has_one) else {
        return Ok(plan);
    };
    let mut b = Builder::beside(config, &plan);
    let (x, wide) = (b.buffer("x", config.n_embd), config.n_embd);
    let (rows, hidden) = (b.buffer("draft_rows", wide), b.buffer("draft_hidden", wide));
    let last = b.norm("output_norm.weight", wide)?;
    b.normalize(x, last, rows, wide);
    join(&mut b, rows, x)?;
    layer(&mut b, x)?;
    let follow = storing(&b.take_ops());
    join(&mut b, hidden, x)?;
    layer(&mut b, x)?;
    let own = name(config, "shared_head_norm.weight");
    let norm = match config.tensors.contains_key(&own) {
        true => b.norm(&own, wide)?,
        false => last,
    };
    b.normalize(x, norm, hidden, wide);
    let head = name(config, "shared_head_head");
    b.head(&head, "draft_logits", hidden, None)?;
    let guess = b.finish();
    let by = ByRows {
        rows,
        hidden,
        moves: true,
    };
    Ok(plan.with_drafter(follow, guess, Some(by)))
}

/// The full name of a tensor of the layer.
fn name(config: &Config, of: &str) -> String {
    format!("blk.{}.nextn.{of}", config.n_layer)
}

/// The input of the layer, into `x`: from the rows before the tokens, and the tokens.
fn join(b: &mut Builder<'_>, rows: BufferId, x: BufferId) -> Result<()> {
    let wide = b.config.n_embd;
    let table = name(b.config, "embed_tokens.weight");
    let token = b.embed_by(&table, "draft_token", 1.0)?;
    let row = b.buffer("draft_row", wide);
    for (from, out, norm) in [(token, token, "enorm"), (rows, row, "hnorm")] {
        let norm = b.norm(&name(b.config, &format!("{norm}.weight")), wide)?;
        b.normalize(from, norm, out, wide);
    }
    let both = b.buffer("draft_both", 2 * wide);
    b.push(Op::Concat {
        x: token,
        y: row,
        out: both,
    });
    b.product(
        both,
        None,
        b.config.n_layer,
        "nextn.eh_proj",
        &[2 * wide, wide],
        x,
    )
}
