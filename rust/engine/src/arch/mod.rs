//! THE TABLE of architectures: `Config` → `Plan`. One architecture is one file and one row.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::Plan;

mod build;
mod llama;
mod qwen2;
mod qwen3;

/// One row of the table.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Writes the plan; checks that every tensor is there with the right shape.
    pub plan: fn(&Config) -> Result<Plan>,
}

/// Every architecture this build knows.
pub static ARCHITECTURES: &[Architecture] = &[
    // Mistral, SmolLM2 and many others call themselves llama too.
    Architecture {
        name: "llama",
        plan: llama::plan,
    },
    Architecture {
        name: "qwen2",
        plan: qwen2::plan,
    },
    Architecture {
        name: "qwen3",
        plan: qwen3::plan,
    },
];

/// The row of an architecture.
///
/// # Errors
/// [`Error::Unsupported`] lists the architectures there are.
pub fn find(name: &str) -> Result<&'static Architecture> {
    let row = ARCHITECTURES.iter().find(|a| a.name == name);
    row.ok_or_else(|| Error::Unsupported {
        what: "architecture",
        name: name.to_owned(),
        supported: ARCHITECTURES
            .iter()
            .map(|a| a.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The plan of a model.
///
/// # Errors
/// [`Error::Unsupported`] lists the architectures; [`Error::Tensor`] names a tensor that is missing
/// or of the wrong shape.
pub fn plan(config: &Config) -> Result<Plan> {
    (find(&config.arch)?.plan)(config)
}
