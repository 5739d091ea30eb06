//! What a model takes of a card, known before anything is taken: the load itself, on a card that is
//! only described, with a ledger of its buffers.

use std::sync::Arc;

use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::{pool_pages, Needs, RunnerOptions, Weights, Windows, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// The least context that is chosen for a caller who asks for none.
const LEAST_CTX: usize = 256;

/// What loading `plan` with `options` takes of a card such as `info` describes.
///
/// # Errors
/// What is wrong with the options.
pub fn needs(
    info: &DeviceInfo,
    plan: &Arc<Plan>,
    weights: &dyn Weights,
    options: &RunnerOptions,
) -> Result<Needs> {
    let backend = CudaBackend::described(info.clone(), plan.clone(), weights, options)?;
    Ok(backend.needs())
}

fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1u64 << 30) as f64)
}

/// `12345` as `12,345`.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `options` with a context of `n_ctx` for `n_slots` sequences.
fn with(plan: &Plan, options: &RunnerOptions, n_ctx: usize, n_slots: usize) -> RunnerOptions {
    let chunk = options.windows.map(|windows| windows.chunk);
    RunnerOptions {
        n_ctx,
        n_slots,
        // Of a smaller pool that was asked for, no more.
        n_pages: options.n_pages.min(pool_pages(n_slots, n_ctx)),
        windows: chunk.and_then(|chunk| Windows::of(plan, n_slots, n_ctx, chunk)),
        ..options.clone()
    }
}

/// The largest of `low..=high` that `fits`; it must hold below any number that it holds for.
fn largest(
    low: usize,
    high: usize,
    mut fits: impl FnMut(usize) -> Result<bool>,
) -> Result<Option<usize>> {
    if high < low || !fits(low)? {
        return Ok(None);
    }
    let (mut good, mut bad) = (low, high + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match fits(middle)? {
            true => good = middle,
            false => bad = middle,
        }
    }
    Ok(Some(good))
}

/// The options that a load of `plan` is to have where `free` bytes of the card are free: those
/// given, or, where the caller `may_shrink` the context, the largest one that fits.
///
/// # Errors
/// [`Error::Memory`] with what is needed of what, what is free, and what would fit.
pub fn fit(
    info: &DeviceInfo,
    plan: &Arc<Plan>,
    weights: &dyn Weights,
    options: &RunnerOptions,
    may_shrink: bool,
    free: u64,
) -> Result<RunnerOptions> {
    let needs = |options: &RunnerOptions| needs(info, plan, weights, options);
    let needed = needs(options)?;
    if needed.total() <= free {
        return Ok(options.clone());
    }
    let (n_ctx, n_slots) = (options.n_ctx, options.n_slots);
    // In pages: a part of one takes as much as all of it.
    let pages = |slots: usize| {
        largest(1, n_ctx / PAGE_TOKENS, |n| {
            Ok(needs(&with(plan, options, n * PAGE_TOKENS, slots))?.total() <= free)
        })
    };
    let context = pages(n_slots)?.map(|n| n * PAGE_TOKENS);
    if let Some(context) = context.filter(|n| may_shrink && *n >= LEAST_CTX.min(n_ctx)) {
        return Ok(with(plan, options, context, n_slots));
    }
    let slots = largest(1, n_slots - 1, |n| {
        Ok(needs(&with(plan, options, n_ctx, n))?.total() <= free)
    })?;
    let alone = match (context, slots) {
        (None, None) => pages(1)?.map(|n| n * PAGE_TOKENS),
        _ => None,
    };
    let mut remedies = Vec::new();
    if let Some(context) = context {
        remedies.push(format!(
            "context {} would fit (n_ctx={context})",
            grouped(context)
        ));
    }
    if let Some(slots) = slots {
        remedies.push(format!("max_batch={slots} would fit"));
    }
    if let Some(context) = alone {
        remedies.push(format!("n_ctx={context} with max_batch=1 would fit"));
    }
    if remedies.is_empty() {
        remedies.push(
            "free memory on the card, or use a smaller model or quantization, or device=\"cpu\""
                .into(),
        );
    }
    Err(Error::Memory {
        need: format!(
            "needs {} GiB (weights {}, KV {}, scratch {}), {} free on {}",
            gib(needed.total()),
            gib(needed.weights),
            gib(needed.kv),
            gib(needed.working()),
            gib(free),
            info.name
        ),
        remedy: remedies.join(", or "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (3072, "3,072"),
            (1 << 20, "1,048,576"),
        ] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        for limit in 0..40 {
            let found = largest(3, 30, |n| Ok(n <= limit)).unwrap();
            assert_eq!(found, (limit >= 3).then(|| limit.min(30)), "{limit}");
        }
        assert_eq!(largest(3, 2, |_| Ok(true)), Ok(None));
    }
}
