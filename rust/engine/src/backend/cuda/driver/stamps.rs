//! Time stamps of a kernel's blocks, written by variants that are compiled for it; results have the same
//! bits as without.

/// Moments of a block, in their order; the name in a kernel is `STAMP_` and this in capitals.
pub const MOMENTS: [&str; 6] = ["begun", "asked", "waited", "ready", "summed", "ended"];

/// Words of a block: the number of its SM, nanoseconds of each moment or 0, unused.
pub const WORDS: usize = 8;

/// What a kernel knows of it. A word's number is that of the moment in [`MOMENTS`] and one.
pub const CONSTANTS: [(&str, u32); 7] = [
    ("STAMP_BEGUN", 1),
    ("STAMP_ASKED", 2),
    ("STAMP_WAITED", 3),
    ("STAMP_READY", 4),
    ("STAMP_SUMMED", 5),
    ("STAMP_ENDED", 6),
    ("STAMP_WORDS", WORDS as u32),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_number_moments_as_the_host_does() {
        for (i, moment) in MOMENTS.iter().enumerate() {
            let name = format!("STAMP_{}", moment.to_uppercase());
            assert!(CONSTANTS.contains(&(name.as_str(), i as u32 + 1)), "{name}");
        }
        assert!(MOMENTS.len() < WORDS);
    }
}
