//! Looks at the backend between two steps.

use std::sync::atomic::AtomicBool;

use super::{Look, Owner, Sequence};
use crate::error::Result;

impl Owner {
    /// Has as many `sequences` as there is room for, beside the `first`, and shows them.
    pub(super) fn inspect(
        &mut self,
        first: Sequence,
        tokens: usize,
        sequences: usize,
        look: Look,
        cancelled: &AtomicBool,
    ) -> Result<()> {
        let mut opened = vec![first];
        while opened.len() < sequences {
            match self.pool.open(&mut *self.backend, tokens, &[])? {
                Some(sequence) => opened.push(sequence),
                None => break,
            }
        }
        for sequence in &mut opened {
            sequence.see_in_turn(&mut *self.backend)?;
        }
        let slots: Vec<usize> = opened.iter().map(Sequence::slot).collect();
        look(Ok(&mut *self.backend), &slots, cancelled);
        let close = |sequence: Sequence| sequence.close(&mut *self.backend, &[]);
        opened.into_iter().try_for_each(close)
    }
}
