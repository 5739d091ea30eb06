//! Llama 3: `{"name": "f", "parameters": {"x": 1}}`, which is all of the answer or follows
//! `<|python_tag|>`. As an answer may be JSON too, only an object of this form that names an offered
//! tool is a call.
use super::calls::{Body, List};
use super::marked::Calls;
use super::schema::Tools;
use super::{json, Format, Grammar, Spelling, Written};

pub(super) const FORMAT: Format = Format {
    name: "llama3",
    looks: r#"{"name": "f", "parameters": {...}}"#,
    markers: &["<|python_tag|>"],
    hint: None,
    write,
    spelling: Spelling::Json,
    grammar: Grammar::Marked(Calls {
        opens: &["<|python_tag|>"],
        closes: &[],
        bare: true,
        body,
    }),
};

fn body(_: usize, tools: &Tools) -> Box<dyn Body> {
    Box::new(List::new(None, Some(tools.clone())))
}

fn write(name: &str, arguments: &str) -> Vec<Written> {
    let name = json::quoted(name);
    vec![Written::Given(format!(
        r#"{{"name": {name}, "parameters": {arguments}}}"#
    ))]
}
