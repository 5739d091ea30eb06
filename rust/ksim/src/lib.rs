//! A simulated CUDA driver (`libcuda.so`) and run-time compiler (`libnvrtc.so`), for machines
//! without a GPU: the real backend runs on them unchanged. Kernels are compiled by g++ and run as
//! fibers; streams, capture and replay behave as the driver's; misuse is an error, not luck.
//!
//! A process uses them when [`library_dir`] comes first in `LD_LIBRARY_PATH` and `ONEGRAPH_NVRTC`
//! names [`nvrtc_path`]; `cargo run -p ksim` prints both as assignments for a shell. Or it calls
//! [`preload`] before anything looks for the driver.
//!
//! | variable | meaning |
//! |---|---|
//! | `KSIM_DEVICES` (1), `KSIM_SM` (90), `KSIM_MULTIPROCESSORS` (8), `KSIM_MEMORY` (8 GiB) | the cards |
//! | `KSIM_DRIVER_VERSION` (12080), `KSIM_NVRTC_VERSION` (12.9) | the versions reported |
//! | `KSIM_SEED` (0: in order) | the order of blocks, warps, lanes and independent graph nodes |
//! | `KSIM_LAZY=1`, `KSIM_LAZY_MS` (50) | work runs when something waits for it, or after that silence |
//! | `KSIM_PDL=early` | a programmatic launch starts once its predecessor's blocks have triggered |
//! | `KSIM_FAIL_CALL=N`, `KSIM_FAIL_CODE` (999) | the Nth driver call fails |
//! | `KSIM_LEAKS=fail` | the process ends with status 86 if anything is still allocated |
//! | `KSIM_CXX` (g++), `KSIM_CXXFLAGS` | the kernels' compiler, and more flags for it |
//! | `KSIM_CACHE` | a folder that keeps compiled kernels between processes |
//! | `KSIM_KERNELS` | a folder with sources that are compiled instead of those of the same name |
//! | `KSIM_VERBOSE=1`, `KSIM_KEEP=1` | prints every call; keeps compiled files for a debugger |
//!
//! Exported beside the driver's: `ksimStats`, `ksimCallCount`, `ksimFailAfter`,
//! `ksimFailNvrtcAfter`, `ksimLastMessage`, `ksimReportLeaks`.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::{Path, PathBuf};

#[link(name = "dl")]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// The folder with `libcuda.so`, `libcuda.so.1` and `libnvrtc.so`.
pub fn library_dir() -> &'static Path {
    Path::new(env!("KSIM_LIBRARY_DIR"))
}

/// The simulated run-time compiler, for `ONEGRAPH_NVRTC`.
pub fn nvrtc_path() -> PathBuf {
    library_dir().join("libnvrtc.so")
}

/// Loads both libraries into this process: code that opens `libcuda.so` or `libnvrtc.so` by name later
/// gets these, for the loader knows them by those names. For tests that cannot set
/// `LD_LIBRARY_PATH` before they start.
///
/// # Errors
/// The loader's message.
pub fn preload() -> Result<(), String> {
    for name in ["libcuda.so", "libnvrtc.so"] {
        let path = library_dir().join(name);
        let text = CString::new(path.display().to_string()).map_err(|e| e.to_string())?;
        // SAFETY: `text` is a C string that lives through the call; loading runs only the
        // simulator's initialisers.
        if unsafe { dlopen(text.as_ptr(), RTLD_NOW) }.is_null() {
            // SAFETY: after a failure dlerror gives a C string that stays until the next call.
            let message = unsafe { CStr::from_ptr(dlerror()) };
            return Err(format!("{}: {}", path.display(), message.to_string_lossy()));
        }
    }
    Ok(())
}
