use std::ops::{ControlFlow, Range};
use std::slice;

use proptest::prelude::*;

use super::bpe::{byte_to_char, text_to_bytes};
use super::merge::{Merge, Merger};
use super::meter::Meter;
use super::pretokenize::{PreTokenizer, LOOKED};
use super::specials::{Finder, Fragment, Special};

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
        let flow = pre.split(text, &mut |word| {
            words.push(word.to_owned());
            ControlFlow::Continue(())
        });
        assert!(flow.is_continue());
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
        ("lfm2", "it'S  ok1234", "it|'S| | ok|123|4"),
        ("dbrx", "it'S  ok1234", "it|'S| | ok|123|4"),
        // A mark belongs to the word.
        ("qwen2", "a\u{301}b !\u{301}", "a|\u{301}b| !\u{301}"),
        ("qwen35", "a\u{301}b !\u{301}", "a\u{301}b| !|\u{301}"),
        // Capitals in front, small letters behind; what has no case is either.
        (
            "gpt-4o",
            "HelloWorld iPhone ABCs Éa'S'x a/b//\n/",
            "Hello|World| i|Phone| ABCs| Éa'S|'x| a|/b|//\n/",
        ),
        ("gpt-4o", "中ABC ǅa 中A a中", "中|ABC| ǅa| 中|A| a中"),
        (
            "gpt-4o",
            "\u{301}AB \u{301}'s \tAB 1234",
            "\u{301}|AB| \u{301}'s| |\tAB| |123|4",
        ),
        (
            "tekken",
            "HelloWorld ABC's 123\n\n x",
            "Hello|World| ABC|'s| |1|2|3|\n\n| x",
        ),
        (
            "deepseek-llm",
            "Hi  Éa中a12!?\r\n x  ",
            "Hi| | É|a|中|a|12|!?|\r|\n| x|  ",
        ),
        // ASCII letters lie in the range of marks `:-~`, and are cut off again. What is a letter beyond
        // U+0800 is cut off from its space; U+3000 is a mark.
        (
            "deepseek-llm",
            " ḀbÉ  . \u{3000}!",
            " |Ḁ|b|É| | .| |\u{3000}|!",
        ),
        (
            "deepseek-coder",
            "Hi  éא中12 !? +\n",
            "Hi| | éא|中|1|2| !?| +|\n",
        ),
        (
            "falcon",
            "it's `12` 1234 ²+",
            "it|'|s| |`|12|`| |123|4| ²|+",
        ),
    ] {
        assert_eq!(words(name, text).join("|"), expected, "{name} {text:?}");
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_with_those_there_are() {
    let error = PreTokenizer::by_name("bloom").err();
    let error = error.map_or(String::new(), |e| e.to_string());
    assert!(error.contains("pre-tokenizer \"bloom\" is not supported"));
    for name in PreTokenizer::names() {
        assert!(error.contains(name), "{name} in {error}");
    }
}

/// Texts that a careless scanner goes over again and again.
const UNITS: &[&str] = &[
    "a",
    " ",
    "\n",
    "0",
    ".",
    "😀",
    "中",
    "\0",
    "\u{301}",
    "'",
    "'s",
    "\n ",
    "a ",
    "!\n",
    "👩\u{200d}",
    "\u{a0}",
    "<",
    "\r\n\t",
    "1a",
    "$1",
    "² ",
    "A",
    "é",
    "中A",
    "\u{3000}",
];

#[test]
fn no_pre_tokenizer_looks_at_a_byte_more_than_a_few_times() {
    const N: usize = 1 << 11;
    for name in PreTokenizer::families() {
        for (a, b) in UNITS.iter().flat_map(|a| UNITS.iter().map(move |b| (a, b))) {
            for text in [format!("{a}{b}").repeat(N), a.repeat(N) + b] {
                LOOKED.set(0);
                assert!(!words(name, &text).is_empty());
                let looked = LOOKED.get();
                // DeepSeek LLM cuts the pieces of pieces, six times over.
                assert!(looked <= 12 * text.len(), "{name} {a:?} {b:?}: {looked}");
            }
        }
    }
}

/// How often a meter was asked while `n` symbols merged, in its units.
fn merging_work(n: usize, lookup: impl Fn(u32, u32) -> Option<Merge>) -> usize {
    let mut asked = 0_usize;
    let mut go_on = || {
        asked = asked.saturating_add(1);
        true
    };
    let mut merger = Merger::default();
    (0..n).for_each(|_| merger.push(0, 1));
    let mut meter = Meter::new(&mut go_on);
    let flow = merger.run(&mut meter, |a, b| lookup(a.id, b.id), |_| {});
    assert!(flow.is_continue());
    asked << 16
}

#[test]
fn merging_takes_a_few_steps_a_symbol() {
    const N: usize = 1 << 20;
    // Runs that double: each merge feeds the next. A run that grows by one symbol a merge, up to a
    // longest. Symbols that never merge.
    let doubling = |a: u32, b: u32| {
        (a == b && a < 20).then(|| Merge {
            rank: a,
            id: a.saturating_add(1),
        })
    };
    let growing = |a: u32, b: u32| {
        (b == 0 && a < 2000).then(|| Merge {
            rank: 2000_u32.saturating_sub(a),
            id: a.saturating_add(1),
        })
    };
    for work in [
        merging_work(N, doubling),
        merging_work(N, growing),
        merging_work(N, |_, _| None),
    ] {
        assert!((N..=4 * N).contains(&work), "{work} steps for {N} symbols");
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

/// A finder of texts; those marked are control tokens. The id of one is its place.
fn finder(texts: &[(String, bool)]) -> Finder {
    let special = |(id, (text, control)): (u32, &(String, bool))| Special {
        id,
        control: *control,
        rstrip: false,
        len: text.len().try_into().unwrap_or(u32::MAX),
    };
    let specials = (0_u32..).zip(texts).map(special).collect();
    let text = |id: u32| texts.get(id as usize).map_or("", |(text, _)| text.as_str());
    Finder::new(&text, specials).unwrap_or_default()
}

/// Every fragment: the place of its token, or its text.
type Fragments = Vec<Result<usize, String>>;

/// The fragments of a text, and how often the meter asked.
fn fragments(finder: &Finder, text: &str, trusted: &[Range<usize>]) -> (Fragments, usize) {
    let (mut asked, mut out) = (0_usize, Vec::new());
    let mut go_on = || {
        asked = asked.saturating_add(1);
        true
    };
    let flow = finder.split(
        text,
        trusted,
        &mut Meter::new(&mut go_on),
        &mut |fragment, _| {
            out.push(match fragment {
                Fragment::Token(id) => Ok(id as usize),
                Fragment::Text(text) => Err(text.to_owned()),
            });
            ControlFlow::Continue(())
        },
    );
    assert!(flow.is_continue());
    (out, asked)
}

/// The same, trying every token at every place.
fn naive_fragments(texts: &[(String, bool)], text: &str, trusted: &[Range<usize>]) -> Fragments {
    let mut out: Fragments = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let start = text.len().saturating_sub(rest.len());
        let here = texts.iter().enumerate().filter(|(_, (token, control))| {
            let end = start.saturating_add(token.len());
            let inside = |range: &Range<usize>| range.start <= start && end <= range.end;
            rest.starts_with(token.as_str()) && (!control || trusted.iter().any(inside))
        });
        let longest = here.max_by_key(|(_, (token, _))| token.len());
        let taken = match (longest, out.last_mut()) {
            (Some((at, (token, _))), _) => {
                out.push(Ok(at));
                token.len()
            }
            (None, Some(Err(raw))) => {
                raw.push(c);
                c.len_utf8()
            }
            (None, _) => {
                out.push(Err(c.to_string()));
                c.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or("");
    }
    out
}

#[test]
fn special_tokens_are_found_across_windows_of_the_search() {
    let long = "é".repeat(2000);
    let texts = [
        (long.clone(), false),
        ("é".into(), true),
        ("ab".into(), true),
    ];
    // Cut at every place that a window's end may have in a token.
    for before in (1 << 16) - 4002..(1 << 16) + 2 {
        let text = format!("{}{long}ab", "x".repeat(before));
        let whole = 0..text.len();
        let expected = vec![Err("x".repeat(before)), Ok(0), Ok(2)];
        assert_eq!(
            fragments(&finder(&texts), &text, slice::from_ref(&whole)).0,
            expected
        );
    }
}

#[test]
fn the_search_for_special_tokens_is_linear_however_they_nest() {
    const LONGEST: usize = 512;
    let runs = |suffix: &str| -> Vec<(String, bool)> {
        (1..LONGEST)
            .map(|n| (format!("{}{suffix}", "a".repeat(n)), true))
            .collect()
    };
    let letters = "a".repeat(1 << 20);
    // Runs that are tokens; runs that are only with another letter behind or in front, so that
    // each is read in vain.
    let front = runs("")
        .into_iter()
        .map(|(run, control)| (format!("b{run}"), control));
    for (texts, n) in [
        (runs(""), letters.len().div_ceil(LONGEST - 1)),
        (runs("b"), 1),
        // One letter is a token, which shows only where the run that might be another ends.
        (
            vec![
                ("a".into(), true),
                (format!("{}b", "a".repeat(LONGEST)), true),
            ],
            letters.len(),
        ),
        (front.collect(), 1),
    ] {
        for text in [letters.clone(), format!("{letters}c").repeat(2)] {
            let (found, asked) =
                fragments(&finder(&texts), &text, slice::from_ref(&(0..text.len())));
            assert!(found.len() >= n);
            // A step or two for a byte, and the reading beyond each window.
            let work = asked << 16;
            assert!(
                work <= 3 * text.len(),
                "{work} steps for {} bytes",
                text.len()
            );
        }
    }
}

#[test]
fn a_long_text_can_be_left_in_the_middle() {
    let texts = [("<s>".to_owned(), true)];
    let text = "a".repeat(1 << 22);
    let mut asked = 0;
    let mut go_on = || {
        asked += 1;
        asked < 3
    };
    let flow = finder(&texts).split(&text, &[], &mut Meter::new(&mut go_on), &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(flow.is_break());
    assert_eq!(asked, 3);
}

proptest! {
    #[test]
    fn special_tokens_are_those_of_trying_every_one_everywhere(
        texts in prop::collection::btree_map("[ab]{1,6}|é|aé", prop::bool::ANY, 0..12),
        text in "[abcé]{0,40}",
        cuts in prop::collection::btree_set(0_usize..60, 0..6),
    ) {
        let texts: Vec<_> = texts.into_iter().collect();
        let cuts: Vec<_> = cuts.into_iter().map(|at| at.min(text.len())).collect();
        let trusted: Vec<_> = cuts
            .chunks_exact(2)
            .filter_map(|pair| Some(*pair.first()?..*pair.last()?))
            .filter(|range| range.start < range.end)
            .collect();
        let (found, _) = fragments(&finder(&texts), &text, &trusted);
        prop_assert_eq!(found, naive_fragments(&texts, &text, &trusted));
    }

    #[test]
    fn words_are_the_whole_text(text in "\\PC{0,40}|[ \\n\\r\\ta1.'é]{0,40}") {
        for name in PreTokenizer::families() {
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
        let mut always = || true;
        let flow = merger.run(&mut Meter::new(&mut always), |a, b| rule(&merges, a.id, b.id), |s| {
            assert_eq!(s.start, at);
            at = at.saturating_add(s.len);
            merged.push(s.id);
        });
        prop_assert!(flow.is_continue());
        prop_assert_eq!(at as usize, ids.len());
        prop_assert_eq!(merged, naive(ids, &merges));
    }
}
