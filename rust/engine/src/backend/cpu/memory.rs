//! What the interpreter takes beside the weights: foreseen from the plan, and taken so that a
//! machine without room for it gives an error. Widths come from the file, lengths from the options.

use super::{attention, matvec};
use crate::backend::{RunnerOptions, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Op, Plan, Rows};

/// Most rows of one forward pass: bounds the activation buffers, changes no bit.
pub const MAX_ROWS: usize = 256;

/// Bytes that a load and its longest prompts take. Sums end at 2^64 - 1: no machine has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Rows of a forward pass that the rest is foreseen for.
    pub rows: usize,
    /// The pool of keys and values, which is taken as it is filled.
    pub kv: u64,
    /// The plan's buffers and the expanded vectors.
    pub activations: u64,
    /// What products, attention and sampling work on, and the tables of pages.
    pub scratch: u64,
}

fn product(factors: &[usize]) -> u64 {
    factors
        .iter()
        .fold(1, |bytes: u64, n| bytes.saturating_mul(*n as u64))
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

/// Rows of a buffer in a pass of `rows` of which `out` are wanted.
pub fn rows_of(plan: &Plan, id: BufferId, rows: usize, out: usize) -> usize {
    match plan.buffer(id).rows {
        Rows::Batch => rows,
        Rows::Out => out,
    }
}

impl Needs {
    /// What a plan takes with these options.
    pub fn new(plan: &Plan, options: &RunnerOptions) -> Self {
        const F32: usize = size_of::<f32>();
        let slots = options.n_slots;
        let rows = options.n_ctx.min(MAX_ROWS).max(slots);
        let rows_of = |id| rows_of(plan, id, rows, slots);
        let buffers = (0..plan.buffers.len())
            .map(BufferId)
            .map(|id| product(&[rows_of(id), plan.buffer(id).width, F32]));
        let vectors = plan.weights.iter().filter(|w| w.n_out == 1);
        let turns = product(&[rows, plan.rope.inv_freq.len(), 2 * F32]);

        let mut products = 0;
        let mut at = 0;
        while let Some(op) = plan.ops.get(at) {
            let together = matvec::together(&plan.ops[at..]);
            if let (Op::MatVec { x, .. }, group) = (op, &plan.ops[at..at + together]) {
                let weights = || {
                    group.iter().filter_map(|op| match op {
                        Op::MatVec { weight, .. } => Some(plan.weight(*weight)),
                        _ => None,
                    })
                };
                let kinds = (
                    weights().any(|w| w.ty.integers),
                    weights().any(|w| !w.ty.integers),
                );
                let bytes = matvec::scratch_bytes(
                    plan.buffer(*x).width,
                    weights().map(|w| w.n_out).sum(),
                    rows_of(*x),
                    options.threads,
                    kinds,
                );
                products = products.max(bytes);
            }
            at += together.max(1);
        }
        let heads = plan.ops.iter().filter_map(|op| match op {
            Op::Attention { n_head, .. } => Some(*n_head),
            _ => None,
        });
        let heads = heads.max().unwrap_or(0);
        let scores = attention::scratch_bytes(plan.kv, heads, options.n_ctx, rows);
        // Of each slot: the logits under way, counts of what was said, two lists of candidates.
        let sampling = product(&[slots, plan.buffer(plan.logits).width, 4 * F32]);
        // A page's number in the table, and in the list of those that are free.
        let tables = product(&[options.n_pages, 2 * size_of::<u32>()]);
        let head = options.kv_type.row_bytes(plan.kv.head_dim).unwrap_or(0);
        Self {
            rows,
            kv: product(&[
                plan.kv.n_layer,
                options.n_pages,
                2,
                plan.kv.n_head_kv,
                PAGE_TOKENS,
                head,
            ]),
            activations: sum(buffers
                .chain(vectors.map(|w| product(&[w.n_in, F32])))
                .chain([turns])),
            scratch: sum([
                products,
                product(&[options.threads, scores.per_thread]),
                scores.shared as u64,
                sampling,
                tables,
            ]),
        }
    }

    /// Beside keys and values.
    pub fn working(&self) -> u64 {
        self.activations.saturating_add(self.scratch)
    }
}

/// Room for `n` values in all.
///
/// # Errors
/// [`Error::Memory`] where the system has none; `what` it is for.
pub fn reserve<T>(values: &mut Vec<T>, n: usize, what: &str) -> Result<()> {
    let more = n.saturating_sub(values.len());
    values
        .try_reserve_exact(more)
        .map_err(|_| Error::no_room(what, n.saturating_mul(size_of::<T>())))
}

/// `n` times `value`.
///
/// # Errors
/// As [`reserve`].
pub fn filled<T: Clone>(n: usize, value: T, what: &str) -> Result<Vec<T>> {
    let mut values = Vec::new();
    reserve(&mut values, n, what)?;
    values.resize(n, value);
    Ok(values)
}
