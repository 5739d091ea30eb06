//! Constrained sequences of an engine: which tokens the next draws may choose, and which tokens are
//! forced.

use rayon::prelude::*;

use crate::error::Result;
use crate::grammar::Guide;
use crate::sampler::Allowed;

/// Tokens that have to be sure before it is worth to wait for the step that is under way and to verify
/// them all in the next: waiting costs a part of a step.
const WORTH_WAITING: usize = 3;

/// Follows a sequence that is constrained.
pub struct Constrained {
    guide: Box<Guide>,
    n_vocab: usize,
}

impl Constrained {
    /// Of a sequence that has no token yet.
    pub fn new(guide: Box<Guide>, n_vocab: usize) -> Self {
        Self { guide, n_vocab }
    }

    /// What the next draw may choose among.
    ///
    /// # Errors
    /// As [`Guide::allowed`].
    pub fn allowed(&mut self) -> Result<Allowed> {
        self.guide.allowed(self.n_vocab)
    }

    /// The same for each row of a step that verifies a draft, which is cut where it leaves what is
    /// allowed.
    ///
    /// # Errors
    /// As [`Guide::allowed`].
    pub fn allowed_along(&mut self, draft: &mut Vec<u32>) -> Result<Vec<Allowed>> {
        let mut sets = vec![self.allowed()?];
        for token in draft.iter() {
            let fits = sets.last().is_some_and(|set| set.contains(*token));
            if !fits || self.guide.is_end(*token) {
                break;
            }
            self.guide.take(*token)?;
            sets.push(self.allowed()?);
        }
        draft.truncate(sets.len() - 1);
        self.guide.back(draft.len())?;
        Ok(sets)
    }

    /// Up to `most` tokens that are sure to come. Where a step is under way (not `settled`) it draws the
    /// first of them, and the rest have to be worth waiting for it.
    pub fn forced(&mut self, most: usize, settled: bool) -> Vec<u32> {
        let mut forced = self.guide.forced();
        if !settled {
            forced.truncate(most.saturating_add(1));
            let worth = forced.len() >= WORTH_WAITING;
            forced.drain(..if worth { 1 } else { forced.len() });
        }
        forced.truncate(most);
        forced
    }

    /// Goes on by a token that was drawn.
    ///
    /// # Errors
    /// As [`Guide::take`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        self.guide.take(token)
    }
}

/// What the next draw of each may choose among: of many side by side, since their step does not wait.
pub fn all_allowed(due: Vec<(usize, &mut Constrained)>) -> Vec<(usize, Result<Allowed>)> {
    let allowed = |(slot, constrained): (usize, &mut Constrained)| (slot, constrained.allowed());
    match due.len() {
        0 | 1 => due.into_iter().map(allowed).collect(),
        _ => due.into_par_iter().map(allowed).collect(),
    }
}
