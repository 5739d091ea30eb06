//! The instruction sets of x86-64.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::{fold_8, Arithmetic, Group, Isa, Pair, COLUMNS, LANES, PAIRS, SUBS};

/// The hardware's conversion: as [`crate::quant::Plain`]'s, but a signalling NaN becomes quiet.
#[inline(always)]
fn half(bits: u16) -> f32 {
    // SAFETY: this code is inlined into functions compiled for F16C only.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
}

#[inline(always)]
fn pairs_256(pairs: [Pair; 8]) -> __m256i {
    // SAFETY: any bits are a vector.
    unsafe { transmute(pairs) }
}

/// The 16-bit integers of the even and of the odd bytes.
#[inline(always)]
fn halves_256(bytes: __m256i) -> (__m256i, __m256i) {
    // SAFETY: this code is inlined into functions compiled for AVX2 only.
    unsafe {
        (
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)),
            _mm256_srai_epi16::<8>(bytes),
        )
    }
}

/// Element `v` of each 128 bits: the sum of those 128 bits of `a[v]`.
#[inline(always)]
fn sum_lanes_256(a: [__m256i; 4]) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let low = _mm256_add_epi32(
            _mm256_unpacklo_epi32(a[0], a[1]),
            _mm256_unpackhi_epi32(a[0], a[1]),
        );
        let high = _mm256_add_epi32(
            _mm256_unpacklo_epi32(a[2], a[3]),
            _mm256_unpackhi_epi32(a[2], a[3]),
        );
        _mm256_add_epi32(
            _mm256_unpacklo_epi64(low, high),
            _mm256_unpackhi_epi64(low, high),
        )
    }
}

/// The sums of 32 columns from `32 at` on, with `hi` and with `lo`: the low 128 bits are those of
/// the first 16.
#[inline(always)]
fn sums_256(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], at: usize) -> (__m256i, __m256i) {
    let [a, b, c, d] = limbs;
    let (a, b) = (a.as_chunks().0[at], b.as_chunks().0[at]);
    let (c, d) = (c.as_chunks().0[at], d.as_chunks().0[at]);
    let (a, b, c, d) = (pairs_256(a), pairs_256(b), pairs_256(c), pairs_256(d));
    // SAFETY: any bits are a vector.
    let bytes: __m256i = unsafe { transmute::<[i8; 32], __m256i>(q.as_chunks().0[at]) };
    // SAFETY: this code is inlined into functions compiled for AVX2 only.
    unsafe {
        let (even, odd) = halves_256(bytes);
        let a = _mm256_madd_epi16(even, a);
        let b = _mm256_madd_epi16(odd, b);
        let c = _mm256_madd_epi16(even, c);
        let d = _mm256_madd_epi16(odd, d);
        (_mm256_add_epi32(a, b), _mm256_add_epi32(c, d))
    }
}

/// Of four times 32 columns, in order, the sums of the first 16 and, above, of the last 16.
#[inline(always)]
fn four_sums_256(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], at: usize) -> (__m256i, __m256i) {
    let (a, b) = (sums_256(q, limbs, at), sums_256(q, limbs, at + 1));
    let (c, d) = (sums_256(q, limbs, at + 2), sums_256(q, limbs, at + 3));
    (
        sum_lanes_256([a.0, b.0, c.0, d.0]),
        sum_lanes_256([a.1, b.1, c.1, d.1]),
    )
}

#[inline(always)]
fn sub_sums_256(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], sub: usize) -> [f32; SUBS] {
    let mut sums = [0.0; SUBS];
    for half in 0..2 {
        let (hi, lo) = four_sums_256(q, limbs, 4 * half);
        // SAFETY: as above; any bits are floats.
        unsafe {
            if sub == 32 {
                let (hi, lo) = (_mm_cvtepi32_ps(halves_sum(hi)), halves_sum(lo));
                let rounded = _mm_fmadd_ps(hi, _mm_set1_ps(4096.0), _mm_cvtepi32_ps(lo));
                sums.as_chunks_mut().0[half] = transmute::<__m128, [f32; 4]>(rounded);
            } else {
                let shift = _mm256_set1_ps(4096.0);
                let rounded =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi), shift, _mm256_cvtepi32_ps(lo));
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                let rounded = _mm256_permutevar8x32_ps(rounded, order);
                sums.as_chunks_mut().0[half] = transmute::<__m256, [f32; 8]>(rounded);
            }
        }
    }
    sums
}

/// `a * b + c`, each rounded once.
#[inline(always)]
fn fma_4(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
    // SAFETY: this code is inlined into functions compiled for FMA only; any bits are a vector, and
    // floats.
    unsafe {
        let a = transmute::<[f32; 4], __m128>(a);
        let b = transmute::<[f32; 4], __m128>(b);
        let c = transmute::<[f32; 4], __m128>(c);
        transmute::<__m128, [f32; 4]>(_mm_fmadd_ps(a, b, c))
    }
}

/// The low 128 bits plus the high ones.
#[inline(always)]
fn halves_sum(sums: __m256i) -> __m128i {
    // SAFETY: as above.
    unsafe {
        let high = _mm256_extracti128_si256::<1>(sums);
        _mm_add_epi32(_mm256_castsi256_si128(sums), high)
    }
}

/// Transposes 8 rows of 8 times four bytes, then spreads each four to pairs.
#[inline(always)]
fn interleave(rows: [&[i8; COLUMNS]; 8], first: usize, out: &mut [[[Pair; LANES]; 2]; PAIRS]) {
    for (part, out) in out.chunks_exact_mut(8).enumerate() {
        // SAFETY: this code is inlined into functions compiled for AVX2 only; any bits are bytes,
        // pairs and vectors.
        unsafe {
            let mut r = [_mm256_setzero_si256(); 8];
            for (r, row) in r.iter_mut().zip(rows) {
                *r = transmute::<[i8; 32], __m256i>(row.as_chunks().0[part]);
            }
            let mut t = r;
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
            }
            // Of rows 0 to 3 and of rows 4 to 7: element i of each 128 bits.
            let mut u = t;
            for h in 0..2 {
                let t = &t[4 * h..4 * h + 4];
                u[4 * h] = _mm256_unpacklo_epi64(t[0], t[2]);
                u[4 * h + 1] = _mm256_unpackhi_epi64(t[0], t[2]);
                u[4 * h + 2] = _mm256_unpacklo_epi64(t[1], t[3]);
                u[4 * h + 3] = _mm256_unpackhi_epi64(t[1], t[3]);
            }
            for i in 0..4 {
                let low = _mm256_permute2x128_si256::<0x20>(u[i], u[i + 4]);
                let high = _mm256_permute2x128_si256::<0x31>(u[i], u[i + 4]);
                for (column, bytes) in [(i, low), (i + 4, high)] {
                    let (even, odd) = halves_256(bytes);
                    for (out, pairs) in out[column].iter_mut().zip([even, odd]) {
                        let out = &mut out[first..first + 8];
                        out.copy_from_slice(&transmute::<__m256i, [Pair; 8]>(pairs));
                    }
                }
            }
        }
    }
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
    // 12 accumulators, 1 of x, 1 of w.
    const INT_COLUMNS: usize = 6;

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

    type Pairs = __m256i;
    type Ints = __m256i;

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn negated_product(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_xor_ps(_mm256_mul_ps(a, b), _mm256_set1_ps(-0.0)) }
    }

    #[inline(always)]
    fn no_ints() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn pairs(group: &[Pair; LANES], strip: usize) -> __m256i {
        pairs_256(group.as_chunks().0[strip])
    }

    #[inline(always)]
    fn pair(pair: Pair) -> __m256i {
        let [a, b] = pair.map(i16::to_ne_bytes);
        // SAFETY: as above.
        unsafe { _mm256_set1_epi32(i32::from_ne_bytes([a[0], a[1], b[0], b[1]])) }
    }

    #[inline(always)]
    fn dot(a: __m256i, b: __m256i, acc: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn floats(ints: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn sub_sums(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], sub: usize) -> [f32; SUBS] {
        sub_sums_256(q, limbs, sub)
    }

    #[inline(always)]
    fn fma_4(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        fma_4(a, b, c)
    }

    #[inline(always)]
    fn interleave(rows: [&[i8; COLUMNS]; 8], first: usize, out: &mut [[[Pair; LANES]; 2]; PAIRS]) {
        interleave(rows, first, out);
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
}

#[inline(always)]
fn pairs_512(pairs: [Pair; 16]) -> __m512i {
    // SAFETY: any bits are a vector.
    unsafe { transmute(pairs) }
}

/// The 16-bit integers of the even and of the odd bytes.
#[inline(always)]
fn halves_512(bytes: __m512i) -> (__m512i, __m512i) {
    // SAFETY: this code is inlined into functions compiled for AVX-512 only.
    unsafe {
        (
            _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)),
            _mm512_srai_epi16::<8>(bytes),
        )
    }
}

/// Element `v` of each 128 bits: the sum of those 128 bits of `a[v]`.
#[inline(always)]
fn sum_lanes_512(a: [__m512i; 4]) -> __m512i {
    // SAFETY: as above.
    unsafe {
        let low = _mm512_add_epi32(
            _mm512_unpacklo_epi32(a[0], a[1]),
            _mm512_unpackhi_epi32(a[0], a[1]),
        );
        let high = _mm512_add_epi32(
            _mm512_unpacklo_epi32(a[2], a[3]),
            _mm512_unpackhi_epi32(a[2], a[3]),
        );
        _mm512_add_epi32(
            _mm512_unpacklo_epi64(low, high),
            _mm512_unpackhi_epi64(low, high),
        )
    }
}

/// The sums of 64 columns from `64 at` on, with `hi` and with `lo`: each 128 bits are those of 16
/// columns.
#[inline(always)]
fn sums_512<const VNNI: bool>(
    q: &[i8; COLUMNS],
    limbs: &[[Pair; PAIRS]; 4],
    at: usize,
) -> (__m512i, __m512i) {
    let [a, b, c, d] = limbs;
    let (a, b) = (a.as_chunks().0[at], b.as_chunks().0[at]);
    let (c, d) = (c.as_chunks().0[at], d.as_chunks().0[at]);
    let (a, b, c, d) = (pairs_512(a), pairs_512(b), pairs_512(c), pairs_512(d));
    let bytes = q.as_chunks().0[at];
    // SAFETY: this code is inlined into functions compiled for AVX-512 only; any bits are a vector.
    unsafe {
        let (even, odd) = halves_512(transmute::<[i8; 64], __m512i>(bytes));
        let none = _mm512_setzero_si512();
        (
            dot_512::<VNNI>(odd, b, dot_512::<VNNI>(even, a, none)),
            dot_512::<VNNI>(odd, d, dot_512::<VNNI>(even, c, none)),
        )
    }
}

#[inline(always)]
fn sub_sums_512<const VNNI: bool>(
    q: &[i8; COLUMNS],
    limbs: &[[Pair; PAIRS]; 4],
    sub: usize,
) -> [f32; SUBS] {
    let (a, b) = (sums_512::<VNNI>(q, limbs, 0), sums_512::<VNNI>(q, limbs, 1));
    let (c, d) = (sums_512::<VNNI>(q, limbs, 2), sums_512::<VNNI>(q, limbs, 3));
    // Element 4 l + v: the sum of columns 64 v + 16 l and the 15 after.
    let hi = sum_lanes_512([a.0, b.0, c.0, d.0]);
    let lo = sum_lanes_512([a.1, b.1, c.1, d.1]);
    // SAFETY: as above; any bits are floats.
    unsafe {
        let rounded = if sub == 32 {
            let first = _mm512_shuffle_i32x4::<0b10_00_10_00>(hi, lo);
            let second = _mm512_shuffle_i32x4::<0b11_01_11_01>(hi, lo);
            let both = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
            let hi = _mm512_castps512_ps256(both);
            let lo = _mm512_extractf32x8_ps::<1>(both);
            let rounded = _mm256_fmadd_ps(hi, _mm256_set1_ps(4096.0), lo);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm512_zextps256_ps512(_mm256_permutevar8x32_ps(rounded, order))
        } else {
            let (hi, lo) = (_mm512_cvtepi32_ps(hi), _mm512_cvtepi32_ps(lo));
            let rounded = _mm512_fmadd_ps(hi, _mm512_set1_ps(4096.0), lo);
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            _mm512_permutexvar_ps(order, rounded)
        };
        transmute::<__m512, [f32; SUBS]>(rounded)
    }
}

#[inline(always)]
fn dot_512<const VNNI: bool>(a: __m512i, b: __m512i, acc: __m512i) -> __m512i {
    if VNNI {
        // SAFETY: as above, and only for processors with VNNI where the flag is set.
        unsafe { _mm512_dpwssd_epi32(acc, a, b) }
    } else {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)) }
    }
}

/// Sixteen floats a register; `VNNI`: with 16-bit multiply-adds in one instruction.
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
    // 12 accumulators, 6 chains, 6 sums, 1 of x, 1 of w.
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

    type Pairs = __m512i;
    type Ints = __m512i;

    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn negated_product(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_xor_ps(_mm512_mul_ps(a, b), _mm512_set1_ps(-0.0)) }
    }

    #[inline(always)]
    fn no_ints() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn pairs(group: &[Pair; LANES], strip: usize) -> __m512i {
        pairs_512(group.as_chunks().0[strip])
    }

    #[inline(always)]
    fn pair(pair: Pair) -> __m512i {
        let [a, b] = pair.map(i16::to_ne_bytes);
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(i32::from_ne_bytes([a[0], a[1], b[0], b[1]])) }
    }

    #[inline(always)]
    fn dot(a: __m512i, b: __m512i, acc: __m512i) -> __m512i {
        dot_512::<VNNI>(a, b, acc)
    }

    #[inline(always)]
    fn floats(ints: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn sub_sums(q: &[i8; COLUMNS], limbs: &[[Pair; PAIRS]; 4], sub: usize) -> [f32; SUBS] {
        sub_sums_512::<VNNI>(q, limbs, sub)
    }

    #[inline(always)]
    fn fma_4(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        fma_4(a, b, c)
    }

    #[inline(always)]
    fn interleave(rows: [&[i8; COLUMNS]; 8], first: usize, out: &mut [[[Pair; LANES]; 2]; PAIRS]) {
        interleave(rows, first, out);
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
}
