//! GGUF: `&[u8]` in, a validated [`Gguf`] out. No I/O, no panic, no allocation that the file's own
//! length does not justify. The whole file is validated here, once; everything behind trusts it.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little-endian.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::quant::{self, QuantType};

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array; all elements are of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// The strings of an array, end to end in one allocation: a vocabulary of short tokens would cost
/// several times its bytes as a `Vec<String>`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`.
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let start = match i.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.text.get(start..*self.ends.get(i)?)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        for s in strings {
            all.text.push_str(s.as_ref());
            all.ends.push(all.text.len());
        }
        all
    }
}

/// One tensor record. `offset..offset + bytes` is a range of the file, checked.
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
    keys: HashMap<String, usize>,
}

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
/// Bounds that no real file comes near; they stop a hostile one early.
const MAX_KEY_BYTES: usize = 65_535;
const MAX_TENSOR_NAME_BYTES: usize = 1024;
const MAX_DIMS: u32 = 4;
const MAX_ARRAY_DEPTH: usize = 2;
/// Keys, tensors and nested arrays cost several times their bytes in the file, so their number is
/// bounded; strings and numbers cost about what they take in the file.
const MAX_KEYS: usize = 1 << 16;
/// Of one file, and of all shards together.
pub const MAX_TENSORS: usize = 1 << 15;
const MAX_NESTED_ARRAYS: usize = 1 << 17;

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

/// Reads little-endian values from the front of the file; every read is bounds-checked.
struct Reader<'a> {
    data: &'a [u8],
    pos: usize,
    /// Arrays inside arrays so far.
    nested: usize,
}

macro_rules! read_number {
    ($($name:ident $ty:ty),*) => {$(
        fn $name(&mut self, field: &str) -> Result<$ty> {
            let mut bytes = [0; size_of::<$ty>()];
            bytes.copy_from_slice(self.take(size_of::<$ty>(), field)?);
            Ok(<$ty>::from_le_bytes(bytes))
        }
    )*};
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
        let end = self
            .pos
            .checked_add(n)
            .filter(|end| *end <= self.data.len());
        let bytes = end
            .and_then(|end| self.data.get(self.pos..end))
            .ok_or_else(|| {
                invalid(
                    field,
                    format!(
                        "{n} bytes at offset {}, past the end ({} bytes)",
                        self.pos,
                        self.data.len()
                    ),
                    DAMAGED,
                )
            })?;
        self.pos = self.pos.saturating_add(n);
        Ok(bytes)
    }

    fn left(&self) -> usize {
        self.data.len().saturating_sub(self.pos)
    }

    read_number!(u8 u8, i8 i8, u16 u16, i16 i16, u32 u32, i32 i32, f32 f32, u64 u64, i64 i64, f64 f64);

    fn bool(&mut self, field: &str) -> Result<bool> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(invalid(
                field,
                format!("the bool {v}"),
                "a bool is 0 or 1; the file is damaged",
            )),
        }
    }

    /// A count of things that take at least `min_bytes` each: bounded by what is left of the file.
    fn count(&mut self, min_bytes: usize, field: &str) -> Result<usize> {
        let n = self.u64(field)?;
        let most = self.left().checked_div(min_bytes).unwrap_or(0);
        usize::try_from(n)
            .ok()
            .filter(|n| *n <= most)
            .ok_or_else(|| {
                invalid(
                    field,
                    format!("{n}, but at most {most} fit the file"),
                    DAMAGED,
                )
            })
    }

    /// A name: never empty, never long.
    fn name(&mut self, max: usize, field: &str) -> Result<String> {
        let name = self.string(field)?;
        if name.is_empty() || name.len() > max {
            return Err(invalid(
                field,
                format!("{} bytes long", name.len()),
                format!("1 to {max} are allowed; the file is damaged"),
            ));
        }
        Ok(name.to_owned())
    }

    fn string(&mut self, field: &str) -> Result<&'a str> {
        let n = self.count(1, field)?;
        let bytes = self.take(n, field)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s),
            Err(e) => Err(invalid(
                field,
                format!("not UTF-8 at byte {}", e.valid_up_to()),
                DAMAGED,
            )),
        }
    }

    fn value(&mut self, ty: u32, key: &str) -> Result<Value> {
        Ok(match ty {
            0 => Value::U8(self.u8(key)?),
            1 => Value::I8(self.i8(key)?),
            2 => Value::U16(self.u16(key)?),
            3 => Value::I16(self.i16(key)?),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(self.i32(key)?),
            6 => Value::F32(self.f32(key)?),
            7 => Value::Bool(self.bool(key)?),
            8 => Value::String(self.string(key)?.to_owned()),
            9 => Value::Array(self.array(key, 0)?),
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(self.i64(key)?),
            12 => Value::F64(self.f64(key)?),
            _ => {
                return Err(invalid(
                    format!("type of {key}"),
                    ty,
                    "types are 0 to 12; the file is damaged",
                ))
            }
        })
    }

    fn numbers<const N: usize, T>(
        &mut self,
        key: &str,
        from_le_bytes: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let n = self.count(N, key)?;
        let bytes = self.take(n.saturating_mul(N), key)?;
        let mut numbers = Vec::with_capacity(n);
        numbers.extend(
            bytes
                .chunks_exact(N)
                .filter_map(|c| c.try_into().ok().map(from_le_bytes)),
        );
        Ok(numbers)
    }

    fn strings(&mut self, key: &str) -> Result<Strings> {
        let n = self.count(8, key)?;
        // Twice over the same bytes, so that `text` is allocated once and exactly.
        let start = self.pos;
        let mut total: usize = 0;
        for _ in 0..n {
            total = total.saturating_add(self.string(key)?.len());
        }
        self.pos = start;
        let mut strings = Strings {
            text: String::with_capacity(total),
            ends: Vec::with_capacity(n),
        };
        for _ in 0..n {
            strings.text.push_str(self.string(key)?);
            strings.ends.push(strings.text.len());
        }
        Ok(strings)
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        let ty = self.u32(key)?;
        Ok(match ty {
            0 => Array::U8(self.numbers(key, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, f32::from_le_bytes)?),
            7 => {
                let n = self.count(1, key)?;
                let mut bools = Vec::with_capacity(n);
                for _ in 0..n {
                    bools.push(self.bool(key)?);
                }
                Array::Bool(bools)
            }
            8 => Array::String(self.strings(key)?),
            9 => Array::Array(self.arrays(key, depth)?),
            10 => Array::U64(self.numbers(key, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, f64::from_le_bytes)?),
            _ => {
                return Err(invalid(
                    format!("element type of {key}"),
                    ty,
                    "types are 0 to 12; the file is damaged",
                ))
            }
        })
    }

    fn arrays(&mut self, key: &str, depth: usize) -> Result<Vec<Array>> {
        const HOSTILE: &str = "no model needs that; the file is damaged or hostile";
        if depth >= MAX_ARRAY_DEPTH {
            let value = format!("an array nested more than {MAX_ARRAY_DEPTH} deep");
            return Err(invalid(key, value, HOSTILE));
        }
        // An array takes at least its type and its length.
        let n = self.count(12, key)?;
        self.nested = self.nested.saturating_add(n);
        if self.nested > MAX_NESTED_ARRAYS {
            let value = format!("more than {MAX_NESTED_ARRAYS} arrays inside arrays");
            return Err(invalid(key, value, HOSTILE));
        }
        let mut arrays = Vec::with_capacity(n);
        for _ in 0..n {
            arrays.push(self.array(key, depth.saturating_add(1))?);
        }
        Ok(arrays)
    }

    fn tensor(&mut self, index: usize) -> Result<(TensorInfo, u64)> {
        let name = self.name(MAX_TENSOR_NAME_BYTES, &format!("name of tensor {index}"))?;
        let field = format!("tensor {}", shown(&name));
        let dims = self.u32(&field)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(invalid(
                format!("{field}: dimensions"),
                dims,
                format!("1 to {MAX_DIMS} are allowed; the file is damaged"),
            ));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        let mut elems: usize = 1;
        for d in 0..dims {
            let n = self.u64(&field)?;
            let total = usize::try_from(n).ok().filter(|n| *n > 0).and_then(|n| {
                shape.push(n);
                elems
                    .checked_mul(n)
                    .filter(|total| i64::try_from(*total).is_ok())
            });
            elems = total.ok_or_else(|| {
                invalid(
                    format!("{field}: dimension {d}"),
                    n,
                    "a dimension is at least 1 and their product below 2^63; the file is damaged",
                )
            })?;
        }
        let ty = quant::by_id(self.u32(&field)?).map_err(|e| match e {
            Error::Unsupported {
                what,
                name,
                supported,
            } => Error::Unsupported {
                what,
                name: format!("{name} of {field}"),
                supported,
            },
            other => other,
        })?;
        let row = shape.first().copied().unwrap_or(0);
        let row_bytes = ty.row_bytes(row).ok_or_else(|| {
            invalid(
                format!("{field}: row length"),
                row,
                format!("{} needs a multiple of {}", ty.name, ty.block_elems),
            )
        })?;
        let rows = elems.checked_div(row).unwrap_or(0);
        let bytes = row_bytes.checked_mul(rows).ok_or_else(|| {
            invalid(
                format!("{field}: size"),
                format!("{rows} x {row_bytes} bytes"),
                DAMAGED,
            )
        })?;
        let offset = self.u64(&field)?;
        Ok((
            TensorInfo {
                name,
                shape,
                ty,
                offset: 0,
                bytes,
            },
            offset,
        ))
    }
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
        "this is no GGUF file: check the path"
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
        let mut r = Reader {
            data,
            pos: 0,
            nested: 0,
        };
        let magic = r.take(4, "magic").map_err(|_| {
            invalid(
                "length",
                format!("{} bytes", data.len()),
                "this is no GGUF file: fetch it again",
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
            let key = r.name(MAX_KEY_BYTES, &format!("metadata key {i}"))?;
            let field = shown(&key);
            let ty = r.u32(&field)?;
            let value = r.value(ty, &field)?;
            if keys.insert(key.clone(), i).is_some() {
                return Err(invalid("metadata key", format!("{field}, twice"), DAMAGED));
            }
            metadata.push((key, value));
        }
        let mut gguf = Gguf {
            version,
            alignment: DEFAULT_ALIGNMENT,
            metadata,
            tensors: Vec::new(),
            keys,
        };
        if let Some(a) = gguf.get_uint("general.alignment")? {
            gguf.alignment = usize::try_from(a)
                .ok()
                .filter(|a| a.is_power_of_two() && (8..=1 << 20).contains(a))
                .ok_or_else(|| {
                    invalid(
                        "general.alignment",
                        a,
                        "a power of two from 8 to 1048576 is expected",
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

    /// Checks where the tensors lie: aligned, one after the other without overlap or gap, up to
    /// the end of the file; no name twice. (llama.cpp wants the same, and file order too.)
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
        let mut names = HashSet::with_capacity(records.len());
        let mut ranges = Vec::with_capacity(records.len());
        for (info, relative) in &records {
            let field = || format!("tensor {}: offset", shown(&info.name));
            let offset = usize::try_from(*relative)
                .ok()
                .and_then(|o| start.checked_add(o));
            let end = offset
                .and_then(|o| o.checked_add(info.bytes))
                .filter(|end| *end <= length);
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
                let value = format!("{relative}, no multiple of the alignment {alignment}");
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
                        "{}; the tensors before it end at {}",
                        offset.saturating_sub(start),
                        expected.saturating_sub(start)
                    ),
                    "tensors lie one after the other, neither overlapping nor apart; the file is \
                     damaged: fetch it again",
                ));
            }
            expected = aligned(end)?;
        }
        if length > expected {
            return Err(invalid(
                "length",
                format!("{length} bytes, but the last tensor ends at {expected}"),
                "the file is not what its header says: fetch it again",
            ));
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
        self.typed(key, "a non-negative integer", |v| match *v {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        })
    }

    /// A finite float of either width. `Ok(None)` where the key is missing.
    pub fn get_float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite float", |v| {
            match *v {
                Value::F32(x) => Some(x.into()),
                Value::F64(x) => Some(x),
                _ => None,
            }
            .filter(|x: &f64| x.is_finite())
        })
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

    /// An array of 32-bit signed integers. `Ok(None)` where the key is missing.
    pub fn get_i32s(&self, key: &str) -> Result<Option<&[i32]>> {
        self.typed(key, "an array of 32-bit integers", |v| match v {
            Value::Array(Array::I32(a)) => Some(a.as_slice()),
            _ => None,
        })
    }
}

impl Value {
    /// The value in a few words, for messages: long ones are cut.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(v) => v.to_string(),
            Value::I8(v) => v.to_string(),
            Value::U16(v) => v.to_string(),
            Value::I16(v) => v.to_string(),
            Value::U32(v) => v.to_string(),
            Value::I32(v) => v.to_string(),
            Value::U64(v) => v.to_string(),
            Value::I64(v) => v.to_string(),
            Value::F32(v) => format!("{v:?}"),
            Value::F64(v) => format!("{v:?}"),
            Value::Bool(v) => v.to_string(),
            Value::String(s) => format!("\"{}\"", shown(s)),
            Value::Array(a) => format!("an array of {} {}", a.len(), a.element_type()),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(a) => a.len(),
            Array::I8(a) => a.len(),
            Array::U16(a) => a.len(),
            Array::I16(a) => a.len(),
            Array::U32(a) => a.len(),
            Array::I32(a) => a.len(),
            Array::F32(a) => a.len(),
            Array::Bool(a) => a.len(),
            Array::String(a) => a.len(),
            Array::Array(a) => a.len(),
            Array::U64(a) => a.len(),
            Array::I64(a) => a.len(),
            Array::F64(a) => a.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the elements' type.
    pub fn element_type(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::String(_) => "strings",
            Array::Array(_) => "arrays",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }
}
