//! A thin, owned layer over the CUDA driver: context, memory, stream, events, modules. Each owner
//! frees what it took; each keeps what it stands on alive.

use std::ffi::{c_int, CStr};
use std::sync::Arc;

use cudarc::driver::sys;

use super::memory::Ledger;
use crate::error::{Error, Result};

/// Oldest driver that has every call used here (CUDA 12.0).
pub(super) const MIN_DRIVER: i32 = 12000;

fn device_error(what: impl Into<String>, reason: impl Into<String>, remedy: &str) -> Error {
    Error::Device {
        what: what.into(),
        reason: reason.into(),
        remedy: remedy.to_owned(),
    }
}

/// The driver's word for a result.
fn describe(code: sys::CUresult) -> String {
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

macro_rules! driver {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: arguments are live handles and pointers owned by the caller's structs, of the
        // sizes that the call expects.
        super::device::check(stringify!($name), unsafe { sys::$name($($arg),*) })
    };
}
pub(super) use driver;

/// What a card is.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DeviceInfo {
    pub ordinal: usize,
    pub name: String,
    /// Compute capability, e.g. `(9, 0)`.
    pub compute: (u32, u32),
    pub sm_count: u32,
    /// Bytes of level-2 cache.
    pub l2_bytes: usize,
    /// Most shared memory that one block may ask for.
    pub shared_bytes: usize,
    pub total_bytes: usize,
    /// Newest CUDA version of the driver, e.g. `13000`.
    pub driver: i32,
}

impl DeviceInfo {
    /// Whether kernels may start before their predecessor has ended.
    pub fn has_pdl(&self) -> bool {
        self.compute >= (9, 0)
    }

    /// The number in the architecture's name, such as 90.
    pub fn number(&self) -> u32 {
        self.compute.0 * 10 + self.compute.1
    }

    /// The compiler's name of the architecture, `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.compute.0, self.compute.1)
    }
}

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
    driver!(cuDriverGetVersion(&mut version))?;
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
    driver!(cuDeviceGetCount(&mut n))?;
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
    driver!(cuDeviceGet(&mut device, ordinal as c_int))?;
    let mut name = [0 as std::ffi::c_char; 128];
    driver!(cuDeviceGetName(
        name.as_mut_ptr(),
        name.len() as c_int,
        device
    ))?;
    // SAFETY: the driver wrote a terminated string into the array.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned();
    let attribute = |which| -> Result<u32> {
        let mut value = 0;
        driver!(cuDeviceGetAttribute(&mut value, which, device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    use sys::CUdevice_attribute_enum as a;
    let mut total_bytes = 0;
    driver!(cuDeviceTotalMem_v2(&mut total_bytes, device))?;
    Ok(DeviceInfo {
        ordinal,
        name,
        compute: (
            attribute(a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(a::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sm_count: attribute(a::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(a::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_bytes: attribute(a::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        total_bytes,
        driver,
    })
}

/// A card's primary context, retained; or a card that is only described, where buffers have sizes
/// and addresses but no bytes: what a model would take there, and the kernels it would run, are
/// those of the real one.
#[derive(Debug)]
pub struct Context {
    pub info: DeviceInfo,
    card: Option<Card>,
    pub(super) ledger: Ledger,
}

#[derive(Debug)]
struct Card {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a context handle may be used from any thread that makes it current first, which every
// call here does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of card `ordinal`.
    ///
    /// # Errors
    /// As [`info`].
    pub fn new(ordinal: usize) -> Result<Arc<Self>> {
        let info = info(ordinal)?;
        if info.compute < (7, 5) {
            return Err(device_error(
                format!("cuda:{ordinal} ({})", info.name),
                format!(
                    "its compute capability is {}.{}",
                    info.compute.0, info.compute.1
                ),
                "7.5 (Turing) or newer is needed; use device=\"cpu\"",
            ));
        }
        let mut device = 0;
        driver!(cuDeviceGet(&mut device, ordinal as c_int))?;
        let mut handle = std::ptr::null_mut();
        driver!(cuDevicePrimaryCtxRetain(&mut handle, device))?;
        let context = Arc::new(Self {
            info,
            card: Some(Card { device, handle }),
            ledger: Ledger::default(),
        });
        context.bind()?;
        Ok(context)
    }

    /// A card that is only described.
    pub fn described(info: DeviceInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            card: None,
            ledger: Ledger::default(),
        })
    }

    /// Whether no card is behind it.
    pub fn is_described(&self) -> bool {
        self.card.is_none()
    }

    /// Makes this context current on the calling thread.
    ///
    /// # Errors
    /// [`Error::Internal`] for a card that is only described.
    pub fn bind(&self) -> Result<()> {
        match &self.card {
            Some(card) => driver!(cuCtxSetCurrent(card.handle)),
            None => Err(Error::Internal("work for a card that is not there".into())),
        }
    }

    /// Whether there is a card to give handles back to. Current or not: most often it is, and what is
    /// not given back is lost.
    pub(super) fn takes_back(&self) -> bool {
        let _ = self.bind();
        !self.is_described()
    }

    /// Free and total bytes of the card.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        driver!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(card) = &self.card {
            let _ = driver!(cuDevicePrimaryCtxRelease_v2(card.device));
        }
    }
}

/// Bytes on the card.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Takes `bytes` (at least one).
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if context.is_described() {
            address = context.ledger.address();
        } else {
            context.bind()?;
            let free = context.memory().map_or(0, |m| m.0);
            driver!(cuMemAlloc_v2(&mut address, bytes.max(1))).map_err(|e| match e {
                Error::Memory { .. } => Error::Memory {
                    need: format!("{bytes} bytes of device memory were asked for, {free} are free"),
                    remedy: "free memory on the card, or use a smaller n_ctx or max_batch".into(),
                },
                e => e,
            })?;
        }
        context.ledger.take(bytes);
        Ok(Self {
            context: context.clone(),
            address,
            bytes,
        })
    }

    /// Where it lies on the card.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues filling the whole buffer with `value`.
    pub fn fill(&self, value: u8, stream: &Stream) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        driver!(cuMemsetD8Async(
            self.address,
            value,
            self.bytes,
            stream.handle
        ))
    }

    /// Copies `data` to byte `offset`, after everything queued on `stream`; returns when `data`
    /// may be reused.
    pub fn write<T: bytemuck::Pod>(
        &self,
        offset: usize,
        data: &[T],
        stream: &Stream,
    ) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.within(offset, bytes.len())?;
        if bytes.is_empty() || self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        driver!(cuMemcpyHtoDAsync_v2(
            address,
            bytes.as_ptr().cast(),
            bytes.len(),
            stream.handle
        ))?;
        // From pageable memory the driver may still read `data`.
        stream.synchronize()
    }

    /// Copies bytes from `offset` into `data`, after everything queued on `stream`.
    pub fn read<T: bytemuck::Pod>(
        &self,
        offset: usize,
        data: &mut [T],
        stream: &Stream,
    ) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        self.within(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        driver!(cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast(),
            address,
            bytes.len(),
            stream.handle
        ))?;
        stream.synchronize()
    }

    /// Queues a copy from pinned host memory; `host` must not change before the stream has passed.
    pub fn write_pinned(
        &self,
        offset: usize,
        host: &HostBuffer,
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.within(offset, bytes)?;
        if bytes > host.bytes {
            return Err(Error::Internal(format!(
                "{bytes} bytes of a host buffer of {}",
                host.bytes
            )));
        }
        self.context.bind()?;
        let address = self.address + offset as u64;
        driver!(cuMemcpyHtoDAsync_v2(
            address,
            host.pointer.cast(),
            bytes,
            stream.handle
        ))
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Internal(format!(
                "bytes {offset} + {bytes} of a device buffer of {}",
                self.bytes
            ))),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.context.ledger.give(self.bytes);
        if self.context.takes_back() {
            let _ = driver!(cuMemFree_v2(self.address));
        }
    }
}

/// Pinned host memory that the card can read and write too.
#[derive(Debug)]
pub struct HostBuffer {
    context: Arc<Context>,
    pointer: *mut u8,
    address: u64,
    bytes: usize,
}

// SAFETY: the memory is owned, and reached through `&self` by atomics and through `&mut self`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Takes `bytes`, zeroed.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        if context.is_described() {
            return Ok(Self {
                context: context.clone(),
                pointer: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
                address: context.ledger.address(),
                bytes: 0,
            });
        }
        context.bind()?;
        let mut pointer = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        driver!(cuMemHostAlloc(&mut pointer, bytes, flags))?;
        let mut buffer = Self {
            context: context.clone(),
            pointer: pointer.cast(),
            address: 0,
            bytes,
        };
        driver!(cuMemHostGetDevicePointer_v2(
            &mut buffer.address,
            pointer,
            0
        ))?;
        buffer.bytes_mut().fill(0);
        Ok(buffer)
    }

    /// Where the card sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The memory, when nothing queued on the card uses it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pointer is valid for `bytes` bytes while `self` lives; where there are none it
        // is dangling and aligned.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// Queues zeroing one of its 64-bit words.
    pub fn clear_word(&self, index: usize, stream: &Stream) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        if index >= self.bytes / 8 {
            return Err(Error::Internal(format!(
                "word {index} of a host buffer of {} bytes",
                self.bytes
            )));
        }
        self.context.bind()?;
        let at = self.address + 8 * index as u64;
        driver!(cuMemsetD8Async(at, 0, 8, stream.handle))
    }

    /// The memory as 64-bit words that the card may be writing.
    pub fn words(&self) -> &[std::sync::atomic::AtomicU64] {
        // SAFETY: as above, and pinned memory is page-aligned; atomics may change under a shared
        // borrow.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.bytes / 8) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.context.takes_back() {
            let _ = driver!(cuMemFreeHost(self.pointer.cast()));
        }
    }
}

/// A queue of work on the card. Not the legacy default stream, which cannot be captured.
#[derive(Debug)]
pub struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) handle: sys::CUstream,
}

// SAFETY: stream handles may be used from any thread that has the context current.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        if context.is_described() {
            return Ok(Self {
                context: context.clone(),
                handle,
            });
        }
        context.bind()?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        driver!(cuStreamCreate(&mut handle, flags))?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Waits until all that is queued is done.
    pub fn synchronize(&self) -> Result<()> {
        if self.context.is_described() {
            return Ok(());
        }
        self.context.bind()?;
        driver!(cuStreamSynchronize(self.handle))
    }

    /// Whether all that is queued is done.
    ///
    /// # Errors
    /// [`Error::Device`] where something queued has failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: a live stream handle.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.takes_back() {
            let _ = driver!(cuStreamSynchronize(self.handle));
            let _ = driver!(cuStreamDestroy_v2(self.handle));
        }
    }
}

/// A mark in a stream, with a time.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: event handles may be used from any thread that has the context current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        driver!(cuEventCreate(&mut handle, 0))?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Marks the present end of `stream`.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        driver!(cuEventRecord(self.handle, stream.handle))
    }

    /// Waits until the mark is reached.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        driver!(cuEventSynchronize(self.handle))
    }

    /// Whether the mark is reached.
    pub fn is_done(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: a live event handle.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Microseconds from `earlier` to this mark; both are reached.
    pub fn micros_since(&self, earlier: &Event) -> Result<f64> {
        let mut ms = 0.0f32;
        driver!(cuEventElapsedTime(&mut ms, earlier.handle, self.handle))?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.takes_back() {
            let _ = driver!(cuEventDestroy_v2(self.handle));
        }
    }
}

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
    /// Loads a cubin (or PTX, terminated by a zero byte).
    pub fn new(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Self>> {
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        driver!(cuModuleLoadData(&mut handle, image.as_ptr().cast()))?;
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
        driver!(cuModuleGetFunction(
            &mut handle,
            self.handle,
            c_name.as_ptr()
        ))?;
        // Set before any capture: a lazy load inside one would break it.
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // One split of the SM's memory for all kernels: another one would have to wait until the SM
        // is empty.
        let carveout =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        driver!(cuFuncSetAttribute(handle, carveout, 100))?;
        if shared > 48 << 10 {
            driver!(cuFuncSetAttribute(handle, attribute, shared as c_int))?;
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
            let _ = driver!(cuModuleUnload(self.handle));
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
