//! Damage of every kind to good files: each gives a typed error or a model that is valid.
use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};

use crate::fixture::{every_type, split, tiny, Writer};
use crate::load::load;
use crate::mutate::for_each;

/// Small models with all that the format has. Headers are at most 16 KiB.
fn fixtures() -> Vec<(&'static str, Writer)> {
    let mut v2 = tiny("llama");
    v2.version = 2;
    v2.metadata.extend(every_type());
    let mut v3 = tiny("qwen2");
    v3.metadata.extend(every_type());
    v3.alignment = 1;
    v3.set("general.alignment", Value::U32(1));
    let mut spm = tiny("qwen3");
    spm.set("tokenizer.ggml.model", Value::String("llama".into()));
    let tokens = ["<unk>", "<s>", "</s>", "<0x41>", "▁a", "b"]
        .into_iter()
        .collect();
    spm.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let kinds = Array::I32(vec![2, 3, 3, 6, 1, 1]);
    spm.set("tokenizer.ggml.token_type", Value::Array(kinds));
    let scores = Array::F32(vec![0.0, 0.0, 0.0, 0.0, -1.0, -2.0]);
    spm.set("tokenizer.ggml.scores", Value::Array(scores));
    let shard = split(tiny("llama"), 3).remove(0);
    vec![("v2", v2), ("v3", v3), ("spm", spm), ("shard", shard)]
}

/// Whether the file is accepted. Anything else must be an error that can be shown.
#[track_caller]
fn survives(bytes: &[u8], what: impl Fn() -> String) -> bool {
    let Err(error) = load(bytes) else { return true };
    assert_eq!(error.kind(), Kind::Model, "{}: {error}", what());
    let text = error.to_string();
    assert!(text.len() < 1000, "{}: {} bytes", what(), text.len());
    assert!(!text.chars().any(char::is_control), "{}: {text:?}", what());
    false
}

#[test]
fn every_truncation() {
    for (name, w) in fixtures() {
        let file = w.bytes();
        let gguf = Gguf::parse(&file).unwrap();
        let end = gguf.tensors.iter().map(|t| t.offset + t.bytes).max();
        let start = gguf.tensors.iter().map(|t| t.offset).min().unwrap();
        // A file that ends with its header is valid: it says all but the weights.
        let header = w.parts().0.len()..=start;
        for length in 0..file.len() {
            let accepted = survives(&file[..length], || format!("{name} cut to {length}"));
            // A shard alone is no whole model, however long.
            let whole = name != "shard" && (Some(length) >= end || header.contains(&length));
            assert_eq!(
                accepted, whole,
                "{name} cut to {length}, its tensors end at {end:?}"
            );
        }
        assert_eq!(survives(&file, || name.into()), name != "shard");
    }
}

#[test]
fn every_flip_of_a_bit_in_the_header() {
    for (name, w) in fixtures() {
        let (header, _) = w.parts();
        assert!(header.len() <= 16 << 10, "{name}: {} bytes", header.len());
        let mut file = w.bytes();
        let mut accepted = 0;
        for at in 0..header.len() {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                accepted += usize::from(survives(&file, || format!("{name} {at}.{bit}")));
                file[at] ^= 1 << bit;
            }
        }
        // Flips in free text, in values nobody reads and in numbers within range are valid; those
        // in lengths, types and places are not.
        assert!(accepted < header.len() * 4, "{name}: {accepted} accepted");
        assert!(name == "shard" || accepted > 0, "{name}");
    }
}

#[test]
fn mutated_headers() {
    let files: Vec<(Vec<u8>, usize)> = fixtures()
        .into_iter()
        .map(|(_, w)| (w.bytes(), w.parts().0.len()))
        .collect();
    for_each(&files, 30_000, |file, what| {
        survives(file, || format!("{what:?}"));
    });
}
