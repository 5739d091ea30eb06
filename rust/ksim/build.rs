//! Builds the driver, which is C++ so that g++'s sanitizers can watch it, and lays it out under the
//! names that programs look for: `OUT_DIR/lib/{libcuda.so, libcuda.so.1, libnvrtc.so, libnvrtc.so.12}`.
//! Beside it lies `libnvrtc_options.so`, which adds options to any NVRTC.

use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

fn compile(
    compiler: &str,
    root: &Path,
    source: &Path,
    object: &Path,
) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(compiler);
    command
        .args(["-std=c++17", "-g1", "-fPIC", "-Wall", "-Wextra"])
        .args(["-fvisibility=hidden", "-fno-strict-aliasing", "-c"])
        .arg(format!("-DKSIM_SHIM=\"{}\"", root.join("shim").display()));
    // It is compiled for longer than it runs.
    match env::var("KSIM_SANITIZE") {
        Ok(sanitize) => command.args(["-O0", &format!("-fsanitize={sanitize}")]),
        Err(_) => command.arg("-O1"),
    };
    command.arg("-o").arg(object).arg(source);
    command
        .spawn()
        .map_err(|e| format!("ksim needs a C++17 compiler; {compiler}: {e}; set CXX").into())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=driver");
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=compiler");
    println!("cargo:rerun-if-env-changed=CXX");
    println!("cargo:rerun-if-env-changed=KSIM_SANITIZE");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let compiler = env::var("CXX").unwrap_or_else(|_| "g++".to_owned());

    let mut objects = Vec::new();
    let mut jobs = Vec::new();
    for entry in fs::read_dir(root.join("driver"))? {
        let source = entry?.path();
        if source.extension().is_none_or(|e| e != "cpp") {
            continue;
        }
        let stem = source.file_stem().unwrap_or_default();
        let object = out.join(stem).with_extension("o");
        jobs.push((compile(&compiler, &root, &source, &object)?, source));
        objects.push(object);
    }
    for (mut job, source) in jobs {
        if !job.wait()?.success() {
            return Err(format!("{compiler} failed on {}", source.display()).into());
        }
    }

    let lib = out.join("lib");
    // What an earlier build laid out may be links to what this one writes.
    if lib.exists() {
        fs::remove_dir_all(&lib)?;
    }
    fs::create_dir_all(&lib)?;
    let library = lib.join("libcuda.so.1");
    let mut link = Command::new(&compiler);
    // The name under which it is found again once it is loaded, wherever it lies.
    link.args(["-shared", "-Wl,-soname,libcuda.so", "-o"])
        .arg(&library);
    link.args(&objects).args(["-ldl", "-lpthread"]).arg(format!(
        "-Wl,--version-script={}",
        root.join("driver/exports.map").display()
    ));
    // The sanitizers' run time is preloaded, so its symbols are missing here.
    match env::var("KSIM_SANITIZE") {
        Ok(sanitize) => link.arg(format!("-fsanitize={sanitize}")),
        Err(_) => link.arg("-Wl,-z,defs"),
    };
    if !link.status()?.success() {
        return Err(format!("{compiler} could not link {}", library.display()).into());
    }
    symlink("libcuda.so.1", lib.join("libcuda.so"))?;
    // The compiler is part of the driver's library; this one leads there, under its own name.
    let status = Command::new(&compiler)
        .args([
            "-shared",
            "-nostdlib",
            "-Wl,-soname,libnvrtc.so",
            "-Wl,--no-as-needed",
        ])
        .args(["-Wl,-rpath,$ORIGIN", "-o"])
        .arg(lib.join("libnvrtc.so.12"))
        .arg(&library)
        .status()?;
    if !status.success() {
        return Err(format!("{compiler} could not link libnvrtc.so").into());
    }
    symlink("libnvrtc.so.12", lib.join("libnvrtc.so"))?;
    let status = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"])
        // The machine with the card may have an older run time.
        .args(["-fvisibility=hidden", "-static-libstdc++", "-static-libgcc"])
        .arg("-o")
        .arg(lib.join("libnvrtc_options.so"))
        .arg(root.join("compiler/nvrtc_options.cpp"))
        .arg("-ldl")
        .status()?;
    if !status.success() {
        return Err(format!("{compiler} could not build libnvrtc_options.so").into());
    }
    println!("cargo:rustc-env=KSIM_LIBRARY_DIR={}", lib.display());
    Ok(())
}
