//! The sampling keywords of a request.
use std::collections::BTreeMap;

use onegraph::engine::{self, GraphMode, Request, Salt, DEFAULT_MAX_TOKENS};
use onegraph::grammar::{Budget, Constraint};
use onegraph::sampler::Params;
use onegraph::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_py;
use crate::llm::{count, counts};

/// Tokens that an output may have; without a number as many as the context holds.
fn most_tokens(given: Option<i64>) -> Result<usize> {
    let Some(n) = given else {
        return Ok(usize::MAX);
    };
    usize::try_from(n)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| Error::Argument {
            name: "max_tokens",
            value: n.to_string(),
            reason: "must be 1 or more; max_tokens=None sets no limit but the context".into(),
        })
}

/// The defaults of all sampling parameters, by their public names.
#[pyfunction]
pub fn sampling_defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let Params {
        temperature,
        top_k,
        top_p,
        min_p,
        repeat_penalty,
        presence_penalty,
        frequency_penalty,
        repeat_last_n,
        ..
    } = Params::default();
    // The shortest decimal that is this float32: 0.8, not 0.800000011920929.
    let float = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
    let defaults = PyDict::new(py);
    defaults.set_item("max_tokens", DEFAULT_MAX_TOKENS)?;
    defaults.set_item("temperature", float(temperature))?;
    defaults.set_item("top_k", top_k)?;
    defaults.set_item("top_p", float(top_p))?;
    defaults.set_item("min_p", float(min_p))?;
    defaults.set_item("repeat_penalty", float(repeat_penalty))?;
    defaults.set_item("presence_penalty", float(presence_penalty))?;
    defaults.set_item("frequency_penalty", float(frequency_penalty))?;
    let last_n = repeat_last_n.map_or(Ok(WHOLE_SEQUENCE), i64::try_from)?;
    defaults.set_item("repeat_last_n", last_n)?;
    Ok(defaults)
}

/// A struct of a dict's items. PyO3's derive would keep each key in a cell whose first use lets go of
/// the interpreter (see `exit`).
macro_rules! from_dict {
    ($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        pub struct $name { $($field: $type,)* }

        impl<'a, 'py> FromPyObject<'a, 'py> for $name {
            type Error = PyErr;

            fn extract(items: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
                Ok(Self { $($field: items.get_item(stringify!($field))?.extract()?,)* })
            }
        }
    };
}

from_dict! {
    /// The sampling keywords of a request, as `onegraph.sampling.resolve` gives them.
    struct Sampling {
        max_tokens: Option<i64>,
        temperature: f64,
        top_k: i64,
        top_p: f64,
        min_p: f64,
        repeat_penalty: f64,
        presence_penalty: f64,
        frequency_penalty: f64,
        repeat_last_n: i64,
        logit_bias: Vec<(i64, f64)>,
        seed: Option<u64>,
        stop: Vec<String>,
        stop_token_ids: Vec<i64>,
        logprobs: Option<i64>,
        ignore_eos: bool,
        prompt_lookup_num_tokens: i64,
        constraint: Option<(String, Vec<String>)>,
        thinking_token_budget: Option<i64>,
        thought: Option<(String, String, bool)>,
        cache_salt: Option<String>,
    }
}

/// What a text has to look like: which kind of constraint, and its text, or the texts of a choice.
pub fn constraint(kind: &str, mut texts: Vec<String>) -> Result<Constraint> {
    let make = match kind {
        "choice" => return Ok(Constraint::Choice(texts)),
        "schema" => Constraint::Schema,
        "regex" => Constraint::Regex,
        "grammar" => Constraint::Grammar,
        "answer" => Constraint::Answer,
        _ => return Err(Error::Internal(format!("a constraint called {kind:?}"))),
    };
    Ok(make(texts.pop().unwrap_or_default()))
}

impl Sampling {
    pub fn request(self, prompt: &[i64]) -> Result<Request> {
        let budget = self.thinking_token_budget;
        let budget = budget.map(|n| count("thinking_token_budget", n));
        let bias = |(id, bias): &(i64, f64)| Ok((count("logit_bias", *id)?, single(*id, *bias)?));
        Ok(Request {
            prompt: counts("prompt", prompt)?,
            sampling: Params {
                temperature: self.temperature as f32,
                top_k: count("top_k", self.top_k)?,
                top_p: self.top_p as f32,
                min_p: self.min_p as f32,
                repeat_penalty: self.repeat_penalty as f32,
                presence_penalty: self.presence_penalty as f32,
                frequency_penalty: self.frequency_penalty as f32,
                repeat_last_n: window(self.repeat_last_n)?,
                logit_bias: self
                    .logit_bias
                    .iter()
                    .map(bias)
                    .collect::<Result<BTreeMap<_, _>>>()?,
                seed: self.seed.unwrap_or_else(engine::Engine::draw_seed),
                logprobs: self.logprobs.map(|n| count("logprobs", n)).transpose()?,
            },
            max_tokens: most_tokens(self.max_tokens)?,
            stop: self.stop,
            stop_token_ids: counts("stop_token_ids", &self.stop_token_ids)?,
            ignore_eos: self.ignore_eos,
            timed_from: 0,
            together: 0,
            priority: 0,
            asked: None,
            shown_token_ids: Vec::new(),
            prompt_lookup: count("prompt_lookup_num_tokens", self.prompt_lookup_num_tokens)?,
            salt: Salt::new(self.cache_salt.as_deref())?,
            thinking: budget.transpose()?.zip(self.thought).map(
                |(tokens, (open, close, opened))| Budget {
                    tokens,
                    open,
                    close,
                    opened,
                },
            ),
            constraint: self
                .constraint
                .map(|(kind, texts)| constraint(&kind, texts))
                .transpose()?,
        })
    }
}

/// `repeat_last_n` of a window that is the whole sequence.
const WHOLE_SEQUENCE: i64 = -1;

/// How many tokens penalties look back at; `None`: all.
fn window(last_n: i64) -> Result<Option<usize>> {
    if last_n == WHOLE_SEQUENCE {
        return Ok(None);
    }
    usize::try_from(last_n)
        .map(Some)
        .map_err(|_| Error::Argument {
            name: "repeat_last_n",
            value: last_n.to_string(),
            reason: "must be a number of tokens, 0 for none of them or -1 for all".into(),
        })
}

/// A bias in the precision of logits: a large number must not become the infinite one that forces a
/// token.
fn single(id: i64, bias: f64) -> Result<f32> {
    let single = bias as f32;
    if single.is_infinite() && bias.is_finite() {
        return Err(Error::Argument {
            name: "logit_bias",
            value: format!("{bias:e} for token {id}"),
            reason: format!(
                "finite ones go up to {:e}; inf forces a token, -inf bans it",
                f32::MAX
            ),
        });
    }
    Ok(single)
}

/// Raises where a word is no mode of graphs.
#[pyfunction]
pub fn check_graph_mode(mode: &str) -> PyResult<()> {
    GraphMode::from_name(mode).map(drop).map_err(to_py)
}

/// Raises where sampling keywords are out of range, whatever the model.
#[pyfunction]
pub fn check_sampling(options: Sampling) -> PyResult<()> {
    let check = || options.request(&[])?.validate(usize::MAX);
    check().map_err(to_py)
}
