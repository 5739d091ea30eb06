//! The mat-vec's shape: which parts of it are fixed by the matrix, since they fix the order of its
//! sums, and which are free.

use std::fmt::Write;

use crate::quant::QuantType;

/// Columns of a unit.
pub const UNIT_COLS: usize = 256;
/// Rows of a unit.
pub const UNIT_ROWS: usize = 8;

/// Bytes of one superblock of one row of activations in shared memory, with its sums.
const X_SB_BYTES: usize = (288 + 24) * 4;

/// Warps of a block, about: four a scheduler hide each other's latencies. Where more rows are
/// computed at once a warp needs twice the registers.
const WARPS: usize = 16;

/// Units of a row of tiles.
pub fn superblocks(n_in: usize) -> usize {
    n_in.div_ceil(UNIT_COLS)
}

/// Warps that share a row: part of the specified sum, so a function of the row's length alone. As
/// many as eight; where the row does not divide, the number with the least idle time.
pub fn warps_k(n_in: usize) -> usize {
    let n_sb = superblocks(n_in);
    if n_sb <= 8 {
        return n_sb.max(1);
    }
    (5..=8)
        .rev()
        .min_by_key(|k| n_sb.div_ceil(*k) * k)
        .unwrap_or(8)
}

/// Everything a mat-vec kernel is compiled for but its epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatVecShape {
    pub n_in: usize,
    pub max_m: usize,
    pub warps_k: usize,
    /// Groups of `warps_k` warps in a block, each with rows of its own.
    pub warps_r: usize,
    /// Units in flight a warp.
    pub ring: usize,
    /// Tiles between two barriers.
    pub round: usize,
    /// Bytes of the largest unit.
    pub stage: usize,
}

impl MatVecShape {
    /// A shape for up to `m` rows that fits `shared` bytes; fewer rows at a time where it must.
    pub fn new(n_in: usize, types: &[&QuantType], m: usize, shared: usize) -> Self {
        let warps_k = warps_k(n_in);
        let warps = if m == 1 { WARPS } else { WARPS / 2 };
        let warps_r = (warps / warps_k).max(1);
        let stage = types
            .iter()
            .map(|t| t.kernel.unit_bytes)
            .max()
            .unwrap_or(16);
        // What one block has in flight: the latency of memory times a SM's share of its rate.
        let ring = (80 * 1024 / (warps_k * warps_r * stage)).clamp(2, 8);
        let mut shape = Self {
            n_in,
            max_m: m.clamp(1, 8).next_power_of_two(),
            warps_k,
            warps_r,
            ring,
            round: if m == 1 { 8 } else { 4 },
            stage,
        };
        // Few units in flight are slow, but weights that stream twice are slower.
        loop {
            let least = if shape.max_m > 1 { ring.min(3) } else { 2 };
            let fits = (least..=ring).rev().find(|r| {
                shape.ring = *r;
                shape.shared_bytes() <= shared
            });
            if fits.is_some() {
                return shape;
            }
            if shape.max_m > 1 {
                shape.max_m /= 2;
            } else if shape.warps_r > 1 {
                // Units of four bytes a weight: two of them for each of sixteen warps are too many.
                shape.warps_r /= 2;
            } else {
                shape.ring = 1;
                return shape;
            }
        }
    }

    /// Threads a block.
    pub fn threads(&self) -> usize {
        32 * self.warps_k * self.warps_r
    }

    /// Dynamic shared memory, as the kernel lays it out.
    pub fn shared_bytes(&self) -> usize {
        let n_sb = superblocks(self.n_in);
        let rings = self.warps_k * self.warps_r * self.ring * self.stage;
        let x = n_sb * self.max_m * X_SB_BYTES;
        let squares = n_sb * self.max_m * 4;
        let parts = 2 * self.warps_r * self.round * self.max_m * self.warps_k * UNIT_ROWS * 4;
        rings + x + squares + parts
    }

    /// The constants as `variant.cuh` has them.
    pub fn constants(&self, types: &[&QuantType]) -> String {
        let mut text = String::new();
        let n = |text: &mut String, name: &str, value: usize| {
            let _ = writeln!(text, "constexpr int {name} = {value};");
        };
        n(&mut text, "MAX_M", self.max_m);
        n(&mut text, "N_IN", self.n_in);
        n(&mut text, "WARPS_K", self.warps_k);
        n(&mut text, "WARPS_R", self.warps_r);
        n(&mut text, "RING", self.ring);
        n(&mut text, "ROUND", self.round);
        n(&mut text, "N_SEGMENTS", types.len());
        text + &segments(types)
    }
}

/// `Segment0` to `Segment2` for `variant.cuh`, and a check that both sides agree on their size.
pub fn segments(types: &[&QuantType]) -> String {
    let mut text = String::new();
    for i in 0..3 {
        let ty = types[i.min(types.len() - 1)];
        let _ = writeln!(text, "#include \"{}\"", ty.kernel.header);
        let _ = writeln!(text, "using Segment{i} = {};", ty.name);
        let _ = writeln!(
            text,
            "static_assert(Segment{i}::UNIT_BYTES == {}, \"unit\");",
            ty.kernel.unit_bytes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    #[test]
    fn shared_memory_goes_to_rows_first_and_then_to_the_ring() {
        for ty in quant::TYPES {
            for n_in in [576, 2048, 4096, 8192] {
                let shape = MatVecShape::new(n_in, &[ty], 8, 227 << 10);
                assert!(
                    shape.shared_bytes() <= 227 << 10,
                    "{ty:?} {n_in}: {shape:?}"
                );
                if shape.max_m < 8 {
                    let more = MatVecShape {
                        max_m: shape.max_m * 2,
                        ring: 3,
                        ..shape
                    };
                    assert!(more.shared_bytes() > 227 << 10, "{ty:?} {n_in}: {shape:?}");
                }
            }
        }
    }

    #[test]
    fn warps_depend_on_the_row_alone_and_cover_it() {
        for n_in in [
            32, 576, 768, 896, 1024, 1536, 2048, 2560, 3072, 4096, 8192, 8960, 9728, 14336,
        ] {
            let k = warps_k(n_in);
            assert!((1..=8).contains(&k), "{n_in}: {k}");
            let idle = superblocks(n_in).div_ceil(k) * k - superblocks(n_in);
            assert!(
                idle * 8 <= superblocks(n_in),
                "{n_in}: {k} warps, {idle} idle"
            );
        }
    }
}
