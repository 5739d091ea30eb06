//! The arguments of a rendering: which of their strings count as given.
use minijinja::Value;

use super::given::{as_str, string, to_str, Spans};
use super::meter::Outcome;
use super::value::{view, List, Map, View};

/// Names that the chat formats give to those who speak. They are words of the format, not of who
/// uses it: some templates make a control token of them (`<|{{ message.role }}|>` of GLM-4).
const ROLES: &[&str] = &[
    "assistant",
    "developer",
    "environment",
    "function",
    "ipython",
    "model",
    "observation",
    "system",
    "tool",
    "tool_results",
    "user",
];

/// The arguments of a rendering with all of their strings given.
pub(super) fn given(value: &Value) -> Outcome {
    if let Some(text) = to_str(value) {
        let all = Spans::all(text.len());
        return Ok(string(text, all));
    }
    match view(value) {
        View::List(list) => {
            let items: Outcome<Vec<Value>> = list.items.iter().map(given).collect();
            List::value(items?, list.tuple)
        }
        View::Map(map) => {
            let entries: Outcome<Vec<(Value, Value)>> = map
                .entries
                .iter()
                .map(|(k, v)| Ok((given(k)?, given(v)?)))
                .collect();
            Map::value(entries?)
        }
        _ => Ok(value.clone()),
    }
}

/// [`given`] for `messages`: the well-known roles stay a template's own strings.
pub(super) fn messages(value: &Value) -> Outcome {
    let View::List(list) = view(value) else {
        return given(value);
    };
    let messages: Outcome<Vec<Value>> = list.items.iter().map(message).collect();
    List::value(messages?, list.tuple)
}

fn message(value: &Value) -> Outcome {
    let View::Map(map) = view(value) else {
        return given(value);
    };
    let entries: Outcome<Vec<(Value, Value)>> = map
        .entries
        .iter()
        .map(|(k, v)| {
            let is_role = as_str(k) == Some("role");
            let known = is_role && as_str(v).is_some_and(|role| ROLES.contains(&role));
            Ok((given(k)?, if known { v.clone() } else { given(v)? }))
        })
        .collect();
    Map::value(entries?)
}
