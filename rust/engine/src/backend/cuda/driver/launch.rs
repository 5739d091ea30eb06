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
        use sys::CUlaunchAttributeID_enum as Id;
        // SAFETY: all-zero attributes are valid ("ignore").
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        if self.pdl {
            attributes[0].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[0].value.programmaticStreamSerializationAllowed = 1;
        }
        if self.spec.cluster > 1 {
            attributes[1].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[1].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                x: self.spec.cluster,
                y: 1,
                z: 1,
            };
        }
        let config = sys::CUlaunchConfig {
            gridDimX: self.spec.grid[0],
            gridDimY: self.spec.grid[1],
            gridDimZ: self.spec.grid[2],
            blockDimX: self.spec.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.spec.shared,
            hStream: stream.handle,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut arguments = [self.spec.words().as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: `config` and its attributes live through the call, which copies the parameters.
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
