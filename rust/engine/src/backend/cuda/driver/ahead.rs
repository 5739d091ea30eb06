//! Kernels compiled on background threads, ahead of use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::compile::Compiler;
use super::source::Variant;

/// Cores from which on half of them may compile: of fewer none can be spared.
const LEAST_CORES: usize = 4;

/// How often a thread looks whether those that wait for kernels have theirs.
const LOOK: Duration = Duration::from_millis(2);

/// How many threads compile on this machine.
pub fn spared() -> usize {
    threads(std::thread::available_parallelism().map_or(1, usize::from))
}

/// The same of a machine of so many cores.
fn threads(cores: usize) -> usize {
    if cores < LEAST_CORES {
        0
    } else {
        cores / 2
    }
}

/// Threads that fill the kernel cache, until this goes: each ends the kernel that it has begun.
#[derive(Debug)]
pub struct Ahead {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// Compiles `variants` in order on so many `threads`. A failure is not reported here: the first use
    /// compiles the kernel again and reports it.
    pub fn new(compiler: &Arc<Compiler>, variants: Vec<Variant>, threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new((variants, AtomicUsize::new(0)));
        let spawn = |_| {
            let (compiler, stop, shared) = (compiler.clone(), stop.clone(), shared.clone());
            let work = move || {
                let (variants, next) = &*shared;
                while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    while compiler.is_urgent() && !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(LOOK);
                    }
                    let ends = stop.load(Ordering::Relaxed) || !compiler.keeps();
                    if ends || compiler.image(variant).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("onegraph-compile".into());
            thread.spawn(work).ok()
        };
        Self {
            threads: (0..threads).filter_map(spawn).collect(),
            stop,
        }
    }

    /// Waits until all is compiled.
    pub fn finish(mut self) {
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_compile_where_some_can_be_spared() {
        assert_eq!([1, 2, 3, 4, 5, 16].map(threads), [0, 0, 0, 2, 2, 8]);
    }
}
