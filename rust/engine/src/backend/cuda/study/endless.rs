//! Greedy sequences without an end, for measuring steps.

use crate::backend::cuda::run::decoder::Decoder;
use crate::backend::SlotRequest;
use crate::error::Result;
use crate::sampler::Params;

/// Readies `slots` for such sequences. States are zeros: a step in the middle of a text that there never
/// was would find what no token left.
pub fn start(decoder: &mut Decoder, slots: &[usize]) -> Result<()> {
    let request = SlotRequest {
        sampling: Params {
            temperature: 0.0,
            ..Params::default()
        },
        prompt: Vec::new(),
        stop_tokens: Vec::new(),
        max_tokens: usize::MAX,
        constrained: false,
    };
    let Decoder { sampling, card, .. } = decoder;
    slots.iter().try_for_each(|slot| {
        card.states.clear(*slot, &card.stream)?;
        sampling.start(*slot, &request, &card.stream)
    })
}

/// Ends the sequences of `slots`, whatever came of them; the first error counts.
pub fn stop<T>(decoder: &mut Decoder, slots: &[usize], outcome: Result<T>) -> Result<T> {
    let Decoder { sampling, card, .. } = decoder;
    let stopped = slots
        .iter()
        .try_for_each(|slot| sampling.stop(*slot, &card.stream));
    outcome.and_then(|outcome| stopped.map(|()| outcome))
}
