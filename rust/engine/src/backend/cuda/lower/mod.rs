//! From a plan to launches: plan, addresses and what the card is give a list of [`Spec`]s. Pure: no
//! driver, no memory, no compiler.
//!
//! [`Spec`]: super::driver::spec::Spec

pub mod attention;
mod attention_fixed;
mod choice;
pub mod drafting;
pub mod exchange;
mod experts;
mod fit;
mod gate;
mod grid;
mod heads;
pub mod layout;
pub mod lowering;
mod mamba2;
mod matmul;
mod matvec;
mod matvec_floats;
mod ngrams;
mod norm;
pub mod overflow;
pub mod params;
pub mod pass;
mod product;
pub mod recurrence;
pub mod rounds;
pub mod rowwise;
pub mod sample;
pub mod shape;
pub mod shapes;
mod skinny;
mod streams;
mod x_tile;

#[cfg(test)]
mod tests;
