//! The shape of a layer's cache.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shape of one layer's cache of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvShape {
    /// 0 where the layer has none.
    pub n_head_kv: usize,
    /// Of keys; of values too, where these are stored.
    pub head_dim: usize,
    /// Where set, a value is the first so many numbers of its key as it is stored, and is not stored itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values_in_keys: Option<usize>,
}

impl KvShape {
    /// Of keys and values as wide.
    pub const fn new(n_head_kv: usize, head_dim: usize) -> Self {
        Self {
            n_head_kv,
            head_dim,
            values_in_keys: None,
        }
    }

    /// Numbers of a value.
    pub fn value_dim(&self) -> usize {
        self.values_in_keys.unwrap_or(self.head_dim)
    }

    /// What it stores of a token: keys, and values where they are not in these.
    pub fn stored(&self) -> usize {
        1 + usize::from(self.values_in_keys.is_none())
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} heads x {}", self.n_head_kv, self.head_dim)?;
        match self.values_in_keys {
            Some(n) => write!(f, " (values: the first {n} of keys)"),
            None => Ok(()),
        }
    }
}
