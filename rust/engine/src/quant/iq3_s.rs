//! IQ3_S: 256 weights in 110 bytes. `f16 d`, the low bytes of 64 numbers of points of four magnitudes (see
//! `lattice`), 8 bytes of their ninth bits, 32 bytes of signs, 4 bytes of 4-bit `s` for every 32
//! weights; weight = d (2 s + 1) q.
//! In sums: sub-blocks of 32, signed magnitudes `q`, scales `d (2 s + 1)`.

use super::lattice;
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq3S;

/// The points of the grid.
static GRID: [[u32; 1]; 512] = lattice::fours(
    lattice::grid(include_str!("iq3_s.cuh")),
    [1, 3, 5, 7, 9, 11, 13, 15],
);

impl Block for Iq3S {
    const ELEMS: usize = 256;
    const BYTES: usize = 110;
    const LARGEST: f32 = lattice::largest::<Self>(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq3S {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 15;
    const SCALE_BITS: u32 = 5;
    const D_UNIT: f32 = 1.0;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        lattice::give_steps(8, |sub| lattice::nibble(words, 106, sub), out);
        for i in 0..64 {
            let top = lattice::byte(words, 66 + i / 8).right(i as u32 % 8).and(1);
            let number = lattice::byte(words, 2 + i).or(top.left(8));
            let signs = lattice::byte(words, 74 + i / 2);
            out.q(i, lattice::four(&GRID, number, signs, 4 * (i % 2) as u32));
        }
    }
}
