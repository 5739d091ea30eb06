//! One kernel launch as data. Eager mode runs a list of these; a capture records the same list.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::compile::Variant;
use super::device::{driver, Function, Stream};
use crate::error::Result;

/// What to launch: a kernel by the variant that it is compiled from, its grid and its one parameter
/// struct. Needs no compiler and no card yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub variant: Variant,
    /// The kernel's name in the source.
    pub entry: &'static str,
    /// For people: kernel and what it works on.
    pub label: String,
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The parameter struct, in whole words so that it is aligned.
    params: Vec<u64>,
    /// Bytes of weights that it reads, for reports of GB/s.
    pub bytes: u64,
}

/// A [`Spec`] whose kernel is on the card.
#[derive(Debug, Clone)]
pub struct Launch {
    pub spec: Spec,
    pub function: Function,
    /// Whether it may start before its predecessor has ended; it then waits inside.
    pub pdl: bool,
}

impl Spec {
    /// A launch of `entry` with the parameter struct `params`.
    pub fn new<P: bytemuck::Pod>(
        variant: Variant,
        entry: &'static str,
        grid: [u32; 3],
        block: u32,
        params: &P,
    ) -> Self {
        let bytes = bytemuck::bytes_of(params);
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        let label = entry.to_owned();
        Self {
            variant,
            entry,
            label,
            grid,
            block,
            shared: 0,
            params: words,
            bytes: 0,
        }
    }
}

impl Launch {
    /// Whether it attends to cached keys and values.
    pub fn is_attention(&self) -> bool {
        self.spec.entry.ends_with("attention")
    }

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
        let mut arguments = [self.spec.params.as_ptr().cast_mut().cast::<c_void>()];
        driver!(cuLaunchKernelEx(
            &config,
            self.function.handle,
            arguments.as_mut_ptr(),
            std::ptr::null_mut()
        ))
    }
}

/// Queues a list of launches, one by one.
pub fn run_all(launches: &[Launch], stream: &Stream) -> Result<()> {
    stream.context.bind()?;
    launches.iter().try_for_each(|launch| launch.run(stream))
}
