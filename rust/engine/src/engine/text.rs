//! Tokens of one request → the text to hand out: whole characters only, and nothing that may turn
//! out to be the start of a stop string.

use crate::error::{Error, Result};
use crate::tokenizer::{Decoder, Tokenizer};

/// Most stop strings of a request, and most bytes of one.
pub const MAX_STOPS: usize = 64;
pub const MAX_STOP_BYTES: usize = 4096;

/// One stop string, searched byte by byte in constant time a byte (Knuth, Morris, Pratt 1977).
#[derive(Debug, Clone)]
struct Stop {
    bytes: Vec<u8>,
    /// For each prefix, the length of its longest proper prefix that is also its end.
    fallback: Vec<usize>,
    /// Bytes of the stop that the text so far ends with.
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut k = 0;
        for i in 1..bytes.len() {
            while k > 0 && bytes[i] != bytes[k] {
                k = fallback[k - 1];
            }
            k += usize::from(bytes[i] == bytes[k]);
            fallback[i] = k;
        }
        Self {
            bytes,
            fallback,
            matched: 0,
        }
    }

    /// Takes a byte of text; says whether the stop is complete.
    fn push(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

/// Refuses stop strings that cannot be searched for.
///
/// # Errors
/// [`Error::Argument`] for an empty or overlong stop string, or too many.
pub fn check_stops(stops: &[String]) -> Result<()> {
    let bad = |value: String, reason: String| Error::Argument {
        name: "stop",
        value,
        reason,
    };
    if stops.len() > MAX_STOPS {
        let value = format!("{} strings", stops.len());
        return Err(bad(value, format!("at most {MAX_STOPS} are allowed")));
    }
    for stop in stops {
        if stop.is_empty() {
            let reason = "an empty string would stop at once; leave it out";
            return Err(bad("\"\"".into(), reason.into()));
        }
        if stop.len() > MAX_STOP_BYTES {
            let value = format!("a string of {} bytes", stop.len());
            return Err(bad(value, format!("at most {MAX_STOP_BYTES} are allowed")));
        }
    }
    Ok(())
}

/// Text of one request.
#[derive(Debug, Clone)]
pub struct TextStream {
    decoder: Decoder,
    stops: Vec<Stop>,
    /// Control tokens that are text here.
    shown: Vec<u32>,
    /// Text that a stop string may begin in.
    held: String,
}

impl TextStream {
    /// Text that follows a prompt, with the spelling of the control tokens `shown` and no others.
    pub fn new(stops: &[String], shown: &[u32]) -> Self {
        Self {
            decoder: Decoder::continuation(true),
            stops: stops.iter().map(|s| Stop::new(s)).collect(),
            shown: shown.to_vec(),
            held: String::new(),
        }
    }

    /// The text that `token` makes certain, and the stop string that is now complete, if any: the
    /// text ends where that one starts. The stop that is complete first wins, of several the
    /// longest, so it does not matter how the text is cut into tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] where `token` is none of the vocabulary.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<(String, Option<String>)> {
        let text = match self.shown.contains(&token) {
            true => self.decoder.push_spelled(tokenizer, token)?,
            false => self.decoder.push(tokenizer, token)?,
        };
        Ok(self.take(text))
    }

    /// What was still held at the end of the sequence.
    pub fn finish(&mut self) -> String {
        let rest = self.decoder.finish();
        let (mut text, stopped) = self.take(rest);
        if stopped.is_none() {
            text.push_str(&std::mem::take(&mut self.held));
        }
        text
    }

    fn take(&mut self, text: String) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (text, None);
        }
        let before = self.held.len();
        self.held.push_str(&text);
        for (i, byte) in text.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|s| {
                let complete = s.push(byte);
                complete.then_some(s.bytes.len())
            });
            if let Some(length) = complete.max() {
                let start = before + i + 1 - length;
                let mut certain = std::mem::take(&mut self.held);
                let stop = certain[start..start + length].to_owned();
                certain.truncate(start);
                return (certain, Some(stop));
            }
        }
        let matched = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let certain = self.held.len() - matched;
        (self.held.drain(..certain).collect(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in the given pieces.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool, Vec<String>) {
        let owned: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut stream = TextStream::new(&owned, &[]);
        let mut given = Vec::new();
        for piece in pieces {
            let (text, stopped) = stream.take((*piece).to_owned());
            given.push(text);
            if let Some(stop) = stopped {
                assert!(stops.contains(&stop.as_str()));
                return (given.concat(), true, given);
            }
        }
        given.push(stream.finish());
        (given.concat(), false, given)
    }

    /// Every way to cut `text` in up to three pieces at character borders.
    fn cuts(text: &str) -> Vec<Vec<&str>> {
        let borders: Vec<usize> = (0..=text.len())
            .filter(|i| text.is_char_boundary(*i))
            .collect();
        let mut all = Vec::new();
        for a in &borders {
            for b in borders.iter().filter(|b| *b >= a) {
                all.push(vec![&text[..*a], &text[*a..*b], &text[*b..]]);
            }
        }
        all.push(text.split_inclusive(|_: char| true).collect());
        all
    }

    #[test]
    fn a_stop_is_found_at_every_cut() {
        let cases: &[(&[&str], &str, &str, bool)] = &[
            (&["END"], "some text END more", "some text ", true),
            (&["END"], "ENEND", "EN", true),
            (&["aab"], "aaaab", "aa", true),
            (&["abcabd"], "abcabcabd!", "abc", true),
            // Complete first wins, then the longest.
            (&["abcd", "bc"], "xabcd", "xa", true),
            (&["bcd", "abcd", "cd"], "xabcd", "x", true),
            (&["\n\n", "é!"], "ça é\né!\n\n", "ça é\n", true),
            (&["END"], "no such thing EN", "no such thing EN", false),
            (&["日本"], "日日本", "日", true),
            (&[], "anything", "anything", false),
            (&["x"], "x", "", true),
        ];
        for (stops, text, expected, stopped) in cases {
            for pieces in cuts(text) {
                let (found, was_stopped, _) = run(stops, &pieces);
                assert_eq!(
                    (found.as_str(), was_stopped),
                    (*expected, *stopped),
                    "{pieces:?}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_held_longer_than_a_stop_may_begin_in_it() {
        let (_, _, given) = run(&["END"], &["plain", " E", "N", "Q", " done E"]);
        assert_eq!(given, ["plain", " ", "", "ENQ", " done ", "E"]);
    }

    #[test]
    fn stops_that_cannot_be_searched_are_refused() {
        let refused = |stops: Vec<String>| check_stops(&stops).unwrap_err().to_string();
        assert!(refused(vec![String::new()]).contains("leave it out"));
        let message = refused(vec!["x".repeat(4097)]);
        assert!(message.contains("4097 bytes") && message.contains("at most 4096"));
        let message = refused(vec!["x".into(); 65]);
        assert!(message.contains("65 strings") && message.contains("at most 64"));
        assert_eq!(check_stops(&["ok".into()]), Ok(()));
    }
}
