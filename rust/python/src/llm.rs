//! `_native.Engine`: a loaded model. `onegraph.llm` puts the public class around it.
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onegraph::backend::LogitsPath;
use onegraph::config::PoolingType;
use onegraph::engine::{
    self, GraphCheck, GraphMode, GraphOptions, GraphQuestion, Options, Profiled, Salt, Speculate,
    Ticket, Wait, POLL,
};
use onegraph::sampler::{logprobs, MAX_LOGPROBS};
use onegraph::template;
use onegraph::{Error, Result};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::arguments;
use crate::doorbell::Doorbell;
use crate::embedding::{self, Embedding};
use crate::errors::{detached, to_py};
use crate::generation::Generation;
use crate::sampling::{constraint, Sampling};
use crate::stop;
use crate::template::{finished, ChatTemplate, Rendering};
use crate::tokenizer::{interruptible, Tokenizer};

/// A number that the engine counts with.
pub fn count<T: TryFrom<i64>>(name: &'static str, value: i64) -> Result<T> {
    T::try_from(value).map_err(|_| Error::Argument {
        name,
        value: value.to_string(),
        reason: if value < 0 {
            "must not be negative".into()
        } else {
            "is too large".into()
        },
    })
}

/// A priority; one that is out of range stays so, whatever its size.
pub fn nearest(priority: i64) -> i32 {
    priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

pub fn counts<T: TryFrom<i64>>(name: &'static str, values: &[i64]) -> Result<Vec<T>> {
    values.iter().map(|v| count(name, *v)).collect()
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| to_py(Error::Internal(e.to_string())))
}

/// Waits for a ticket's next item, so that Ctrl-C is seen.
pub fn wait<T: Send>(py: Python<'_>, ticket: &Ticket<T>) -> PyResult<Option<T>> {
    loop {
        match detached(py, || ticket.next(POLL))? {
            Wait::Item(item) => return Ok(Some(item)),
            Wait::End => return Ok(None),
            Wait::TimedOut => stop::check(py)?,
        }
    }
}

/// The one item of a ticket, as JSON.
fn answer<T: Send + serde::Serialize>(py: Python<'_>, ticket: &Ticket<T>) -> PyResult<String> {
    match wait(py, ticket)? {
        Some(item) => json(&item),
        None => Err(to_py(Error::Internal("a request without an answer".into()))),
    }
}

/// Asks again until there is an answer, so that Ctrl-C is seen.
fn until_some<T: Send>(py: Python<'_>, ask: impl Fn() -> Result<Option<T>> + Sync) -> PyResult<T> {
    loop {
        if let Some(answer) = detached(py, &ask)? {
            return Ok(answer);
        }
        stop::check(py)?;
    }
}

/// Submits until there is room in the queue, so that Ctrl-C is seen.
fn submitted<T: Send>(
    py: Python<'_>,
    submit: impl Fn() -> Result<Option<Ticket<T>>> + Sync,
) -> PyResult<Ticket<T>> {
    until_some(py, submit)
}

/// The log-probability of a token, how many are more probable, and the most probable ones.
type Score = (f32, usize, Vec<(u32, f32)>);

/// How far a load has come, or the model.
#[derive(IntoPyObject)]
enum Step {
    Progress((String, u64, u64)),
    Loaded(Engine),
}

/// A model that is being loaded; dropping it breaks that off.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Loading {
    inner: Mutex<engine::Loading>,
}

impl Loading {
    fn inner(&self) -> std::sync::MutexGuard<'_, engine::Loading> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Loading {
    /// Waits a moment: what is going on, how much is done, and how much there is; or the model, once.
    fn next(&self, py: Python<'_>) -> PyResult<Step> {
        py.check_signals()?;
        let step = detached(py, || {
            Ok(match self.inner().next(POLL)? {
                ControlFlow::Continue(now) => {
                    Step::Progress((now.stage.into_owned(), now.done, now.total))
                }
                ControlFlow::Break(engine) => Step::Loaded(Engine {
                    inner: Arc::new(engine),
                }),
            })
        });
        py.check_signals()?;
        step
    }

    /// Breaks it off, soon.
    fn cancel(&self) {
        self.inner().cancel();
    }
}

/// A loaded model.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Engine {
    inner: Arc<engine::Engine>,
}

#[pymethods]
impl Engine {
    /// Begins to load a file.
    #[staticmethod]
    #[pyo3(signature = (path, *, device, n_ctx, max_batch, kv_type, kv_tokens, kv_host_bytes, cuda_graph,
                        graph_batch_sizes, graph_max_batch, graph_padding, warmup, pdl, threads,
                        prefill_chunk, prefix_cache, prefix_host_bytes, cache_dir, cache_dir_bytes,
                        nvrtc_folders, speculate, draft))]
    #[allow(clippy::too_many_arguments)]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        device: String,
        n_ctx: Option<i64>,
        max_batch: i64,
        kv_type: String,
        kv_tokens: Option<i64>,
        kv_host_bytes: Option<i64>,
        cuda_graph: &str,
        graph_batch_sizes: Option<Vec<i64>>,
        graph_max_batch: Option<i64>,
        graph_padding: bool,
        warmup: bool,
        pdl: Option<bool>,
        threads: Option<i64>,
        prefill_chunk: Option<i64>,
        prefix_cache: bool,
        prefix_host_bytes: Option<i64>,
        cache_dir: Option<PathBuf>,
        cache_dir_bytes: i64,
        nvrtc_folders: Vec<PathBuf>,
        speculate: &str,
        draft: Option<PathBuf>,
    ) -> PyResult<Loading> {
        let options = || -> Result<Options> {
            Ok(Options {
                device,
                n_ctx: n_ctx.map(|n| count("n_ctx", n)).transpose()?,
                max_batch: count("max_batch", max_batch)?,
                kv_type,
                kv_tokens: kv_tokens.map(|n| count("kv_tokens", n)).transpose()?,
                kv_host_bytes: kv_host_bytes
                    .map(|n| count("kv_host_bytes", n))
                    .transpose()?,
                threads: threads.map(|n| count("threads", n)).transpose()?,
                prefill_chunk: prefill_chunk
                    .map(|n| count("prefill_chunk", n))
                    .transpose()?,
                prefix_cache,
                prefix_host_bytes: prefix_host_bytes
                    .map(|n| count("prefix_host_bytes", n))
                    .transpose()?,
                cache_dir,
                cache_dir_bytes: count("cache_dir_bytes", cache_dir_bytes)?,
                graph: GraphOptions {
                    mode: GraphMode::from_name(cuda_graph)?,
                    batch_sizes: graph_batch_sizes
                        .map(|sizes| counts("graph.batch_sizes", &sizes))
                        .transpose()?,
                    max_batch: graph_max_batch
                        .map(|n| count("graph.max_batch", n))
                        .transpose()?,
                    padding: graph_padding,
                    warmup,
                    pdl,
                },
                nvrtc_folders,
                speculate: Speculate::new(speculate)?,
                draft,
            })
        };
        let options = options().map_err(to_py)?;
        let inner = Mutex::new(detached(py, || engine::Engine::begin(&path, &options))?);
        Ok(Loading { inner })
    }

    /// Compiles a constraint and keeps it: requests under it then begin at once.
    fn compile(&self, py: Python<'_>, given: (String, Vec<String>)) -> PyResult<()> {
        detached(py, || {
            self.inner
                .prepare_constraint(&constraint(&given.0, given.1.clone())?)
        })
    }

    /// Whether a text is one of a constraint's.
    fn fits(&self, py: Python<'_>, text: &str, given: (String, Vec<String>)) -> PyResult<bool> {
        detached(py, || {
            let constraint = constraint(&given.0, given.1.clone())?;
            self.inner.fits(&constraint, text)
        })
    }

    /// Token ids of a prompt: of a text, to which `add_special` adds what the model expects around
    /// it, or of a rendering, which has all of that. One that leaves no room in the context is
    /// refused, before it is made tokens where that is certain; or where `most` says so, one of more
    /// tokens than that.
    #[pyo3(signature = (prompt, *, add_special = true, parse_special = false, most = None))]
    fn encode(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        add_special: bool,
        parse_special: bool,
        most: Option<usize>,
    ) -> PyResult<Vec<u32>> {
        let written;
        let (text, given, add_special) = match prompt.cast::<Rendering>() {
            Ok(rendering) => {
                let rendering = &rendering.get().inner;
                (&rendering.text, Some(&rendering.given), false)
            }
            Err(_) => {
                written = arguments::text("prompt", prompt)?;
                (&written, None, add_special)
            }
        };
        let loaded = self.inner.loaded();
        let check = |tokens: usize, at_least: bool| match most {
            None => self.inner.check_room(tokens, at_least),
            Some(most) if tokens <= most => Ok(()),
            Some(most) => Err(Error::Argument {
                name: "text",
                value: format!("{}{tokens} tokens", if at_least { "at least " } else { "" }),
                reason: format!("the limit is {most}"),
            }),
        };
        let whole = 0..text.len();
        let ids = detached(py, || check(loaded.tokenizer.fewest(text), true)).and_then(|()| {
            interruptible(py, |go_on| match (given, parse_special) {
                (Some(given), false) => {
                    loaded
                        .tokenizer
                        .encode_given(text, add_special, given, go_on)
                }
                (_, special) => {
                    let trusted = if special {
                        std::slice::from_ref(&whole)
                    } else {
                        &[]
                    };
                    loaded
                        .tokenizer
                        .encode_while(text, add_special, trusted, go_on)
                }
            })
        })?;
        check(ids.len(), false).map_err(to_py)?;
        Ok(ids)
    }

    /// Token ids of a text to embed: as many of the first as the context holds where it is to be cut,
    /// of which a last one that ends a text stays; else one of more is refused.
    fn encode_text(&self, py: Python<'_>, text: &str, cut: bool) -> PyResult<Vec<u32>> {
        let loaded = self.inner.loaded();
        if !cut {
            let fewest = || {
                self.inner
                    .check_embedded(loaded.tokenizer.fewest(text), true)
            };
            detached(py, fewest)?;
        }
        let mut ids = interruptible(py, |go_on| {
            loaded.tokenizer.encode_while(text, true, &[], go_on)
        })?;
        let context = loaded.limits.n_ctx;
        if !cut {
            let length = self.inner.check_embedded(ids.len(), false);
            length.map_err(to_py)?;
        } else if ids.len() > context {
            let end = ids.last().copied().filter(|_| loaded.tokenizer.add_eos());
            ids.truncate(context);
            if let (Some(last), Some(end)) = (ids.last_mut(), end) {
                *last = end;
            }
        }
        Ok(ids)
    }

    /// Token ids of a query and a document, as a reranker was trained to see them.
    fn encode_pair(&self, py: Python<'_>, query: &str, document: &str) -> PyResult<Vec<u32>> {
        let mut failed = None;
        let ids = interruptible(py, |go_on| {
            let ids = self.inner.pair(query, document, go_on);
            ids.unwrap_or_else(|e| {
                failed = Some(e);
                Some(Vec::new())
            })
        });
        failed.map_or(ids, |e| Err(to_py(e)))
    }

    /// Raises where a prompt of so many tokens leaves no room in the context.
    fn check_room(&self, tokens: usize) -> PyResult<()> {
        self.inner.check_room(tokens, false).map_err(to_py)
    }

    /// Queues a request; blocks while the queue is full. The prompt's tokens before `timed_from` are
    /// left out of the time for the prompt; the spelling of control tokens that are `shown` is text.
    /// Where so many are asked for `together`, none takes its first step before all have begun.
    #[pyo3(signature = (prompt, options, *, priority = 0, timed_from = 0, together = 0,
                        shown = Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn submit(
        &self,
        py: Python<'_>,
        prompt: Vec<i64>,
        options: Sampling,
        priority: i64,
        timed_from: usize,
        together: usize,
        shown: Vec<u32>,
    ) -> PyResult<Generation> {
        let mut request = options.request(&prompt).map_err(to_py)?;
        request.shown_token_ids = shown;
        (request.timed_from, request.together) = (timed_from, together);
        request.priority = nearest(priority);
        // It is in line from now on, also while there is no room in the queue.
        request.asked = Some(Instant::now());
        Ok(Generation {
            ticket: submitted(py, || self.inner.submit(&request, POLL))?,
            seed: request.sampling.seed,
            whole: Mutex::default(),
        })
    }

    /// Queues a request that rings `bell` as `number` whenever it has something new, or where
    /// `at_end`, once it has ended; None while the queue is full. It is in line for `waited` seconds
    /// already.
    #[pyo3(signature = (prompt, options, bell, number, at_end, *, priority, waited,
                        shown = Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn offer(
        &self,
        py: Python<'_>,
        prompt: Vec<i64>,
        options: Sampling,
        bell: &Doorbell,
        number: u64,
        at_end: bool,
        priority: i64,
        waited: f64,
        shown: Vec<u32>,
    ) -> PyResult<Option<Generation>> {
        let mut request = options.request(&prompt).map_err(to_py)?;
        request.shown_token_ids = shown;
        request.priority = nearest(priority);
        let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
        request.asked = Instant::now().checked_sub(waited);
        let caller = Some(bell.caller(number, at_end));
        let queued = detached(py, || {
            self.inner.submit_waking(&request, caller, Duration::ZERO)
        })?;
        Ok(queued.map(|ticket| Generation {
            ticket,
            seed: request.sampling.seed,
            whole: Mutex::default(),
        }))
    }

    /// Saves the keys and values of a prompt, and the states behind it; the number of its tokens.
    fn save_prefix(
        &self,
        py: Python<'_>,
        prompt: Vec<i64>,
        path: PathBuf,
        salt: Option<&str>,
    ) -> PyResult<usize> {
        let prompt: Vec<u32> = counts("prompt", &prompt).map_err(to_py)?;
        let salt = Salt::new(salt).map_err(to_py)?;
        let saving = until_some(py, || self.inner.save_prefix(&prompt, salt, &path, POLL))?;
        until_some(py, || saving.next(POLL))
    }

    /// Takes what `save_prefix` saved; the number of its tokens.
    fn load_prefix(&self, py: Python<'_>, path: PathBuf, salt: Option<&str>) -> PyResult<usize> {
        let salt = Salt::new(salt).map_err(to_py)?;
        let content = detached(py, || self.inner.read_prefix(&path))?;
        let ticket = submitted(py, || self.inner.load_prefix(&content, salt, POLL))?;
        match wait(py, &ticket)? {
            Some(()) => Ok(content.tokens.len()),
            None => Err(to_py(Error::Internal("a prefix without an answer".into()))),
        }
    }

    /// Bytes of what is kept of prefixes beside the device's pages: those of the host's memory, how
    /// many they may be, those of files, and why no more are written.
    fn prefix_bytes(&self) -> (usize, usize, u64, Option<String>) {
        let kept = &self.inner.loaded().prefixes;
        (
            kept.counts.host_bytes.load(Ordering::Relaxed),
            kept.host_bytes,
            kept.counts.stored_bytes.load(Ordering::Relaxed),
            kept.counts.why_not_stored(),
        )
    }

    /// Raises where `logits` would not take these tokens.
    fn check_ids(&self, ids: Vec<i64>) -> PyResult<()> {
        let check = || self.inner.check_ids(&counts("ids", &ids)?);
        check().map_err(to_py)
    }

    /// Writes the logits after each of `ids` into `out`, float32 of `len(ids) * n_vocab`.
    fn logits(
        &self,
        py: Python<'_>,
        ids: Vec<i64>,
        path: &str,
        out: PyBuffer<f32>,
    ) -> PyResult<()> {
        let path = match path {
            "prefill" => LogitsPath::Prefill,
            "decode" => LogitsPath::Decode,
            _ => {
                return Err(to_py(Error::Argument {
                    name: "path",
                    value: format!("{path:?}"),
                    reason: "must be prefill or decode".into(),
                }))
            }
        };
        let ids: Vec<u32> = counts("ids", &ids).map_err(to_py)?;
        let expected = ids.len() * self.inner.loaded().limits.n_vocab;
        let cells = out
            .as_mut_slice(py)
            .filter(|cells| cells.len() == expected)
            .ok_or_else(|| {
                to_py(Error::Argument {
                    name: "out",
                    value: format!("{} numbers", out.item_count()),
                    reason: format!("must be {expected} writable, contiguous numbers"),
                })
            })?;
        let ticket = submitted(py, || self.inner.logits(&ids, path, POLL))?;
        let mut filled = 0;
        while filled < expected {
            let Some(rows) = wait(py, &ticket)? else {
                return Err(to_py(Error::Internal(format!(
                    "{filled} of {expected} logits came"
                ))));
            };
            for (cell, logit) in cells.iter().skip(filled).zip(&rows) {
                cell.set(*logit);
            }
            filled += rows.len();
            py.check_signals()?;
        }
        Ok(())
    }

    /// Of each of `ids` but the first: its log-probability behind those before it, how many tokens
    /// are more probable, and the `top` most probable ones with theirs.
    fn scores(&self, py: Python<'_>, ids: Vec<i64>, top: i64) -> PyResult<Vec<Score>> {
        let ids: Vec<u32> = counts("ids", &ids).map_err(to_py)?;
        let top = usize::try_from(top).unwrap_or(usize::MAX);
        if top > MAX_LOGPROBS {
            return Err(to_py(Error::Argument {
                name: "top",
                value: top.to_string(),
                reason: format!("must be from 0 to {MAX_LOGPROBS}"),
            }));
        }
        self.inner.check_ids(&ids).map_err(to_py)?;
        let n_vocab = self.inner.loaded().limits.n_vocab;
        let (Some((_, scored)), Some((_, read))) = (ids.split_first(), ids.split_last()) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::with_capacity(scored.len());
        if read.is_empty() {
            return Ok(found);
        }
        let ticket = submitted(py, || self.inner.logits(read, LogitsPath::Prefill, POLL))?;
        while found.len() < scored.len() {
            let Some(rows) = wait(py, &ticket)? else {
                return Err(to_py(Error::Internal(format!(
                    "logits behind {} of {} tokens came",
                    found.len(),
                    read.len()
                ))));
            };
            detached(py, || {
                for (logits, token) in rows.chunks_exact(n_vocab).zip(&scored[found.len()..]) {
                    let of = logprobs(logits, *token, top)?;
                    let own = logits[*token as usize];
                    let better = logits.iter().filter(|logit| **logit > own).count();
                    found.push((of.logprob, better, of.top));
                }
                Ok(())
            })?;
            py.check_signals()?;
        }
        Ok(found)
    }

    /// Queues a text for its embedding; blocks while the queue is full.
    #[pyo3(signature = (ids, *, pooling, dimensions, normalize, priority))]
    fn embed(
        &self,
        py: Python<'_>,
        ids: Vec<i64>,
        pooling: Option<&str>,
        dimensions: Option<i64>,
        normalize: bool,
        priority: i64,
    ) -> PyResult<Embedding> {
        let request = embedding::request(&ids, pooling, dimensions, normalize, priority);
        let mut request = request.map_err(to_py)?;
        request.asked = Some(Instant::now());
        let ticket = submitted(py, || self.inner.embed(&request, None, POLL))?;
        Ok(Embedding { ticket })
    }

    /// Queues a text that rings `bell` as `number` at its end; None while the queue is full. It is in
    /// line for `waited` seconds already.
    #[pyo3(signature = (ids, bell, number, *, pooling, dimensions, normalize, priority, waited))]
    #[allow(clippy::too_many_arguments)]
    fn offer_embedding(
        &self,
        py: Python<'_>,
        ids: Vec<i64>,
        bell: &Doorbell,
        number: u64,
        pooling: Option<&str>,
        dimensions: Option<i64>,
        normalize: bool,
        priority: i64,
        waited: f64,
    ) -> PyResult<Option<Embedding>> {
        let request = embedding::request(&ids, pooling, dimensions, normalize, priority);
        let mut request = request.map_err(to_py)?;
        let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
        request.asked = Instant::now().checked_sub(waited);
        let caller = Some(bell.caller(number, true));
        let queued = detached(py, || self.inner.embed(&request, caller, Duration::ZERO))?;
        Ok(queued.map(|ticket| Embedding { ticket }))
    }

    /// Raises where requests are not taken.
    fn check_open(&self) -> PyResult<()> {
        self.inner.check_open().map_err(to_py)
    }

    /// Ends all requests and frees the memory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            self.inner.close();
            Ok(())
        })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.loaded().path.clone()
    }

    #[getter]
    fn device(&self) -> &str {
        &self.inner.loaded().device
    }

    #[getter]
    fn device_description(&self) -> &str {
        &self.inner.loaded().limits.device
    }

    #[getter]
    fn n_ctx(&self) -> usize {
        self.inner.loaded().limits.n_ctx
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.inner.loaded().limits.n_vocab
    }

    #[getter]
    fn n_embd(&self) -> usize {
        self.inner.loaded().n_embd
    }

    /// Whether it is an encoder, which sees a whole text at once and generates nothing.
    #[getter]
    fn looks_ahead(&self) -> bool {
        self.inner.loaded().looks_ahead
    }

    /// How the file says that an embedding is made: "none", "mean", "cls", "last" or "rank".
    #[getter]
    fn pooling(&self) -> Option<&'static str> {
        self.inner.loaded().pooling.map(PoolingType::name)
    }

    #[getter]
    fn max_batch(&self) -> usize {
        self.inner.loaded().limits.n_slots
    }

    /// How captured decode steps compare with eager ones, as JSON.
    #[pyo3(signature = (ids, *, batch_sizes, rtol, atol))]
    fn verify_graph(
        &self,
        py: Python<'_>,
        ids: Vec<i64>,
        batch_sizes: Option<Vec<i64>>,
        rtol: f64,
        atol: f64,
    ) -> PyResult<String> {
        let check = || -> Result<GraphCheck> {
            Ok(GraphCheck {
                ids: counts("ids", &ids)?,
                batch_sizes: batch_sizes
                    .map(|sizes| counts("batch_sizes", &sizes))
                    .transpose()?,
                rtol,
                atol,
            })
        };
        let check = check().map_err(to_py)?;
        let ticket = submitted(py, || self.inner.verify_graph(&check, POLL))?;
        answer(py, &ticket)
    }

    /// What the captured step of a batch, or with `prompt` the passes of so many tokens, consist of and
    /// how long their parts take, as JSON.
    #[pyo3(signature = (*, batch_size, prompt, position, repeats, dot, stamps))]
    #[allow(clippy::too_many_arguments)]
    fn profile_graph(
        &self,
        py: Python<'_>,
        batch_size: i64,
        prompt: Option<i64>,
        position: i64,
        repeats: i64,
        dot: Option<PathBuf>,
        stamps: bool,
    ) -> PyResult<String> {
        let question = || -> Result<GraphQuestion> {
            Ok(GraphQuestion {
                what: match prompt {
                    None => Profiled::Step {
                        batch_size: count("batch_size", batch_size)?,
                    },
                    Some(tokens) => Profiled::Prompt {
                        tokens: count("prompt", tokens)?,
                    },
                },
                position: count("position", position)?,
                repeats: count("repeats", repeats)?,
                dot,
                stamps,
            })
        };
        let question = question().map_err(to_py)?;
        let ticket = submitted(py, || self.inner.profile_graph(&question, POLL))?;
        answer(py, &ticket)
    }

    /// What became of decode steps so far, as JSON; None where there are no graphs.
    fn graph_stats(&self) -> PyResult<Option<String>> {
        let stats = self.inner.loaded().graphs.as_ref();
        stats.map(|stats| json(&stats.now())).transpose()
    }

    /// What waits, runs and is taken right now, and what was done so far, as JSON.
    fn stats(&self) -> PyResult<String> {
        json(&self.inner.stats().map_err(to_py)?)
    }

    /// Seconds of its parts that ran side by side, where they are known.
    #[getter]
    fn load_parts(&self) -> Vec<(&'static str, f64)> {
        self.inner.loaded().load_parts.clone()
    }

    /// The context that would have been, had the card's memory held it.
    #[getter]
    fn wanted_ctx(&self) -> usize {
        self.inner.loaded().wanted_ctx
    }

    /// Why kernels that were compiled are not kept for the next load.
    #[getter]
    fn unkept_kernels(&self) -> Option<&str> {
        self.inner.loaded().unkept_kernels.as_deref()
    }

    /// Why "auto" took the CPU.
    #[getter]
    fn no_card(&self) -> Option<&'static str> {
        self.inner.loaded().no_card
    }

    /// Sequences so far of whose keys or values some were beyond what the cache's type holds.
    #[getter]
    fn saturated_sequences(&self) -> u64 {
        self.inner.loaded().saturated.load(Ordering::Relaxed)
    }

    #[getter]
    fn load_seconds(&self) -> f64 {
        self.inner.loaded().load_seconds
    }

    #[getter]
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer {
            inner: self.inner.loaded().tokenizer.clone(),
        }
    }

    /// The model's own template; checked when it is asked for, since a model whose template is
    /// damaged generates all the same.
    #[getter]
    fn chat_template(&self, py: Python<'_>) -> PyResult<Option<ChatTemplate>> {
        let source = self.inner.loaded().chat_template.as_ref();
        source.map(|source| self.template(py, source)).transpose()
    }

    /// A chat template with the first and last token of this model.
    fn template(&self, py: Python<'_>, source: &str) -> PyResult<ChatTemplate> {
        let vocab = self.inner.loaded().tokenizer.vocab();
        let text = |id: Option<u32>| id.map_or("", |id| vocab.text(id));
        let (bos, eos) = (text(vocab.bos), text(vocab.eos));
        let inner = finished(py, || template::ChatTemplate::reading(source, bos, eos))?;
        Ok(ChatTemplate { inner })
    }
}
