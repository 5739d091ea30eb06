//! EmbeddingGemma: Gemma 3 as an encoder. Each row sees all of its text, or a window around it.

use super::build::Builder;
use super::gemma3;
use crate::config::Config;
use crate::error::Result;
use crate::plan::Plan;

pub fn plan(config: &Config) -> Result<Plan> {
    let mut b = Builder::new(config);
    let x = gemma3::layers(&mut b, false)?;
    b.norm_parts(x, "output_norm.weight", config.n_embd)?;
    Ok(b.states(x))
}
