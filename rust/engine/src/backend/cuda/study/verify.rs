//! Graph against eager: a captured step and the same step launched kernel by kernel, from the same
//! state, on the same tokens.

use super::endless;
use crate::backend::cuda::driver::launch::{run_all, Launch};
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::cuda::run::cache::Key;
use crate::backend::cuda::run::card::Card;
use crate::backend::cuda::run::decoder::Decoder;
use crate::backend::cuda::run::ready::Way;
use crate::backend::{GoOn, GraphCheck, StepCheck, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::sampler;

/// Eager logits that are kept until the replays of the same tokens are compared.
const KEPT_BYTES: usize = 64 << 20;

/// Who runs a step.
#[derive(Clone, Copy)]
enum By<'a> {
    Launches(&'a [Launch]),
    Replay(Key),
}

/// What a step leaves behind, but for the cache.
struct Outcome {
    /// `[sequences][n_vocab]`
    logits: Vec<f32>,
    /// Of each sequence.
    states: Vec<[u32; 4]>,
}

fn go_on_or_end(go_on: GoOn<'_>) -> Result<()> {
    match go_on() {
        true => Ok(()),
        false => Err(Error::Cancelled),
    }
}

/// See [`crate::backend::Inspect::verify_graph`].
pub fn verify(
    backend: &mut CudaBackend,
    slots: &[usize],
    check: &GraphCheck,
    go_on: GoOn<'_>,
) -> Result<Vec<StepCheck>> {
    check.validate()?;
    backend.finish_queued()?;
    let keys = match &check.batch_sizes {
        None => backend.captured(),
        Some(sizes) => sizes
            .iter()
            .map(|size| captured_way(backend, *size))
            .collect::<Result<_>>()?,
    };
    if keys.is_empty() {
        return Err(Error::Argument {
            name: "graph.mode",
            value: "\"none\"".into(),
            reason: "no graphs are captured; load with \
                     graph=GraphOptions(mode=\"full\")"
                .into(),
        });
    }
    endless::start(&mut backend.decoder, slots)?;
    let verified = keys
        .into_iter()
        .map(|key| verify_step(backend, key, slots, check, go_on))
        .collect();
    endless::stop(&mut backend.decoder, slots, verified)
}

/// The captured step for batches of `size`.
fn captured_way(backend: &CudaBackend, size: usize) -> Result<Key> {
    let key = backend.dispatch.way(size);
    if key.way != Way::Eager {
        return Ok(key);
    }
    let sizes = backend.stats().now().batch_sizes;
    Err(Error::Argument {
        name: "batch_sizes",
        value: size.to_string(),
        reason: format!("not captured; captured sizes are {sizes:?}"),
    })
}

fn verify_step(
    backend: &mut CudaBackend,
    key: Key,
    slots: &[usize],
    check: &GraphCheck,
    go_on: GoOn<'_>,
) -> Result<StepCheck> {
    backend.prepare(key)?;
    let decoder = &mut backend.decoder;
    let launches = decoder.card.launches(decoder.specs(key)?)?;
    let slots = &slots[..slots.len().min(key.rows)];
    let mut found = StepCheck {
        kind: key.way.name(),
        batch_size: key.rows,
        sequences: slots.len(),
        steps: 0,
        logits: 0,
        logits_wrong: 0,
        max_difference: 0.0,
        kv_bytes: 0,
        kv_bytes_wrong: 0,
        states_wrong: 0,
        ok: true,
    };
    let step_bytes = slots.len() * decoder.n_vocab() * 4;
    let at_once = (KEPT_BYTES / step_bytes.max(1)).clamp(1, PAGE_TOKENS);
    let mut first = 0;
    while first < check.ids.len() {
        let steps = first..(first + at_once).min(check.ids.len());
        let pages = first / PAGE_TOKENS..steps.end.div_ceil(PAGE_TOKENS);
        let before = read_pages(&decoder.card, slots, pages.clone())?;
        let kept = read_states(&decoder.card, slots)?;
        let mut eager = Vec::new();
        for i in steps.clone() {
            go_on_or_end(go_on)?;
            eager.push(forced(
                decoder,
                slots,
                &check.ids,
                i,
                key.rows,
                By::Launches(&launches),
            )?);
        }
        let eager_kv = read_pages(&decoder.card, slots, 0..pages.end)?;
        let eager_states = read_states(&decoder.card, slots)?;
        for ((slot, bytes), state) in slots.iter().zip(&before).zip(&kept) {
            let card = &decoder.card;
            card.states.write(*slot, state, &card.stream)?;
            card.kv
                .write_pages(*slot, pages.clone(), bytes, &card.stream)?;
        }
        for (i, eager) in steps.clone().zip(&eager) {
            go_on_or_end(go_on)?;
            // A kernel that the graph lacks leaves this behind.
            decoder.card.poison()?;
            let replayed = forced(decoder, slots, &check.ids, i, key.rows, By::Replay(key))?;
            compare(&mut found, check, eager, &replayed);
        }
        let replayed_kv = read_pages(&decoder.card, slots, 0..pages.end)?;
        for (e, r) in eager_kv.iter().zip(&replayed_kv) {
            found.kv_bytes += e.len();
            found.kv_bytes_wrong += e.iter().zip(r).filter(|(e, r)| e != r).count();
        }
        let replayed = read_states(&decoder.card, slots)?;
        let bits = |state: &[f32]| state.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let both = eager_states.iter().zip(&replayed);
        found.states_wrong += both.filter(|(e, r)| bits(e) != bits(r)).count();
        first = steps.end;
    }
    let exact = found.kv_bytes_wrong == 0 && found.states_wrong == 0;
    found.ok = found.logits_wrong == 0 && (exact || !check.is_exact());
    Ok(found)
}

/// Runs the step at `position`, its sequences fed `ids` each from its own offset, so that no
/// two rows are alike.
fn forced(
    decoder: &mut Decoder,
    slots: &[usize],
    ids: &[u32],
    position: usize,
    rows: usize,
    by: By<'_>,
) -> Result<Outcome> {
    for (row, slot) in slots.iter().enumerate() {
        let token = ids[(position + row) % ids.len()];
        decoder
            .sampling
            .force(*slot, token, position, &decoder.card.stream)?;
    }
    let row_slots = slots.iter().map(|slot| *slot as u32).collect();
    decoder.set_row_slots(row_slots, rows)?;
    match by {
        By::Launches(launches) => run_all(launches, &decoder.card.stream)?,
        By::Replay(key) => decoder.run(key)?,
    }
    decoder.ring.pass_over(1);
    decoder.card.settle()?;
    let mut logits = vec![0.0; slots.len() * decoder.n_vocab()];
    decoder.read_logits(0, &mut logits)?;
    // What a replay makes of a buffer that it was to write is counted.
    if let By::Launches(_) = by {
        let mut failed = slots
            .iter()
            .filter_map(|slot| decoder.card.take_overflow(*slot, u64::MAX));
        failed.next().map_or(Ok(()), Err)?;
        sampler::check_rows(&logits, decoder.n_vocab())?;
    }
    let state = |slot: &usize| decoder.sampling.progress(*slot, &decoder.card.stream);
    Ok(Outcome {
        logits,
        states: slots.iter().map(state).collect::<Result<_>>()?,
    })
}

fn read_pages(card: &Card, slots: &[usize], pages: std::ops::Range<usize>) -> Result<Vec<Vec<u8>>> {
    let read = |slot: &usize| card.kv.read_pages(*slot, pages.clone(), &card.stream);
    slots.iter().map(read).collect()
}

/// What each slot keeps beside keys and values.
fn read_states(card: &Card, slots: &[usize]) -> Result<Vec<Vec<f32>>> {
    let read = |slot: &usize| card.states.read(*slot, &card.stream);
    slots.iter().map(read).collect()
}

/// Counts what differs.
fn compare(found: &mut StepCheck, check: &GraphCheck, eager: &Outcome, replayed: &Outcome) {
    found.steps += 1;
    for (e, r) in eager.logits.iter().zip(&replayed.logits) {
        found.logits += 1;
        found.logits_wrong += usize::from(!check.accepts(*e, *r));
        if e.to_bits() != r.to_bits() {
            let difference = (e - r).abs();
            let is_number = !difference.is_nan();
            let difference = if is_number { difference } else { f32::INFINITY };
            found.max_difference = found.max_difference.max(difference);
        }
    }
    let differ = eager.states.iter().zip(&replayed.states);
    found.states_wrong += differ.filter(|(e, r)| e != r).count();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_counted_and_how_far_it_is() {
        let check = GraphCheck {
            ids: vec![1],
            batch_sizes: None,
            rtol: 0.0,
            atol: 0.5,
        };
        let outcome = |logits: &[f32], token| Outcome {
            logits: logits.to_vec(),
            states: vec![[token, 1, 1, 1]],
        };
        let mut found = StepCheck {
            kind: "full",
            batch_size: 1,
            sequences: 1,
            steps: 0,
            logits: 0,
            logits_wrong: 0,
            max_difference: 0.0,
            kv_bytes: 0,
            kv_bytes_wrong: 0,
            states_wrong: 0,
            ok: true,
        };
        let eager = outcome(&[1.0, 2.0, -3.0], 7);
        compare(&mut found, &check, &eager, &outcome(&[1.0, 2.25, -3.0], 7));
        assert_eq!((found.steps, found.logits, found.logits_wrong), (1, 3, 0));
        assert_eq!((found.max_difference, found.states_wrong), (0.25, 0));
        compare(&mut found, &check, &eager, &outcome(&[1.0, 3.0, -3.0], 8));
        assert_eq!((found.logits_wrong, found.max_difference), (1, 1.0));
        assert_eq!(found.states_wrong, 1);
        // What a missing kernel leaves behind.
        compare(&mut found, &check, &eager, &outcome(&[f32::NAN; 3], 7));
        assert_eq!((found.steps, found.logits, found.logits_wrong), (3, 9, 4));
        assert_eq!(found.max_difference, f32::INFINITY);
    }
}
