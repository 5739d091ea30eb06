//! Damage of every kind to good files: each gives a typed error or a model that is valid, at once.
use std::time::{Duration, Instant};

use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::fixture::{every_type, split, tiny, Writer};
use crate::load::load;

const LIMIT: Duration = Duration::from_millis(50);

/// Small models with all that the format has. Headers are at most 16 KiB.
fn fixtures() -> Vec<(&'static str, Writer)> {
    let mut v2 = tiny("llama");
    v2.version = 2;
    v2.metadata.extend(every_type());
    let mut v3 = tiny("qwen2");
    v3.metadata.extend(every_type());
    v3.alignment = 8;
    v3.set("general.alignment", Value::U32(8));
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

/// Whether the file is accepted. Anything else must be an error that can be shown, within the time.
#[track_caller]
fn survives(bytes: &[u8], what: impl Fn() -> String) -> bool {
    let mut fastest = Duration::MAX;
    // A busy machine may take our turn away once, not thrice.
    for _ in 0..3 {
        let start = Instant::now();
        let result = load(bytes);
        fastest = fastest.min(start.elapsed());
        if fastest < LIMIT {
            let Err(error) = result else { return true };
            assert_eq!(error.kind(), Kind::Model, "{}: {error}", what());
            let text = error.to_string();
            assert!(text.len() < 1000, "{}: {} bytes", what(), text.len());
            assert!(!text.chars().any(char::is_control), "{}: {text:?}", what());
            return false;
        }
    }
    panic!("{}: {fastest:?}", what());
}

#[test]
fn every_truncation() {
    for (name, w) in fixtures() {
        let file = w.bytes();
        let gguf = Gguf::parse(&file).unwrap();
        let end = gguf.tensors.iter().map(|t| t.offset + t.bytes).max();
        for length in 0..file.len() {
            let accepted = survives(&file[..length], || format!("{name} cut to {length}"));
            // A shard alone is no whole model, however long.
            let whole = name != "shard" && Some(length) >= end;
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

#[derive(Debug, Clone)]
enum Mutation {
    Flip {
        at: usize,
        bit: u8,
    },
    Byte {
        at: usize,
        value: u8,
    },
    /// A number that breaks arithmetic, 4 or 8 bytes of it.
    Number {
        at: usize,
        value: u64,
        wide: bool,
    },
    Remove {
        at: usize,
        n: usize,
    },
    Repeat {
        at: usize,
        n: usize,
    },
    /// Bytes from elsewhere in the file.
    Copy {
        from: usize,
        to: usize,
        n: usize,
    },
    Insert {
        at: usize,
        value: u8,
        n: usize,
    },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::{Byte, Copy, Flip, Insert, Number, Remove, Repeat};
    let at = || 0..16_384usize;
    let some = || 1..64usize;
    let edge = prop_oneof![
        (0..64u32).prop_map(|shift| 1u64 << shift),
        (0..64u32).prop_map(|shift| u64::MAX >> shift),
        (0..64u32).prop_map(|shift| u64::MAX << shift),
        (0..300u64),
    ];
    prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Flip { at, bit }),
        2 => (at(), any::<u8>()).prop_map(|(at, value)| Byte { at, value }),
        4 => (at(), edge, any::<bool>())
            .prop_map(|(at, value, wide)| Number { at, value, wide }),
        1 => (at(), some()).prop_map(|(at, n)| Remove { at, n }),
        1 => (at(), some()).prop_map(|(at, n)| Repeat { at, n }),
        1 => (at(), at(), some()).prop_map(|(from, to, n)| Copy { from, to, n }),
        1 => (at(), any::<u8>(), some()).prop_map(|(at, value, n)| Insert { at, value, n }),
    ]
}

fn mutate(file: &mut Vec<u8>, mutation: &Mutation, header: usize) {
    // Places are spread over the header, whatever its length.
    let place = |file: &[u8], at: usize| (at % header).min(file.len().saturating_sub(1));
    let part = |file: &[u8], at: usize, n: usize| {
        let at = place(file, at);
        at..(at + n).min(file.len())
    };
    if file.is_empty() {
        return;
    }
    match *mutation {
        Mutation::Flip { at, bit } => {
            let at = place(file, at);
            file[at] ^= 1 << bit;
        }
        Mutation::Byte { at, value } => {
            let at = place(file, at);
            file[at] = value;
        }
        Mutation::Number { at, value, wide } => {
            let range = part(file, at, if wide { 8 } else { 4 });
            let n = range.len();
            file[range].copy_from_slice(&value.to_le_bytes()[..n]);
        }
        Mutation::Remove { at, n } => drop(file.drain(part(file, at, n))),
        Mutation::Repeat { at, n } => {
            let range = part(file, at, n);
            let copy = file[range.clone()].to_vec();
            file.splice(range.start..range.start, copy);
        }
        Mutation::Copy { from, to, n } => {
            let (from, to) = (part(file, from, n), part(file, to, n));
            let copy = file[from].to_vec();
            let n = copy.len().min(to.len());
            file[to][..n].copy_from_slice(&copy[..n]);
        }
        Mutation::Insert { at, value, n } => {
            let at = place(file, at);
            file.splice(at..at, std::iter::repeat_n(value, n));
        }
    }
}

#[test]
fn mutated_headers() {
    let files: Vec<(usize, Vec<u8>)> = fixtures()
        .into_iter()
        .map(|(_, w)| (w.parts().0.len(), w.bytes()))
        .collect();
    let config = Config {
        cases: 30_000,
        failure_persistence: None,
        ..Config::default()
    };
    // One seed: the same files everywhere. The coverage-guided targets in tests/fuzz roam.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mutations = prop::collection::vec(mutation(), 1..6);
    TestRunner::new_with_rng(config, rng)
        .run(&(0..files.len(), mutations), |(which, mutations)| {
            let (header, mut file) = files[which].clone();
            mutations.iter().for_each(|m| mutate(&mut file, m, header));
            survives(&file, || format!("file {which}, {mutations:?}"));
            Ok(())
        })
        .unwrap();
}
