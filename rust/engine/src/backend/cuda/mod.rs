//! The CUDA backend: lowers a plan to kernels, captures the list of launches once as one CUDA
//! graph, and replays it.

mod attention;
mod backend;
pub mod bandwidth;
pub mod compile;
pub mod device;
mod dispatch;
pub mod graph;
mod kernels;
mod kv;
pub mod launch;
mod matmul;
mod matvec;
pub mod memory;
pub mod model;
pub mod offline;
pub mod prefill;
mod profile;
mod program;
pub mod runner;
pub mod sample;
mod shape;
mod staging;
mod steps;
mod timing;
mod verify;
mod weights;

pub use backend::CudaBackend;
pub use dispatch::chosen_sizes;
