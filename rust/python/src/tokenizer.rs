//! `onegraph.Tokenizer` and its streaming decoder.
use std::path::PathBuf;
use std::sync::Arc;

use onegraph::tokenizer::{self, Decoder};
use onegraph::weights::Model;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{detached, to_py};

#[pyclass(frozen, module = "onegraph")]
pub struct Tokenizer {
    pub inner: Arc<tokenizer::Tokenizer>,
}

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let inner = detached(py, || {
            tokenizer::Tokenizer::from_gguf(&Model::open(&path)?.gguf)
        })?;
        Ok(Tokenizer {
            inner: Arc::new(inner),
        })
    }

    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        detached(py, || {
            Ok(self.inner.encode(text, add_special, parse_special))
        })
    }

    #[pyo3(signature = (ids, skip_special=true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special: bool) -> PyResult<String> {
        detached(py, || self.inner.decode(&ids, skip_special))
    }

    #[pyo3(signature = (skip_special=true, continuation=false))]
    fn stream(&self, skip_special: bool, continuation: bool) -> StreamDecoder {
        StreamDecoder {
            decoder: if continuation {
                Decoder::continuation(skip_special)
            } else {
                Decoder::new(&self.inner, skip_special)
            },
            tokenizer: self.inner.clone(),
        }
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> PyResult<Bound<'py, PyBytes>> {
        let piece = self.inner.checked_piece(id).map_err(to_py)?;
        Ok(PyBytes::new(py, piece))
    }

    fn token_text(&self, id: u32) -> PyResult<&str> {
        self.inner.checked_piece(id).map_err(to_py)?;
        Ok(self.inner.vocab().text(id))
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.vocab().id(text)
    }

    fn is_special(&self, id: u32) -> bool {
        self.inner.is_special(id)
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.inner.n_vocab()
    }

    #[getter]
    fn bos_id(&self) -> Option<u32> {
        self.inner.vocab().bos
    }

    #[getter]
    fn eos_id(&self) -> Option<u32> {
        self.inner.vocab().eos
    }

    #[getter]
    fn eot_id(&self) -> Option<u32> {
        self.inner.vocab().eot
    }

    #[getter]
    fn add_bos(&self) -> bool {
        self.inner.add_bos()
    }

    #[getter]
    fn add_eos(&self) -> bool {
        self.inner.add_eos()
    }

    #[getter]
    fn end_of_text_ids(&self) -> Vec<u32> {
        self.inner.vocab().end_of_text().to_vec()
    }

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

#[pyclass(module = "onegraph")]
pub struct StreamDecoder {
    tokenizer: Arc<tokenizer::Tokenizer>,
    decoder: Decoder,
}

#[pymethods]
impl StreamDecoder {
    fn push(&mut self, id: u32) -> PyResult<String> {
        self.decoder.push(&self.tokenizer, id).map_err(to_py)
    }

    fn finish(&mut self) -> String {
        self.decoder.finish()
    }
}
