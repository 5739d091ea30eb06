//! The seven formats, whole and cut anywhere; what is no call; hostile text.
use std::time::{Duration, Instant};

use onegraph::tools::{Event, Format, Parser, Reading, Thought, Tools, Written, FORMATS};
use proptest::prelude::*;

const THINK: Thought = Thought::Between("<think>", "</think>");

fn tools() -> Tools {
    Tools::from_json(
        r##"[{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "$defs": {"size": {"enum": [1, 2, "big"]}},
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "integer"},
                "b": {"type": "boolean"},
                "l": {"type": "array"},
                "o": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "r": {"$ref": "#/$defs/size"}
            }}}},
            {"type": "function", "function": {"name": "g"}}]"##,
    )
    .expect("tools")
}

fn reading(format: &str) -> Reading {
    let thought = match format {
        "mistral" => Thought::Between("[THINK]", "[/THINK]"),
        "gemma4" => Thought::Between("<|channel>thought", "<channel|>"),
        "harmony" => Thought::Channel,
        _ => THINK,
    };
    Reading {
        format: Some(Format::by_name(format).expect("a name of the table")),
        thought: Some(thought),
    }
}

fn parser(format: &str, opened: bool) -> Parser {
    Parser::new(reading(format), tools(), opened, 7)
}

/// Joins fragments that follow one another.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (all.last_mut(), &event) {
            (Some(Event::Text(a)), Event::Text(b)) => a.push_str(b),
            (Some(Event::Reasoning(a)), Event::Reasoning(b)) => a.push_str(b),
            (Some(Event::Arguments { delta: a, .. }), Event::Arguments { delta: b, .. }) => {
                a.push_str(b);
            }
            _ => all.push(event),
        }
    }
    all
}

fn events(mut parser: Parser, pieces: &[&str]) -> Vec<Event> {
    let mut events: Vec<Event> = pieces.iter().flat_map(|p| parser.push(p)).collect();
    events.extend(parser.finish());
    joined(events)
}

/// Events on a line: `text`, `~reasoning~`, `f({...})`, `!f! reason`.
fn line(events: &[Event]) -> String {
    let (mut line, mut name) = (String::new(), String::new());
    for event in events {
        match event {
            Event::Text(text) => line.push_str(text),
            Event::Reasoning(text) => line.push_str(&format!("~{text}~")),
            Event::Begun {
                name: begun, id, ..
            } => {
                assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()));
                name.clone_from(begun);
                line.push_str(&format!("{begun}("));
            }
            Event::Arguments { delta, .. } => line.push_str(delta),
            Event::Ended { .. } => line.push(')'),
            Event::Failed { text, reason, .. } => {
                line.push_str(&format!(" !{name}: {text:?}: {reason}"));
            }
        }
    }
    line
}

/// Format, whether the template opened reasoning, what the model writes, what comes of it.
const CASES: &[(&str, bool, &str, &str)] = &[
    ("hermes", false, "Hello, 1 < 2 <b>bold</b>  ", "Hello, 1 < 2 <b>bold</b>  "),
    (
        "hermes",
        false,
        "<think>\nhm, </thin\n</think>\n\nSure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a } \\\"<b\", \"n\": -1.5e3}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"l\": [[], {}]}, \"id\": 3, \"name\": \"g\"}\n</tool_call>\n",
        "~hm, </thin~Sure.f({\"s\": \"a } \\\"<b\", \"n\": -1.5e3})g({\"l\": [[], {}]})",
    ),
    ("hermes", true, "deep\n</think>\n<tool_call>{\"name\":\"f\"}</tool_call>", "~deep~f({})"),
    ("hermes", true, "never closed ", "~never closed ~"),
    ("hermes", false, "use <tool_call> for it", "use <tool_call> for it"),
    ("hermes", false, "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"n\\\": 1}\"}", "<tool_call>f({\"n\": 1})"),
    ("hermes", false, "<tool_call>[{\"name\":\"f\",\"arguments\":null}, {\"name\":\"g\"}]</tool_call> done", "f({})g({})done"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1", "f({\"n\": 1 !f: \"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"n\\\": 1\": the text ended within the call"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 01}}</tool_call> on", "f({\"n\": 01 !f: \"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"n\\\": 01}}</tool_call>\": a number that JSON does not haveon"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {n}<tool_call>{\"name\": \"g\"}", "f({ !f: \"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {n}\": a key of an object must be in double quotesg({})"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>"),
    ("hermes", false, "<tool_call>{\"name\": \"\"}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>"),
    ("hermes", false, "<tool_call>{\"name\": \"f\"}}\n</tool_call> on", "f({})on"),
    ("hermes", false, "<tool_call>{\"name\": \"f\"}, \"n\": 1}</tool_call> on", "f({} !f: \"<tool_call>{\\\"name\\\": \\\"f\\\"}, \\\"n\\\": 1}</tool_call>\": a call must be an objecton"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"n\": 1}</tool_call>", "<tool_call>{\"name\": \"f\", \"n\": 1}</tool_call>"),
    ("hermes", false, "<tool_call>{\"name\": \"f\"} or so</tool_call>.", "f({} !f: \"<tool_call>{\\\"name\\\": \\\"f\\\"} or so</tool_call>\": something other than the end after a call."),
    ("hermes", false, "<tool_call>{\"name\": \"f\"}, {\"na", "f({}), {\"na"),
    ("hermes", false, "end <tool_ca", "end <tool_ca"),
    ("hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"\\ud83d\\ude00\"}}", "f({\"s\": \"\\ud83d\\ude00\"})"),
    (
        "qwen_xml",
        false,
        "Ok\n\n<tool_call>\n<function=f>\n<parameter=s>\n\"a\"\n<b>\n\n</parameter>\n<parameter=n>\n12\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=l>\n[1, {\"x\": null}]\n</parameter>\n<parameter=o>\nnull\n</parameter>\n<parameter=r>2</parameter><parameter=u>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        "Okf({\"s\": \"\\\"a\\\"\\n<b>\\n\", \"n\": 12, \"b\": true, \"l\": [1, {\"x\": null}], \"o\": null, \"r\": 2, \"u\": true})g({})",
    ),
    ("qwen_xml", false, "<function=f><parameter=n>many</parameter><parameter=o>None</parameter></function>\nx", "f({\"n\": \"many\", \"o\": \"None\"})x"),
    ("qwen_xml", false, "<function=h><parameter=n>", "<function=h><parameter=n>"),
    ("qwen_xml", false, "<tool_call>x", "<tool_call>x"),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>a</parameter>?</function></tool_call>.", "f({\"s\": \"a</parameter>? !f: \"<tool_call><function=f><parameter=s>a</parameter>?</function></tool_call>\": something other than a parameter in a function."),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>\na</parameter>\nb\n</parameter>\n</function>\n</tool_call>", "f({\"s\": \"a</parameter>\\nb\"})"),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>\n<tool_call><function=g><parameter=x>1</parameter></function></tool_call>\n</parameter></function></tool_call>", "f({\"s\": \"<tool_call><function=g><parameter=x>1</parameter></function></tool_call>\"})"),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>\na\n<parameter=n>\n2\n</function>\n</tool_call>", "f({\"s\": \"a\", \"n\": 2})"),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>\nof <parameter=n> a</parameter></function></tool_call>", "f({\"s\": \"of  !f: \"<tool_call><function=f><parameter=s>\\nof <parameter=n> a</parameter></function></tool_call>\": the name of a parameter in a value"),
    ("qwen_xml", false, "<tool_call><function=g><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>", "g({\"x\": 1 !g: \"<tool_call><function=g><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>\": a duplicate parameter"),
    ("qwen_xml", false, "<tool_call><function=g></function></tool_call>\n<tool_call><function=f><parameter=s>", "g({})f({\"s\": \" !f: \"\\n<tool_call><function=f><parameter=s>\": the text ended within the call"),
    ("qwen_xml", false, "<tool_call><function=f><parameter=s>a", "f({\"s\": \"a !f: \"<tool_call><function=f><parameter=s>a\": the text ended within the call"),
    ("llama3", false, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "f({\"n\": 1})"),
    ("llama3", false, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"g\", \"parameters\": {\"x\": {}}}", "f({})g({\"x\": {}})"),
    ("llama3", false, "{\"name\": \"Bob\", \"parameters\": {}}", "{\"name\": \"Bob\", \"parameters\": {}}"),
    ("llama3", false, "{\"answer\": 42}", "{\"answer\": 42}"),
    ("llama3", false, "{\"name\": \"f\"}", "{\"name\": \"f\"}"),
    ("llama3", false, "See {\"name\": \"f\", \"parameters\": {}}", "See {\"name\": \"f\", \"parameters\": {}}"),
    ("llama3", false, "<{\"name\": \"f\", \"parameters\": {}}", "<{\"name\": \"f\", \"parameters\": {}}"),
    ("mistral", false, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdef123\"}, {\"name\": \"g\", \"arguments\": {}}]", "f({\"n\": 1})g({})"),
    ("mistral", false, "[THINK]so[/THINK]Now:[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{\"n\": 1}[TOOL_CALLS]g{\"x\": []} a[1]", "~so~Now:f({\"n\": 1})g({\"x\": []})a[1]"),
    ("mistral", false, "[TOOL_CALLS]f[ARGS]{\"n\": 1}}[TOOL_CALLS]g{}, \"x\": 2}", "f({\"n\": 1})g({} !g: \"[TOOL_CALLS]g{}, \\\"x\\\": 2}\": something other than the end after a call"),
    ("mistral", false, "[TOOL_CALLS] f[ARGS]  3", "f( !f: \"[TOOL_CALLS] f[ARGS]  3\": the arguments of a call must be an object"),
    ("mistral", false, "[TOOL_CALLS]no call at all", "[TOOL_CALLS]no call at all"),
    ("mistral", false, "[TOOL_CALLS]f[ARGS]{\"n\": }[TOOL_CALLS]g[ARGS]{}", "f({\"n\":  !f: \"[TOOL_CALLS]f[ARGS]{\\\"n\\\": }\": not the start of a JSON valueg({})"),
    (
        "gemma4",
        false,
        "<|channel>thought\nhm\n<channel|>Sure.<|tool_call>call:f{n:-2,s:<|\"|>a \"b\" {<\\<|\"|>,l:[1,true,None,{<|\"|>k<|\"|>:<|\"|><|\"|>}],o:{}}<tool_call|><|tool_call>call:g{}<tool_call|>",
        "~hm~Sure.f({\"n\": -2, \"s\": \"a \\\"b\\\" {<\\\\\", \"l\": [1, true, null, {\"k\": \"\"}], \"o\": {}})g({})",
    ),
    ("gemma4", false, "<|tool_call>call:f{n:two}<tool_call|>.", "f({\"n\":  !f: \"<|tool_call>call:f{n:two}<tool_call|>\": a word that is not a value."),
    (
        "gemma4",
        true,
        "hm<channel|><|tool_call>call:f{s:\"a, \\\"b\",l:[]}",
        "~hm~f({\"s\": \"a, \\\"b\", \"l\": []})",
    ),
    (
        "gemma4",
        false,
        "<|tool_call>call:f{s:<|\"|>a",
        "f({\"s\": \"a !f: \"<|tool_call>call:f{s:<|\\\"|>a\": the text ended within the call",
    ),
    ("gemma4", false, "<|tool_call>call:f{}}<tool_call|>.", "f({})."),
    ("gemma4", false, "<|tool_call>ring:f{}", "<|tool_call>ring:f{}"),
    (
        "harmony",
        false,
        "<|channel|>analysis<|message|>hm < 1<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
        "~hm < 1~Wait.f({\"n\": 1})",
    ),
    ("harmony", false, " to=functions.g<|channel|>commentary json<|message|><|call|>", "g({})"),
    ("harmony", false, "<|channel|>commentary to=g<|message|>{}, 1}<|call|>", "g({} !g: \"<|channel|>commentary to=g<|message|>{}, 1}\": something other than the end after a call"),
    ("harmony", false, "<|channel|>final<|message|>Hi <|return|>", "Hi "),
    ("harmony", false, "Hi <|x", "Hi <|x"),
    ("harmony", false, "<|channel|>commentary to=python<|message|>print(1)<|call|><|start|>assistant<|channel|>final<|message|>x", "python( !python: \"<|channel|>commentary to=python<|message|>print(1)\": the arguments of a call must be an objectx"),
    ("harmony", false, "<|channel|>commentary to=functions.f<|message|>{\"n\": 1", "f({\"n\": 1 !f: \"<|channel|>commentary to=functions.f<|message|>{\\\"n\\\": 1\": the text ended within the call"),
    (
        "lfm",
        false,
        "<|tool_call_start|>[f(s='it\\'s ' \"\\\"so\\\"\", n=-2, b=True, l=['a', (1, 2,)], o=None, r={\"k\": {'x': false}}), g()]<|tool_call_end|>Asked.",
        "f({\"s\": \"it's \\\"so\\\"\", \"n\": -2, \"b\": true, \"l\": [\"a\", [1, 2]], \"o\": null, \"r\": {\"k\": {\"x\": false}}})g({})Asked.",
    ),
    ("lfm", false, "<|tool_call_start|>f(s=\"\\u00e9\\n\\x41\\q\")<|tool_call_end|>", "f({\"s\": \"é\\nA\\\\q\"})"),
    ("lfm", false, "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]<|tool_call_end|>", "f({\"n\": 1})"),
    ("lfm", false, "<|tool_call_start|>[f(1)]<|tool_call_end|>!", "f({ !f: \"<|tool_call_start|>[f(1)]<|tool_call_end|>\": an argument must be given by its name!"),
    ("lfm", false, "<|tool_call_start|>[f(s='it's')]<|tool_call_end|>", "f({\"s\": \"it !f: \"<|tool_call_start|>[f(s='it's')]<|tool_call_end|>\": a text of this kind is not a value"),
    ("lfm", false, "<|tool_call_start|>[f(n=1), g(n=1, n=2)]<|tool_call_end|>", "f({\"n\": 1})g({\"n\": 1 !g: \", g(n=1, n=2)]<|tool_call_end|>\": a duplicate argument"),
    ("lfm", false, "<|tool_call_start|>[f(n=1), n=2)]<|tool_call_end|>", "f({\"n\": 1} !f: \"<|tool_call_start|>[f(n=1), n=2)]<|tool_call_end|>\": the name of a call must be a word"),
    ("lfm", false, "<|tool_call_start|>nothing, really", "<|tool_call_start|>nothing, really"),
];

#[test]
fn every_format_is_read() {
    for (format, opened, text, expected) in CASES {
        let found = events(parser(format, *opened), &[text]);
        assert_eq!(line(&found), *expected, "{format}: {text}");
    }
    for format in &FORMATS {
        let named = CASES.iter().filter(|case| case.0 == format.name).count();
        assert!(named >= 5, "{}: {named} cases", format.name);
    }
}

#[test]
fn a_text_in_two_gives_the_same() {
    for (format, opened, text, _) in CASES {
        let whole = events(parser(format, *opened), &[text]);
        for (at, _) in text.char_indices() {
            let cut = events(parser(format, *opened), &[&text[..at], &text[at..]]);
            assert_eq!(cut, whole, "{format}: {text} at {at}");
        }
    }
}

#[test]
fn what_a_format_writes_it_reads() {
    let arguments =
        r#"{"s": "a \"quoted\" {text}, it's", "n": -1.5, "b": true, "l": [1, {"k": null}]}"#;
    let expected: serde_json::Value = serde_json::from_str(arguments).expect("JSON");
    for format in &FORMATS {
        for written in format.ways("f", arguments) {
            let text: String = written
                .iter()
                .map(|part| match part {
                    Written::Own(text) | Written::Given(text) => text.as_str(),
                })
                .collect();
            let found = events(parser(format.name, false), &[&text]);
            let [Event::Begun { name, .. }, Event::Arguments { delta, .. }, Event::Ended { .. }] =
                found.as_slice()
            else {
                panic!("{}: {found:?}", format.name)
            };
            assert_eq!(name, "f");
            let read: serde_json::Value = serde_json::from_str(delta).expect(delta);
            assert_eq!(read, expected, "{}: {text}", format.name);
        }
    }
}

#[test]
fn nothing_is_held_that_can_be_in_no_marker() {
    for format in &FORMATS {
        let mut parser = parser(format.name, false);
        let (mut fed, mut given) = (String::new(), String::new());
        for piece in ["plain", " text", " <", "b>", " [x", "] ", "done"] {
            fed.push_str(piece);
            given.push_str(&line(&parser.push(piece)));
            let held = fed.strip_prefix(&given).expect("the same text").trim();
            assert!(held.is_empty() || held == "<", "{}: {held}", format.name);
        }
        assert_eq!(given, "plain text <b> [x] done", "{}", format.name);
    }
}

#[test]
fn without_tools_calls_are_text_and_reasoning_is_none() {
    let reading = Reading {
        format: None,
        thought: Some(THINK),
    };
    let plain = |text: &str| {
        let parser = Parser::new(reading, Tools::default(), false, 0);
        line(&events(parser, &[text]))
    };
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    assert_eq!(plain(call), call);
    assert_eq!(plain("<think>a</think> b"), "~a~b");
    let parser = Parser::new(Reading::default(), Tools::default(), false, 0);
    assert_eq!(
        line(&events(parser, &["<think>a</think> b "])),
        "<think>a</think> b "
    );
}

#[test]
fn ids_depend_on_the_seed_and_the_number_alone() {
    let ids = |seed| {
        let text = "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(3);
        let parser = Parser::new(reading("hermes"), tools(), false, seed);
        let ids: Vec<String> = events(parser, &[&text])
            .into_iter()
            .filter_map(|e| match e {
                Event::Begun { id, .. } => Some(id),
                _ => None,
            })
            .collect();
        ids
    };
    assert_eq!(ids(1), ids(1));
    let all: std::collections::BTreeSet<String> = (0..50).flat_map(ids).collect();
    assert_eq!(all.len(), 150);
}

#[test]
fn tools_that_are_none_are_refused() {
    let refused = |json: &str| Tools::from_json(json).unwrap_err().to_string();
    assert!(refused("{}").contains("tools = {}: is not a list"));
    assert!(refused("[{\"type\": \"function\"}]").contains("must have a \"function\""));
    assert!(refused("[{\"function\": {\"name\": \"a b\"}}]").contains("one word"));
    let twice = "[{\"function\": {\"name\": \"a\"}}, {\"function\": {\"name\": \"a\"}}]";
    assert!(refused(twice).contains("tools = \"a\": two tools have this name"));
    let message = Format::by_name("yaml").unwrap_err().to_string();
    for format in &FORMATS {
        assert!(message.contains(format.name), "{message}");
    }
}

/// Texts of markers, pieces of calls and anything else.
fn pieces() -> impl Strategy<Value = Vec<String>> {
    let mut known: Vec<String> = CASES
        .iter()
        .flat_map(|case| case.2.split_inclusive(['>', ']', '}', ' ', ':']))
        .map(str::to_owned)
        .collect();
    known.extend(
        FORMATS
            .iter()
            .flat_map(|f| f.markers)
            .map(|m| (*m).to_owned()),
    );
    known.sort();
    known.dedup();
    let piece = prop_oneof![
        4 => proptest::sample::select(known),
        1 => "[ -~\n]{0,6}",
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_split_gives_the_same_events(
        pieces in pieces(), number in 0..FORMATS.len(), opened: bool, every in 1_usize..7
    ) {
        let format = FORMATS[number].name;
        let text = pieces.concat();
        let whole = events(parser(format, opened), &[&text]);
        let given: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(&events(parser(format, opened), &given), &whole);
        let letters: Vec<char> = text.chars().collect();
        let cut: Vec<String> = letters.chunks(every).map(|c| c.iter().collect()).collect();
        let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
        prop_assert_eq!(&events(parser(format, opened), &cut), &whole);
        check_order(&whole)?;
    }

    #[test]
    fn no_letter_is_lost(pieces in pieces(), number in 0..FORMATS.len()) {
        // Letters that no marker, key or word of a format has.
        let text: String = pieces.concat();
        let letter = |c: &char| "äöüßéøñ☃".contains(*c);
        let text: String = text
            .chars()
            .enumerate()
            .flat_map(|(i, c)| [Some(c), (i % 5 == 4).then_some('☃')])
            .flatten()
            .collect();
        let format = FORMATS[number].name;
        let mut said = String::new();
        for event in events(parser(format, false), &[&text]) {
            match event {
                Event::Text(t) | Event::Reasoning(t) => said.push_str(&t),
                Event::Begun { name, .. } => said.push_str(&name),
                Event::Arguments { delta, .. } => said.push_str(&delta),
                Event::Failed { text, .. } => said.push_str(&text),
                Event::Ended { .. } => {}
            }
        }
        let found = said.chars().filter(letter).count();
        // Headers of Harmony, and ids and further keys of calls, are words of the format.
        if !matches!(format, "harmony" | "mistral") && !text.contains("\"id\"") {
            let there = text.chars().filter(letter).count();
            prop_assert!(found >= there, "{found} of {there} in {said}");
        }
    }
}

/// Calls are numbered, follow one another, and their arguments are objects.
fn check_order(events: &[Event]) -> Result<(), TestCaseError> {
    let (mut next, mut open, mut arguments) = (0, false, String::new());
    for event in events {
        match event {
            Event::Begun { index, .. } => {
                prop_assert!(!open && *index == next);
                (next, open) = (next + 1, true);
                arguments.clear();
            }
            Event::Arguments { index, delta } => {
                prop_assert!(open && *index + 1 == next);
                arguments.push_str(delta);
            }
            Event::Ended { index } => {
                prop_assert!(open && *index + 1 == next);
                let value: Result<serde_json::Map<String, serde_json::Value>, _> =
                    serde_json::from_str(&arguments);
                prop_assert!(value.is_ok(), "{arguments}");
                open = false;
            }
            Event::Failed { index, .. } => {
                prop_assert!(open && *index + 1 == next);
                open = false;
            }
            Event::Text(text) | Event::Reasoning(text) => {
                prop_assert!(!open && !text.is_empty());
            }
        }
    }
    prop_assert!(!open);
    Ok(())
}

#[test]
fn a_megabyte_of_markers_takes_time_in_proportion() {
    let took = |format: &Format, unit: &str, bytes: usize| {
        let text = unit.repeat(bytes / unit.len());
        let begun = Instant::now();
        let mut parser = parser(format.name, false);
        let mut said = 0;
        for piece in text.as_bytes().chunks(7) {
            said += line(&parser.push(&String::from_utf8_lossy(piece))).len();
        }
        said += line(&parser.finish()).len();
        // A call that goes wrong is given twice: as it comes, and as the model wrote it.
        assert!(said <= 4 * bytes, "{said} bytes of {bytes}");
        begun.elapsed()
    };
    for format in &FORMATS {
        let first = format.markers[0];
        let units = [
            first.to_owned(),
            first[..first.len() - 1].to_owned(),
            format!("{first}{{\"name\":\"f\",\"arguments\":{{\"n\":["),
            format!("{first}<function=f><parameter=s></parameter"),
            format!("{first}call:f{{n:[[[["),
            format!("{first}f(n=[\"a\" \"\" "),
            "<".to_owned(),
            " ".to_owned(),
            "<think></think>".to_owned(),
            "<|channel|>commentary to=f<|message|>{<|end|><|start|>".to_owned(),
        ];
        for unit in &units {
            let took = took(format, unit, 1 << 20);
            // Some 50 ms; what is quadratic takes minutes, however idle the machine.
            assert!(
                took < Duration::from_secs(10),
                "{} {unit:?}: {took:?}",
                format.name
            );
        }
    }
}
