//! How fast a card reads its memory: the peak that decoding is measured by.

use std::path::PathBuf;

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

static SOURCE: Source = source!("read.cu", &[], Read);

shared! {
    struct Read = "ReadParams" {
        /// `[n]` vectors of 16 bytes.
        from: u64,
        /// `[blocks * BLOCK]` u32, of each thread.
        sums: u64,
        n: u64,
    }
}

const BLOCK: u32 = 512;
const BLOCKS_PER_SM: u32 = 4;

/// A buffer this many times the level-2 cache is read from memory, but for 3% at the most.
const CACHES: usize = 32;

/// Where a card does not tell its cache, one as large as those of the oldest.
const LEAST_CACHE: usize = 2 << 20;

/// Bytes of the buffer on a card with that cache and that much memory free.
fn buffer_bytes(l2_bytes: usize, free: usize) -> usize {
    CACHES * l2_bytes.max(LEAST_CACHE).min(free / 2 / CACHES)
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
    let context = Context::new(ordinal)?;
    let stream = Stream::new(&context)?;
    let (free, _) = context.memory()?;
    let bytes = bytes.unwrap_or_else(|| buffer_bytes(context.info.l2_bytes, free));
    // Whole vectors.
    let bytes = bytes.max(1 << 10) & !15;
    let from = DeviceBuffer::new(&context, bytes)?;
    from.fill(1, &stream)?;
    let blocks = context.info.sm_count.max(1) * BLOCKS_PER_SM;
    let sums = DeviceBuffer::new(&context, (blocks * BLOCK) as usize * 4)?;
    let variant = Variant::new(&SOURCE, Constants::default());
    let compiler = Compiler::new(context.info.number(), nvrtc_folders);
    let module = Module::new(&context, &compiler.image(&variant)?)?;
    let params = Read {
        from: from.address(),
        sums: sums.address(),
        n: (bytes / 16) as u64,
    };
    let launch = Launch {
        function: module.function("read_sum", 0)?,
        spec: Spec::new(variant, "read_sum", [blocks, 1, 1], BLOCK, &params),
        pdl: false,
    };
    let (begin, end) = (Event::new(&context)?, Event::new(&context)?);
    let mut least = f64::INFINITY;
    // The first one warms up.
    for run in 0..=repeats.max(1) {
        stream.record(&begin)?;
        launch.run(&stream)?;
        stream.record(&end)?;
        end.synchronize()?;
        if run > 0 {
            least = least.min(end.micros_since(&begin)?);
        }
    }
    let mut read = vec![0u32; (blocks * BLOCK) as usize];
    sums.read(0, &mut read, &stream)?;
    let sum = read.iter().fold(0u32, |sum, &part| sum.wrapping_add(part));
    let expected = 0x0101_0101u32.wrapping_mul((bytes / 4) as u32);
    if sum != expected {
        return Err(Error::Internal(format!(
            "{bytes} bytes read on the card sum to {sum:#x}, not {expected:#x}"
        )));
    }
    Ok((bytes as f64 / (least.max(1e-3) * 1e-6), bytes))
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
