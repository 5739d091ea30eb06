//! The CPU backend: an interpreter of plans in float32. It is the meaning of every op and the
//! oracle of every kernel, and it is what runs where there is no GPU.

mod attention;
mod backend;
#[cfg(test)]
mod definition;
mod exact;
mod exact_attention;
mod experts;
mod fixed;
mod gates;
mod heads;
mod interpreter;
mod kv;
mod mamba2;
mod matvec;
mod memory;
mod product;
mod recurrence;
mod reserve;
mod rowwise;
mod simd;

pub use backend::CpuBackend;
pub use interpreter::Interpreter;
pub use kv::KvCache;
pub use memory::{most_rows, needs};
