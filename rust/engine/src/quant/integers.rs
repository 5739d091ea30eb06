//! Weights as small integers with scales: what the specified sum of [`crate::plan::Op::MatVec`]
//! multiplies, and what makes that sum exact.

use super::Block;

/// Columns of a superblock: those that share an exponent of x.
pub const COLUMNS: usize = 256;

/// Most sub-blocks of a superblock: runs of columns with one scale.
pub const SUBS: usize = 16;

/// Sub-blocks of the types that have offsets.
pub const OFFSET_SUBS: usize = 8;

/// Most blocks of a superblock.
pub const BLOCKS: usize = 8;

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

impl Offsets {
    /// Whether they are in a unit of the whole superblock.
    pub const fn is_shared(self) -> bool {
        matches!(self, Offsets::Shared { .. })
    }
}

/// A block format of small integers with scales.
pub trait Integers: Block {
    /// Columns with one scale, 16 or 32.
    const SUB: usize;
    /// The largest `|q|`.
    const LARGEST_Q: i64;
    /// Bits of the integer `s` beside the float16 `d`; 1 where the scale is `d` alone.
    const SCALE_BITS: u32;
    /// Whether the sum of a sub-block with the lower two of three signed bytes of X is a float32.
    const IS_NARROW: bool = Self::SUB as i64 * Self::LARGEST_Q * (128 * 256 + 128) < EXACT;
    /// Whether there is such an `s`.
    const HAS_STEPS: bool = Self::SCALE_BITS > 1;
    /// What sub-blocks have beside their scales.
    const OFFSETS: Offsets = Offsets::None;

    /// What the sum takes for granted, proven when it is compiled for this type.
    const PROOF: () = {
        assert!(Self::SUB == 16 || Self::SUB == 32);
        assert!(COLUMNS.is_multiple_of(Self::ELEMS) && Self::ELEMS.is_multiple_of(Self::SUB));
        assert!(COLUMNS <= BLOCKS * Self::ELEMS);
        // The sum of a sub-block, with either limb.
        assert!(Self::SUB as i64 * Self::LARGEST_Q * (LIMB as i64) < EXACT);
        // With three signed bytes: `16 a + (256 b + c) / 4096`.
        assert!(Self::SUB as i64 * Self::LARGEST_Q * (16 * 128 + 9) < EXACT);
        // `q` fits the arrays here.
        assert!(Self::LARGEST_Q <= 128);
        // `d s` has no rounding; only a block of a whole superblock has room for `s`.
        assert!(HALF_BITS + Self::SCALE_BITS <= 24);
        assert!(Self::SCALE_BITS <= 8 && (!Self::HAS_STEPS || Self::ELEMS == COLUMNS));
        if !matches!(Self::OFFSETS, Offsets::None) {
            assert!(Self::SUB * OFFSET_SUBS == COLUMNS);
            // The sum of x over a sub-block: its upper part fits 16 bits.
            let sum = Self::SUB as i64 * (LIMB as i64 * 4096);
            let (upper, lower) = (sum >> SUM_BITS, 1 << (SUM_BITS - 1));
            assert!(upper < 1 << 15);
            // A block has one `m`, or one `dmin`.
            assert!(Self::OFFSETS.is_shared() || Self::ELEMS == Self::SUB);
            assert!(!Self::OFFSETS.is_shared() || Self::ELEMS == COLUMNS);
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
    fn integers(block: &[u8], out: Parts<'_>);
}

/// Where the parts of one block go.
pub struct Parts<'a> {
    /// `[ELEMS]`: `q` in the order of the columns.
    pub q: &'a mut [i8],
    /// The bits of the float16 `d`.
    pub d: &'a mut u16,
    /// Where there are offsets: the bits of the float16 `m`, or of `dmin`.
    pub m: &'a mut u16,
    /// [`Offsets::Shared`]: `m` of each sub-block.
    pub mins: &'a mut [i16; OFFSET_SUBS],
    /// Where the scales have them, `s` of each sub-block.
    pub steps: &'a mut [i8; SUBS],
}

/// 256 columns of a row: what [`Integers::integers`] gives of each block.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub struct Superblock {
    pub q: [i8; COLUMNS],
    pub d: [u16; BLOCKS],
    pub m: [u16; BLOCKS],
    pub mins: [i16; OFFSET_SUBS],
    pub steps: [i8; SUBS],
}

impl Superblock {
    /// No columns.
    pub const ZERO: Self = Self {
        q: [0; COLUMNS],
        d: [0; BLOCKS],
        m: [0; BLOCKS],
        mins: [0; OFFSET_SUBS],
        steps: [0; SUBS],
    };

    /// Bytes of a whole superblock of `B`.
    pub const fn bytes<B: Block>() -> usize {
        COLUMNS / B::ELEMS * B::BYTES
    }

    /// The block that sub-block `j` of `B` is in.
    pub const fn block_of<B: Integers>(j: usize) -> usize {
        j * B::SUB / B::ELEMS
    }

    /// What it holds, 16 bytes each.
    pub fn pieces(&self) -> &[[u8; 16]; size_of::<Self>() / 16] {
        bytemuck::cast_ref(self)
    }

    /// Takes the blocks of one superblock apart; the last one of a row may have fewer: its missing
    /// columns are zeros.
    #[inline(always)]
    pub fn take<B: Integers>(&mut self, blocks: &[u8]) {
        const { B::PROOF };
        if blocks.len() < Self::bytes::<B>() {
            *self = Self::ZERO;
        }
        for (((block, q), d), m) in blocks
            .chunks_exact(B::BYTES)
            .zip(self.q.chunks_exact_mut(B::ELEMS))
            .zip(&mut self.d)
            .zip(&mut self.m)
        {
            let parts = Parts {
                q,
                d,
                m,
                mins: &mut self.mins,
                steps: &mut self.steps,
            };
            B::integers(block, parts);
        }
    }
}
