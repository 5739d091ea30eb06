//! Small layers behind the pooling of a text's states, which the host computes: a reranker's head, and the
//! layers that make a model's vectors of the pooled ones.
//!
//! The order of their sums is defined: of each row from the bias or +0 on, `w x` in column order, all in
//! float64.

use std::sync::Arc;

use crate::backend::Weights;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan;
use crate::weights::Model;

/// Most numbers of a matrix: such a layer is small.
const MOST: usize = 1 << 24;

/// Those that make vectors, in order.
const LAYERS: [&str; 2] = ["dense_2", "dense_3"];

/// The numbers of a tensor of this shape, where there are some and not too many; of a matrix, where its rows
/// have so many.
fn size(shape: &[usize], n_in: Option<usize>) -> Option<usize> {
    let fits = n_in.is_none_or(|n_in| shape.first() == Some(&n_in));
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    n.filter(|n| fits && (1..=MOST).contains(n))
}

/// A product with a matrix.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `[n_in][n_out]`: the sums of neighbouring rows go on side by side.
    weight: Vec<f32>,
    /// `[n_out]`, or none.
    bias: Vec<f32>,
    n_out: usize,
}

impl Layer {
    /// Of a matrix `[n_out][n_in]`.
    pub fn new(weight: &[f32], bias: Vec<f32>, n_in: usize) -> Self {
        let n_out = weight.len() / n_in;
        let columns = (0..n_in).flat_map(|k| weight.iter().skip(k).step_by(n_in));
        Self {
            weight: columns.copied().collect(),
            bias,
            n_out,
        }
    }

    /// The layer of this name, where the file has it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for one of the wrong shape.
    pub fn read(config: &Config, model: &Model, name: &str, n_in: usize) -> Result<Option<Self>> {
        let read = |part: &str| -> Result<Option<Vec<f32>>> {
            let name = format!("{name}.{part}");
            let Some(spec) = config.tensors.get(&name) else {
                return Ok(None);
            };
            let Some(n) = size(&spec.shape, (part != "bias").then_some(n_in)) else {
                return Err(Error::Tensor {
                    name,
                    found: format!("the shape {:?}", spec.shape),
                    expected: match part {
                        "bias" => "a number for each row of its matrix".into(),
                        _ => format!("rows of {n_in}"),
                    },
                    remedy:
                        "the metadata and the tensors disagree: convert or fetch the model again"
                            .into(),
                });
            };
            let mut values = vec![0.0; n];
            let weight = plan::Weight {
                name,
                n_in: n,
                n_out: 1,
                n_expert: 1,
                ty: spec.ty,
                share: None,
            };
            model.vector(&weight, &mut values)?;
            Ok(Some(values))
        };
        let Some(weight) = read("weight")? else {
            return Ok(None);
        };
        let made = Self::new(&weight, read("bias")?.unwrap_or_default(), n_in);
        if !made.bias.is_empty() && made.bias.len() != made.n_out {
            return Err(Error::Tensor {
                name: format!("{name}.bias"),
                found: format!("{} numbers", made.bias.len()),
                expected: format!("{}, the rows of its matrix", made.n_out),
                remedy: "the tensors disagree: convert or fetch the model again".into(),
            });
        }
        Ok(Some(made))
    }

    /// Rows of its matrix.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Its product.
    pub fn of(&self, x: &[f64]) -> Vec<f64> {
        let mut sums: Vec<f64> = match self.bias.is_empty() {
            true => vec![0.0; self.n_out],
            false => self.bias.iter().map(|bias| f64::from(*bias)).collect(),
        };
        for (column, x) in self.weight.chunks_exact(self.n_out).zip(x) {
            let pairs = sums.iter_mut().zip(column);
            pairs.for_each(|(sum, w)| *sum += f64::from(*w) * x);
        }
        sums
    }
}

/// The layers that make a text's vector of its pooled states.
#[derive(Debug)]
pub struct Dense(Vec<Layer>);

impl Dense {
    /// Those of a file, where it has some.
    ///
    /// # Errors
    /// [`Error::Tensor`] where one does not take what that before it gives, or where what the last gives is
    /// not as wide as the model.
    pub fn read(config: &Config, model: &Model) -> Result<Option<Arc<Self>>> {
        let (mut layers, mut width) = (Vec::new(), config.n_embd);
        for name in LAYERS {
            if let Some(layer) = Layer::read(config, model, name, width)? {
                width = layer.n_out;
                layers.push(layer);
            }
        }
        if width != config.n_embd {
            return Err(Error::Tensor {
                name: "dense_3.weight".into(),
                found: format!("a vector of {width} numbers behind it"),
                expected: format!("{}, as many as the model's states have", config.n_embd),
                remedy: "convert the model again, with all of its dense layers".into(),
            });
        }
        Ok((!layers.is_empty()).then(|| Arc::new(Self(layers))))
    }

    /// The vector that they make of another.
    pub fn of(&self, x: Vec<f64>) -> Vec<f64> {
        self.0.iter().fold(x, |x, layer| layer.of(&x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_without_rows_is_none() {
        assert_eq!(size(&[4, 3], Some(4)), Some(12));
        assert_eq!(size(&[3], None), Some(3));
        for shape in [
            &[4, 0][..],
            &[0, 1],
            &[3, 4],
            &[],
            &[4, usize::MAX],
            &[4, 1 << 23],
        ] {
            assert_eq!(size(shape, Some(4)), None, "{shape:?}");
        }
        assert_eq!(
            [&[0][..], &[1 << 25]].map(|shape| size(shape, None)),
            [None; 2]
        );
        // Of no columns there would be any number of rows.
        assert_eq!(size(&[0, 1], Some(0)), None);
    }

    #[test]
    fn sums_are_in_column_order() {
        let weight: Vec<f32> = (0..12).map(|i| (i as f32 * 0.7).sin() * 1e3).collect();
        let (bias, x) = (vec![0.5, -1.0, 1e-3], [0.3, 1e9, -0.1, 7.0]);
        let rows = weight.chunks_exact(4).zip(&bias);
        let wanted: Vec<f64> = rows
            .map(|(row, bias)| {
                let products = row.iter().zip(x);
                products.fold(f64::from(*bias), |sum, (w, x)| sum + f64::from(*w) * x)
            })
            .collect();
        let layer = Layer::new(&weight, bias, 4);
        assert_eq!(layer.of(&x), wanted);
        let plain = Layer::new(&weight, vec![], 4);
        let both = Dense(vec![plain.clone(), Layer::new(&[1.0, 2.0, 3.0], vec![], 3)]);
        let inner = plain.of(&x);
        assert_eq!(
            both.of(x.to_vec()),
            [inner[0] + 2.0 * inner[1] + 3.0 * inner[2]]
        );
    }
}
