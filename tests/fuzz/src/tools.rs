//! What a model says: the name of a format, then the text in pieces.
use onegraph::tools::{Event, Format, Parser, Reading, Thought, Tools, FORMATS};

use super::{items, join, parts};

/// Takes the text apart whole and in its pieces, which must give the same.
pub fn run(data: &[u8]) {
    let mut parts = parts(data);
    let name = String::from_utf8_lossy(parts.next().unwrap_or(&[])).into_owned();
    let pieces = items(parts.next().unwrap_or(&[]));
    let opened = parts.next().is_some_and(|flag| !flag.is_empty());
    let reading = Reading {
        format: Format::by_name(&name).ok(),
        thought: Some(Thought::Between("<think>", "</think>")),
    };
    let read = |pieces: &[String]| {
        let mut parser = Parser::new(reading, tools(), opened, 0);
        let mut events: Vec<Event> = pieces.iter().flat_map(|p| parser.push(p)).collect();
        events.extend(parser.finish());
        joined(events)
    };
    let text = pieces.concat();
    let whole = read(std::slice::from_ref(&text));
    assert_eq!(read(&pieces), whole);
    let (mut said, mut arguments) = (0, String::new());
    for event in &whole {
        match event {
            Event::Text(t) | Event::Reasoning(t) => said += t.len(),
            Event::Failed { text, .. } => said += text.len(),
            Event::Begun { .. } => arguments.clear(),
            Event::Arguments { delta, .. } => arguments.push_str(delta),
            Event::Ended { .. } => {
                let read: Result<serde_json::Value, _> = serde_json::from_str(&arguments);
                assert!(read.is_ok_and(|value| value.is_object()), "{arguments}");
            }
        }
    }
    // What is given out may be escaped, and given again where it went wrong.
    assert!(said <= 2 * text.len(), "{said} bytes of {}", text.len());
}

fn tools() -> Tools {
    let json = r#"[{"function": {"name": "f", "parameters": {"properties": {
        "s": {"type": "string"}, "n": {"type": ["integer", "null"]}}}}}]"#;
    Tools::from_json(json).unwrap_or_default()
}

/// Joins fragments that follow one another.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (all.last_mut(), &event) {
            (Some(Event::Text(a)), Event::Text(b))
            | (Some(Event::Reasoning(a)), Event::Reasoning(b))
            | (Some(Event::Arguments { delta: a, .. }), Event::Arguments { delta: b, .. }) => {
                a.push_str(b);
            }
            _ => all.push(event),
        }
    }
    all
}

/// A call in each format, and text that is none.
pub fn seeds() -> Vec<Vec<u8>> {
    let arguments = r#"{"s": "a \"b\" \u00e9\n<", "n": -1.5e3, "l": [1, {"k": null}, true]}"#;
    let mut seeds = Vec::new();
    for format in &FORMATS {
        let call: String = format
            .written("f", arguments)
            .iter()
            .map(|part| match part {
                onegraph::tools::Written::Own(text) | onegraph::tools::Written::Given(text) => {
                    text.as_str()
                }
            })
            .collect();
        let text = format!("<think>hm</think>\n\nSo: {call}\n{call} and on");
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(5).collect();
        let markers: Vec<&[u8]> = format.markers.iter().map(|m| m.as_bytes()).collect();
        let name: &[u8] = format.name.as_bytes();
        seeds.push(join(&[&[name], &[call.as_bytes()], &[]]));
        seeds.push(join(&[&[name], &pieces, &[]]));
        seeds.push(join(&[&[name], &markers, &[b"1".as_slice()]]));
    }
    seeds
}
