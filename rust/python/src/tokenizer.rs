//! `onegraph.Tokenizer` and its streaming decoder.
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

use onegraph::template;
use onegraph::tokenizer::{self, Decoder};
use onegraph::weights::Model;
use onegraph::Error;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{self, named};
use crate::errors::{attached, detached, to_py};
use crate::stop;
use crate::template::Rendering;

/// Text to token ids and back, from the metadata of a GGUF file (whole or vocabulary-only).
///
/// Raises `FileError` where the file cannot be read, `ModelError` where its vocabulary is damaged or
/// not supported; it and its methods raise `ArgumentError` for values that are not what they take.
#[pyclass(frozen, module = "onegraph")]
pub struct Tokenizer {
    pub inner: Arc<tokenizer::Tokenizer>,
}

/// Runs `encode` without the GIL; a signal ends it, and so does a [`Stop`](stop::Stop).
pub fn interruptible(
    py: Python<'_>,
    encode: impl FnOnce(&mut dyn FnMut() -> bool) -> Option<Vec<u32>> + Send,
) -> PyResult<Vec<u32>> {
    let mut raised = None;
    let ids = detached(py, || {
        let ids = encode(&mut || {
            if stop::is_told() {
                return false;
            }
            raised = attached(|py| py.check_signals()).err();
            raised.is_none()
        });
        ids.ok_or(Error::Cancelled)
    });
    raised.map_or(ids, Err)
}

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, #[pyo3(from_py_with = named::path)] path: PathBuf) -> PyResult<Self> {
        let inner = detached(py, || {
            tokenizer::Tokenizer::from_gguf(&Model::open(&path)?.gguf)
        })?;
        Ok(Tokenizer {
            inner: Arc::new(inner),
        })
    }

    /// Token ids of `text`.
    ///
    /// `add_special` adds the begin and end tokens the model was trained with. `parse_special` lets the
    /// text spell control tokens: only for text of a trusted template.
    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn encode(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::text)] text: String,
        #[pyo3(from_py_with = named::add_special)] add_special: bool,
        #[pyo3(from_py_with = named::parse_special)] parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let whole = 0..text.len();
        let trusted = if parse_special {
            slice::from_ref(&whole)
        } else {
            &[]
        };
        interruptible(py, |go_on| {
            self.inner.encode_while(&text, add_special, trusted, go_on)
        })
    }

    /// Token ids of a rendered conversation. Only the template's own parts spell control tokens; in
    /// what came with the arguments, their spelling is plain text.
    #[pyo3(signature = (rendering, add_special=false))]
    fn encode_rendering(
        &self,
        py: Python<'_>,
        rendering: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::add_special)] add_special: bool,
    ) -> PyResult<Vec<u32>> {
        let Ok(rendering) = rendering.cast::<Rendering>() else {
            let expected = "must be what ChatTemplate.rendering gave";
            return Err(arguments::refuse(
                "rendering",
                arguments::shown(rendering),
                expected,
            ));
        };
        let template::Rendering { text, given } = &rendering.get().inner;
        interruptible(py, |go_on| {
            self.inner.encode_given(text, add_special, given, go_on)
        })
    }

    /// The least number of tokens that a text can be, known without making them.
    #[pyo3(name = "_fewest")]
    fn fewest(&self, #[pyo3(from_py_with = named::text)] text: String) -> usize {
        self.inner.fewest(&text)
    }

    /// Text of `ids`; invalid UTF-8 is U+FFFD. `skip_special` leaves control tokens out.
    #[pyo3(signature = (ids, skip_special=true))]
    fn decode(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::ids)] ids: Vec<u32>,
        #[pyo3(from_py_with = named::skip_special)] skip_special: bool,
    ) -> PyResult<String> {
        detached(py, || self.inner.decode(&ids, skip_special))
    }

    /// A decoder fed one id at a time. `continuation` keeps a leading space.
    #[pyo3(signature = (skip_special=true, continuation=false))]
    fn stream(
        &self,
        #[pyo3(from_py_with = named::skip_special)] skip_special: bool,
        #[pyo3(from_py_with = named::continuation)] continuation: bool,
    ) -> StreamDecoder {
        StreamDecoder {
            decoder: if continuation {
                Decoder::continuation(skip_special)
            } else {
                Decoder::new(&self.inner, skip_special)
            },
            tokenizer: self.inner.clone(),
        }
    }

    /// The bytes token `id` stands for; not always whole characters.
    fn token_bytes<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::id)] id: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.inner.checked_piece(id).map_err(to_py)?;
        Ok(PyBytes::new(py, piece))
    }

    /// Token `id` as the file spells it.
    fn token_text(&self, #[pyo3(from_py_with = named::id)] id: u32) -> PyResult<&str> {
        self.inner.checked_piece(id).map_err(to_py)?;
        Ok(self.inner.vocab().text(id))
    }

    /// The token the file spells `text`.
    fn token_id(&self, #[pyo3(from_py_with = named::text)] text: String) -> Option<u32> {
        self.inner.vocab().id(&text)
    }

    /// Whether `id` is a control or unknown token, no part of the text.
    fn is_special(&self, #[pyo3(from_py_with = named::id)] id: u32) -> bool {
        self.inner.is_special(id)
    }

    /// How many tokens the vocabulary has.
    #[getter]
    fn n_vocab(&self) -> usize {
        self.inner.n_vocab()
    }

    /// The token that begins a text.
    #[getter]
    fn bos_id(&self) -> Option<u32> {
        self.inner.vocab().bos
    }

    /// The token that ends a text.
    #[getter]
    fn eos_id(&self) -> Option<u32> {
        self.inner.vocab().eos
    }

    /// The token that ends a turn of a chat.
    #[getter]
    fn eot_id(&self) -> Option<u32> {
        self.inner.vocab().eot
    }

    /// The tokens of fill-in-the-middle: before the text in front of a gap, before that behind it, and before
    /// what fills it; None where the model has none.
    #[getter]
    fn infill_ids(&self) -> Option<(u32, u32, u32)> {
        let infill = self.inner.vocab().infill?;
        Some((infill.prefix, infill.suffix, infill.middle))
    }

    /// The token in front of the name of each file, where fill-in-the-middle has one.
    #[getter]
    fn file_id(&self) -> Option<u32> {
        self.inner.vocab().infill?.file
    }

    /// Whether `encode` begins with `bos_id`.
    #[getter]
    fn add_bos(&self) -> bool {
        self.inner.add_bos()
    }

    /// Whether `encode` ends with `eos_id`.
    #[getter]
    fn add_eos(&self) -> bool {
        self.inner.add_eos()
    }

    /// Ids that end generation, ascending.
    #[getter]
    fn end_of_text_ids(&self) -> Vec<u32> {
        self.inner.vocab().end_of_text().to_vec()
    }

    /// Bytes no token spells: encoding drops them. Empty for most vocabularies.
    #[getter]
    fn missing_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.missing_bytes())
    }

    fn __len__(&self) -> usize {
        self.inner.n_vocab()
    }

    fn __repr__(&self) -> String {
        format!(
            "<onegraph.Tokenizer of {} tokens, {}>",
            self.inner.n_vocab(),
            self.inner.kind()
        )
    }
}

/// Text of tokens as they come; never a part of a character. From `Tokenizer.stream`.
#[pyclass(module = "onegraph")]
pub struct StreamDecoder {
    tokenizer: Arc<tokenizer::Tokenizer>,
    decoder: Decoder,
}

#[pymethods]
impl StreamDecoder {
    /// The text that `id` completes, often empty in the middle of a character.
    fn push(&mut self, #[pyo3(from_py_with = named::id)] id: u32) -> PyResult<String> {
        self.decoder.push(&self.tokenizer, id).map_err(to_py)
    }

    /// What was still waiting, as U+FFFD.
    fn finish(&mut self) -> String {
        self.decoder.finish()
    }
}
