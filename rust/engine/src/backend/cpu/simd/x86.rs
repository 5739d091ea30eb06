//! The instruction sets of x86-64.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{byte_limbs, fold_8, pair_limbs, Arithmetic, Group, Isa, Limbs, Word, Words};
use super::{COLUMNS, LANES};
use crate::quant::{four, SUBS};

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

/// What is added to weights: multiply-adds of bytes take them without sign. The sums start from
/// the products with as much less.
const BIAS: i32 = 128;

const NO_BYTES: [i8; COLUMNS] = [0; COLUMNS];

/// [`byte_limbs`], and what the sums start from.
#[inline(always)]
fn biased_limbs(x: &[i32; COLUMNS], out: &mut Limbs) {
    let [a, b, c, carry] = &byte_limbs(x, out);
    let (starts, starts_32) = out.starts.split_at_mut(SUBS);
    for (limb, planes) in [[a, carry], [b, &NO_BYTES], [c, &NO_BYTES]]
        .into_iter()
        .enumerate()
    {
        for (i, start) in starts.iter_mut().enumerate() {
            let sum = |plane: &[i8; COLUMNS]| {
                let bytes = plane[16 * i..16 * i + 16].iter();
                bytes.map(|byte| i32::from(*byte)).sum::<i32>()
            };
            start[limb] = -BIAS * (sum(planes[0]) + sum(planes[1]));
        }
    }
    for (start, [first, second]) in starts_32.iter_mut().zip(starts.as_chunks().0) {
        *start = std::array::from_fn(|limb| first[limb] + second[limb]);
    }
}

impl Words for __m256i {
    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        // SAFETY: this code is inlined into functions compiled for AVX2 only.
        unsafe { _mm256_and_si256(self, _mm256_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_or_si256(self, other) }
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(self, _mm256_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn minus(self, x: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_sub_epi32(self, _mm256_set1_epi32(x as i32)) }
    }

    #[inline(always)]
    fn left(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_sllv_epi32(self, _mm256_set1_epi32(bits as i32)) }
    }

    #[inline(always)]
    fn right(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_srlv_epi32(self, _mm256_set1_epi32(bits as i32)) }
    }

    #[inline(always)]
    fn differ(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(self, other) }
    }

    #[inline(always)]
    fn look_up<const P: usize, const N: usize>(self, table: &[[u32; P]; N], part: usize) -> Self {
        const { assert!(N.is_power_of_two() && (P == 1 || P == 2)) };
        assert!(part < P);
        let at = self.and(N as u32 - 1).left(P as u32 - 1);
        let from = table.as_flattened()[part..].as_ptr().cast();
        // SAFETY: as above; `P w + part` is below `P N` for every `w` below `N`.
        unsafe { _mm256_i32gather_epi32::<4>(from, at) }
    }

    #[inline(always)]
    fn look_up_bytes(self, table: &[i8; 16]) -> Self {
        // SAFETY: as above; any bytes are a vector.
        unsafe {
            let table = transmute::<[i8; 16], __m128i>(*table);
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), self)
        }
    }
}

#[inline(always)]
fn words_256(words: [Word; 8]) -> __m256i {
    // SAFETY: any bits are a vector.
    unsafe { transmute(words) }
}

/// The 16-bit integers of the even and of the odd bytes.
#[inline(always)]
fn pairs_256(bytes: __m256i) -> (__m256i, __m256i) {
    // SAFETY: this code is inlined into functions compiled for AVX2 only.
    unsafe {
        (
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)),
            _mm256_srai_epi16::<8>(bytes),
        )
    }
}

/// Of each 128 bits: element `i` of all four.
#[inline(always)]
fn transposed_256(r: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (
            _mm256_unpacklo_epi32(r[0], r[1]),
            _mm256_unpackhi_epi32(r[0], r[1]),
        );
        let (c, d) = (
            _mm256_unpacklo_epi32(r[2], r[3]),
            _mm256_unpackhi_epi32(r[2], r[3]),
        );
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    }
}

/// Eight floats a register; `VNNI`: with multiply-adds of bytes in one instruction.
pub struct Avx2<const VNNI: bool>;

impl<const VNNI: bool> Arithmetic for Avx2<VNNI> {
    #[inline(always)]
    fn half(bits: u16) -> f32 {
        half(bits)
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl<const VNNI: bool> Isa for Avx2<VNNI> {
    type Vector = __m256;
    type Acc = [__m256; 4];
    const STRIPS: usize = 4;
    // Of 16 registers: 12 accumulators, 3 of x, 1 of w.
    const COLUMNS: usize = 3;
    // 12 accumulators, 1 of x, 2 of w.
    const INT_COLUMNS: usize = if VNNI { 4 } else { 6 };

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
        // SAFETY: any bits are a vector.
        unsafe { transmute::<[f32; 8], __m256>(group.as_chunks().0[strip]) }
    }

    #[inline(always)]
    fn store(vector: __m256, group: &mut Group, strip: usize) {
        // SAFETY: any bits are floats.
        group.as_chunks_mut().0[strip] = unsafe { transmute::<__m256, [f32; 8]>(vector) };
    }

    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above, and for FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn negated_product(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_xor_ps(_mm256_mul_ps(a, b), _mm256_set1_ps(-0.0)) }
    }

    #[inline(always)]
    fn fold(acc: Self::Acc) -> f32 {
        // SAFETY: as above; any bits are floats.
        let out = unsafe {
            let low = _mm256_add_ps(acc[0], acc[2]);
            let high = _mm256_add_ps(acc[1], acc[3]);
            transmute::<__m256, [f32; 8]>(_mm256_add_ps(low, high))
        };
        fold_8(out)
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    type Words = __m256i;
    // Of bytes `a`, `b`, `c`; of 16 bits `hi`, `lo`.
    type Sums = [__m256i; 3];

    #[inline(always)]
    fn no_words() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn words(group: &[Word; LANES], strip: usize) -> __m256i {
        words_256(group.as_chunks().0[strip])
    }

    #[inline(always)]
    fn store_words(words: __m256i, group: &mut [Word; LANES], strip: usize) {
        // SAFETY: any bits are words.
        group.as_chunks_mut().0[strip] = unsafe { transmute::<__m256i, [Word; 8]>(words) };
    }

    #[inline(always)]
    fn word(word: Word) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    fn dot_pairs(a: __m256i, b: __m256i, acc: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn floats(integers: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    fn halves(words: __m256i) -> __m256 {
        // SAFETY: as above, and for F16C.
        unsafe {
            let bits = words.and(0xffff);
            let packed = _mm256_packus_epi32(bits, bits);
            let bits = _mm256_permute4x64_epi64::<0b10_00>(packed);
            _mm256_cvtph_ps(_mm256_castsi256_si128(bits))
        }
    }

    #[inline(always)]
    fn bits(words: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(words) }
    }

    #[inline(always)]
    fn bytes(words: __m256i, i: usize) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let top = _mm256_sllv_epi32(words, _mm256_set1_epi32(24 - 8 * i as i32));
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
        }
    }

    #[inline(always)]
    fn limbs(x: &[i32; COLUMNS], out: &mut Limbs) {
        if VNNI {
            biased_limbs(x, out);
        } else {
            pair_limbs(x, out);
        }
    }

    #[inline(always)]
    fn interleave(bytes: &[u8], stride: usize, out: &mut [[__m256i; 4]]) {
        assert!(7 * stride + 16 * out.len() <= bytes.len());
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: as above; the assertion says that every load is of 16 of the bytes.
            unsafe {
                let at = bytes.as_ptr().add(16 * i);
                let load = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
                let mut r = [_mm256_setzero_si256(); 4];
                for (k, r) in r.iter_mut().enumerate() {
                    *r = _mm256_set_m128i(load(k + 4), load(k));
                }
                *out = transposed_256(r);
            }
        }
    }

    #[inline(always)]
    fn weights(q: __m256i) -> __m256i {
        if VNNI {
            q.xor(four(BIAS as u8))
        } else {
            q
        }
    }

    #[inline(always)]
    fn start(starts: &[i32; 3]) -> Self::Sums {
        // SAFETY: as above.
        unsafe {
            if VNNI {
                [
                    _mm256_set1_epi32(starts[0]),
                    _mm256_set1_epi32(starts[1]),
                    _mm256_set1_epi32(starts[2]),
                ]
            } else {
                [_mm256_setzero_si256(); 3]
            }
        }
    }

    #[inline(always)]
    fn dot(q: __m256i, x: &[Word; 4], [a, b, c]: Self::Sums) -> Self::Sums {
        if VNNI {
            // SAFETY: as above, and only for processors with AVX-VNNI where the flag is set.
            unsafe {
                [
                    _mm256_dpbusd_avx_epi32(a, q, Self::word(x[0])),
                    _mm256_dpbusd_avx_epi32(b, q, Self::word(x[1])),
                    _mm256_dpbusd_avx_epi32(c, q, Self::word(x[2])),
                ]
            }
        } else {
            let (even, odd) = pairs_256(q);
            let hi = Self::dot_pairs(even, Self::word(x[0]), a);
            let lo = Self::dot_pairs(even, Self::word(x[2]), b);
            [
                Self::dot_pairs(odd, Self::word(x[1]), hi),
                Self::dot_pairs(odd, Self::word(x[3]), lo),
                c,
            ]
        }
    }

    #[inline(always)]
    fn dot_carry(q: __m256i, x: &[Word; 4], [a, b, c]: Self::Sums) -> Self::Sums {
        if VNNI {
            // SAFETY: as in `dot`.
            let a = unsafe { _mm256_dpbusd_avx_epi32(a, q, Self::word(x[3])) };
            [a, b, c]
        } else {
            [a, b, c]
        }
    }

    #[inline(always)]
    fn rounded([a, b, c]: Self::Sums, is_narrow: bool) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let (high, low, unit) = if VNNI {
                let low = _mm256_add_epi32(_mm256_slli_epi32::<8>(b), c);
                if is_narrow {
                    (a, low, 65536.0)
                } else {
                    let high = _mm256_slli_epi32::<4>(a);
                    let high = _mm256_add_epi32(high, _mm256_srai_epi32::<12>(low));
                    let low = _mm256_and_si256(low, _mm256_set1_epi32(4095));
                    (high, low, 4096.0)
                }
            } else {
                (a, b, 4096.0)
            };
            let (high, low) = (_mm256_cvtepi32_ps(high), _mm256_cvtepi32_ps(low));
            _mm256_fmadd_ps(high, _mm256_set1_ps(unit), low)
        }
    }
}

impl Words for __m512i {
    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        // SAFETY: this code is inlined into functions compiled for AVX-512 only.
        unsafe { _mm512_and_si512(self, _mm512_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(self, _mm512_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn minus(self, x: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_sub_epi32(self, _mm512_set1_epi32(x as i32)) }
    }

    #[inline(always)]
    fn left(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_sllv_epi32(self, _mm512_set1_epi32(bits as i32)) }
    }

    #[inline(always)]
    fn right(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_srlv_epi32(self, _mm512_set1_epi32(bits as i32)) }
    }

    #[inline(always)]
    fn differ(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(self, other) }
    }

    #[inline(always)]
    fn look_up<const P: usize, const N: usize>(self, table: &[[u32; P]; N], part: usize) -> Self {
        const { assert!(N.is_power_of_two() && (P == 1 || P == 2)) };
        assert!(part < P);
        let at = self.and(N as u32 - 1).left(P as u32 - 1);
        let from = table.as_flattened()[part..].as_ptr().cast();
        // SAFETY: as above; `P w + part` is below `P N` for every `w` below `N`.
        unsafe { _mm512_i32gather_epi32::<4>(at, from) }
    }

    #[inline(always)]
    fn look_up_bytes(self, table: &[i8; 16]) -> Self {
        // SAFETY: as above; any bytes are a vector.
        unsafe {
            let table = transmute::<[i8; 16], __m128i>(*table);
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), self)
        }
    }
}

#[inline(always)]
fn words_512(words: [Word; 16]) -> __m512i {
    // SAFETY: any bits are a vector.
    unsafe { transmute(words) }
}

/// The 16-bit integers of the even and of the odd bytes.
#[inline(always)]
fn pairs_512(bytes: __m512i) -> (__m512i, __m512i) {
    // SAFETY: this code is inlined into functions compiled for AVX-512 only.
    unsafe {
        (
            _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)),
            _mm512_srai_epi16::<8>(bytes),
        )
    }
}

/// Of each 128 bits: element `i` of all four.
#[inline(always)]
fn transposed_512(r: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (
            _mm512_unpacklo_epi32(r[0], r[1]),
            _mm512_unpackhi_epi32(r[0], r[1]),
        );
        let (c, d) = (
            _mm512_unpacklo_epi32(r[2], r[3]),
            _mm512_unpackhi_epi32(r[2], r[3]),
        );
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    }
}

/// Sixteen floats a register; `VNNI`: with multiply-adds of bytes in one instruction.
pub struct Avx512<const VNNI: bool>;

impl<const VNNI: bool> Arithmetic for Avx512<VNNI> {
    #[inline(always)]
    fn half(bits: u16) -> f32 {
        half(bits)
    }

    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl<const VNNI: bool> Isa for Avx512<VNNI> {
    type Vector = __m512;
    type Acc = [__m512; 2];
    const STRIPS: usize = 2;
    // Of 32 registers: 24 accumulators, 6 of x, 1 of w.
    const COLUMNS: usize = 6;
    // 18 or 12 accumulators, 6 chains, 1 or 2 of w.
    const INT_COLUMNS: usize = 6;

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
        // SAFETY: any bits are a vector.
        unsafe { transmute::<[f32; 16], __m512>(group.as_chunks().0[strip]) }
    }

    #[inline(always)]
    fn store(vector: __m512, group: &mut Group, strip: usize) {
        // SAFETY: any bits are floats.
        group.as_chunks_mut().0[strip] = unsafe { transmute::<__m512, [f32; 16]>(vector) };
    }

    #[inline(always)]
    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn negated_product(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_xor_ps(_mm512_mul_ps(a, b), _mm512_set1_ps(-0.0)) }
    }

    #[inline(always)]
    fn fold(acc: Self::Acc) -> f32 {
        // SAFETY: as above; any bits are floats.
        let out = unsafe {
            let sum = _mm512_add_ps(acc[0], acc[1]);
            let low = _mm512_castps512_ps256(sum);
            let high = _mm512_extractf32x8_ps::<1>(sum);
            transmute::<__m256, [f32; 8]>(_mm256_add_ps(low, high))
        };
        fold_8(out)
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        prefetch(bytes);
    }

    type Words = __m512i;
    // Of bytes `a`, `b`, `c`; of 16 bits `hi`, `lo`.
    type Sums = [__m512i; 3];

    #[inline(always)]
    fn no_words() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn words(group: &[Word; LANES], strip: usize) -> __m512i {
        words_512(group.as_chunks().0[strip])
    }

    #[inline(always)]
    fn store_words(words: __m512i, group: &mut [Word; LANES], strip: usize) {
        // SAFETY: any bits are words.
        group.as_chunks_mut().0[strip] = unsafe { transmute::<__m512i, [Word; 16]>(words) };
    }

    #[inline(always)]
    fn word(word: Word) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    fn dot_pairs(a: __m512i, b: __m512i, acc: __m512i) -> __m512i {
        // SAFETY: as above, and only for processors with VNNI where the flag is set.
        unsafe {
            if VNNI {
                _mm512_dpwssd_epi32(acc, a, b)
            } else {
                _mm512_add_epi32(acc, _mm512_madd_epi16(a, b))
            }
        }
    }

    #[inline(always)]
    fn floats(integers: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    fn halves(words: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
    }

    #[inline(always)]
    fn bits(words: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(words) }
    }

    #[inline(always)]
    fn bytes(words: __m512i, i: usize) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let top = _mm512_sllv_epi32(words, _mm512_set1_epi32(24 - 8 * i as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
    }

    #[inline(always)]
    fn limbs(x: &[i32; COLUMNS], out: &mut Limbs) {
        if VNNI {
            biased_limbs(x, out);
        } else {
            pair_limbs(x, out);
        }
    }

    #[inline(always)]
    fn interleave(bytes: &[u8], stride: usize, out: &mut [[__m512i; 4]]) {
        assert!(15 * stride + 16 * out.len() <= bytes.len());
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: as above; the assertion says that every load is of 16 of the bytes.
            unsafe {
                let at = bytes.as_ptr().add(16 * i);
                let load = |row: usize| _mm_loadu_si128(at.add(row * stride).cast());
                let mut r = [_mm512_setzero_si512(); 4];
                for (k, r) in r.iter_mut().enumerate() {
                    let first = _mm512_castsi128_si512(load(k));
                    let two = _mm512_inserti32x4::<1>(first, load(k + 4));
                    let three = _mm512_inserti32x4::<2>(two, load(k + 8));
                    *r = _mm512_inserti32x4::<3>(three, load(k + 12));
                }
                *out = transposed_512(r);
            }
        }
    }

    #[inline(always)]
    fn weights(q: __m512i) -> __m512i {
        if VNNI {
            q.xor(four(BIAS as u8))
        } else {
            q
        }
    }

    #[inline(always)]
    fn start(starts: &[i32; 3]) -> Self::Sums {
        // SAFETY: as above.
        unsafe {
            if VNNI {
                [
                    _mm512_set1_epi32(starts[0]),
                    _mm512_set1_epi32(starts[1]),
                    _mm512_set1_epi32(starts[2]),
                ]
            } else {
                [_mm512_setzero_si512(); 3]
            }
        }
    }

    #[inline(always)]
    fn dot(q: __m512i, x: &[Word; 4], [a, b, c]: Self::Sums) -> Self::Sums {
        if VNNI {
            // SAFETY: as above, and only for processors with VNNI where the flag is set.
            unsafe {
                [
                    _mm512_dpbusd_epi32(a, q, Self::word(x[0])),
                    _mm512_dpbusd_epi32(b, q, Self::word(x[1])),
                    _mm512_dpbusd_epi32(c, q, Self::word(x[2])),
                ]
            }
        } else {
            let (even, odd) = pairs_512(q);
            let hi = Self::dot_pairs(even, Self::word(x[0]), a);
            let lo = Self::dot_pairs(even, Self::word(x[2]), b);
            [
                Self::dot_pairs(odd, Self::word(x[1]), hi),
                Self::dot_pairs(odd, Self::word(x[3]), lo),
                c,
            ]
        }
    }

    #[inline(always)]
    fn dot_carry(q: __m512i, x: &[Word; 4], [a, b, c]: Self::Sums) -> Self::Sums {
        if VNNI {
            // SAFETY: as in `dot`.
            let a = unsafe { _mm512_dpbusd_epi32(a, q, Self::word(x[3])) };
            [a, b, c]
        } else {
            [a, b, c]
        }
    }

    #[inline(always)]
    fn rounded([a, b, c]: Self::Sums, is_narrow: bool) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let (high, low, unit) = if VNNI {
                let low = _mm512_add_epi32(_mm512_slli_epi32::<8>(b), c);
                if is_narrow {
                    (a, low, 65536.0)
                } else {
                    let high = _mm512_slli_epi32::<4>(a);
                    let high = _mm512_add_epi32(high, _mm512_srai_epi32::<12>(low));
                    let low = _mm512_and_si512(low, _mm512_set1_epi32(4095));
                    (high, low, 4096.0)
                }
            } else {
                (a, b, 4096.0)
            };
            let (high, low) = (_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
            _mm512_fmadd_ps(high, _mm512_set1_ps(unit), low)
        }
    }
}
