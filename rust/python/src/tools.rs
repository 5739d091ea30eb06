//! `_native.Reading`: how to read what a model says; `_native.Answer`: one answer that is taken apart
//! as it comes. `onegraph.answers` puts the public classes around what they give.
use std::sync::{Mutex, PoisonError};

use onegraph::grammar::{of_answer, Callable, Constraint, Held};
use onegraph::tools::{
    self, Event, Format, Found, Parser, Probe, Thought, Tools, Written, FORMATS,
};
use pyo3::prelude::*;

use crate::errors::{detached, to_py};
use crate::sampling::constraint;
use crate::template::{tried, ChatTemplate, Rendering};
use crate::tokenizer::Tokenizer;

/// Name of each wire format, and what a call looks like in it.
#[pyfunction]
pub fn tool_formats() -> Vec<(&'static str, &'static str)> {
    FORMATS.iter().map(|f| (f.name, f.looks)).collect()
}

/// How to read the answers of a model with a chat template.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Reading {
    inner: tools::Reading,
    writes: bool,
}

#[pymethods]
impl Reading {
    /// Reasoning alone, where no tools are offered.
    #[staticmethod]
    fn without_tools(template: &ChatTemplate) -> Self {
        let thought = Thought::of_template(template.inner.source());
        Self {
            inner: tools::Reading {
                format: None,
                thought,
            },
            writes: true,
        }
    }

    /// Calls too: in the format of this name, or in the one that the template writes.
    #[staticmethod]
    fn with_tools(py: Python<'_>, template: &ChatTemplate, name: Option<&str>) -> PyResult<Self> {
        let named = name.map(Format::by_name).transpose().map_err(to_py)?;
        // What a template says against a probe is an answer too.
        let render = |probe: Probe| {
            tried(py, || {
                let (tools, opened) = (Some(probe.tools), probe.opened);
                template
                    .inner
                    .rendering(probe.messages, tools, opened, Vec::new())
            })
        };
        let [first, second] = Probe::all().map_err(to_py)?;
        let renderings = [render(first)?, render(second)?];
        let source = template.inner.source();
        let found = match named {
            Some(format) => Found::named(format, &renderings),
            None => Found::read(source, &renderings).map_err(to_py)?,
        };
        Ok(Self {
            inner: tools::Reading {
                format: Some(found.format),
                thought: Thought::of_template(source),
            },
            writes: found.writes,
        })
    }

    /// The name of the format of calls.
    #[getter]
    fn format(&self) -> Option<&'static str> {
        self.inner.format.map(|f| f.name)
    }

    /// Whether the template writes the calls of a conversation.
    #[getter]
    fn writes(&self) -> bool {
        self.writes
    }

    /// Whether there is nothing to take apart.
    #[getter]
    fn is_plain(&self) -> bool {
        self.inner.is_plain()
    }

    /// A call as the model writes it: parts of text, and whether they are the call's own and may
    /// spell no control token.
    fn written(&self, name: &str, arguments: &str) -> Vec<(String, bool)> {
        let format = self.inner.format;
        let parts = format.map_or_else(Vec::new, |f| f.written(name, arguments));
        parts
            .into_iter()
            .map(|part| match part {
                Written::Own(text) => (text, false),
                Written::Given(text) => (text, true),
            })
            .collect()
    }

    /// Ids of the control tokens whose spelling an [`Answer`] must be fed.
    fn shown(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.inner.markers().into_iter().filter_map(|marker| {
            let id = tokenizer.inner.vocab().id(marker)?;
            tokenizer.inner.is_special(id).then_some(id)
        });
        ids.collect()
    }

    /// How to read an answer to a prompt: without reasoning where the prompt has closed it.
    #[pyo3(signature = (prompt, *, continues))]
    fn behind(&self, prompt: &Rendering, continues: bool) -> Self {
        let thought = self.inner.thought;
        let closed = tools::closed(&prompt.inner, thought, continues);
        Self {
            inner: tools::Reading {
                thought: thought.filter(|_| !closed),
                ..self.inner
            },
            writes: self.writes,
        }
    }

    /// How an answer to a prompt opens and closes its reasoning, and whether the prompt has opened it; None
    /// where the model does not reason.
    #[pyo3(signature = (prompt, *, continues))]
    fn thought(&self, prompt: &Rendering, continues: bool) -> Option<(String, String, bool)> {
        let thought = self.inner.thought?;
        let (open, close) = thought.ends();
        let opened = tools::opened(&prompt.inner, Some(thought), continues);
        Some((open.into(), close.into(), opened))
    }

    /// The constraint of a whole answer to a prompt: of its text (`kind` and `texts`), or of calls of
    /// `tools`, names and schemas of arguments, which are `needed` or may be; `several` of them or one.
    #[pyo3(signature = (tokenizer, prompt, *, continues, text, tools, several, needed))]
    #[allow(clippy::too_many_arguments)]
    fn constraint(
        &self,
        py: Python<'_>,
        tokenizer: &Tokenizer,
        prompt: &Rendering,
        continues: bool,
        text: Option<(String, Vec<String>)>,
        tools: Vec<(String, String)>,
        several: bool,
        needed: bool,
    ) -> PyResult<(&'static str, Vec<String>)> {
        let opened = tools::opened(&prompt.inner, self.inner.thought, continues);
        let held = || -> onegraph::Result<Constraint> {
            let tools = tools
                .into_iter()
                .map(|(name, parameters)| Callable { name, parameters })
                .collect();
            let held = match (text, needed) {
                (Some((kind, texts)), _) => Held::Text {
                    constraint: constraint(&kind, texts)?,
                    tools,
                    several,
                },
                (None, true) => Held::Calls { tools, several },
                (None, false) => Held::CallsIfAny { tools, several },
            };
            of_answer(self.inner, &tokenizer.inner, opened, &held)
        };
        // Others go on: large schemas take a while.
        match detached(py, held)? {
            Constraint::Answer(text) => Ok(("answer", vec![text])),
            other => Err(to_py(onegraph::Error::Internal(format!("{other:?}")))),
        }
    }

    /// Reads one answer to a prompt. `tools` is the list that was offered, as JSON; ids of calls
    /// depend on `seed`.
    #[pyo3(signature = (prompt, tools, *, continues, seed))]
    fn answer(
        &self,
        prompt: &Rendering,
        tools: &str,
        continues: bool,
        seed: u64,
    ) -> PyResult<Answer> {
        let tools = Tools::from_json(tools).map_err(to_py)?;
        let opened = tools::opened(&prompt.inner, self.inner.thought, continues);
        Ok(Answer {
            parser: Mutex::new(Parser::new(self.inner, tools, opened, seed)),
        })
    }
}

/// An answer on its way.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Answer {
    parser: Mutex<Parser>,
}

#[pymethods]
impl Answer {
    /// What more text makes certain; see [`Said`].
    fn push(&self, text: &str) -> Vec<Said> {
        let mut parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.push(text).into_iter().map(Said).collect()
    }

    /// What was held when the text ended.
    fn finish(&self) -> Vec<Said> {
        let mut parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.finish().into_iter().map(Said).collect()
    }
}

/// An event as a tuple that begins with its kind: `("text", text)`, `("reasoning", text)`,
/// `("begun", index, id, name)`, `("arguments", index, delta)`, `("ended", index)`,
/// `("failed", index, text, reason)`.
pub struct Said(Event);

impl<'py> IntoPyObject<'py> for Said {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let tuple = match self.0 {
            Event::Text(text) => ("text", text).into_pyobject(py),
            Event::Reasoning(text) => ("reasoning", text).into_pyobject(py),
            Event::Begun { index, id, name } => ("begun", index, id, name).into_pyobject(py),
            Event::Arguments { index, delta } => ("arguments", index, delta).into_pyobject(py),
            Event::Ended { index } => ("ended", index).into_pyobject(py),
            Event::Failed {
                index,
                text,
                reason,
            } => ("failed", index, text, reason).into_pyobject(py),
        };
        tuple.map(Bound::into_any)
    }
}
