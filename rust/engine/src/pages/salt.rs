//! Separates cached prefixes by API key and `cache_salt`.

use sha2::{Digest, Sha256};

use crate::checksum::Sum;
use crate::error::{Error, Result};

/// Most bytes of a salt.
pub const MAX_SALT_BYTES: usize = 1024;

/// A word under which keys and values are found and kept. Only a hash of it is remembered, so that
/// neither memory nor a file tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Salt(Option<Sum>);

impl Salt {
    /// That of a word; nothing, and the empty word, is what all share who give none.
    ///
    /// # Errors
    /// [`Error::Argument`] for one that is too long.
    pub fn new(word: Option<&str>) -> Result<Self> {
        let word = word.unwrap_or_default();
        if word.len() > MAX_SALT_BYTES {
            return Err(Error::Argument {
                name: "cache_salt",
                value: format!("a text of {} bytes", word.len()),
                reason: format!("at most {MAX_SALT_BYTES} are allowed; give a hash of it"),
            });
        }
        let sum = |word: &str| of(&[b"onegraph cache salt", word.as_bytes()]);
        Ok(Self((!word.is_empty()).then(|| sum(word))))
    }

    /// What a sequence without tokens is called under it, where it is called `root` without one. No
    /// page has this name: what pages are named by has another length.
    pub(super) fn root(self, root: Sum) -> Sum {
        self.0.map_or(root, |sum| of(&[&root, b"salt", &sum, b"."]))
    }
}

fn of(parts: &[&[u8]]) -> Sum {
    let mut sum = Sha256::new();
    parts.iter().for_each(|part| sum.update(part));
    sum.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_tells_nothing_of_its_word_and_has_a_bound() {
        let salt = |word| Salt::new(word).unwrap();
        assert_eq!(salt(None), salt(Some("")));
        assert_eq!(salt(None).root([7; 32]), [7; 32]);
        let roots = [None, Some("a"), Some("b"), Some("a ")].map(|word| salt(word).root([7; 32]));
        for (i, root) in roots.iter().enumerate() {
            assert!(!roots[..i].contains(root));
        }
        assert_ne!(salt(Some("a")).root([8; 32]), roots[1]);
        assert!(!format!("{:?}", salt(Some("secret"))).contains("secret"));
        let long = "x".repeat(MAX_SALT_BYTES);
        assert!(Salt::new(Some(&long)).is_ok());
        let error = Salt::new(Some(&(long + "x"))).unwrap_err();
        let said = "cache_salt = a text of 1025 bytes: at most 1024 are allowed; give a hash of it";
        assert_eq!(error.to_string(), said);
    }
}
