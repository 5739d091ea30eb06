//! Hermes: `<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`, as Qwen 2.5 and 3, Hermes
//! and Granite 4 write it. A call each pair of tags, or several.
use super::calls::{Body, List};
use super::marked::Calls;
use super::schema::Tools;
use super::{json, Format, Grammar, Spelling, Written};

const CLOSES: &[&str] = &["</tool_call>"];

pub(super) const FORMAT: Format = Format {
    name: "hermes",
    looks: r#"<tool_call>{"name": "f", "arguments": {...}}</tool_call>"#,
    markers: &["<tool_call>", "</tool_call>"],
    hint: None,
    write,
    spelling: Spelling::Json,
    grammar: Grammar::Marked(Calls {
        opens: &["<tool_call>"],
        closes: CLOSES,
        bare: false,
        body,
    }),
};

fn body(_: usize, _: &Tools) -> Box<dyn Body> {
    Box::new(List::new(Some(CLOSES), None))
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let name = json::quoted(name);
    vec![
        Written::Own("<tool_call>\n".into()),
        Written::Given(format!(r#"{{"name": {name}, "arguments": {arguments}}}"#)),
        Written::Own("\n</tool_call>".into()),
    ]
}
