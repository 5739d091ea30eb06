//! Modules: machine code loaded on the card.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::compile::Image;
use super::context::Context;
use crate::error::{Error, Result};

/// Machine code on the card.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    handle: sys::CUmodule,
}

// SAFETY: module handles may be used from any thread that has the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads machine code.
    pub fn new(context: &Arc<Context>, image: &Image) -> Result<Arc<Self>> {
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is a whole one of the compiler: a cubin says its length, PTX ends with
        // a zero byte.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut handle, image.bytes().as_ptr().cast())
        })?;
        Ok(Arc::new(Self {
            context: context.clone(),
            handle,
        }))
    }

    /// One of its kernels, allowed to use `shared` bytes of dynamic shared memory.
    pub fn function(self: &Arc<Self>, name: &str, shared: u32) -> Result<Function> {
        self.context.bind()?;
        let c_name = std::ffi::CString::new(name)
            .map_err(|_| Error::Internal(format!("the kernel name {name:?}")))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is live, the name ends with a zero byte; the driver writes one handle.
        check("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut handle, self.handle, c_name.as_ptr())
        })?;
        // Set before any capture: a lazy load inside one would break it.
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // One split of the SM's memory for all kernels: another one would have to wait until the SM
        // is empty.
        let carveout =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function is of a module that is live.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(handle, carveout, 100)
        })?;
        // What a block has beside it counts too, so that less than 48 KiB may need to be asked for.
        if shared > 0 {
            // SAFETY: the function is of a module that is live.
            check("cuFuncSetAttribute", unsafe {
                sys::cuFuncSetAttribute(handle, attribute, shared as c_int)
            })?;
        }
        Ok(Function {
            _module: self.clone(),
            handle,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.takes_back() {
            // SAFETY: unloads what `new` loaded, once: no `Function` is left that holds it.
            let _ = check("cuModuleUnload", unsafe {
                sys::cuModuleUnload(self.handle)
            });
        }
    }
}

/// A kernel; keeps its module alive, as a graph does not.
#[derive(Debug, Clone)]
pub struct Function {
    _module: Arc<Module>,
    pub(super) handle: sys::CUfunction,
}

// SAFETY: function handles live as long as the module, which is held.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}
