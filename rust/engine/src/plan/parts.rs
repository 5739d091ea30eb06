//! The parts of a row: which superblocks of a product's sum are added up on their own.

use std::ops::Range;

/// Most parts of a row.
pub const MOST_PARTS: usize = 8;

/// Cuts a row of `n` superblocks into `min(8, n)` runs as even as can be: run `i` is from
/// `i n / P`, rounded down, to `(i + 1) n / P`. A rule of the length alone, so that every device
/// adds up the same runs, however many blocks or threads it gives them to.
pub fn parts(n: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let p = n.min(MOST_PARTS);
    (0..p).map(move |i| i * n / p..(i + 1) * n / p)
}

/// Superblocks of the longest part.
pub fn longest_part(n: usize) -> usize {
    n.div_ceil(MOST_PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_make_the_row() {
        assert_eq!(parts(0).len(), 0);
        for n in 1..2000 {
            let parts: Vec<_> = parts(n).collect();
            assert_eq!(parts.len(), n.min(MOST_PARTS));
            assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, n));
            for pair in parts.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
            }
            let longest = parts.iter().map(Range::len).max();
            let shortest = parts.iter().map(Range::len).min();
            assert_eq!(longest, Some(longest_part(n)));
            assert!(
                longest <= shortest.map(|s| s + 1) && shortest > Some(0),
                "{n}"
            );
        }
    }

    /// Rows of the models of `models/shapes.toml`, written out.
    #[test]
    fn parts_of_known_rows() {
        let ends = |columns: usize| -> Vec<usize> {
            parts(columns.div_ceil(256)).map(|run| run.end).collect()
        };
        for (columns, wanted) in [
            (96, vec![1]),
            (576, vec![1, 2, 3]),
            (1536, vec![1, 2, 3, 4, 5, 6]),
            (2048, vec![1, 2, 3, 4, 5, 6, 7, 8]),
            (2560, vec![1, 2, 3, 5, 6, 7, 8, 10]),
            (3072, vec![1, 3, 4, 6, 7, 9, 10, 12]),
            (4096, vec![2, 4, 6, 8, 10, 12, 14, 16]),
            (8960, vec![4, 8, 13, 17, 21, 26, 30, 35]),
            (9728, vec![4, 9, 14, 19, 23, 28, 33, 38]),
            (14336, vec![7, 14, 21, 28, 35, 42, 49, 56]),
        ] {
            assert_eq!(ends(columns), wanted, "{columns}");
        }
    }
}
