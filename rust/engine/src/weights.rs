//! The memory map of a model: names → views of bytes, over one file or all shards of a split one.
//! The only file that maps.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

use crate::checksum;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::gguf::{shown, Gguf, TensorInfo, MAX_TENSORS};

/// An open model: its metadata and its mapped tensors.
#[derive(Debug)]
pub struct Model {
    /// Metadata of the (first) file.
    pub gguf: Gguf,
    shards: Vec<Shard>,
    /// In file order, shard after shard.
    tensors: Vec<(usize, TensorInfo)>,
    /// Name → place in `tensors`.
    index: HashMap<String, usize>,
}

/// One mapped file. The handle stays open: it reaches the mapped bytes even after the path was
/// given to another file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    map: Mmap,
    length: u64,
    modified: Option<SystemTime>,
}

/// Largest `split.count`: every shard holds a file handle, and no model comes near.
const MAX_SHARDS: usize = 512;

/// Longest chain of symbolic links, as Linux has it.
const MAX_LINKS: usize = 40;

fn io_error(action: &'static str, path: &Path, reason: impl ToString, remedy: &str) -> Error {
    Error::Io {
        action,
        path: path.display().to_string(),
        reason: reason.to_string(),
        remedy: remedy.to_owned(),
    }
}

/// An error of the parser says which file it is about.
fn in_file(path: &Path, error: Error) -> Error {
    let name = path.file_name().unwrap_or(path.as_os_str());
    match error {
        Error::Gguf {
            field,
            value,
            remedy,
        } => Error::Gguf {
            field: format!("{}: {field}", name.to_string_lossy()),
            value,
            remedy,
        },
        other => other,
    }
}

fn refused(path: &Path, e: &io::Error) -> Error {
    let remedy = match e.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "make it readable for this user",
        _ => "check the path and what it leads to",
    };
    io_error("open", path, e, remedy)
}

/// Whether what stands at `path` is a file to map. Anything else may block on opening (a FIFO), never
/// end (a device) or not map; so it is asked before, and again of what was opened.
fn regular(path: &Path, found: io::Result<Metadata>) -> Result<Metadata> {
    let found = found.map_err(|e| refused(path, &e))?;
    if found.is_file() {
        return Ok(found);
    }
    let (reason, remedy) = if found.is_dir() {
        ("it is a directory", "name the .gguf file inside it")
    } else {
        (
            "it is neither a file nor a directory (a pipe, socket or device)",
            "save the model to a file first",
        )
    };
    Err(io_error("open", path, reason, remedy))
}

impl Shard {
    fn open(path: &Path) -> Result<(Self, Gguf)> {
        regular(path, std::fs::metadata(path))?;
        let file = File::open(path).map_err(|e| refused(path, &e))?;
        let stat = regular(path, file.metadata())?;
        let length = usize::try_from(stat.len())
            .map_err(|_| io_error("map", path, "it is too long", "use a 64-bit machine"))?;
        if length == 0 {
            return Err(io_error(
                "open",
                path,
                "the file is empty (0 bytes)",
                "fetch it again",
            ));
        }
        // SAFETY: the map is read-only. Another process that shrinks the file while it is mapped
        // would make reads fault; no file system offers a way out, so length and time are taken
        // here and compared by `check_unchanged`.
        let map = unsafe { MmapOptions::new().len(length).map(&file) }
            .map_err(|e| io_error("map", path, e, "a model must be a regular file"))?;
        let gguf = Gguf::parse(&map).map_err(|e| in_file(path, e))?;
        let shard = Self {
            path: path.to_owned(),
            file,
            map,
            length: stat.len(),
            modified: stat.modified().ok(),
        };
        Ok((shard, gguf))
    }

    fn check_unchanged(&self) -> Result<()> {
        let stat = self.file.metadata().map_err(|e| refused(&self.path, &e))?;
        let reason = if stat.len() != self.length {
            format!(
                "its length went from {} to {} bytes since it was opened",
                self.length,
                stat.len()
            )
        } else if stat.modified().ok() != self.modified {
            "it was written to since it was opened".into()
        } else {
            return Ok(());
        };
        let remedy = "open it again once it is complete and no program writes to it";
        Err(io_error("load", &self.path, reason, remedy))
    }
}

/// The name of one shard, taken apart: `<prefix>-00002-of-00003.gguf`.
struct ShardName {
    prefix: PathBuf,
    number: usize,
    count: usize,
}

impl ShardName {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| {
            let five = s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
            five.then(|| s.parse().ok())?
        };
        Some(Self {
            prefix: path.with_file_name(prefix),
            number: digits(number)?,
            count: digits(count)?,
        })
    }

    /// The path of shard `number`, from 1.
    fn path(&self, number: usize) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!("-{number:05}-of-{:05}.gguf", self.count));
        name.into()
    }
}

/// A path and those that it links to, one after the other: shards lie beside one of them.
fn with_links(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    while let Some(link) = found.last().filter(|_| found.len() <= MAX_LINKS) {
        let Ok(target) = std::fs::read_link(link) else {
            break;
        };
        // An absolute one stands for itself.
        let target = link.parent().unwrap_or(Path::new("")).join(target);
        found.push(target);
    }
    found
}

/// `split.no`, `split.count` and `split.tensors.count` of one file; `None` for an unsplit one.
struct Split {
    number: u64,
    count: u64,
    n_tensors: Option<u64>,
}

impl Split {
    fn of(gguf: &Gguf) -> Result<Option<Self>> {
        let number = gguf.get_uint("split.no")?.unwrap_or(0);
        let Some(count) = gguf.get_uint("split.count")?.filter(|n| *n > 0) else {
            return Ok(None);
        };
        if number >= count || count > MAX_SHARDS as u64 {
            return Err(Error::Metadata {
                key: "split.no of split.count".into(),
                value: format!("{number} of {count}"),
                expected: format!("a number below the count, and a count of 1 to {MAX_SHARDS}"),
            });
        }
        Ok(Some(Self {
            number,
            count,
            n_tensors: gguf.get_uint("split.tensors.count")?,
        }))
    }
}

impl Model {
    /// Opens, maps and validates a GGUF file; of a split model, all shards: `path` is the first, or a
    /// link to it, and the others lie beside the one or the other.
    ///
    /// # Errors
    /// [`Error::Io`] where a file cannot be read, is none, or a shard is missing (it names the
    /// file); [`Error::Gguf`] and [`Error::Metadata`] where one is invalid or the shards do not
    /// belong together.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (first, gguf) = Shard::open(path)?;
        let mut model = Self {
            gguf,
            shards: Vec::new(),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        let split = Split::of(&model.gguf).map_err(|e| in_file(path, e))?;
        model.add(first, model.gguf.tensors.clone())?;
        if let Some(split) = split {
            model.open_rest(path, &split)?;
        }
        model.check_unchanged()?;
        Ok(model)
    }

    fn open_rest(&mut self, path: &Path, split: &Split) -> Result<()> {
        let paths = with_links(path);
        let mut names = paths.iter().filter_map(|path| ShardName::of(path));
        if split.number != 0 {
            let first = names.next().map_or_else(
                || "the first shard".into(),
                |n| n.path(1).display().to_string(),
            );
            return Err(io_error(
                "open",
                path,
                format!(
                    "it is shard {} of {}, not the first",
                    split.number.saturating_add(1),
                    split.count
                ),
                &format!("open {first}"),
            ));
        }
        if split.count > 1 {
            let leads = |n: &ShardName| n.number == 1 && n.count as u64 == split.count;
            let names: Vec<ShardName> = names.filter(leads).collect();
            let whole = names.iter().find(|n| n.path(2).exists());
            let name = whole.or(names.first()).ok_or_else(|| {
                let expected = format!("NAME-00001-of-{:05}.gguf", split.count);
                io_error(
                    "open",
                    path,
                    format!(
                        "it is the first of {} shards, but its name does not identify the others",
                        split.count
                    ),
                    &format!("name the shards {expected} and so on"),
                )
            })?;
            for number in 2..=name.count {
                self.open_next(name, number)?;
            }
        }
        let found = self.tensors.len();
        match split.n_tensors {
            Some(n) if n != found as u64 => Err(Error::Metadata {
                key: "split.tensors.count".into(),
                value: n.to_string(),
                expected: format!(
                    "{found}, the number of tensors in all {} shards; the shards are not of one \
                     model: fetch them again",
                    split.count
                ),
            }),
            _ => Ok(()),
        }
    }

    fn open_next(&mut self, name: &ShardName, number: usize) -> Result<()> {
        let path = name.path(number);
        let (shard, gguf) = Shard::open(&path).map_err(|e| match e {
            Error::Io { reason, .. } => io_error(
                "open",
                &path,
                reason,
                &format!(
                    "shard {number} of {} must be next to the first: fetch all of them",
                    name.count
                ),
            ),
            other => other,
        })?;
        let split = Split::of(&gguf).map_err(|e| in_file(&path, e))?;
        let found = split.map_or((0, 0), |s| (s.number.saturating_add(1), s.count));
        if found != (number as u64, name.count as u64) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(Error::Metadata {
                key: format!("split.no and split.count of {file}"),
                value: match found {
                    (_, 0) => "missing".into(),
                    (n, of) => format!("shard {n} of {of}"),
                },
                expected: format!("shard {number} of {}: fetch the shards again", name.count),
            });
        }
        self.add(shard, gguf.tensors)
    }

    fn add(&mut self, shard: Shard, tensors: Vec<TensorInfo>) -> Result<()> {
        let total = self.tensors.len().saturating_add(tensors.len());
        if total > MAX_TENSORS {
            return Err(in_file(
                &shard.path,
                Error::Gguf {
                    field: "number of tensors, with the shards before it,".into(),
                    value: total.to_string(),
                    remedy: format!("at most {MAX_TENSORS} are allowed"),
                },
            ));
        }
        for info in tensors {
            let place = self.tensors.len();
            if let Some(other) = self.index.insert(info.name.clone(), place) {
                let other = self.tensors.get(other).map_or(0, |(shard, _)| *shard);
                let other = self.shards.get(other).map_or(Path::new(""), |s| &s.path);
                return Err(Error::Tensor {
                    name: shown(&info.name),
                    found: format!("it in {} too", shard.path.display()),
                    expected: format!("it in {} only", other.display()),
                    remedy: "the shards are not of one model: fetch them again".into(),
                });
            }
            self.tensors.push((self.shards.len(), info));
        }
        self.shards.push(shard);
        Ok(())
    }

    /// Takes in another model, whose tensors are found by their names behind `prefix`.
    pub fn take_in(&mut self, other: Self, prefix: &str) {
        let first = self.shards.len();
        for (shard, mut info) in other.tensors {
            info.name.insert_str(0, prefix);
            self.index.insert(info.name.clone(), self.tensors.len());
            self.tensors.push((first.saturating_add(shard), info));
        }
        self.shards.extend(other.shards);
    }

    /// The file that was opened (the first shard of a split model).
    pub fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(""), |s| &s.path)
    }

    /// Path and length in bytes of each shard; one for an unsplit model.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.shards.iter().map(|s| (s.path.as_path(), s.length))
    }

    /// The records of all tensors, in file order, shard after shard.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter().map(|(_, info)| info)
    }

    /// The hyper-parameters, range-checked.
    ///
    /// # Errors
    /// What [`Config::new`] says.
    pub fn config(&self) -> Result<Config> {
        Config::new(&self.gguf, self.tensors())
    }

    /// Compares length and modification time of every file with those at [`Model::open`]. A load
    /// calls it before it reads the tensors, since bytes that were cut off fault, and after, since
    /// bytes that were overwritten are garbage.
    ///
    /// # Errors
    /// [`Error::Io`] names the file and what changed.
    pub fn check_unchanged(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::check_unchanged)
    }

    /// A checksum of all of its files.
    pub fn checksum(&self) -> checksum::Sum {
        let files: Vec<&[u8]> = self.shards.iter().map(|shard| &shard.map[..]).collect();
        checksum::of(&files)
    }

    /// How long each of its files is and when it was written.
    pub fn stamp(&self) -> Vec<(u64, Option<std::time::SystemTime>)> {
        let stamp = |shard: &Shard| (shard.length, shard.modified);
        self.shards.iter().map(stamp).collect()
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`] where there is none of that name.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        let found = self.index.get(name).and_then(|place| {
            let (shard, info) = self.tensors.get(*place)?;
            let range = info.offset..info.offset.checked_add(info.bytes)?;
            self.shards.get(*shard)?.map.get(range)
        });
        found.ok_or_else(|| Error::Tensor {
            name: name.to_owned(),
            found: match self.index.contains_key(name) {
                true => "only its record: the file ends with its header".into(),
                false => "nothing".into(),
            },
            expected: "a tensor of the model".into(),
            remedy: "the file does not hold the whole model: fetch it again".into(),
        })
    }

    /// Looks for the bytes of every weight of a plan, before anything is done with one.
    ///
    /// # Errors
    /// As [`Model::bytes`].
    pub fn check_data<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<()> {
        names
            .into_iter()
            .try_for_each(|name| self.bytes(name).map(drop))
    }
}
