//! The cards of this machine.

use std::ffi::{c_int, CStr};

use cudarc::driver::sys;

use super::check::{check, describe, device_error};
use super::info::{likely_clusters, DeviceInfo, MIN_DRIVER};
use crate::error::{Error, Result};

/// Loads the driver.
///
/// # Errors
/// [`Error::Device`]: no driver, one that is too old, or no card; each with its remedy.
pub fn init() -> Result<i32> {
    // SAFETY: only looks whether the library opens.
    if !unsafe { sys::is_culib_present() } {
        return Err(device_error(
            "CUDA",
            "no NVIDIA driver (libcuda.so) was found",
            "install the NVIDIA driver, or use device=\"cpu\"",
        ));
    }
    let mut version = 0;
    // SAFETY: the driver writes one number, here.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    if version < MIN_DRIVER {
        return Err(device_error(
            "CUDA",
            format!(
                "the driver supports CUDA {}.{}; {}.{} is needed",
                version / 1000,
                version % 1000 / 10,
                MIN_DRIVER / 1000,
                MIN_DRIVER % 1000 / 10
            ),
            "update the NVIDIA driver to 525 or newer",
        ));
    }
    // SAFETY: no arguments but the flags, which must be 0.
    match unsafe { sys::cuInit(0) } {
        sys::cudaError_enum::CUDA_SUCCESS => Ok(version),
        sys::cudaError_enum::CUDA_ERROR_NO_DEVICE => Err(no_card()),
        code => Err(device_error(
            "CUDA",
            describe(code),
            "check that nvidia-smi works and that this process may use the card",
        )),
    }
}

fn no_card() -> Error {
    device_error(
        "CUDA",
        "the driver sees no NVIDIA card",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use device=\"cpu\"",
    )
}

/// Number of cards.
///
/// # Errors
/// As [`init`].
pub fn count() -> Result<usize> {
    init()?;
    let mut n = 0;
    // SAFETY: the driver writes one number, here.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut n) })?;
    Ok(usize::try_from(n).unwrap_or(0))
}

/// What card number `ordinal` is.
///
/// # Errors
/// As [`init`]; also where there is no such card.
pub fn info(ordinal: usize) -> Result<DeviceInfo> {
    let driver = init()?;
    let n = count()?;
    if n == 0 {
        return Err(no_card());
    }
    if ordinal >= n {
        return Err(device_error(
            format!("cuda:{ordinal}"),
            format!("there are {n} cards"),
            "use a smaller number",
        ));
    }
    let mut device = 0;
    // SAFETY: the driver writes one handle, here; it checks the number.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&mut device, ordinal as c_int)
    })?;
    let mut name = [0 as std::ffi::c_char; 128];
    // SAFETY: the driver writes at most as many bytes as the array is told to have.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)
    })?;
    // SAFETY: the driver wrote a terminated string into the array.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned();
    let attribute = |which| -> Result<u32> {
        let mut value = 0;
        // SAFETY: the driver writes one number, here; the device came from it.
        check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, which, device)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    use sys::CUdevice_attribute_enum as a;
    let mut total_bytes = 0;
    // SAFETY: the driver writes one number, here; the device came from it.
    check("cuDeviceTotalMem_v2", unsafe {
        sys::cuDeviceTotalMem_v2(&mut total_bytes, device)
    })?;
    let compute = (
        attribute(a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let sm_count = attribute(a::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(DeviceInfo {
        ordinal,
        name,
        compute,
        sm_count,
        clusters: likely_clusters(compute, sm_count),
        l2_bytes: attribute(a::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_bytes: attribute(a::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        total_bytes,
        driver,
    })
}
