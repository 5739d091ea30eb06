//! GGUF: `&[u8]` in, a validated [`Gguf`] out. No I/O, no panic, no allocation that the file's own
//! length does not justify. The whole file is validated here, once; everything behind trusts it.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little-endian.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use std::collections::HashMap;

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
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
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

fn invalid(field: impl Into<String>, value: impl ToString, remedy: impl Into<String>) -> Error {
    Error::Gguf {
        field: field.into(),
        value: value.to_string(),
        remedy: remedy.into(),
    }
}

const DAMAGED: &str = "the file is damaged or incomplete: fetch it again";

/// Reads little-endian values from the front of the file; every read is bounds-checked.
struct Reader<'a> {
    data: &'a [u8],
    pos: usize,
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

    fn string(&mut self, max: usize, field: &str) -> Result<String> {
        let n = self.count(1, field)?;
        if n > max {
            return Err(invalid(
                field,
                format!("{n} bytes long"),
                format!("at most {max} are allowed"),
            ));
        }
        let bytes = self.take(n, field)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_owned()),
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
            8 => Value::String(self.string(usize::MAX, key)?),
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

    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        let ty = self.u32(key)?;
        macro_rules! elements {
            ($min:expr, $read:expr) => {{
                let n = self.count($min, key)?;
                let mut v = Vec::with_capacity(n);
                for _ in 0..n {
                    #[allow(clippy::redundant_closure_call)]
                    v.push($read(self)?);
                }
                v
            }};
        }
        Ok(match ty {
            0 => Array::U8(elements!(1, |r: &mut Self| r.u8(key))),
            1 => Array::I8(elements!(1, |r: &mut Self| r.i8(key))),
            2 => Array::U16(elements!(2, |r: &mut Self| r.u16(key))),
            3 => Array::I16(elements!(2, |r: &mut Self| r.i16(key))),
            4 => Array::U32(elements!(4, |r: &mut Self| r.u32(key))),
            5 => Array::I32(elements!(4, |r: &mut Self| r.i32(key))),
            6 => Array::F32(elements!(4, |r: &mut Self| r.f32(key))),
            7 => Array::Bool(elements!(1, |r: &mut Self| r.bool(key))),
            8 => Array::String(elements!(8, |r: &mut Self| r.string(usize::MAX, key))),
            9 if depth < MAX_ARRAY_DEPTH => {
                let depth = depth.saturating_add(1);
                Array::Array(elements!(12, |r: &mut Self| r.array(key, depth)))
            }
            9 => {
                return Err(invalid(
                    format!("array {key}"),
                    format!("nested more than {MAX_ARRAY_DEPTH} deep"),
                    "no model needs that; the file is damaged or hostile",
                ))
            }
            10 => Array::U64(elements!(8, |r: &mut Self| r.u64(key))),
            11 => Array::I64(elements!(8, |r: &mut Self| r.i64(key))),
            12 => Array::F64(elements!(8, |r: &mut Self| r.f64(key))),
            _ => {
                return Err(invalid(
                    format!("element type of {key}"),
                    ty,
                    "types are 0 to 12; the file is damaged",
                ))
            }
        })
    }

    fn tensor(&mut self, index: usize) -> Result<(TensorInfo, u64)> {
        let name = self.string(MAX_TENSOR_NAME_BYTES, &format!("name of tensor {index}"))?;
        let field = format!("tensor {name}");
        let dims = self.u32(&field)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(invalid(
                format!("{field}: dimensions"),
                dims,
                format!("1 to {MAX_DIMS} are allowed; the file is damaged"),
            ));
        }
        let mut shape = Vec::new();
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
        let ty = quant::by_id(self.u32(&field)?)?;
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

impl Gguf {
    /// Parses and validates a whole file (`data` is all of it).
    ///
    /// # Errors
    /// [`Error::Gguf`] names the field, its value and the remedy; [`Error::Unsupported`] for a
    /// quantization type that is not in the table.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let mut r = Reader { data, pos: 0 };
        let magic = r.take(4, "magic").map_err(|_| {
            invalid(
                "length",
                format!("{} bytes", data.len()),
                "this is no GGUF file",
            )
        })?;
        if magic != MAGIC {
            return Err(invalid(
                "magic",
                format!("{magic:?}"),
                "this is no GGUF file",
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
        // A tensor record takes at least 8 + 4 + 8 + 4 + 8 bytes, a key at least 8 + 4 + 1.
        let n_tensors = r.count(32, "tensor count")?;
        let n_keys = r.count(13, "metadata count")?;
        let mut metadata = Vec::with_capacity(n_keys);
        let mut keys = HashMap::with_capacity(n_keys);
        for i in 0..n_keys {
            let key = r.string(MAX_KEY_BYTES, &format!("metadata key {i}"))?;
            let ty = r.u32(&key)?;
            let value = r.value(ty, &key)?;
            if keys.insert(key.clone(), i).is_some() {
                return Err(invalid("metadata key", format!("{key:?}, twice"), DAMAGED));
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

    /// Checks where the tensors lie: aligned, inside the file, no overlap, no name twice.
    fn place(
        &mut self,
        records: Vec<(TensorInfo, u64)>,
        header: usize,
        length: usize,
    ) -> Result<()> {
        let start = header
            .checked_next_multiple_of(self.alignment)
            .ok_or_else(|| invalid("header length", header, DAMAGED))?;
        let mut names = std::collections::HashSet::with_capacity(records.len());
        let mut ranges = Vec::with_capacity(records.len());
        for (mut info, relative) in records {
            let field = format!("tensor {}: offset", info.name);
            let offset = usize::try_from(relative)
                .ok()
                .and_then(|o| start.checked_add(o));
            let end = offset
                .and_then(|o| o.checked_add(info.bytes))
                .filter(|end| *end <= length);
            let (Some(offset), Some(end)) = (offset, end) else {
                return Err(invalid(
                    field,
                    format!(
                        "{relative}, so its {} bytes end past the file's {length}",
                        info.bytes
                    ),
                    DAMAGED,
                ));
            };
            if offset.checked_rem(self.alignment) != Some(0) {
                return Err(invalid(
                    field,
                    format!(
                        "{relative}, no multiple of the alignment {}",
                        self.alignment
                    ),
                    DAMAGED,
                ));
            }
            if !names.insert(info.name.clone()) {
                return Err(invalid(
                    "tensor name",
                    format!("{:?}, twice", info.name),
                    DAMAGED,
                ));
            }
            info.offset = offset;
            ranges.push((offset, end, self.tensors.len()));
            self.tensors.push(info);
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if let [(_, end, a), (start, _, b)] = pair {
                if end > start {
                    let name = |i: &usize| self.tensors.get(*i).map_or("", |t| t.name.as_str());
                    return Err(invalid(
                        format!("tensor {}: offset", name(b)),
                        format!("{start}, inside tensor {} which ends at {end}", name(a)),
                        DAMAGED,
                    ));
                }
            }
        }
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
                    key: key.to_owned(),
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
    pub fn get_strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(Array::String(a)) => Some(a.as_slice()),
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
            Value::String(s) if s.chars().nth(80).is_some() => {
                format!("{:?}…", s.chars().take(80).collect::<String>())
            }
            Value::String(s) => format!("{s:?}"),
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
