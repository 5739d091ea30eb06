//! Arguments of the native classes that are public. PyO3's own conversions raise a bare `TypeError`,
//! `OverflowError` or `UnicodeEncodeError`; these raise `ArgumentError` with the name, the value and
//! what was expected.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use onegraph::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyMemoryView, PyString};

use crate::errors::to_py;

/// Characters of a value that a message repeats.
const SHOWN: usize = 60;

/// The error for a value that is not what was expected.
pub fn refuse(name: &'static str, value: String, reason: impl Into<String>) -> PyErr {
    to_py(Error::Argument {
        name,
        value,
        reason: reason.into(),
    })
}

/// A number or text as it is written, where that is short; else what it is.
pub fn shown(obj: &Bound<'_, PyAny>) -> String {
    let short = obj.is_none() || obj.is_instance_of::<PyInt>() || obj.is_instance_of::<PyString>();
    let written = short.then(|| obj.repr().and_then(|text| text.extract::<String>()));
    match written {
        Some(Ok(text)) if text.chars().count() <= SHOWN => text,
        _ => match class_name(obj) {
            Ok(name) => format!("a value of type {name}"),
            Err(_) => "a value".to_owned(),
        },
    }
}

fn class_name(obj: &Bound<'_, PyAny>) -> PyResult<String> {
    obj.get_type().getattr("__name__")?.extract()
}

/// For `from_py_with`, which is told no names: each argument under its own.
pub mod named {
    use super::*;

    macro_rules! named {
        ($($name:ident: $type:ty = $convert:ident;)*) => {
            $(pub fn $name(obj: &Bound<'_, PyAny>) -> PyResult<$type> {
                super::$convert(stringify!($name), obj)
            })*
        };
    }

    named! {
        add_generation_prompt: bool = flag;
        add_special: bool = flag;
        bos_token: String = text;
        continuation: bool = flag;
        eos_token: String = text;
        id: u32 = id;
        ids: Vec<u32> = ids;
        mark: String = text;
        parse_special: bool = flag;
        path: PathBuf = path;
        skip_special: bool = flag;
        source: String = text;
        text: String = text;
    }
}

/// The text of a `str`.
pub fn text(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<String> {
    let Ok(string) = obj.cast::<PyString>() else {
        return Err(refuse(name, shown(obj), "must be a str"));
    };
    utf8(name, string)
}

/// The text of a string, where UTF-8 can spell it.
pub fn utf8(name: &'static str, string: &Bound<'_, PyString>) -> PyResult<String> {
    if let Ok(text) = string.to_str() {
        return Ok(text.to_owned());
    }
    let spelled = string.call_method1("encode", ("utf-8", "surrogatepass"))?;
    let at = before_surrogate(spelled.cast::<PyBytes>()?.as_bytes());
    Err(refuse(
        name,
        format!("a str of {} characters", string.len().unwrap_or_default()),
        format!(
            "the character at index {at} is half of a surrogate pair, which UTF-8 cannot encode; \
             decode its bytes with their own encoding"
        ),
    ))
}

/// Characters before the first half of a surrogate pair.
fn before_surrogate(spelled: &[u8]) -> usize {
    let is_half = |bytes: &[u8]| bytes[0] == 0xed && bytes[1] >= 0xa0;
    let whole = spelled.windows(2).position(is_half);
    let before = &spelled[..whole.unwrap_or(spelled.len())];
    before.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

/// `True` or `False`, numpy's included.
pub fn flag(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = obj.get_type();
    let is_numpy = || -> PyResult<bool> {
        let module: String = class.getattr("__module__")?.extract()?;
        Ok(module == "numpy" && class_name(obj)?.starts_with("bool"))
    };
    if obj.is_instance_of::<PyBool>() || is_numpy().unwrap_or_default() {
        return obj.is_truthy();
    }
    Err(refuse(name, shown(obj), "must be True or False"))
}

/// The path that a `str` or an `os.PathLike` names. PyO3's own conversion panics at half a surrogate
/// pair.
pub fn path(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let spelled = match obj.cast::<PyString>() {
        Ok(string) => Some(string.clone()),
        Err(_) if obj.hasattr("__fspath__")? => obj.call_method0("__fspath__")?.cast_into().ok(),
        Err(_) => None,
    };
    let Some(spelled) = spelled else {
        return Err(refuse(
            name,
            shown(obj),
            "must be a path: a str or an os.PathLike of one",
        ));
    };
    // As `os.fsencode` spells it: a file system's bytes that are no UTF-8 come back as they were.
    let bytes = spelled.call_method1("encode", ("utf-8", "surrogateescape"));
    let Ok(Ok(bytes)) = bytes.map(Bound::cast_into::<PyBytes>) else {
        return Err(refuse(name, shown(&spelled), "not a valid file name"));
    };
    Ok(OsStr::from_bytes(bytes.as_bytes()).into())
}

/// A token id: an integer of 32 bits.
pub fn id(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<u32> {
    if obj.is_instance_of::<PyBool>() {
        return Err(refuse(name, shown(obj), "must be a token id"));
    }
    obj.extract().map_err(|_| {
        // An integer, or what says which it stands for, as numpy's do.
        let is_number = obj.is_instance_of::<PyInt>() || obj.hasattr("__index__").unwrap_or(false);
        let reason = if is_number {
            "token ids are integers from 0 to 2**32 - 1"
        } else {
            "must be a token id"
        };
        refuse(name, shown(obj), reason)
    })
}

/// Token ids in a list, a tuple or an array.
pub fn ids(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let other = obj.is_instance_of::<PyString>()
        || obj.is_instance_of::<PyBytes>()
        || obj.is_instance_of::<PyByteArray>()
        || obj.is_instance_of::<PyMemoryView>()
        || obj.is_instance_of::<PyDict>();
    let is_sequence = obj.len().is_ok() && obj.hasattr("__getitem__")?;
    if other || !is_sequence {
        return Err(refuse(name, shown(obj), "must be a sequence of token ids"));
    }
    obj.try_iter()?.map(|item| id(name, &item?)).collect()
}
