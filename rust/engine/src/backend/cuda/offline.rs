//! Kernels for a card that is not here.

use super::device::{DeviceInfo, MIN_DRIVER};
use crate::error::{Error, Result};

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
            l2_bytes: 0,
            shared_bytes: shared_kib << 10,
            total_bytes: 0,
            driver: MIN_DRIVER,
        })
    }
}
