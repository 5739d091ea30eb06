//! What is asked of an engine that embeds texts.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::bell::Caller;
use super::options::in_range;
use super::policy::check_priority;
use super::pooling::{Behind, Embedding, Pooling};
use super::queue::Work;
use super::ranking::{no_reranker, second_of};
use super::request::Outlet;
use super::ticket::Ticket;
use super::Engine;
use crate::error::Result;

/// A text to embed.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedRequest {
    pub ids: Vec<u32>,
    /// None: as the file says. [`Pooling::Rank`] gives one number, the score of a pair.
    pub pooling: Option<Pooling>,
    /// The leading dimensions to give, of models trained for that; none: all.
    pub dimensions: Option<usize>,
    /// Whether the vector gets the length 1.
    pub normalize: bool,
    /// As [`super::Request::priority`].
    pub priority: i32,
    /// As [`super::Request::asked`].
    pub asked: Option<Instant>,
}

impl Engine {
    /// Queues a text for its embedding; the `caller` is told when the ticket has it, or has ended. `None`
    /// where the queue stays full for `timeout`.
    ///
    /// # Errors
    /// [`Error::Argument`] for tokens, pooling and dimensions, [`Error::TextLength`] for a text that is
    /// longer than the context, [`Error::Closed`], [`Error::Forked`].
    pub fn embed(
        &self,
        request: &EmbedRequest,
        caller: Option<Caller>,
        timeout: Duration,
    ) -> Result<Option<Ticket<Vec<f32>>>> {
        self.shared.check_open()?;
        let loaded = &self.loaded;
        check_priority(request.priority)?;
        let mut second = usize::MAX;
        let (pooling, behind) = match request.pooling {
            Some(Pooling::Rank) => {
                let head = loaded.head.as_ref().ok_or_else(no_reranker)?;
                second = second_of(&request.ids, loaded.tokenizer.vocab().eos);
                let pooling = Pooling::of_head(loaded.looks_ahead);
                (pooling, Behind::Head(head.clone()))
            }
            said => {
                let dense = loaded.dense.clone().map_or(Behind::Nothing, Behind::Dense);
                (self.pooling(said)?, dense)
            }
        };
        let dimensions = request.dimensions.unwrap_or(loaded.n_embd);
        in_range("dimensions", dimensions, 1, loaded.n_embd)?;
        self.check_tokens("text", &request.ids)?;
        let tokens = request.ids.len();
        self.check_embedded(tokens, false)?;
        let (out, items) = mpsc::channel();
        let mut text = Embedding::new(
            request.ids.clone(),
            pooling,
            [loaded.n_embd, dimensions],
            request.normalize,
            behind,
            Outlet::new(out, caller),
        );
        text.second = second;
        let work = Work::Embed(Box::new(text));
        let (priority, asked) = (request.priority, request.asked);
        self.push(work, tokens, items, priority, asked, timeout)
    }

    /// How vectors are made where a request says so, or does not.
    fn pooling(&self, said: Option<Pooling>) -> Result<Pooling> {
        let loaded = &self.loaded;
        match said {
            Some(pooling) => pooling.of_model(loaded.looks_ahead),
            None => Pooling::of_file(loaded.pooling, loaded.looks_ahead),
        }
    }
}
