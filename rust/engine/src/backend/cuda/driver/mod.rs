//! The floor on the driver: cards, memory, machine code, launches and graphs. It knows no plan, and
//! all `unsafe` of this backend is here.

pub mod ahead;
pub mod buffer;
pub mod check;
mod clusters;
pub mod compile;
pub mod constants;
pub mod context;
pub mod device;
pub mod event;
pub mod graph;
pub mod host;
pub mod info;
pub mod launch;
mod ledger;
pub mod module;
pub mod nvrtc;
pub mod peaks;
pub mod program;
pub mod ranges;
pub mod source;
pub mod spec;
pub mod staging;
pub mod stamps;
pub mod stream;
pub mod timing;
mod uploads;
