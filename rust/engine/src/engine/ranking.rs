//! Scores of documents for a query: the head of a reranker, applied to the hidden state that has seen
//! both.
//!
//! The head is small and the order of its sums is defined, so that a score has the same bits alone and
//! among others, and on every device: for each row, starting from the bias or +0, `w x` in column order,
//! all in float64. If there is a `cls`, it comes first, followed by `tanh`; then `cls.output`. For one
//! number the score is `1 / (1 + exp(-s))`, for two the softmax share of the first. It is rounded to
//! float32 once, at the end.

use std::ops::Range;
use std::sync::Arc;

use super::Engine;
use crate::backend::Weights;
use crate::config::{Config, PoolingType};
use crate::error::{Error, Result};
use crate::plan;
use crate::weights::Model;

/// Where the file says what a query and a document are to the model.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// Most numbers of a matrix: a head is small.
const MOST: usize = 1 << 24;

/// The numbers of a tensor of this shape, where there are some and not too many; of a matrix, where its rows
/// have so many.
fn size(shape: &[usize], n_in: Option<usize>) -> Option<usize> {
    let fits = n_in.is_none_or(|n_in| shape.first() == Some(&n_in));
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    n.filter(|n| fits && (1..=MOST).contains(n))
}

/// A product with a matrix.
struct Layer {
    /// `[n_out][n_in]`.
    weight: Vec<f32>,
    /// `[n_out]`, or none.
    bias: Vec<f32>,
    n_in: usize,
}

impl Layer {
    /// The layer of this name, where the file has it.
    fn read(config: &Config, model: &Model, name: &str, n_in: usize) -> Result<Option<Self>> {
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
            };
            model.vector(&weight, &mut values)?;
            Ok(Some(values))
        };
        let Some(weight) = read("weight")? else {
            return Ok(None);
        };
        let (bias, n_out) = (read("bias")?.unwrap_or_default(), weight.len() / n_in);
        if !bias.is_empty() && bias.len() != n_out {
            return Err(Error::Tensor {
                name: format!("{name}.bias"),
                found: format!("{} numbers", bias.len()),
                expected: format!("{n_out}, the rows of its matrix"),
                remedy: "the tensors disagree: convert or fetch the model again".into(),
            });
        }
        Ok(Some(Self { weight, bias, n_in }))
    }

    fn of(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(self.n_in).enumerate();
        rows.map(|(i, row)| {
            let bias = self.bias.get(i).map_or(0.0, |bias| f64::from(*bias));
            let products = row.iter().zip(x);
            products.fold(bias, |sum, (w, x)| sum + f64::from(*w) * x)
        })
        .collect()
    }
}

/// The head of a reranker.
pub struct Head {
    inner: Option<Layer>,
    out: Layer,
    /// What a query and a document are written into.
    template: Option<String>,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a head of {} scores",
            self.out.weight.len() / self.out.n_in
        )
    }
}

impl Head {
    /// That of a file that is a reranker's, and has it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for one that is missing or of the wrong shape; [`Error::Metadata`] for rows of
    /// another kind for documents than for queries.
    pub fn read(config: &Config, model: &Model) -> Result<Option<Arc<Self>>> {
        let has_head = config.tensors.contains_key("cls.output.weight");
        if config.pooling != Some(PoolingType::Rank) || !has_head {
            return Ok(None);
        }
        let types = config.tensors.get("token_types.weight");
        let n_types = types.and_then(|types| types.shape.get(1)).copied();
        if let Some(n) = n_types.filter(|n| *n > 1) {
            return Err(Error::Metadata {
                key: format!("{}.pooling_type", config.arch),
                value: "4 (rank)".into(),
                expected: format!("0 to 3: rerankers with {n} token types are not supported"),
            });
        }
        let inner = Layer::read(config, model, "cls", config.n_embd)?;
        let width = inner
            .as_ref()
            .map_or(config.n_embd, |l| l.weight.len() / l.n_in);
        let out = Layer::read(config, model, "cls.output", width)?;
        let out = out.filter(|out| matches!(out.weight.len() / out.n_in, 1 | 2));
        let Some(out) = out else {
            return Err(Error::Tensor {
                name: "cls.output.weight".into(),
                found: "other rows".into(),
                expected: "1 row, a reranker's score, or 2, of yes and of no".into(),
                remedy: "use a model converted as a reranker".into(),
            });
        };
        Ok(Some(Arc::new(Self {
            inner,
            out,
            template: model.gguf.get_str(TEMPLATE)?.map(str::to_owned),
        })))
    }

    /// The score of a hidden state, from 0 to 1.
    pub fn score(&self, state: &[f64]) -> f32 {
        let inner = self.inner.as_ref().map(|inner| {
            let mut x = inner.of(state);
            x.iter_mut().for_each(|x| *x = x.tanh());
            x
        });
        // Of two, by how much the other is more likely.
        let below = match self.out.of(inner.as_deref().unwrap_or(state))[..] {
            [s] => -s,
            [yes, no, ..] => no - yes,
            [] => f64::NAN,
        };
        (1.0 / (1.0 + below.exp())) as f32
    }
}

/// A query and a document in a template, and the ranges of bytes that are theirs.
fn written(template: &str, query: &str, document: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut given) = (String::new(), Vec::new());
    let mut rest = template;
    loop {
        let next = [("{query}", query), ("{document}", document)];
        let next = next
            .into_iter()
            .filter_map(|(mark, of)| Some((rest.find(mark)?, mark, of)));
        let Some((at, mark, of)) = next.min_by_key(|(at, ..)| *at) else {
            text.push_str(rest);
            return (text, given);
        };
        text.push_str(&rest[..at]);
        given.push(text.len()..text.len() + of.len());
        text.push_str(of);
        rest = &rest[at + mark.len()..];
    }
}

impl Engine {
    /// Tokens of a query and a document as the reranker was trained to see them; `None` where `go_on`
    /// says so.
    ///
    /// # Errors
    /// [`Error::Argument`] of a model that is none, [`Error::TextLength`].
    pub fn pair(
        &self,
        query: &str,
        document: &str,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<u32>>> {
        let loaded = &self.loaded;
        let head = loaded.head.as_ref().ok_or_else(no_reranker)?;
        let (tokenizer, vocab) = (&loaded.tokenizer, loaded.tokenizer.vocab());
        let ids = match &head.template {
            Some(template) => {
                let (text, given) = written(template, query, document);
                tokenizer.encode_given(&text, false, &given, go_on)
            }
            None => {
                let mut ids = Vec::new();
                ids.extend(vocab.bos.filter(|_| tokenizer.add_bos()));
                for text in [query, document] {
                    let Some(of) = tokenizer.encode_while(text, false, &[], go_on) else {
                        return Ok(None);
                    };
                    ids.extend(of);
                    ids.extend(vocab.eos.filter(|_| tokenizer.add_eos()));
                }
                Some(ids)
            }
        };
        let Some(ids) = ids else {
            return Ok(None);
        };
        self.check_embedded(ids.len(), false)?;
        Ok(Some(ids))
    }
}

/// The error of a model that gives no scores.
pub fn no_reranker() -> Error {
    Error::Argument {
        name: "pooling",
        value: "rank".into(),
        reason: "the model is not a reranker: its file has no scoring head".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_stays_as_it_is_in_a_template() {
        let (text, given) = written("<q>{query}</q>{document}!", "a {document}", "{query}");
        assert_eq!(text, "<q>a {document}</q>{query}!");
        let given: Vec<&str> = given.into_iter().map(|range| &text[range]).collect();
        assert_eq!(given, ["a {document}", "{query}"]);
        assert_eq!(written("none", "a", "b"), ("none".into(), vec![]));
    }

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
    fn scores_are_as_their_definition_says() {
        let layer = |weight: &[f32], bias: &[f32], n_in| Layer {
            weight: weight.to_vec(),
            bias: bias.to_vec(),
            n_in,
        };
        let of = |inner, out| Head {
            inner,
            out,
            template: None,
        };
        let one = of(None, layer(&[2.0, -1.0], &[0.5], 2));
        assert_eq!(one.score(&[0.0, 0.5]), 0.5);
        assert_eq!(one.score(&[1e9, 0.0]), 1.0);
        assert!(one.score(&[f64::NAN, 0.0]).is_nan());
        let two = of(None, layer(&[1.0, 0.0, 0.0, 1.0], &[], 2));
        assert_eq!(two.score(&[3.0, 3.0]), 0.5);
        assert!((two.score(&[1.0, 0.0]) - 0.731_058_6).abs() < 1e-7);
        let inner = layer(&[1.0, 1.0], &[0.0], 2);
        let deep = of(Some(inner), layer(&[1.0], &[0.0], 1));
        let wanted = 1.0 / (1.0 + (-(0.3f64.tanh())).exp());
        assert_eq!(deep.score(&[0.1, 0.2]), wanted as f32);
    }
}
