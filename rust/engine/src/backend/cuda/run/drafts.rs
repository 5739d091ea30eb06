//! What a drafter has on the card beside the model's own buffers, and its launches in front of a round and
//! behind a pass.

use std::sync::Arc;

use super::card::{Card, DrafterPart};
use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::drafting::{
    Begin, DraftRows, Drawn, Keep, Launches, Next, MOST_BLOCKS,
};
use crate::backend::cuda::lower::lowering::{Inputs, Pass, Path};
use crate::backend::RunnerOptions;
use crate::error::Result;
use crate::plan::Drafter;

/// Tokens that are guessed in most rounds, at most: kernels for further ones are compiled when they are.
pub const OFTEN_GUESSED: usize = 3;

/// Of a row that no sequence keeps.
const NONE: u32 = u32::MAX;

/// What the drafter's kernels leave for each other.
#[derive(Debug)]
pub struct Drafts {
    launches: Launches,
    /// Where follow leaves its rows, and what guess goes by, of a drafter that goes by rows.
    rows: Option<u64>,
    hidden: u64,
    logits: u64,
    n_slots: usize,
    n_ctx: usize,
    /// As [`crate::backend::Backend::lags`].
    pub lags: bool,
    /// `[max_rows]` u32: of each row of a pass the token that follows it, and the slot that keeps it.
    next: DeviceBuffer,
    keeps: DeviceBuffer,
    /// `[n_slots][n_embd]` f32: what the next guess of each sequence goes by.
    kept: DeviceBuffer,
    /// `[max_out]` u32: the slots of a round, and the rows of its guesses.
    sequences: DeviceBuffer,
    tokens: DeviceBuffer,
    positions: DeviceBuffer,
    slots: DeviceBuffer,
    tickets: DeviceBuffer,
    partial: DeviceBuffer,
    /// What `sequences` holds.
    of_sequences: Vec<u32>,
}

impl Drafts {
    /// Takes the memory for passes of up to `max_rows` rows and rounds of up to `max_out`.
    ///
    /// # Errors
    /// [`crate::Error::Memory`].
    pub fn new(
        context: &Arc<Context>,
        card: &Card,
        drafter: &Drafter,
        [max_rows, max_out]: [usize; 2],
        options: &RunnerOptions,
    ) -> Result<Self> {
        let n_slots = options.n_slots;
        let plan = card.plan();
        let n_vocab = plan.buffer(drafter.guess.logits).width;
        let n_embd = drafter.by.map_or(0, |by| plan.buffer(by.hidden).width);
        let address = |id| card.buffer(id).address();
        let words = |n: usize| DeviceBuffer::new(context, 4 * n);
        let drafts = Self {
            launches: Launches {
                n_vocab,
                n_tokens: n_vocab.min(plan.n_vocab()),
                n_embd,
                moves: drafter.by.is_none_or(|by| by.moves),
            },
            rows: drafter.by.map(|by| address(by.rows)),
            hidden: drafter.by.map_or(0, |by| address(by.hidden)),
            logits: address(drafter.guess.logits),
            n_slots,
            n_ctx: options.n_ctx,
            // Pages of layers that see a window may be gone by the time that it catches up.
            lags: drafter.by.is_none() && options.windows.is_none(),
            next: words(max_rows)?,
            keeps: words(max_rows)?,
            kept: words(n_slots * n_embd)?,
            sequences: words(max_out)?,
            tokens: words(max_out)?,
            positions: words(max_out)?,
            slots: words(max_out)?,
            tickets: words(max_out)?,
            partial: DeviceBuffer::new(context, 8 * max_out * MOST_BLOCKS)?,
            of_sequences: Vec::new(),
        };
        drafts.keeps.fill(0xff, &card.stream)?;
        drafts.kept.fill(0, &card.stream)?;
        drafts.tickets.fill(0, &card.stream)?;
        Ok(drafts)
    }

    /// Whether it goes by tokens alone.
    pub fn goes_by_tokens(&self) -> bool {
        self.rows.is_none()
    }

    /// Sets the sequences of the next rounds, by slot; further ones up to `rows` are none.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn set_sequences(
        &mut self,
        mut slots: Vec<u32>,
        rows: usize,
        stream: &Stream,
    ) -> Result<()> {
        slots.resize(rows, self.n_slots as u32);
        if slots != self.of_sequences {
            self.sequences.write(0, &slots, stream)?;
            self.of_sequences = slots;
        }
        Ok(())
    }

    /// Sets of each row of a pass over prompts the token that follows it, where it is known.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn set_next(&self, next: &[u32], stream: &Stream) -> Result<()> {
        self.next.write(0, next, stream)?;
        self.keeps.write(0, &vec![NONE; next.len()], stream)
    }

    /// What comes in front of a round of `n` sequences that verifies so many drafted tokens of each, whose
    /// rows it makes up.
    ///
    /// # Errors
    /// As [`Card::specs`].
    pub fn guesses(
        &self,
        card: &Card,
        state: u64,
        n: usize,
        drafted: usize,
        given: &Inputs,
    ) -> Result<Vec<Spec>> {
        let rows = 1 + drafted as u32;
        let begin = Begin {
            sequences: self.sequences.address(),
            state,
            kept: self.kept.address(),
            hidden: self.hidden,
            tokens: self.tokens.address(),
            positions: self.positions.address(),
            slots: self.slots.address(),
            row_tokens: given.tokens,
            row_positions: given.positions,
            row_slots: given.slots,
            row_sequences: given.state_slots,
            rows,
            n_slots: self.n_slots as u32,
            n_ctx: self.n_ctx as u32,
            unused: 0,
        };
        let inputs = Inputs {
            tokens: begin.tokens,
            positions: begin.positions,
            slots: begin.slots,
            ..*given
        };
        let pass = Pass {
            path: Path::Guess,
            ..Pass::step(n, inputs)
        };
        let mut specs = vec![self.launches.begin(n, &begin)];
        for row in 1..rows {
            specs.extend(card.drafter_specs(DrafterPart::Guess, &pass)?);
            let next = Next {
                logits: self.logits,
                partial: self.partial.address(),
                tickets: self.tickets.address(),
                tokens: begin.tokens,
                positions: begin.positions,
                slots: begin.slots,
                row_tokens: given.tokens,
                row_slots: given.slots,
                rows,
                row,
            };
            specs.push(self.launches.next(n, &next));
        }
        Ok(specs)
    }

    /// What comes behind a pass, before any draw, where the drafter goes by tokens alone: the same rows.
    ///
    /// # Errors
    /// As [`Card::specs`].
    pub fn beside(&self, card: &Card, pass: &Pass) -> Result<Vec<Spec>> {
        match self.rows {
            Some(_) => Ok(Vec::new()),
            None => card.drafter_specs(DrafterPart::Follow, &Pass { out: 0, ..*pass }),
        }
    }

    /// What comes behind the draw of a step or round of these rows, where the drafter goes by rows.
    ///
    /// # Errors
    /// As [`Card::specs`].
    pub fn behind_step(
        &self,
        card: &Card,
        state: u64,
        rows: usize,
        given: &Inputs,
    ) -> Result<Vec<Spec>> {
        let first = self.launches.rows(&DraftRows {
            tokens: given.tokens,
            positions: given.positions,
            sequences: given.state_slots,
            state,
            next: self.next.address(),
            keeps: self.keeps.address(),
            m: rows as u32,
            n_slots: self.n_slots as u32,
        });
        self.follow(card, rows, given, Some(first))
    }

    /// The same behind a pass over prompts, `wanted` rows of which were drawn from.
    ///
    /// # Errors
    /// As [`Card::specs`].
    pub fn behind_prompts(
        &self,
        card: &Card,
        state: u64,
        [rows, wanted]: [usize; 2],
        given: &Inputs,
    ) -> Result<Vec<Spec>> {
        let drawn = |m| {
            self.launches.drawn(&Drawn {
                rows: given.out_rows,
                sequences: given.state_slots,
                state,
                next: self.next.address(),
                keeps: self.keeps.address(),
                m: m as u32,
                n_slots: self.n_slots as u32,
            })
        };
        self.follow(card, rows, given, (wanted > 0).then(|| drawn(wanted)))
    }

    fn follow(
        &self,
        card: &Card,
        rows: usize,
        given: &Inputs,
        first: Option<Spec>,
    ) -> Result<Vec<Spec>> {
        let Some(kept_from) = self.rows else {
            return Ok(Vec::new());
        };
        let pass = Pass {
            rows,
            out: 0,
            inputs: Inputs {
                tokens: self.next.address(),
                state: 0,
                ..*given
            },
            path: Path::Prefill { steps: 0 },
            all: false,
            hidden: false,
        };
        let mut specs: Vec<Spec> = first.into_iter().collect();
        specs.extend(card.drafter_specs(DrafterPart::Follow, &pass)?);
        specs.push(self.launches.keep(
            rows,
            &Keep {
                rows: kept_from,
                keeps: self.keeps.address(),
                kept: self.kept.address(),
            },
        ));
        Ok(specs)
    }
}
