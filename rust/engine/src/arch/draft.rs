//! A drafter that is a model of its own, in a file of its own: over the tokens of the other's passes it
//! stores its keys and values, and guesses by its logits.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::{storing, Plan};

/// What stands before the names of its tensors beside those of the model.
pub const DRAFT: &str = "draft.";

/// The plan with the model of this config for a drafter.
///
/// # Errors
/// As [`super::plan`]; [`Error::Argument`] where it keeps states, which do not roll back, or is an encoder.
pub fn with_model(plan: Plan, config: &Config) -> Result<Plan> {
    let draft = super::plan(config)?;
    let why = match (draft.states.len(), draft.looks_ahead()) {
        (0, false) => None,
        (0, true) => Some("is an encoder, which gives no next token".to_owned()),
        (n, _) => Some(format!(
            "keeps {n} recurrent states, which wrong drafts would stay in"
        )),
    };
    if let Some(why) = why {
        let reason = format!("a model of this architecture {why}; use one with attention alone");
        return Err(unfit(config, reason));
    }
    let guess = plan.clone().joined(draft, DRAFT);
    let follow = storing(&guess.ops);
    Ok(plan.with_drafter(follow, guess, None))
}

/// The error of a drafter that cannot draft for the model.
pub(super) fn unfit(config: &Config, reason: String) -> Error {
    Error::Argument {
        name: "draft",
        value: config.arch.clone(),
        reason,
    }
}
