//! Studies of a model on a card: what it would take, what its kernels are, whether and how fast its
//! graphs do what they should.

mod endless;
pub mod exact_sums;
pub mod fit;
mod inspect;
pub mod offline;
mod profile;
mod stamps;
mod verify;
