//! The memory map of a model file: names → views of bytes. The only file that maps.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, TensorInfo};

/// An open model: its metadata and its mapped tensors.
#[derive(Debug)]
pub struct Model {
    /// Metadata of the (first) file.
    pub gguf: Gguf,
    path: PathBuf,
    maps: Vec<Mmap>,
    /// Name → shard and record.
    index: HashMap<String, (usize, TensorInfo)>,
}

fn io_error(action: &'static str, path: &Path, e: &std::io::Error, remedy: &str) -> Error {
    Error::Io {
        action,
        path: path.display().to_string(),
        reason: e.to_string(),
        remedy: remedy.to_owned(),
    }
}

impl Model {
    /// Opens, maps and validates a GGUF file.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read, else what [`Gguf::parse`] says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path)
            .map_err(|e| io_error("open", path, &e, "check the path and its permissions"))?;
        // SAFETY: the map is read-only. Another process that shrinks the file while it is mapped
        // would make reads fault; `open` and the end of a load compare length and time.
        let map = unsafe { Mmap::map(&file) }
            .map_err(|e| io_error("map", path, &e, "a model must be a regular file"))?;
        let gguf = Gguf::parse(&map)?;
        let index = gguf
            .tensors
            .iter()
            .map(|t| (t.name.clone(), (0, t.clone())))
            .collect();
        Ok(Self {
            gguf,
            path: path.to_owned(),
            maps: vec![map],
            index,
        })
    }

    /// The file that was opened (the first shard of a split model).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The records of all tensors of all shards, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.index.values().map(|(_, info)| info)
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`] where there is none of that name.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        let found = self.index.get(name).and_then(|(shard, info)| {
            self.maps
                .get(*shard)?
                .get(info.offset..info.offset.checked_add(info.bytes)?)
        });
        found.ok_or_else(|| Error::Tensor {
            name: name.to_owned(),
            found: "nothing".into(),
            expected: "a tensor of the model".into(),
            remedy: "the file does not hold the whole model: fetch it again".into(),
        })
    }
}
