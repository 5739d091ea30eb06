//! Keys of open objects: the grammar knows the names in a schema; all others are known only from the text
//! written so far. Keys are compared after unescaping.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::tokenizer::{TokenType, Tokenizer};

/// How a grammar begins whose texts have JSON in them: behind this the markers that it stands behind.
const HEAD: &str = "# keys: ";

/// Tokens that can be taken back.
const KEPT: usize = 1 << 10;

/// The first line of a grammar whose texts have JSON behind one of these, or at their beginning.
pub(super) fn head(markers: &[&str]) -> String {
    let markers: Vec<&str> = markers.iter().copied().filter(|m| !m.is_empty()).collect();
    format!("{HEAD}{}\n", serde_json::Value::from(markers))
}

/// Tokens with quotes in them, of which alone a key can end.
pub(super) fn with_quotes(tokenizer: &Tokenizer) -> Vec<(u32, usize)> {
    let ids = 0..u32::try_from(tokenizer.vocab().len()).unwrap_or(u32::MAX);
    let quotes = |id: u32| match tokenizer.vocab().token_type(id) {
        TokenType::Control | TokenType::Unused | TokenType::Unknown => 0,
        _ => {
            let piece = tokenizer.piece(id).unwrap_or_default();
            piece.iter().filter(|byte| **byte == b'"').count()
        }
    };
    ids.map(|id| (id, quotes(id)))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Where a text is.
#[derive(Clone, PartialEq)]
enum Place {
    /// In front of JSON: what was written last.
    Before(Vec<u8>),
    /// Between the parts of JSON.
    Between,
    /// In a string that is a value: whether what comes is escaped.
    Value(bool),
    /// In a key: the same, and what it has.
    Key(bool, Vec<u8>),
}

/// The keys of an object; `None` for a list.
type Frame = Option<Arc<HashSet<Vec<u8>>>>;

#[derive(Clone)]
struct State {
    place: Place,
    open: Vec<Frame>,
    /// Whether a string would be a key.
    key_is_due: bool,
}

/// Follows the keys of a text.
#[derive(Clone)]
pub(super) struct Keys {
    markers: Arc<[Vec<u8>]>,
    now: State,
    /// As it was before each of the last tokens.
    was: VecDeque<State>,
}

impl Keys {
    /// Of a text that is JSON.
    pub fn of_json() -> Self {
        Self::new(Vec::new())
    }

    /// Of a text of a grammar that says where JSON is.
    pub fn of_grammar(text: &str) -> Option<Self> {
        let (first, _) = text.strip_prefix(HEAD)?.split_once('\n')?;
        let markers: Vec<String> = serde_json::from_str(first).ok()?;
        Some(Self::new(
            markers.into_iter().map(String::into_bytes).collect(),
        ))
    }

    fn new(markers: Vec<Vec<u8>>) -> Self {
        let place = match markers.is_empty() {
            true => Place::Between,
            false => Place::Before(Vec::new()),
        };
        let now = State {
            place,
            open: Vec::new(),
            key_is_due: false,
        };
        Self {
            markers: markers.into(),
            now,
            was: VecDeque::new(),
        }
    }

    /// Whether no object of a text has a key twice.
    pub fn fits(&self, text: &[u8]) -> bool {
        let mut state = self.now.clone();
        text.iter().all(|byte| state.take(*byte, &self.markers))
    }

    /// Goes on by a token; says whether no key was there already.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        self.was.push_back(self.now.clone());
        if self.was.len() > KEPT {
            self.was.pop_front();
        }
        let mut fits = true;
        for byte in bytes {
            fits = self.now.take(*byte, &self.markers) && fits;
        }
        fits
    }

    /// Goes back by that many tokens; says whether it could.
    pub fn back(&mut self, tokens: usize) -> bool {
        for _ in 0..tokens {
            match self.was.pop_back() {
                Some(was) => self.now = was,
                None => return false,
            }
        }
        true
    }

    /// Takes tokens out of those that are allowed, a bit each, that would end a key that is there
    /// already.
    pub fn restrict(&self, allowed: &mut [u32], tokenizer: &Tokenizer, quotes: &[(u32, usize)]) {
        let in_key = match &self.now.place {
            Place::Before(_) => return,
            Place::Key(..) => true,
            _ => false,
        };
        for (token, quotes) in quotes {
            let bit = 1u32.wrapping_shl(token % u32::BITS);
            let Some(word) = allowed.get_mut((token / u32::BITS) as usize) else {
                continue;
            };
            // Where no key has begun, one ends with the second.
            let ends = (in_key || *quotes > 1) && *word & bit != 0;
            if ends && !self.fits(tokenizer.piece(*token).unwrap_or_default()) {
                *word &= !bit;
            }
        }
    }
}

impl State {
    /// Goes on by a byte; says whether no key was there already.
    fn take(&mut self, byte: u8, markers: &[Vec<u8>]) -> bool {
        match &mut self.place {
            Place::Before(last) => {
                let first = last.is_empty() && !byte.is_ascii_whitespace();
                if first && matches!(byte, b'{' | b'[') {
                    self.place = Place::Between;
                    return self.take(byte, markers);
                }
                if !(last.is_empty() && byte.is_ascii_whitespace()) {
                    last.push(byte);
                }
                if markers.iter().any(|marker| last.ends_with(marker)) {
                    self.place = Place::Between;
                } else if last.len() > 1024 {
                    last.drain(..512);
                }
            }
            Place::Value(true) => self.place = Place::Value(false),
            Place::Value(false) => match byte {
                b'\\' => self.place = Place::Value(true),
                b'"' => self.place = Place::Between,
                _ => {}
            },
            Place::Key(escaped, key) => {
                if byte == b'"' && !*escaped {
                    let key = read(key);
                    self.place = Place::Between;
                    self.key_is_due = false;
                    return match self.open.last_mut() {
                        Some(Some(known)) => Arc::make_mut(known).insert(key),
                        _ => true,
                    };
                }
                *escaped = byte == b'\\' && !*escaped;
                key.push(byte);
            }
            Place::Between => match byte {
                b'"' if self.key_is_due => self.place = Place::Key(false, Vec::new()),
                b'"' => self.place = Place::Value(false),
                b'{' | b'[' => {
                    self.key_is_due = byte == b'{';
                    self.open.push((byte == b'{').then(Arc::default));
                }
                b'}' | b']' => {
                    self.open.pop();
                    self.key_is_due = false;
                }
                b',' => self.key_is_due = matches!(self.open.last(), Some(Some(_))),
                _ => {}
            },
        }
        true
    }
}

/// A text of JSON whose keys are spelled as a grammar spells them, without escapes that are not needed.
pub(super) fn respelled(text: &str) -> String {
    let mut state = Keys::of_json().now;
    let mut out = Vec::new();
    let mut begun = 0;
    for byte in text.bytes() {
        let was_key = matches!(state.place, Place::Key(..));
        state.take(byte, &[]);
        out.push(byte);
        match (was_key, &state.place) {
            (false, Place::Key(..)) => begun = out.len(),
            (true, Place::Between) => {
                let key = out
                    .get(begun..out.len().saturating_sub(1))
                    .unwrap_or_default();
                // One that is none, such as a line break as it stands, is left for the grammar to refuse.
                if let Some(key) = decoded(key) {
                    out.truncate(begun.saturating_sub(1));
                    out.extend(serde_json::Value::from(key).to_string().bytes());
                }
            }
            _ => {}
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.into())
}

/// What a key is read as.
fn read(key: &[u8]) -> Vec<u8> {
    if !key.contains(&b'\\') {
        return key.to_vec();
    }
    decoded(key).map_or_else(|| key.to_vec(), String::into_bytes)
}

/// The text of a key, if it is one of JSON.
fn decoded(key: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", key, b"\""].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_has_a_key_twice_however_it_is_spelled() {
        let keys = Keys::of_json();
        for (text, fits) in [
            (
                r#"{"a": 1, "b": {"a": [{"a": 1}, {"a": 2}]}, "c": "a", "d": "a"}"#,
                true,
            ),
            (r#"{"a": 1, "\u0061": 2}"#, false),
            (r#"[{"x": {"\"": 1, "\u0022": 2}}]"#, false),
            (r#"{"": 1, "": 2}"#, false),
            (r#"{"a": "{\"a\": 1", "b": "\\", "c": 1}"#, true),
            (r#""{\"a\", \"a\"""#, true),
        ] {
            assert_eq!(keys.fits(text.as_bytes()), fits, "{text}");
        }
    }

    #[test]
    fn keys_are_spelled_as_a_grammar_spells_them() {
        for (text, expected) in [
            (
                r#"{"\u0061\u0022": "\u0061", "b": [{"\u00e9": 1}]}"#,
                r#"{"a\"": "\u0061", "b": [{"é": 1}]}"#,
            ),
            (r#"["\u0061", "x": {"a"#, r#"["\u0061", "x": {"a"#),
            // What is no key stays as it is: no grammar has it.
            ("{\"a\nb\": 1}", "{\"a\nb\": 1}"),
            (r#"{"\x": 1, "\ud800": 2}"#, r#"{"\x": 1, "\ud800": 2}"#),
        ] {
            assert_eq!(respelled(text), expected);
        }
    }

    #[test]
    fn json_stands_behind_a_marker_or_at_the_beginning() {
        let grammar = head(&["</think>", ""]) + "start: \"a\"";
        let keys = Keys::of_grammar(&grammar);
        let fits = |text: &str| keys.as_ref().is_some_and(|keys| keys.fits(text.as_bytes()));
        assert!(fits(r#"<think>{"a": 1, "a": 2}</think>{"a": 1}"#));
        assert!(!fits(r#"<think>{</think> {"a": 1, "a": 2}"#));
        assert!(!fits(r#" {"a": 1, "a": 2}"#));
        assert!(Keys::of_grammar("start: \"a\"").is_none());
    }

    #[test]
    fn tokens_are_taken_back() {
        let mut keys = Keys::of_json();
        assert!(keys.take(br#"{"a": 1, "#) && keys.take(br#""a"#));
        assert!(!keys.take(br#"""#));
        assert!(keys.back(2) && keys.take(br#""b": {"a": 1}"#));
        assert!(!keys.take(br#", "b""#));
        assert!(!keys.back(9));
    }
}
