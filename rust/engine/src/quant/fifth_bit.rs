//! What Q5_0 and Q5_1 share: the fifth bits of 32 weights in four bytes, that of weight `i` in bit
//! `i`, before their nibbles.

use super::integers::nibbles;
use super::{pack_nibbles, Words};

/// The numbers of weights `i` and `i + 16`, of all fifth bits and the byte of their nibbles.
#[inline(always)]
pub fn pair(high: u32, nibbles: u8, i: usize) -> [u8; 2] {
    let top = high >> i;
    let (low, upper) = (top as u8 & 1, (top >> 16) as u8 & 1);
    [nibbles & 15 | low << 4, nibbles >> 4 | upper << 4]
}

/// The numbers of weights `4 j` to `4 j + 3`, and of those 16 further, of all fifth bits and the word
/// of their nibbles.
#[inline(always)]
pub fn words<W: Words>(high: W, of: W, j: usize) -> [W; 2] {
    let [low, upper] = nibbles(of);
    let first = 4 * j as u32;
    [low.or(tops(high, first)), upper.or(tops(high, first + 16))]
}

/// Bits `first` to `first + 3`, each as bit 4 of a byte: bit `i` moves from `i` to `8 i + 4`. (No
/// closures: they may be compiled apart, for no instruction set, and called.)
#[inline(always)]
fn tops<W: Words>(high: W, first: u32) -> W {
    let bits = high.right(first);
    let [a, b] = [bits.and(1).left(4), bits.and(2).left(11)];
    let [c, d] = [bits.and(4).left(18), bits.and(8).left(25)];
    a.or(b).or(c).or(d)
}

/// Writes the fifth bits and the nibbles of 32 numbers.
pub fn pack(q: &[u8; 32], packed: &mut [u8]) {
    let high = (0..32).fold(0, |high, i| high | u32::from(q[i] >> 4) << i);
    packed[..4].copy_from_slice(&high.to_le_bytes());
    pack_nibbles(&q.map(|q| q & 15), &mut packed[4..]);
}
