//! What the interpreter takes beside the weights: foreseen from the plan, and taken so that a
//! machine without room for it gives an error. Widths come from the file, lengths from the options.

use super::experts::Gathered;
use super::rowwise::Normed;
use super::{attention, matvec};
use crate::backend::{Kind, KvPages, Needs, RunnerOptions, ROUND_ROWS};
use crate::error::{Error, Result};
use crate::plan::signature::Role;
use crate::plan::{self, Op, Plan, WeightId};

/// Most rows of one forward pass: bounds the activation buffers, changes no bit.
pub const MAX_ROWS: usize = 256;

fn product(factors: &[usize]) -> u64 {
    factors
        .iter()
        .fold(1, |bytes: u64, n| bytes.saturating_mul(*n as u64))
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// Rows of the longest forward pass: a plan that looks ahead has whole texts in one.
pub fn most_rows(plan: &Plan, options: &RunnerOptions) -> usize {
    let most = match plan.looks_ahead() {
        true => options.n_ctx.max(MAX_ROWS),
        false => options.n_ctx.min(MAX_ROWS),
    };
    most.max(options.n_slots)
}

/// What a plan takes with these options. The weights stay in the file, mapped; keys and values take
/// memory as they are written.
///
/// # Errors
/// As [`KvPages::new`].
pub fn needs(plan: &Plan, options: &RunnerOptions) -> Result<Needs> {
    let kv = KvPages::new(plan, options)?;
    let file_bytes = |w: &plan::Weight| w.bytes().map_or(u64::MAX, |bytes| bytes as u64);
    Ok(Needs {
        weights: sum(plan.weights.iter().map(file_bytes)),
        kv: kv.needed(),
        windows: kv.bytes_of_kind(Kind::Windowed) as u64,
        activations: activations(plan, options),
        scratch: sum([
            products(plan, options).max(by_experts(plan, options)),
            normed(plan, options),
            scores(plan, options),
            trials(plan, options),
            sampling(plan, options),
            // A page's number in the table, and in the list of those that are free.
            product(&[options.n_pages, 2 * size_of::<u32>()]),
            product(&[kv.pages_of_kind(Kind::Windowed), 2 * size_of::<u32>()]),
        ]),
    })
}

/// The plan's buffers, the expanded vectors, the angles of the rows, states, and what rounds keep of them.
fn activations(plan: &Plan, options: &RunnerOptions) -> u64 {
    let rows = most_rows(plan, options);
    let buffers = plan.buffers.iter().map(|b| b.bytes(rows, options.n_slots));
    let vectors = plan.weights.iter().filter(|w| w.n_out == 1);
    let vectors = vectors.map(|w| w.vector_len().saturating_mul(size_of::<f32>()));
    let states = plan.state_bytes().saturating_mul(options.n_slots);
    let kept = plan.kept_widths().into_iter();
    let kept = kept.map(|width| width.saturating_mul(ROUND_ROWS * size_of::<f32>()));
    let all = buffers.chain(vectors).chain(kept);
    let all = all.chain([plan.rope_bytes(rows), states]);
    sum(all.map(|bytes| bytes as u64))
}

/// All ops of a plan, its drafter's too.
fn ops(plan: &Plan) -> impl Iterator<Item = &Op> {
    plan.parts().flat_map(|part| &part.ops)
}

/// What the largest group of products works on.
fn products(plan: &Plan, options: &RunnerOptions) -> u64 {
    let of = |part| products_of(part, options);
    plan.parts().map(of).max().unwrap_or(0)
}

fn products_of(plan: &Plan, options: &RunnerOptions) -> u64 {
    let mut most = 0;
    let mut at = 0;
    while at < plan.ops.len() {
        let together = matvec::group_len(&plan.ops[at..]);
        let group = plan.ops[at..at + together].iter().map(Op::signature);
        let (mut x, mut n_out, mut kinds) = (None, 0, (false, false));
        for op in group {
            x = x.or(op.inputs().next());
            n_out += op.outputs().map(|id| plan.buffer(id).width).sum::<usize>();
            for matrix in op.weights.iter().filter(|used| used.role == Role::Matrix) {
                let integers = plan.weight(matrix.id).ty.integers;
                kinds = (kinds.0 || integers, kinds.1 || !integers);
            }
        }
        if let Some(x) = x.map(|id| plan.buffer(id)) {
            let rows = x.rows.of(most_rows(plan, options), options.n_slots);
            let bytes = matvec::scratch_bytes(x.width, n_out, rows, options.threads, kinds);
            most = most.max(bytes);
        }
        at += together.max(1);
    }
    most
}

/// What the largest product by experts works on, where all rows go to one of them; with one row,
/// where each goes to its own.
fn by_experts(plan: &Plan, options: &RunnerOptions) -> u64 {
    let rows = most_rows(plan, options);
    let bytes = |op: &Op| {
        let Op::ExpertMatVec { routes, weight, .. } = op else {
            return 0;
        };
        let (w, ranks) = (plan.weight(*weight), plan.buffer(*routes).width / 2);
        let kinds = (w.ty.integers, !w.ty.integers);
        let of = |n_out, m| matvec::scratch_bytes(w.n_in, n_out, m, options.threads, kinds);
        let gathered = Gathered::bytes(w.n_in, w.n_out, rows);
        of(w.n_out, rows)
            .saturating_add(gathered)
            .max(of(ranks.saturating_mul(w.n_out), 1))
    };
    ops(plan).map(bytes).max().unwrap_or(0)
}

/// The longest rows of a product with a norm.
fn normed(plan: &Plan, options: &RunnerOptions) -> u64 {
    let bytes = |op: &Op| match op {
        Op::MatVec {
            x, norm: Some(_), ..
        }
        | Op::ExpertMatVec {
            x, norm: Some(_), ..
        } => {
            let x = plan.buffer(*x);
            Normed::bytes(
                x.width,
                x.rows.of(most_rows(plan, options), options.n_slots),
            )
        }
        _ => 0,
    };
    ops(plan).map(bytes).max().unwrap_or(0) as u64
}

/// What attention works on.
fn scores(plan: &Plan, options: &RunnerOptions) -> u64 {
    let (ty, rows) = (options.kv_type, most_rows(plan, options));
    let bytes = |(n_head, kv)| {
        let scores = attention::scratch_bytes(kv, ty, n_head, options.n_ctx, rows);
        product(&[options.threads, scores.per_thread]).saturating_add(scores.shared as u64)
    };
    plan.attentions().map(bytes).max().unwrap_or(0)
}

/// Of each thread in a round: the state of a head, as its rows change it.
fn trials(plan: &Plan, options: &RunnerOptions) -> u64 {
    let bytes = |op: &Op| match op {
        Op::DeltaNet { head_dim, .. } => {
            product(&[options.threads, *head_dim, *head_dim, size_of::<f32>()])
        }
        Op::Mamba2(op) => product(&[options.threads, op.d_state, op.head_dim, size_of::<f32>()]),
        _ => 0,
    };
    ops(plan).map(bytes).max().unwrap_or(0)
}

/// Of each slot: the logits under way, counts of what was said, two lists of candidates; and of what
/// penalties look back at the tokens in their order and each once, lists that grow by doubling.
fn sampling(plan: &Plan, options: &RunnerOptions) -> u64 {
    let n_vocab = plan.n_vocab();
    sum([
        product(&[options.n_slots, n_vocab, 4 * size_of::<f32>()]),
        product(&[options.n_slots, options.n_ctx, 2 * size_of::<u32>()]),
        product(&[
            options.n_slots,
            options.n_ctx.min(n_vocab),
            2 * size_of::<u32>(),
        ]),
    ])
}

/// The values of a weight of one row, of those that are expanded.
///
/// # Errors
/// [`Error::Internal`] for a matrix.
pub fn vector<'a>(plan: &Plan, vectors: &'a [Option<Vec<f32>>], id: WeightId) -> Result<&'a [f32]> {
    let values = vectors[id.0].as_deref();
    values.ok_or_else(|| Error::Internal(format!("{} is used as a vector", plan.weight(id).name)))
}
