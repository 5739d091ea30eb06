//! A plan on a card at work: its memory, the lists of launches that are ready, and the backend that
//! decodes with them.

pub mod backend;
pub mod cache;
mod capture;
pub mod card;
pub mod cards;
pub mod decoder;
pub mod dispatch;
mod drafts;
mod exchange;
mod kv;
pub mod prefill;
pub mod ready;
pub(in crate::backend::cuda) mod ring;
pub(in crate::backend::cuda) mod rows;
pub mod runner;
pub mod sampling;
mod sequences;
pub mod shapes;
mod states;
mod storage;
mod weights;
