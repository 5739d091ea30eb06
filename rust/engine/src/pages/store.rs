//! Pages and states in a directory, each in its own file, named by the tokens up to its end: what one
//! process has computed serves the next. A thread writes each file under a temporary name first, so a
//! killed process leaves no partial file; a file that is damaged nevertheless is deleted, and its tokens
//! are recomputed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime};

use super::format::{self, Content, Identity};
use super::Counts;
use crate::backend::{Kind, PAGE_TOKENS};
use crate::checksum::Sum;
use crate::error::{Error, Result};

/// Files that wait for the writer; while there are as many, it takes no more.
const QUEUE: usize = 4;

/// Pages and states below the directory that the user named: it may hold other things.
const FOLDER: &str = "prefixes";

/// What unfinished files end with, and how old one is that nobody writes any more.
const UNFINISHED: &str = "part";
const ABANDONED: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
    /// Whether it is there; if not, it is being written.
    written: bool,
}

/// Every file, of other models too: they share the room.
#[derive(Debug)]
struct Index {
    entries: HashMap<PathBuf, Entry>,
    taken: u64,
    budget: u64,
    counts: Arc<Counts>,
}

impl Index {
    fn add(&mut self, path: PathBuf, entry: Entry) {
        self.taken = self.taken.saturating_add(entry.bytes);
        if let Some(before) = self.entries.insert(path, entry) {
            self.taken = self.taken.saturating_sub(before.bytes);
        }
        self.counts
            .stored_bytes
            .store(self.taken, Ordering::Relaxed);
    }

    fn remove(&mut self, path: &Path) {
        if let Some(entry) = self.entries.remove(path) {
            self.taken = self.taken.saturating_sub(entry.bytes);
        }
        self.counts
            .stored_bytes
            .store(self.taken, Ordering::Relaxed);
    }

    /// Deletes what was used longest ago until all fits.
    fn fit(&mut self) {
        while self.taken > self.budget {
            let written = self.entries.iter().filter(|(_, e)| e.written);
            let oldest = written.min_by_key(|(_, e)| e.used);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else {
                return;
            };
            // Another process may have been quicker.
            drop(fs::remove_file(&path));
            self.remove(&path);
        }
    }
}

fn locked(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the writer shares with those who hand it files.
#[derive(Debug)]
struct Desk {
    index: Mutex<Index>,
    waiting: AtomicUsize,
    failed: AtomicBool,
}

#[derive(Debug)]
struct Job {
    path: PathBuf,
    content: Content,
}

/// The files of one model as it is loaded.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    identity: Identity,
    root: Sum,
    desk: Arc<Desk>,
    jobs: Option<Sender<Box<Job>>>,
    writer: Option<JoinHandle<()>>,
}

fn refused(action: &'static str, path: &Path, e: &io::Error) -> Error {
    Error::Io {
        action,
        path: path.display().to_string(),
        reason: e.to_string(),
        remedy: "use a writable cache_dir, or none".into(),
    }
}

#[cfg(unix)]
fn private(options: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    options
}

/// Makes a folder that its owner alone may look into: it tells what prompts said.
fn make(folder: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.create(folder);
    made.map_err(|e| refused("create the folder", folder, &e))
}

/// Writes a file that appears under its name only when it is whole.
///
/// # Errors
/// What the system says; then there is none.
pub fn write_whole(path: &Path, identity: &Identity, content: &Content) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = format!(".{name}-{}-{number}.{UNFINISHED}", std::process::id());
    let unfinished = path.with_file_name(unfinished);
    let written = || -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        let mut file = BufWriter::new(private(&mut options).open(&unfinished)?);
        format::write(&mut file, identity, content)?;
        file.flush()?;
        drop(file);
        fs::rename(&unfinished, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

fn hex(sum: &Sum) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Store {
    /// What is in `directory`, of which no more than `budget` bytes are used.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be made or read.
    pub fn open(
        directory: &Path,
        budget: u64,
        identity: Identity,
        counts: Arc<Counts>,
    ) -> Result<Self> {
        let root = identity.sum();
        let all = directory.join(FOLDER);
        let folder = all.join(&hex(&root)[..32]);
        make(&folder)?;
        let mut index = Index {
            entries: HashMap::new(),
            taken: 0,
            budget,
            counts,
        };
        let folders = fs::read_dir(&all).map_err(|e| refused("read the folder", &all, &e))?;
        for model in folders.flatten() {
            let is_folder = model.file_type().is_ok_and(|kind| kind.is_dir());
            let files = is_folder.then(|| fs::read_dir(model.path()).ok()).flatten();
            for file in files.into_iter().flatten().flatten() {
                // Of the link itself, where it is one.
                let Ok(stat) = file.metadata() else { continue };
                let used = stat.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let path = file.path();
                match path.extension().and_then(|e| e.to_str()) {
                    Some("page" | "window" | "state") if stat.is_file() => index.add(
                        path,
                        Entry {
                            bytes: stat.len(),
                            used,
                            written: true,
                        },
                    ),
                    Some(UNFINISHED) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                        drop(fs::remove_file(path));
                    }
                    _ => {}
                }
            }
        }
        index.fit();
        let desk = Arc::new(Desk {
            index: Mutex::new(index),
            waiting: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        });
        let (jobs, queue) = mpsc::channel::<Box<Job>>();
        let (theirs, of) = (desk.clone(), identity.clone());
        let write = move || {
            for job in queue {
                theirs.write(&job, &of);
                theirs.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let writer = Builder::new().name("onegraph-prefixes".into()).spawn(write);
        let writer = writer.map_err(|e| refused("start a thread for", &folder, &e))?;
        Ok(Self {
            folder,
            identity,
            root,
            desk,
            jobs: Some(jobs),
            writer: Some(writer),
        })
    }

    /// What a sequence without tokens is called.
    pub fn root(&self) -> Sum {
        self.root
    }

    fn page_path(&self, kind: Kind, key: &Sum) -> PathBuf {
        let ending = match kind {
            Kind::Whole => ".page",
            Kind::Windowed => ".window",
        };
        self.folder.join(hex(key) + ending)
    }

    fn state_path(&self, key: &Sum) -> PathBuf {
        self.folder.join(hex(key) + ".state")
    }

    fn has(&self, path: &Path) -> bool {
        let index = locked(&self.desk.index);
        index.entries.get(path).is_some_and(|entry| entry.written)
    }

    fn knows(&self, path: &Path) -> bool {
        locked(&self.desk.index).entries.contains_key(path)
    }

    /// Whether there is a page that can be read.
    pub fn has_page(&self, kind: Kind, key: &Sum) -> bool {
        self.has(&self.page_path(kind, key))
    }

    /// Whether there is a state that can be read.
    pub fn has_state(&self, key: &Sum) -> bool {
        self.has(&self.state_path(key))
    }

    /// Whether a page is there or about to be.
    pub fn knows_page(&self, kind: Kind, key: &Sum) -> bool {
        self.knows(&self.page_path(kind, key))
    }

    /// Whether a state is there or about to be.
    pub fn knows_state(&self, key: &Sum) -> bool {
        self.knows(&self.state_path(key))
    }

    /// Reads a file that is to hold just what is wanted; one that does not is taken away.
    fn read(&mut self, path: &Path, fits: impl FnOnce(&Content) -> bool) -> Option<Content> {
        let content = format::read(path, &self.identity, PAGE_TOKENS);
        let content = content.ok().filter(fits);
        let mut index = locked(&self.desk.index);
        match (&content, index.entries.get_mut(path)) {
            (Some(_), Some(entry)) => {
                entry.used = SystemTime::now();
                let file = fs::File::options().append(true).open(path);
                // Only for the order in which files are evicted.
                drop(file.and_then(|file| file.set_modified(entry.used)));
            }
            (Some(_), None) => {}
            (None, _) => {
                drop(fs::remove_file(path));
                index.remove(path);
            }
        }
        content
    }

    /// A page of `tokens`, whether something in it is beyond what the cache's type holds, and what
    /// it holds in all layers of the `kind`, `bytes` long.
    pub fn read_page(
        &mut self,
        kind: Kind,
        key: &Sum,
        tokens: &[u32],
        bytes: usize,
    ) -> Option<(bool, Vec<u8>)> {
        let path = self.page_path(kind, key);
        let content = self.read(&path, |c| match kind {
            Kind::Whole => c.key == *key && c.tokens == tokens && c.pages.len() == bytes,
            // Its tokens are in the file of the other layers.
            Kind::Windowed => c.key == *key && c.tokens.is_empty() && c.windows.len() == bytes,
        })?;
        Some(match kind {
            Kind::Whole => (content.saturated, content.pages),
            Kind::Windowed => (content.saturated, content.windows),
        })
    }

    /// A state of `bytes` bytes.
    pub fn read_state(&mut self, key: &Sum, bytes: usize) -> Option<Vec<u8>> {
        let path = self.state_path(key);
        let content = self.read(&path, |c| {
            c.key == *key && c.tokens.is_empty() && c.states.len() == bytes
        })?;
        Some(content.states)
    }

    /// Whether it writes: a disk that is full is not asked again and again.
    pub fn writes(&self) -> bool {
        !self.desk.failed.load(Ordering::Acquire)
    }

    /// Whether the writer takes another file.
    pub fn is_ready(&self) -> bool {
        self.writes() && self.desk.waiting.load(Ordering::Acquire) < QUEUE
    }

    fn hand(&mut self, path: PathBuf, content: Content) {
        let parts = [&content.pages, &content.windows, &content.states];
        let bytes = parts.map(|part| part.len() as u64);
        let entry = Entry {
            bytes: bytes.into_iter().fold(0, u64::saturating_add),
            used: SystemTime::now(),
            written: false,
        };
        locked(&self.desk.index).add(path.clone(), entry);
        self.desk.waiting.fetch_add(1, Ordering::AcqRel);
        let sent = self
            .jobs
            .as_ref()
            .map(|jobs| jobs.send(Box::new(Job { path, content })));
        if !matches!(sent, Some(Ok(()))) {
            self.desk.failed.store(true, Ordering::Release);
        }
    }

    /// Has a page of a kind written.
    pub fn write_page(
        &mut self,
        kind: Kind,
        key: Sum,
        tokens: &[u32],
        saturated: bool,
        bytes: Vec<u8>,
    ) {
        let path = self.page_path(kind, &key);
        let (tokens, pages, windows) = match kind {
            Kind::Whole => (tokens.to_vec(), bytes, Vec::new()),
            Kind::Windowed => (Vec::new(), Vec::new(), bytes),
        };
        let content = Content {
            key,
            saturated,
            tokens,
            pages,
            windows,
            ..Content::default()
        };
        self.hand(path, content);
    }

    /// Has a state written.
    pub fn write_state(&mut self, key: Sum, state: Vec<u8>) {
        let path = self.state_path(&key);
        let content = Content {
            key,
            states: state,
            state_ends: vec![0],
            ..Content::default()
        };
        self.hand(path, content);
    }
}

impl Desk {
    fn write(&self, job: &Job, identity: &Identity) {
        locked(&self.index).fit();
        let written = match self.failed.load(Ordering::Acquire) {
            true => Err(io::Error::other("an earlier file could not be written")),
            false => write_whole(&job.path, identity, &job.content),
        };
        let mut index = locked(&self.index);
        match written {
            Ok(()) => {
                let length = fs::metadata(&job.path).map_or(0, |stat| stat.len());
                index.add(
                    job.path.clone(),
                    Entry {
                        bytes: length,
                        used: SystemTime::now(),
                        written: true,
                    },
                );
                index.fit();
            }
            Err(e) => {
                index.remove(&job.path);
                let mut failure = index.counts.failure();
                failure.get_or_insert_with(|| format!("{}: {e}", job.path.display()));
                self.failed.store(true, Ordering::Release);
            }
        }
    }
}

impl Drop for Store {
    /// Waits until what was handed over is written.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}
