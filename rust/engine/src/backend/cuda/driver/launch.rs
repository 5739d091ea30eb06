//! Launches. Eager mode runs a list of these; a capture records the same list.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::check::check;
use super::module::Function;
use super::spec::Spec;
use super::stream::Stream;
use crate::error::Result;

/// A [`Spec`] whose kernel is on the card.
#[derive(Debug, Clone)]
pub struct Launch {
    pub spec: Spec,
    pub function: Function,
    /// Programmatic dependent launch: see [`super::info::DeviceInfo::has_pdl`].
    pub pdl: bool,
}

impl Launch {
    /// Queues it on `stream`.
    pub fn run(&self, stream: &Stream) -> Result<()> {
        // SAFETY: an all-zero attribute is a valid one ("ignore").
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id =
            sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: self.spec.grid[0],
            gridDimY: self.spec.grid[1],
            gridDimZ: self.spec.grid[2],
            blockDimX: self.spec.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.spec.shared,
            hStream: stream.handle,
            attrs: &mut attribute,
            numAttrs: u32::from(self.pdl),
        };
        let mut arguments = [self.spec.words().as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: `config` and its attribute live through the call, which copies the parameters.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.function.handle,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

/// Queues a list of launches, one by one.
pub fn run_all(launches: &[Launch], stream: &Stream) -> Result<()> {
    stream.context.bind()?;
    launches.iter().try_for_each(|launch| launch.run(stream))
}
