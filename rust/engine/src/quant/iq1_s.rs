//! IQ1_S: 256 weights in 50 bytes. `f16 d`, the low bytes of 32 numbers of points of eight places `p`, -1 to
//! 1 (see `lattice`), then for every 32 weights 16 bits: three more bits of each of four numbers, a
//! 3-bit `s`, and whether the weights are shifted down; weight = d / 8 (2 s + 1) (8 p + 1), or
//! (8 p - 1).
//! In sums: sub-blocks of 32, integers `8 p + 1` or `8 p - 1`, scales `d / 8 (2 s + 1)`.

use super::{integers::four, lattice};
use super::{Arithmetic, Block, Integers, Sink, Words, WORDS};

/// The block format.
pub struct Iq1S;

/// The points of the grid: of each place `p` the byte of `8 p - 1`, above 128.
pub static GRID: [[u32; 2]; 2048] =
    lattice::eights(lattice::grid(include_str!("iq1_s.cuh")), [119, 127, 135]);

/// Gives `8 p + 1`, or `8 p - 1` where `less` is 1, of point `i` of the superblock.
#[inline(always)]
pub fn give<W: Words>(number: W, less: W, i: usize, out: &mut impl Sink<W>) {
    // 2 a byte where it is 8 p + 1: nothing is carried.
    let two = less.xor(1).left(1);
    let twos = two.or(two.left(8));
    let twos = twos.or(twos.left(16));
    for half in 0..2 {
        let above = number.look_up(&GRID, half).plus(twos);
        out.q(2 * i + half, above.xor(four(128)));
    }
}

impl Block for Iq1S {
    const ELEMS: usize = 256;
    const BYTES: usize = 50;
    const LARGEST: f32 = lattice::largest::<Self>(15);

    #[inline(always)]
    fn expand<A: Arithmetic>(block: &[u8], out: &mut [f32]) {
        lattice::expand::<A, Self>(block, out);
    }
}

impl Integers for Iq1S {
    const SUB: usize = 32;
    const LARGEST_Q: i64 = 9;
    const SCALE_BITS: u32 = 4;
    const D_UNIT: f32 = 0.125;

    #[inline(always)]
    fn integers<W: Words>(words: &[W; WORDS], _: usize, out: &mut impl Sink<W>) {
        out.d(0, words[0]);
        let more = |sub: usize| lattice::two_bytes(words, 34 + 2 * sub);
        lattice::give_steps(8, |sub| more(sub).right(12).and(7), out);
        for i in 0..32 {
            let top = more(i / 4).right(3 * (i % 4) as u32).and(7);
            let number = lattice::byte(words, 2 + i).or(top.left(8));
            give(number, more(i / 4).right(15), i, out);
        }
    }
}
