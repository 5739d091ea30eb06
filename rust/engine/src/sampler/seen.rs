//! The tokens that penalties look at, and how often each of them was generated. A card keeps the
//! same numbers in its own memory and changes them in the same way: `count` in sample.cu.

use std::collections::VecDeque;

use super::{no_room, room};
use crate::error::Result;

/// In a count of how often a token was generated: it stands in the prompt too.
const IN_PROMPT: u32 = 1 << 31;

/// The entry of a prompt's token that stands in the prompt again: it leaves without a change.
const REPEATED: u32 = u32::MAX;

/// Marks the tokens of `prompt` in `counts`, `[n_vocab]`, and gives each an entry, which says what
/// changes once it leaves the window: the token with [`IN_PROMPT`] where it stands in the prompt for
/// the last time, [`REPEATED`] before. The entry of a generated token is the token.
///
/// # Errors
/// [`crate::Error::Memory`].
pub(crate) fn mark(counts: &mut [u32], prompt: &[u32]) -> Result<Vec<u32>> {
    let mut entries = room(prompt.len())?;
    entries.resize(prompt.len(), REPEATED);
    for (entry, id) in entries.iter_mut().zip(prompt).rev() {
        if let Some(count) = counts.get_mut(*id as usize).filter(|count| **count == 0) {
            *count = IN_PROMPT;
            *entry = id | IN_PROMPT;
        }
    }
    Ok(entries)
}

/// What stands in the window of a sequence.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Tokens that the window holds; `None`: the whole sequence.
    window: Option<usize>,
    /// For each token how often it was generated, and [`IN_PROMPT`]; empty where nothing penalizes.
    counts: Vec<u32>,
    /// The tokens whose count is not zero.
    ids: Vec<u32>,
    /// The window's, the oldest first, see [`mark`]; empty where it is the whole sequence.
    entries: VecDeque<u32>,
}

impl Seen {
    /// The last `window` tokens of `prompt`, or all.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(window: Option<usize>, n_vocab: usize, prompt: &[u32]) -> Result<Self> {
        let mut counts = room(n_vocab)?;
        counts.resize(n_vocab, 0);
        let entries = mark(&mut counts, in_window(window, prompt))?;
        let last = entries.iter().filter(|entry| **entry != REPEATED);
        let mut ids = room(last.clone().count())?;
        ids.extend(last.map(|entry| entry & !IN_PROMPT));
        Ok(Self {
            window,
            counts,
            ids,
            entries: window.map(|_| entries.into()).unwrap_or_default(),
        })
    }

    /// Takes in a generated token; the oldest of a full window leaves.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn note(&mut self, id: u32) -> Result<()> {
        if self.counts.get(id as usize).is_none() {
            return Ok(());
        }
        if let Some(window) = self.window {
            if self.entries.len() >= window {
                self.forget();
            }
            self.entries.try_reserve(1).map_err(|_| no_room::<u32>(1))?;
            self.entries.push_back(id);
        }
        let count = &mut self.counts[id as usize];
        if *count == 0 {
            self.ids.try_reserve(1).map_err(|_| no_room::<u32>(1))?;
            self.ids.push(id);
        }
        *count += 1;
        Ok(())
    }

    /// The oldest entry leaves.
    fn forget(&mut self) {
        let entry = self.entries.pop_front().unwrap_or(REPEATED);
        let id = entry & !IN_PROMPT;
        let Some(count) = self.counts.get_mut(id as usize) else {
            return;
        };
        match entry & IN_PROMPT {
            0 => *count -= 1,
            _ => *count &= !IN_PROMPT,
        }
        if *count == 0 {
            self.ids.retain(|seen| *seen != id);
        }
    }

    /// Whether there is nothing to penalize.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The tokens in the window, each once, and how often each was generated there.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let generated = |id: &u32| (*id, self.counts[*id as usize] & !IN_PROMPT);
        self.ids.iter().map(generated)
    }
}

/// Those of the tokens of a sequence that a window holds.
pub(crate) fn in_window(window: Option<usize>, tokens: &[u32]) -> &[u32] {
    let before = window.map_or(0, |n| tokens.len().saturating_sub(n));
    &tokens[before..]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// What a window holds, counted anew: generated tokens, and those of the prompt as zero.
    fn counted(window: Option<usize>, prompt: &[u32], generated: &[u32]) -> BTreeMap<u32, u32> {
        let all: Vec<(u32, u32)> = prompt
            .iter()
            .map(|id| (*id, 0))
            .chain(generated.iter().map(|id| (*id, 1)))
            .collect();
        let mut found = BTreeMap::new();
        for (id, n) in all.iter().rev().take(window.unwrap_or(usize::MAX)) {
            *found.entry(*id).or_default() += n;
        }
        found
    }

    proptest! {
        #[test]
        fn a_window_holds_the_last_tokens_and_counts_the_generated_ones(
            window in prop_oneof![
                Just(None),
                prop::sample::select(vec![1, 2, 3, 64, usize::MAX]).prop_map(Some),
                (1usize..20).prop_map(Some),
            ],
            prompt in prop::collection::vec(0u32..6, 0..20),
            generated in prop::collection::vec(0u32..6, 0..90),
        ) {
            let mut seen = Seen::new(window, 6, &prompt).unwrap();
            for n in 0..=generated.len() {
                if n > 0 {
                    seen.note(generated[n - 1]).unwrap();
                }
                let expected = counted(window, &prompt, &generated[..n]);
                let ids: BTreeSet<u32> = seen.iter().map(|(id, _)| id).collect();
                prop_assert_eq!(ids.len(), seen.ids.len(), "a token stands there twice");
                prop_assert_eq!(seen.iter().collect::<BTreeMap<_, _>>(), expected);
                prop_assert_eq!(seen.is_empty(), ids.is_empty());
                prop_assert!(seen.entries.len() <= window.unwrap_or(0));
            }
        }
    }

    #[test]
    fn a_token_of_no_vocabulary_counts_as_none() {
        let mut seen = Seen::new(Some(2), 4, &[7, 1, u32::MAX]).unwrap();
        assert_eq!(seen.iter().collect::<Vec<_>>(), [(1, 0)]);
        seen.note(2).unwrap();
        assert_eq!(seen.iter().collect::<Vec<_>>(), [(2, 1)]);
        // As it is where nothing penalizes.
        let mut none = Seen::default();
        none.note(3).unwrap();
        assert!(none.is_empty());
    }
}
