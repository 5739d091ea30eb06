//! The sampler's parameters and state of each slot, on the card.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use bytemuck::Zeroable;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::host::HostBuffer;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::params::SlotState;
use crate::backend::cuda::lower::sample::{
    self, bias_words, mask_words, Arguments, Draw, SampleShape, BINS, LIST, MAX_BLOCKS, ROW_BYTES,
};
use crate::backend::SlotRequest;
use crate::error::{Error, Result};
use crate::sampler::{self, seen, Allowed};

/// What the slots of one model draw by.
#[derive(Debug)]
pub struct Sampling {
    context: Arc<Context>,
    n_slots: usize,
    shape: SampleShape,
    state: DeviceBuffer,
    counts: DeviceBuffer,
    /// As long as the context, whatever windows are asked for: little beside keys and values, known
    /// before a load, and nothing that grows while others decode.
    history: DeviceBuffer,
    /// By slot, as long as the longest request so far wanted.
    stop: Vec<Option<DeviceBuffer>>,
    bias: Vec<Option<DeviceBuffer>>,
    y: DeviceBuffer,
    rows: DeviceBuffer,
    partial: DeviceBuffer,
    bin_counts: DeviceBuffer,
    bin_masses: DeviceBuffer,
    list: DeviceBuffer,
    /// `[max_rows][mask_words]` u32: each is read where it lies, once a draw.
    masks: HostBuffer,
}

impl Sampling {
    /// Takes the memory for `n_slots` sequences. No slot is live.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Unsupported`] for too large a vocabulary.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        n_slots: usize,
        shape: SampleShape,
    ) -> Result<Self> {
        let SampleShape {
            n_vocab,
            n_ctx,
            max_rows,
        } = shape;
        if n_vocab > sampler::MAX_VOCAB {
            return Err(Error::Unsupported {
                what: "vocabulary size",
                name: n_vocab.to_string(),
                supported: format!("up to {} tokens", sampler::MAX_VOCAB),
            });
        }
        let take = |bytes: usize| DeviceBuffer::new(context, bytes);
        let sampling = Self {
            context: context.clone(),
            n_slots,
            shape,
            state: take((n_slots + 1) * size_of::<SlotState>())?,
            counts: take(n_slots * n_vocab * 4)?,
            history: take(n_slots * n_ctx * 4)?,
            stop: (0..n_slots).map(|_| None).collect(),
            bias: (0..n_slots).map(|_| None).collect(),
            y: take(max_rows * n_vocab.next_multiple_of(4) * 4)?,
            rows: take(max_rows * ROW_BYTES)?,
            partial: take(max_rows * MAX_BLOCKS * 8)?,
            bin_counts: take(max_rows * BINS * 4)?,
            bin_masses: take(max_rows * BINS * 8)?,
            list: take(max_rows * LIST * 8)?,
            masks: HostBuffer::new(context, max_rows * mask_words(n_vocab) * 4)?,
        };
        sampling.state.fill(0, stream)?;
        // The tickets in there reset themselves from now on.
        sampling.rows.fill(0, stream)?;
        stream.synchronize()?;
        Ok(sampling)
    }

    /// Where the `n_slots + 1` slot states lie; the last is for rows that pad a batch and is never
    /// live.
    pub fn state_address(&self) -> u64 {
        self.state.address()
    }

    /// Makes `slot` ready to draw by `request`; it is not live yet.
    ///
    /// # Errors
    /// [`Error::Argument`] for a parameter out of range, [`Error::Memory`].
    pub fn start(&mut self, slot: usize, request: &SlotRequest, stream: &Stream) -> Result<()> {
        let params = &request.sampling;
        params.validate(self.shape.n_vocab)?;
        self.stop(slot, stream)?;
        if params.penalizes() {
            self.mark(slot, params.repeat_last_n, &request.prompt, stream)?;
        }
        let bias = match params.logit_bias.is_empty() {
            true => 0,
            false => {
                let words = bias_words(params, self.shape.n_vocab);
                keep(&self.context, &mut self.bias[slot], &words, stream)?
            }
        };
        let stop = match request.stop_tokens.is_empty() {
            true => 0,
            false => keep(
                &self.context,
                &mut self.stop[slot],
                &request.stop_tokens,
                stream,
            )?,
        };
        let state = SlotState {
            stop,
            bias,
            max_tokens: u32::try_from(request.max_tokens).unwrap_or(u32::MAX),
            n_stop: request.stop_tokens.len() as u32,
            constrained: u64::from(request.constrained),
            ..sample::state(params, self.shape.n_vocab)
        };
        self.state
            .write(slot * size_of::<SlotState>(), &[state], stream)
    }

    /// Tells the penalties of `slot` what of the prompt stands in its window, and what leaves that as
    /// tokens are drawn.
    fn mark(
        &mut self,
        slot: usize,
        window: Option<usize>,
        prompt: &[u32],
        stream: &Stream,
    ) -> Result<()> {
        let SampleShape { n_vocab, n_ctx, .. } = self.shape;
        let mut counts = vec![0u32; n_vocab];
        let entries = seen::mark(&mut counts, seen::in_window(window, prompt))?;
        self.counts.write(slot * n_vocab * 4, &counts, stream)?;
        if window.is_some_and(|n| n < n_ctx) {
            let first = prompt.len() - entries.len();
            let held = n_ctx.saturating_sub(first).min(entries.len());
            let at = (slot * n_ctx + first) * 4;
            self.history.write(at, &entries[..held], stream)?;
        }
        Ok(())
    }

    /// From the next launch on `slot` draws; the prompt's last token stands at `position`.
    pub fn arm(&mut self, slot: usize, position: usize, stream: &Stream) -> Result<()> {
        let at = self.state_offset(slot)? + offset_of!(SlotState, position);
        // The token drawn next must have a place in the history.
        let last = self.shape.n_ctx.saturating_sub(1);
        let position = u32::try_from(position)
            .ok()
            .filter(|_| position < last)
            .ok_or_else(|| Error::Internal(format!("position {position} of slot {slot}")))?;
        self.state.write(at, &[position, 1], stream)
    }

    /// From the next launch on `slot` draws, as if `token`, at `position`, were the last one it
    /// drew and the first one at all.
    pub fn force(
        &mut self,
        slot: usize,
        token: u32,
        position: usize,
        stream: &Stream,
    ) -> Result<()> {
        let position = u32::try_from(position)
            .map_err(|_| Error::Internal(format!("position {position} of slot {slot}")))?;
        let at = self.state_offset(slot)? + offset_of!(SlotState, token);
        self.state.write(at, &[token, position, 1, 0], stream)
    }

    /// Token, position, live flag and number of tokens drawn of `slot`, once all that is queued is
    /// done.
    pub fn progress(&self, slot: usize, stream: &Stream) -> Result<[u32; 4]> {
        let at = self.state_offset(slot)? + offset_of!(SlotState, token);
        let mut words = [0; 4];
        self.state.read(at, &mut words, stream)?;
        Ok(words)
    }

    /// From the next launch on `slot` draws nothing.
    pub fn stop(&mut self, slot: usize, stream: &Stream) -> Result<()> {
        let at = self.state_offset(slot)? + offset_of!(SlotState, live);
        self.state.write(at, &[0u32], stream)
    }

    /// Says what the next draw from `row` may choose among, where its slot is constrained. No draw that
    /// was queued may still be under way.
    ///
    /// # Errors
    /// [`Error::Internal`] for a row out of range.
    pub fn allow(&self, row: usize, allowed: &Allowed) -> Result<()> {
        let words = mask_words(self.shape.n_vocab) / 2;
        let row = self.masks.words().get(row * words..(row + 1) * words);
        let Some(row) = row.filter(|row| allowed.words().len().div_ceil(2) == row.len()) else {
            return Err(Error::Internal("a mask without a row".into()));
        };
        for (to, pair) in row.iter().zip(allowed.words().chunks(2)) {
            let high = pair.get(1).copied().unwrap_or(0);
            to.store(
                u64::from(high) << 32 | u64::from(pair[0]),
                Ordering::Relaxed,
            );
        }
        Ok(())
    }

    /// Where in `state` the state of `slot` begins; the padding slot's is never written.
    fn state_offset(&self, slot: usize) -> Result<usize> {
        if slot >= self.n_slots {
            return Err(Error::Internal(format!("slot {slot} of {}", self.n_slots)));
        }
        Ok(slot * size_of::<SlotState>())
    }

    /// The launches of a draw.
    pub fn specs(&self, draw: &Draw) -> Vec<Spec> {
        let at = Arguments {
            state: self.state.address(),
            counts: self.counts.address(),
            history: self.history.address(),
            y: self.y.address(),
            rows: self.rows.address(),
            partial: self.partial.address(),
            bin_counts: self.bin_counts.address(),
            bin_masses: self.bin_masses.address(),
            list: self.list.address(),
            masks: self.masks.address(),
            ..Arguments::zeroed()
        };
        sample::specs(&at, &self.shape, draw)
    }
}

/// Stores `words` in `place`, which grows where it must; returns their address.
fn keep(
    context: &Arc<Context>,
    place: &mut Option<DeviceBuffer>,
    words: &[u32],
    stream: &Stream,
) -> Result<u64> {
    let bytes = size_of_val(words);
    let buffer = match place.take() {
        Some(known) if known.bytes() >= bytes => known,
        outgrown => {
            // Steps in flight may still read it.
            stream.synchronize()?;
            drop(outgrown);
            DeviceBuffer::new(context, bytes)?
        }
    };
    buffer.write(0, words, stream)?;
    Ok(place.insert(buffer).address())
}
