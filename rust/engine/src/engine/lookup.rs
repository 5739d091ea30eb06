//! Drafts from a sequence's own text: what followed an earlier occurrence of its last tokens is likely to
//! follow them again, as in edited code, quoted text and lists. A draft affects only the time: a step
//! verifies it.
//!
//! An index maps each run of tokens to where it last ended, and costs a lookup and two entries per token;
//! it never has more than twice as many entries as the context has tokens.

use std::collections::HashMap;
use std::hash::Hash;

/// Most tokens of a draft.
pub const MOST_DRAFTED: usize = 31;

/// Tokens that are compared: a longer run says more, and where it is new a shorter one still says
/// something.
const LONG: usize = 4;
const SHORT: usize = 2;

/// Tokens taken into the index at a time: others wait.
const READ_AT_ONCE: usize = 16_384;

/// Doublings of how long nothing is drafted while drafts are wrong.
const MOST_DOUBLINGS: u32 = 6;

/// What is taken for known of a text before the first draft: of so many tokens, so many were right.
const FIRST_TRIED: f32 = 2.0;
const FIRST_RIGHT: f32 = 1.6;

/// What a round counts for the next, against that one: a text is one moment a copy and new the next.
const FADE: f32 = 0.8;

/// The tokens of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    pub prompt: &'a [u32],
    pub drawn: &'a [u32],
}

impl Text<'_> {
    /// All of them.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.drawn.len()
    }

    fn get(&self, at: usize) -> Option<u32> {
        let behind = at.checked_sub(self.prompt.len());
        behind
            .map_or(self.prompt.get(at), |at| self.drawn.get(at))
            .copied()
    }

    /// The `N` tokens before `end`.
    fn before<const N: usize>(&self, end: usize) -> Option<[u32; N]> {
        let first = end.checked_sub(N)?;
        let mut run = [0; N];
        for (at, token) in (first..).zip(&mut run) {
            *token = self.get(at)?;
        }
        Some(run)
    }
}

/// Where runs ended last. One that there is no memory for is left out: it is not drafted from.
fn note<Run: Hash + Eq>(ends: &mut HashMap<Run, u32>, run: Option<Run>, end: usize) {
    if let (Some(run), Ok(end), Ok(())) = (run, u32::try_from(end), ends.try_reserve(1)) {
        ends.insert(run, end);
    }
}

/// How often drafts from runs of one length are right.
#[derive(Debug, Clone, Copy)]
struct Odds {
    /// Tokens behind right ones, and those of them that were right, the last ones counting most.
    tried: f32,
    right: f32,
    /// Drafts in a row that were all wrong.
    misses: u32,
    /// Where it is not worth a row, none is tried before the text has so many tokens.
    rests_until: usize,
}

impl Odds {
    const NEW: Self = Self {
        tried: FIRST_TRIED,
        right: FIRST_RIGHT,
        misses: 0,
        rests_until: 0,
    };

    /// Tokens of the next draft behind `tokens` of text, up to `most`: as long as the chance that all
    /// are right is no less than a row's `cost`, or once in a while one, to see.
    fn length(&self, cost: f32, most: usize, tokens: usize) -> usize {
        let chance = self.right / self.tried;
        let chances = std::iter::successors(Some(chance), |all| Some(all * chance));
        let worth = chances.take(most).take_while(|all| *all >= cost).count();
        match worth {
            0 if tokens >= self.rests_until => most.min(1),
            worth => worth,
        }
    }

    /// Takes in what became of a draft; the text has `tokens` now.
    fn note(&mut self, drafted: usize, accepted: usize, tokens: usize) {
        self.tried = FADE * self.tried + drafted.min(accepted + 1) as f32;
        self.right = FADE * self.right + accepted as f32;
        self.misses = match accepted {
            0 => (self.misses + 1).min(MOST_DOUBLINGS),
            _ => 0,
        };
        self.rests_until = tokens + ((1 << self.misses) / 2usize).saturating_sub(1);
    }
}

/// A draft under way.
#[derive(Debug, Clone, Copy)]
struct Round {
    is_long: bool,
    drafted: usize,
    drawn: usize,
}

/// What drafts for one sequence.
#[derive(Debug)]
pub struct Lookup {
    /// Most tokens of a draft.
    most: usize,
    /// What a row costs, of a step of one row.
    row_cost: f32,
    /// Of drafts from short runs and from long ones.
    odds: [Odds; 2],
    round: Option<Round>,
    /// Tokens whose runs are in the index.
    read: usize,
    long: HashMap<[u32; LONG], u32>,
    short: HashMap<[u32; SHORT], u32>,
}

impl Lookup {
    /// For drafts of up to `most` tokens, each a row that costs so much of a step of one row.
    pub fn new(most: usize, row_cost: f32) -> Self {
        Self {
            most,
            row_cost,
            odds: [Odds::NEW; 2],
            round: None,
            read: 0,
            long: HashMap::new(),
            short: HashMap::new(),
        }
    }

    /// What may follow `text`, up to `most` tokens; nothing where its end is new, or no draft was worth it
    /// of late. One that `begins` a step is judged by what is drawn in it.
    pub fn draft(&mut self, text: &Text<'_>, most: usize, begins: bool) -> Vec<u32> {
        if begins {
            self.judge(text.len());
        }
        if !self.read(text) {
            return Vec::new();
        }
        let Some((from, is_long)) = self.find(text) else {
            return Vec::new();
        };
        let odds = &self.odds[usize::from(is_long)];
        let length = odds.length(self.row_cost, most.min(self.most), text.len());
        let mut tokens: Vec<u32> = Vec::with_capacity(length);
        for at in from..from + length {
            // A text that repeats itself goes on in what is drafted.
            let drafted = || tokens.get(at - text.len()).copied();
            match text.get(at).or_else(drafted) {
                Some(token) => tokens.push(token),
                None => break,
            }
        }
        if begins && !tokens.is_empty() {
            self.round = Some(Round {
                is_long,
                drafted: tokens.len(),
                drawn: 0,
            });
        }
        tokens
    }

    /// Is told of a token that was drawn; says whether it had been drafted.
    pub fn was_drafted(&mut self) -> bool {
        let Some(round) = &mut self.round else {
            return false;
        };
        round.drawn += 1;
        // The first is what a step without a draft gives.
        round.drawn > 1
    }

    /// Where the end of `text` stood before, the longer run first, and whether it is that.
    fn find(&self, text: &Text<'_>) -> Option<(usize, bool)> {
        let end = text.len();
        let long = text.before(end).and_then(|run| self.long.get(&run));
        let short = || text.before(end).and_then(|run| self.short.get(&run));
        let is_long = long.is_some();
        long.or_else(short).map(|end| (*end as usize, is_long))
    }

    /// Takes more of `text` into the index; says whether it has all of it.
    fn read(&mut self, text: &Text<'_>) -> bool {
        let end = text.len().min(self.read + READ_AT_ONCE);
        // A run counts once a token follows it.
        for at in self.read..end {
            note(&mut self.long, text.before(at), at);
            note(&mut self.short, text.before(at), at);
        }
        self.read = end;
        end == text.len()
    }

    /// Learns from the round that is over.
    fn judge(&mut self, tokens: usize) {
        if let Some(round) = self.round.take() {
            let accepted = round.drawn.saturating_sub(1).min(round.drafted);
            let odds = &mut self.odds[usize::from(round.is_long)];
            odds.note(round.drafted, accepted, tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(prompt: &[u32]) -> Text<'_> {
        Text { prompt, drawn: &[] }
    }

    #[test]
    fn what_followed_the_end_of_the_text_is_drafted() {
        let draft = |tokens: &[u32], most| Lookup::new(8, 0.1).draft(&text(tokens), most, true);
        let prompt = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4];
        assert_eq!(draft(&prompt, 3), [5, 6, 7]);
        // What follows the last place; of a short run where the long one is new.
        assert_eq!(draft(&[3, 4, 8, 3, 4, 9, 0, 3, 4], 2), [9, 0]);
        // The longer run goes first, though the shorter one stood later.
        assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 3, 4, 6, 1, 2, 3, 4], 1), [5]);
        for nothing in [&[][..], &[1], &[1, 2], &[1, 2, 3, 4, 5], &[1, 1]] {
            assert!(draft(nothing, 4).is_empty(), "{nothing:?}");
        }
        assert!(draft(&prompt, 0).is_empty());
        // A text that repeats itself: beyond its end too.
        assert_eq!(draft(&[7, 8, 9, 7, 8, 9, 7, 8], 7), [9, 7, 8, 9, 7, 8, 9]);
        assert_eq!(draft(&[5, 5, 5], 4), [5; 4]);
    }

    #[test]
    fn drafts_that_are_wrong_get_shorter_and_rarer_and_come_back() {
        let mut lookup = Lookup::new(8, 0.1);
        let mut tokens: Vec<u32> = (0..20).chain(0..10).collect();
        let mut lengths = Vec::new();
        // Always wrong: the text goes on as if the first 20 tokens were other ones.
        for i in 0..40 {
            let drafted = lookup.draft(&text(&tokens), 8, true);
            lengths.push(drafted.len());
            assert!(!lookup.was_drafted(), "the first token is nobody's draft");
            tokens.extend([1000 + i, 3, 4]);
        }
        let tries = lengths.iter().filter(|n| **n > 0).count();
        assert!((5..20).contains(&tries), "{lengths:?}");
        assert_eq!(lengths[0], 8);
        let tried: Vec<usize> = lengths.into_iter().filter(|n| *n > 0).collect();
        assert!(tried.is_sorted_by(|a, b| a >= b), "{tried:?}");
        assert_eq!(tried.last(), Some(&1));
        // Always right: as long as may be again, before long.
        let mut lengths = Vec::new();
        for _ in 0..40 {
            tokens.extend([3, 4]);
            let drafted = lookup.draft(&text(&tokens), 8, true);
            let right = (0..=drafted.len()).filter(|_| lookup.was_drafted());
            assert_eq!(right.count(), drafted.len());
            lengths.push(drafted.len());
        }
        assert_eq!(lengths[39], 8, "{lengths:?}");
    }

    #[test]
    fn a_row_that_costs_more_is_drafted_where_it_is_likelier() {
        let tokens: Vec<u32> = (0..20).chain(0..10).collect();
        let lengths = [0.02, 0.1, 0.5, 0.7, 0.9].map(|cost| {
            let mut lookup = Lookup::new(31, cost);
            lookup.draft(&text(&tokens), 31, true).len()
        });
        // Of a text that nothing is known of four tokens in five are taken to be right.
        assert_eq!(lengths, [17, 10, 3, 1, 1]);
    }

    #[test]
    fn a_long_text_is_read_in_parts() {
        let tokens: Vec<u32> = (0..40_000).map(|i| i % 30_000).collect();
        let mut lookup = Lookup::new(4, 0.1);
        let drafts = [0, 1, 2, 3].map(|_| lookup.draft(&text(&tokens), 4, true));
        assert!(drafts[..2].iter().all(Vec::is_empty));
        assert_eq!(drafts[2], [10_000, 10_001, 10_002, 10_003]);
    }

    proptest! {
        /// Whatever the text: what is drafted stood behind the same tokens before, and the index has no
        /// more entries than the text has tokens.
        #[test]
        fn a_draft_is_a_part_of_the_text(
            prompt in prop::collection::vec(0u32..4, 0..30),
            drawn in prop::collection::vec(0u32..4, 0..60),
            most in 1usize..9,
        ) {
            let mut lookup = Lookup::new(most, 0.1);
            for n in 0..=drawn.len() {
                let text = Text { prompt: &prompt, drawn: &drawn[..n] };
                let all = [&prompt[..], &drawn[..n]].concat();
                // Only asked, so that it never rests.
                let tokens = lookup.draft(&text, most, false);
                let ends: Vec<usize> = (SHORT..all.len())
                    .filter(|end| all[end - SHORT..*end] == all[all.len() - SHORT..])
                    .collect();
                prop_assert_eq!(tokens.is_empty(), ends.is_empty());
                let whole = [&all[..], &tokens[..]].concat();
                let stood = |end: &usize| whole[*end..].starts_with(&tokens);
                prop_assert!(tokens.is_empty() || ends.iter().any(stood));
                prop_assert!(lookup.long.len() <= all.len() && lookup.short.len() <= all.len());
            }
        }
    }
}
