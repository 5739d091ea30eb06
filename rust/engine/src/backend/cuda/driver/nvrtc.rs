//! NVIDIA's run-time compiler: one shared library, found and opened, that makes machine code of
//! CUDA C++.

use std::ffi::{c_char, c_int, CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// No contraction: the order and rounding of every sum is written out in the kernels.
pub(super) const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "--fmad=false",
    "--device-as-default-execution-space",
    "--ptxas-options=-v",
];

/// Oldest NVRTC that compiles every kernel.
const MIN_NVRTC: (i32, i32) = (12, 0);

type Program = *mut std::ffi::c_void;

/// NVRTC's functions, from one shared library.
pub struct Nvrtc {
    path: PathBuf,
    version: (i32, i32),
    library: libloading::Library,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "NVRTC {}.{} at {}",
            self.version.0,
            self.version.1,
            self.path.display()
        )
    }
}

macro_rules! nvrtc {
    ($self:ident.$name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        type F = unsafe extern "C" fn($($ty),*) -> c_int;
        let symbol = concat!(stringify!($name), "\0");
        // SAFETY: the signature is NVRTC's, unchanged since CUDA 8; arguments outlive the call.
        let code = unsafe {
            let function = $self.library.get::<F>(symbol.as_bytes()).map_err(|e| {
                nvrtc_error(&$self.path, format!("no function {}: {e}", stringify!($name)))
            })?;
            function($($arg),*)
        };
        code
    }};
}

fn nvrtc_error(path: &Path, reason: impl Into<String>) -> Error {
    Error::Device {
        what: format!("NVRTC ({})", path.display()),
        reason: reason.into(),
        remedy: "install nvidia-cuda-nvrtc-cu12 (pip), or set ONEGRAPH_NVRTC to another library"
            .into(),
    }
}

impl Nvrtc {
    /// Opens the first library of: `ONEGRAPH_NVRTC`, `wheel` (the folder that the Python package
    /// nvidia-cuda-nvrtc installed), `CUDA_HOME`, the system.
    ///
    /// # Errors
    /// [`Error::Device`] lists where it looked.
    pub fn find(wheels: &[PathBuf]) -> Result<Self> {
        if let Some(path) = std::env::var_os("ONEGRAPH_NVRTC") {
            // Named by the user: no other one will do.
            return Self::open(Path::new(&path));
        }
        let mut looked = Vec::new();
        for path in Self::candidates(wheels) {
            if path.components().count() > 1 && !path.exists() {
                looked.push(path.display().to_string());
                continue;
            }
            match Self::open(&path) {
                Ok(found) => return Ok(found),
                Err(_) => looked.push(path.display().to_string()),
            }
        }
        looked.dedup();
        Err(Error::Device {
            what: "the CUDA compiler NVRTC".into(),
            reason: format!("not found; looked for {}", looked.join(", ")),
            remedy: "install nvidia-cuda-nvrtc-cu12 (pip), or set ONEGRAPH_NVRTC to a library"
                .into(),
        })
    }

    fn candidates(wheels: &[PathBuf]) -> Vec<PathBuf> {
        const NAMES: [&str; 3] = ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"];
        let mut folders = wheels.to_vec();
        for variable in ["CUDA_HOME", "CUDA_PATH"] {
            if let Some(home) = std::env::var_os(variable) {
                folders.push(Path::new(&home).join("lib64"));
            }
        }
        folders.push("/usr/local/cuda/lib64".into());
        let in_folders = folders
            .iter()
            .flat_map(|f| NAMES.iter().map(move |n| f.join(n)));
        // By bare name the loader searches its own path.
        in_folders.chain(NAMES.iter().map(PathBuf::from)).collect()
    }

    /// Opens the library at `path`.
    ///
    /// # Errors
    /// [`Error::Device`] where it is no NVRTC, or too old.
    pub fn open(path: &Path) -> Result<Self> {
        // Some packages do not say where the compiler's built-in headers are: load them first.
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            let builtins = fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .find(|e| {
                    e.file_name()
                        .to_string_lossy()
                        .starts_with("libnvrtc-builtins.so")
                });
            if let Some(builtins) = builtins {
                // SAFETY: NVIDIA's library has no initializer that matters; it stays loaded.
                if let Ok(library) = unsafe { libloading::Library::new(builtins.path()) } {
                    std::mem::forget(library);
                }
            }
        }
        // SAFETY: loading NVRTC runs its initializers only.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|e| nvrtc_error(path, e.to_string()))?;
        let mut found = Self {
            path: path.to_owned(),
            version: (0, 0),
            library,
        };
        let (mut major, mut minor) = (0, 0);
        let code = nvrtc!(found.nvrtcVersion(&mut major => *mut c_int, &mut minor => *mut c_int));
        found.version = (major, minor);
        if code != 0 || found.version < MIN_NVRTC {
            return Err(nvrtc_error(
                path,
                format!(
                    "version {major}.{minor}; {}.{} or newer is needed",
                    MIN_NVRTC.0, MIN_NVRTC.1
                ),
            ));
        }
        Ok(found)
    }

    /// The library in use.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The newest architecture it knows, at most `arch` (a number such as 90).
    fn supported(&self, arch: u32) -> Result<u32> {
        let mut n = 0;
        if nvrtc!(self.nvrtcGetNumSupportedArchs(&mut n => *mut c_int)) != 0 {
            return Err(nvrtc_error(
                &self.path,
                "it does not report its supported architectures",
            ));
        }
        let mut all = vec![0 as c_int; usize::try_from(n).unwrap_or(0)];
        let _ = nvrtc!(self.nvrtcGetSupportedArchs(all.as_mut_ptr() => *mut c_int));
        let best = all
            .iter()
            .filter_map(|a| u32::try_from(*a).ok())
            .filter(|a| *a <= arch)
            .max();
        best.ok_or_else(|| nvrtc_error(&self.path, format!("it cannot compile for sm_{arch}")))
    }

    /// Compiles `text` for `arch` (a number such as 90): a cubin, or PTX where this NVRTC is older
    /// than the card. The log holds registers and spills.
    pub(super) fn compile(
        &self,
        name: &str,
        text: &str,
        headers: &[(&str, &str)],
        arch: u32,
    ) -> Result<(Vec<u8>, String)> {
        let c = |s: &str| {
            CString::new(s).map_err(|_| Error::Internal(format!("a zero byte in {name}")))
        };
        let (c_name, c_text) = (c(name)?, c(text)?);
        let header_names = headers
            .iter()
            .map(|(n, _)| c(n))
            .collect::<Result<Vec<_>>>()?;
        let header_texts = headers
            .iter()
            .map(|(_, t)| c(t))
            .collect::<Result<Vec<_>>>()?;
        let pointers = |v: &[CString]| v.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, text_pointers) = (pointers(&header_names), pointers(&header_texts));
        type Strings = *const *const c_char;
        let mut program: Program = std::ptr::null_mut();
        let code = nvrtc!(self.nvrtcCreateProgram(
            &mut program => *mut Program,
            c_text.as_ptr() => *const c_char,
            c_name.as_ptr() => *const c_char,
            headers.len() as c_int => c_int,
            text_pointers.as_ptr() => Strings,
            name_pointers.as_ptr() => Strings,
        ));
        if code != 0 {
            return Err(nvrtc_error(
                &self.path,
                format!("nvrtcCreateProgram: error {code}"),
            ));
        }
        let best = self.supported(arch)?;
        let target = if best == arch {
            // What compute capability 9.0 alone has is in an architecture of its own.
            format!("sm_{best}{}", if best == 90 { "a" } else { "" })
        } else {
            format!("compute_{best}")
        };
        let architecture = format!("--gpu-architecture={target}");
        let options = std::iter::once(architecture.as_str()).chain(OPTIONS);
        let options = options.map(c).collect::<Result<Vec<_>>>()?;
        let option_pointers = pointers(&options);
        let compiled = nvrtc!(self.nvrtcCompileProgram(
            program => Program,
            option_pointers.len() as c_int => c_int,
            option_pointers.as_ptr() => Strings,
        ));
        let mut size = 0usize;
        let _ = nvrtc!(self.nvrtcGetProgramLogSize(program => Program, &mut size => *mut usize));
        let mut log = vec![0u8; size.max(1)];
        let _ = nvrtc!(self.nvrtcGetProgramLog(program => Program, log.as_mut_ptr() => *mut u8));
        let log = CStr::from_bytes_until_nul(&log)
            .map_or("".into(), CStr::to_string_lossy)
            .into_owned();
        let result = if compiled != 0 {
            Err(Error::Device {
                what: format!("compiling {name} for {target}"),
                reason: log.clone(),
                remedy: "this is a bug in onegraph, please report it".into(),
            })
        } else {
            let mut size = 0usize;
            let (ok, image) = if best == arch {
                let mut ok =
                    nvrtc!(self.nvrtcGetCUBINSize(program => Program, &mut size => *mut usize));
                let mut image = vec![0u8; size];
                ok |= nvrtc!(self.nvrtcGetCUBIN(program => Program, image.as_mut_ptr() => *mut u8));
                (ok, image)
            } else {
                let mut ok =
                    nvrtc!(self.nvrtcGetPTXSize(program => Program, &mut size => *mut usize));
                let mut image = vec![0u8; size];
                ok |= nvrtc!(self.nvrtcGetPTX(program => Program, image.as_mut_ptr() => *mut u8));
                (ok, image)
            };
            match ok {
                0 => Ok((image, log)),
                code => Err(nvrtc_error(
                    &self.path,
                    format!("no machine code: error {code}"),
                )),
            }
        };
        let _ = nvrtc!(self.nvrtcDestroyProgram(&mut program => *mut Program));
        result
    }
}
