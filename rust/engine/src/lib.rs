//! onegraph: runs quantized GGUF language models.
//!
//! Data flows one way: file → [`gguf`] → [`config`] + [`weights`] → [`arch`] → [`plan`] →
//! [`backend`] → [`engine`] → token → [`tokenizer`] → text. A backend is a folder: [`backend::cpu`]
//! interprets a plan; [`backend::cuda`] lowers it, on four floors: `driver`, `lower`, `run`, `study`.
// Tests inside share the fixtures of those outside, which name the crate.
#[cfg(test)]
extern crate self as onegraph;

pub mod arch;
pub mod backend;
pub mod checksum;
pub mod config;
pub mod engine;
pub mod error;
pub mod gguf;
pub mod grammar;
pub mod info;
pub mod pages;
pub mod plan;
pub mod quant;
pub mod sampler;
pub mod template;
pub mod tokenizer;
pub mod tools;
pub mod weights;

pub use error::{Error, Result};
