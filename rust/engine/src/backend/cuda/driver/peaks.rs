//! How fast a card reads its memory and multiplies: the peaks that kernels are measured by.

use std::path::PathBuf;
use std::sync::Arc;

use super::buffer::DeviceBuffer;
use super::compile::Compiler;
use super::constants::Constants;
use super::context::Context;
use super::event::Event;
use super::launch::Launch;
use super::module::Module;
use super::source::{shared, source, Source, Variant};
use super::spec::Spec;
use super::stream::Stream;
use crate::error::{Error, Result};

static READ: Source = source!("read.cu", &[], Read);
static MULTIPLY: Source = source!("multiply.cu", &[], Multiply);

shared! {
    struct Read = "ReadParams" {
        /// `[n]` vectors of 16 bytes.
        from: u64,
        /// `[blocks * READ_BLOCK]` u32, of each thread.
        sums: u64,
        n: u64,
    }

    struct Multiply = "MultiplyParams" {
        /// `[blocks * MULTIPLY_BLOCK]` f32, of each thread.
        sums: u64,
        rounds: u32,
        unused: u32,
    }
}

/// Threads of a block.
const READ_BLOCK: u32 = 512;
const MULTIPLY_BLOCK: u32 = 128;
const BLOCKS_PER_SM: u32 = 4;

/// Sums of so many rounds are exact.
const MOST_ROUNDS: u32 = 4096;

/// What a run takes at least, where as many rounds do.
const LEAST_US: f64 = 500.0;

/// A buffer this many times the level-2 cache is read from memory, but for 3% at the most.
const CACHES: usize = 32;

/// Where a card does not tell its cache, one as large as those of the oldest.
const LEAST_CACHE: usize = 2 << 20;

/// Bytes of the buffer on a card with that cache and that much memory free.
fn buffer_bytes(l2_bytes: usize, free: usize) -> usize {
    CACHES * l2_bytes.max(LEAST_CACHE).min(free / 2 / CACHES)
}

/// The kernels that measure.
pub fn variants() -> [Variant; 2] {
    [&READ, &MULTIPLY].map(|source| Variant::new(source, Constants::default()))
}

/// A card by itself, for measurements beside whatever else runs there.
struct Probe<'a> {
    context: Arc<Context>,
    stream: Stream,
    nvrtc_folders: &'a [PathBuf],
    blocks: u32,
}

impl<'a> Probe<'a> {
    fn new(ordinal: usize, nvrtc_folders: &'a [PathBuf]) -> Result<Self> {
        let context = Context::new(ordinal)?;
        Ok(Self {
            stream: Stream::new(&context)?,
            blocks: context.info.sm_count.max(1) * BLOCKS_PER_SM,
            context,
            nvrtc_folders,
        })
    }

    fn compiled(&self, source: &'static Source) -> Result<(Variant, Arc<Module>)> {
        let variant = Variant::new(source, Constants::default());
        let compiler = Compiler::new(self.context.info.number(), self.nvrtc_folders);
        let module = Module::new(&self.context, &compiler.image(&variant)?)?;
        Ok((variant, module))
    }

    /// Microseconds of the fastest of `repeats` runs; the first one warms up.
    fn fastest(&self, launch: &Launch, repeats: usize) -> Result<f64> {
        let (begin, end) = (Event::new(&self.context)?, Event::new(&self.context)?);
        let mut least = f64::INFINITY;
        for run in 0..=repeats.max(1) {
            self.stream.record(&begin)?;
            launch.run(&self.stream)?;
            self.stream.record(&end)?;
            end.synchronize()?;
            if run > 0 {
                least = least.min(end.micros_since(&begin)?);
            }
        }
        Ok(least.max(1e-3))
    }
}

/// Bytes a second of the fastest of `repeats` reads of a buffer, which has `bytes`; none: as many as
/// its caches cannot hide, half of what is free at most. And how many bytes that were.
///
/// # Errors
/// [`Error::Device`] where the card or the compiler cannot be used, [`Error::Memory`].
pub fn read_peak(
    ordinal: usize,
    nvrtc_folders: &[PathBuf],
    bytes: Option<usize>,
    repeats: usize,
) -> Result<(f64, usize)> {
    let probe = Probe::new(ordinal, nvrtc_folders)?;
    let Probe {
        context, stream, ..
    } = &probe;
    let (free, _) = context.memory()?;
    let bytes = bytes.unwrap_or_else(|| buffer_bytes(context.info.l2_bytes, free));
    // Whole vectors.
    let bytes = bytes.max(1 << 10) & !15;
    let from = DeviceBuffer::new(context, bytes)?;
    from.fill(1, stream)?;
    let threads = (probe.blocks * READ_BLOCK) as usize;
    let sums = DeviceBuffer::new(context, threads * 4)?;
    let (variant, module) = probe.compiled(&READ)?;
    let params = Read {
        from: from.address(),
        sums: sums.address(),
        n: (bytes / 16) as u64,
    };
    let grid = [probe.blocks, 1, 1];
    let launch = Launch {
        function: module.function("read_sum", 0)?,
        spec: Spec::new(variant, "read_sum", grid, READ_BLOCK, &params),
        pdl: false,
    };
    let least = probe.fastest(&launch, repeats)?;
    let mut read = vec![0u32; threads];
    sums.read(0, &mut read, stream)?;
    let sum = read.iter().fold(0u32, |sum, &part| sum.wrapping_add(part));
    let expected = 0x0101_0101u32.wrapping_mul((bytes / 4) as u32);
    if sum != expected {
        return Err(Error::Internal(format!(
            "{bytes} bytes read on the card sum to {sum:#x}, not {expected:#x}"
        )));
    }
    Ok((bytes as f64 / (least * 1e-6), bytes))
}

/// Operations a second of the fastest of `repeats` runs of products of float16 with float32 sums, two
/// each of a multiplication and its addition.
///
/// # Errors
/// As [`read_peak`].
pub fn multiply_peak(ordinal: usize, nvrtc_folders: &[PathBuf], repeats: usize) -> Result<f64> {
    let probe = Probe::new(ordinal, nvrtc_folders)?;
    let threads = (probe.blocks * MULTIPLY_BLOCK) as usize;
    let sums = DeviceBuffer::new(&probe.context, threads * 4)?;
    let (variant, module) = probe.compiled(&MULTIPLY)?;
    let launch = |rounds| -> Result<Launch> {
        let params = Multiply {
            sums: sums.address(),
            rounds,
            unused: 0,
        };
        let grid = [probe.blocks, 1, 1];
        let spec = Spec::new(
            variant.clone(),
            "multiply_sum",
            grid,
            MULTIPLY_BLOCK,
            &params,
        );
        Ok(Launch {
            function: module.function("multiply_sum", 0)?,
            spec,
            pdl: false,
        })
    };
    // As many as take long beside the start of a kernel.
    let mut rounds = 1;
    while rounds < MOST_ROUNDS && probe.fastest(&launch(rounds)?, 1)? < LEAST_US {
        rounds *= 4;
    }
    let least = probe.fastest(&launch(rounds)?, repeats)?;
    let mut found = vec![0f32; threads];
    sums.read(0, &mut found, &probe.stream)?;
    // Of a thread, 32 sums of 16 ones for each instruction that adds to them.
    let expected = match probe.context.info.has_warpgroups() {
        true => 32 * 16 * 8 * rounds,
        false => 32 * 16 * rounds,
    };
    if let Some(wrong) = found.iter().find(|sum| **sum != expected as f32) {
        return Err(Error::Internal(format!(
            "{expected} products of ones on the card sum to {wrong}"
        )));
    }
    let operations = 2 * threads as u64 * u64::from(expected);
    Ok(operations as f64 / (least * 1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_far_larger_than_the_cache_and_leaves_room() {
        // An H100, and a card that reports nothing.
        assert_eq!(buffer_bytes(50 << 20, 80 << 30), 1600 << 20);
        assert_eq!(buffer_bytes(0, 8 << 30), 64 << 20);
        assert_eq!(buffer_bytes(50 << 20, 1 << 30), 512 << 20);
    }
}
