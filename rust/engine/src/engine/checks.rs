//! What an engine asks of prompts and tokens before anything is queued.

use super::request::Request;
use super::Engine;
use crate::backend::Limits;
use crate::error::{Error, Result};

impl Engine {
    /// What [`Engine::submit`] asks of a request; the tokens that it needs room for.
    pub(super) fn check(&self, request: &Request) -> Result<usize> {
        self.shared.check_open()?;
        let Limits { n_vocab, n_ctx, .. } = self.loaded.limits;
        self.check_generates("prompt", request.prompt.len())?;
        request.validate(n_vocab)?;
        self.check_tokens("prompt", &request.prompt)?;
        let prompt = request.prompt.len();
        self.check_room(prompt, false)?;
        if request.timed_from >= prompt {
            return Err(Error::Argument {
                name: "timed_from",
                value: request.timed_from.to_string(),
                reason: format!("must be less than the {prompt} tokens of the prompt"),
            });
        }
        Ok(prompt.saturating_add(request.max_tokens).min(n_ctx))
    }

    /// Whether a prompt of so many tokens, or of `at_least` as many, leaves room for an answer.
    ///
    /// # Errors
    /// [`Error::Context`].
    pub fn check_room(&self, prompt: usize, at_least: bool) -> Result<()> {
        let context = self.loaded.limits.n_ctx;
        if prompt < context {
            return Ok(());
        }
        Err(Error::Context {
            prompt,
            at_least,
            context,
            trained: self.loaded.n_ctx_train,
        })
    }

    /// Whether the context holds a text of so many tokens, or of `at_least` as many, to embed.
    ///
    /// # Errors
    /// [`Error::TextLength`].
    pub fn check_embedded(&self, tokens: usize, at_least: bool) -> Result<()> {
        let context = self.loaded.limits.n_ctx;
        if tokens <= context {
            return Ok(());
        }
        Err(Error::TextLength {
            tokens,
            at_least,
            context,
            trained: self.loaded.n_ctx_train,
        })
    }

    /// What [`Engine::logits`] asks of its tokens.
    ///
    /// # Errors
    /// As there.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        self.shared.check_open()?;
        self.check_generates("ids", ids.len())?;
        self.check_tokens("ids", ids)?;
        self.check_length(ids)
    }

    /// Whether the model goes on from texts, of which `name` is `n` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] of an encoder.
    pub fn check_generates(&self, name: &'static str, n: usize) -> Result<()> {
        if !self.loaded.looks_ahead {
            return Ok(());
        }
        Err(Error::Argument {
            name,
            value: format!("{n} tokens"),
            reason:
                "the model is an encoder, which cannot generate text; use embed for vectors of \
                 texts"
                    .into(),
        })
    }

    pub(super) fn check_length(&self, ids: &[u32]) -> Result<()> {
        let n_ctx = self.loaded.limits.n_ctx;
        if ids.len() <= n_ctx {
            return Ok(());
        }
        Err(Error::Argument {
            name: "ids",
            value: format!("{} tokens", ids.len()),
            reason: match ids.len() <= self.loaded.n_ctx_train {
                true => {
                    format!("the context holds {n_ctx}; shorten them or load with a larger n_ctx")
                }
                false => format!(
                    "the context holds {n_ctx}; shorten them: the model was trained for {} \
                     tokens, the largest possible n_ctx",
                    self.loaded.n_ctx_train
                ),
            },
        })
    }

    pub(super) fn check_tokens(&self, name: &'static str, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.loaded.limits.n_vocab;
        if tokens.is_empty() {
            return Err(Error::Argument {
                name,
                value: "no token".into(),
                reason: "the model needs at least one token; give some text".into(),
            });
        }
        match tokens.iter().find(|t| **t as usize >= n_vocab) {
            None => Ok(()),
            Some(token) => Err(Error::Argument {
                name,
                value: format!("token {token}"),
                reason: format!("the vocabulary has {n_vocab} tokens, with ids from 0"),
            }),
        }
    }
}
