//! CUDA C++ → cubin by NVRTC, cached on disk.
//!
//! A kernel is compiled for one card and one set of shapes and types, which its source sees as
//! constants in a generated header `variant.cuh`. The cache key is everything the machine code
//! depends on but NVRTC's own version, so that a cache filled elsewhere serves a machine without a
//! compiler.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};

use super::nvrtc::{Nvrtc, OPTIONS};
use super::source::{headers, Variant};
use crate::error::{Error, Result};

/// Raised whenever the format of entries or the meaning of a variant changes.
const CACHE_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"onegraph";

/// A complete image from a compiler; constructed nowhere else.
#[derive(Debug, Clone)]
pub struct Image(Vec<u8>);

impl Image {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Compiles variants for one architecture, through the disk cache.
#[derive(Debug)]
pub struct Compiler {
    wheels: Vec<PathBuf>,
    /// Opened where a kernel is not in the cache: that takes longer than all else there.
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// A number such as 90.
    arch: u32,
    cache: Option<PathBuf>,
    /// Why the first kernel that was compiled and not kept was not.
    unkept: OnceLock<String>,
    /// Keys being compiled now, so that none is compiled twice at once.
    begun: Mutex<HashSet<String>>,
    ended: Condvar,
    /// How many wait for kernels.
    urgent: AtomicUsize,
}

/// One kernel that is being compiled.
struct Begun<'a> {
    compiler: &'a Compiler,
    key: String,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut begun = self.compiler.lock();
        begun.remove(&self.key);
        self.compiler.ended.notify_all();
    }
}

/// Says, while it lives, that somebody waits for kernels.
pub struct Urgent<'a>(&'a AtomicUsize);

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where compiled kernels are kept: `ONEGRAPH_CACHE_DIR`, where `~` is the home folder, else the
/// user's cache folder.
pub fn cache_dir() -> Option<PathBuf> {
    let from = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let at_home = |path: PathBuf| match (path.strip_prefix("~"), from("HOME")) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    };
    from("ONEGRAPH_CACHE_DIR")
        .map(at_home)
        .or_else(|| from("XDG_CACHE_HOME").map(|c| c.join("onegraph")))
        .or_else(|| from("HOME").map(|h| h.join(".cache").join("onegraph")))
        .map(|c| c.join("kernels"))
}

impl Compiler {
    /// A compiler for compute capability `arch` (a number such as 90). A missing NVRTC is an error
    /// only where a kernel is not in the cache.
    pub fn new(arch: u32, wheels: &[PathBuf]) -> Self {
        Self {
            wheels: wheels.to_vec(),
            nvrtc: OnceLock::new(),
            arch,
            cache: cache_dir(),
            unkept: OnceLock::new(),
            begun: Mutex::default(),
            ended: Condvar::new(),
            urgent: AtomicUsize::new(0),
        }
    }

    /// The same with a compiler at hand.
    pub fn with(arch: u32, nvrtc: Nvrtc) -> Self {
        Self {
            nvrtc: Ok(nvrtc).into(),
            wheels: Vec::new(),
            arch,
            cache: cache_dir(),
            unkept: OnceLock::new(),
            begun: Mutex::default(),
            ended: Condvar::new(),
            urgent: AtomicUsize::new(0),
        }
    }

    /// The same with kernels kept in this folder.
    #[must_use]
    pub fn keeping(self, folder: PathBuf) -> Self {
        Self {
            cache: Some(folder),
            ..self
        }
    }

    /// The NVRTC in use.
    pub fn nvrtc(&self) -> std::result::Result<&Nvrtc, &Error> {
        self.nvrtc
            .get_or_init(|| Nvrtc::find(&self.wheels))
            .as_ref()
    }

    /// Where the machine code of these texts is kept, where anything is.
    fn entry(&self, texts: &Texts) -> Option<PathBuf> {
        let dir = self.cache.as_ref()?;
        Some(dir.join(format!("{}.cubin", self.key(texts))))
    }

    /// Whether the cache has `variant`, undamaged.
    pub fn is_cached(&self, variant: &Variant) -> bool {
        let texts = Texts::new(variant);
        let entry = self.entry(&texts);
        entry.as_deref().and_then(read_entry).is_some()
    }

    /// The machine code of `variant`, from the cache or freshly compiled.
    ///
    /// # Errors
    /// [`Error::Device`] where there is no NVRTC or it refuses the source.
    pub fn image(&self, variant: &Variant) -> Result<Image> {
        let texts = Texts::new(variant);
        let entry = self.entry(&texts);
        let known = || entry.as_deref().and_then(read_entry).map(Image);
        if let Some(image) = known() {
            return Ok(image);
        }
        let _begun = self.begin(self.key(&texts));
        if let Some(image) = known() {
            return Ok(image);
        }
        let nvrtc = self.nvrtc().map_err(Clone::clone)?;
        let name = variant.source.name;
        let (image, log) = nvrtc.compile(name, &texts.source, &texts.headers(), self.arch)?;
        tracing::debug!(kernel = name, "{log}");
        // A cache that cannot be written costs time at the next load, nothing else.
        let failure = match &entry {
            Some(entry) => write_entry(entry, &image)
                .err()
                .map(|e| format!("{}: {e}", entry.display())),
            None => Some("there is no cache folder; set ONEGRAPH_CACHE_DIR".into()),
        };
        if let Some(why) = failure {
            self.unkept.get_or_init(|| why);
        }
        Ok(Image(image))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while another thread compiles this key.
    fn begin(&self, key: String) -> Begun<'_> {
        let begun = self.lock();
        let is_begun = |begun: &mut HashSet<String>| begun.contains(&key);
        let waited = self.ended.wait_while(begun, is_begun);
        let mut begun = waited.unwrap_or_else(PoisonError::into_inner);
        begun.insert(key.clone());
        Begun {
            compiler: self,
            key,
        }
    }

    /// Says that somebody waits for kernels, for as long as what it gives lives.
    pub fn urge(&self) -> Urgent<'_> {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        Urgent(&self.urgent)
    }

    /// Whether somebody does.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }

    /// Whether kernels are kept, as far as is known.
    pub fn keeps(&self) -> bool {
        self.cache.is_some() && self.unkept().is_none()
    }

    /// Why kernels that were compiled are not kept; none where all are.
    pub fn unkept(&self) -> Option<&str> {
        self.unkept.get().map(String::as_str)
    }

    /// Compiles without the cache and returns the compiler's log: registers, spills.
    ///
    /// # Errors
    /// As [`Compiler::image`].
    pub fn log(&self, variant: &Variant) -> Result<String> {
        let texts = Texts::new(variant);
        let nvrtc = self.nvrtc().map_err(Clone::clone)?;
        let name = variant.source.name;
        let compiled = nvrtc.compile(name, &texts.source, &texts.headers(), self.arch)?;
        Ok(compiled.1)
    }

    /// A name for the machine code of `variant`, of all that it depends on but the compiler's version.
    pub fn key_of(&self, variant: &Variant) -> String {
        self.key(&Texts::new(variant))
    }

    fn key(&self, texts: &Texts) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(&CACHE_VERSION.to_le_bytes());
        add(&self.arch.to_le_bytes());
        // A compiler that the user named has entries of its own.
        let named = std::env::var_os("ONEGRAPH_NVRTC").unwrap_or_default();
        add(named.as_encoded_bytes());
        OPTIONS.iter().for_each(|o| add(o.as_bytes()));
        add(texts.source.as_bytes());
        for (name, text) in &texts.headers {
            add(name.as_bytes());
            add(text.as_bytes());
        }
        let digest = hash.finalize();
        digest.iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// What one compilation reads: the source with its checks, and headers by name.
struct Texts {
    source: String,
    headers: Vec<(&'static str, String)>,
}

impl Texts {
    /// The compiler gets no header but those that the source includes, itself or by way of another, so
    /// that others may change and the key stays.
    fn new(variant: &Variant) -> Self {
        let mut source = variant.source.checked();
        if variant.stamps {
            source.insert_str(0, "#define STAMPS\n");
        }
        let fixed = headers().map(|(name, text)| (name, text.to_owned()));
        let own = [
            ("host.cuh", variant.source.host()),
            ("variant.cuh", variant.constants.text()),
        ];
        let mut left: Vec<_> = fixed.chain(own).collect();
        let mut headers: Vec<(&'static str, String)> = Vec::new();
        let mut wanted = included(&source);
        while let Some(name) = wanted.pop() {
            if let Some(at) = left.iter().position(|(n, _)| *n == name) {
                let header = left.swap_remove(at);
                wanted.extend(included(&header.1));
                headers.push(header);
            }
        }
        Self { source, headers }
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        let headers = self.headers.iter();
        headers.map(|(name, text)| (*name, text.as_str())).collect()
    }
}

/// The names in a text's `#include` lines, those too that the preprocessor will leave out. A header that
/// is included in another way is not found by the compiler.
fn included(text: &str) -> Vec<String> {
    let lines = text.lines();
    let names = lines.filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    names.map(String::from).collect()
}

/// `None` where there is no entry or it is damaged; a damaged one is compiled anew.
fn read_entry(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
    let (sum, image) = rest.split_at_checked(32)?;
    (magic == MAGIC && Sha256::digest(image).as_slice() == sum).then(|| image.to_vec())
}

/// Atomic: other processes see the old entry or the new one, whole.
fn write_entry(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let unique = format!(
        ".{}.{}.{:?}.tmp",
        path.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id(),
        std::thread::current().id()
    );
    let temporary = folder.join(unique);
    let written = fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(image))?;
        file.write_all(image)?;
        // Not forced to the disk: its sum tells an entry that did not get there, and to wait for the disk
        // took longer than to compile, one kernel after another.
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::super::constants::{Constants, Line};
    use super::super::source::Source;
    use super::*;

    #[test]
    fn a_kernel_is_compiled_with_the_headers_that_it_includes_and_no_others() {
        static KERNEL: Source = Source {
            name: "kernel.cu",
            text: "#include \"math.cuh\"\n#include \"variant.cuh\"\n",
            constants: &[],
            layouts: &[],
        };
        let names = |line: Line| {
            let mut constants = Constants::default();
            constants.push(line);
            let texts = Texts::new(&Variant::new(&KERNEL, constants));
            let mut names: Vec<_> = texts.headers.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names
        };
        let its = [
            "common.cuh",
            "host.cuh",
            "math.cuh",
            "stamps.cuh",
            "variant.cuh",
        ];
        assert_eq!(names(Line::Constant("int", "n", 1.into())), its);
        // Any other by way of the variant, and what that needs.
        for (header, text) in headers() {
            let found = names(Line::Include(header));
            for name in included(text).iter().map(String::as_str).chain([header]) {
                assert!(found.contains(&name), "{name} is not in {found:?}");
            }
            assert!(found.len() < headers().count() / 2, "{found:?}");
        }
    }
}
