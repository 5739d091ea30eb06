//! Products with the logistic function of a gate, number by number.

use super::attention::exp_down;
use super::simd::{Isa, Task};

/// `1 / (1 + exp(-x))`, as [`crate::plan::Op::SwiGlu`] states it.
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    // Only ever exp of a negative number: it cannot overflow.
    let e = exp_down(-x.abs());
    let top = if x < 0.0 { e } else { 1.0 };
    top / (1.0 + e)
}

/// `out = x * logistic(gate)`.
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
            *out = x * logistic(*gate);
        }
    }
}

/// `out = g logistic(1.702 g) (u + 1)`, clamped as [`crate::plan::Op::ClampedSwiGlu`] states it.
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
            *out = g * logistic(1.702 * g) * (u + 1.0);
        }
    }
}
