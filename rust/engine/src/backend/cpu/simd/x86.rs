//! The instruction sets of x86-64.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{byte_factors, fold_8, pair_factors, Arithmetic, Factors, Group, Isa, Word, Words};
use super::{COLUMNS, LANES};
use crate::quant::four;

/// The hardware's conversion: as [`crate::quant::Plain`]'s, but a signalling NaN becomes quiet.
#[inline(always)]
fn half(bits: u16) -> f32 {
    // SAFETY: this code is inlined into functions compiled for F16C only.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;

#[inline(always)]
fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        // SAFETY: SSE is part of every x86-64; a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// An instruction set of vectors of so many words, `$strips` to a group, by the intrinsics of the module
/// that it stands in.
macro_rules! set {
    ($set:ident, $lanes:literal, $strips:literal) => {
        impl Words for Integers {
            #[inline(always)]
            fn and(self, mask: u32) -> Self {
                // SAFETY: this code is inlined into functions compiled for the set only.
                unsafe { and(self, set1_epi32(mask as i32)) }
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { or(self, other) }
            }

            #[inline(always)]
            fn xor(self, mask: u32) -> Self {
                // SAFETY: as above.
                unsafe { xor(self, set1_epi32(mask as i32)) }
            }

            #[inline(always)]
            fn minus(self, x: u32) -> Self {
                // SAFETY: as above.
                unsafe { sub_epi32(self, set1_epi32(x as i32)) }
            }

            #[inline(always)]
            fn left(self, bits: u32) -> Self {
                // SAFETY: as above.
                unsafe { sllv_epi32(self, set1_epi32(bits as i32)) }
            }

            #[inline(always)]
            fn right(self, bits: u32) -> Self {
                // SAFETY: as above.
                unsafe { srlv_epi32(self, set1_epi32(bits as i32)) }
            }

            #[inline(always)]
            fn differ(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { xor(self, other) }
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { add_epi32(self, other) }
            }

            #[inline(always)]
            fn look_up<const P: usize, const N: usize>(
                self,
                table: &[[u32; P]; N],
                part: usize,
            ) -> Self {
                const { assert!(N.is_power_of_two() && (P == 1 || P == 2)) };
                assert!(part < P);
                let at = self.and(N as u32 - 1).left(P as u32 - 1);
                let from = table.as_flattened()[part..].as_ptr().cast();
                // SAFETY: as above; `P w + part` is below `P N` for every `w` below `N`.
                unsafe { gather(from, at) }
            }

            #[inline(always)]
            fn look_up_bytes(self, table: &[i8; 16]) -> Self {
                // SAFETY: as above; any bytes are a vector.
                unsafe {
                    let table = transmute::<[i8; 16], __m128i>(*table);
                    shuffle_epi8(broadcast(table), self)
                }
            }
        }

        #[inline(always)]
        fn words_of(words: [Word; $lanes]) -> Integers {
            // SAFETY: any bits are a vector.
            unsafe { transmute(words) }
        }

        /// The 16-bit integers of the even and of the odd bytes.
        #[inline(always)]
        fn pairs(bytes: Integers) -> (Integers, Integers) {
            // SAFETY: this code is inlined into functions compiled for the set only.
            unsafe {
                (
                    srai_epi16::<8>(slli_epi16::<8>(bytes)),
                    srai_epi16::<8>(bytes),
                )
            }
        }

        /// Of each 128 bits: element `i` of all four.
        #[inline(always)]
        fn transposed(r: [Integers; 4]) -> [Integers; 4] {
            // SAFETY: as above.
            unsafe {
                let (a, b) = (unpacklo_epi32(r[0], r[1]), unpackhi_epi32(r[0], r[1]));
                let (c, d) = (unpacklo_epi32(r[2], r[3]), unpackhi_epi32(r[2], r[3]));
                [
                    unpacklo_epi64(a, c),
                    unpackhi_epi64(a, c),
                    unpacklo_epi64(b, d),
                    unpackhi_epi64(b, d),
                ]
            }
        }

        /// `VNNI`: with multiply-adds of bytes in one instruction.
        pub struct $set<const VNNI: bool>;

        impl<const VNNI: bool> Arithmetic for $set<VNNI> {
            #[inline(always)]
            fn half(bits: u16) -> f32 {
                half(bits)
            }

            #[inline(always)]
            fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
                a.mul_add(b, c)
            }
        }

        impl<const VNNI: bool> Isa for $set<VNNI> {
            type Vector = Floats;
            type Acc = [Floats; $strips];
            const STRIPS: usize = $strips;
            const COLUMNS: usize = COLUMNS_OF_FLOATS;
            const INT_COLUMNS: usize = if VNNI {
                COLUMNS_OF_BYTES
            } else {
                COLUMNS_OF_PAIRS
            };

            #[inline(always)]
            fn zeros() -> Self::Acc {
                // SAFETY: this code is inlined into functions compiled for the set only.
                unsafe { [zero_floats(); $strips] }
            }

            #[inline(always)]
            fn splat(x: f32) -> Floats {
                // SAFETY: as above.
                unsafe { set1_ps(x) }
            }

            #[inline(always)]
            fn load(group: &Group, strip: usize) -> Floats {
                // SAFETY: any bits are a vector.
                unsafe { transmute::<[f32; $lanes], Floats>(group.as_chunks().0[strip]) }
            }

            #[inline(always)]
            fn store(vector: Floats, group: &mut Group, strip: usize) {
                // SAFETY: any bits are floats.
                let floats = unsafe { transmute::<Floats, [f32; $lanes]>(vector) };
                group.as_chunks_mut().0[strip] = floats;
            }

            #[inline(always)]
            fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
                // SAFETY: as above, and for FMA.
                unsafe { fmadd_ps(a, b, c) }
            }

            #[inline(always)]
            fn add(a: Floats, b: Floats) -> Floats {
                // SAFETY: as above.
                unsafe { add_ps(a, b) }
            }

            #[inline(always)]
            fn multiply(a: Floats, b: Floats) -> Floats {
                // SAFETY: as above.
                unsafe { mul_ps(a, b) }
            }

            #[inline(always)]
            fn negated_product(a: Floats, b: Floats) -> Floats {
                // SAFETY: as above.
                unsafe { xor_ps(mul_ps(a, b), set1_ps(-0.0)) }
            }

            #[inline(always)]
            fn fold(acc: Self::Acc) -> f32 {
                // SAFETY: any bits are floats.
                fold_8(unsafe { transmute::<__m256, [f32; 8]>(eight(acc)) })
            }

            #[inline(always)]
            fn prefetch(bytes: &[u8]) {
                prefetch(bytes);
            }

            type Words = Integers;
            // Of bytes those with the lower and the upper ones of x; of 16 bits the first.
            type Sums = [Integers; 2];

            #[inline(always)]
            fn no_words() -> Integers {
                // SAFETY: as above.
                unsafe { zero_integers() }
            }

            #[inline(always)]
            fn words(group: &[Word; LANES], strip: usize) -> Integers {
                words_of(group.as_chunks().0[strip])
            }

            #[inline(always)]
            fn store_words(words: Integers, group: &mut [Word; LANES], strip: usize) {
                // SAFETY: any bits are words.
                let words = unsafe { transmute::<Integers, [Word; $lanes]>(words) };
                group.as_chunks_mut().0[strip] = words;
            }

            #[inline(always)]
            fn word(word: Word) -> Integers {
                // SAFETY: as above.
                unsafe { set1_epi32(word as i32) }
            }

            #[inline(always)]
            fn dot_pairs(a: Integers, b: Integers, acc: Integers) -> Integers {
                dot_pairs::<VNNI>(acc, a, b)
            }

            #[inline(always)]
            fn floats(integers: Integers) -> Floats {
                // SAFETY: as above.
                unsafe { cvtepi32_ps(integers) }
            }

            #[inline(always)]
            fn halves(words: Integers) -> Floats {
                halves(words)
            }

            #[inline(always)]
            fn bits(words: Integers) -> Floats {
                // SAFETY: as above.
                unsafe { cast(words) }
            }

            #[inline(always)]
            fn bytes(words: Integers, i: usize) -> Floats {
                // SAFETY: as above.
                unsafe {
                    let top = sllv_epi32(words, set1_epi32(24 - 8 * i as i32));
                    cvtepi32_ps(srai_epi32::<24>(top))
                }
            }

            #[inline(always)]
            fn factors(x: &[i32; COLUMNS], out: &mut Factors) {
                if VNNI {
                    byte_factors(x, out);
                } else {
                    pair_factors(x, out);
                }
            }

            #[inline(always)]
            fn interleave(bytes: &[u8], stride: usize, out: &mut [[Integers; 4]]) {
                assert!(($lanes - 1) * stride + 16 * out.len() <= bytes.len());
                for (i, out) in out.iter_mut().enumerate() {
                    // SAFETY: as above; the assertion says that every load is of 16 of the bytes.
                    unsafe {
                        let at = bytes.as_ptr().add(16 * i);
                        let load = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
                        let mut r = [zero_integers(); 4];
                        for (k, r) in r.iter_mut().enumerate() {
                            *r = every_fourth(|i| load(k + 4 * i));
                        }
                        *out = transposed(r);
                    }
                }
            }

            // Multiply-adds of bytes take weights without sign.
            const BIAS: i32 = if VNNI { 128 } else { 0 };

            #[inline(always)]
            fn weights(q: Integers) -> Integers {
                q.xor(four(Self::BIAS as u8))
            }

            #[inline(always)]
            fn start(start: i32) -> Self::Sums {
                [Self::word(start as Word), Self::no_words()]
            }

            #[inline(always)]
            fn dot(q: Integers, x: &[Word; 2], [a, b]: Self::Sums) -> Self::Sums {
                if VNNI {
                    // SAFETY: as above, and only for processors with VNNI where the flag is set.
                    return unsafe {
                        [
                            dpbusd(a, q, Self::word(x[0])),
                            dpbusd(b, q, Self::word(x[1])),
                        ]
                    };
                }
                let (even, odd) = pairs(q);
                let a = dot_pairs::<VNNI>(a, even, Self::word(x[0]));
                [dot_pairs::<VNNI>(a, odd, Self::word(x[1])), b]
            }

            #[inline(always)]
            fn whole([a, b]: Self::Sums) -> Integers {
                if VNNI {
                    // SAFETY: as above.
                    unsafe { add_epi32(a, slli_epi32::<8>(b)) }
                } else {
                    a
                }
            }
        }
    };
}

/// Eight floats a register.
mod avx2 {
    use std::arch::x86_64::{
        __m256 as Floats, __m256i as Integers, _mm256_add_epi32 as add_epi32,
        _mm256_add_ps as add_ps, _mm256_and_si256 as and, _mm256_broadcastsi128_si256 as broadcast,
        _mm256_castsi256_ps as cast, _mm256_cvtepi32_ps as cvtepi32_ps,
        _mm256_dpbusd_avx_epi32 as dpbusd, _mm256_fmadd_ps as fmadd_ps, _mm256_mul_ps as mul_ps,
        _mm256_or_si256 as or, _mm256_set1_epi32 as set1_epi32, _mm256_set1_ps as set1_ps,
        _mm256_setzero_ps as zero_floats, _mm256_setzero_si256 as zero_integers,
        _mm256_shuffle_epi8 as shuffle_epi8, _mm256_slli_epi16 as slli_epi16,
        _mm256_slli_epi32 as slli_epi32, _mm256_sllv_epi32 as sllv_epi32,
        _mm256_srai_epi16 as srai_epi16, _mm256_srai_epi32 as srai_epi32,
        _mm256_srlv_epi32 as srlv_epi32, _mm256_sub_epi32 as sub_epi32,
        _mm256_unpackhi_epi32 as unpackhi_epi32, _mm256_unpackhi_epi64 as unpackhi_epi64,
        _mm256_unpacklo_epi32 as unpacklo_epi32, _mm256_unpacklo_epi64 as unpacklo_epi64,
        _mm256_xor_ps as xor_ps, _mm256_xor_si256 as xor,
    };

    use super::*;

    // Of 16 registers: 12 accumulators, 3 of x, 1 of w; of integers 12 or 8, 1 of x, 1 or 2 of w.
    const COLUMNS_OF_FLOATS: usize = 3;
    const COLUMNS_OF_BYTES: usize = 6;
    const COLUMNS_OF_PAIRS: usize = 8;

    /// # Safety
    /// There is a word at each place.
    #[inline(always)]
    unsafe fn gather(from: *const i32, at: Integers) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { _mm256_i32gather_epi32::<4>(from, at) }
    }

    /// The sums of four vectors, each with that half a group further on.
    #[inline(always)]
    fn eight(acc: [Floats; 4]) -> __m256 {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { add_ps(add_ps(acc[0], acc[2]), add_ps(acc[1], acc[3])) }
    }

    #[inline(always)]
    fn dot_pairs<const VNNI: bool>(acc: Integers, a: Integers, b: Integers) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn halves(words: Integers) -> Floats {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe {
            let bits = words.and(0xffff);
            let packed = _mm256_packus_epi32(bits, bits);
            let bits = _mm256_permute4x64_epi64::<0b10_00>(packed);
            _mm256_cvtph_ps(_mm256_castsi256_si128(bits))
        }
    }

    #[inline(always)]
    fn every_fourth(load: impl Fn(usize) -> __m128i) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { _mm256_set_m128i(load(1), load(0)) }
    }

    set!(Avx2, 8, 4);
}

/// Sixteen floats a register.
mod avx512 {
    use std::arch::x86_64::{
        __m512 as Floats, __m512i as Integers, _mm512_add_epi32 as add_epi32,
        _mm512_add_ps as add_ps, _mm512_and_si512 as and, _mm512_broadcast_i32x4 as broadcast,
        _mm512_castsi512_ps as cast, _mm512_cvtepi32_ps as cvtepi32_ps,
        _mm512_dpbusd_epi32 as dpbusd, _mm512_fmadd_ps as fmadd_ps, _mm512_mul_ps as mul_ps,
        _mm512_or_si512 as or, _mm512_set1_epi32 as set1_epi32, _mm512_set1_ps as set1_ps,
        _mm512_setzero_ps as zero_floats, _mm512_setzero_si512 as zero_integers,
        _mm512_shuffle_epi8 as shuffle_epi8, _mm512_slli_epi16 as slli_epi16,
        _mm512_slli_epi32 as slli_epi32, _mm512_sllv_epi32 as sllv_epi32,
        _mm512_srai_epi16 as srai_epi16, _mm512_srai_epi32 as srai_epi32,
        _mm512_srlv_epi32 as srlv_epi32, _mm512_sub_epi32 as sub_epi32,
        _mm512_unpackhi_epi32 as unpackhi_epi32, _mm512_unpackhi_epi64 as unpackhi_epi64,
        _mm512_unpacklo_epi32 as unpacklo_epi32, _mm512_unpacklo_epi64 as unpacklo_epi64,
        _mm512_xor_ps as xor_ps, _mm512_xor_si512 as xor,
    };

    use super::*;

    // Of 32 registers: 24 accumulators, 6 of x, 1 of w; of integers 16 or 8, 8 chains, 1 or 2 of w.
    const COLUMNS_OF_FLOATS: usize = 6;
    const COLUMNS_OF_BYTES: usize = 8;
    const COLUMNS_OF_PAIRS: usize = 8;

    /// # Safety
    /// There is a word at each place.
    #[inline(always)]
    unsafe fn gather(from: *const i32, at: Integers) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { _mm512_i32gather_epi32::<4>(at, from) }
    }

    /// The sums of both vectors and of their halves.
    #[inline(always)]
    fn eight(acc: [Floats; 2]) -> __m256 {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe {
            let sum = add_ps(acc[0], acc[1]);
            let low = _mm512_castps512_ps256(sum);
            _mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(sum))
        }
    }

    #[inline(always)]
    fn dot_pairs<const VNNI: bool>(acc: Integers, a: Integers, b: Integers) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe {
            match VNNI {
                true => _mm512_dpwssd_epi32(acc, a, b),
                false => add_epi32(acc, _mm512_madd_epi16(a, b)),
            }
        }
    }

    #[inline(always)]
    fn halves(words: Integers) -> Floats {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
    }

    #[inline(always)]
    fn every_fourth(load: impl Fn(usize) -> __m128i) -> Integers {
        // SAFETY: this code is inlined into functions compiled for the set only.
        unsafe {
            let pair =
                |i| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(i)), load(i + 1));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pair(0)), pair(2))
        }
    }

    set!(Avx512, 16, 2);
}

pub use avx2::Avx2;
pub use avx512::Avx512;
