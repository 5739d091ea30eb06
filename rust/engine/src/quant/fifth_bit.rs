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
    // Four bits become bit 4 of each byte: bit i moves from i to 8 i + 4.
    let top = |first: u32| {
        let bits = high.right(first);
        let bit = |i: u32| bits.and(1 << i).left(4 + 7 * i);
        bit(0).or(bit(1)).or(bit(2)).or(bit(3))
    };
    let [low, upper] = nibbles(of);
    let first = 4 * j as u32;
    [low.or(top(first)), upper.or(top(first + 16))]
}

/// Writes the fifth bits and the nibbles of 32 numbers.
pub fn pack(q: &[u8; 32], packed: &mut [u8]) {
    let high = (0..32).fold(0, |high, i| high | u32::from(q[i] >> 4) << i);
    packed[..4].copy_from_slice(&high.to_le_bytes());
    pack_nibbles(&q.map(|q| q & 15), &mut packed[4..]);
}
