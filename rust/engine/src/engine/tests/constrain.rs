//! Texts that are held to a form.
use proptest::prelude::*;

use super::*;
use crate::grammar::Constraint;

const SCHEMA: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["first", "second"]},
    "many": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3}
}, "required": ["name", "kind", "many"], "additionalProperties": false}"#;

/// Constraints of every kind, of which some leave one way to go on for many tokens.
pub fn constraints() -> impl Strategy<Value = Constraint> {
    prop_oneof![
        Just(Constraint::Schema(SCHEMA.into())),
        Just(Constraint::Regex(
            "(the same words again and again )+[a-z]{1,4}".into()
        )),
        Just(Constraint::Grammar(
            "root ::= \"(\" (root | [0-9])* \")\"".into()
        )),
        Just(Constraint::Choice(vec![
            "one of two".into(),
            "one of three".into()
        ])),
    ]
}

fn asked(constraint: Constraint, seed: u64, max_tokens: usize) -> Request {
    let mut request = request("abc", max_tokens, seed);
    request.ignore_eos = false;
    request.constraint = Some(constraint);
    request
}

fn run(engine: &Engine, request: &Request) -> Piece {
    let ticket = engine.submit(request, Duration::from_secs(9));
    finish(&ticket.unwrap().unwrap()).unwrap()
}

fn fits(constraint: &Constraint, text: &str) -> bool {
    match constraint {
        Constraint::Schema(_) => {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let name = value["name"].as_str().unwrap().chars().count() <= 5;
            let kind = ["first", "second"].contains(&value["kind"].as_str().unwrap());
            let many = value["many"].as_array().unwrap();
            name && kind
                && many.len() <= 3
                && many.iter().all(|n| n.as_u64().unwrap() < 100)
                && value.as_object().unwrap().len() == 3
        }
        Constraint::Regex(_) => {
            let last = text.trim_start_matches("the same words again and again ");
            last.len() < text.len()
                && (1..=4).contains(&last.len())
                && last.bytes().all(|b| b.is_ascii_lowercase())
        }
        Constraint::Grammar(_) => {
            let mut open = 0i32;
            text.starts_with('(')
                && text.char_indices().all(|(at, c)| {
                    open += i32::from(c == '(') - i32::from(c == ')');
                    (open > 0 || at + 1 == text.len()) && "(0123456789)".contains(c)
                })
        }
        Constraint::Choice(texts) => texts.iter().any(|each| each == text),
        Constraint::Answer(_) => unreachable!("none is asked for here"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_text_that_ends_fits_and_drafts_of_what_is_sure_change_nothing(
        constraint in constraints(), seed in 0u64..1000, greedy in any::<bool>(),
    ) {
        let faults = |drops_drafts| Faults { drops_drafts, ..Faults::default() };
        let (with, without) = (engine_with(1, faults(false)), engine_with(1, faults(true)));
        let mut request = asked(constraint.clone(), seed, 200);
        if greedy {
            request.sampling.temperature = 0.0;
        }
        let found = run(&with, &request);
        let plain = run(&without, &request);
        prop_assert_eq!(&found.token_ids, &plain.token_ids);
        prop_assert_eq!(&found.text, &plain.text);
        if found.finished.unwrap().reason == FinishReason::Stop {
            prop_assert!(fits(&constraint, &found.text), "{:?}", found.text);
        }
    }
}

#[test]
fn what_is_sure_takes_few_steps() {
    let faults = Faults::default();
    let log = faults.log.clone();
    let engine = engine_with(1, faults);
    let text = "a text of which every letter is known before it is drawn";
    let found = run(
        &engine,
        &asked(Constraint::Choice(vec![text.into()]), 1, 200),
    );
    assert_eq!(found.text, text);
    let steps = log
        .lock()
        .unwrap()
        .iter()
        .filter(|did| **did == Did::Step)
        .count();
    assert!(steps <= 4, "{steps} steps of {} tokens", text.len());
}

#[test]
fn a_constraint_that_is_none_is_refused_before_it_waits() {
    let engine = engine_with(1, Faults::default());
    for (constraint, expected) in [
        (
            Constraint::Schema("{".into()),
            "schema = {: is not JSON: EOF",
        ),
        (
            Constraint::Schema("3".into()),
            "schema = 3: a JSON schema must be an object",
        ),
        (
            Constraint::Schema("false".into()),
            "schema = false: something that nothing matches",
        ),
        (
            Constraint::Schema(r#"{"type": "tree"}"#.into()),
            "type \"tree\" is not supported",
        ),
        (Constraint::Regex("(".into()), "regex = (: "),
        (
            Constraint::Grammar("start: missing".into()),
            "grammar = start: missing: ",
        ),
        (
            Constraint::Grammar("root ::= a".into()),
            "GBNF: the rule a is used but not defined",
        ),
        (
            Constraint::Choice(Vec::new()),
            "choice = 0 texts: must be from 1 to 4096 texts",
        ),
        (
            Constraint::Regex("a".repeat(1 << 20)),
            "has 1048576 bytes; at most 262144 are allowed",
        ),
    ] {
        let error = engine
            .submit(&asked(constraint, 1, 9), Duration::from_secs(9))
            .err()
            .unwrap();
        assert_eq!(error.kind(), crate::error::Kind::Argument);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut request = asked(Constraint::Regex("a".into()), 1, 9);
    request.ignore_eos = true;
    let error = engine
        .submit(&request, Duration::from_secs(9))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("cannot be combined with a schema"),
        "{error}"
    );
}

#[test]
fn a_bias_that_leaves_nothing_allowed_fails_its_request_alone() {
    let engine = engine_with(2, Faults::default());
    let mut request = asked(Constraint::Regex("[a-c]+".into()), 1, 30);
    for id in b"abc" {
        let bias = &mut request.sampling.logit_bias;
        bias.insert(u32::from(*id), f32::NEG_INFINITY);
    }
    let other = asked(Constraint::Choice(vec!["fine".into()]), 2, 30);
    let ticket = engine
        .submit(&request, Duration::from_secs(9))
        .unwrap()
        .unwrap();
    assert_eq!(run(&engine, &other).text, "fine");
    let error = finish(&ticket).unwrap_err().to_string();
    assert!(error.contains("no token is left to draw"), "{error}");
}
