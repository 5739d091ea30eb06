//! Qwen2 and Qwen2.5: Llama's block with half-split rotation; q, k and v have biases.

use super::build::{Builder, Traits};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    Builder::new(config).decoder(&Traits {
        rope: RopeStyle::Halves,
        qk_norm: false,
    })
}
