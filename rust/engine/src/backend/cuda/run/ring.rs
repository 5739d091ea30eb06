//! Tokens on their way to the host: steps append what they drew to a ring in mapped host memory,
//! the host queues steps ahead and reads the ring.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::sample::{Record, RING_STEPS};
use crate::error::{Error, Result};

/// How long a step may take before it is taken for hung.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The ring, and the steps whose tokens were not read.
#[derive(Debug)]
pub struct Ring {
    /// `[RING_STEPS][width]`, see [`Record`].
    words: HostBuffer,
    /// Steps done.
    step: DeviceBuffer,
    /// Most rows of a step.
    width: usize,
    /// Number of the last step queued.
    number: u32,
    queued: VecDeque<Queued>,
}

/// A step whose tokens were not read.
#[derive(Debug)]
pub struct Queued {
    number: u32,
    /// Slot and request of each row; rows behind them are padding.
    pub rows: Vec<(usize, u64)>,
    decode: bool,
}

impl Ring {
    /// An empty ring for steps of up to `width` rows.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, stream: &Stream, width: usize) -> Result<Self> {
        let step = DeviceBuffer::new(context, 4)?;
        // The first step is number 1: zero is an empty place of the ring.
        step.write(0, &[0u32], stream)?;
        Ok(Self {
            words: HostBuffer::new(context, RING_STEPS * width * 8)?,
            step,
            width,
            number: 0,
            queued: VecDeque::new(),
        })
    }

    /// Where steps write, and where they count themselves.
    pub fn addresses(&self) -> (u64, u64) {
        (self.words.address(), self.step.address())
    }

    /// Counts queued `steps` whose tokens are discarded.
    pub fn pass_over(&mut self, steps: usize) {
        // 2^32 steps take months; the ring would only miss a step then.
        self.number = self.number.wrapping_add(steps as u32);
    }

    /// Counts a step that was queued, for the slots and requests of `rows`; whether it is a
    /// `decode` step or draws a prompt's first token.
    pub fn push(&mut self, rows: Vec<(usize, u64)>, decode: bool) {
        self.pass_over(1);
        self.queued.push_back(Queued {
            number: self.number,
            rows,
            decode,
        });
    }

    /// Whether every step was read.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Steps that were not read.
    pub fn queued_steps(&self) -> usize {
        self.queued.len()
    }

    /// Decode steps that were not read.
    pub fn decode_steps(&self) -> usize {
        self.queued.iter().filter(|step| step.decode).count()
    }

    /// The record of row `row` of a step, once it is there.
    pub fn record(&self, step: &Queued, row: usize) -> Option<Record> {
        let place = step.number as usize % RING_STEPS * self.width + row;
        let record = Record::new(self.words.words().get(place)?.load(Ordering::Acquire));
        (record.step == step.number).then_some(record)
    }

    /// Takes out the oldest step, if all its records are there.
    pub fn pop(&mut self) -> Option<Queued> {
        let done = self.is_done(self.queued.front()?);
        done.then(|| self.queued.pop_front()).flatten()
    }

    fn is_done(&self, step: &Queued) -> bool {
        (0..step.rows.len()).all(|row| self.record(step, row).is_some())
    }

    /// Whether the oldest step is done, or there is none.
    pub fn oldest_is_done(&self) -> bool {
        self.queued.front().is_none_or(|step| self.is_done(step))
    }

    /// Waits for the records of the oldest step.
    ///
    /// # Errors
    /// [`Error::Device`] where the card failed or hangs; [`Error::Internal`] where the step has
    /// ended without them.
    pub fn await_oldest(&self, stream: &Stream) -> Result<()> {
        let Some(step) = self.queued.front() else {
            return Ok(());
        };
        let begun = Instant::now();
        for row in 0..step.rows.len() {
            let mut looks = 0u32;
            while self.record(step, row).is_none() {
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(1024) {
                    std::hint::spin_loop();
                    continue;
                }
                // A failed kernel never writes its record.
                if stream.is_idle()? && self.record(step, row).is_none() {
                    return Err(Error::Internal(format!(
                        "decode step {} ended without the token of row {row}",
                        step.number
                    )));
                }
                if begun.elapsed() > STEP_TIMEOUT {
                    return Err(Error::Device {
                        what: stream.context.info.device(),
                        reason: format!("a decode step took more than {STEP_TIMEOUT:?}"),
                        remedy: "check the card with nvidia-smi; restart the process".into(),
                    });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
