//! Products with the sigmoid of a gate, number by number.

use super::rowwise::sigmoid;
use super::simd::{Isa, Task};

/// `out = x * sigmoid(gate)`.
pub struct SigmoidMul<'a> {
    pub x: &'a [f32],
    pub gate: &'a [f32],
    pub out: &'a mut [f32],
}

impl Task for SigmoidMul<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for ((out, x), gate) in self.out.iter_mut().zip(self.x).zip(self.gate) {
            *out = x * sigmoid(*gate);
        }
    }
}

/// `out = g sigmoid(1.702 g) (u + 1)`, clamped as [`crate::plan::Op::ClampedSwiGlu`] states it.
pub struct ClampedSwiGlu<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

impl Task for ClampedSwiGlu<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        const MOST: f32 = 7.0;
        for ((out, gate), up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            // Comparisons, so that what is no number stays none.
            let g = if *gate > MOST { MOST } else { *gate };
            let u = if *up > MOST { MOST } else { *up };
            let u = if u < -MOST { -MOST } else { u };
            *out = g * sigmoid(1.702 * g) * (u + 1.0);
        }
    }
}
