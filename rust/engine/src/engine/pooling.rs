//! Embeddings: the hidden states of a text pooled into one vector.
//!
//! Every sum has a stated order, so that a vector has the same bits alone and among others, on every
//! device, and however its text is cut into passes:
//! - **last**: the state behind the last token.
//! - **cls**: the state of the first token, of models in which it has seen the whole text.
//! - **mean**: of each dimension the sum of the states of all tokens in their order, from +0, divided by
//!   their number; all of it in float64.
//! - **dense**: in models that have layers behind this, they make a vector of it ([`super::dense`]).
//! - **length 1**: of the dimensions that are wanted the sum of squares, in their order, from +0; each is
//!   divided by the root of it; all of it in float64. A vector of zeros stays one.
//! - At the end each number is rounded to float32, once.

use std::sync::Arc;

use super::dense::Dense;
use super::ranking::Head;
use super::request::Outlet;
use crate::config::PoolingType;
use crate::error::{Error, Result};

/// How the states of a text become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    Last,
    Mean,
    Cls,
    /// To a score, by a reranker's head.
    Rank,
}

impl Pooling {
    /// The one of this public name.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "last" => Ok(Self::Last),
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            "rank" => Ok(Self::Rank),
            _ => Err(Error::Argument {
                name: "pooling",
                value: format!("{name:?}"),
                reason: "must be last, mean or cls".into(),
            }),
        }
    }

    /// What a file asks for, of a model that looks ahead or not. Where it names none: the state behind the
    /// last token where that alone has seen the whole text, else the mean.
    ///
    /// # Errors
    /// [`Error::Argument`] for one that needs a head of its own, or a model that looks ahead.
    pub fn of_file(said: Option<PoolingType>, looks_ahead: bool) -> Result<Self> {
        match said {
            None | Some(PoolingType::None) if looks_ahead => Ok(Self::Mean),
            None | Some(PoolingType::None | PoolingType::Last) => Ok(Self::Last),
            Some(PoolingType::Mean) => Ok(Self::Mean),
            Some(PoolingType::Cls) => Self::Cls.of_model(looks_ahead),
            Some(PoolingType::Rank) => Err(not_made(
                PoolingType::Rank,
                "the model is a reranker: use rank to score documents for a query",
            )),
        }
    }

    /// The state that a reranker's head takes: that of a token which has seen all others.
    pub fn of_head(looks_ahead: bool) -> Self {
        match looks_ahead {
            true => Self::Cls,
            false => Self::Last,
        }
    }

    /// The same, where a model that looks ahead or not makes such vectors.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn of_model(self, looks_ahead: bool) -> Result<Self> {
        match self {
            Self::Cls if !looks_ahead => Err(not_made(
                PoolingType::Cls,
                "in this model, the first token sees no other",
            )),
            _ => Ok(self),
        }
    }

    /// How many of the last states of a piece of `n` tokens are needed, where it is the `last` of a text
    /// or not.
    fn wanted(self, n: usize, last: bool) -> usize {
        match self {
            Self::Mean | Self::Cls => n,
            Self::Last | Self::Rank => usize::from(last),
        }
    }
}

fn not_made(said: PoolingType, why: &str) -> Error {
    Error::Argument {
        name: "pooling",
        value: said.name().into(),
        reason: format!(
            "{why}; pooling=\"last\" or \"mean\" works, but the model was not trained for it"
        ),
    }
}

/// What is made of the pooled states.
#[derive(Debug, Clone)]
pub enum Behind {
    /// They are the vector.
    Nothing,
    Dense(Arc<Dense>),
    /// A score.
    Head(Arc<Head>),
}

/// A text that is being embedded.
pub struct Embedding {
    pub ids: Vec<u32>,
    /// The position from which on tokens are of the second text of a pair.
    pub second: usize,
    pooling: Pooling,
    dimensions: usize,
    normalize: bool,
    behind: Behind,
    /// `[n_embd]`, of the states so far.
    sum: Vec<f64>,
    /// States in the sum.
    n: usize,
    out: Outlet<Vec<f32>>,
}

impl Embedding {
    /// Of `ids`, by a model of width `n_embd`: the leading `dimensions` of what stands `behind` the pooling,
    /// of length 1 where they are to be normalized, or a score. The vector goes to `out`.
    pub fn new(
        ids: Vec<u32>,
        pooling: Pooling,
        [n_embd, dimensions]: [usize; 2],
        normalize: bool,
        behind: Behind,
        out: Outlet<Vec<f32>>,
    ) -> Self {
        Self {
            ids,
            second: usize::MAX,
            pooling,
            dimensions,
            normalize,
            behind,
            sum: vec![0.0; n_embd],
            n: 0,
            out,
        }
    }

    /// How many of the last states of a piece of `n` tokens are needed, which may be the `last` piece.
    pub fn wanted(&self, n: usize, last: bool) -> usize {
        self.pooling.wanted(n, last)
    }

    /// Takes the states of a piece that were wanted, `[wanted, n_embd]`.
    pub fn add(&mut self, states: &[f32]) {
        let most = match self.pooling {
            Pooling::Cls => 1usize.saturating_sub(self.n),
            Pooling::Last | Pooling::Mean | Pooling::Rank => usize::MAX,
        };
        for state in states.chunks_exact(self.sum.len()).take(most) {
            self.n += 1;
            let sums = self.sum.iter_mut().zip(state);
            sums.for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// Sends the vector.
    pub fn finish(self) {
        let made = mean(&self.sum, self.n).map(|mut whole| match &self.behind {
            Behind::Nothing => cut(&mut whole, self.dimensions, self.normalize),
            Behind::Dense(dense) => cut(&mut dense.of(whole), self.dimensions, self.normalize),
            Behind::Head(head) => vec![head.score(&whole)],
        });
        self.out.send(made);
    }

    /// Says why there will be none.
    pub fn fail(self, error: Error) {
        self.out.send(Err(error));
    }
}

/// The mean of `n` states, by their sum.
///
/// # Errors
/// [`Error::Embedding`] where the model's numbers overflowed.
fn mean(sum: &[f64], n: usize) -> Result<Vec<f64>> {
    // Of all: what overflowed in one dimension has made the others what they are.
    if let Some(dimension) = sum.iter().position(|x| !x.is_finite()) {
        return Err(Error::Embedding {
            dimension,
            value: sum[dimension].to_string(),
        });
    }
    Ok(sum.iter().map(|x| *x / n as f64).collect())
}

/// The leading `dimensions` as a vector.
fn cut(whole: &mut [f64], dimensions: usize, normalize: bool) -> Vec<f32> {
    let vector = whole.get_mut(..dimensions).unwrap_or_default();
    if normalize {
        let squares = vector.iter().fold(0.0f64, |sum, x| sum + *x * *x);
        if squares > 0.0 {
            let length = squares.sqrt();
            vector.iter_mut().for_each(|x| *x /= length);
        }
    }
    vector.iter().map(|x| *x as f32).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_mean_has_the_same_bits_however_its_text_is_cut() {
        let states: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin() * 1e3).collect();
        let pooled = |pieces: &[usize]| {
            let (out, items) = mpsc::channel();
            let out = Outlet::new(out, None);
            let (pooling, behind) = (Pooling::Mean, Behind::Nothing);
            let mut text = Embedding::new(vec![0; 10], pooling, [4, 4], true, behind, out);
            let mut rest = &states[..];
            for n in pieces {
                assert_eq!(text.wanted(*n, false), *n);
                text.add(&rest[..n * 4]);
                rest = &rest[n * 4..];
            }
            text.finish();
            items.recv().unwrap().unwrap()
        };
        let whole = pooled(&[10]);
        assert_eq!(whole, pooled(&[1, 2, 7]));
        assert_eq!(whole, pooled(&[1; 10]));
        let length: f64 = whole.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-6, "{length}");
    }

    #[test]
    fn vectors_are_as_their_definition_says() {
        let of = |n| mean(&[3.0, -4.0, 12.0], n).unwrap();
        assert_eq!(cut(&mut of(1), 2, true), [0.6, -0.8]);
        assert_eq!(cut(&mut of(2), 3, false), [1.5, -2.0, 6.0]);
        assert_eq!(cut(&mut [0.0; 2], 2, true), [0.0; 2]);
    }

    #[test]
    fn numbers_that_overflowed_are_an_error_that_says_where() {
        let text = mean(&[1.0, f64::NAN], 1).unwrap_err().to_string();
        assert!(
            text.contains("dimension 1") && text.contains("NaN"),
            "{text}"
        );
        let text = mean(&[1.0, f64::INFINITY], 1).unwrap_err().to_string();
        assert!(
            text.contains("dimension 1") && text.contains("inf"),
            "{text}"
        );
    }

    #[test]
    fn a_file_may_ask_for_what_is_not_made() {
        for (said, named) in [(PoolingType::Cls, "cls"), (PoolingType::Rank, "rank")] {
            let text = Pooling::of_file(Some(said), false).unwrap_err().to_string();
            assert!(text.starts_with(&format!("pooling = {named}: ")), "{text}");
            assert!(text.contains("pooling=\"last\""), "{text}");
        }
        for (said, of_decoder, of_encoder) in [
            (None, Pooling::Last, Pooling::Mean),
            (Some(PoolingType::None), Pooling::Last, Pooling::Mean),
            (Some(PoolingType::Last), Pooling::Last, Pooling::Last),
            (Some(PoolingType::Mean), Pooling::Mean, Pooling::Mean),
        ] {
            assert_eq!(Pooling::of_file(said, false), Ok(of_decoder));
            assert_eq!(Pooling::of_file(said, true), Ok(of_encoder));
        }
        let cls = Some(PoolingType::Cls);
        assert_eq!(Pooling::of_file(cls, true), Ok(Pooling::Cls));
        assert!(Pooling::of_file(Some(PoolingType::Rank), true).is_err());
    }
}
