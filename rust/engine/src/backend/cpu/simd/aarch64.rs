//! The instruction sets of AArch64.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::cast;

use super::{
    byte_factors, pair_factors, Arithmetic, Factors, Group, Isa, Word, Words, COLUMNS, LANES,
};

// The first lane of a register is the first in memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Where byte `i` of four columns, a column's rows side by side, stands with the rows' columns side
/// by side; and the other way round.
const TRANSPOSED: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Four halves. (The intrinsic is younger than the oldest compiler that this is built with.)
#[inline(always)]
fn halves(bits: uint16x4_t) -> float32x4_t {
    let out;
    // SAFETY: part of every AArch64; it reads and writes nothing but these registers.
    unsafe {
        asm!("fcvtl {out:v}.4s, {bits:v}.4h", out = lateout(vreg) out, bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// In each lane: `sum` and the products of the four signed bytes of `q` with those of lane `LANE` of
/// `x`. (The intrinsic is not stable.)
///
/// # Safety
/// Only for processors with the dot products.
#[inline(always)]
unsafe fn dot_bytes<const LANE: usize>(
    mut sum: int32x4_t,
    q: uint32x4_t,
    x: uint32x4_t,
) -> int32x4_t {
    // SAFETY: the caller's; it reads and writes nothing but these registers.
    unsafe {
        asm!("sdot {sum:v}.4s, {q:v}.16b, {x:v}.4b[{LANE}]",
            sum = inout(vreg) sum, q = in(vreg) q, x = in(vreg) x, LANE = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

impl Words for uint32x4_t {
    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        // SAFETY: NEON is part of every AArch64.
        unsafe { vandq_u32(self, vdupq_n_u32(mask)) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { vorrq_u32(self, other) }
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> Self {
        // SAFETY: as above.
        unsafe { veorq_u32(self, vdupq_n_u32(mask)) }
    }

    #[inline(always)]
    fn minus(self, x: u32) -> Self {
        // SAFETY: as above.
        unsafe { vsubq_u32(self, vdupq_n_u32(x)) }
    }

    #[inline(always)]
    fn left(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { vshlq_u32(self, vdupq_n_s32(bits as i32)) }
    }

    #[inline(always)]
    fn right(self, bits: u32) -> Self {
        // SAFETY: as above.
        unsafe { vshlq_u32(self, vdupq_n_s32(-(bits as i32))) }
    }

    #[inline(always)]
    fn differ(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { veorq_u32(self, other) }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { vaddq_u32(self, other) }
    }

    #[inline(always)]
    fn look_up<const P: usize, const N: usize>(self, table: &[[u32; P]; N], part: usize) -> Self {
        let words: [Word; 4] = cast(self);
        cast(words.look_up(table, part))
    }

    #[inline(always)]
    fn look_up_bytes(self, table: &[i8; 16]) -> Self {
        // SAFETY: as above.
        cast(unsafe { vqtbl1q_u8(cast(*table), cast(self)) })
    }
}

/// Element `i` of all four.
#[inline(always)]
fn transposed(r: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (vzip1q_u32(r[0], r[2]), vzip1q_u32(r[1], r[3]));
        let (c, d) = (vzip2q_u32(r[0], r[2]), vzip2q_u32(r[1], r[3]));
        [
            vzip1q_u32(a, b),
            vzip2q_u32(a, b),
            vzip1q_u32(c, d),
            vzip2q_u32(c, d),
        ]
    }
}

/// Four floats a register; `DOT`: with multiply-adds of bytes in one instruction.
pub struct Neon<const DOT: bool>;

impl<const DOT: bool> Arithmetic for Neon<DOT> {
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl<const DOT: bool> Isa for Neon<DOT> {
    type Vector = float32x4_t;
    type Acc = [float32x4_t; 8];
    const STRIPS: usize = 8;
    // Of 32 registers: 24 accumulators, 6 of x, 1 of w.
    const COLUMNS: usize = 6;
    // 12 or 6 accumulators, 6 of x, 1 or 2 of w.
    const INT_COLUMNS: usize = 6;

    #[inline(always)]
    fn zeros() -> Self::Acc {
        [Self::splat(0.0); 8]
    }

    #[inline(always)]
    fn splat(x: f32) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    fn load(group: &Group, strip: usize) -> float32x4_t {
        cast(group.as_chunks::<4>().0[strip])
    }

    #[inline(always)]
    fn store(vector: float32x4_t, group: &mut Group, strip: usize) {
        group.as_chunks_mut::<4>().0[strip] = cast(vector);
    }

    #[inline(always)]
    fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn multiply(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn negated_product(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vnegq_f32(vmulq_f32(a, b)) }
    }

    #[inline(always)]
    fn fold(acc: Self::Acc) -> f32 {
        let eighth = |j: usize| {
            let even = Self::add(acc[j], acc[j + 4]);
            Self::add(even, Self::add(acc[j + 2], acc[j + 6]))
        };
        let sums: [f32; 4] = cast(Self::add(eighth(0), eighth(1)));
        (sums[0] + sums[2]) + (sums[1] + sums[3])
    }

    #[inline(always)]
    fn prefetch(bytes: &[u8]) {
        for line in bytes.chunks(LINE) {
            // SAFETY: part of every AArch64; a prefetch reads nothing. (No intrinsic is stable.)
            unsafe {
                asm!("prfm pldl2keep, [{}]", in(reg) line.as_ptr(),
                    options(readonly, nostack, preserves_flags));
            }
        }
    }

    type Words = uint32x4_t;
    // Of bytes those with the lower and the upper ones of x; of 16 bits the first.
    type Sums = [int32x4_t; 2];

    #[inline(always)]
    fn no_words() -> uint32x4_t {
        Self::word(0)
    }

    #[inline(always)]
    fn words(group: &[Word; LANES], strip: usize) -> uint32x4_t {
        cast(group.as_chunks::<4>().0[strip])
    }

    #[inline(always)]
    fn store_words(words: uint32x4_t, group: &mut [Word; LANES], strip: usize) {
        group.as_chunks_mut::<4>().0[strip] = cast(words);
    }

    #[inline(always)]
    fn word(word: Word) -> uint32x4_t {
        // SAFETY: as above.
        unsafe { vdupq_n_u32(word) }
    }

    #[inline(always)]
    fn dot_pairs(a: uint32x4_t, b: uint32x4_t, acc: uint32x4_t) -> uint32x4_t {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (vreinterpretq_s16_u32(a), vreinterpretq_s16_u32(b));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            let sums = vpaddq_s32(low, vmull_high_s16(a, b));
            vaddq_u32(acc, vreinterpretq_u32_s32(sums))
        }
    }

    #[inline(always)]
    fn floats(integers: uint32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vcvtq_f32_s32(vreinterpretq_s32_u32(integers)) }
    }

    #[inline(always)]
    fn halves(words: uint32x4_t) -> float32x4_t {
        // SAFETY: as above.
        halves(unsafe { vmovn_u32(words) })
    }

    #[inline(always)]
    fn bits(words: uint32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_f32_u32(words) }
    }

    #[inline(always)]
    fn bytes(words: uint32x4_t, i: usize) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            let top = vreinterpretq_s32_u32(words.left(24 - 8 * i as u32));
            vcvtq_f32_s32(vshrq_n_s32::<24>(top))
        }
    }

    #[inline(always)]
    fn factors(x: &[i32; COLUMNS], out: &mut Factors) {
        if DOT {
            byte_factors(x, out);
        } else {
            pair_factors(x, out);
        }
    }

    #[inline(always)]
    fn interleave(bytes: &[u8], stride: usize, out: &mut [[uint32x4_t; 4]]) {
        let n = 16 * out.len();
        let row = |i: usize| bytes[i * stride..][..n].as_chunks::<16>().0;
        let rows = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
        for (out, (((a, b), c), d)) in out.iter_mut().zip(rows) {
            *out = transposed([cast(*a), cast(*b), cast(*c), cast(*d)]);
        }
    }

    /// As they are, or a column's four rows side by side: a multiply-add of 16-bit integers adds to
    /// the lanes that it multiplies.
    #[inline(always)]
    fn weights(q: uint32x4_t) -> uint32x4_t {
        if DOT {
            return q;
        }
        // SAFETY: as above.
        cast(unsafe { vqtbl1q_u8(cast(q), cast(TRANSPOSED)) })
    }

    #[inline(always)]
    fn start(_: i32) -> Self::Sums {
        cast([0i32; 8])
    }

    #[inline(always)]
    fn dot(q: uint32x4_t, x: &[Word; 2], [a, b]: Self::Sums) -> Self::Sums {
        // SAFETY: as above; the dot products only where the flag is set.
        unsafe {
            let x = vcombine_u32(cast(*x), vdup_n_u32(0));
            if DOT {
                return [dot_bytes::<0>(a, q, x), dot_bytes::<1>(b, q, x)];
            }
            // The columns of x stand as [`pair_factors`] puts them: 0, 2, 1, 3.
            let x = vreinterpretq_s16_u32(x);
            let q = vreinterpretq_s8_u32(q);
            let (q01, q23) = (vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q));
            let sum = vmlal_laneq_s16::<0>(a, vget_low_s16(q01), x);
            let sum = vmlal_high_laneq_s16::<2>(sum, q01, x);
            let sum = vmlal_laneq_s16::<1>(sum, vget_low_s16(q23), x);
            [vmlal_high_laneq_s16::<3>(sum, q23, x), b]
        }
    }

    #[inline(always)]
    fn whole([a, b]: Self::Sums) -> uint32x4_t {
        if !DOT {
            return cast(a);
        }
        // SAFETY: as above.
        cast(unsafe { vaddq_s32(a, vshlq_n_s32::<8>(b)) })
    }
}
