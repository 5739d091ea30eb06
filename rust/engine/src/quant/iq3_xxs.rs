//! IQ3_XXS: 256 weights in 98 bytes. `f16 d`, 64 numbers of points of four magnitudes (see `lattice`),
//! then for every 32 weights a word: seven signs for each eight of them, the eighth making their
//! number even, and a 4-bit `s` in the top; weight = d / 4 (2 s + 1) q.
//! In sums: sub-blocks of 32, signed magnitudes `q`, scales `d / 4 (2 s + 1)`.

use super::lattice;
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq3Xxs;

/// The points of the grid.
static GRID: [[u32; 1]; 256] = lattice::fours(
    lattice::grid(include_str!("iq3_xxs.cuh")),
    [4, 12, 20, 28, 36, 44, 52, 62],
);

impl Block for Iq3Xxs {
    const ELEMS: usize = 256;
    const BYTES: usize = 98;
    const LARGEST: f32 = lattice::largest::<Self>(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq3Xxs {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 62;
    const SCALE_BITS: u32 = 5;
    const D_UNIT: f32 = 0.25;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        let both = |sub: usize| lattice::four_bytes(words, 66 + 4 * sub);
        lattice::give_steps(8, |sub| both(sub).right(28), out);
        for i in 0..64 {
            let signs = lattice::signs_of_seven(both(i / 8).right(7 * (i % 8 / 2) as u32));
            let number = lattice::byte(words, 2 + i);
            out.q(i, lattice::four(&GRID, number, signs, 4 * (i % 2) as u32));
        }
    }
}
