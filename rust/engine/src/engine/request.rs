//! What is asked of an engine, and what comes back.

use std::sync::mpsc::Sender;
use std::time::Instant;

use super::bell::{Called, Caller};
use super::lookup::MOST_DRAFTED;
use super::policy::check_priority;
pub use super::policy::{MAX_PRIORITY, PRIORITY_STEP};
use super::text::check_stops;
use crate::error::{Error, Result};
use crate::grammar::{Budget, Constraint};
use crate::pages::Salt;
use crate::sampler::{Logprobs, Params};

/// Tokens to generate where a request does not say.
pub const DEFAULT_MAX_TOKENS: usize = 256;

/// A prompt to go on from.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sampling: Params,
    /// Most tokens to generate. The context may end the sequence earlier.
    pub max_tokens: usize,
    /// Texts that end the sequence; none of them is part of the result.
    pub stop: Vec<String>,
    /// Tokens that end it, beside those that end a text; none of them is part of the result.
    pub stop_token_ids: Vec<u32>,
    /// Control tokens whose spelling is part of the text: markers of calls and of reasoning.
    pub shown_token_ids: Vec<u32>,
    /// Go on after tokens that end a text, for fixed lengths.
    pub ignore_eos: bool,
    /// Tokens of the prompt that are done before [`Timings::prefill`] begins: what comes behind a
    /// long text is timed by itself.
    pub timed_from: usize,
    /// How many sequences take their first step together, this one among them, or as many as there are
    /// slots; 0: none waits. All of them have to be asked for.
    pub together: usize,
    /// Who goes first where there is not room for all: the higher, from -[`MAX_PRIORITY`] to
    /// [`MAX_PRIORITY`]. It counts as if the request had waited [`PRIORITY_STEP`] longer for each step.
    pub priority: i32,
    /// When its caller first asked for it, if that was before now: a full queue may have refused it.
    pub asked: Option<Instant>,
    /// Most tokens that are drafted from the sequence's own text for one step to verify; 0: none are. The
    /// result is the same.
    pub prompt_lookup: usize,
    /// What the text has to look like.
    pub constraint: Option<Constraint>,
    /// How much it may reason before that is closed.
    pub thinking: Option<Budget>,
    /// Under which its keys and values are found and kept: those of another salt tell it nothing.
    pub salt: Salt,
}

/// Most stop tokens of a request.
pub const MAX_STOP_TOKENS: usize = 1024;

impl Request {
    /// Checks all but the prompt.
    ///
    /// # Errors
    /// [`Error::Argument`] names the field, its value and what is allowed.
    pub fn validate(&self, n_vocab: usize) -> Result<()> {
        let bad = |name, value: String, reason: String| {
            Err(Error::Argument {
                name,
                value,
                reason,
            })
        };
        self.sampling.validate(n_vocab)?;
        check_stops(&self.stop)?;
        check_priority(self.priority)?;
        let stops = &self.stop_token_ids;
        if stops.len() > MAX_STOP_TOKENS {
            let reason = format!("at most {MAX_STOP_TOKENS} are allowed");
            return bad("stop_token_ids", format!("{} tokens", stops.len()), reason);
        }
        if let Some(token) = stops.iter().find(|t| **t as usize >= n_vocab) {
            let reason = format!("the vocabulary has {n_vocab} tokens, with ids from 0");
            return bad("stop_token_ids", format!("token {token}"), reason);
        }
        if self.prompt_lookup > MOST_DRAFTED {
            let reason = format!("must be from 0 to {MOST_DRAFTED}; 0 turns drafting off");
            return bad(
                "prompt_lookup_num_tokens",
                self.prompt_lookup.to_string(),
                reason,
            );
        }
        if self.ignore_eos && self.constraint.is_some() {
            let reason = "cannot be combined with a schema, regex, grammar or choice";
            return bad("ignore_eos", "true".into(), reason.into());
        }
        if self.max_tokens == 0 {
            return bad("max_tokens", "0".into(), "must be 1 or more".into());
        }
        Ok(())
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text, or a stop string came up.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The request was cancelled.
    Cancelled,
}

impl FinishReason {
    /// Its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a sequence ended before its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthReason {
    /// Its `max_tokens`.
    MaxTokens,
    /// The context is full.
    Context,
}

impl LengthReason {
    /// Its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::Context => "context",
        }
    }
}

/// What a sequence stopped at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoppedBy {
    Token(u32),
    Text(String),
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub prompt: usize,
    /// Of these, tokens whose keys and values were kept from sequences before.
    pub cached: usize,
    /// Tokens of the result. The token that ended the text is not counted.
    pub completion: usize,
    /// Tokens that were drafted, and those of them that were drawn then.
    pub drafted: usize,
    pub accepted: usize,
    /// Steps that verified drafts.
    pub rounds: usize,
}

/// Seconds of wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timings {
    /// Loading the model.
    pub load: f64,
    /// From the request to the first work on it.
    pub queue: f64,
    /// From there, or from the prompt's token [`Request::timed_from`], to the first token.
    pub prefill: f64,
    /// Tokens of the prompt before `prefill`, and those that were cached.
    pub untimed: usize,
    /// From the first to the last token.
    pub decode: f64,
    /// Of `decode`, choosing tokens and making text.
    pub sampling: f64,
    /// Tokens that were drawn within `decode`: all but the first.
    pub decoded: usize,
}

impl Timings {
    fn rate(tokens: usize, seconds: f64) -> f64 {
        if seconds > 0.0 {
            tokens as f64 / seconds
        } else {
            0.0
        }
    }

    /// Prompt tokens a second.
    pub fn prefill_rate(&self, usage: &Usage) -> f64 {
        Self::rate(usage.prompt.saturating_sub(self.untimed), self.prefill)
    }

    /// Tokens a second after the first, all included.
    pub fn decode_rate(&self) -> f64 {
        Self::rate(self.decoded, self.decode)
    }

    /// Tokens a second after the first, without choosing tokens and making text.
    pub fn decode_rate_without_sampling(&self) -> f64 {
        Self::rate(self.decoded, self.decode - self.sampling)
    }
}

/// The end of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub reason: FinishReason,
    /// Of [`FinishReason::Length`].
    pub length_reason: Option<LengthReason>,
    /// Of [`FinishReason::Stop`].
    pub stopped_by: Option<StoppedBy>,
    pub usage: Usage,
    pub timings: Timings,
}

/// What is new since the last piece.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Piece {
    /// Whole characters; may lag behind the tokens.
    pub text: String,
    pub token_ids: Vec<u32>,
    /// One a token where asked for.
    pub logprobs: Vec<Logprobs>,
    /// Set on the last piece.
    pub finished: Option<Finished>,
}

impl Piece {
    /// Appends the piece that followed.
    pub fn extend(&mut self, next: Piece) {
        self.text.push_str(&next.text);
        self.token_ids.extend(next.token_ids);
        self.logprobs.extend(next.logprobs);
        self.finished = next.finished;
    }
}

/// The sending half of a [`super::Ticket`]. A caller that waits elsewhere is woken for each of
/// them, and for their end.
pub(super) struct Outlet<T = Piece> {
    // Dropped before the last call: a caller woken by the end finds it closed.
    pieces: Sender<Result<T>>,
    called: Called,
}

impl<T> Outlet<T> {
    pub fn new(pieces: Sender<Result<T>>, caller: Option<Caller>) -> Self {
        Self {
            pieces,
            called: Called(caller),
        }
    }

    /// Sends a piece; says whether its ticket is still there.
    pub fn send(&self, piece: Result<T>) -> bool {
        let sent = self.pieces.send(piece).is_ok();
        self.called.news();
        sent
    }
}
