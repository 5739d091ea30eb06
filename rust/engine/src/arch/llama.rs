//! Llama and everything that calls itself so: pre-norm, grouped heads, interleaved rotation.

use super::build::{Builder, Traits};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    Builder::new(config).decoder(&Traits {
        rope: RopeStyle::Interleaved,
        qk_norm: false,
    })
}
