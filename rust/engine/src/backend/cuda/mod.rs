//! The CUDA backend: lowers a plan to kernels, captures the list of launches once as one CUDA
//! graph, and replays it. Four floors; a file sees its own and those below:
//!
//! 1. [`driver`]: cards, memory, machine code, launches, graphs. All `unsafe` is here, no plan is.
//! 2. [`lower`]: plan, addresses and what the card is give a list of launches. Pure.
//! 3. [`run`]: buffers, weights, the cache of keys and values, the lists that are ready, decoding.
//! 4. [`study`]: what a model would take, what its kernels are, graph against eager, times.

pub mod driver;
pub mod lower;
pub mod run;
pub mod study;

pub use run::backend::CudaBackend;
pub use run::cards::CardsBackend;
