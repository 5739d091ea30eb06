//! What decodes on a card: the model, the sampler, the ring of tokens, and the lists of launches
//! that are ready.

use std::sync::Arc;
use std::time::Instant;

use super::cache::{Cache, Key, Purpose, MOST_LISTS, WARM_UPS};
use super::capture::capture_failure;
use super::card::Card;
use super::drafts::{Drafts, OFTEN_GUESSED};
use super::ready::{Ready, Way};
use super::ring::Ring;
use super::rows::RowBuffers;
use super::sampling::Sampling;
use super::sequences::Round;
use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::launch::{run_all, Launch};
use crate::backend::cuda::driver::ranges::Range;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::lower::lowering::{Inputs, Pass, Path};
use crate::backend::cuda::lower::params::PADDING_SLOT;
use crate::backend::cuda::lower::rounds::Drawn;
use crate::backend::cuda::lower::sample::{Drafts as Drafted, Draw, SampleShape};
use crate::backend::{no_drafter, no_hidden, CapturedStep, RunnerOptions, Weights};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// A model that decodes.
#[derive(Debug)]
pub struct Decoder {
    // Graphs go first: they use what the others own.
    pub lists: Cache,
    pub sampling: Sampling,
    pub ring: Ring,
    /// Rows of decode steps.
    rows: RowBuffers,
    /// What `rows.state_slots` holds.
    row_slots: Vec<u32>,
    n_slots: usize,
    n_vocab: usize,
    /// Where the plan has a drafter.
    pub drafts: Option<Drafts>,
    pub card: Card,
}

impl Decoder {
    /// Takes all the memory that there ever is at once, for passes of up to `max_rows` rows,
    /// `max_out` of which give logits.
    ///
    /// # Errors
    /// As [`Card::new`] and [`Sampling::new`].
    pub fn new(
        context: &Arc<Context>,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
        max_rows: usize,
        max_out: usize,
    ) -> Result<Self> {
        let n_vocab = plan.n_vocab();
        let card = Card::new(context, plan, weights, options, max_rows, max_out)?;
        let n_slots = options.n_slots;
        let shape = SampleShape {
            n_vocab,
            n_ctx: options.n_ctx,
            max_rows: max_out,
        };
        let rows = RowBuffers::new(context, max_out, None)?;
        // Every logit row is wanted, in order.
        let in_order: Vec<u32> = (0..max_out as u32).collect();
        rows.out_rows.write(0, &in_order, &card.stream)?;
        let drafter = card.plan().drafter.as_ref();
        let most = [max_rows, max_out];
        let drafts = drafter.map(|d| Drafts::new(context, &card, d, most, options));
        Ok(Self {
            drafts: drafts.transpose()?,
            lists: Cache::new(MOST_LISTS),
            sampling: Sampling::new(context, &card.stream, n_slots, shape)?,
            ring: Ring::new(context, &card.stream, max_out)?,
            rows,
            row_slots: Vec::new(),
            n_slots,
            n_vocab,
            card,
        })
    }

    /// Tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The draw of a step, or of prompts' last rows.
    fn draw_specs(&self, rows: usize, slots: u64, drafts: Option<Drafted>) -> Vec<Spec> {
        let (ring, step) = self.ring.addresses();
        self.sampling.specs(&Draw {
            rows,
            logits: self.card.buffer(self.card.plan().logits).address(),
            slots,
            ring,
            step,
            drafts,
        })
    }

    /// What a list consists of.
    ///
    /// # Errors
    /// [`Error::Internal`] for more rows than there is memory for.
    pub fn specs(&self, key: Key) -> Result<Vec<Spec>> {
        let rows = key.rows;
        let given = self.card.rows.inputs();
        let prefill = |out, steps| Pass {
            rows,
            out,
            inputs: given,
            path: Path::Prefill { steps },
            all: false,
            hidden: false,
        };
        match key.purpose {
            Purpose::Step | Purpose::Undrawn | Purpose::Draw => {
                let inputs = Inputs {
                    state: self.sampling.state_address(),
                    ..self.rows.inputs()
                };
                let mut specs = match key.purpose {
                    Purpose::Draw => Vec::new(),
                    _ => self.followed(&Pass::step(rows, inputs), false)?,
                };
                if key.purpose != Purpose::Undrawn {
                    specs.extend(self.draw_specs(rows, inputs.state_slots, None));
                    specs.extend(self.follow_step(rows, &inputs)?);
                }
                Ok(specs)
            }
            Purpose::Round => self.round_specs(rows, false),
            Purpose::Guessed { drafted } => {
                let (card, state) = (&self.card, self.sampling.state_address());
                let drafts = self.drafts.as_ref().ok_or_else(no_drafter)?;
                let mut specs = drafts.guesses(card, state, rows, drafted, &given)?;
                specs.extend(self.round_specs(rows * (1 + drafted), true)?);
                Ok(specs)
            }
            Purpose::Chunk { wanted, steps } => {
                let mut specs = self.followed(&prefill(wanted, steps), true)?;
                if wanted > 0 {
                    specs.extend(self.draw_specs(wanted, given.state_slots, None));
                }
                if let Some(drafts) = &self.drafts {
                    let (card, state) = (&self.card, self.sampling.state_address());
                    specs.extend(drafts.behind_prompts(card, state, [rows, wanted], &given)?);
                }
                Ok(specs)
            }
            Purpose::Follow => {
                let drafts = self.drafts.as_ref().ok_or_else(no_drafter)?;
                drafts.beside(&self.card, &prefill(0, 0))
            }
            Purpose::Logits => self.card.specs(&prefill(rows, 0)),
            Purpose::Hidden => self.card.specs(&Pass {
                hidden: true,
                ..prefill(0, 0)
            }),
            Purpose::Forced => self.card.specs(&Pass {
                all: false,
                ..Pass::step(rows, given)
            }),
            Purpose::Rows { .. } => Err(Error::Internal(format!("{} decodes not", key.name()))),
        }
    }

    /// A pass, and what a drafter does that goes by its tokens, unless it may be left behind.
    fn followed(&self, pass: &Pass, must: bool) -> Result<Vec<Spec>> {
        let mut specs = self.card.specs(pass)?;
        if let Some(drafts) = self.drafts.as_ref().filter(|d| must || !d.lags) {
            specs.extend(drafts.beside(&self.card, pass)?);
        }
        Ok(specs)
    }

    /// What a draft model runs: over chunks of these sizes, and in rounds of one sequence.
    ///
    /// # Errors
    /// As [`Decoder::specs`].
    pub fn draft_specs(&self, sizes: impl Iterator<Item = usize>, way: Way) -> Result<Vec<Spec>> {
        if !self.drafts.as_ref().is_some_and(Drafts::goes_by_tokens) {
            return Ok(Vec::new());
        }
        let chunks = sizes.map(|rows| (Purpose::Follow, rows));
        let rounds = (1..=OFTEN_GUESSED).map(|drafted| (Purpose::Guessed { drafted }, 1));
        let keys = chunks.chain(rounds);
        let specs = keys.map(|(purpose, rows)| self.specs(Key { purpose, way, rows }));
        Ok(specs.collect::<Result<Vec<_>>>()?.concat())
    }

    /// A round of these rows, by the inputs that the host gives or what a drafter has guessed.
    fn round_specs(&self, rows: usize, guessed: bool) -> Result<Vec<Spec>> {
        let given = self.card.rows.inputs();
        let pass = Pass {
            path: Path::Round,
            ..Pass::step(rows, given)
        };
        let mut specs = self.followed(&pass, guessed)?;
        let drafted = Drafted {
            tokens: given.tokens,
            positions: given.positions,
        };
        specs.extend(self.draw_specs(rows, given.state_slots, Some(drafted)));
        let (ring, step) = self.ring.addresses();
        specs.extend(self.card.commits(&Drawn {
            rows,
            inputs: given,
            ring,
            step,
            max_rows: self.card.max_out(),
        }));
        specs.extend(self.follow_step(rows, &given)?);
        Ok(specs)
    }

    /// What a drafter does behind the draw of a step or round.
    fn follow_step(&self, rows: usize, inputs: &Inputs) -> Result<Vec<Spec>> {
        match &self.drafts {
            Some(drafts) => {
                drafts.behind_step(&self.card, self.sampling.state_address(), rows, inputs)
            }
            None => Ok(Vec::new()),
        }
    }

    /// Has a list ready; of a step that was captured for it, says what.
    ///
    /// # Errors
    /// Errors of the compiler, the card or the capture.
    pub fn prepare(&mut self, key: Key) -> Result<Option<CapturedStep>> {
        if self.lists.get(key).is_some() {
            self.lists.capture_warm(key, &self.card.stream)?;
            return Ok(None);
        }
        let begun = Instant::now();
        let _range = Range::new(|| format!("capture of {}", key.name()));
        let launches = self.card.launches(self.specs(key)?)?;
        if !key.purpose.is_step() || key.way == Way::Eager {
            self.lists.add_cold(key, launches);
            return Ok(None);
        }
        let free = self.card.context.memory()?.0;
        self.warm_up(&launches, key)
            .map_err(|e| capture_failure(e, &key.name(), free))?;
        let stream = &self.card.stream;
        let free = || stream.context.memory().map_or(0, |m| m.0);
        let before = free();
        let graphs = self.lists.add(key, launches, stream)?.graphs();
        Ok(Some(CapturedStep {
            kind: key.way.name(),
            batch_size: key.rows,
            graphs: graphs.len(),
            nodes: graphs.iter().map(|graph| graph.launches().len()).sum(),
            seconds: begun.elapsed().as_secs_f64(),
            bytes: before.saturating_sub(free()),
        }))
    }

    /// Queues a list; one that is not ready is made so.
    ///
    /// # Errors
    /// As [`Decoder::prepare`].
    pub fn run(&mut self, key: Key) -> Result<()> {
        self.prepare(key)?;
        let _range = Range::new(|| key.name());
        if cfg!(debug_assertions) {
            self.check_unmoved(key)?;
        }
        match self.lists.run(key, &self.card.stream)? {
            true => Ok(()),
            false => Err(Error::Internal(format!("{} is not ready", key.name()))),
        }
    }

    /// A graph holds the addresses of its capture: a buffer that was moved since would be read
    /// where it was.
    fn check_unmoved(&self, key: Key) -> Result<()> {
        let then = self.lists.get(key).map_or_else(Vec::new, Ready::launches);
        let now = self.specs(key)?;
        let moved = then.iter().zip(now).find(|(then, now)| then.spec != *now);
        match moved {
            None => Ok(()),
            Some((launch, _)) => Err(Error::Internal(format!(
                "{} was captured with other addresses than it has now",
                launch.spec.label
            ))),
        }
    }

    /// Runs a step of padding alone, which changes nothing but the number of the step.
    fn warm_up(&mut self, launches: &[Launch], key: Key) -> Result<()> {
        match key.purpose {
            Purpose::Round => self.set_rounds(&[], key.rows)?,
            Purpose::Guessed { .. } => self.set_sequences(Vec::new(), key.rows)?,
            _ => self.set_row_slots(Vec::new(), key.rows)?,
        }
        for _ in 0..WARM_UPS {
            run_all(launches, &self.card.stream)?;
            self.ring.pass_over(usize::from(key.purpose.counts()));
        }
        // A kernel that fails is this step's.
        self.card.stream.synchronize()
    }

    /// Sets the slots of the rows of the next steps; further rows up to `rows` are padding.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn set_row_slots(&mut self, mut slots: Vec<u32>, rows: usize) -> Result<()> {
        slots.resize(rows, self.n_slots as u32);
        if slots != self.row_slots {
            // In stream order: queued steps still see the old rows.
            let stream = &self.card.stream;
            self.rows.state_slots.write(0, &slots, stream)?;
            self.row_slots = slots;
        }
        Ok(())
    }

    /// Sets the sequences of the next rounds that a drafter guesses for; further ones up to `rows` are
    /// padding.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Internal`] of a plan without a drafter.
    pub fn set_sequences(&mut self, slots: Vec<u32>, rows: usize) -> Result<()> {
        let drafts = self.drafts.as_mut().ok_or_else(no_drafter)?;
        drafts.set_sequences(slots, rows, &self.card.stream)
    }

    /// Sets the rows of the next round, which verifies drafts; further rows up to `rows` are padding.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn set_rounds(&self, rounds: &[Round], rows: usize) -> Result<()> {
        let (inputs, stream) = (&self.card.rows, &self.card.stream);
        let write = |to: &DeviceBuffer, padding: u32, of: &dyn Fn(&Round, usize) -> u32| {
            let values = rounds
                .iter()
                .flat_map(|round| (0..round.tokens.len()).map(|row| of(round, row)));
            let mut values: Vec<u32> = values.collect();
            values.resize(rows, padding);
            to.write(0, &values, stream)
        };
        write(&inputs.tokens, 0, &|round, row| round.tokens[row])?;
        write(&inputs.positions, 0, &|round, row| {
            (round.position + row) as u32
        })?;
        write(&inputs.slots, PADDING_SLOT, &|round, _| round.slot as u32)?;
        let no_slot = self.n_slots as u32;
        write(&inputs.state_slots, no_slot, &|round, _| round.slot as u32)
    }

    /// Hidden states of the last pass, which was for those, from row `first` on, into `states`, once they
    /// are there.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Internal`] of a plan without.
    pub fn read_hidden(&self, first: usize, states: &mut [f32]) -> Result<()> {
        let plan = self.card.plan();
        let x = plan.hidden().ok_or_else(no_hidden)?.x;
        let at = first * plan.buffer(x).width * size_of::<f32>();
        self.card.buffer(x).read(at, states, &self.card.stream)
    }

    /// Logits of the last pass from row `first` on, into `logits`, once they are there.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn read_logits(&self, first: usize, logits: &mut [f32]) -> Result<()> {
        let buffer = self.card.buffer(self.card.plan().logits);
        buffer.read(first * self.n_vocab * 4, logits, &self.card.stream)
    }
}
