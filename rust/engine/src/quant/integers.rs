//! Weights as small integers with scales: what the specified sum of [`crate::plan::Op::MatVec`]
//! multiplies, and what makes that sum exact.

use super::{Arithmetic, Block};

/// Columns of a superblock: those that share an exponent of x.
pub const COLUMNS: usize = 256;

/// Most sub-blocks of a superblock: runs of columns with one scale.
pub const SUBS: usize = 16;

/// Sub-blocks of the types that have offsets.
pub const OFFSET_SUBS: usize = 8;

/// The largest magnitude of a limb of x: x is `hi * 4096 + lo`.
pub const LIMB: i32 = 1 << 11;

/// Bits of the lower part of a sum of x: 32 columns sum up to `upper << SUM_BITS` plus `lower`,
/// `lower` at most half a step of `upper`.
pub const SUM_BITS: u32 = 14;

/// Magnitudes below which every integer is a float32.
const EXACT: i64 = 1 << 24;

/// Significant bits of a float16.
const HALF_BITS: u32 = 11;

/// What the weights of a sub-block have beside `d s q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offsets {
    /// Nothing.
    None,
    /// `- dmin m`: an integer `m` each, up to `most`, in a unit of the whole superblock.
    Shared { most: i64 },
    /// `+ m`: a number each.
    Own,
}

/// A block format of small integers with scales.
pub trait Integers: Block {
    /// Columns with one scale, 16 or 32.
    const SUB: usize;
    /// The largest `|q|`.
    const LARGEST_Q: i64;
    /// Bits of the integer `s` beside the float16 `d`; 1 where the scale is `d` alone.
    const SCALE_BITS: u32;
    /// What sub-blocks have beside their scales.
    const OFFSETS: Offsets = Offsets::None;

    /// What the sum takes for granted, proven when it is compiled for this type.
    const PROOF: () = {
        assert!(Self::SUB == 16 || Self::SUB == 32);
        assert!(COLUMNS.is_multiple_of(Self::ELEMS) && Self::ELEMS.is_multiple_of(Self::SUB));
        // The sum of a sub-block, with either limb.
        assert!(Self::SUB as i64 * Self::LARGEST_Q * (LIMB as i64) < EXACT);
        // `q` fits the arrays here.
        assert!(Self::LARGEST_Q <= 128);
        // `d s` has no rounding.
        assert!(HALF_BITS + Self::SCALE_BITS <= 24);
        if !matches!(Self::OFFSETS, Offsets::None) {
            assert!(Self::SUB * OFFSET_SUBS == COLUMNS);
            // The sum of x over a sub-block: its upper part fits 16 bits.
            let sum = Self::SUB as i64 * (LIMB as i64 * 4096);
            let (upper, lower) = (sum >> SUM_BITS, 1 << (SUM_BITS - 1));
            assert!(upper < 1 << 15);
            if let Offsets::Shared { most } = Self::OFFSETS {
                // The sums of the minimums with either part.
                assert!(OFFSET_SUBS as i64 * most * upper < EXACT);
                assert!(OFFSET_SUBS as i64 * most * lower < EXACT);
            }
        }
    };

    /// Takes one block apart, `block.len() == BYTES`. As [`Block::expand`]: `#[inline(always)]`,
    /// without calls or branches. The block is copied first: what the compiler does not know to be
    /// apart from `q`, it does not vectorize.
    fn integers<A: Arithmetic>(block: &[u8], out: Parts<'_>);
}

/// Where the parts of one block go.
pub struct Parts<'a> {
    /// `[ELEMS]`: `q` in the order of the columns.
    pub q: &'a mut [i8],
    /// `[ELEMS / SUB]`: `d s` of each sub-block.
    pub scales: &'a mut [f32],
    /// [`Offsets::Own`], `[ELEMS / SUB]`: `m` of each sub-block. [`Offsets::Shared`]: the first is
    /// `dmin`.
    pub offsets: &'a mut [f32],
    /// [`Offsets::Shared`]: `m` of each sub-block.
    pub mins: &'a mut [i16; OFFSET_SUBS],
}

/// 256 columns of a row.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Superblock {
    pub q: [i8; COLUMNS],
    pub scales: [f32; SUBS],
    /// [`Offsets::Own`]: each sub-block's; [`Offsets::Shared`]: the first is `dmin`.
    pub offsets: [f32; SUBS],
    pub mins: [i16; OFFSET_SUBS],
}

impl Superblock {
    /// No columns.
    pub const ZERO: Self = Self {
        q: [0; COLUMNS],
        scales: [0.0; SUBS],
        offsets: [0.0; SUBS],
        mins: [0; OFFSET_SUBS],
    };

    /// Bytes of a whole superblock of `B`.
    pub const fn bytes<B: Block>() -> usize {
        COLUMNS / B::ELEMS * B::BYTES
    }

    /// Takes the blocks of one superblock apart; the last one of a row may have fewer: its missing
    /// columns are zeros.
    #[inline(always)]
    pub fn take<A: Arithmetic, B: Integers>(&mut self, blocks: &[u8]) {
        const { B::PROOF };
        if blocks.len() < Self::bytes::<B>() {
            *self = Self::ZERO;
        }
        let subs = B::ELEMS / B::SUB;
        for (((block, q), scales), offsets) in blocks
            .chunks_exact(B::BYTES)
            .zip(self.q.chunks_exact_mut(B::ELEMS))
            .zip(self.scales.chunks_exact_mut(subs))
            .zip(self.offsets.chunks_exact_mut(subs))
        {
            let parts = Parts {
                q,
                scales,
                offsets,
                mins: &mut self.mins,
            };
            B::integers::<A>(block, parts);
        }
    }
}
