//! IQ2_XXS: 256 weights in 66 bytes. `f16 d`, then for every 32 weights four numbers of points of eight
//! magnitudes (see `lattice`) and a word: seven signs for each point, the eighth making their number
//! even, and a 4-bit `s` in the top; weight = d / 8 (2 s + 1) q.
//! In sums: sub-blocks of 32, signed magnitudes `q`, scales `d / 8 (2 s + 1)`.

use super::lattice;
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq2Xxs;

/// The points of the grid.
static GRID: [[u32; 2]; 256] =
    lattice::eights(lattice::grid(include_str!("iq2_xxs.cuh")), [8, 25, 43]);

impl Block for Iq2Xxs {
    const ELEMS: usize = 256;
    const BYTES: usize = 66;
    const LARGEST: f32 = lattice::largest::<Self>(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq2Xxs {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 43;
    const SCALE_BITS: u32 = 5;
    const D_UNIT: f32 = 0.125;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        let both = |sub: usize| lattice::four_bytes(words, 6 + 8 * sub);
        lattice::give_steps(8, |sub| both(sub).right(28), out);
        for i in 0..32 {
            let signs = lattice::signs_of_seven(both(i / 4).right(7 * (i % 4) as u32));
            let number = lattice::byte(words, 2 + 8 * (i / 4) + i % 4);
            lattice::give_eight(&GRID, number, signs, i, out);
        }
    }
}
