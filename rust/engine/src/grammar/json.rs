//! Reads JSON without changing any number from how it is written.

use serde_json::Value;

/// Layout between the parts of a JSON text: a space, or a line break and what indents the next line; not
/// as much as a model likes, or it need never end.
pub const SPACE: &str = r"(?:[ \n]|\n(?: {1,40}|\t{1,10}))?";

/// Deepest nesting of arrays and objects in a schema: the reader's own.
const DEEPEST: usize = 120;

/// Reads a schema.
///
/// # Errors
/// Why it is none.
pub fn read(text: &str) -> Result<Value, String> {
    check(text)?;
    let schema: Value = serde_json::from_str(text)
        .map_err(|e| format!("is not JSON: {e}; pass the schema itself, not a file name"))?;
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err("a JSON schema must be an object".into()),
    }
}

/// Refuses what its reader would take for something else: it knows integers of 64 bits.
fn check(text: &str) -> Result<(), String> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let mut number = String::new();
    for c in text.chars().chain([' ']) {
        match (quoted, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (true, '"') => quoted = false,
            (true, _) => {}
            (false, '0'..='9' | '-' | '+' | '.' | 'e' | 'E') => number.push(c),
            (false, _) => {
                let whole = !number.contains(['.', 'e', 'E']);
                if number.len() > 18 && whole && number.parse::<u64>().is_err() {
                    number.parse::<i64>().map_err(|_| {
                        format!(
                            "the integer {number} has more than 64 bits, which is not \
                                 supported"
                        )
                    })?;
                }
                number.clear();
                match c {
                    '"' => quoted = true,
                    '[' | '{' => depth = depth.saturating_add(1),
                    ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                if depth > DEEPEST {
                    return Err(format!(
                        "is nested deeper than {DEEPEST} arrays and objects; name parts of it in \
                         \"$defs\" and refer to them"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn integers_of_64_bits_are_read_as_they_are_and_longer_ones_refused() {
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "-0.5",
        ] {
            let schema = format!("{{\"const\": {text}}}");
            assert!(read(&schema).is_ok(), "{text}");
        }
        for text in ["18446744073709551616", "-9223372036854775809"] {
            let schema = format!("{{\"const\": [{text}]}}");
            assert!(read(&schema).unwrap_err().contains(text));
        }
        assert!(read(r#"{"const": "18446744073709551616"}"#).is_ok());
    }

    #[test]
    fn a_schema_is_nested_as_deep_as_its_reader_goes() {
        let nested = |n: usize| format!("{}{{}}{}", r#"{"items": "#.repeat(n), "}".repeat(n));
        assert!(read(&nested(119)).is_ok());
        assert!(read(&nested(120)).unwrap_err().contains("deeper than 120"));
        assert!(read(&nested(100_000))
            .unwrap_err()
            .contains("deeper than 120"));
        assert_eq!(read("[]").unwrap_err(), "a JSON schema must be an object");
    }
}
