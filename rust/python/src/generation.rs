//! `_native.Generation`: a request on its way.
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onegraph::engine::{LengthReason, Piece, StoppedBy, Ticket, Wait, POLL};
use onegraph::Error;
use pyo3::prelude::*;

use crate::errors::{detached, to_py};
use crate::llm::wait;

/// A request on its way; dropping it cancels it.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Generation {
    pub ticket: Ticket<Piece>,
    #[pyo3(get)]
    pub seed: u64,
    /// What `ended` has found so far.
    pub whole: Mutex<Piece>,
}

/// What a sequence stopped at: a token's id or a text.
#[derive(Clone, IntoPyObject, IntoPyObjectRef)]
pub enum StopReason {
    Token(u32),
    Text(String),
}

/// What came of a request since the last call.
#[pyclass(frozen, get_all, module = "onegraph._native")]
pub struct Generated {
    text: String,
    token_ids: Vec<u32>,
    /// `(logprob, [(token, logprob), ...])` a token.
    logprobs: Vec<(f32, Vec<(u32, f32)>)>,
    finish_reason: Option<&'static str>,
    /// What cut it short.
    cut: Option<&'static str>,
    /// The text or token that it stopped at.
    stop_reason: Option<StopReason>,
    /// Prompt and completion tokens, those of the prompt that were cached, those that were drafted, those
    /// of these that were right, and the steps that verified them.
    usage: (usize, usize, usize, usize, usize, usize),
    /// Seconds of load, queue, prefill, decode; tokens a second of prefill, decode, and decode
    /// without sampling.
    timings: (f64, f64, f64, f64, f64, f64, f64),
}

impl From<Piece> for Generated {
    fn from(piece: Piece) -> Self {
        let end = piece.finished;
        let usage = end.as_ref().map(|f| f.usage).unwrap_or_default();
        let t = end.as_ref().map(|f| f.timings).unwrap_or_default();
        Self {
            text: piece.text,
            token_ids: piece.token_ids,
            logprobs: piece
                .logprobs
                .into_iter()
                .map(|l| (l.logprob, l.top))
                .collect(),
            finish_reason: end.as_ref().map(|f| f.reason.name()),
            cut: end
                .as_ref()
                .and_then(|f| f.length_reason)
                .map(LengthReason::name),
            stop_reason: end.and_then(|f| f.stopped_by).map(|by| match by {
                StoppedBy::Token(id) => StopReason::Token(id),
                StoppedBy::Text(text) => StopReason::Text(text),
            }),
            usage: (
                usage.prompt,
                usage.completion,
                usage.cached,
                usage.drafted,
                usage.accepted,
                usage.rounds,
            ),
            timings: (
                t.load,
                t.queue,
                t.prefill,
                t.decode,
                t.prefill_rate(&usage),
                t.decode_rate(),
                t.decode_rate_without_sampling(),
            ),
        }
    }
}

#[pymethods]
impl Generation {
    /// The next piece; None after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Generated>> {
        Ok(wait(py, &self.ticket)?.map(Into::into))
    }

    /// The next piece, where it is there; None where it is not.
    fn poll(&self) -> PyResult<Option<Generated>> {
        match self.ticket.next(Duration::ZERO).map_err(to_py)? {
            Wait::Item(piece) => Ok(Some(piece.into())),
            Wait::TimedOut => Ok(None),
            Wait::End => Err(to_py(Error::Internal(
                "a piece was asked for after the last".into(),
            ))),
        }
    }

    /// All of it in one piece, once it has ended; None before, and where it was given already.
    fn ended(&self, py: Python<'_>) -> PyResult<Option<Generated>> {
        detached(py, || {
            let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
            while let Wait::Item(piece) = self.ticket.next(Duration::ZERO)? {
                whole.extend(piece);
            }
            Ok(whole
                .finished
                .is_some()
                .then(|| std::mem::take(&mut *whole).into()))
        })
    }

    /// All that is still to come, in one piece.
    fn collect(&self, py: Python<'_>) -> PyResult<Generated> {
        let mut whole = {
            let mut found = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *found)
        };
        while whole.finished.is_none() {
            detached(py, || self.ticket.collect(&mut whole, POLL))?;
            if let Err(e) = py.check_signals() {
                self.ticket.cancel();
                return Err(e);
            }
        }
        Ok(whole.into())
    }

    /// Ends the sequence soon; its last piece says so.
    fn cancel(&self) {
        self.ticket.cancel();
    }
}
