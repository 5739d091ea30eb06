//! The plan of a model with what drafts for it; of a draft model in a file of its own, whether it fits.

use std::path::Path;
use std::sync::Arc;

use super::options::{Options, Speculate};
use crate::arch;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::gguf::{shown, Gguf};
use crate::plan::{Plan, Weight};
use crate::weights::Model;

/// The plan of a model, with what drafts, and the context. The files of a draft model are the model's then.
///
/// # Errors
/// What is wrong with the files, or does not go with the options.
pub(super) fn plan_of(
    model: &mut Model,
    options: &Options,
    speculate: Speculate,
) -> Result<(Config, Arc<Plan>, usize)> {
    // First: other architectures have other keys.
    arch::find(Config::architecture(&model.gguf)?)?;
    let config = model.config()?;
    let mut plan = arch::plan(&config)?;
    let n_ctx = options.context(config.n_ctx_train)?;
    let refused = |value: &str, reason: String| Error::Argument {
        name: "speculate",
        value: value.into(),
        reason,
    };
    plan = match (speculate, &options.draft) {
        (Speculate::Off, _) => plan,
        (Speculate::Draft(_), Some(file)) => with_draft(model, plan, n_ctx, file)?,
        (Speculate::Draft(_), None) => {
            let reason = "no draft model is given: name its file as draft, or use auto or off";
            return Err(refused("draft", reason.into()));
        }
        (Speculate::Mtp(_), Some(_)) => {
            let reason = "a draft model is given, which would not be used: use draft, or give none";
            return Err(refused("mtp", reason.into()));
        }
        (Speculate::Auto | Speculate::Mtp(_), _) => arch::with_drafter(&config, plan)?,
    };
    if let (Speculate::Mtp(_), None) = (speculate, &plan.drafter) {
        let reason = format!(
            "this file of a {} model has no layer that drafts: use auto, off, or another file",
            config.arch
        );
        return Err(refused("mtp", reason));
    }
    Ok((config, Arc::new(plan), n_ctx))
}

/// The plan with the model of `file` for a drafter, whose tensors are then found in `model` too.
///
/// # Errors
/// What is wrong with the file; [`Error::Argument`] where it has another vocabulary, or was trained for less
/// than `n_ctx` tokens.
fn with_draft(model: &mut Model, plan: Plan, n_ctx: usize, file: &Path) -> Result<Plan> {
    let draft = Model::open(file)?;
    // First: other architectures have other keys.
    arch::find_draft(Config::architecture(&draft.gguf)?)?;
    let config = draft.config()?;
    let refused = |reason: String| Error::Argument {
        name: "draft",
        value: file.display().to_string(),
        reason,
    };
    if let Some(reason) = other_vocabulary(&model.gguf, &draft.gguf)? {
        return Err(refused(reason));
    }
    if config.n_ctx_train < n_ctx {
        return Err(refused(format!(
            "it was trained for {} tokens, and n_ctx is {n_ctx}: use n_ctx = {} or another draft \
             model",
            config.n_ctx_train, config.n_ctx_train
        )));
    }
    let plan = arch::with_draft(plan, &config)?;
    model.take_in(draft, arch::DRAFT);
    Ok(plan)
}

/// The error of a load that says how much of the memory is the draft model's.
pub(super) fn with_share(error: Error, plan: &Plan) -> Error {
    let its = plan
        .weights
        .iter()
        .filter(|w| w.name.starts_with(arch::DRAFT));
    let bytes: usize = its.filter_map(Weight::bytes).sum();
    match error {
        Error::Memory { need, remedy } if bytes > 0 => Error::Memory {
            need: format!("{need}; {bytes} bytes of it are the draft model's weights"),
            remedy: format!("{remedy}; or load without it"),
        },
        other => other,
    }
}

/// How two vocabularies differ, if they do. The longer one may have tokens behind the shorter one's: tables
/// are padded.
fn other_vocabulary(model: &Gguf, draft: &Gguf) -> Result<Option<String>> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let differ = match (model.get_strings(TOKENS)?, draft.get_strings(TOKENS)?) {
        (Some(own), Some(its)) => {
            let mut pairs = own.iter().zip(its.iter()).enumerate();
            let differs = pairs.find(|(_, (own, its))| own != its);
            differs.map(|(id, (own, its))| {
                format!("token {id} is {}, the model's {}", shown(its), shown(own))
            })
        }
        _ => Some("one of the two files has no tokens".into()),
    };
    let why =
        |differ| format!("its vocabulary is another: {differ}; use one of the model's family");
    Ok(differ.map(why))
}
