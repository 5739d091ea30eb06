//! Qwen3: Qwen2 without biases and with an RMSNorm over each head of q and k.

use super::build::{Builder, Traits};
use crate::config::Config;
use crate::error::Result;
use crate::plan::{Plan, RopeStyle};

pub fn plan(config: &Config) -> Result<Plan> {
    Builder::new(config).decoder(&Traits {
        rope: RopeStyle::Halves,
        qk_norm: true,
    })
}
