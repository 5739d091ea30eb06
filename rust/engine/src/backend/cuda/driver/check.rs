//! Results of driver calls as ours.

use std::ffi::CStr;

use cudarc::driver::sys;

use crate::error::{Error, Result};

pub(super) fn device_error(
    what: impl Into<String>,
    reason: impl Into<String>,
    remedy: &str,
) -> Error {
    Error::Device {
        what: what.into(),
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

/// The driver's word for a result.
pub(super) fn describe(code: sys::CUresult) -> String {
    let text = |call: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut pointer = std::ptr::null();
        // SAFETY: the driver sets the pointer to a static string or to null.
        unsafe {
            let _ = call(code, &mut pointer);
            (!pointer.is_null()).then(|| CStr::from_ptr(pointer).to_string_lossy().into_owned())
        }
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", code as u32));
    match text(sys::cuGetErrorString) {
        Some(words) => format!("{name} ({words})"),
        None => name,
    }
}

/// Turns the result of driver call `call` into ours.
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<()> {
    use sys::cudaError_enum as e;
    match code {
        e::CUDA_SUCCESS => Ok(()),
        e::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::Memory {
            need: format!("the driver could not give device memory ({call})"),
            remedy: "free memory on the card, or use a smaller n_ctx or max_batch".into(),
        }),
        e::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | e::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | e::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Err(device_error(
            call,
            describe(code),
            "a call that a capture forbids was made inside one: load with cuda_graph=\"none\" and \
             report this",
        )),
        e::CUDA_ERROR_ILLEGAL_ADDRESS
        | e::CUDA_ERROR_LAUNCH_FAILED
        | e::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | e::CUDA_ERROR_MISALIGNED_ADDRESS => Err(device_error(
            call,
            describe(code),
            "a kernel failed and the CUDA context is lost: restart the process and report this",
        )),
        _ => Err(device_error(
            call,
            describe(code),
            "see the driver's log (dmesg, nvidia-smi)",
        )),
    }
}
