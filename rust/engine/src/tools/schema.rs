//! What is known of the tools that were offered: their names and the types of their parameters.
use std::sync::Arc;

use serde_json::Value;

use crate::error::{Error, Result};

/// Longest name of a tool, in bytes.
const MAX_NAME: usize = 256;
/// How many references and alternatives a look-up follows.
const MAX_LOOKS: usize = 64;

/// Tools that a model was offered. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Tools(Arc<Vec<Tool>>);

#[derive(Debug)]
struct Tool {
    name: String,
    /// JSON schema of its arguments.
    parameters: Value,
}

/// Types that a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Types {
    pub string: bool,
    pub number: bool,
    pub boolean: bool,
    pub null: bool,
    pub object: bool,
    pub array: bool,
    /// The schema does not say.
    pub any: bool,
}

/// Whether a text may name a tool: as a word, whatever its letters.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"<>{}()\"'".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME && text.chars().all(plain)
}

impl Tools {
    /// Reads a list of `{"type": "function", "function": {"name": ..., "parameters": ...}}`.
    ///
    /// # Errors
    /// [`Error::Argument`] where it is none, or a tool has no name that a model could write.
    pub fn from_json(json: &str) -> Result<Self> {
        let bad = |value: &str, reason: String| Error::Argument {
            name: "tools",
            value: value.chars().take(80).collect(),
            reason,
        };
        let list: Vec<Value> =
            serde_json::from_str(json).map_err(|e| bad(json, format!("is not a list: {e}")))?;
        let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
        for tool in &list {
            let function = tool.get("function").unwrap_or(&Value::Null);
            let name = function.get("name").and_then(Value::as_str);
            let name = name.filter(|name| is_name(name)).ok_or_else(|| {
                let expected = "must have a \"function\" with a \"name\": one word of at most 256 \
                                bytes, without quotes and brackets";
                bad(&tool.to_string(), expected.to_owned())
            })?;
            if tools.iter().any(|t| t.name == name) {
                return Err(bad(&format!("{name:?}"), "two tools have this name".into()));
            }
            tools.push(Tool {
                name: name.to_owned(),
                parameters: function.get("parameters").cloned().unwrap_or_default(),
            });
        }
        Ok(Self(Arc::new(tools)))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|tool| tool.name == name)
    }

    /// Whether a tool has a parameter of this name among its properties; `None` where it is not
    /// offered or names none.
    pub(super) fn declares(&self, tool: &str, parameter: &str) -> Option<bool> {
        let found = self.0.iter().find(|t| t.name == tool)?;
        let properties = found.parameters.get("properties")?.as_object()?;
        (!properties.is_empty()).then(|| properties.contains_key(parameter))
    }

    /// What a parameter may be.
    pub(super) fn types(&self, tool: &str, parameter: &str) -> Types {
        let found = self.0.iter().find(|t| t.name == tool);
        types_of(found.map_or(&Value::Null, |t| &t.parameters), parameter)
    }
}

/// What a parameter may be by a schema of all of them.
pub(crate) fn types_of(root: &Value, parameter: &str) -> Types {
    let mut types = Types::default();
    let schema = root.get("properties").and_then(|p| p.get(parameter));
    let mut looks = MAX_LOOKS;
    match schema {
        Some(schema) => types.add(schema, root, &mut looks),
        None => types.any = true,
    }
    types
}

impl Types {
    fn add(&mut self, schema: &Value, root: &Value, looks: &mut usize) {
        let Some(left) = looks.checked_sub(1) else {
            self.any = true;
            return;
        };
        *looks = left;
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            self.null = true;
        }
        match schema.get("type") {
            Some(Value::String(name)) => return self.name(name),
            Some(Value::Array(names)) => {
                return names
                    .iter()
                    .for_each(|n| self.name(n.as_str().unwrap_or("")))
            }
            _ => {}
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return values.iter().for_each(|value| self.value(value));
        }
        if let Some(value) = schema.get("const") {
            return self.value(value);
        }
        if let Some(Value::String(pointer)) = schema.get("$ref") {
            let target = pointer.strip_prefix('#').and_then(|p| root.pointer(p));
            return match target {
                Some(target) => self.add(target, root, looks),
                None => self.any = true,
            };
        }
        let either = ["anyOf", "oneOf", "allOf"]
            .iter()
            .find_map(|key| schema.get(key)?.as_array());
        match either {
            Some(each) => each.iter().for_each(|s| self.add(s, root, looks)),
            None => self.any = true,
        }
    }

    fn name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" | "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => self.any = true,
        }
    }

    fn value(&mut self, value: &Value) {
        self.name(match value {
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "boolean",
            Value::Null => "null",
            Value::Object(_) => "object",
            Value::Array(_) => "array",
        });
    }

    /// Whether nothing but a text will do.
    pub fn is_string(self) -> bool {
        self == Self {
            string: true,
            ..Self::default()
        }
    }
}
