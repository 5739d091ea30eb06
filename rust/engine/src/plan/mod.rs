//! The plan: a model as data. A straight list of [`Op`]s over named, sized buffers; an architecture
//! writes it, a backend interprets or lowers it, nothing else knows the model.

mod attributes;
mod choice;
mod convolution;
mod drafter;
pub mod fuse;
mod ids;
mod kv;
mod mamba2;
mod ngram;
mod op;
pub mod parts;
#[allow(clippy::module_inception)]
mod plan;
mod share;
pub mod signature;
#[cfg(test)]
pub mod sketch;
mod streams;
#[cfg(test)]
mod tests;

pub use attributes::{Gating, Groups, Norm, RopeStyle, RowPart, TableRow};
pub use choice::{Choice, Chosen, WORD_TOKENS};
pub use drafter::{storing, ByRows, Drafter};
pub use kv::KvShape;
pub use mamba2::Mamba2;
pub use ngram::{Ngram, NgramHead, NgramTable, MOST_NGRAM_HEADS, MOST_NGRAM_TOKENS};
pub use op::{Op, ARITHMETIC};
pub use plan::{
    Buffer, BufferId, Hidden, LongFactors, Plan, RopeTable, Rows, State, StateId, Temperature,
    Weight, WeightId,
};
pub use share::{Gather, Share, MOST_CARDS};
pub use streams::Streams;
