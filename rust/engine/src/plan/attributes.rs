//! What some operations have beside buffers, weights and numbers.

use serde::{Deserialize, Serialize};

use super::WeightId;

/// Which two values of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeStyle {
    /// `2i` and `2i + 1`.
    Interleaved,
    /// `i` and `i + rope_dim / 2`.
    Halves,
}

impl RopeStyle {
    /// In listings.
    pub fn name(self) -> &'static str {
        match self {
            RopeStyle::Interleaved => "interleaved",
            RopeStyle::Halves => "halves",
        }
    }
}

/// An RMSNorm over whole rows, where it is part of a product.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// A vector as long as the rows.
    pub weight: WeightId,
    pub eps: f32,
}

/// How a router's logits become the weights of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Each logit's own sigmoid.
    Sigmoid,
    /// Softmax over those that are chosen.
    SelectedSoftmax,
}

/// Groups of experts, of which a row goes to some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    pub count: usize,
    pub used: usize,
}

/// Consecutive values of a row of `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPart {
    pub first: usize,
    pub of: usize,
}

/// Which row of a table is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableRow {
    /// The first, to every row alike.
    First,
    /// The one of the row's position.
    Position,
    /// The one of the text of a pair that the row is of.
    Type,
}
