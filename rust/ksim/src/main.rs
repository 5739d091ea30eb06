//! Prints the environment in which CUDA programs find the simulated driver, as assignments for a
//! shell; with `--library-dir` only the folder.

fn main() {
    let dir = ksim::library_dir().display();
    if std::env::args().nth(1).as_deref() == Some("--library-dir") {
        println!("{dir}");
        return;
    }
    println!("export LD_LIBRARY_PATH={dir}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}");
    println!("export ONEGRAPH_NVRTC={}", ksim::nvrtc_path().display());
}
