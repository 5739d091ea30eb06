//! Scores of documents for a query: the head of a reranker, applied to the hidden state that has seen
//! both.
//!
//! The order of its sums is defined ([`super::dense`]), so that a score has the same bits alone and among
//! others, and on every device. If there is a `cls`, it comes first, followed by `tanh`; then `cls.output`. For one
//! number the score is `1 / (1 + exp(-s))`, for two the softmax share of the first. It is rounded to
//! float32 once, at the end.

use std::ops::Range;
use std::sync::Arc;

use super::dense::Layer;
use super::Engine;
use crate::config::{Config, PoolingType};
use crate::error::{Error, Result};
use crate::weights::Model;

/// Where the file says what a query and a document are to the model.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// The head of a reranker.
pub struct Head {
    inner: Option<Layer>,
    out: Layer,
    /// What a query and a document are written into.
    template: Option<String>,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a head of {} scores", self.out.n_out())
    }
}

impl Head {
    /// That of a file that is a reranker's, and has it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for one that is missing or of the wrong shape.
    pub fn read(config: &Config, model: &Model) -> Result<Option<Arc<Self>>> {
        let has_head = config.tensors.contains_key("cls.output.weight");
        if config.pooling != Some(PoolingType::Rank) || !has_head {
            return Ok(None);
        }
        let inner = Layer::read(config, model, "cls", config.n_embd)?;
        let width = inner.as_ref().map_or(config.n_embd, Layer::n_out);
        let out = Layer::read(config, model, "cls.output", width)?;
        let out = out.filter(|out| matches!(out.n_out(), 1 | 2));
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
                for (text, between) in [(query, tokenizer.separator()), (document, None)] {
                    let Some(of) = tokenizer.encode_while(text, false, &[], go_on) else {
                        return Ok(None);
                    };
                    ids.extend(of);
                    ids.extend(vocab.eos.filter(|_| tokenizer.add_eos()));
                    ids.extend(between);
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

/// The position of the first token behind a query and the token that ends it.
pub fn second_of(ids: &[u32], end: Option<u32>) -> usize {
    let at = ids.iter().position(|id| Some(*id) == end);
    at.map_or(usize::MAX, |at| at + 1)
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
    fn scores_are_as_their_definition_says() {
        let layer = |weight: &[f32], bias: &[f32], n_in| Layer::new(weight, bias.to_vec(), n_in);
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
