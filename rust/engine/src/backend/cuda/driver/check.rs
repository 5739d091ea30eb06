//! Status codes of driver calls as errors.

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

/// The error of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A kernel is not there.
    NoKernel,
    /// A kernel failed, and the context with it.
    Lost,
    /// A call that a capture forbids.
    InCapture,
    /// Anything else.
    Refused,
}

impl Fault {
    /// What the CUresult `code` says.
    pub fn of(code: u32) -> Self {
        use sys::cudaError_enum as e;
        let is = |codes: &[sys::CUresult]| codes.iter().any(|known| *known as u32 == code);
        if is(&[
            e::CUDA_ERROR_INVALID_HANDLE,
            e::CUDA_ERROR_NOT_FOUND,
            e::CUDA_ERROR_INVALID_IMAGE,
            e::CUDA_ERROR_NO_BINARY_FOR_GPU,
        ]) {
            Self::NoKernel
        } else if is(&[
            e::CUDA_ERROR_ILLEGAL_ADDRESS,
            e::CUDA_ERROR_LAUNCH_FAILED,
            e::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            e::CUDA_ERROR_MISALIGNED_ADDRESS,
        ]) {
            Self::Lost
        } else if is(&[
            e::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            e::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            e::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        ]) {
            Self::InCapture
        } else {
            Self::Refused
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::InCapture => {
                "a call that is not allowed during a capture: load with \
                 graph=GraphOptions(mode=\"none\") and report this"
            }
            Self::Lost => {
                "a kernel failed and the CUDA context is lost: restart the process and report this"
            }
            Self::NoKernel | Self::Refused => "see the driver's log (dmesg, nvidia-smi)",
        }
    }
}

/// Turns the result of driver call `call` into ours.
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<()> {
    match code {
        sys::cudaError_enum::CUDA_SUCCESS => Ok(()),
        sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::Memory {
            need: format!("the driver could not allocate device memory ({call})"),
            remedy: "free memory on the card, or use a smaller n_ctx or max_batch".into(),
        }),
        _ => Err(Error::Driver {
            call,
            code: code as u32,
            reason: describe(code),
            remedy: Fault::of(code as u32).remedy(),
        }),
    }
}
