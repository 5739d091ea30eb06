//! How many clusters of a kernel a card holds at once.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys;

use super::check::check;
use super::info::{DeviceInfo, MOST_CLUSTER};
use crate::error::Result;

/// An empty kernel in PTX, which the driver compiles: an occupancy query needs a kernel.
const EMPTY: &std::ffi::CStr = c"
.version 7.8
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
";

/// Clusters of [`MOST_CLUSTER`] blocks, of which each has a multiprocessor to itself, that the card whose
/// context is current holds at once. A cluster lies in one group of multiprocessors (GPC), and how many
/// each group has left differs from card to card. None where the driver has no compiler.
pub(super) fn most_clusters(info: &DeviceInfo) -> Result<Option<u32>> {
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends with a zero byte; the driver writes one handle, here.
    let loaded = check("cuModuleLoadData", unsafe {
        sys::cuModuleLoadData(&mut module, EMPTY.as_ptr().cast())
    });
    if loaded.is_err() {
        return Ok(None);
    }
    let most = most_of(module, info);
    // SAFETY: unloads what was loaded above, once.
    check("cuModuleUnload", unsafe { sys::cuModuleUnload(module) })?;
    most.map(Some)
}

fn most_of(module: sys::CUmodule, info: &DeviceInfo) -> Result<u32> {
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is live, the name ends with a zero byte; the driver writes one handle.
    check("cuModuleGetFunction", unsafe {
        sys::cuModuleGetFunction(&mut function, module, c"empty".as_ptr().cast::<c_char>())
    })?;
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is of a module that is live.
    check("cuFuncSetAttribute", unsafe {
        sys::cuFuncSetAttribute(function, attribute, info.shared_bytes as c_int)
    })?;
    // SAFETY: all-zero attributes and configurations are valid ("ignore", the default stream).
    let (mut attribute, mut config): (sys::CUlaunchAttribute, sys::CUlaunchConfig) =
        unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    let cluster = MOST_CLUSTER as u32;
    attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
        x: cluster,
        y: 1,
        z: 1,
    };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (info.sm_count / cluster * cluster, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (32, 1, 1);
    config.sharedMemBytes = info.shared_bytes as u32;
    (config.attrs, config.numAttrs) = (&mut attribute, 1);
    let mut most = 0;
    // SAFETY: the driver writes one number, here; the configuration lives through the call.
    check("cuOccupancyMaxActiveClusters", unsafe {
        sys::cuOccupancyMaxActiveClusters(&mut most, function, &config)
    })?;
    Ok(u32::try_from(most).unwrap_or(0))
}
