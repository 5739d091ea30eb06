//! One number for many bytes: SHA-256 over the SHA-256 of each MiB, so that all cores work on a long
//! file.

use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// A checksum.
pub type Sum = [u8; 32];

/// Bytes that are summed by one thread.
const PIECE: usize = 1 << 20;

/// The checksum of `parts`, which also says where one ends and the next begins.
pub fn of(parts: &[&[u8]]) -> Sum {
    let mut all = Sha256::new();
    for part in parts {
        let pieces: Vec<_> = part.par_chunks(PIECE).map(Sha256::digest).collect();
        all.update((part.len() as u64).to_le_bytes());
        pieces.iter().for_each(|piece| all.update(piece));
    }
    all.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_every_border_counts() {
        let long: Vec<u8> = (0..(PIECE + 7)).map(|i| (i % 251) as u8).collect();
        let whole = of(&[&long, b"end"]);
        assert_eq!(whole, of(&[&long, b"end"]));
        for at in [0, PIECE - 1, PIECE, PIECE + 6] {
            let mut changed = long.clone();
            changed[at] ^= 1;
            assert_ne!(whole, of(&[&changed, b"end"]), "byte {at}");
        }
        assert_ne!(whole, of(&[&long[..PIECE + 6], b"end"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    }
}
