//! `_native.Embedding`: a text on its way to its vector.
use std::time::Duration;

use onegraph::engine::{EmbedRequest, Pooling, Ticket, Wait};
use onegraph::{Error, Result};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::errors::to_py;
use crate::llm::{count, counts, nearest, wait};

/// A text that is being embedded; dropping it cancels it.
#[pyclass(frozen, module = "onegraph._native")]
pub struct Embedding {
    pub ticket: Ticket<Vec<f32>>,
}

/// What `Engine.embed` and `Engine.offer_embedding` are told.
pub fn request(
    ids: &[i64],
    pooling: Option<&str>,
    dimensions: Option<i64>,
    normalize: bool,
    priority: i64,
) -> Result<EmbedRequest> {
    Ok(EmbedRequest {
        ids: counts("text", ids)?,
        pooling: pooling.map(Pooling::from_name).transpose()?,
        dimensions: dimensions.map(|n| count("dimensions", n)).transpose()?,
        normalize,
        priority: nearest(priority),
        asked: None,
    })
}

fn write(py: Python<'_>, vector: &[f32], out: &PyBuffer<f32>) -> PyResult<()> {
    let cells = out
        .as_mut_slice(py)
        .filter(|cells| cells.len() == vector.len());
    let cells = cells.ok_or_else(|| {
        to_py(Error::Argument {
            name: "out",
            value: format!("{} numbers", out.item_count()),
            reason: format!("must be {} writable, contiguous numbers", vector.len()),
        })
    })?;
    let pairs = cells.iter().zip(vector);
    pairs.for_each(|(cell, x)| cell.set(*x));
    Ok(())
}

#[pymethods]
impl Embedding {
    /// Writes the vector into `out`, float32, once it is there; says whether it is.
    fn poll(&self, py: Python<'_>, out: PyBuffer<f32>) -> PyResult<bool> {
        match self.ticket.next(Duration::ZERO).map_err(to_py)? {
            Wait::Item(vector) => write(py, &vector, &out).map(|()| true),
            Wait::TimedOut => Ok(false),
            Wait::End => Err(to_py(Error::Cancelled)),
        }
    }

    /// Waits for the vector and writes it into `out`, float32.
    fn collect(&self, py: Python<'_>, out: PyBuffer<f32>) -> PyResult<()> {
        match wait(py, &self.ticket)? {
            Some(vector) => write(py, &vector, &out),
            None => Err(to_py(Error::Cancelled)),
        }
    }

    /// Ends it soon.
    fn cancel(&self) {
        self.ticket.cancel();
    }
}
