//! Numbers that end their sequence: rows of activations that have no block fixed point, keys and values
//! that are not finite. Where kernels report them, and how the host reads that.

use super::lowering::{Lowering, Pass};
use super::params::Overflows;
use crate::error::Error;
use crate::plan::fuse::{Fused, FusedOp, PassFusion, ProductOp};
use crate::plan::{Op, Plan, Rows};

/// Where `op` reports rows of its x in `pass`.
pub fn overflows(l: &Lowering, op: &ProductOp, pass: &Pass) -> Overflows {
    // Of several products of a row the first.
    let first = match (&op.fusion, &op.shared) {
        (PassFusion::Choice(_), Some(shared)) => shared.number,
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

/// The number in the pass of the op that stores the keys and values of `layer`.
pub fn storing(fused: &[FusedOp], layer: usize) -> usize {
    let stores = |fused: &FusedOp| stored_layer(&fused.op) == Some(layer);
    fused.iter().position(stores).unwrap_or(0)
}

/// The layer whose keys and values an op stores.
fn stored_layer(op: &Fused) -> Option<usize> {
    match op {
        Fused::Single(Op::KvScatter { layer, .. }) => Some(*layer),
        _ => None,
    }
}

/// The position that the report of a word is of; none for the word of no report.
pub fn position(word: u64) -> Option<u64> {
    (word != 0).then_some(!word >> 32)
}

/// The error of a word that a kernel left for `slot`, see `report` in common.cuh: the complement of the
/// position in the high half, then 16 bits of that of the op's number, one that says whether it is about
/// the op's input, and the upper 15 of the magnitude. None for the word of no report.
pub fn error(word: u64, slot: usize, plan: &Plan, fused: &[FusedOp]) -> Option<Error> {
    let position = position(word)?;
    let op = fused.get(!(word >> 16) as usize & 0xffff);
    let op = op.map(|fused| &fused.op);
    let value = f32::from_bits((word as u32 & 0x7fff) << 16).to_string();
    if word & 0x8000 == 0 {
        return Some(Error::KvValues {
            layer: op.and_then(stored_layer).unwrap_or(0),
            slot,
            position,
            value,
        });
    }
    let tensor = match op {
        Some(Fused::MatVec(op)) => plan.weight(op.parts[0].weight).name.clone(),
        _ => "a tensor".into(),
    };
    Some(Error::Activations {
        tensor,
        slot,
        position,
        value,
    })
}
