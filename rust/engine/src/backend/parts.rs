//! Chunks of prompts (chunked prefill), and how passes include them.

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
    /// The token behind it; none where it is to be drawn, or nobody knows it yet.
    pub next: Option<u32>,
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
                next: later.first().copied().or(part.next),
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

/// A part of a text whose hidden states are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPart<'a> {
    pub slot: usize,
    pub tokens: &'a [u32],
    /// The position of the first.
    pub start: usize,
    /// How many of the last tokens' states are wanted.
    pub wanted: usize,
    /// The position from which on tokens are of the second text of a pair.
    pub second: usize,
}

impl TextPart<'_> {
    /// Which text of a pair each token is of.
    pub(super) fn types(&self) -> impl Iterator<Item = u32> {
        let positions = (self.start..).take(self.tokens.len());
        let second = self.second;
        positions.map(move |position| u32::from(position >= second))
    }
}

/// The passes that parts of texts take, of up to `room` rows each; beside each piece, whose it is. A text
/// that must be `whole` is in one pass.
pub(super) fn passes<'a>(
    parts: &[TextPart<'a>],
    room: usize,
    whole: bool,
) -> Vec<Vec<(usize, TextPart<'a>)>> {
    let mut passes: Vec<Vec<(usize, TextPart<'a>)>> = Vec::new();
    let mut left = 0;
    for (i, part) in parts.iter().enumerate() {
        let mut rest = *part;
        while !rest.tokens.is_empty() {
            let n = rest.tokens.len();
            if left == 0 || whole && left < n {
                passes.push(Vec::new());
                left = room.max(1);
            }
            let (now, later) = rest.tokens.split_at(if whole { n } else { n.min(left) });
            let piece = TextPart {
                tokens: now,
                wanted: rest.wanted.saturating_sub(later.len()),
                ..rest
            };
            left = left.saturating_sub(now.len());
            passes
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|pass| pass.push((i, piece)));
            rest = TextPart {
                tokens: later,
                start: rest.start + now.len(),
                wanted: rest.wanted.min(later.len()),
                ..rest
            };
        }
    }
    passes
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
        /// However passes cut them: every token once, in order, and its state where it is wanted.
        #[test]
        fn passes_take_every_text(
            lengths in prop::collection::vec((0..40usize, 0..40usize), 0..6),
            room in 1..50usize,
            whole in any::<bool>(),
        ) {
            let tokens: Vec<u32> = (0..40).collect();
            let of = |(slot, (n, wanted)): (usize, &(usize, usize))| TextPart {
                slot,
                tokens: &tokens[..*n],
                start: 7,
                wanted: *wanted.min(n),
                second: usize::MAX,
            };
            let parts: Vec<_> = lengths.iter().enumerate().map(of).collect();
            let mut fed = vec![(Vec::<u32>::new(), Vec::<u32>::new()); parts.len()];
            for pass in passes(&parts, room, whole) {
                let rows: usize = pass.iter().map(|(_, piece)| piece.tokens.len()).sum();
                prop_assert!(rows > 0 && (rows <= room || whole && pass.len() == 1));
                for (i, piece) in pass {
                    let (its, states) = &mut fed[i];
                    prop_assert_eq!((piece.slot, piece.start), (i, 7 + its.len()));
                    its.extend(piece.tokens);
                    states.extend(&piece.tokens[piece.tokens.len() - piece.wanted..]);
                    prop_assert!(!whole || piece.tokens == parts[i].tokens);
                }
            }
            for (part, (its, states)) in parts.iter().zip(fed) {
                prop_assert_eq!(&its, part.tokens);
                prop_assert_eq!(&states, &part.tokens[part.tokens.len() - part.wanted..]);
            }
        }

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
                .map(|(slot, n)| Part {
                    slot,
                    tokens: &tokens[..*n],
                    start: 7,
                    last: slot % 2 == 0,
                    next: None,
                })
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
                    let behind = parts[part.slot].tokens.get(fed[part.slot].len());
                    prop_assert_eq!(part.next, behind.copied());
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
