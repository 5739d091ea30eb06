//! The quant table for tests and for the tools in `models/`.
use onegraph::error::{Error, Result};
use onegraph::quant::{self, QuantType};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{detached, to_py};

/// `(name, id, block_elems, block_bytes, has_quantizer)` of every type of the table.
#[pyfunction]
pub fn quant_types() -> Vec<(&'static str, u32, usize, usize, bool)> {
    let row = |t: &QuantType| {
        (
            t.name,
            t.id,
            t.block_elems,
            t.block_bytes,
            t.quantize.is_some(),
        )
    };
    quant::TYPES.iter().map(row).collect()
}

/// Names of the types that keys and values may have, on the CPU or on a card.
#[pyfunction]
pub fn kv_types(on_card: bool) -> Vec<&'static str> {
    let held = quant::kv_types().filter(|t| !on_card || t.kernel.kv.is_some());
    held.map(|t| t.name).collect()
}

/// Expands whole blocks to little-endian float32.
#[pyfunction]
pub fn dequantize<'py>(
    py: Python<'py>,
    type_name: &str,
    data: PyBuffer<u8>,
) -> PyResult<Bound<'py, PyBytes>> {
    let ty = quant::by_name(type_name).map_err(to_py)?;
    let src = data.to_vec(py)?;
    let bytes = detached(py, || {
        let mut out = vec![0.0; whole_blocks(ty, &src, ty.block_bytes)? * ty.block_elems];
        (ty.dequantize)(&src, &mut out);
        Ok(out
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>())
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// Quantizes float32 to whole blocks.
#[pyfunction]
pub fn quantize<'py>(
    py: Python<'py>,
    type_name: &str,
    data: PyBuffer<f32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let ty = quant::by_name(type_name).map_err(to_py)?;
    let src = data.to_vec(py)?;
    let bytes = detached(py, || {
        let quantize = ty.quantize.ok_or_else(|| Error::Argument {
            name: "type_name",
            value: ty.name.into(),
            reason: "this type cannot be written; quant_types() lists those with a \
                     quantizer"
                .into(),
        })?;
        let mut out = vec![0; whole_blocks(ty, &src, ty.block_elems)? * ty.block_bytes];
        quantize(&src, &mut out);
        Ok(out)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

fn whole_blocks<T>(ty: &QuantType, data: &[T], block: usize) -> Result<usize> {
    if !data.len().is_multiple_of(block) {
        return Err(Error::Argument {
            name: "data",
            value: format!("{} items", data.len()),
            reason: format!("{} needs whole blocks; pass a multiple of {block}", ty.name),
        });
    }
    Ok(data.len() / block)
}
