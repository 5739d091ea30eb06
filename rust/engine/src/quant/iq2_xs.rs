//! IQ2_XS: 256 weights in 74 bytes. `f16 d`, for every eight weights the 9-bit number of a point of eight
//! magnitudes (see `lattice`) and, above it, seven signs, the eighth making their number even; 8 bytes
//! of 4-bit `s` for every 16 weights; weight = d / 8 (2 s + 1) q.
//! In sums: sub-blocks of 16, signed magnitudes `q`, scales `d / 8 (2 s + 1)`.

use super::lattice;
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq2Xs;

/// The points of the grid.
static GRID: [[u32; 2]; 512] =
    lattice::eights(lattice::grid(include_str!("iq2_xs.cuh")), [8, 25, 43]);

impl Block for Iq2Xs {
    const ELEMS: usize = 256;
    const BYTES: usize = 74;
    const LARGEST: f32 = lattice::largest::<Self>(31);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq2Xs {
    const SUB: usize = 16;
    const LARGEST_Q: i64 = 43;
    const SCALE_BITS: u32 = 5;
    const D_UNIT: f32 = 0.125;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        lattice::give_steps(16, |sub| lattice::nibble(words, 66, sub), out);
        for i in 0..32 {
            let both = lattice::two_bytes(words, 2 + 2 * i);
            let signs = lattice::signs_of_seven(both.right(9));
            lattice::give_eight(&GRID, both.and(511), signs, i, out);
        }
    }
}
