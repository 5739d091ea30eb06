//! Rows of activations that have no block fixed point: where products report them, and how the host
//! reads that.

use super::joined::With;
use super::lowering::{Lowering, Pass};
use super::params::Overflows;
use super::product::Op;
use crate::error::Error;
use crate::plan::fuse::Fused;
use crate::plan::{Plan, Rows};

/// Where `op` reports rows of its x in `pass`.
pub fn overflows(l: &Lowering, op: &Op<'_>, pass: &Pass) -> Overflows {
    // Of several products of a row the first.
    let first = match op.with {
        With::Choice(_, Some(shared)) => shared.number,
        _ => op.number,
    };
    let is_picked = l.plan.buffer(op.x).rows == Rows::Out && !pass.all;
    Overflows {
        words: l.at.overflows,
        positions: pass.inputs.positions,
        slots: pass.inputs.slots,
        rows: if is_picked { pass.inputs.out_rows } else { 0 },
        n_slots: l.n_slots as u32,
        product: first as u32,
    }
}

/// The error of a word that a product left for `slot`: its row's position in the high half, then 16
/// bits of the product's number and the upper 16 of the value. None for the word of no report.
pub fn error(word: u64, slot: usize, plan: &Plan, fused: &[Fused]) -> Option<Error> {
    if word == 0 {
        return None;
    }
    let tensor = match fused.get(word as usize >> 16 & 0xffff) {
        Some(Fused::MatVec { parts, .. }) => plan.weight(parts[0].weight).name.clone(),
        _ => "a tensor".into(),
    };
    Some(Error::Activations {
        tensor,
        slot,
        position: word >> 32,
        value: f32::from_bits((word as u32) << 16).to_string(),
    })
}
