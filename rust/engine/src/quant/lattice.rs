//! What the types whose weights are points of a lattice share: 256 weights with one float16, an odd scale
//! for every 16 or 32, and for every four or eight the number of a point of a grid, which has a few
//! magnitudes in each place, beside signs. All are integers: weight = (d unit) (2 s + 1) q, and no
//! product of these rounds.
//!
//! The grids are numbers of the file format. Their source is the `gguf` Python package, whose tables
//! (`gguf.quants`, one class a type) they were packed from, a field of bits for each place; they stand
//! in the headers, where kernels read them too.

use super::half::HALF_MAX;
use super::{Arithmetic, Integers, Sink, Words, COLUMNS, SUBS, WORDS};

/// The largest weight's magnitude, `top` being the largest scale.
pub const fn largest<T: Integers>(top: u8) -> f32 {
    T::LARGEST_Q as f32 * top as f32 * T::D_UNIT * HALF_MAX
}

/// The numbers of the array `GRID` in a header.
pub const fn grid<const N: usize>(header: &str) -> [u16; N] {
    let text = header.as_bytes();
    let name = b"GRID[";
    let mut at = 0;
    let mut found = 0;
    while found < name.len() {
        found = if text[at] == name[found] {
            found + 1
        } else {
            0
        };
        at += 1;
    }
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        while !(text[at] == b'0' && text[at + 1] == b'x') {
            at += 1;
        }
        at += 2;
        while text[at] != b',' {
            let digit = match text[at] {
                b'0'..=b'9' => text[at] - b'0',
                _ => text[at] - b'a' + 10,
            };
            out[i] = out[i] << 4 | digit as u16;
            at += 1;
        }
        i += 1;
    }
    out
}

/// The four bytes from place `first` on of a point whose places have `bits` bits each: `values` of them.
const fn four_places(point: u16, first: usize, bits: usize, values: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    let mut i = 0;
    while i < 4 {
        let place = point >> (bits * (first + i)) & ((1 << bits) - 1);
        bytes[i] = values[place as usize];
        i += 1;
    }
    u32::from_le_bytes(bytes)
}

/// Points of four places of 3 bits.
pub const fn fours<const N: usize>(grid: [u16; N], values: [u8; 8]) -> [[u32; 1]; N] {
    let mut out = [[0]; N];
    let mut i = 0;
    while i < N {
        out[i] = [four_places(grid[i], 0, 3, &values)];
        i += 1;
    }
    out
}

/// Points of eight places of 2 bits.
pub const fn eights<const N: usize>(grid: [u16; N], values: [u8; 3]) -> [[u32; 2]; N] {
    let mut out = [[0; 2]; N];
    let mut i = 0;
    while i < N {
        out[i] = [
            four_places(grid[i], 0, 2, &values),
            four_places(grid[i], 4, 2, &values),
        ];
        i += 1;
    }
    out
}

/// The byte at `at` of superblocks.
#[inline(always)]
pub fn byte<W: Words>(words: &[W; WORDS], at: usize) -> W {
    words[at / 4].right(8 * (at % 4) as u32).and(255)
}

/// The two bytes at `at`, an even number.
#[inline(always)]
pub fn two_bytes<W: Words>(words: &[W; WORDS], at: usize) -> W {
    words[at / 4].right(8 * (at % 4) as u32).and(0xffff)
}

/// The four bytes at `at`, an even number.
#[inline(always)]
pub fn four_bytes<W: Words>(words: &[W; WORDS], at: usize) -> W {
    if at.is_multiple_of(4) {
        words[at / 4]
    } else {
        super::integers::across(words[at / 4], words[at / 4 + 1])
    }
}

/// Numbers of four bits, from byte `at` on: the low half of a byte first.
#[inline(always)]
pub fn nibble<W: Words>(words: &[W; WORDS], at: usize, j: usize) -> W {
    byte(words, at + j / 2).right(4 * (j % 2) as u32).and(15)
}

/// The eight signs of which seven are stored: an even number of them is set.
#[inline(always)]
pub fn signs_of_seven<W: Words>(seven: W) -> W {
    let seven = seven.and(127);
    let parity = seven.differ(seven.right(4));
    let parity = parity.differ(parity.right(2));
    let parity = parity.differ(parity.right(1));
    seven.or(parity.and(1).left(7))
}

/// Four magnitudes, none of them 0, with four signs from bit `first` of `signs` on.
#[inline(always)]
fn signed<W: Words>(magnitudes: W, signs: W, first: u32) -> W {
    // Bit i to bit 8 i, then to all of the byte.
    let signs = signs.right(first);
    let bit = |i: u32| signs.and(1 << i).left(7 * i);
    let ones = bit(0).or(bit(1)).or(bit(2)).or(bit(3));
    let two = ones.or(ones.left(1));
    let four = two.or(two.left(2));
    magnitudes.differ(four.or(four.left(4))).plus(ones)
}

/// A point of four places; `first` as above.
#[inline(always)]
pub fn four<const N: usize, W: Words>(grid: &[[u32; 1]; N], number: W, signs: W, first: u32) -> W {
    signed(number.look_up(grid, 0), signs, first)
}

/// Gives a point of eight places, which is number `i` of the superblock.
#[inline(always)]
pub fn give_eight<const N: usize, W: Words>(
    grid: &[[u32; 2]; N],
    number: W,
    signs: W,
    i: usize,
    out: &mut impl Sink<W>,
) {
    for half in 0..2 {
        let magnitudes = number.look_up(grid, half);
        out.q(2 * i + half, signed(magnitudes, signs, 4 * half as u32));
    }
}

/// Gives the scales `2 s + 1`, of `s` by the number of the sub-block.
#[inline(always)]
pub fn give_steps<W: Words>(subs: usize, s: impl Fn(usize) -> W, out: &mut impl Sink<W>) {
    for i in 0..subs / 4 {
        let odd = |j: usize| s(4 * i + j).left(1).xor(1).left(8 * j as u32);
        out.steps(i, odd(0).or(odd(1)).or(odd(2)).or(odd(3)));
    }
}

/// The parts of one superblock.
struct Parts {
    d: u16,
    steps: [u8; SUBS],
    q: [u8; COLUMNS],
}

impl Sink<[u32; 1]> for Parts {
    #[inline(always)]
    fn q(&mut self, i: usize, [q]: [u32; 1]) {
        self.q[4 * i..][..4].copy_from_slice(&q.to_le_bytes());
    }

    #[inline(always)]
    fn d(&mut self, _: usize, [d]: [u32; 1]) {
        self.d = d as u16;
    }

    fn m(&mut self, _: usize, _: [u32; 1]) {}

    #[inline(always)]
    fn steps(&mut self, i: usize, [s]: [u32; 1]) {
        self.steps[4 * i..][..4].copy_from_slice(&s.to_le_bytes());
    }

    fn mins(&mut self, _: usize, _: [u32; 1]) {}
}

/// The weights of a block, of the integers that it is made of.
#[inline(always)]
pub fn expand<A: Arithmetic, T: Integers>(block: &[u8], out: &mut [f32]) {
    let mut words = [[0]; WORDS];
    for (word, bytes) in words.as_flattened_mut().iter_mut().zip(block.chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_le_bytes(four);
    }
    let mut parts = Parts {
        d: 0,
        steps: [0; SUBS],
        q: [0; COLUMNS],
    };
    T::integers(&words, 1, &mut parts);
    let d = A::half(parts.d) * T::D_UNIT;
    let subs = out
        .chunks_exact_mut(T::SUB)
        .zip(parts.q.chunks_exact(T::SUB));
    for ((out, q), s) in subs.zip(parts.steps) {
        let scale = d * f32::from(s as i8);
        for (out, q) in out.iter_mut().zip(q) {
            *out = scale * f32::from(*q as i8);
        }
    }
}
