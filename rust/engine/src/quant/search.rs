//! The search for scales: weighted least squares over a few roundings. The gguf package has no
//! quantizer for superblocks to be equal to, so here the aim is a small error at a fair speed.

use super::half::{half_scale, half_to_f32};
use super::reciprocal;

/// How much each weight's squared error counts: large weights more than small ones, none for
/// nothing. That is the field's custom where no activations are at hand to weigh by.
pub fn importance<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    let rms = mean.sqrt();
    x.map(|x| rms + x.abs())
}

/// Below this, half the smallest step of any scale, numbers round to zero whatever the scale.
pub const NOTHING: f32 = 1.0 / (1 << 26) as f32;

/// Roundings tried: the range of `q` stretched by this much, in steps of `q`.
const STRETCHES: [f32; 11] = [-1.2, -0.9, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

/// `(x + min) / scale` rounded, 0 to `top`.
pub fn round(x: &[f32], scale: f32, min: f32, top: u8, q: &mut [u8]) {
    let (steps, top) = (reciprocal(scale), f32::from(top));
    for (q, x) in q.iter_mut().zip(x) {
        *q = ((x + min) * steps + 0.5).clamp(0.0, top) as u8;
    }
}

/// The weighted square error of the best `q` for `scale` and `min`.
pub fn error(x: &[f32], w: &[f32], scale: f32, min: f32, top: u8) -> f32 {
    let (steps, top) = (reciprocal(scale), f32::from(top));
    let mut sum = [0.0; LANES];
    for (x, w) in x.chunks_exact(LANES).zip(w.chunks_exact(LANES)) {
        for i in 0..LANES {
            let q = ((x[i] + min) * steps + 0.5).clamp(0.0, top) as i32 as f32;
            let off = scale * q - min - x[i];
            sum[i] += w[i] * off * off;
        }
    }
    sum.iter().sum()
}

/// Sums that run side by side, so that they vectorize.
const LANES: usize = 8;

/// `scale` ≥ 0 and `min` ≥ 0 for which `scale q - min`, `q` from 0 to `top`, is nearest to `x`.
pub fn affine(x: &[f32], w: &[f32], top: u8) -> (f32, f32) {
    let low = x.iter().fold(0.0f32, |a, x| a.min(*x));
    let high = x.iter().fold(low, |a, x| a.max(*x));
    if high.max(-low) < NOTHING {
        return (0.0, 0.0);
    }
    let whole = ((high - low) / f32::from(top), -low);
    let (mut best, mut most) = (whole, 0.0);
    let mut attempt = |fit| {
        let (fit, gain) = refit(x, w, fit, top);
        if gain > most {
            (most, best) = (gain, fit);
        }
        best
    };
    let mut found = whole;
    for stretch in STRETCHES {
        found = attempt(((high - low) / (f32::from(top) + stretch), -low));
    }
    // The best fit rounds some weights anew; what fits those may be better still.
    for _ in 0..REFINEMENTS {
        found = attempt(found);
    }
    // Least squares has no answer for equal weights: the whole range is theirs.
    if error(x, w, whole.0, whole.1, top) < error(x, w, found.0, found.1, top) {
        return whole;
    }
    found
}

/// Times that the best fit is fitted anew.
const REFINEMENTS: usize = 2;

/// The least-squares scale and minimum for the `q` to which `fit` rounds, and by how much they
/// lower the weighted square error of all zeros.
fn refit(x: &[f32], w: &[f32], fit: (f32, f32), top: u8) -> ((f32, f32), f32) {
    let (steps, top) = (reciprocal(fit.0), f32::from(top));
    let mut sums = [[0.0f32; LANES]; 5];
    for (x, w) in x.chunks_exact(LANES).zip(w.chunks_exact(LANES)) {
        for i in 0..LANES {
            let q = ((x[i] + fit.1) * steps + 0.5).clamp(0.0, top) as i32 as f32;
            sums[0][i] += w[i];
            sums[1][i] += w[i] * q;
            sums[2][i] += w[i] * q * q;
            sums[3][i] += w[i] * x[i];
            sums[4][i] += w[i] * x[i] * q;
        }
    }
    let [sw, sq, sqq, sx, sxq] = sums.map(|s| s.iter().sum::<f32>());
    let det = sw * sqq - sq * sq;
    let mut scale = (sw * sxq - sq * sx) * reciprocal(det);
    let mut min = (sq * sxq - sqq * sx) * reciprocal(det);
    if min < 0.0 || scale <= 0.0 {
        (scale, min) = ((sxq * reciprocal(sqq)).max(0.0), 0.0);
    }
    // By the normal equations the error is Σ w x² less this.
    ((scale, min), scale * sxq - min * sx)
}

/// The scale, of either sign, for which `scale q`, `q` from -`top` - 1 to `top`, is nearest to `x`.
pub fn symmetric(x: &[f32], w: &[f32], top: u8) -> f32 {
    let far = x
        .iter()
        .fold(0.0f32, |far, x| if x.abs() > far.abs() { *x } else { far });
    if far.abs() < NOTHING {
        return 0.0;
    }
    let reach = f32::from(top) + 1.0;
    let (mut best, mut most) = (0.0, 0.0);
    // q reaches one step further below 0 than above, so both signs are worth a try.
    for far in [-far, far] {
        for stretch in STRETCHES {
            let steps = (reach + stretch) / far;
            let (mut sxq, mut sqq) = ([0.0f32; LANES], [0.0f32; LANES]);
            for (x, w) in x.chunks_exact(LANES).zip(w.chunks_exact(LANES)) {
                for i in 0..LANES {
                    let q = nearest(x[i] * steps, top);
                    sxq[i] += w[i] * x[i] * q;
                    sqq[i] += w[i] * q * q;
                }
            }
            let (sxq, sqq) = (sxq.iter().sum::<f32>(), sqq.iter().sum::<f32>());
            // The error is Σ w x² - sxq² / sqq.
            let gain = sxq * sxq * reciprocal(sqq);
            if gain > most {
                (most, best) = (gain, sxq * reciprocal(sqq));
            }
        }
    }
    best
}

/// A superblock of 16 sub-blocks with a signed scale each.
pub struct SixteenScales {
    /// The unit of the scales, a float16's bits.
    pub d: u16,
    pub scales: [i8; 16],
    /// Of each weight, above 0.
    pub q: [u8; 256],
}

/// For `x`, not all 0: `q` from -`top` - 1 to `top`, scales from `least` < 0 to `-least - 1`, of which
/// the farthest from 0 becomes `least`. Each is that of [`symmetric`] or a neighbour, whichever is best.
pub fn sixteen_scales(x: &[f32; 256], top: u8, least: i8) -> SixteenScales {
    let weights = importance(x);
    let subs = || x.chunks_exact(16).zip(weights.chunks_exact(16));
    let mut fits = [0.0; 16];
    for (fit, (x, w)) in fits.iter_mut().zip(subs()) {
        *fit = symmetric(x, w, top);
    }
    let far = fits
        .iter()
        .fold(0.0f32, |far, s| if s.abs() > far.abs() { *s } else { far });
    let mut found = SixteenScales {
        d: half_scale(far, f32::from(least)),
        scales: [0; 16],
        q: [0; 256],
    };
    let d = half_to_f32(found.d);
    let bias = f32::from(top) + 1.0;
    for (s, (x, w)) in subs().enumerate() {
        let most = -(least + 1);
        let middle = ((fits[s] * reciprocal(d)).round() as i8).clamp(least, most);
        let mut smallest = f32::INFINITY;
        for scale in middle.saturating_sub(1).max(least)..=middle.saturating_add(1).min(most) {
            let error = symmetric_error(x, w, d * f32::from(scale), top);
            if error < smallest {
                (smallest, found.scales[s]) = (error, scale);
            }
        }
        let steps = reciprocal(d * f32::from(found.scales[s]));
        for (q, x) in found.q[16 * s..].iter_mut().zip(x) {
            *q = (nearest(x * steps, top) + bias) as u8;
        }
    }
    found
}

/// The weighted square error of the best signed `q` for `scale`.
pub fn symmetric_error(x: &[f32], w: &[f32], scale: f32, top: u8) -> f32 {
    let steps = reciprocal(scale);
    let mut sum = [0.0; LANES];
    for (x, w) in x.chunks_exact(LANES).zip(w.chunks_exact(LANES)) {
        for i in 0..LANES {
            let off = scale * nearest(x[i] * steps, top) - x[i];
            sum[i] += w[i] * off * off;
        }
    }
    sum.iter().sum()
}

/// `x` rounded, -`top` - 1 to `top`.
#[inline(always)]
pub fn nearest(x: f32, top: u8) -> f32 {
    let reach = f32::from(top) + 1.0;
    let shifted = (x + reach + 0.5).clamp(0.0, 2.0 * reach - 1.0);
    shifted as i32 as f32 - reach
}
