//! Cached prefixes outside of the device's pages: where they are stored, and how one is saved to a file
//! and loaded.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use super::memory::Room;
use super::options::Options;
use super::queue::Work;
use super::request::{Outlet, Piece, Request};
use super::ticket::{Ticket, Wait};
use super::{Engine, Reporter};
use crate::backend::{Backend, Kind};
use crate::checksum::Sum;
use crate::error::{Error, Result};
use crate::pages::format::{self, Content, Identity, Refusal};
use crate::pages::store::{write_whole, Store};
use crate::pages::{BlockManager, Counts, Salt};
use crate::plan::ARITHMETIC;
use crate::sampler::Params;
use crate::weights::Model;

/// Where prefixes are kept, and what they belong to.
#[derive(Debug, Clone)]
pub struct PrefixKeeping {
    pub counts: Arc<Counts>,
    /// Bytes of the host's memory.
    pub host_bytes: usize,
    /// Bytes of it for sequences that are preempted.
    pub swap_bytes: usize,
    directory: Option<(PathBuf, u64)>,
    kv_type: &'static str,
    /// Of the model's files, and a checksum of them once that was needed.
    stamp: Vec<(u64, Option<SystemTime>)>,
    model: Arc<OnceLock<Sum>>,
    /// What a file of a prefix is held to; none where the backend copies no pages.
    sizes: Arc<OnceLock<Sizes>>,
}

/// What the backend says of its pages and states.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    layout: &'static str,
    page_bytes: usize,
    window_bytes: usize,
    state_bytes: usize,
    shares: bool,
}

impl PrefixKeeping {
    /// As `options` say. Where they name a directory, the whole model is read for its checksum.
    pub(super) fn new(options: &Options, model: &Model, reporter: &Reporter) -> Result<Self> {
        let directory = options.cache_dir.clone().filter(|_| options.prefix_cache);
        let sum = OnceLock::new();
        if directory.is_some() {
            reporter.at("checksum", 0, 0)?;
            sum.get_or_init(|| model.checksum());
        }
        let (host, swapped) = (options.prefix_host_bytes, options.kv_host_bytes);
        Ok(Self {
            counts: Arc::default(),
            host_bytes: host.unwrap_or_else(|| Room::here().for_prefixes()),
            swap_bytes: swapped.unwrap_or_else(|| Room::here().for_prefixes()),
            directory: directory.map(|folder| (folder, options.cache_dir_bytes)),
            kv_type: options.kv_type()?.name,
            stamp: model.stamp(),
            model: Arc::new(sum),
            sizes: Arc::default(),
        })
    }

    /// Tells a pool where to keep what is evicted.
    pub(super) fn keep(
        &self,
        pool: BlockManager,
        shares: bool,
        backend: &mut dyn Backend,
    ) -> Result<BlockManager> {
        let Some(storage) = backend.storage() else {
            return Ok(pool);
        };
        let sizes = Sizes {
            layout: storage.layout(),
            page_bytes: storage.page_bytes(Kind::Whole),
            window_bytes: storage.page_bytes(Kind::Windowed),
            state_bytes: storage.state_bytes(),
            shares,
        };
        let sizes = *self.sizes.get_or_init(|| sizes);
        let store = match (&self.directory, self.model.get()) {
            (Some((folder, bytes)), Some(model)) if sizes.shares => Some(Store::open(
                folder,
                *bytes,
                self.identity(*model, sizes),
                self.counts.clone(),
            )?),
            _ => None,
        };
        let host_bytes = if sizes.shares { self.host_bytes } else { 0 };
        let stateful = sizes.state_bytes > 0;
        let pool = pool.with_swap_space(self.swap_bytes / sizes.page_bytes.max(1));
        Ok(pool.keeping(stateful, host_bytes, store, self.counts.clone()))
    }

    fn identity(&self, model: Sum, sizes: Sizes) -> Identity {
        Identity {
            arithmetic: ARITHMETIC,
            model,
            kv_type: self.kv_type,
            layout: sizes.layout,
            page_bytes: sizes.page_bytes,
            window_bytes: sizes.window_bytes,
            state_bytes: sizes.state_bytes,
        }
    }

    /// What a saved prefix is to fit; reads the whole model for that, once.
    fn of_file(&self, model: &Path, action: &'static str, file: &Path) -> Result<Identity> {
        let refused = |reason: String, remedy: &str| Error::Io {
            action,
            path: file.display().to_string(),
            reason,
            remedy: remedy.into(),
        };
        let sizes = self.sizes.get().filter(|sizes| sizes.shares);
        let sizes = sizes.ok_or_else(|| {
            refused(
                "the model was loaded without a prefix cache".into(),
                "load it with prefix_cache=True",
            )
        })?;
        let sum = match self.model.get() {
            Some(sum) => *sum,
            None => {
                let opened = Model::open(model)?;
                let sum = opened.checksum();
                opened.check_unchanged()?;
                if opened.stamp() != self.stamp {
                    return Err(refused(
                        format!("the model file {} has changed since", model.display()),
                        "load the model again",
                    ));
                }
                *self.model.get_or_init(|| sum)
            }
        };
        Ok(self.identity(sum, *sizes))
    }
}

/// A prefix that is being saved.
pub struct Saving {
    ticket: Ticket<Piece>,
    content: Mutex<mpsc::Receiver<Result<Content>>>,
    identity: Identity,
    path: PathBuf,
}

impl Saving {
    /// Waits at most for `timeout`; says how many tokens were saved once they are.
    ///
    /// # Errors
    /// What became of the prompt; [`Error::Io`] for the file.
    pub fn next(&self, timeout: Duration) -> Result<Option<usize>> {
        if let Wait::Item(_) | Wait::TimedOut = self.ticket.next(timeout)? {
            return Ok(None);
        }
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let content = content.try_recv().map_err(|_| Error::Cancelled)??;
        let written = write_whole(&self.path, &self.identity, &content);
        written.map_err(|e| Error::Io {
            action: SAVE,
            path: self.path.display().to_string(),
            reason: e.to_string(),
            remedy: "use a writable folder with enough space".into(),
        })?;
        Ok(Some(content.tokens.len()))
    }
}

const SAVE: &str = "save the prefix to";
const LOAD: &str = "load the prefix from";

impl Engine {
    /// Begins to save the keys and values of a prompt, and the states behind it, to a file; `None`
    /// where the queue stays full for `timeout`.
    ///
    /// # Errors
    /// As [`Engine::submit`]; [`Error::Io`] where the model keeps no prefixes.
    pub fn save_prefix(
        &self,
        prompt: &[u32],
        salt: Salt,
        path: &Path,
        timeout: Duration,
    ) -> Result<Option<Saving>> {
        let request = Request {
            prompt: prompt.to_vec(),
            sampling: Params::default(),
            max_tokens: 1,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            shown_token_ids: Vec::new(),
            ignore_eos: true,
            timed_from: 0,
            together: 0,
            priority: 0,
            asked: None,
            prompt_lookup: 0,
            constraint: None,
            thinking: None,
            salt,
        };
        let tokens = self.check(&request)?;
        let identity = self
            .loaded
            .prefixes
            .of_file(&self.loaded.path, SAVE, path)?;
        let ((out, items), (save, content)) = (mpsc::channel(), mpsc::channel());
        let work = Work::Generate {
            request: Box::new(request),
            out: Outlet::new(out, None),
            guide: None,
            save: Some(save),
        };
        let ticket = self.push(work, tokens, items, 0, None, timeout)?;
        Ok(ticket.map(|ticket| Saving {
            ticket,
            content: Mutex::new(content),
            identity,
            path: path.to_owned(),
        }))
    }

    /// Reads a file that [`Engine::save_prefix`] wrote.
    ///
    /// # Errors
    /// [`Error::Io`] for a file that is damaged or belongs to another model, type, device or
    /// arithmetic.
    pub fn read_prefix(&self, path: &Path) -> Result<Content> {
        self.shared.check_open()?;
        let refused = |Refusal { reason, remedy }| Error::Io {
            action: LOAD,
            path: path.display().to_string(),
            reason,
            remedy,
        };
        let identity = self
            .loaded
            .prefixes
            .of_file(&self.loaded.path, LOAD, path)?;
        // Room for a token behind it.
        let most = self.loaded.limits.n_ctx.saturating_sub(1);
        let content = format::read(path, &identity, most).map_err(refused)?;
        self.check_tokens("tokens of the saved prefix", &content.tokens)?;
        Ok(content)
    }

    /// Gives what [`Engine::read_prefix`] read to the model, which keeps it under a salt; `None` where
    /// the queue stays full for `timeout`.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn load_prefix(
        &self,
        content: &Content,
        salt: Salt,
        timeout: Duration,
    ) -> Result<Option<Ticket<()>>> {
        let (out, items) = mpsc::channel();
        let work = Work::LoadPrefix {
            content: Box::new(content.clone()),
            salt,
            out,
        };
        self.push(work, content.tokens.len(), items, 0, None, timeout)
    }
}
