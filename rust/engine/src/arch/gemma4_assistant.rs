//! Gemma 4's assistant, a drafter in a file of its own: `pre_projection · [embedding of a token ; row before
//! it]`, both of the model that it drafts for, then layers of Gemma 4 with queries alone, which attend over
//! what the model's last layers of their kind have stored. `post_projection` gives the next row. All guesses
//! of a round stand where the token drawn last does.

use super::build::{Builder, Heads, Scores};
use super::draft::{unfit, DRAFT};
use super::gemma4::{kinds, Kind};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{BufferId, ByRows, KvShape, Op, Plan, RopeStyle, Rows};

/// `general.architecture` of such files.
pub const NAME: &str = "gemma4-assistant";

/// The plan with the assistant of this config for a drafter.
///
/// # Errors
/// [`Error::Tensor`] names a tensor that is missing or of the wrong shape; [`Error::Argument`] where it is of
/// another model.
pub fn with_assistant(plan: Plan, config: &Config) -> Result<Plan> {
    let end = plan.hidden().and_then(|end| Some((end, end.norm?)));
    let embedding = plan.ops.iter().find_map(|op| match *op {
        Op::Embed { weight, out, scale } => Some((weight, plan.buffer(out).width, scale)),
        _ => None,
    });
    let Some(((end, norm), (embedding, wide, scale))) = end.zip(embedding) else {
        return Err(Error::Internal("a model without rows to draft by".into()));
    };
    let mut b = Builder::new(config);
    let kinds = kinds(&mut b)?;
    let mut caches = Vec::with_capacity(kinds.len());
    for kind in &kinds {
        caches.push(cache(&plan, config, kind)?);
    }
    let (both, hidden) = (b.buffer("both", 2 * wide), b.buffer("hidden", wide));
    let (x, last) = (
        b.buffer("x", config.n_embd),
        b.buffer("rows", config.n_embd),
    );
    project(&mut b, "pre", [both, x], [2 * wide, config.n_embd])?;
    for (layer, (kind, kv)) in kinds.iter().zip(&caches).enumerate() {
        attend(&mut b, layer, kind, kv.1, x)?;
        let delta = b.geglu(layer, x, config.n_ff_of[layer])?;
        b.norm_delta(layer, delta, "post_ffw_norm")?;
        b.add(delta, x);
        let weight = b.weight(&format!("blk.{layer}.layer_output_scale.weight"), &[1])?;
        b.push(Op::ScaleBy { x, weight });
    }
    let own = b.norm("output_norm.weight", config.n_embd)?;
    b.normalize(x, own, last, config.n_embd);
    project(&mut b, "post", [last, hidden], [config.n_embd, wide])?;
    b.head("output", "logits", last, None)?;
    let mut assistant = b.finish();
    // It has no cache: its layers attend over those of the model.
    assistant.kv.clear();
    let (buffers, layers) = (plan.buffers.len(), plan.kv.len());
    let mut guess = plan.clone().joined(assistant, DRAFT);
    for op in &mut guess.ops {
        if let Op::Attention { layer, .. } = op {
            *layer = caches[*layer - layers].0;
        }
    }
    let [both, hidden] = [both, hidden].map(|id| BufferId(buffers + id.0));
    let token = guess.add_buffer("draft.token", wide, Rows::Batch);
    let rows = guess.add_buffer("draft.after", wide, Rows::Batch);
    let begin = [
        Op::Embed {
            weight: embedding,
            out: token,
            scale,
        },
        Op::Concat {
            x: token,
            y: hidden,
            out: both,
        },
    ];
    guess.ops.splice(0..0, begin);
    let follow = vec![Op::RmsNorm {
        x: end.x,
        weight: Some(norm.weight),
        out: rows,
        group: wide,
        eps: norm.eps,
    }];
    let by = ByRows {
        rows,
        hidden,
        moves: false,
    };
    Ok(plan.with_drafter(follow, guess, Some(by)))
}

/// The layer of the model that layers of this kind attend over, the last one of the kind, and its heads.
fn cache(plan: &Plan, config: &Config, kind: &Kind) -> Result<(usize, KvShape)> {
    let layer = plan.ops.iter().rev().find_map(|op| match op {
        Op::Attention { layer, window, .. } if *window == kind.window => Some(*layer),
        _ => None,
    });
    let found = layer.map(|layer| (layer, plan.kv[layer]));
    let fits =
        |kv: &KvShape| kv.head_dim == kind.head_dim && config.n_head.is_multiple_of(kv.n_head_kv);
    found.filter(|(_, kv)| fits(kv)).ok_or_else(|| {
        let sees = match kind.window {
            Some(tokens) => format!("a window of {tokens} tokens"),
            None => "all tokens".into(),
        };
        unfit(
            config,
            format!(
                "its layers that see {sees} have {} heads of {}, and the model stores no such: use \
                 the assistant of the same Gemma 4",
                config.n_head, kind.head_dim
            ),
        )
    })
}

/// The product with `nextn.<name>_projection`.
fn project(
    b: &mut Builder<'_>,
    name: &str,
    [x, out]: [BufferId; 2],
    shape: [usize; 2],
) -> Result<()> {
    let weight = b.weight(&format!("nextn.{name}_projection.weight"), &shape)?;
    b.push(Op::MatVec {
        x,
        norm: None,
        weight,
        scale: None,
        bias: None,
        out,
    });
    Ok(())
}

/// Attention of queries alone, added to x. The rows stand before the token they guess from, whose keys
/// are not stored yet: its angles, and none but those before it are seen.
fn attend(b: &mut Builder<'_>, layer: usize, kind: &Kind, kv: KvShape, x: BufferId) -> Result<()> {
    let c = b.config;
    let wide = c.n_head * kind.head_dim;
    let q = b.buffer("q", wide);
    let heads = Heads {
        q,
        k: q,
        v: q,
        n_head: c.n_head,
        kv,
    };
    let norm = b.norm(&format!("blk.{layer}.attn_norm.weight"), c.n_embd)?;
    b.product(x, Some(norm), layer, "attn_q", &[c.n_embd, wide], q)?;
    b.norm_parts(q, &format!("blk.{layer}.attn_q_norm.weight"), kind.head_dim)?;
    let table = b.rope_table_ahead(kind.table)?;
    b.push(Op::Rope {
        x: q,
        n_head: c.n_head,
        table,
        style: RopeStyle::Halves,
    });
    let scores = Scores {
        scale: 1.0,
        window: kind.window.map(|tokens| (tokens - 1).max(1)),
        ..heads.scores()
    };
    let delta = b.attend_over(layer, layer, heads, scores)?;
    b.norm_delta(layer, delta, "post_attention_norm")?;
    b.add(delta, x);
    Ok(())
}
