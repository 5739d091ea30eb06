//! Numbers that gates let through, one by one.

use std::marker::PhantomData;

use super::simd::{Isa, Task};
use crate::sampler::math;

/// What a gate makes of a number: a type, so that it is compiled with the caller's instruction set.
pub trait Gate {
    /// Must be `#[inline(always)]`.
    fn of(gate: f32, x: f32) -> f32;
}

/// [`crate::plan::Op::SwiGlu`].
pub struct SwiGlu;

impl Gate for SwiGlu {
    #[inline(always)]
    fn of(gate: f32, up: f32) -> f32 {
        gate * sigmoid(gate) * up
    }
}

/// [`crate::plan::Op::GeGlu`].
pub struct GeGlu;

impl Gate for GeGlu {
    #[inline(always)]
    fn of(gate: f32, up: f32) -> f32 {
        /// `sqrt(8 / pi)`, and that times 0.044715.
        const A: f32 = 1.595_769_2;
        const B: f32 = 0.071_354_814;
        gate * sigmoid(gate * (gate * gate).mul_add(B, A)) * up
    }
}

/// [`crate::plan::Op::ClampedSwiGlu`].
pub struct ClampedSwiGlu;

impl Gate for ClampedSwiGlu {
    #[inline(always)]
    fn of(gate: f32, up: f32) -> f32 {
        const MOST: f32 = 7.0;
        // Comparisons, so that what is no number stays none.
        let g = if gate > MOST { MOST } else { gate };
        let u = if up > MOST { MOST } else { up };
        let u = if u < -MOST { -MOST } else { u };
        // Nor does what is infinite become one.
        let u = u + (nothing(gate) + nothing(up));
        g * sigmoid(1.702 * g) * (u + 1.0)
    }
}

/// [`crate::plan::Op::SigmoidMul`].
pub struct Sigmoid;

impl Gate for Sigmoid {
    #[inline(always)]
    fn of(gate: f32, x: f32) -> f32 {
        x * finite_sigmoid(gate)
    }
}

/// [`crate::plan::Op::SoftplusMul`].
pub struct Softplus;

impl Gate for Softplus {
    #[inline(always)]
    fn of(gate: f32, x: f32) -> f32 {
        x * softplus(gate)
    }
}

/// `ln(1 + exp(z))`, as [`crate::plan::Op::DeltaNet`] states it: NaN of an infinite `z`.
#[inline(always)]
pub fn softplus(z: f32) -> f32 {
    let e = exp_down(-z.abs());
    let log = if e < 0.4 {
        math::ln_1p_reduced(e)
    } else {
        math::ln(1.0 + e)
    };
    let positive = if z > 0.0 { z } else { 0.0 };
    positive + log + nothing(z)
}

/// `1 / (1 + exp(-z))`, as [`crate::plan::Op::SwiGlu`] states it.
#[inline(always)]
pub fn sigmoid(z: f32) -> f32 {
    // Only ever exp of a negative number: it cannot overflow.
    let e = exp_down(-z.abs());
    let top = if z < 0.0 { e } else { 1.0 };
    top / (1.0 + e)
}

/// A zero, and NaN where `x` is infinite or NaN: what it is added to hides neither.
#[inline(always)]
pub fn nothing(x: f32) -> f32 {
    x * 0.0
}

/// The same of finite `z`, and NaN of infinite ones: 0 or 1 would hide them.
#[inline(always)]
pub fn finite_sigmoid(z: f32) -> f32 {
    sigmoid(z) + nothing(z)
}

/// `cap tanh(x / cap)`, as [`crate::plan::Op::SoftCap`] states it, in place.
pub struct SoftCap<'a> {
    pub values: &'a mut [f32],
    pub cap: f32,
}

impl SoftCap<'_> {
    /// What a number is multiplied by in the exponent.
    pub fn rate(cap: f32) -> f32 {
        (2.0 / f64::from(cap)) as f32
    }
}

impl Task for SoftCap<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let rate = Self::rate(self.cap);
        for x in self.values {
            let e = exp_down(-(x.abs() * rate));
            // NaN of what is infinite.
            let y = self.cap * ((1.0 - e) / (1.0 + e)) + nothing(*x);
            *x = if *x < 0.0 { -y } else { y };
        }
    }
}

/// [`crate::plan::Op::Gelu`], in place.
pub struct Gelu<'a>(pub &'a mut [f32]);

impl Task for Gelu<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for x in self.0 {
            let b = x.abs();
            let tail = math::gelu_tail(b) * exp_down(b * b * -0.5);
            *x = if *x < 0.0 {
                *x * tail
            } else {
                (-*x).mul_add(tail, *x)
            };
        }
    }
}

/// [`crate::plan::Op::ReluSquared`], in place.
pub fn relu_squared(x: &mut f32) {
    let positive = if *x > 0.0 { *x } else { 0.0 };
    *x = positive * positive + nothing(*x);
}

/// `out[i] = G(gate[i / share], x[i])`.
pub struct Gated<'a, G> {
    gate: &'a [f32],
    x: &'a [f32],
    out: &'a mut [f32],
    /// Consecutive values that a number of the gate counts for.
    share: usize,
    function: PhantomData<G>,
}

impl<'a, G: Gate> Gated<'a, G> {
    pub fn new(gate: &'a [f32], x: &'a [f32], out: &'a mut [f32], share: usize) -> Self {
        Self {
            gate,
            x,
            out,
            share,
            function: PhantomData,
        }
    }
}

impl<G: Gate> Task for Gated<'_, G> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        if self.share == 1 {
            for ((out, gate), x) in self.out.iter_mut().zip(self.gate).zip(self.x) {
                *out = G::of(*gate, *x);
            }
            return;
        }
        let parts = self.out.chunks_exact_mut(self.share);
        for ((out, gate), x) in parts.zip(self.gate).zip(self.x.chunks_exact(self.share)) {
            for (out, x) in out.iter_mut().zip(x) {
                *out = G::of(*gate, *x);
            }
        }
    }
}

/// `exp(z)` for `z <= 0`, zero where that is below every normal float.
#[inline(always)]
pub fn exp_down(z: f32) -> f32 {
    let y = math::exp(z);
    if z < -87.0 {
        0.0
    } else {
        y
    }
}

#[cfg(test)]
mod tests {
    use super::exp_down;

    #[test]
    fn exp_is_within_two_ulps_and_ends_at_zero() {
        for bits in (0..=87.0f32.to_bits()).step_by(89) {
            let z = -f32::from_bits(bits);
            let exact = f64::from(z).exp();
            let error = (f64::from(exp_down(z)) - exact).abs() / exact;
            assert!(error <= 1.2e-7, "exp({z}): relative error {error}");
        }
        assert_eq!(exp_down(0.0), 1.0);
        for z in [-87.1, -1e3, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp_down(z), 0.0);
        }
        assert!(exp_down(f32::NAN).is_nan());
    }
}
