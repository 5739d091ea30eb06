//! Which special tokens a text of given and own parts spells, against the plainest way to find them.
use std::ops::Range;

use onegraph::gguf::{Array, Gguf, Value};
use onegraph::tokenizer::Tokenizer;
use proptest::prelude::*;

use crate::fixture::Writer;

/// The characters of all texts here; each is a token of its own, by its place. The last stands for
/// what no token spells.
const ALPHABET: &str = "ab<|>é?";
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Special tokens: text and type. Their ids follow those of the alphabet.
type Specials = Vec<(String, i32)>;

fn tokenizer(specials: &Specials) -> Tokenizer {
    let mut tokens: Vec<String> = ALPHABET.chars().map(String::from).collect();
    let mut types = vec![1; tokens.len()];
    for (text, ty) in specials {
        tokens.push(text.clone());
        types.push(*ty);
    }
    let scores = vec![0.0; tokens.len()];
    let mut w = Writer::default();
    for (key, value) in [
        ("model", Value::String("llama".into())),
        (
            "tokens",
            Value::Array(Array::String(tokens.iter().collect())),
        ),
        ("token_type", Value::Array(Array::I32(types))),
        ("scores", Value::Array(Array::F32(scores))),
        ("add_space_prefix", Value::Bool(false)),
        ("unknown_token_id", Value::U32(6)),
    ] {
        w.set(&format!("tokenizer.ggml.{key}"), value);
    }
    Tokenizer::from_gguf(&Gguf::parse(&w.bytes()).expect("a file")).expect("a vocabulary")
}

/// At each place the longest special token that starts there and may, else the character.
fn naive(specials: &Specials, text: &str, given: &[Range<usize>]) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let may = |(_, (special, ty)): &(usize, &(String, i32))| {
            let end = at + special.len();
            let touches = given.iter().any(|g| g.start < end && at < g.end);
            text[at..].starts_with(special.as_str()) && (*ty == USER_DEFINED || !touches)
        };
        let found = specials.iter().enumerate().filter(may);
        match found.max_by_key(|(_, (special, _))| special.len()) {
            Some((n, (special, _))) => {
                ids.push((ALPHABET.chars().count() + n) as u32);
                at += special.len();
            }
            None => {
                let c = text[at..].chars().next().expect("a character");
                ids.push(ALPHABET.chars().position(|a| a == c).expect("a letter") as u32);
                at += c.len_utf8();
            }
        }
    }
    ids
}

/// Every other stretch between these places, which are in characters.
fn ranges(text: &str, cuts: &[usize]) -> Vec<Range<usize>> {
    let places: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut % places.len()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
}

fn specials() -> impl Strategy<Value = Specials> {
    let special = (
        "[ab<|>é]{2,5}",
        prop_oneof![Just(CONTROL), Just(USER_DEFINED)],
    );
    prop::collection::vec(special, 0..8).prop_map(|mut specials| {
        specials.sort();
        specials.dedup_by(|a, b| a.0 == b.0);
        specials
    })
}

fn encode(tokenizer: &Tokenizer, text: &str, given: &[Range<usize>]) -> Vec<u32> {
    let ids = tokenizer.encode_given(text, false, given, &mut || true);
    ids.expect("nobody ended it")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_text_of_parts_spells_the_special_tokens_that_it_may(
        specials in specials(),
        text in "[ab<|>é]{0,24}",
        cuts in prop::collection::vec(0_usize..25, 0..8),
    ) {
        let given = ranges(&text, &cuts);
        let ids = encode(&tokenizer(&specials), &text, &given);
        prop_assert_eq!(ids, naive(&specials, &text, &given));
    }

    #[test]
    fn a_text_all_given_or_all_trusted_is_that_of_parse_special(
        specials in specials(),
        text in "[ab<|>é]{0,24}",
    ) {
        let tokenizer = tokenizer(&specials);
        for parse_special in [false, true] {
            let given: Vec<_> = (!parse_special).then_some(0..text.len()).into_iter().collect();
            let ids = tokenizer.encode(&text, false, parse_special);
            prop_assert_eq!(&ids, &encode(&tokenizer, &text, &given));
            prop_assert_eq!(ids, naive(&specials, &text, &given));
        }
    }
}

#[test]
fn a_refused_token_hides_none_beside_it() {
    let specials = vec![
        ("<|a|>".to_owned(), CONTROL),
        ("|><|b|>".to_owned(), CONTROL),
        ("<|b|>".to_owned(), CONTROL),
        ("<|b|>b".to_owned(), CONTROL),
    ];
    let tokenizer = tokenizer(&specials);
    let names = |text: &str, given: Range<usize>| {
        let ids = encode(&tokenizer, text, &[given]);
        let special = |id: &u32| {
            specials
                .get((*id as usize).wrapping_sub(7))
                .map(|s| s.0.clone())
        };
        ids.iter().filter_map(special).collect::<Vec<_>>()
    };
    // What is given ends in the front of a token, and the template goes on with its end.
    assert_eq!(names("a<|a|><|b|>", 0..4), ["|><|b|>"]);
    assert_eq!(names("a<|a|><|b|>", 0..5), ["<|b|>"]);
    assert_eq!(names("<<|a|>", 0..1), ["<|a|>"]);
    // The longest one holds a byte that was given, the shorter one does not.
    assert_eq!(names("<|b|>b", 5..6), ["<|b|>"]);
    assert_eq!(names("<|b|>b", 0..0), ["<|b|>b"]);
    assert_eq!(names("<|b|>b", 2..3), Vec::<String>::new());
}

#[test]
fn ranges_beyond_the_text_or_out_of_order_are_survived() {
    let tokenizer = tokenizer(&vec![("<|a|>".to_owned(), CONTROL)]);
    for given in [
        &[(9, usize::MAX)][..],
        &[(5, 2), (1, 1)],
        &[(7, 9), (0, 3), (2, 99)],
    ] {
        let given: Vec<_> = given.iter().map(|(start, stop)| *start..*stop).collect();
        encode(&tokenizer, "<|a|>a", &given);
    }
}
