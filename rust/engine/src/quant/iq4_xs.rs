//! IQ4_XS: 256 weights in 136 bytes. `f16 d`, two bytes with the upper two bits of eight 6-bit scales
//! `s`, that of sub-block `j` from bit `2 j` on, four bytes with their nibbles, two a byte, then 128
//! bytes of 4-bit codes; weight = (d (s - 32)) q, `q` the integer of `codes::IQ4` that the code numbers.
//! Of a sub-block's 16 bytes, byte `i` holds weight `i` in its low half and weight `i + 16` in its high
//! half.
//! In sums: sub-blocks of 32, integers `q`, scales `d (s - 32)`.

use super::half::{half_at, half_scale, half_to_f32, HALF_MAX};
use super::integers::less;
use super::{arrays, codes, pack_nibbles, reciprocal, saturate, search};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq4Xs;

/// What scales are stored above.
const BIAS: u8 = 32;

impl Block for Iq4Xs {
    const ELEMS: usize = 256;
    const BYTES: usize = 136;
    const LARGEST: f32 = 32.0 * 127.0 * HALF_MAX;

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        let (block, out) = arrays::<136, 256, _>(block, out);
        let d = half_at::<A, _>(block, 0);
        let tops = u16::from_le_bytes([block[2], block[3]]);
        let subs = block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32));
        for (j, (bytes, out)) in subs.enumerate() {
            let nibble = block[4 + j / 2] >> (j % 2 * 4) & 15;
            let s = nibble | ((tops >> (2 * j) & 3) as u8) << 4;
            let scale = d * f32::from(s as i8 - BIAS as i8);
            for i in 0..16 {
                let [low, high] = codes::pair(&codes::IQ4, bytes[i]);
                out[i] = scale * low;
                out[i + 16] = scale * high;
            }
        }
    }
}

impl Integers for Iq4Xs {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 127;
    const SCALE_BITS: u32 = 6;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        for i in 0..2 {
            // Four nibbles, and four pairs of bits, to four bytes.
            let nibbles = words[1].right(16 * i as u32);
            let apart = nibbles.and(0xff).or(nibbles.and(0xff00).left(8));
            let mut s = apart.and(0x000f_000f).or(apart.and(0x00f0_00f0).left(4));
            let tops = words[0].right(16 + 8 * i as u32);
            for j in 0..4 {
                s = s.or(tops.and(3 << (2 * j)).left(4 + 6 * j));
            }
            out.steps(i, less(s, BIAS));
        }
        for j in 0..8 {
            for i in 0..4 {
                let [low, high] = codes::words(&codes::IQ4, words[2 + 4 * j + i]);
                out.q(8 * j + i, low);
                out.q(8 * j + 4 + i, high);
            }
        }
    }
}

impl super::Quantizer for Iq4Xs {
    fn quantize(x: &[f32], block: &mut [u8]) {
        let x: [f32; 256] = saturate(x, Self::LARGEST);
        if x.iter().all(|x| *x == 0.0) {
            // A zero scale, whatever q.
            return block.fill(0);
        }
        let weights = search::importance(&x);
        let subs = || x.chunks_exact(32).zip(weights.chunks_exact(32));
        let mut fits = [0.0; 8];
        for (fit, (x, w)) in fits.iter_mut().zip(subs()) {
            *fit = codes::scale_iq4(x, w);
        }
        // The scale farthest from 0 becomes -32, the other end being 31.
        let far = fits
            .iter()
            .fold(0.0f32, |far, s| if s.abs() > far.abs() { *s } else { far });
        let bits = half_scale(far, -f32::from(BIAS));
        let d = half_to_f32(bits);
        block.fill(0);
        block[..2].copy_from_slice(&bits.to_le_bytes());
        let mut tops = 0;
        for (j, (x, w)) in subs().enumerate() {
            let middle = (fits[j] * reciprocal(d)).round() as i8;
            let mut least = f32::INFINITY;
            let mut scale = 0;
            for candidate in middle - 1..=middle + 1 {
                let candidate = candidate.clamp(-32, 31);
                let error = codes::error_iq4(x, w, d * f32::from(candidate));
                if error < least {
                    (least, scale) = (error, candidate);
                }
            }
            let s = (scale + BIAS as i8) as u8;
            block[4 + j / 2] |= (s & 15) << (j % 2 * 4);
            tops |= u16::from(s >> 4) << (2 * j);
            let steps = reciprocal(d * f32::from(scale));
            let q: [u8; 32] = std::array::from_fn(|i| codes::nearest_iq4(x[i] * steps));
            pack_nibbles(&q, &mut block[8 + 16 * j..24 + 16 * j]);
        }
        block[2..4].copy_from_slice(&tops.to_le_bytes());
    }
}
