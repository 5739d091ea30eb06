//! Named ranges of the host's time, which profilers show beside the card's: NVIDIA's NVTX, where its
//! library is found.

use std::ffi::{c_char, c_int, CString};
use std::sync::OnceLock;

use libloading::Library;

/// The library of CUDA from 12.8 on, and the one before it.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

/// A range of this thread, from where it is made to where it is dropped.
#[derive(Debug)]
#[must_use = "the range ends where this is dropped"]
pub struct Range {
    library: Option<&'static Nvtx>,
}

impl Range {
    /// Begins a range of the name that `name` gives; nothing where no library is.
    pub fn new(name: impl FnOnce() -> String) -> Self {
        let library = Nvtx::get();
        if let Some(nvtx) = library {
            let name = CString::new(format!("onegraph: {}", name())).unwrap_or_default();
            // SAFETY: a string that ends with a zero and lives until the call returns.
            unsafe { (nvtx.push)(name.as_ptr()) };
        }
        Self { library }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.library {
            // SAFETY: takes nothing; where no range is open it says so and does nothing.
            unsafe { (nvtx.pop)() };
        }
    }
}

#[derive(Debug)]
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    /// Keeps the functions.
    _library: Library,
}

impl Nvtx {
    fn get() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        FOUND
            .get_or_init(|| NAMES.into_iter().find_map(Self::open))
            .as_ref()
    }

    fn open(name: &str) -> Option<Self> {
        // SAFETY: NVIDIA's library; what it runs when it is opened has no conditions.
        let library = unsafe { Library::new(name) }.ok()?;
        // SAFETY: both have these types since the first release; the library is kept beside them.
        unsafe {
            Some(Self {
                push: *library.get(b"nvtxRangePushA\0").ok()?,
                pop: *library.get(b"nvtxRangePop\0").ok()?,
                _library: library,
            })
        }
    }
}
