//! IQ2_S: 256 weights in 82 bytes. `f16 d`, the low bytes of 32 numbers of points of eight magnitudes (see
//! `lattice`), 32 bytes of signs, 8 bytes of two more bits of each number, 8 bytes of 4-bit `s` for
//! every 16 weights; weight = d / 8 (2 s + 1) q.
//! In sums: sub-blocks of 16, signed magnitudes `q`, scales `d / 8 (2 s + 1)`.

use super::lattice;
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq2S;

/// The points of the grid.
static GRID: [[u32; 2]; 1024] =
    lattice::eights(lattice::grid(include_str!("iq2_s.cuh")), [8, 25, 43]);

impl Block for Iq2S {
    const ELEMS: usize = 256;
    const BYTES: usize = 82;
    const LARGEST: f32 = lattice::largest::<Self>(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq2S {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = 43;
    const SCALE_BITS: u32 = 5;
    const D_UNIT: f32 = 0.125;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        lattice::give_steps(16, |sub| lattice::nibble(words, 74, sub), out);
        for i in 0..32 {
            let top = lattice::byte(words, 66 + i / 4)
                .right(2 * (i % 4) as u32)
                .and(3);
            let number = lattice::byte(words, 2 + i).or(top.left(8));
            lattice::give_eight(&GRID, number, lattice::byte(words, 34 + i), i, out);
        }
    }
}
