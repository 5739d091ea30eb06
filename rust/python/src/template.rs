//! `onegraph.ChatTemplate`, and Python values as a template's arguments.
use onegraph::engine::POLL;
use onegraph::error::Error;
use onegraph::template::{self, Task, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arguments::{self, named};
use crate::errors::{detached, to_py};
use crate::stop;

/// Deeper arguments are refused by the engine; here the bound stops a list that holds itself.
const MAX_DEPTH: usize = 200;

/// Items of a list behind which other threads have a turn.
const TURN: usize = 256;

fn refuse(name: &'static str, obj: &Bound<'_, PyAny>, reason: String) -> PyErr {
    let value = obj
        .get_type()
        .name()
        .map_or_else(|_| "an object".to_owned(), |name| format!("a {name}"));
    to_py(Error::Argument {
        name,
        value,
        reason,
    })
}

/// A list or tuple of trees.
fn to_list(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<Value> {
    if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() {
        return to_value(name, obj);
    }
    Err(refuse(name, obj, "must be a list of dicts".to_owned()))
}

/// A tree of dicts, lists, tuples, strings, numbers, bools and `None`.
pub fn to_value(name: &'static str, obj: &Bound<'_, PyAny>) -> PyResult<Value> {
    convert(name, obj, 0)
}

fn convert(name: &'static str, obj: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(refuse(
            name,
            obj,
            format!("values nest more than {MAX_DEPTH} deep; flatten them"),
        ));
    }
    let sequence = |items: &mut dyn Iterator<Item = Bound<'_, PyAny>>| {
        let converted = items.enumerate().map(|(i, item)| {
            if i % TURN == TURN - 1 {
                stop::go_on()?;
                detached(obj.py(), || Ok(()))?;
            }
            convert(name, &item, depth + 1)
        });
        template::list(converted.collect::<PyResult<_>>()?).map_err(to_py)
    };
    if obj.is_none() {
        Ok(Value::from(()))
    } else if let Ok(text) = obj.cast::<PyString>() {
        Ok(Value::from(arguments::utf8(name, text)?))
    } else if let Ok(flag) = obj.cast::<PyBool>() {
        Ok(Value::from(flag.is_true()))
    } else if obj.is_instance_of::<PyInt>() {
        let n: i128 = obj.extract().map_err(|_| {
            refuse(
                name,
                obj,
                "it has more than 127 bits; pass it as a str".to_owned(),
            )
        })?;
        Ok(match i64::try_from(n) {
            Ok(n) => Value::from(n),
            Err(_) => Value::from(n),
        })
    } else if let Ok(x) = obj.cast::<PyFloat>() {
        Ok(Value::from(x.value()))
    } else if let Ok(dict) = obj.cast::<PyDict>() {
        let entries: PyResult<Vec<(Value, Value)>> = dict
            .iter()
            .map(|(k, v)| Ok((convert(name, &k, depth + 1)?, convert(name, &v, depth + 1)?)))
            .collect();
        template::map(entries?).map_err(to_py)
    } else if let Ok(list) = obj.cast::<PyList>() {
        sequence(&mut list.iter())
    } else if let Ok(tuple) = obj.cast::<PyTuple>() {
        sequence(&mut tuple.iter())
    } else {
        Err(refuse(
            name,
            obj,
            "templates take dicts, lists, strings, numbers, bools and None".to_owned(),
        ))
    }
}

/// What messages call a keyword argument of a rendering.
const VARIABLE: &str = "template variable";

/// The keyword arguments of a rendering.
pub fn to_variables(kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<(String, Value)>> {
    kwargs
        .into_iter()
        .flat_map(|kwargs| kwargs.iter())
        .map(|(name, value)| {
            Ok((
                arguments::text(VARIABLE, &name)?,
                to_value(VARIABLE, &value)?,
            ))
        })
        .collect()
}

/// Waits for work on a template, so that Ctrl-C is seen; the work ends with the waiting.
pub fn finished<T: Send + 'static>(
    py: Python<'_>,
    start: impl FnOnce() -> onegraph::Result<Task<T>> + Send,
) -> PyResult<T> {
    tried(py, start)?.map_err(to_py)
}

/// [`finished`], with what the template says against it as the engine says it.
pub fn tried<T: Send + 'static>(
    py: Python<'_>,
    start: impl FnOnce() -> onegraph::Result<Task<T>> + Send,
) -> PyResult<onegraph::Result<T>> {
    let mut task = match detached(py, || Ok(start()))? {
        Ok(task) => task,
        Err(e) => return Ok(Err(e)),
    };
    loop {
        match detached(py, || Ok(task.wait(POLL)))? {
            Ok(Some(done)) => return Ok(Ok(done)),
            Ok(None) => {}
            Err(e) => return Ok(Err(e)),
        }
        if let Err(interrupt) = stop::check(py) {
            // Dropping waits for the thread.
            detached(py, || {
                drop(task);
                Ok(())
            })?;
            return Err(interrupt);
        }
    }
}

/// A chat template (Jinja), with the meaning `transformers` gives it, in a sandbox.
///
/// Raises `ModelError` with the line where the template is wrong.
#[pyclass(frozen, module = "onegraph")]
pub struct ChatTemplate {
    pub inner: template::ChatTemplate,
}

#[pymethods]
impl ChatTemplate {
    #[new]
    #[pyo3(signature = (source, bos_token=String::from("<s>"), eos_token=String::from("</s>")),
           text_signature = "(source, bos_token='<s>', eos_token='</s>')")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = named::source)] source: String,
        #[pyo3(from_py_with = named::bos_token)] bos_token: String,
        #[pyo3(from_py_with = named::eos_token)] eos_token: String,
    ) -> PyResult<Self> {
        let inner = finished(py, || {
            template::ChatTemplate::reading(&source, &bos_token, &eos_token)
        })?;
        Ok(ChatTemplate { inner })
    }

    /// The text of a conversation.
    ///
    /// `kwargs` are further variables of the template. Raises `ModelError` where the template
    /// refuses the messages or takes more steps, memory or time than it has reason to,
    /// `ArgumentError` for values that are no dicts, lists, strings, numbers, bools or None.
    #[pyo3(signature = (messages, tools=None, add_generation_prompt=true, **kwargs))]
    fn render(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::add_generation_prompt)] add_generation_prompt: bool,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<String> {
        self.rendering(py, messages, tools, add_generation_prompt, kwargs)
            .map(|rendering| rendering.inner.text)
    }

    /// The text of a conversation as `render` gives it, with which parts of it came with the
    /// arguments: for `Tokenizer.encode_rendering`.
    ///
    /// Raises what `render` raises.
    #[pyo3(signature = (messages, tools=None, add_generation_prompt=true, **kwargs))]
    fn rendering(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::add_generation_prompt)] add_generation_prompt: bool,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rendering> {
        let messages = to_list("messages", messages)?;
        let tools = tools.map(|tools| to_list("tools", tools)).transpose()?;
        let extra = to_variables(kwargs)?;
        finished(py, || {
            self.inner
                .rendering(messages, tools, add_generation_prompt, extra)
        })
        .map(|inner| Rendering { inner })
    }

    /// The template as given.
    #[getter]
    fn source(&self) -> &str {
        self.inner.source()
    }

    fn __repr__(&self) -> String {
        format!(
            "<onegraph.ChatTemplate of {} characters>",
            self.inner.source().chars().count()
        )
    }
}

/// The text of a conversation, from `ChatTemplate.rendering`.
#[pyclass(frozen, module = "onegraph")]
pub struct Rendering {
    pub inner: template::Rendering,
}

#[pymethods]
impl Rendering {
    /// The text, as `ChatTemplate.render` gives it.
    #[getter]
    fn text(&self) -> &str {
        &self.inner.text
    }

    /// The parts of the text that came with the arguments and not from the template: start and stop
    /// of each, in characters, in order.
    #[getter]
    fn given(&self) -> Vec<(usize, usize)> {
        let (mut byte, mut chars) = (0, 0);
        let mut place = |to: usize| {
            chars += self
                .inner
                .text
                .get(byte..to)
                .map_or(0, |s| s.chars().count());
            byte = to;
            chars
        };
        let given = self.inner.given.iter();
        given.map(|r| (place(r.start), place(r.end))).collect()
    }

    /// What stands in front of the last place where `mark` came with the arguments; None where it
    /// did not.
    fn before(&self, #[pyo3(from_py_with = named::mark)] mark: String) -> Option<Self> {
        let inner = self.inner.before(&mark)?;
        Some(Self { inner })
    }

    /// With other text in the places of the marks, each `mark` and a number of eight digits, that
    /// came with the arguments last: by number the parts of the text, and whether each may spell no
    /// control token. None where one did not come.
    fn with_parts(
        &self,
        #[pyo3(from_py_with = named::mark)] mark: String,
        texts: Vec<Vec<(String, bool)>>,
    ) -> Option<Self> {
        let inner = self.inner.with(&mark, &texts).ok()?;
        Some(Self { inner })
    }

    fn __repr__(&self) -> String {
        format!(
            "<onegraph.Rendering of {} characters>",
            self.inner.text.chars().count()
        )
    }
}
