//! Logits and a seed → a token.

/// How to choose the next token.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// 0 is greedy.
    pub temperature: f32,
}

/// Log-probabilities of a drawn token and its rivals.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the drawn token's probability under the unmodified logits.
    pub logprob: f32,
    /// The most probable tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}
