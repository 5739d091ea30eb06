//! A vocabulary and a text: `flags, tokens, types, scores, merges, text`, see [`Input`].
use onegraph::gguf::{Array, Gguf, Value};
use onegraph::tokenizer::{Decoder, Tokenizer};

use super::fixture::Writer;
use super::{items, join, parts};

const PRE: [&str; 9] = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "smollm",
    "default",
    "gpt-4o",
    "qwen35",
    "deepseek-llm",
    "falcon",
];

/// What the bytes say.
struct Input {
    sentencepiece: bool,
    /// A token for each byte comes first, so that every text can be spelled.
    bytes: bool,
    add_space_prefix: bool,
    parse_special: bool,
    add_bos: bool,
    pre: &'static str,
    tokens: Vec<String>,
    /// One for each of `tokens`.
    types: Vec<i32>,
    scores: Vec<f32>,
    merges: Vec<String>,
    text: String,
}

impl Input {
    fn new(data: &[u8]) -> Self {
        let mut parts = parts(data);
        let mut next = || parts.next().unwrap_or(&[]);
        let flags = next();
        let flag = |bit: u8| flags.first().is_some_and(|f| f & (1 << bit) != 0);
        let tokens = items(next());
        let (types, scores) = (next(), next());
        let of = |bytes: &[u8], i: usize| bytes.get(i).copied();
        let n = tokens.len();
        Self {
            sentencepiece: flag(0),
            bytes: flag(1),
            add_space_prefix: flag(2),
            parse_special: flag(3),
            add_bos: flag(4),
            pre: PRE[usize::from(flags.get(1).copied().unwrap_or(0)) % PRE.len()],
            types: (0..n)
                .map(|i| of(types, i).map_or(1, |b| i32::from(b % 8)))
                .collect(),
            scores: (0..n)
                .map(|i| of(scores, i).map_or(0.0, |b| f32::from(b) - 128.0))
                .collect(),
            tokens,
            merges: items(next()),
            text: String::from_utf8_lossy(next()).into_owned(),
        }
    }

    fn gguf(&self) -> Option<Gguf> {
        let (mut tokens, mut types, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        if self.bytes {
            for byte in 0..=255u8 {
                tokens.push(if self.sentencepiece {
                    format!("<0x{byte:02X}>")
                } else {
                    alphabet(byte).to_string()
                });
                types.push(if self.sentencepiece { 6 } else { 1 });
                scores.push(0.0);
            }
        }
        tokens.extend(self.tokens.iter().cloned());
        types.extend(&self.types);
        scores.extend(&self.scores);
        let mut w = Writer::default();
        let mut set = |key: &str, value| {
            w.set(&format!("tokenizer.ggml.{key}"), value);
        };
        let model = if self.sentencepiece { "llama" } else { "gpt2" };
        set("model", Value::String(model.into()));
        set("pre", Value::String(self.pre.into()));
        set(
            "tokens",
            Value::Array(Array::String(tokens.iter().collect())),
        );
        set("token_type", Value::Array(Array::I32(types)));
        set("scores", Value::Array(Array::F32(scores)));
        let merges = self.merges.iter().collect();
        set("merges", Value::Array(Array::String(merges)));
        set("add_bos_token", Value::Bool(self.add_bos));
        set("add_space_prefix", Value::Bool(self.add_space_prefix));
        for key in ["bos_token_id", "eos_token_id", "unknown_token_id"] {
            set(key, Value::U32(0));
        }
        Gguf::parse(&w.bytes()).ok()
    }
}

/// GPT-2's character for a byte, by the rule of its publication: printable ones stand for
/// themselves, the others are numbered from U+0100 on.
fn alphabet(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(256 + before as u32).unwrap_or('\0')
}

/// Builds the tokenizer, encodes, decodes; the ways to decode must agree.
pub fn run(data: &[u8]) {
    let input = Input::new(data);
    let Some(gguf) = input.gguf() else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else {
        return;
    };
    let ids = tokenizer.encode(&input.text, true, input.parse_special);
    assert_eq!(
        ids,
        tokenizer.encode(&input.text, true, input.parse_special)
    );
    // No token is shorter than a byte; the first, and a space in front, are extra.
    assert!(ids.len() <= input.text.len() * 3 + 8, "{} ids", ids.len());
    for skip_special in [false, true] {
        let whole = tokenizer
            .decode(&ids, skip_special)
            .expect("ids of its own");
        let mut stream = Decoder::new(&tokenizer, skip_special);
        let mut pieces = String::new();
        for id in &ids {
            pieces += &stream.push(&tokenizer, *id).expect("an id of its own");
        }
        assert_eq!(pieces + &stream.finish(), whole);
    }
    let n = tokenizer.n_vocab() as u32;
    assert!(tokenizer.decode(&[n], false).is_err());
    let plain = input.types.iter().all(|t| *t == 1);
    if input.bytes && !input.sentencepiece && plain {
        let ids = tokenizer.encode(&input.text, false, false);
        let back = tokenizer.decode(&ids, false).expect("ids of its own");
        assert_eq!(back, input.text, "byte-level BPE loses nothing");
    }
}

/// Vocabularies of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for pre in 0..PRE.len() as u8 {
        seeds.push(join(&[
            &[&[2, pre]],
            &[b"ab", b"abc", "Ġa".as_bytes(), "Ġab".as_bytes(), b"<s>"],
            &[&[1, 1, 1, 1, 3]],
            &[],
            &[b"a b", b"ab c", "Ġ a".as_bytes(), "Ġa b".as_bytes()],
            &["abc ab  a\n\n123 don't 世界 🦙 <s>é".as_bytes()],
        ]));
    }
    seeds.push(join(&[
        &[&[0b1_1111, 0]],
        &[
            b"<unk>",
            b"<s>",
            "▁".as_bytes(),
            b"a",
            b"b",
            b"ab",
            "▁ab".as_bytes(),
        ],
        &[&[2, 3, 1, 1, 1, 1, 1]],
        &[&[128, 128, 100, 90, 91, 120, 125]],
        &[],
        &["ab  abab <s> é 🦙".as_bytes()],
    ]));
    seeds.push(join(&[
        &[&[0b0_1000, 4]],
        &[b"a", b"aa", b"aaaa", b"<x>", b"<x><y>"],
        &[&[1, 1, 1, 4, 3]],
        &[],
        &[b"a a", b"aa aa"],
        &[b"aaaaaaaaaaaaaaaaaaaaaaa<x><y><x>aaa"],
    ]));
    seeds
}
