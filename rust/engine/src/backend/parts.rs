//! Parts of prompts (chunked prefill), and how passes take them.

use std::collections::VecDeque;

use super::{Event, Finish};
use crate::error::{Error, Kind, Result};

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub slot: usize,
    pub tokens: &'a [u32],
    /// The position of the first.
    pub start: usize,
    /// Whether the prompt ends with it: the first token is drawn and the slot decodes from then on.
    pub last: bool,
}

/// Parts that are still to be fed, in order.
pub(super) type Rest<'a> = VecDeque<Part<'a>>;

/// Takes up to `room` tokens from the front of `rest`.
pub(super) fn take<'a>(rest: &mut Rest<'a>, mut room: usize) -> Vec<Part<'a>> {
    let mut taken = Vec::new();
    while let Some(part) = rest.pop_front() {
        let (now, later) = part.tokens.split_at(room.min(part.tokens.len()));
        room -= now.len();
        let is_cut = !later.is_empty();
        if !now.is_empty() {
            taken.push(Part {
                tokens: now,
                last: part.last && !is_cut,
                ..part
            });
        }
        if is_cut {
            rest.push_front(Part {
                tokens: later,
                start: part.start + now.len(),
                ..part
            });
            break;
        }
    }
    taken
}

/// Refuses tokens that are not in the vocabulary.
///
/// # Errors
/// [`Error::Argument`].
pub(super) fn check_tokens(tokens: &[u32], n_vocab: usize) -> Result<()> {
    match tokens.iter().find(|token| **token as usize >= n_vocab) {
        None => Ok(()),
        Some(token) => Err(Error::Argument {
            name: "token",
            value: token.to_string(),
            reason: format!("the vocabulary has {n_vocab} tokens"),
        }),
    }
}

/// The parts whose tokens are in the vocabulary, and the slots of the others, each with why.
pub(super) fn known<'a>(parts: &[Part<'a>], n_vocab: usize) -> (Rest<'a>, Vec<(usize, Error)>) {
    let (mut rest, mut refused) = (Rest::new(), Vec::new());
    for part in parts {
        match check_tokens(part.tokens, n_vocab) {
            Ok(()) => rest.push_back(*part),
            Err(e) => refused.push((part.slot, e)),
        }
    }
    (rest, refused)
}

/// Takes out why the model's numbers ended sequences of `slots` at the first token behind their prompts:
/// said of the prompt, nothing of it is kept for others.
pub(super) fn take_failed(events: &mut Vec<Event>, slots: &[usize]) -> Vec<(usize, Error)> {
    let mut failed = Vec::new();
    events.retain(|event| match &event.finish {
        Some(Finish::Failed(e)) if e.kind() == Kind::Model && slots.contains(&event.slot) => {
            failed.push((event.slot, e.clone()));
            false
        }
        _ => true,
    });
    failed
}

/// The error of a step that was to be a part of a pass over prompts and may not be one.
pub(super) fn no_step_beside(sequences: usize, is_settled: bool) -> Error {
    Error::Internal(format!(
        "a step of {sequences} sequences beside prompts, settled: {is_settled}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However passes cut them: every token once, in order, and a prompt ends where it ended.
        #[test]
        fn passes_take_every_token_once(
            lengths in prop::collection::vec(1..40usize, 0..6),
            rooms in prop::collection::vec(1..30usize, 1..60),
        ) {
            let tokens: Vec<u32> = (0..40).collect();
            let parts: Vec<Part<'_>> = lengths
                .iter()
                .enumerate()
                .map(|(slot, n)| Part { slot, tokens: &tokens[..*n], start: 7, last: slot % 2 == 0 })
                .collect();
            let mut rest: Rest<'_> = parts.iter().copied().collect();
            let mut fed = vec![Vec::<u32>::new(); parts.len()];
            let mut ended = Vec::new();
            for room in rooms {
                let before: usize = rest.iter().map(|part| part.tokens.len()).sum();
                let taken = take(&mut rest, room);
                let n: usize = taken.iter().map(|part| part.tokens.len()).sum();
                prop_assert_eq!(n, room.min(before));
                for part in taken {
                    prop_assert!(!part.tokens.is_empty());
                    prop_assert_eq!(part.start, 7 + fed[part.slot].len());
                    fed[part.slot].extend(part.tokens);
                    ended.extend(part.last.then_some(part.slot));
                }
            }
            for part in rest {
                prop_assert_eq!(part.start, 7 + fed[part.slot].len());
                fed[part.slot].extend(part.tokens);
                ended.extend(part.last.then_some(part.slot));
            }
            for part in &parts {
                prop_assert_eq!(&fed[part.slot], part.tokens);
                prop_assert_eq!(ended.contains(&part.slot), part.last);
            }
        }
    }
}
