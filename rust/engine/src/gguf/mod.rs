//! GGUF: `&[u8]` in, a validated [`Gguf`] out. No I/O, no panic, no allocation that the file's own
//! length does not justify. The whole file is validated here, once; everything behind trusts it.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little-endian.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::quant::QuantType;

mod reader;
mod value;

use reader::Reader;
pub use value::{Array, NotUtf8, Strings, Value};

/// One tensor record. `offset..offset + bytes` is a range of the file, checked, unless the file ends
/// with its header ([`Gguf::has_data`]). `offset` is a multiple of the file's alignment, which may be
/// as little as 1. A dimension may be zero: such a tensor is there and has no bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    pub name: String,
    /// Fastest-varying dimension first, as in the file: `[n_in, n_out]` for a matrix.
    pub shape: Vec<usize>,
    pub ty: &'static QuantType,
    /// From the start of the file.
    pub offset: usize,
    pub bytes: usize,
}

/// A whole, valid GGUF file (or one shard of a split one).
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    pub version: u32,
    pub alignment: usize,
    /// In file order.
    pub metadata: Vec<(String, Value)>,
    /// In file order.
    pub tensors: Vec<TensorInfo>,
    /// Whether the tensors' bytes are in the file: one that ends with its header says what a model is
    /// and how it spells text, and nothing more.
    pub has_data: bool,
    keys: HashMap<String, usize>,
}

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// Bounds that no real file comes near; they stop a hostile one early.
const MAX_ALIGNMENT: usize = 1 << 20;
const MAX_KEY_BYTES: usize = 65_535;
/// Keys and tensors cost several times their bytes in the file, so their number is bounded;
/// strings and numbers cost about what they take in the file.
const MAX_KEYS: usize = 1 << 16;
/// Of one file, and of all shards together.
pub const MAX_TENSORS: usize = 1 << 15;

fn invalid(field: impl Into<String>, value: impl ToString, remedy: impl Into<String>) -> Error {
    Error::Gguf {
        field: field.into(),
        value: value.to_string(),
        remedy: remedy.into(),
    }
}

const DAMAGED: &str = "the file is damaged or incomplete: fetch it again";

/// Text of the file, made fit for a message: escaped (no control codes for a terminal) and cut.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let cut: String = text.chars().take(MOST).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{more}", cut.escape_debug())
}

/// What a file that is no GGUF may be, and so what to do.
fn foreign(data: &[u8]) -> &'static str {
    let starts = |with: &[u8]| data.starts_with(with);
    if starts(b"version https://git-lfs") {
        "this is a Git LFS pointer, not the model: run `git lfs pull`"
    } else if starts(b"<") {
        "this is a web page, not the model: check the address it was fetched from"
    } else if starts(b"lmgg") || starts(b"tjgg") || starts(b"fmgg") {
        "this is a model in a format older than GGUF: convert it with a current converter"
    } else if starts(b"FUGG") {
        "the file is big-endian: convert it to little-endian"
    } else if starts(b"PK") || data.get(8..10) == Some(b"{\"") {
        "this is a PyTorch or safetensors file: convert it to GGUF"
    } else {
        "this is not a GGUF file: check the path"
    }
}

impl Gguf {
    /// Parses and validates a whole file (`data` is all of it).
    ///
    /// # Errors
    /// [`Error::Gguf`] names the field, its value and the remedy; [`Error::Unsupported`] for a
    /// quantization type that is not in the table.
    ///
    /// Memory: at most about the file's length beside `data`, and 32 MiB.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let mut r = Reader::new(data);
        let magic = r.take(4, "magic").map_err(|_| {
            invalid(
                "length",
                format!("{} bytes", data.len()),
                "this is not a GGUF file: fetch it again",
            )
        })?;
        if magic != MAGIC {
            return Err(invalid(
                "magic",
                format!("\"{}\"", magic.escape_ascii()),
                foreign(data),
            ));
        }
        let version = r.u32("version")?;
        if !(2..=3).contains(&version) {
            let swapped = version.swap_bytes();
            let remedy = match swapped {
                2 | 3 => "the file is big-endian: convert it to little-endian",
                _ => "versions 2 and 3 are supported: convert the file with a current converter",
            };
            return Err(invalid("version", version, remedy));
        }
        // A tensor record takes at least 9 + 4 + 8 + 4 + 8 bytes, a key at least 9 + 4 + 1.
        let n_tensors = r.count(33, "tensor count")?;
        let n_keys = r.count(14, "metadata count")?;
        for (field, n, most) in [
            ("tensor count", n_tensors, MAX_TENSORS),
            ("metadata count", n_keys, MAX_KEYS),
        ] {
            if n > most {
                let remedy = format!("at most {most} are allowed; the file is damaged or hostile");
                return Err(invalid(field, n, remedy));
            }
        }
        let mut metadata = Vec::with_capacity(n_keys);
        let mut keys = HashMap::with_capacity(n_keys);
        for i in 0..n_keys {
            let key = r.key(MAX_KEY_BYTES, &format!("metadata key {i}"))?;
            let field = match &key {
                Ok(key) => shown(key),
                Err(place) => format!("metadata key {i}, {place}"),
            };
            let ty = r.u32(&field)?;
            let value = r.value(ty, &field)?;
            // A key that is not text cannot be looked up.
            let Ok(key) = key else { continue };
            if keys.insert(key.clone(), metadata.len()).is_some() {
                return Err(invalid("metadata key", format!("{field}, twice"), DAMAGED));
            }
            metadata.push((key, value));
        }
        let mut gguf = Gguf {
            version,
            alignment: DEFAULT_ALIGNMENT,
            metadata,
            tensors: Vec::new(),
            has_data: true,
            keys,
        };
        if let Some(a) = gguf.get_uint("general.alignment")? {
            gguf.alignment = usize::try_from(a)
                .ok()
                .filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT)
                .ok_or_else(|| {
                    invalid(
                        "general.alignment",
                        a,
                        format!("a power of two from 1 to {MAX_ALIGNMENT} is expected"),
                    )
                })?;
        }
        let mut records = Vec::with_capacity(n_tensors);
        for i in 0..n_tensors {
            records.push(r.tensor(i)?);
        }
        gguf.place(records, r.pos, data.len())?;
        Ok(gguf)
    }

    /// Checks where the tensors lie: aligned, one after the other without overlap or gap, inside the
    /// file; no name twice. (llama.cpp wants the same, and file order too.) What follows the last is
    /// ignored.
    fn place(
        &mut self,
        records: Vec<(TensorInfo, u64)>,
        header: usize,
        length: usize,
    ) -> Result<()> {
        let alignment = self.alignment;
        let aligned = |n: usize| {
            n.checked_next_multiple_of(alignment)
                .ok_or_else(|| invalid("length", length, DAMAGED))
        };
        let start = aligned(header)?;
        let bytes = records.iter().any(|(info, _)| info.bytes > 0);
        self.has_data = !bytes || length > start;
        let end_of_file = match self.has_data {
            true => length.max(start),
            false => usize::MAX,
        };
        let mut names = HashSet::with_capacity(records.len());
        let mut ranges = Vec::with_capacity(records.len());
        for (info, relative) in &records {
            let field = || format!("tensor {}: offset", shown(&info.name));
            let offset = usize::try_from(*relative)
                .ok()
                .and_then(|o| start.checked_add(o));
            let end = offset
                .and_then(|o| o.checked_add(info.bytes))
                .filter(|end| *end <= end_of_file);
            let (Some(offset), Some(end)) = (offset, end) else {
                return Err(invalid(
                    field(),
                    format!(
                        "{relative}, so its {} bytes end past the file's {length}",
                        info.bytes
                    ),
                    DAMAGED,
                ));
            };
            if offset.checked_rem(alignment) != Some(0) {
                let value = format!("{relative}, not a multiple of the alignment {alignment}");
                return Err(invalid(field(), value, DAMAGED));
            }
            if !names.insert(info.name.as_str()) {
                let value = format!("{}, twice", shown(&info.name));
                return Err(invalid("tensor name", value, DAMAGED));
            }
            ranges.push((offset, end, info.name.as_str()));
        }
        ranges.sort_unstable();
        let mut expected = start;
        for (offset, end, name) in ranges {
            if offset != expected {
                return Err(invalid(
                    format!("tensor {}: offset", shown(name)),
                    format!(
                        "{}, but the tensors before it end at {}",
                        offset.saturating_sub(start),
                        expected.saturating_sub(start)
                    ),
                    "tensors must follow each other without gaps or overlaps; the file is \
                     damaged: fetch it again",
                ));
            }
            expected = aligned(end)?;
        }
        self.tensors = records
            .into_iter()
            .filter_map(|(mut info, relative)| {
                info.offset = start.checked_add(usize::try_from(relative).ok()?)?;
                Some(info)
            })
            .collect();
        Ok(())
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys
            .get(key)
            .and_then(|i| self.metadata.get(*i))
            .map(|(_, v)| v)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        pick: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|v| {
                pick(v).ok_or_else(|| Error::Metadata {
                    key: shown(key),
                    value: v.describe(),
                    expected: expected.to_owned(),
                })
            })
            .transpose()
    }

    /// A non-negative integer of any width. `Ok(None)` where the key is missing.
    pub fn get_uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer", Value::as_uint)
    }

    /// A finite float of either width. `Ok(None)` where the key is missing.
    pub fn get_float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite float", Value::as_float)
    }

    /// A bool. `Ok(None)` where the key is missing.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string. `Ok(None)` where the key is missing.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings. `Ok(None)` where the key is missing.
    pub fn get_strings(&self, key: &str) -> Result<Option<&Strings>> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(Array::String(a)) => Some(a),
            _ => None,
        })
    }

    /// An array of 32-bit floats. `Ok(None)` where the key is missing.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of 32-bit floats", |v| match v {
            Value::Array(Array::F32(a)) => Some(a.as_slice()),
            _ => None,
        })
    }

    /// An array of bytes, which some files call signed. `Ok(None)` where the key is missing.
    pub fn get_bytes(&self, key: &str) -> Result<Option<Cow<'_, [u8]>>> {
        self.typed(key, "an array of bytes", |v| match v {
            Value::Array(Array::U8(a)) => Some(Cow::from(a)),
            Value::Array(Array::I8(a)) => Some(a.iter().map(|b| b.cast_unsigned()).collect()),
            _ => None,
        })
    }

    /// An array of 32-bit signed integers. `Ok(None)` where the key is missing.
    pub fn get_i32s(&self, key: &str) -> Result<Option<&[i32]>> {
        self.typed(key, "an array of 32-bit integers", |v| match v {
            Value::Array(Array::I32(a)) => Some(a.as_slice()),
            _ => None,
        })
    }
}
