//! Vector instructions: what they do is said once, in [`Isa`], compiled for each instruction set,
//! and chosen at run time. Every instruction set gives the same bits.

use std::sync::OnceLock;

use crate::quant::Arithmetic;

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
}

impl Set {
    /// The best one last.
    const ALL: &[Set] = &[
        Set::Scalar,
        #[cfg(target_arch = "x86_64")]
        Set::Avx2,
        #[cfg(target_arch = "x86_64")]
        Set::Avx512,
    ];

    fn name(self) -> &'static str {
        match self {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
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
    fn zeros() -> Self::Acc;
    /// The same number in every lane.
    fn splat(x: f32) -> Self::Vector;
    /// Vector `strip` of a group, `strip < STRIPS`.
    fn load(group: &Group, strip: usize) -> Self::Vector;
    fn store(vector: Self::Vector, group: &mut Group, strip: usize);
    /// `a * b + c` with one rounding.
    fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Adds up the lanes in halves: 16, 8, 4, 2, 1.
    fn fold(acc: Self::Acc) -> f32;
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
    fn fold(acc: Self::Acc) -> f32 {
        fold_8(std::array::from_fn(|j| {
            (acc[0][j] + acc[2][j]) + (acc[1][j] + acc[3][j])
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{fold_8, Arithmetic, Group, Isa};

    /// The hardware's conversion: as [`crate::quant::Plain`]'s, but a signalling NaN becomes quiet.
    #[inline(always)]
    fn half(bits: u16) -> f32 {
        // SAFETY: this code is inlined into functions compiled for F16C only.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    /// Eight floats a register.
    pub struct Avx2;

    impl Arithmetic for Avx2 {
        #[inline(always)]
        fn half(bits: u16) -> f32 {
            half(bits)
        }

        #[inline(always)]
        fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }

    impl Isa for Avx2 {
        type Vector = __m256;
        type Acc = [__m256; 4];
        const STRIPS: usize = 4;
        // Of 16 registers: 12 accumulators, 3 of x, 1 of w.
        const COLUMNS: usize = 3;

        #[inline(always)]
        fn zeros() -> Self::Acc {
            // SAFETY: this code is inlined into functions compiled for AVX2 only.
            unsafe { [_mm256_setzero_ps(); 4] }
        }

        #[inline(always)]
        fn splat(x: f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        fn load(group: &Group, strip: usize) -> __m256 {
            let part = &group[8 * strip..8 * strip + 8];
            // SAFETY: as above; `part` has 8 floats.
            unsafe { _mm256_loadu_ps(part.as_ptr()) }
        }

        #[inline(always)]
        fn store(vector: __m256, group: &mut Group, strip: usize) {
            let part = &mut group[8 * strip..8 * strip + 8];
            // SAFETY: as above; `part` has 8 floats.
            unsafe { _mm256_storeu_ps(part.as_mut_ptr(), vector) };
        }

        #[inline(always)]
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as above, and for FMA.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn fold(acc: Self::Acc) -> f32 {
            let mut out = [0.0; 8];
            // SAFETY: as above; `out` has 8 floats.
            unsafe {
                let low = _mm256_add_ps(acc[0], acc[2]);
                let high = _mm256_add_ps(acc[1], acc[3]);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
            fold_8(out)
        }
    }

    /// Sixteen floats a register.
    pub struct Avx512;

    impl Arithmetic for Avx512 {
        #[inline(always)]
        fn half(bits: u16) -> f32 {
            half(bits)
        }

        #[inline(always)]
        fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }
    }

    impl Isa for Avx512 {
        type Vector = __m512;
        type Acc = [__m512; 2];
        const STRIPS: usize = 2;
        // Of 32 registers: 24 accumulators, 6 of x, 1 of w.
        const COLUMNS: usize = 6;

        #[inline(always)]
        fn zeros() -> Self::Acc {
            // SAFETY: this code is inlined into functions compiled for AVX-512 only.
            unsafe { [_mm512_setzero_ps(); 2] }
        }

        #[inline(always)]
        fn splat(x: f32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        fn load(group: &Group, strip: usize) -> __m512 {
            let part = &group[16 * strip..16 * strip + 16];
            // SAFETY: as above; `part` has 16 floats.
            unsafe { _mm512_loadu_ps(part.as_ptr()) }
        }

        #[inline(always)]
        fn store(vector: __m512, group: &mut Group, strip: usize) {
            let part = &mut group[16 * strip..16 * strip + 16];
            // SAFETY: as above; `part` has 16 floats.
            unsafe { _mm512_storeu_ps(part.as_mut_ptr(), vector) };
        }

        #[inline(always)]
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn fold(acc: Self::Acc) -> f32 {
            let mut out = [0.0; 8];
            // SAFETY: as above; `out` has 8 floats.
            unsafe {
                let sum = _mm512_add_ps(acc[0], acc[1]);
                let low = _mm512_castps512_ps256(sum);
                let high = _mm512_extractf32x8_ps::<1>(sum);
                _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(low, high));
            }
            fold_8(out)
        }
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
    task.run::<x86::Avx512>()
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
    }
}
