//! IQ1_M: 256 weights in 56 bytes. The low bytes of 32 numbers of points of eight places `p`, -1 to 1, the
//! points of IQ1_S; 16 bytes with four bits for each: three more of its number, and whether its weights
//! are shifted down; then four times 16 bits: four 3-bit `s`, one for every 16 weights, below a
//! quarter of `f16 d`, the lowest first; weight = d / 8 (2 s + 1) (8 p + 1), or (8 p - 1).
//! In sums: sub-blocks of 16, integers `8 p + 1` or `8 p - 1`, scales `d / 8 (2 s + 1)`.

use super::{iq1_s, lattice};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq1M;

impl Block for Iq1M {
    const ELEMS: usize = 256;
    const BYTES: usize = 56;
    const LARGEST: f32 = lattice::largest::<Self>(15);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq1M {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = 9;
    const SCALE_BITS: u32 = 4;
    const D_UNIT: f32 = 0.125;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        let part = |i: usize| lattice::two_bytes(words, 48 + 2 * i);
        let quarter = |i: usize| part(i).right(12).left(4 * i as u32);
        out.d(0, quarter(0).or(quarter(1)).or(quarter(2)).or(quarter(3)));
        let s = |sub: usize| part(sub / 4).right(3 * (sub % 4) as u32).and(7);
        lattice::give_steps(16, s, out);
        for i in 0..32 {
            let more = lattice::nibble(words, 32, i);
            let number = lattice::byte(words, i).or(more.and(7).left(8));
            iq1_s::give(number, more.right(3), i, out);
        }
    }
}
