//! What convolutions read and write.

use super::attributes::RowPart;
use super::signature::{Access, Operand, Over, Parts, Role, Signature, StateUse, Used, Width};
use super::Op;

/// The signature of a convolution; none of another op.
pub fn signature(op: &Op) -> Option<Signature> {
    let read = |id| Operand::new(id, Access::Read);
    let write = |id| Operand::new(id, Access::Write);
    let used = |id, role| Used { id, role };
    match *op {
        Op::ShortConv {
            x,
            weight,
            bias,
            state,
            out,
            taps,
            silu,
            part,
            dilation,
        } => Some(Signature {
            weights: [
                Some(used(weight, Role::Taps(taps))),
                bias.map(|id| used(id, Role::Shift)),
            ]
            .into_iter()
            .flatten()
            .collect(),
            parts: part.map_or(Parts::Whole, |RowPart { first, of }| Parts::Sliced {
                n: 1,
                first,
                of,
            }),
            state: Some(StateUse {
                id: state,
                // Without a distance no state is as wide.
                per_value: match dilation {
                    0 => usize::MAX,
                    d => taps.saturating_sub(1).saturating_mul(d),
                },
                head_dim: None,
            }),
            ..Signature::new(
                if silu {
                    "short_conv_silu"
                } else {
                    "short_conv"
                },
                Over::Batch,
                vec![
                    read(x).wide(part.map_or(Width::Row, |part| Width::Of(part.of))),
                    write(out),
                ],
            )
        }),
        Op::GatedConv {
            x,
            weight,
            state,
            out,
            taps,
        } => Some(Signature {
            weights: vec![used(weight, Role::Taps(taps))],
            state: Some(StateUse {
                id: state,
                per_value: taps.saturating_sub(1),
                head_dim: None,
            }),
            ..Signature::new(
                "gated_conv",
                Over::Batch,
                vec![read(x).wide(Width::Times(3)), write(out)],
            )
        }),
        _ => None,
    }
}
