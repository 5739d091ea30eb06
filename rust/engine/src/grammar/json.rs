//! JSON schemas as llguidance takes them.

use serde_json::{json, Map, Value};

/// Where a schema says nothing of it: what may stand between the parts of a JSON text. A line break and
/// what indents the next line; not as much as a model likes, or it need never end.
const WHITESPACE: &str = r"[ \n]?|\n(?: {1,40}|\t{1,10})";

/// A schema of an object with whitespace that ends.
///
/// # Errors
/// Why it is no schema.
pub fn schema(given: Value) -> Result<Value, String> {
    let mut object = match given {
        Value::Object(object) => object,
        // Anything goes, or nothing.
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err("nothing fits the schema false".into()),
        _ => return Err("a JSON schema is an object".into()),
    };
    object
        .entry("x-guidance")
        .or_insert_with(|| json!({"whitespace_pattern": WHITESPACE}));
    Ok(Value::Object(object))
}
