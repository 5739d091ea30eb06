//! How long slices of prompts take, to cut them by; results do not depend on the cut.

use std::time::Duration;

/// Bounds of the rows of a slice.
pub const MIN_ROWS: usize = 8;
const MAX_ROWS: usize = 4096;

/// Of the time of a slice, what is planned for: no two are equally fast.
const PLANNED: f64 = 0.9;

/// Of what a slice counts, what is left of it behind the next one.
const KEPT: f64 = 0.7;

/// By how much of their mean rows have to differ to tell what a row takes.
const SPREAD: f64 = 0.1;

/// Rows that a slice has at most, as a multiple of those of slices before it.
const STRETCH: usize = 2;

/// Of a slice's time, what its rows take, while slices of one size alone were seen.
const OF_ROWS: f64 = 0.25;

/// What a slice counts at most, as a multiple of what it was expected to take: one in which a list was
/// captured or a kernel compiled says nothing of those behind it.
const MOST_SURPRISE: f64 = 1.5;

/// The time of a slice: seconds whatever its rows, in which weights and what is in the cache are read,
/// and seconds a row.
#[derive(Debug, Clone, Copy)]
struct Line {
    fixed: f64,
    row: f64,
}

impl Line {
    fn at(self, rows: f64) -> f64 {
        self.fixed + self.row * rows
    }
}

/// A line through the times of slices, of which the latest count most: the further a prompt is read, the
/// longer they take.
#[derive(Debug, Default)]
pub struct Pace {
    /// Whether the first slice is over, in which kernels may have been compiled.
    warm: bool,
    line: Option<Line>,
    /// Rows of the largest slice.
    largest: usize,
    /// Of the slices, each by what it counts: their number, rows, squares of rows, seconds, and products
    /// of rows and seconds.
    n: f64,
    rows: f64,
    squares: f64,
    seconds: f64,
    products: f64,
}

impl Pace {
    /// Rows that take so long, where that is known.
    pub fn rows(&self, slice: Duration) -> Option<usize> {
        let line = self.line?;
        let rows = (slice.as_secs_f64() * PLANNED - line.fixed) / line.row;
        let most = MAX_ROWS.min(STRETCH * self.largest).max(MIN_ROWS);
        Some((rows.max(0.0) as usize).clamp(MIN_ROWS, most))
    }

    /// Whether a slice may be over in that time.
    pub fn fits(&self, time: Duration) -> bool {
        let least = self.line.map(|line| line.at(MIN_ROWS as f64));
        least.is_some_and(|least| least <= time.as_secs_f64() * PLANNED)
    }

    /// A slice of so many rows took so long.
    pub fn note(&mut self, rows: usize, took: Duration) {
        if !std::mem::replace(&mut self.warm, true) {
            return;
        }
        let x = rows.max(1) as f64;
        let expected = self
            .line
            .map_or(f64::INFINITY, |line| MOST_SURPRISE * line.at(x));
        let t = took.as_secs_f64().clamp(1e-6, expected.max(1e-6));
        let of = |sum: f64, more: f64| sum * KEPT + more;
        self.n = of(self.n, 1.0);
        self.rows = of(self.rows, x);
        self.squares = of(self.squares, x * x);
        self.seconds = of(self.seconds, t);
        self.products = of(self.products, x * t);
        self.largest = rows.max(self.largest);
        let (mean, time) = (self.rows / self.n, self.seconds / self.n);
        let spread = self.squares / self.n - mean * mean;
        let known = spread > (SPREAD * mean).powi(2);
        let row = match (known, self.line) {
            (true, _) => (self.products / self.n - mean * time) / spread,
            (false, Some(line)) => line.row,
            (false, None) => OF_ROWS * time / mean,
        };
        // A row takes more than nothing, and rows take no more than all of it.
        let row = row.clamp(0.02 * time / mean, time / mean);
        // Where slices become slower, the mean is behind.
        let fixed = (time - row * mean).max(t - row * x);
        self.line = Some(Line { fixed, row });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(f64) -> Duration = |ms| Duration::from_secs_f64(ms / 1e3);

    #[test]
    fn the_first_slice_does_not_count_and_a_slow_one_counts_little() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(MS(50.0)), None);
        // In the first one kernels may have been compiled.
        pace.note(100, Duration::from_secs(9));
        assert_eq!((pace.rows(MS(50.0)), pace.fits(MS(50.0))), (None, false));
        pace.note(100, MS(20.0));
        // Nothing is known of slices that are much larger.
        assert_eq!(pace.rows(MS(50.0)), Some(200));
        assert!(pace.fits(MS(17.2)) && !pace.fits(MS(17.0)));
        pace.note(100, MS(10_000.0));
        let behind = pace.rows(MS(35.0)).unwrap();
        assert!((100..200).contains(&behind), "{behind}");
    }

    /// Sizes of a card's chunks.
    const SIZES: [usize; 10] = [8, 16, 32, 64, 96, 128, 192, 256, 384, 512];

    fn chunk(rows: usize) -> usize {
        SIZES.into_iter().rfind(|size| *size <= rows).unwrap_or(8)
    }

    proptest! {
        /// Of whatever fixed part and rows, from a slice of the fewest rows on, what is left of the time
        /// filled with another one where one fits, as an executor does.
        #[test]
        fn slices_soon_fill_their_time_and_keep_to_it(fixed in 0.0f64..28.0, row in 0.02f64..1.0) {
            let takes = |rows: usize| fixed + row * rows as f64;
            // Else twice as many rows, which tell how much of it is theirs, might take too long.
            prop_assume!(takes(8) <= 30.0);
            let mut pace = Pace::default();
            pace.note(8, MS(takes(8)));
            pace.note(8, MS(takes(8)));
            let mut used = Vec::new();
            for _ in 0..40 {
                let mut left = 45.0;
                let mut rows = 0;
                while rows == 0 || pace.fits(MS(left)) {
                    let n = chunk(pace.rows(MS(left)).unwrap());
                    prop_assert!(takes(n) <= 1.05 * left || n == 8, "{n} rows in {left} ms");
                    pace.note(n, MS(takes(n)));
                    left -= takes(n);
                    rows += n;
                }
                used.push(rows);
            }
            // The largest size that fits.
            let best = chunk((((45.0 * PLANNED - fixed) / row).max(0.0) as usize).max(8));
            for rows in &used[20..] {
                prop_assert!(*rows >= best, "{used:?}, {best} rows fit");
            }
        }

        /// A prompt whose slices take the longer the further it is read.
        #[test]
        fn slices_of_a_long_prompt_keep_to_their_time(fixed in 0.0f64..5.0, row in 0.05f64..0.3) {
            let mut pace = Pace::default();
            let mut read = 0usize;
            let mut n = 8;
            for turn in 0..400 {
                let takes = (fixed + read as f64 / 800.0) + (row + read as f64 * 1e-5) * n as f64;
                prop_assert!(turn < 12 || takes <= 50.0 || n == 8, "{n} rows, {takes} ms");
                pace.note(n, MS(takes));
                read += n;
                n = pace.rows(MS(45.0)).map_or(8, chunk);
            }
        }
    }
}
