//! Graph against eager: a captured step and the same step launched kernel by kernel, from the same
//! state, on the same tokens.

use super::backend::CudaBackend;
use super::dispatch::{StepKey, Way};
use super::launch::{run_all, Launch};
use crate::backend::{GoOn, GraphCheck, SlotRequest, StepCheck, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::BufferId;
use crate::sampler::Params;

/// Eager logits that are kept until the replays of the same tokens are compared.
const KEPT_BYTES: usize = 64 << 20;

/// Who runs a step.
#[derive(Clone, Copy)]
enum By<'a> {
    Launches(&'a [Launch]),
    Replay(StepKey),
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

impl CudaBackend {
    /// See [`crate::backend::Backend::verify_graph`].
    pub(super) fn verify(
        &mut self,
        slots: &[usize],
        check: &GraphCheck,
        go_on: GoOn<'_>,
    ) -> Result<Vec<StepCheck>> {
        check.validate()?;
        self.finish_queued()?;
        let keys = match &check.batch_sizes {
            None => self.steps.captured(),
            Some(sizes) => sizes
                .iter()
                .map(|size| self.captured_way(*size))
                .collect::<Result<_>>()?,
        };
        if keys.is_empty() {
            return Err(Error::Argument {
                name: "cuda_graph",
                value: "\"none\"".into(),
                reason: "nothing is captured, so there is nothing to compare; load with \
                         cuda_graph=\"full\""
                    .into(),
            });
        }
        self.start_endless(slots)?;
        let verified = keys
            .into_iter()
            .map(|key| self.verify_step(key, slots, check, go_on))
            .collect();
        self.stop_all(slots, verified)
    }

    /// Readies `slots` for sequences that are greedy and never at their end.
    pub(super) fn start_endless(&mut self, slots: &[usize]) -> Result<()> {
        let request = SlotRequest {
            sampling: Params {
                temperature: 0.0,
                ..Params::default()
            },
            prompt: Vec::new(),
            stop_tokens: Vec::new(),
            max_tokens: usize::MAX,
        };
        let stream = &self.model.stream;
        slots
            .iter()
            .try_for_each(|slot| self.sampling.start(*slot, &request, stream))
    }

    /// Ends the sequences of `slots`, whatever came of them; the first error counts.
    pub(super) fn stop_all<T>(&mut self, slots: &[usize], outcome: Result<T>) -> Result<T> {
        let stream = &self.model.stream;
        let stopped = slots
            .iter()
            .try_for_each(|s| self.sampling.stop(*s, stream));
        outcome.and_then(|outcome| stopped.map(|()| outcome))
    }

    /// The captured step for batches of `size`.
    fn captured_way(&self, size: usize) -> Result<StepKey> {
        let key = self.steps.way(size);
        if key.way != Way::Eager {
            return Ok(key);
        }
        let sizes = self.steps.stats().now().batch_sizes;
        Err(Error::Argument {
            name: "batch_sizes",
            value: size.to_string(),
            reason: format!("steps of this size are not captured; those of {sizes:?} are"),
        })
    }

    fn verify_step(
        &mut self,
        key: StepKey,
        slots: &[usize],
        check: &GraphCheck,
        go_on: GoOn<'_>,
    ) -> Result<StepCheck> {
        self.prepare(key)?;
        let launches = self.model.compile(self.step_specs(key.rows)?)?;
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
        let step_bytes = slots.len() * self.limits.n_vocab * 4;
        let at_once = (KEPT_BYTES / step_bytes.max(1)).clamp(1, PAGE_TOKENS);
        let mut first = 0;
        while first < check.ids.len() {
            let steps = first..(first + at_once).min(check.ids.len());
            let pages = first / PAGE_TOKENS..steps.end.div_ceil(PAGE_TOKENS);
            let before = self.read_pages(slots, pages.clone())?;
            let mut eager = Vec::new();
            for i in steps.clone() {
                go_on_or_end(go_on)?;
                eager.push(self.forced(slots, &check.ids, i, key.rows, By::Launches(&launches))?);
            }
            let eager_kv = self.read_pages(slots, 0..pages.end)?;
            for (slot, bytes) in slots.iter().zip(&before) {
                let kv = &self.model.kv;
                kv.write_pages(*slot, pages.clone(), bytes, &self.model.stream)?;
            }
            for (i, eager) in steps.clone().zip(&eager) {
                go_on_or_end(go_on)?;
                // A kernel that the graph lacks leaves this behind.
                self.poison()?;
                let replayed = self.forced(slots, &check.ids, i, key.rows, By::Replay(key))?;
                found.compare(check, eager, &replayed);
            }
            let replayed_kv = self.read_pages(slots, 0..pages.end)?;
            for (e, r) in eager_kv.iter().zip(&replayed_kv) {
                found.kv_bytes += e.len();
                found.kv_bytes_wrong += e.iter().zip(r).filter(|(e, r)| e != r).count();
            }
            first = steps.end;
        }
        let exact = found.kv_bytes_wrong == 0 && found.states_wrong == 0;
        found.ok = found.logits_wrong == 0 && (exact || !check.is_exact());
        Ok(found)
    }

    /// Runs the step at `position`, its sequences fed `ids` in turns that differ by one, so that no
    /// two rows are alike.
    fn forced(
        &mut self,
        slots: &[usize],
        ids: &[u32],
        position: usize,
        rows: usize,
        by: By<'_>,
    ) -> Result<Outcome> {
        for (row, slot) in slots.iter().enumerate() {
            let token = ids[(position + row) % ids.len()];
            self.sampling
                .force(*slot, token, position, &self.model.stream)?;
        }
        let row_slots = slots.iter().map(|slot| *slot as u32).collect();
        self.set_row_slots(row_slots, rows)?;
        match by {
            By::Launches(launches) => run_all(launches, &self.model.stream)?,
            By::Replay(key) => self.run_step(key)?,
        }
        self.next_number();
        self.settle()?;
        let mut logits = vec![0.0; slots.len() * self.limits.n_vocab];
        let buffer = self.model.buffer(self.model.plan.logits);
        buffer.read(0, &mut logits, &self.model.stream)?;
        let state = |slot: &usize| self.sampling.progress(*slot, &self.model.stream);
        Ok(Outcome {
            logits,
            states: slots.iter().map(state).collect::<Result<_>>()?,
        })
    }

    /// Makes every activation not-a-number.
    fn poison(&self) -> Result<()> {
        let stream = &self.model.stream;
        for id in 0..self.model.plan.buffers.len() {
            self.model.buffer(BufferId(id)).fill(0xff, stream)?;
        }
        self.model.partial.fill(0xff, stream)
    }

    fn read_pages(&self, slots: &[usize], pages: std::ops::Range<usize>) -> Result<Vec<Vec<u8>>> {
        let (kv, stream) = (&self.model.kv, &self.model.stream);
        slots
            .iter()
            .map(|slot| kv.read_pages(*slot, pages.clone(), stream))
            .collect()
    }
}

impl StepCheck {
    fn compare(&mut self, check: &GraphCheck, eager: &Outcome, replayed: &Outcome) {
        self.steps += 1;
        for (e, r) in eager.logits.iter().zip(&replayed.logits) {
            self.logits += 1;
            self.logits_wrong += usize::from(!check.accepts(*e, *r));
            if e.to_bits() != r.to_bits() {
                let difference = (e - r).abs();
                let is_number = !difference.is_nan();
                let difference = if is_number { difference } else { f32::INFINITY };
                self.max_difference = self.max_difference.max(difference);
            }
        }
        let differ = eager.states.iter().zip(&replayed.states);
        self.states_wrong += differ.filter(|(e, r)| e != r).count();
    }
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
        found.compare(&check, &eager, &outcome(&[1.0, 2.25, -3.0], 7));
        assert_eq!((found.steps, found.logits, found.logits_wrong), (1, 3, 0));
        assert_eq!((found.max_difference, found.states_wrong), (0.25, 0));
        found.compare(&check, &eager, &outcome(&[1.0, 3.0, -3.0], 8));
        assert_eq!((found.logits_wrong, found.max_difference), (1, 1.0));
        assert_eq!(found.states_wrong, 1);
        // What a missing kernel leaves behind.
        found.compare(&check, &eager, &outcome(&[f32::NAN; 3], 7));
        assert_eq!((found.steps, found.logits, found.logits_wrong), (3, 9, 4));
        assert_eq!(found.max_difference, f32::INFINITY);
    }
}
