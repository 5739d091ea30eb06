use proptest::prelude::*;

use super::bpe::{byte_to_char, text_to_bytes};
use super::merge::{Merge, Merger};
use super::pretokenize::PreTokenizer;

#[test]
fn the_byte_alphabet_is_a_bijection() {
    let mut seen = std::collections::HashSet::new();
    for byte in 0..=255_u8 {
        let c = byte_to_char(byte);
        assert!(seen.insert(c), "{byte} and another are {c:?}");
        assert_eq!(text_to_bytes(&c.to_string()), Some(vec![byte]));
    }
    for (byte, c) in [
        (b' ', 'Ġ'),
        (b'\n', 'Ċ'),
        (0x7F, 'ġ'),
        (0xA0, 'ł'),
        (0xAD, 'Ń'),
    ] {
        assert_eq!(byte_to_char(byte), c);
    }
    assert_eq!(text_to_bytes("a中"), None);
}

fn words(name: &str, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    if let Ok(pre) = PreTokenizer::by_name(name) {
        pre.split(text, &mut |word| words.push(word.to_owned()));
    }
    words
}

#[test]
fn words_of_each_family() {
    for (name, text, expected) in [
        ("gpt-2", "it's  ok12!\n\n x", "it|'s| | ok|12|!|\n\n| x"),
        ("smollm", "it's  ok12!\n\n x", "it|'s| | ok|1|2|!|\n\n| x"),
        (
            "llama3",
            "it'S  ok1234!\n\n x",
            "it|'S| | ok|123|4|!\n\n| x",
        ),
        (
            "qwen2",
            "it'S  ok1234!\n\n x",
            "it|'S| | ok|1|2|3|4|!\n\n| x",
        ),
        (
            "default",
            "it's  ok1234!\n\n x",
            "it|'|s| | ok|123|4|!|\n\n| x",
        ),
        ("llama3", " \n\t\n  a\r\n", " \n\t\n| | a|\r\n"),
        ("llama3", "\ta -b ::\n", "\ta| -|b| ::\n"),
        ("gpt-2", "a   ", "a|   "),
        ("default", "$1 2²3", "$|1| |2²3"),
    ] {
        assert_eq!(words(name, text).join("|"), expected, "{name} {text:?}");
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_with_those_there_are() {
    let error = PreTokenizer::by_name("tekken").err();
    let error = error.map_or(String::new(), |e| e.to_string());
    assert!(error.contains("pre-tokenizer \"tekken\" is not supported"));
    for name in PreTokenizer::names() {
        assert!(error.contains(name), "{name} in {error}");
    }
}

type Rule = (u32, u32, u32);

/// Rank and result of the merge of two symbols.
fn rule(merges: &[Rule], a: u32, b: u32) -> Option<Merge> {
    let mut ranked = (0_u32..).zip(merges);
    let (rank, (_, _, id)) = ranked.find(|(_, m)| (m.0, m.1) == (a, b))?;
    Some(Merge { rank, id: *id })
}

/// The same merges, found by looking at every pair again each time.
fn naive(mut ids: Vec<u32>, merges: &[Rule]) -> Vec<u32> {
    loop {
        let pairs = ids.iter().zip(ids.iter().skip(1)).enumerate();
        let best = pairs
            .filter_map(|(at, (a, b))| rule(merges, *a, *b).map(|m| (m.rank, at, m.id)))
            .min();
        let Some((_, at, id)) = best else { return ids };
        ids.splice(at..=at.saturating_add(1), [id]);
    }
}

proptest! {
    #[test]
    fn words_are_the_whole_text(text in "\\PC{0,40}|[ \\n\\r\\ta1.'é]{0,40}") {
        for name in PreTokenizer::names() {
            let words = words(name, &text);
            prop_assert!(words.iter().all(|w| !w.is_empty()));
            prop_assert_eq!(words.concat(), text.clone());
        }
    }

    #[test]
    fn merges_are_those_of_looking_at_every_pair(
        ids in prop::collection::vec(0_u32..6, 0..60),
        merges in prop::collection::vec((0_u32..12, 0_u32..12, 6_u32..12), 0..12),
    ) {
        let mut merger = Merger::default();
        let mut merged = Vec::new();
        for id in &ids {
            merger.push(*id, 1);
        }
        let mut at = 0;
        merger.run(|a, b| rule(&merges, a.id, b.id), |s| {
            assert_eq!(s.start, at);
            at = at.saturating_add(s.len);
            merged.push(s.id);
        });
        prop_assert_eq!(at as usize, ids.len());
        prop_assert_eq!(merged, naive(ids, &merges));
    }
}
