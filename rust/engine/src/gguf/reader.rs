//! Little-endian values off the front of the file, each read bounds-checked.

use super::value::{Array, NotUtf8, Strings, Value};
use super::{invalid, shown, TensorInfo, DAMAGED};
use crate::error::{Error, Result};
use crate::quant;

/// Bounds that no real file comes near; they stop a hostile one early.
const MAX_TENSOR_NAME_BYTES: usize = 1024;
const MAX_DIMS: u32 = 4;
const MAX_ARRAY_DEPTH: usize = 2;
/// Arrays in arrays cost several times their bytes in the file, so their number is bounded.
const MAX_NESTED_ARRAYS: usize = 1 << 17;

/// What should be text, or why it is none.
type Text<T> = std::result::Result<T, NotUtf8>;

/// What is left to read.
pub(super) struct Reader<'a> {
    data: &'a [u8],
    pub(super) pos: usize,
    /// Arrays inside arrays so far.
    nested: usize,
}

macro_rules! read_number {
    ($($name:ident $ty:ty),*) => {$(
        pub(super) fn $name(&mut self, field: &str) -> Result<$ty> {
            let mut bytes = [0; size_of::<$ty>()];
            bytes.copy_from_slice(self.take(size_of::<$ty>(), field)?);
            Ok(<$ty>::from_le_bytes(bytes))
        }
    )*};
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            pos: 0,
            nested: 0,
        }
    }

    pub(super) fn take(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
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
    pub(super) fn count(&mut self, min_bytes: usize, field: &str) -> Result<usize> {
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
        self.key(max, field)?
            .map_err(|place| invalid(field, place, DAMAGED))
    }

    /// A name, or bytes that are none.
    pub(super) fn key(&mut self, max: usize, field: &str) -> Result<Text<String>> {
        let name = self.string(field)?;
        let length = match &name {
            Ok(name) => name.len(),
            Err(place) => place.len,
        };
        if length == 0 || length > max {
            return Err(invalid(
                field,
                format!("{length} bytes long"),
                format!("1 to {max} are allowed; the file is damaged"),
            ));
        }
        Ok(name.map(str::to_owned))
    }

    /// A string's text, where it is UTF-8: values that are never read may be anything.
    fn string(&mut self, field: &str) -> Result<Text<&'a str>> {
        let n = self.count(1, field)?;
        let bytes = self.take(n, field)?;
        Ok(std::str::from_utf8(bytes).map_err(|e| NotUtf8 {
            at: e.valid_up_to(),
            len: n,
        }))
    }

    pub(super) fn value(&mut self, ty: u32, key: &str) -> Result<Value> {
        Ok(match ty {
            0 => Value::U8(self.u8(key)?),
            1 => Value::I8(self.i8(key)?),
            2 => Value::U16(self.u16(key)?),
            3 => Value::I16(self.i16(key)?),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(self.i32(key)?),
            6 => Value::F32(self.f32(key)?),
            7 => Value::Bool(self.bool(key)?),
            8 => match self.string(key)? {
                Ok(text) => Value::String(text.to_owned()),
                Err(place) => Value::NotUtf8(place),
            },
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

    fn strings(&mut self, key: &str) -> Result<Array> {
        let n = self.count(8, key)?;
        // Twice over the same bytes, so that the text is allocated once and exactly.
        let start = self.pos;
        let mut total: usize = 0;
        let mut damaged = None;
        for i in 0..n {
            match self.string(key)? {
                Ok(text) => total = total.saturating_add(text.len()),
                Err(place) => damaged = damaged.or(Some((i, place))),
            }
        }
        if let Some((first, place)) = damaged {
            return Ok(Array::NotUtf8 {
                len: n,
                first,
                place,
            });
        }
        self.pos = start;
        let mut strings = Strings::with_capacity(n, total);
        for _ in 0..n {
            strings.push(self.string(key)?.unwrap_or(""));
        }
        Ok(Array::String(strings))
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
            8 => self.strings(key)?,
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
        const HOSTILE: &str = "no model needs this; the file is damaged or hostile";
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

    pub(super) fn tensor(&mut self, index: usize) -> Result<(TensorInfo, u64)> {
        let name = self.name(MAX_TENSOR_NAME_BYTES, &format!("name of tensor {index}"))?;
        let field = format!("tensor {}", shown(&name));
        let dims = self.u32(&field)?;
        if dims > MAX_DIMS {
            return Err(invalid(
                format!("{field}: dimensions"),
                dims,
                format!("0 to {MAX_DIMS} are allowed; the file is damaged"),
            ));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        let mut elems: usize = 1;
        for d in 0..dims {
            let n = self.u64(&field)?;
            let total = usize::try_from(n).ok().and_then(|n| {
                shape.push(n);
                elems
                    .checked_mul(n)
                    .filter(|total| i64::try_from(*total).is_ok())
            });
            elems = total.ok_or_else(|| {
                invalid(
                    format!("{field}: dimension {d}"),
                    n,
                    "the product of a tensor's dimensions is below 2^63; the file is damaged",
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
        // No dimension is one number.
        let row = shape.first().copied().unwrap_or(1);
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
