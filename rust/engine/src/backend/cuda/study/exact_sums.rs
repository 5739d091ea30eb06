//! Whether a card's tensor cores sum the products of a sub-block exactly: what the products of
//! quantized weights stand on, see [`crate::plan::Op::MatVec`]. Proven by the card at hand, for no
//! manual promises it.

use std::fmt::Write;
use std::path::PathBuf;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::compile::Compiler;
use crate::backend::cuda::driver::constants::{Constants, Line};
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::launch::Launch;
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::driver::source::{shared, source, Source, Variant};
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::lower::params::CONSTANTS;
use crate::backend::cuda::lower::shape::{TILE_COLS, TILE_ROWS};
use crate::error::{Error, Result};
use crate::quant::{QuantType, TYPES};

static SOURCE: Source = source!("exact_sums.cu", CONSTANTS, ExactSums);

shared! {
    struct ExactSums = "ExactSumsParams" {
        /// `[types][sums, wrong]` u64.
        found: u64,
        tiles: u32,
        seed: u32,
    }
}

const THREADS: u32 = 64;
const BLOCKS_PER_SM: u32 = 8;
const SEED: u32 = 1;

/// Minutes of any card.
const MOST_SUMS: u64 = 1 << 36;

/// Sums at least of a tile with eight rows of x: at most 32 columns share a scale.
const TILE_SUMS: u64 = (TILE_ROWS * TILE_COLS / 32 * 8) as u64;

/// What was found of the sums of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumCheck {
    pub ty: &'static str,
    pub sums: u64,
    /// Of them, those that are not exact.
    pub wrong: u64,
}

/// Compares `sums` sums of sub-blocks on card `ordinal`, or somewhat more, with sums of integers:
/// as many of each type whose weights are small integers.
///
/// # Errors
/// [`Error::Device`] where the card or the compiler cannot be used, [`Error::Memory`];
/// [`Error::Argument`] for a number that is out of range.
pub fn check(ordinal: usize, nvrtc_folders: &[PathBuf], sums: u64) -> Result<Vec<SumCheck>> {
    let types: Vec<_> = types().collect();
    if !(1..=MOST_SUMS).contains(&sums) {
        return Err(Error::Argument {
            name: "sums",
            value: sums.to_string(),
            reason: format!("must be from 1 to {MOST_SUMS}"),
        });
    }
    let tiles = sums.div_ceil(TILE_SUMS * types.len() as u64) as u32;
    let context = Context::new(ordinal)?;
    let stream = Stream::new(&context)?;
    let found = DeviceBuffer::new(&context, 16 * types.len())?;
    found.fill(0, &stream)?;
    let variant = variant();
    let compiler = Compiler::new(context.info.number(), nvrtc_folders);
    let module = Module::new(&context, &compiler.image(&variant)?)?;
    let params = ExactSums {
        found: found.address(),
        tiles,
        seed: SEED,
    };
    let warps = THREADS / 32;
    let blocks = (context.info.sm_count.max(1) * BLOCKS_PER_SM).min(tiles.div_ceil(warps));
    let grid = [blocks, types.len() as u32, 1];
    let launch = Launch {
        function: module.function("exact_sums", 0)?,
        spec: Spec::new(variant, "exact_sums", grid, THREADS, &params),
        pdl: false,
    };
    launch.run(&stream)?;
    let mut counts = vec![[0u64; 2]; types.len()];
    found.read(0, counts.as_flattened_mut(), &stream)?;
    let checks = types.iter().zip(counts);
    let check = |(ty, [sums, wrong]): (&&QuantType, [u64; 2])| SumCheck {
        ty: ty.name,
        sums,
        wrong,
    };
    Ok(checks.map(check).collect())
}

/// Those whose weights are small integers.
fn types() -> impl Iterator<Item = &'static QuantType> {
    TYPES.iter().filter(|t| t.integers)
}

/// The kernel for all types: their headers, and `with_type`, which calls its second argument with
/// type number so and so.
pub fn variant() -> Variant {
    let mut constants = Constants::default();
    let mut text =
        String::from("template <typename F>\nDEVICE void with_type(uint32_t number, F f) {\n");
    for (number, ty) in types().enumerate() {
        constants.push(Line::Include(ty.kernel.header));
        let _ = writeln!(text, "    if (number == {number}) f({}{{}});", ty.name);
    }
    constants.push(Line::Function(text + "}\n"));
    Variant::new(&SOURCE, constants)
}
