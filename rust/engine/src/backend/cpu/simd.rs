//! Vector instructions: what they do is said once, in [`Isa`], compiled for each instruction set,
//! and chosen at run time. Every instruction set gives the same bits.

use std::sync::OnceLock;

use super::fixed::{Pair, PAIRS};
use crate::quant::{Arithmetic, COLUMNS, SUBS};

#[cfg(target_arch = "x86_64")]
mod x86;

/// Lanes of every sum: see [`super::product`].
pub const LANES: usize = 32;

/// One number for each lane.
pub type Group = [f32; LANES];

/// An instruction set that the backend was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Set {
    /// The best one last.
    const ALL: &[Set] = &[
        Set::Scalar,
        #[cfg(target_arch = "x86_64")]
        Set::Avx2,
        #[cfg(target_arch = "x86_64")]
        Set::Avx512,
        #[cfg(target_arch = "x86_64")]
        Set::Avx512Vnni,
    ];

    fn name(self) -> &'static str {
        match self {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni => "avx512_vnni",
        }
    }

    /// Whether this processor has every feature that [`run`] compiles it with.
    fn is_available(self) -> bool {
        match self {
            Set::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => {
                Set::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni => Set::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
        }
    }
}

/// An instruction set that this processor has. Its field is private and every way to one asks the
/// processor, so that whoever holds a level may run code compiled for it.
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
    /// The same of products of integers, which have two accumulators each.
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
    /// `-(a * b)`.
    fn negated_product(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Adds up the lanes in halves: 16, 8, 4, 2, 1.
    fn fold(acc: Self::Acc) -> f32;

    /// As many pairs as a vector has floats.
    type Pairs: Copy;
    /// As many 32-bit integers.
    type Ints: Copy;
    fn no_ints() -> Self::Ints;
    /// Vector `strip` of a group of pairs.
    fn pairs(group: &[Pair; LANES], strip: usize) -> Self::Pairs;
    /// The same pair in every lane.
    fn pair(pair: Pair) -> Self::Pairs;
    /// `acc + a[0] * b[0] + a[1] * b[1]` in each lane.
    fn dot(a: Self::Pairs, b: Self::Pairs, acc: Self::Ints) -> Self::Ints;
    fn floats(ints: Self::Ints) -> Self::Vector;
    /// `a * b + c`, each rounded once.
    #[inline(always)]
    fn fma_4(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    /// The sums of `q * X` over each `sub` columns, 16 or 32, `limbs` of X as
    /// [`super::fixed::Fixed`] has them; each is rounded once.
    fn sub_sums(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], sub: usize) -> [f32; SUBS];
    /// Puts the columns of 8 rows in the lanes from `first` on: `out[i]` gets the pairs `i` of even
    /// and of odd columns.
    fn interleave(rows: [&[i8; COLUMNS]; 8], first: usize, out: &mut [[[Pair; LANES]; 2]; PAIRS]);
}

#[inline(always)]
fn fold_8(a: [f32; 8]) -> f32 {
    let b = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
    (b[0] + b[2]) + (b[1] + b[3])
}

#[inline(always)]
fn dot_pair(a: Pair, b: Pair) -> i32 {
    let product = |i: usize| i32::from(a[i]).wrapping_mul(i32::from(b[i]));
    product(0).wrapping_add(product(1))
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
    fn negated_product(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|j| -(a[j] * b[j]))
    }

    type Pairs = [Pair; 8];
    type Ints = [i32; 8];

    #[inline(always)]
    fn no_ints() -> [i32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn pairs(group: &[Pair; LANES], strip: usize) -> [Pair; 8] {
        std::array::from_fn(|j| group[8 * strip + j])
    }

    #[inline(always)]
    fn pair(pair: Pair) -> [Pair; 8] {
        [pair; 8]
    }

    #[inline(always)]
    fn dot(a: [Pair; 8], b: [Pair; 8], acc: [i32; 8]) -> [i32; 8] {
        std::array::from_fn(|j| acc[j].wrapping_add(dot_pair(a[j], b[j])))
    }

    #[inline(always)]
    fn floats(ints: [i32; 8]) -> [f32; 8] {
        ints.map(|i| i as f32)
    }

    #[inline(always)]
    fn sub_sums(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], sub: usize) -> [f32; SUBS] {
        let mut sums = [0.0; SUBS];
        for ((i, out), q) in sums.iter_mut().enumerate().zip(q.chunks_exact(sub)) {
            let first = i * sub / 4;
            let (mut hi, mut lo) = (0i32, 0i32);
            for (j, q) in q.as_chunks::<4>().0.iter().enumerate() {
                let [a, b, c, d] = q.map(i16::from);
                let x = |plane: usize| limbs[plane][first + j];
                hi = hi.wrapping_add(dot_pair([a, c], x(0)).wrapping_add(dot_pair([b, d], x(1))));
                lo = lo.wrapping_add(dot_pair([a, c], x(2)).wrapping_add(dot_pair([b, d], x(3))));
            }
            *out = (hi as f32).mul_add(4096.0, lo as f32);
        }
        sums
    }

    #[inline(always)]
    fn interleave(rows: [&[i8; COLUMNS]; 8], first: usize, out: &mut [[[Pair; LANES]; 2]; PAIRS]) {
        for (r, row) in rows.into_iter().enumerate() {
            for (q, out) in row.as_chunks::<4>().0.iter().zip(&mut *out) {
                let [a, b, c, d] = q.map(i16::from);
                out[0][first + r] = [a, c];
                out[1][first + r] = [b, d];
            }
        }
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<T: Task>(task: T) -> T::Out {
    task.run::<x86::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<T: Task>(task: T) -> T::Out {
    task.run::<x86::Avx512<false>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn run_vnni<T: Task>(task: T) -> T::Out {
    task.run::<x86::Avx512<true>>()
}

/// Runs `task` compiled for `level`.
pub fn run<T: Task>(level: Level, task: T) -> T::Out {
    match level.0 {
        Set::Scalar => task.run::<Plain>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Level::new`, the only way to this level, asked the processor for each feature of
        // `run_avx2`.
        Set::Avx2 => unsafe { run_avx2(task) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, for each feature of `run_avx512`.
        Set::Avx512 => unsafe { run_avx512(task) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, for each feature of `run_vnni`.
        Set::Avx512Vnni => unsafe { run_vnni(task) },
    }
}
