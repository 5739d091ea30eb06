//! Keys of layers that see a window.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

use super::{out_of_range, Config, Keys, Local, Window, WindowLayers};
use crate::error::Result;
use crate::gguf::{Array, Value};

impl Config {
    /// Keys of layers with a window end in `_swa`.
    pub(super) fn local(keys: &Keys<'_>) -> Result<Local> {
        let even = |key: &str, least: usize| {
            let n = keys.uint(key, least..=1024)?;
            match n.filter(|n| n.checked_rem(2) != Some(0)) {
                Some(odd) => Err(out_of_range(
                    format!("{}.{key}", keys.arch),
                    odd,
                    "an even number",
                )),
                None => Ok(n),
            }
        };
        let head_dim = even("attention.key_length_swa", 2)?;
        let value_dim = even("attention.value_length_swa", 2)?;
        if let Some(odd) = value_dim.filter(|value_dim| Some(*value_dim) != head_dim) {
            return Err(out_of_range(
                format!("{}.attention.value_length_swa", keys.arch),
                odd,
                "the width of the keys, attention.key_length_swa; others are not supported",
            ));
        }
        Ok(Local {
            head_dim,
            rope_dim: even("rope.dimension_count_swa", 2)?,
        })
    }

    pub(super) fn window(keys: &Keys<'_>, n_layer: usize) -> Result<Option<Window>> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        // 0 stands for none.
        let tokens = keys.uint("attention.sliding_window", 0..=1 << 30)?;
        let Some(tokens) = tokens.filter(|n| *n > 0) else {
            return Ok(None);
        };
        let key = format!("{}.{PATTERN}", keys.arch);
        let layers = match keys.gguf.get(&key) {
            Some(Value::Array(Array::Bool(each))) if each.len() == n_layer => {
                WindowLayers::Each(each.clone())
            }
            Some(value @ Value::Array(_)) => {
                let expected = format!("a number, or {n_layer} bools, one a layer");
                return Err(out_of_range(key, value.describe(), expected));
            }
            _ => match keys.uint(PATTERN, 0..=1024)? {
                Some(period) => WindowLayers::Period(period),
                None => WindowLayers::Unsaid,
            },
        };
        Ok(Some(Window { tokens, layers }))
    }
}
