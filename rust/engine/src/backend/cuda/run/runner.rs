//! Runs any plan on the card with explicit rows and buffers: the surface that tests compare with
//! the interpreter, eagerly or through a captured graph.

use std::sync::Arc;

use super::cache::{Cache, Key, Purpose};
use super::card::Card;
use super::ready::Way;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::timing::{launch_us, run_us};
use crate::backend::cuda::lower::lowering::{Pass, Path};
use crate::backend::{
    Batch, GraphMode, GraphQuestion, KernelTime, Kind, Profile, Runner, RunnerOptions, Weights,
};
use crate::error::{Error, Result};
use crate::plan::signature::Role;
use crate::plan::{BufferId, Plan};

/// More rows than this are taken for a prompt's.
const STEP_ROWS: usize = 64;

/// Lists that are kept; the graph of the pass longest ago becomes that of a new pass.
const MOST_LISTS: usize = 32;

/// A runner on a card.
pub struct CudaRunner {
    // Graphs go first: they use what the card owns.
    lists: Cache,
    capture: bool,
    /// The last pass, where there was one, and its rows of logits.
    last: Option<(Key, usize)>,
    card: Card,
}

impl CudaRunner {
    /// A runner on card `ordinal` for up to `max_rows` rows; unless graphs are off, every pass is a
    /// replay.
    ///
    /// # Errors
    /// As [`Card::new`] and [`Card::load`].
    pub fn new(
        ordinal: usize,
        plan: Arc<Plan>,
        weights: &dyn Weights,
        options: &RunnerOptions,
        max_rows: usize,
    ) -> Result<Self> {
        let context = Context::new(ordinal)?;
        let card = Card::new(&context, plan, weights, options, max_rows, max_rows)?;
        card.load(weights, &[], &|_, _| Ok(()))?;
        Ok(Self {
            lists: Cache::new(MOST_LISTS),
            capture: options.gpu.mode != GraphMode::None,
            last: None,
            card,
        })
    }

    /// Has the list of a pass ready.
    fn prepare(&mut self, rows: usize, out: usize) -> Result<Key> {
        let key = |way| Key {
            purpose: Purpose::Rows { out },
            way,
            rows,
        };
        let known = [Way::Full, Way::Eager].map(key);
        if let Some(key) = known.into_iter().find(|k| self.lists.get(*k).is_some()) {
            return Ok(key);
        }
        let card = &self.card;
        let launches = card.launches(card.specs(&Pass {
            rows,
            out,
            inputs: card.rows.inputs(),
            path: match rows > STEP_ROWS {
                true => Path::Prefill { steps: 0 },
                false => Path::Decode,
            },
            all: false,
            hidden: false,
        })?)?;
        // There is no graph of nothing.
        let key = key(match self.capture && !launches.is_empty() {
            true => Way::Full,
            false => Way::Eager,
        });
        self.lists.add(key, launches, &card.stream)?;
        Ok(key)
    }
}

impl Runner for CudaRunner {
    fn plan(&self) -> &Plan {
        self.card.plan()
    }

    fn map_pages(&mut self, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        let card = &mut self.card;
        let stream = &card.stream;
        card.kv.map_pages(Kind::Whole, slot, first, pages, stream)
    }

    fn write(&mut self, id: BufferId, rows: &[f32]) -> Result<()> {
        self.card.buffer(id).write(0, rows, &self.card.stream)
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<()> {
        let plan = self.card.plan();
        let used = plan.ops.iter().flat_map(|op| op.signature().weights);
        for table in used.filter(|used| used.role == Role::Lookup) {
            let n_vocab = plan.weight(table.id).n_out;
            if let Some(token) = batch.tokens.iter().find(|t| **t as usize >= n_vocab) {
                return Err(Error::Argument {
                    name: "token",
                    value: token.to_string(),
                    reason: format!("the vocabulary has {n_vocab} tokens"),
                });
            }
        }
        let (rows, stream) = (&self.card.rows, &self.card.stream);
        rows.tokens.write(0, batch.tokens, stream)?;
        rows.write_places(batch.slots, batch.positions, stream)?;
        let mut types = batch.types.to_vec();
        types.resize(batch.tokens.len(), 0);
        rows.write_types(&types, stream)?;
        rows.out_rows.write(0, batch.out_rows, stream)?;
        let key = self.prepare(batch.tokens.len(), batch.out_rows.len())?;
        self.lists.run(key, &self.card.stream)?;
        self.last = Some((key, batch.out_rows.len()));
        self.card.settle()?;
        let slots = batch.slots.iter().map(|slot| *slot as usize);
        // Of all, or what is left would be the next pass's.
        let errors: Vec<_> = slots
            .filter_map(|slot| self.card.take_overflow(slot, u64::MAX))
            .collect();
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    fn read(&mut self, id: BufferId) -> Result<Vec<f32>> {
        let buffer = self.card.plan().buffer(id);
        let rows = self
            .last
            .map_or(0, |(key, out)| buffer.rows.of(key.rows, out));
        let mut values = vec![0.0f32; rows * buffer.width];
        let buffer = self.card.buffer(id);
        buffer.read(0, &mut values, &self.card.stream)?;
        Ok(values)
    }

    fn saturated(&self, slot: usize) -> bool {
        self.card.kv.saturated(slot)
    }

    fn read_kv(&mut self) -> Result<Vec<u8>> {
        self.card.kv.read_all(&self.card.stream)
    }

    fn read_state(&mut self, slot: usize) -> Result<Vec<f32>> {
        self.card.states.read(slot, &self.card.stream)
    }

    fn write_state(&mut self, slot: usize, values: &[f32]) -> Result<()> {
        self.card.states.write(slot, values, &self.card.stream)
    }

    fn write_kv(&mut self, bytes: &[u8]) -> Result<()> {
        self.card.kv.write_all(bytes, &self.card.stream)
    }

    fn profile(&mut self, repeats: usize) -> Result<Profile> {
        let Some(ready) = self.last.and_then(|(key, _)| self.lists.get(key)) else {
            return Ok(Profile {
                replay_us: 0.0,
                kernels: Vec::new(),
            });
        };
        let (list, stream) = (ready.launches(), &self.card.stream);
        let again = || ready.run(stream);
        let in_a_row = GraphQuestion::IN_A_ROW;
        let whole = run_us(stream, repeats, in_a_row, || Ok(()), again)?;
        let times = launch_us(stream, &list, repeats.clamp(1, 20), || Ok(()))?;
        let kernels = list.iter().zip(times).map(|(launch, us)| KernelTime {
            kernel: launch.spec.entry,
            label: launch.spec.label.clone(),
            us,
            bytes: launch.spec.traffic.weights,
            rows: launch.spec.traffic.rows,
            grid: launch.spec.grid,
            block: launch.spec.block,
            shared: launch.spec.shared,
            constants: launch.spec.variant.constants.named().collect(),
        });
        Ok(Profile {
            replay_us: whole,
            kernels: kernels.collect(),
        })
    }
}
