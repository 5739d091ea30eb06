//! Answers in which calls are held to their schemas if the model makes any: which may be, and that
//! a reader finds in each the text, the reasoning and the calls that it was held to.
use std::sync::Arc;

use onegraph::gguf::{Array, Gguf, Value};
use onegraph::grammar::{of_answer, Budget, Callable, Constraint, Grammars, Guide, Held};
use onegraph::tokenizer::Tokenizer;
use onegraph::tools::{Event, Format, Parser, Reading, Thought, Tools, Written, FORMATS};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::fixture::Writer;

const END: &str = "<eos>";
const THINK: Thought = Thought::Between("<think>", "</think>");

/// A token for each byte, and control tokens.
fn tokenizer(specials: &[&str]) -> Tokenizer {
    let plain = |byte: &u8| byte.is_ascii_graphic() || *byte > 160 && *byte != 173;
    let mut others = (256..).filter_map(char::from_u32);
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| match plain(&byte) {
            true => char::from(byte).to_string(),
            false => others.next().into_iter().collect(),
        })
        .collect();
    tokens.push("ĠĠ".into());
    let mut types = vec![1; tokens.len()];
    tokens.extend(specials.iter().chain(&[END]).map(|text| (*text).into()));
    types.resize(tokens.len(), 3);
    let mut w = Writer::default();
    for (key, value) in [
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("gpt-2".into())),
        (
            "tokens",
            Value::Array(Array::String(tokens.iter().collect())),
        ),
        ("token_type", Value::Array(Array::I32(types))),
        (
            "merges",
            Value::Array(Array::String(["Ġ Ġ"].into_iter().collect())),
        ),
        ("eos_token_id", Value::U32(tokens.len() as u32 - 1)),
    ] {
        w.set(&format!("tokenizer.ggml.{key}"), value);
    }
    Tokenizer::from_gguf(&Gguf::parse(&w.bytes()).expect("a file")).expect("a vocabulary")
}

/// How answers in a format are read; reasoning as models of it tell it.
fn reading(format: &'static Format) -> Reading {
    let thought = match format.name {
        "harmony" => Thought::Channel,
        "gemma4" => Thought::Between("<|channel>thought", "<channel|>"),
        _ => THINK,
    };
    Reading {
        format: Some(format),
        thought: Some(thought),
    }
}

fn tools() -> Vec<Callable> {
    let callable = |name: &str, parameters: serde_json::Value| Callable {
        name: name.into(),
        parameters: parameters.to_string(),
    };
    let parameters = serde_json::json!({
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": false
    });
    let none = serde_json::json!({
        "type": "object", "properties": {}, "additionalProperties": false
    });
    vec![callable("f", parameters), callable("g", none)]
}

/// Answers in a format, to models whose markers are control tokens, or are spelled by letters.
struct Answers {
    reading: Reading,
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    constraint: Constraint,
}

impl Answers {
    fn new(reading: Reading, special: bool, opened: bool, several: bool) -> Self {
        let mut markers = if special { reading.markers() } else { vec![] };
        markers.sort_unstable();
        markers.dedup();
        let tokenizer = Arc::new(tokenizer(&markers));
        let held = Held::CallsIfAny {
            tools: tools(),
            several,
        };
        let constraint = of_answer(reading, &tokenizer, opened, &held).expect("a grammar");
        Self {
            reading,
            grammars: Grammars::new(tokenizer.clone()),
            tokenizer,
            constraint,
        }
    }

    fn begin(&self) -> Guide {
        self.grammars.begin(&self.constraint).expect("a guide")
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, false, true)
    }

    fn allows(&self, guide: &mut Guide, token: u32) -> bool {
        let n = self.tokenizer.n_vocab();
        guide.allowed(n).expect("a mask").contains(token)
    }

    fn ends(&self, guide: &mut Guide) -> bool {
        let end = self.tokenizer.vocab().id(END).expect("a token");
        self.allows(guide, end)
    }

    /// The front of a text that an answer may begin with, and whether it may end there.
    fn front(&self, text: &str) -> (String, bool) {
        let mut guide = self.begin();
        let mut taken = Vec::new();
        for token in self.tokens(text) {
            if !self.allows(&mut guide, token) {
                break;
            }
            guide.take(token).expect("a token that is allowed");
            taken.push(token);
        }
        let front = self.tokenizer.decode(&taken, false).expect("a text");
        (front, self.ends(&mut guide))
    }

    /// An answer that goes on by these texts wherever it may, and by what is sure to come.
    fn walk(&self, texts: &[String]) -> Option<String> {
        let mut guide = self.begin();
        let mut taken = Vec::new();
        let text_of = |taken: &[u32]| self.tokenizer.decode(taken, false).expect("a text");
        for text in texts {
            let tokens = self.tokens(text);
            let mut n = 0;
            while n < tokens.len() && self.allows(&mut guide, tokens[n]) {
                guide.take(tokens[n]).expect("a token that is allowed");
                n += 1;
                if guide.is_end(tokens[n - 1]) {
                    taken.extend(&tokens[..n]);
                    return Some(text_of(&taken));
                }
            }
            if n < tokens.len() {
                guide.back(n).expect("tokens that were taken");
                continue;
            }
            taken.extend(tokens);
            for token in guide.forced() {
                guide.take(token).expect("a token that is sure");
                taken.push(token);
                if guide.is_end(token) {
                    return Some(text_of(&taken));
                }
            }
        }
        self.ends(&mut guide).then(|| text_of(&taken))
    }

    /// What a reader finds in a text: its text, and the calls with their arguments.
    fn read(&self, opened: bool, text: &str) -> (String, Vec<String>) {
        let offered = r#"[{"function": {"name": "f"}}, {"function": {"name": "g"}}]"#;
        let offered = Tools::from_json(offered).expect("tools");
        let mut parser = Parser::new(self.reading, offered, opened, 0);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        let (mut said, mut calls) = (String::new(), Vec::<String>::new());
        for event in events {
            match event {
                Event::Text(text) => said.push_str(&text),
                Event::Begun { name, .. } => calls.push(name),
                Event::Arguments { delta, .. } => calls.last_mut().expect("one").push_str(&delta),
                Event::Failed { text, .. } => calls.push(format!("failed: {text}")),
                Event::Reasoning(_) | Event::Ended { .. } => {}
            }
        }
        for call in &mut calls {
            call.retain(|c| !c.is_whitespace());
        }
        (said, calls)
    }
}

fn each(name: &str, several: bool) -> [Answers; 2] {
    let format = Format::by_name(name).expect("a name of the table");
    [false, true].map(|special| Answers::new(reading(format), special, false, several))
}

const F: &str = r#"{"name": "f", "parameters": {"n": 1}}"#;
const G: &str = r#"{"name": "g", "parameters": {}}"#;

#[test]
fn texts_are_possible_as_they_are() {
    for (name, text, said) in [
        ("llama3", "", ""),
        ("llama3", "hm", "hm"),
        ("llama3", " \n\n", " \n\n"),
        (
            "llama3",
            "  as {\"name\": 1} says",
            "  as {\"name\": 1} says",
        ),
        ("llama3", "<{", "<{"),
        ("llama3", "[1]", "[1]"),
        ("llama3", "<think>{</think>\n\nhm {", "hm {"),
        ("harmony", "", ""),
        ("harmony", "hm", "hm"),
        ("harmony", " told", " told"),
        ("harmony", "{\"n\": 3}", "{\"n\": 3}"),
        ("harmony", "<|channel|>final<|message|>hm to=f", "hm to=f"),
        (
            "harmony",
            "<|channel|>analysis<|message|>o<|end|><|start|>assistant<|channel|>final<|message|>hm",
            "hm",
        ),
        ("harmony", "<|channel|>commentary<|message|>hm", "hm"),
    ] {
        for answers in each(name, true) {
            assert_eq!(answers.front(text), (text.into(), true), "{name}: {text:?}");
            assert_eq!(answers.read(false, text), (said.into(), vec![]), "{text}");
        }
    }
}

#[test]
fn a_call_that_is_begun_is_held_to_its_schema() {
    let role = "<|start|>assistant";
    let to_f = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
    let f_by_role = " to=functions.f<|channel|>commentary json<|message|>";
    let so = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";
    let said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let bare = |front: &str| format!(r#"{front}{{"name": "f", "parameters": {{"n": "#);
    for (name, front, good, bad) in [
        ("llama3", bare(""), "22}}", "3}}"),
        ("llama3", bare("<|python_tag|>"), "22}}", "3}}"),
        ("llama3", bare("I look.<|python_tag|>"), "22}}", "3}}"),
        ("llama3", bare("<think>so</think>"), "22}}", "3}}"),
        ("llama3", "{\"".into(), &F[2..], "answer\": 1}"),
        (
            "llama3",
            r#"{"name": ""#.into(),
            r#"g", "parameters": {}}"#,
            "Bob",
        ),
        ("harmony", format!("{to_f}{{\"n\": "), "22}<|call|>", "3}"),
        (
            "harmony",
            format!("{f_by_role}{{\"n\": "),
            "22}<|call|>",
            "3}",
        ),
        (
            "harmony",
            format!("{so}{to_f}{{\"n\": "),
            "22}<|call|>",
            "3}",
        ),
        (
            "harmony",
            format!("{said}{so}{to_f}{{\"n\": "),
            "22}<|call|>",
            "3}",
        ),
        (
            "harmony",
            format!("{said}{f_by_role}{{\"n\": "),
            "22}<|call|>",
            "3}",
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.".into(),
            "g <|constrain|>json<|message|>{}<|call|>",
            "h",
        ),
    ] {
        for answers in each(name, true) {
            let whole = format!("{front}{good}");
            assert_eq!(answers.front(&whole), (whole.clone(), true));
            let (_, calls) = answers.read(false, &whole);
            assert!(matches!(&calls[..], [one] if fits(one)), "{calls:?}");
            // It is refused where it goes wrong, and no sooner.
            let taken = answers.front(&format!("{front}{bad}"));
            assert_eq!(taken, (front.clone(), false));
        }
    }
    for answers in each("harmony", true) {
        let whole = format!("{to_f}{{\"n\": 1}}<|call|>");
        let taken = answers.front(&format!("{whole}{role}{to_f}"));
        assert_eq!(taken, (whole, true), "a turn of Harmony's has one call");
    }
}

#[test]
fn a_second_call_follows_where_there_may_be_several() {
    for (several, taken) in [(true, format!("{F}\n{G}")), (false, F.into())] {
        for answers in each("llama3", several) {
            let found = answers.front(&format!("{F}\n{G}"));
            assert_eq!(found, (taken.clone(), true));
            let (said, calls) = answers.read(false, &found.0);
            assert_eq!((&said[..], calls.len()), ("", 1 + usize::from(several)));
        }
    }
}

/// Whether a call is one that its schema allows.
fn fits(call: &str) -> bool {
    [r#"f{"n":1}"#, r#"f{"n":22}"#, "g{}"].contains(&call)
}

fn text_of(call: Vec<Written>) -> String {
    let parts = call.into_iter().map(|part| match part {
        Written::Own(text) | Written::Given(text) => text,
    });
    parts.collect()
}

#[test]
fn a_reader_finds_in_an_answer_what_it_was_held_to() {
    let parts = [
        "{",
        "}",
        "{\"",
        "name",
        "f",
        "g",
        "1",
        "22",
        "3",
        "{\"n\": 1}",
        "{}",
        "[",
        " ",
        "\n",
        "hm",
        "<",
        "<|",
        " to=",
        "functions.",
        "<function=f>",
        "<parameter=n>",
        F,
        G,
        "{\"name\": \"h\", ",
        "final",
        "commentary",
        "analysis",
        "assistant",
        "json",
        "call:g{}",
        "<think>",
        "</think>",
    ];
    let mut runner = TestRunner::deterministic();
    for format in &FORMATS {
        let reading = reading(format);
        let given = [("f", r#"{"n": 1}"#), ("f", r#"{"n": 3}"#), ("g", "{}")];
        let ways = given
            .iter()
            .flat_map(|(name, given)| format.ways(name, given));
        let calls: Vec<String> = ways.map(text_of).collect();
        let (mut texts, mut called) = (0, 0);
        for mode in 0..8 {
            let [special, opened, several] = [1, 2, 4].map(|bit| mode & bit > 0);
            let opened = opened && !reading.has_channels();
            let answers = Answers::new(reading, special, opened, several);
            let markers = reading.markers();
            let pool = [&parts[..], &markers, &markers].concat();
            let mut pool: Vec<String> = pool.into_iter().map(String::from).collect();
            for _ in 0..8 {
                pool.extend(calls.iter().cloned());
            }
            let walks = proptest::collection::vec(proptest::sample::select(pool), 1..24);
            for _ in 0..60 {
                let walk = walks.new_tree(&mut runner).expect("a walk").current();
                let Some(text) = answers.walk(&walk) else {
                    continue;
                };
                let (_, calls) = answers.read(opened, &text);
                let name = format.name;
                assert!(
                    calls.iter().all(|call| fits(call)),
                    "{name}: {text:?}: {calls:?}"
                );
                assert!(several || calls.len() < 2, "{name}: {text:?}: {calls:?}");
                *(if calls.is_empty() {
                    &mut texts
                } else {
                    &mut called
                }) += 1;
            }
        }
        println!(
            "{}: {texts} texts, {called} answers with calls",
            format.name
        );
        assert!(
            texts > 20 && called > 20,
            "{}: {texts}, {called}",
            format.name
        );
    }
}

/// The tokens that may come next, where that is few.
fn only(guide: &mut Guide, tokenizer: &Tokenizer) -> Vec<u32> {
    let allowed = guide.allowed(tokenizer.n_vocab()).expect("a mask");
    let ids = 0..tokenizer.n_vocab() as u32;
    ids.filter(|id| allowed.contains(*id)).collect()
}

#[test]
fn reasoning_is_closed_where_it_has_its_tokens() {
    let tokenizer = Arc::new(tokenizer(&["<think>", "</think>"]));
    let grammars = Grammars::new(tokenizer.clone());
    let tokens = |text: &str| tokenizer.encode(text, false, true);
    let close = tokens("</think>");
    for opened in [true, false] {
        let budget = Budget {
            tokens: 3,
            open: "<think>".into(),
            close: "</think>".into(),
            opened,
        };
        let begin = || {
            let guide = grammars.follow(None, Some(&budget)).expect("a guide");
            let mut guide = guide.expect("a budget");
            for token in tokens(if opened { "" } else { "<think>" }) {
                guide.take(token).expect("a token");
            }
            guide
        };
        let after = |text: &str| {
            let mut guide = begin();
            for token in tokens(text) {
                guide.take(token).expect("a token");
            }
            guide
        };
        assert!(after("ab").forced().is_empty());
        let mut guide = after("abc");
        assert_eq!(guide.forced(), close);
        assert_eq!(only(&mut guide, &tokenizer), close);
        guide.take(close[0]).expect("a token");
        assert_eq!(only(&mut guide, &tokenizer).len(), tokenizer.n_vocab());
        // Before the marker again, and before its third token.
        guide.back(1).expect("one token");
        assert_eq!(only(&mut guide, &tokenizer), close);
        guide.back(1).expect("one token");
        assert!(guide.forced().is_empty());
        // It ended by itself, and within a character it does not end.
        assert!(after("a</think>bcdef").forced().is_empty());
        assert!(after("ab\u{e4}").forced() == close);
        let half = &tokens("ab\u{e4}")[..3];
        let mut guide = begin();
        for token in half {
            guide.take(*token).expect("a token");
        }
        assert!(guide.forced().is_empty());
    }
    // A text that does not begin with reasoning has none to close.
    let budget = Budget {
        tokens: 0,
        open: "<think>".into(),
        close: "</think>".into(),
        opened: false,
    };
    let guide = grammars.follow(None, Some(&budget)).expect("a guide");
    let mut guide = guide.expect("a budget");
    for token in tokens(" hello <think>") {
        guide.take(token).expect("a token");
        assert!(guide.forced().is_empty());
    }
}
