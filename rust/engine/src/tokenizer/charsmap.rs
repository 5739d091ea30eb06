//! The normalizer that SentencePiece compiles into a vocabulary (`precompiled_charsmap`): what characters
//! become others. A text is read from the left, and the longest key that it begins with is replaced.
//!
//! The keys are a double array (darts-clone): the unit of a node, a 32-bit number, has its last byte in bits
//! 0 to 7, in bit 8 whether a key ends there, and in the others an offset, which with the node's own index
//! gives the base of its children: that with the byte `b` is at `base ^ b`. At the base itself lies, where a
//! key ends, the place of its replacement, a text that a zero ends. Bit 31 tells such units from nodes.
//!
//! All of it is walked once when the file is opened, so that reading never meets what is broken.
use std::collections::HashMap;

use super::vocab::bad;
use crate::error::Result;
use crate::gguf::Gguf;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// Bytes of the largest: a dozen times those of XLM-R.
const MOST: usize = 1 << 22;
/// Bytes of the longest key: no character's decomposition has a third of it. It bounds the work at every
/// place of a text.
const LONGEST_KEY: usize = 64;
/// Bytes of the longest replacement: twice that of U+FDFA, the longest of NFKC. It bounds how much longer a
/// text becomes.
const LONGEST: usize = 64;

/// A unit that holds a replacement's place.
const IS_VALUE: u32 = 1 << 31;

/// What becomes of the characters of a text.
#[derive(Debug, Clone, Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    /// Replacements, each with a zero behind.
    texts: String,
}

/// The last byte of a node, or more where the unit is none.
fn label(unit: u32) -> u32 {
    unit & (IS_VALUE | 0xFF)
}

fn ends_key(unit: u32) -> bool {
    (unit >> 8) & 1 == 1
}

/// The base of a node's children.
fn base(index: u32, unit: u32) -> u32 {
    index ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))
}

impl Charsmap {
    /// The file's, or one that changes nothing.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let Some(bytes) = gguf.get_bytes(KEY)? else {
            return Ok(Self::default());
        };
        match bytes.len() {
            0 => Ok(Self::default()),
            n if n > MOST => Err(bad(
                KEY,
                format!("{n} bytes long"),
                format!("at most {MOST} bytes"),
            )),
            _ => Self::read(&bytes).map_err(|(value, expected)| bad(KEY, value, expected)),
        }
    }

    /// What is wrong, and what is expected.
    fn read(bytes: &[u8]) -> std::result::Result<Self, (String, String)> {
        let whole = |value: String, expected: &str| {
            let remedy = "; the vocabulary is damaged: convert or fetch the model again";
            (value, format!("{expected}{remedy}"))
        };
        let said = bytes.split_first_chunk();
        let parts = said.and_then(|(size, rest)| {
            let size = u32::from_le_bytes(*size) as usize;
            rest.split_at_checked(size)
                .filter(|_| size.is_multiple_of(4))
        });
        let Some((units, texts)) = parts else {
            return Err(whole(
                format!("{} bytes without the units that they announce", bytes.len()),
                "a size, so many bytes of a double array, and replacements",
            ));
        };
        let units = units.chunks_exact(4).map(|unit| {
            let unit = unit.first_chunk().copied();
            u32::from_le_bytes(unit.unwrap_or_default())
        });
        let units: Vec<u32> = units.collect();
        let texts = std::str::from_utf8(texts).map_err(|e| {
            let value = format!("not UTF-8 at byte {} of its replacements", e.valid_up_to());
            whole(value, "replacements in UTF-8")
        })?;
        let made = Self {
            units,
            texts: texts.to_owned(),
        };
        made.check().map_err(|what| {
            let expected = format!(
                "keys of up to {LONGEST_KEY} bytes, each with a replacement of up to {LONGEST} in it"
            );
            whole(what, &expected)
        })?;
        Ok(made)
    }

    /// Walks all nodes, level by level, as nodes may be shared.
    fn check(&self) -> std::result::Result<(), String> {
        // Of every base its children: those that say so by their own byte.
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (index, unit) in (0_u32..).zip(&self.units) {
            if (1..=0xFF).contains(&label(*unit)) {
                children
                    .entry(index ^ label(*unit))
                    .or_default()
                    .push(index);
            }
        }
        let Some(root) = self.units.first() else {
            return Ok(());
        };
        let mut level = vec![base(0, *root)];
        for _ in 0..=LONGEST_KEY {
            let mut next = Vec::new();
            let nodes = level.iter().filter_map(|base| children.get(base)).flatten();
            for index in nodes.copied() {
                let unit = self.units.get(index as usize).copied().unwrap_or(0);
                let base = base(index, unit);
                if ends_key(unit) && self.replacement(base).is_none() {
                    return Err(format!("a key without a replacement, unit {index}"));
                }
                next.push(base);
            }
            next.sort_unstable();
            next.dedup();
            level = next;
        }
        match level.is_empty() {
            true => Ok(()),
            false => Err(format!("a key of more than {LONGEST_KEY} bytes")),
        }
    }

    /// What stands for a key, by the base of its last node.
    fn replacement(&self, base: u32) -> Option<&str> {
        let unit = self.units.get(base as usize)?;
        let place = unit & !IS_VALUE;
        let rest = self.texts.get(place as usize..)?;
        let bytes = rest.as_bytes();
        let end = bytes
            .iter()
            .take(LONGEST.saturating_add(1))
            .position(|b| *b == 0)?;
        rest.get(..end)
    }

    /// What the front of a text becomes, and what is behind it; `None` at its end.
    pub fn front<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let one = text.chars().next()?.len_utf8();
        let (mut index, mut unit) = (0, self.units.first().copied().unwrap_or(0));
        let mut found = None;
        for (at, byte) in text.bytes().enumerate() {
            index = base(index, unit) ^ u32::from(byte);
            unit = match self.units.get(index as usize) {
                Some(unit) if byte != 0 && label(*unit) == u32::from(byte) => *unit,
                _ => break,
            };
            if ends_key(unit) {
                let rest = text.get(at.saturating_add(1)..);
                let here = self.replacement(base(index, unit)).zip(rest);
                found = here.or(found);
            }
        }
        found.or_else(|| text.split_at_checked(one))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Charsmap;

    proptest! {
        #[test]
        fn whatever_it_says_is_refused_or_ends(
            units in prop::collection::vec(0_u32..1 << 12, 0..300),
            texts in "[a\0é]{0,30}",
            text in "[\x01-\x09é中]{0,40}",
        ) {
            let mut bytes = u32::try_from(size_of_val(&units[..])).unwrap_or(0).to_le_bytes().to_vec();
            bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
            bytes.extend(texts.bytes());
            let map = Charsmap::read(&bytes).unwrap_or_default();
            let mut rest = text.as_str();
            while let Some((_, after)) = map.front(rest) {
                prop_assert!(after.len() < rest.len());
                rest = after;
            }
            prop_assert!(rest.is_empty());
        }
    }
}
