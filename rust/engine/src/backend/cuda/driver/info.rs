//! Facts of a card, one that is present or one that is only described.

use crate::error::{Error, Result};

/// Oldest driver that has every call used here (CUDA 12.0).
pub(super) const MIN_DRIVER: i32 = 12000;

/// Compute capabilities, and the most shared memory in KiB that a block may ask for (CUDA C++
/// Programming Guide, table of technical specifications).
const ARCHITECTURES: [(u32, u32, usize); 9] = [
    (7, 5, 64),
    (8, 0, 163),
    (8, 6, 99),
    (8, 7, 163),
    (8, 9, 99),
    (9, 0, 227),
    (10, 0, 227),
    (10, 3, 227),
    (12, 0, 99),
];

/// Blocks of a cluster that every card which has clusters has room for.
pub const MOST_CLUSTER: usize = 8;

/// [`DeviceInfo::clusters`] of a card that cannot be asked: an H100 of 132 multiprocessors has 15.
pub(super) fn likely_clusters(compute: (u32, u32), sm_count: u32) -> u32 {
    match compute >= (9, 0) {
        true => sm_count / MOST_CLUSTER as u32 - sm_count / (16 * MOST_CLUSTER as u32),
        false => 0,
    }
}

/// What a card is.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DeviceInfo {
    pub ordinal: usize,
    pub name: String,
    /// Compute capability, e.g. `(9, 0)`.
    pub compute: (u32, u32),
    pub sm_count: u32,
    /// Clusters of [`MOST_CLUSTER`] blocks, a multiprocessor each, that it holds at once; 0 where it has
    /// none. Of a card whose context is not there, as many as are likely.
    pub clusters: u32,
    /// Bytes of level-2 cache.
    pub l2_bytes: usize,
    /// Most shared memory that one block may ask for.
    pub shared_bytes: usize,
    pub total_bytes: usize,
    /// Newest CUDA version of the driver, e.g. `13000`.
    pub driver: i32,
}

impl DeviceInfo {
    /// A card of architecture `name`, such as `sm_90`, with `sm_count` multiprocessors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] lists the architectures.
    pub fn of_arch(name: &str, sm_count: u32) -> Result<Self> {
        let known = ARCHITECTURES
            .iter()
            .find(|(major, minor, _)| name == format!("sm_{major}{minor}"));
        let Some((major, minor, shared_kib)) = known else {
            let all = ARCHITECTURES.map(|(major, minor, _)| format!("sm_{major}{minor}"));
            return Err(Error::Unsupported {
                what: "GPU architecture",
                name: name.into(),
                supported: all.join(", "),
            });
        };
        Ok(Self {
            ordinal: 0,
            name: name.into(),
            compute: (*major, *minor),
            sm_count,
            clusters: likely_clusters((*major, *minor), sm_count),
            l2_bytes: 0,
            shared_bytes: shared_kib << 10,
            total_bytes: 0,
            driver: MIN_DRIVER,
        })
    }

    /// Whether it has programmatic dependent launch (pdl): a kernel may start before its
    /// predecessor has ended, and waits inside for what that one writes.
    pub fn has_pdl(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// Whether it has wgmma, products of four warps that A's registers and shared memory feed.
    pub fn has_warpgroups(&self) -> bool {
        self.compute == (9, 0)
    }

    /// Whether kernels are launched so where the caller asks for it, asks for none of it, or leaves
    /// it to the card.
    pub fn uses_pdl(&self, asked: Option<bool>) -> bool {
        self.has_pdl() && asked.unwrap_or(true)
    }

    /// Its device and name, for people.
    pub fn device(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.name)
    }

    /// The number in the architecture's name, such as 90.
    pub fn number(&self) -> u32 {
        self.compute.0 * 10 + self.compute.1
    }

    /// The compiler's name of the architecture, `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.compute.0, self.compute.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdl_is_for_cards_that_have_it_unless_it_is_refused() {
        for (arch, has) in [("sm_89", false), ("sm_90", true), ("sm_120", true)] {
            let info = DeviceInfo::of_arch(arch, 1).unwrap();
            let used = [None, Some(true), Some(false)].map(|asked| info.uses_pdl(asked));
            assert_eq!((info.has_pdl(), used), (has, [has, has, false]), "{arch}");
        }
    }
}
