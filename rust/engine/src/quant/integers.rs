//! Weights as small integers with scales: what the specified sum of [`crate::plan::Op::MatVec`]
//! multiplies, and what makes that sum exact.

use super::Block;

/// Columns of a superblock: those that share an exponent of x.
pub const COLUMNS: usize = 256;

/// Most sub-blocks of a superblock: runs of columns with one scale.
pub const SUBS: usize = 16;

/// Sub-blocks of the types that have offsets of their own.
pub const OFFSET_SUBS: usize = 8;

/// Most blocks of a superblock.
pub const BLOCKS: usize = 8;

/// Words of the longest superblock, in whole fours.
pub const WORDS: usize = 68;

/// Words of the minimums of a superblock that has the most of them.
pub const MIN_WORDS: usize = SUBS / 2;

/// The sub-blocks whose minimums make a word: what a shift and a mask make of bytes. Those of eight
/// sub-blocks are the first four.
pub const MINS: [[usize; 2]; MIN_WORDS] = [
    [0, 2],
    [1, 3],
    [4, 6],
    [5, 7],
    [8, 10],
    [9, 11],
    [12, 14],
    [13, 15],
];

/// Columns of x that share an exponent before those of a superblock do.
pub const X_BLOCK: usize = 32;

/// The largest magnitude of an integer of x, and of a sum of x that minimums multiply.
const LARGEST_X: i64 = 1 << 14;

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

/// What the scale `d` of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A float16.
    Half,
    /// `2^(byte - 128)`, of one byte.
    Power,
    /// Half of an E4M3 number, the lower seven bits of a byte; 0 where the byte is 127, its NaN.
    Float8,
}

/// A block format of small integers with scales.
pub trait Integers: Block {
    /// Columns with one scale, 16 or 32.
    const SUB: usize;
    /// The largest `|q|`.
    const LARGEST_Q: i64;
    /// What `d` is.
    const SCALE: Scale = Scale::Half;
    /// Bits of the integer `s` beside `d`; 1 where the scale is `d` alone.
    const SCALE_BITS: u32;
    /// What `d` is in units of: a power of two, so that no product with it rounds.
    const D_UNIT: f32 = 1.0;
    /// Whether sub-blocks have anything beside their scales.
    const HAS_OFFSETS: bool = !matches!(Self::OFFSETS, Offsets::None);
    /// Whether there is such an `s`.
    const HAS_STEPS: bool = Self::SCALE_BITS > 1;
    /// What sub-blocks have beside their scales.
    const OFFSETS: Offsets = Offsets::None;

    /// Bytes of a superblock.
    const SUPERBLOCK: usize = COLUMNS / Self::ELEMS * Self::BYTES;

    /// What the sum takes for granted, proven when it is compiled for this type.
    const PROOF: () = {
        assert!(Self::SUB == 16 || Self::SUB == 32);
        assert!(COLUMNS.is_multiple_of(Self::ELEMS) && Self::ELEMS.is_multiple_of(Self::SUB));
        assert!(COLUMNS <= BLOCKS * Self::ELEMS && Self::SUPERBLOCK <= 4 * WORDS);
        // A sub-block has one grid of x, and its sums with both parts of `q = 16 hi + lo` are float32.
        assert!(X_BLOCK.is_multiple_of(Self::SUB));
        assert!(Self::SUB as i64 * 16 * LARGEST_X < EXACT);
        // `q` and `s` are signed bytes.
        assert!(Self::LARGEST_Q <= 128 && Self::SCALE_BITS <= 8);
        // `d s` has no rounding.
        assert!(HALF_BITS + Self::SCALE_BITS <= 24);
        // Nor has `d D_UNIT`: the least float16 has 125 places more above the least float32.
        assert!(Self::D_UNIT.to_bits() << 9 == 0 && Self::D_UNIT <= 1.0 && Self::D_UNIT >= 0.0625);
        assert!(!matches!(Self::SCALE, Scale::Power) || !Self::HAS_STEPS);
        // A block has one `d` where there are steps, else each sub-block has one.
        assert!(!Self::HAS_STEPS || Self::ELEMS == COLUMNS);
        if Self::HAS_OFFSETS {
            let subs = COLUMNS / Self::SUB;
            assert!(subs == OFFSET_SUBS || Self::OFFSETS.is_shared());
            // A block has one `m`, or one `dmin`.
            assert!(Self::OFFSETS.is_shared() || Self::ELEMS == Self::SUB);
            assert!(!Self::OFFSETS.is_shared() || Self::ELEMS == COLUMNS);
            if let Offsets::Shared { most } = Self::OFFSETS {
                // The sum of the minimums.
                assert!(subs as i64 * most * LARGEST_X < EXACT);
            }
        }
    };

    /// Takes the superblock of each of some rows apart. `words` are the rows' bytes, four a word, the
    /// first one the lowest; `blocks` of them count. As [`Block::expand`]: `#[inline(always)]`,
    /// without calls; what it gives past `blocks` counts for nothing.
    fn integers<W: Words>(words: &[W; WORDS], blocks: usize, out: &mut impl Sink<W>);
}

/// 32 bits of each of some rows.
pub trait Words: Copy {
    fn and(self, mask: u32) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, mask: u32) -> Self;
    /// Wraps.
    fn minus(self, x: u32) -> Self;
    /// Shifts by up to 31 bits.
    fn left(self, bits: u32) -> Self;
    /// Shifts by up to 31 bits, zeros come after.
    fn right(self, bits: u32) -> Self;
    /// The bits in which the two differ.
    fn differ(self, other: Self) -> Self;
    /// Wraps.
    fn plus(self, other: Self) -> Self;
    /// Of each row's word `w` the word `table[w % N][part]`: `N` is a power of two, `P` 1 or 2.
    fn look_up<const P: usize, const N: usize>(self, table: &[[u32; P]; N], part: usize) -> Self;
    /// Of bytes below 16: the numbers that the table has there.
    fn look_up_bytes(self, table: &[i8; 16]) -> Self;
}

impl<const N: usize> Words for [u32; N] {
    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        self.map(|word| word & mask)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] | other[i])
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        self.map(|word| word ^ mask)
    }

    #[inline(always)]
    fn minus(self, x: u32) -> Self {
        self.map(|word| word.wrapping_sub(x))
    }

    #[inline(always)]
    fn left(self, bits: u32) -> Self {
        self.map(|word| word << bits)
    }

    #[inline(always)]
    fn right(self, bits: u32) -> Self {
        self.map(|word| word >> bits)
    }

    #[inline(always)]
    fn differ(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] ^ other[i])
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_add(other[i]))
    }

    #[inline(always)]
    fn look_up<const P: usize, const M: usize>(self, table: &[[u32; P]; M], part: usize) -> Self {
        self.map(|word| table[word as usize % M][part])
    }

    #[inline(always)]
    fn look_up_bytes(self, table: &[i8; 16]) -> Self {
        let number = |byte: u8| table[usize::from(byte % 16)] as u8;
        self.map(|word| u32::from_le_bytes(word.to_le_bytes().map(number)))
    }
}

/// `byte` four times.
pub const fn four(byte: u8) -> u32 {
    u32::from_ne_bytes([byte; 4])
}

/// Each byte, all below 128, less `bias`.
#[inline(always)]
pub fn less<W: Words>(bytes: W, bias: u8) -> W {
    // The top bits keep a byte from borrowing of the next.
    bytes.xor(four(128)).minus(four(bias)).xor(four(128))
}

/// The 4-bit numbers of bytes: the low ones, the high ones.
#[inline(always)]
pub fn nibbles<W: Words>(bytes: W) -> [W; 2] {
    [bytes.and(four(15)), bytes.right(4).and(four(15))]
}

/// The word that begins in the middle of `first`.
#[inline(always)]
pub fn across<W: Words>(first: W, second: W) -> W {
    first.right(16).or(second.left(16))
}

/// Takes the parts of superblocks.
pub trait Sink<W> {
    /// `q` of columns `4 i` to `4 i + 3`, a signed byte each.
    fn q(&mut self, i: usize, q: W);
    /// Of block `i`, or without steps of sub-block `i`, in the lower half of each word: the bits of
    /// the float16 `d`, or in the lowest byte those of another [`Scale`].
    fn d(&mut self, i: usize, d: W);
    /// Of block `i`, in the lower half: the float16 `m`, or `dmin`.
    fn m(&mut self, i: usize, m: W);
    /// After `d`: `s` of sub-blocks `4 i` to `4 i + 3`, a signed byte each.
    fn steps(&mut self, i: usize, s: W);
    /// The minimums of the sub-blocks [`MINS`]`[i]`, 16 bits each.
    fn mins(&mut self, i: usize, m: W);
}
