//! Qwen3-Next and Qwen3-Coder-Next: Qwen3.5's layers with experts; heads of values that share one of keys
//! are neighbours, and one product gives their alphas and betas.

use super::qwen35moe;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::Plan;

pub fn plan(config: &Config) -> Result<Plan> {
    let fused = |name: &&String| name.ends_with(".ssm_in.weight");
    if let Some(name) = config.tensors.keys().find(fused) {
        return Err(Error::Tensor {
            name: name.escape_debug().to_string(),
            found: "queries, keys, values and z in one matrix, head by head of keys".into(),
            expected: "attn_qkv and attn_gate in its place".into(),
            remedy: "an early converter wrote the file: convert or fetch the model again".into(),
        });
    }
    qwen35moe::layers(config, true)
}
