//! Vector instructions: what they do is said once, in [`Isa`], compiled for each instruction set,
//! and chosen at run time. Every instruction set gives the same bits.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::sync::OnceLock;

use crate::quant::{Arithmetic, Words, COLUMNS};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Lanes of every sum: see [`super::product`].
pub const LANES: usize = 32;

/// One number for each lane.
pub type Group = [f32; LANES];

/// 32 bits of a lane: one integer, two 16-bit ones or four bytes, the first one the lowest.
pub type Word = u32;

/// Words of four columns that a superblock has.
pub const QUADS: usize = COLUMNS / 4;

/// A superblock's integers of x as an instruction set multiplies them: written and read by one
/// instruction set only, see [`Isa::factors`].
#[derive(Clone)]
pub struct Factors {
    /// For each four columns.
    pub words: [[Word; 2]; QUADS],
}

impl Factors {
    /// Zeros.
    pub const ZERO: Self = Self {
        words: [[0; 2]; QUADS],
    };
}

/// Two integers that fit 16 bits.
#[inline(always)]
pub fn pair(first: i32, second: i32) -> Word {
    first as u32 & 0xffff | (second as u32) << 16
}

/// The integers of a pair.
#[inline(always)]
fn unpair(pair: Word) -> [i32; 2] {
    [i32::from(pair as i16), pair as i32 >> 16]
}

/// What there is for each architecture, the best one last: of each instruction set its variant in
/// [`Set`], its name, its [`Isa`], and the features that it is compiled for and that a processor is
/// asked for.
macro_rules! sets {
    ($($arch:literal, $is_detected:ident {
        $($set:ident, $name:literal, $isa:ty, [$($feature:tt),+];)*
    })*) => {
        /// An instruction set that the backend was compiled for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Set {
            Scalar,
            $($(#[cfg(target_arch = $arch)] $set,)*)*
        }

        impl Set {
            /// The best one last.
            const ALL: &[Set] = &[
                Set::Scalar,
                $($(#[cfg(target_arch = $arch)] Set::$set,)*)*
            ];

            fn name(self) -> &'static str {
                match self {
                    Set::Scalar => "scalar",
                    $($(#[cfg(target_arch = $arch)] Set::$set => $name,)*)*
                }
            }

            /// Whether this processor has every feature that [`run`] compiles it with.
            fn is_available(self) -> bool {
                match self {
                    Set::Scalar => true,
                    $($(
                        #[cfg(target_arch = $arch)]
                        Set::$set => $($is_detected!($feature))&&+,
                    )*)*
                }
            }
        }

        /// Runs `task` compiled for `level`.
        pub fn run<T: Task>(level: Level, task: T) -> T::Out {
            match level.0 {
                Set::Scalar => task.run::<Plain>(),
                $($(
                    #[cfg(target_arch = $arch)]
                    Set::$set => {
                        #[target_feature($(enable = $feature),+)]
                        fn compiled<T: Task>(task: T) -> T::Out {
                            task.run::<$isa>()
                        }
                        // SAFETY: `Level::new`, the only way to this level, asked the processor for
                        // each feature of `compiled`.
                        unsafe { compiled(task) }
                    }
                )*)*
            }
        }
    };
}

sets! {
    "x86_64", is_x86_feature_detected {
        Avx2, "avx2", x86::Avx2<false>, ["avx2", "fma", "f16c"];
        Avx2Vnni, "avx2_vnni", x86::Avx2<true>, ["avx2", "fma", "f16c", "avxvnni"];
        Avx512, "avx512", x86::Avx512<false>,
            ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"];
        Avx512Vnni, "avx512_vnni", x86::Avx512<true>,
            ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"];
    }
    "aarch64", is_aarch64_feature_detected {
        Neon, "neon", aarch64::Neon<false>, ["neon"];
        NeonDotprod, "neon_dotprod", aarch64::Neon<true>, ["neon", "dotprod"];
    }
}

/// An instruction set that this processor has. Its field is private and every way to one asks the
/// processor, so that a holder of a level may run code compiled for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(Set);

impl Level {
    /// `set`, where this processor has it.
    fn new(set: Set) -> Option<Self> {
        set.is_available().then_some(Self(set))
    }

    /// All of this processor, the best one last.
    pub fn all() -> impl Iterator<Item = Self> {
        Set::ALL.iter().filter_map(|set| Self::new(*set))
    }

    /// The best one of this processor; `ONEGRAPH_CPU` = the name of one asks for no better one.
    pub fn detect() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let most = std::env::var("ONEGRAPH_CPU").unwrap_or_default();
            let mut best = Self(Set::Scalar);
            for level in Self::all() {
                best = level;
                if level.name() == most {
                    break;
                }
            }
            best
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name()
    }
}

/// One instruction set. The compiler vectorizes the expansion of blocks well by itself, but not an
/// accumulator that lives across a loop: those are spelled out.
pub trait Isa: Arithmetic {
    /// Some lanes of a group.
    type Vector: Copy;
    /// All lanes of a group: [`Self::STRIPS`] vectors.
    type Acc: Copy + AsRef<[Self::Vector]> + AsMut<[Self::Vector]>;
    /// Vectors that make a group.
    const STRIPS: usize;
    /// Rows of `x` that a tile of products may have before its accumulators leave the registers.
    const COLUMNS: usize;
    /// The same of products of integers.
    const INT_COLUMNS: usize;
    fn zeros() -> Self::Acc;
    /// The same number in every lane.
    fn splat(x: f32) -> Self::Vector;
    /// Vector `strip` of a group, `strip < STRIPS`.
    fn load(group: &Group, strip: usize) -> Self::Vector;
    fn store(vector: Self::Vector, group: &mut Group, strip: usize);
    /// `a * b + c` with one rounding.
    fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a + b`.
    fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn multiply(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `-(a * b)`.
    fn negated_product(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Adds up the lanes in halves: 16, 8, 4, 2, 1.
    fn fold(acc: Self::Acc) -> f32;

    /// Asks for what will be read soon.
    #[inline(always)]
    fn prefetch(_: &[u8]) {}

    /// As many words as a vector has floats.
    type Words: Words;
    /// The sums of a sub-block's products in each lane.
    type Sums: Copy;
    /// Zeros.
    fn no_words() -> Self::Words;
    /// Vector `strip` of a group of words.
    fn words(group: &[Word; LANES], strip: usize) -> Self::Words;
    fn store_words(words: Self::Words, group: &mut [Word; LANES], strip: usize);
    /// The same word in every lane.
    fn word(word: Word) -> Self::Words;
    /// Of words of two 16-bit integers: `acc + a[0] * b[0] + a[1] * b[1]` in each lane.
    fn dot_pairs(a: Self::Words, b: Self::Words, acc: Self::Words) -> Self::Words;
    /// Of words of one integer.
    fn floats(integers: Self::Words) -> Self::Vector;
    /// Of words whose lower 16 bits are a half.
    fn halves(words: Self::Words) -> Self::Vector;
    /// The floats of these bits.
    fn bits(words: Self::Words) -> Self::Vector;
    /// Of words whose lowest byte is `b`: `2^(b - 128)`.
    #[inline(always)]
    fn powers(words: Self::Words) -> Self::Vector {
        // Of two factors: the product may be subnormal, where the exponent is no field.
        let b = words.and(0xff);
        let (low, high) = (b.right(1), b.minus(u32::MAX).right(1));
        let bias = 0u32.wrapping_sub(63);
        Self::multiply(
            Self::bits(low.minus(bias).left(23)),
            Self::bits(high.minus(bias).left(23)),
        )
    }
    /// Of words whose lowest byte is one of [`crate::quant::Scale::Float8`].
    #[inline(always)]
    fn halved_floats8(words: Self::Words) -> Self::Vector {
        let b = words.and(0xff);
        // 1 where it is 127; then seven ones.
        let one = b.xor(128).minus(u32::MAX).right(8);
        let two = one.or(one.left(1));
        let four = two.or(two.left(2));
        let none = four.or(four.left(3));
        // A half's exponent is 8 more, its mantissa 7 bits longer.
        let kept = b.xor(u32::MAX).or(none).xor(u32::MAX).and(127);
        Self::multiply(Self::halves(kept.left(7)), Self::splat(128.0))
    }
    /// Of words of four signed bytes: those at `i`.
    fn bytes(words: Self::Words, i: usize) -> Self::Vector;

    /// Takes integers of up to 2^14 in size.
    fn factors(x: &[i32; COLUMNS], out: &mut Factors);
    /// Puts rows that begin `stride` bytes apart side by side, as many as a vector has lanes: four
    /// words of each, `out.len()` times.
    ///
    /// # Panics
    /// Where `bytes` end before that.
    fn interleave(bytes: &[u8], stride: usize, out: &mut [[Self::Words; 4]]);
    /// Four signed bytes of weights as [`Self::dot`] takes them.
    fn weights(q: Self::Words) -> Self::Words;
    /// What [`Self::dot`] takes weights with more than they are.
    const BIAS: i32 = 0;
    /// Sums of no columns but this one.
    fn start(sum: i32) -> Self::Sums;
    /// `sums` and the products of four columns.
    fn dot(q: Self::Words, x: &[Word; 2], sums: Self::Sums) -> Self::Sums;
    /// The sums of whole sub-blocks as words of one integer.
    fn whole(sums: Self::Sums) -> Self::Words;
}

/// Factors for 16-bit multiply-adds: of four columns the even ones, then the odd ones. Bytes of weights
/// become 16-bit integers fastest where even and odd ones go apart.
#[inline(always)]
fn pair_factors(x: &[i32; COLUMNS], out: &mut Factors) {
    for (x, words) in x.as_chunks::<4>().0.iter().zip(&mut out.words) {
        *words = [pair(x[0], x[2]), pair(x[1], x[3])];
    }
}

/// Factors for multiply-adds of bytes, `x = a + 256 b`: of four columns the signed bytes of `a`, then
/// of `b`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn byte_factors(x: &[i32; COLUMNS], out: &mut Factors) {
    let mut bytes = [[0; COLUMNS]; 2];
    let [a, b] = &mut bytes;
    for ((x, a), b) in x.iter().zip(a).zip(b) {
        *a = *x as u8;
        *b = ((x + 128) >> 8) as u8;
    }
    let [a, b] = &bytes;
    let bytes = a.as_chunks().0.iter().zip(b.as_chunks().0);
    for (words, (a, b)) in out.words.iter_mut().zip(bytes) {
        *words = [u32::from_le_bytes(*a), u32::from_le_bytes(*b)];
    }
}

#[inline(always)]
fn fold_8(a: [f32; 8]) -> f32 {
    let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
    (b[0] + b[2]) + (b[1] + b[3])
}

/// Plain code: whatever the target was compiled for.
pub struct Plain;

impl Arithmetic for Plain {}

impl Isa for Plain {
    type Vector = [f32; 8];
    type Acc = [[f32; 8]; 4];
    const STRIPS: usize = 4;
    const COLUMNS: usize = 2;
    const INT_COLUMNS: usize = 2;

    #[inline(always)]
    fn zeros() -> Self::Acc {
        [[0.0; 8]; 4]
    }

    #[inline(always)]
    fn splat(x: f32) -> [f32; 8] {
        [x; 8]
    }

    #[inline(always)]
    fn load(group: &Group, strip: usize) -> [f32; 8] {
        std::array::from_fn(|j| group[8 * strip + j])
    }

    #[inline(always)]
    fn store(vector: [f32; 8], group: &mut Group, strip: usize) {
        group[8 * strip..8 * strip + 8].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn fma(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|j| a[j].mul_add(b[j], c[j]))
    }

    #[inline(always)]
    fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|j| a[j] + b[j])
    }

    #[inline(always)]
    fn multiply(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|j| a[j] * b[j])
    }

    #[inline(always)]
    fn negated_product(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|j| -(a[j] * b[j]))
    }

    type Words = [Word; 8];
    type Sums = [i32; 8];

    #[inline(always)]
    fn no_words() -> [Word; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn words(group: &[Word; LANES], strip: usize) -> [Word; 8] {
        std::array::from_fn(|j| group[8 * strip + j])
    }

    #[inline(always)]
    fn store_words(words: [Word; 8], group: &mut [Word; LANES], strip: usize) {
        group[8 * strip..8 * strip + 8].copy_from_slice(&words);
    }

    #[inline(always)]
    fn word(word: Word) -> [Word; 8] {
        [word; 8]
    }

    #[inline(always)]
    fn dot_pairs(a: [Word; 8], b: [Word; 8], acc: [Word; 8]) -> [Word; 8] {
        std::array::from_fn(|j| {
            let (a, b) = (unpair(a[j]), unpair(b[j]));
            let sum = (acc[j] as i32)
                .wrapping_add(a[0].wrapping_mul(b[0]))
                .wrapping_add(a[1].wrapping_mul(b[1]));
            sum as u32
        })
    }

    #[inline(always)]
    fn floats(integers: [Word; 8]) -> [f32; 8] {
        integers.map(|word| word as i32 as f32)
    }

    #[inline(always)]
    fn halves(words: [Word; 8]) -> [f32; 8] {
        words.map(|word| Self::half(word as u16))
    }

    #[inline(always)]
    fn bits(words: [Word; 8]) -> [f32; 8] {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn bytes(words: [Word; 8], i: usize) -> [f32; 8] {
        words.map(|word| f32::from((word >> (8 * i)) as i8))
    }

    #[inline(always)]
    fn factors(x: &[i32; COLUMNS], out: &mut Factors) {
        pair_factors(x, out);
    }

    #[inline(always)]
    fn interleave(bytes: &[u8], stride: usize, out: &mut [[[Word; 8]; 4]]) {
        for lane in 0..8 {
            let words = bytes[lane * stride..][..16 * out.len()].as_chunks().0;
            for (out, word) in out.as_flattened_mut().iter_mut().zip(words) {
                out[lane] = u32::from_le_bytes(*word);
            }
        }
    }

    #[inline(always)]
    fn weights(q: [Word; 8]) -> [Word; 8] {
        q
    }

    #[inline(always)]
    fn start(_: i32) -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn dot(q: [Word; 8], x: &[Word; 2], mut sums: [i32; 8]) -> [i32; 8] {
        let [even, odd] = x.map(unpair);
        for (sum, q) in sums.iter_mut().zip(q) {
            let q = q.to_le_bytes().map(|q| i32::from(q as i8));
            *sum += q[0] * even[0] + q[1] * odd[0] + q[2] * even[1] + q[3] * odd[1];
        }
        sums
    }

    #[inline(always)]
    fn whole(sums: [i32; 8]) -> [Word; 8] {
        sums.map(|sum| sum as Word)
    }

    #[inline(always)]
    fn fold(acc: Self::Acc) -> f32 {
        fold_8(std::array::from_fn(|j| {
            (acc[0][j] + acc[2][j]) + (acc[1][j] + acc[3][j])
        }))
    }
}

/// Work to be compiled once for each instruction set.
pub trait Task {
    /// What it gives.
    type Out;
    /// Must be `#[inline(always)]`, or it is compiled for the lowest common instruction set.
    fn run<I: Isa>(self) -> Self::Out;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The halves that words end with.
    struct Halves<'a>(&'a [Word; LANES]);

    impl Task for Halves<'_> {
        type Out = Group;

        #[inline(always)]
        fn run<I: Isa>(self) -> Group {
            let mut out = [0.0; LANES];
            for strip in 0..I::STRIPS {
                I::store(I::halves(I::words(self.0, strip)), &mut out, strip);
            }
            out
        }
    }

    #[test]
    fn every_instruction_set_converts_every_half_alike() {
        let words: Vec<Word> = (0..1 << 16).map(|half| 0xabcd << 16 | half).collect();
        for level in Level::all() {
            for words in words.as_chunks().0 {
                let found = run(level, Halves(words));
                for (found, word) in found.iter().zip(words) {
                    let wanted = Plain::half(*word as u16);
                    let same = found.to_bits() == wanted.to_bits();
                    let nan = found.is_nan() && wanted.is_nan();
                    assert!(same || nan, "{}: {word:#x}: {found}", level.name());
                }
            }
        }
    }
}
