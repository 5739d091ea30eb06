//! Experts: which of them rows go to, their products, and the weighted sums of what they give, as
//! [`Op::Route`](crate::plan::Op::Route) and the ops behind it state them.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use super::gates::{exp_down, sigmoid};
use super::matvec::{Product, Rows, Scratch};
use super::reserve::reserve;
use super::simd::Level;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, Groups};
use crate::quant::QuantType;

/// Chains of a softmax's sum.
const LANES: usize = 32;

/// The least that weights are divided by: the smallest normal number of half precision.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// How a router chooses.
pub struct Route<'a> {
    pub bias: Option<&'a [f32]>,
    pub gating: Gating,
    pub renormalize: bool,
    pub scale: f32,
    pub groups: Option<Groups>,
}

/// `a` if it comes before `b`: the larger, of equals the first; what is no number is last.
fn better(a: (usize, f32), b: (usize, f32)) -> (usize, f32) {
    let is_better = match (a.1.is_nan(), b.1.is_nan()) {
        (false, true) => true,
        (true, false) => false,
        (true, true) => a.0 < b.0,
        (false, false) => a.1 > b.1 || a.1 == b.1 && a.0 < b.0,
    };
    if is_better {
        a
    } else {
        b
    }
}

/// Of values in lanes, each in order, the lanes then folded in halves.
fn sum_in_lanes(values: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (i, v) in values.enumerate() {
        lanes[i % LANES] += v;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn sum_in_order(values: &[f32]) -> f32 {
    let sum = values.iter().copied().reduce(|sum, v| sum + v);
    sum.unwrap_or(0.0)
}

impl Route<'_> {
    /// Ids and weights of one row of logits into `out`.
    pub fn row(&self, logits: &[f32], out: &mut [f32]) {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = match self.gating {
            Gating::Softmax => sum_in_lanes(logits.iter().map(|l| exp_down(l - top))),
            _ => 1.0,
        };
        let gate = |i: usize| match self.gating {
            Gating::Softmax => exp_down(logits[i] - top) / sum,
            Gating::Sigmoid => sigmoid(logits[i]),
            Gating::SelectedSoftmax => logits[i],
        };
        let score = |i: usize| match self.bias {
            Some(bias) => gate(i) + bias[i],
            None => logits[i],
        };
        let (ids, weights) = out.split_at_mut(out.len() / 2);
        let mut chosen = vec![false; logits.len()];
        if let Some(groups) = self.groups {
            self.leave_groups(groups, score, &mut chosen);
        }
        for (id, weight) in ids.iter_mut().zip(&mut *weights) {
            let left = (0..logits.len()).filter(|i| !chosen[*i]);
            let best = left.map(|i| (i, score(i))).reduce(better);
            let best = best.map_or(0, |(i, _)| i);
            chosen[best] = true;
            *id = best as f32;
            *weight = gate(best);
        }
        if self.gating == Gating::SelectedSoftmax {
            let top = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = exp_down(*w - top));
            let sum = sum_in_order(weights);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        if self.renormalize {
            let sum = sum_in_order(weights);
            let sum = if sum > LEAST_SUM { sum } else { LEAST_SUM };
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= self.scale);
        if logits.iter().any(|l| !l.is_finite()) {
            weights.fill(f32::from_bits(0x7fc0_0000));
        }
    }
}

impl Route<'_> {
    /// Takes all experts out of the choice whose group is not chosen.
    fn leave_groups(&self, of: Groups, score: impl Fn(usize) -> f32, taken: &mut [bool]) {
        let size = taken.len() / of.count;
        // The best of some numbers, and the next behind it.
        let best = |those: Range<usize>, but: Option<usize>, score: &dyn Fn(usize) -> f32| {
            let left = those.filter(|i| Some(*i) != but).map(|i| (i, score(i)));
            left.reduce(better).unwrap_or((0, f32::NAN))
        };
        let scores = (0..of.count).map(|group| {
            let its = group * size..(group + 1) * size;
            let first = best(its.clone(), None, &score);
            match self.bias {
                Some(_) => first.1 + best(its, Some(first.0), &score).1,
                None => first.1,
            }
        });
        let scores: Vec<f32> = scores.collect();
        let mut left: Vec<usize> = (0..of.count).collect();
        for _ in 0..of.used {
            let best = left
                .iter()
                .map(|group| (*group, scores[*group]))
                .reduce(better);
            left.retain(|group| Some(*group) != best.map(|(group, _)| group));
        }
        for group in left {
            taken[group * size..(group + 1) * size].fill(true);
        }
    }
}

/// All experts of one row.
pub fn route_all(out: &mut [f32]) {
    let (ids, weights) = out.split_at_mut(out.len() / 2);
    ids.iter_mut()
        .enumerate()
        .for_each(|(id, out)| *out = id as f32);
    weights.fill(1.0);
}

/// The expert that a number in the place of an id stands for.
pub fn id_of(id: f32, n_expert: usize) -> usize {
    if id >= 0.0 && id < n_expert as f32 {
        id as usize
    } else {
        0
    }
}

/// `w_j = w_j * scales[e_j]` of the ranks of one row.
pub fn scale_ranks(routes: &mut [f32], scales: &[f32]) {
    let (ids, weights) = routes.split_at_mut(routes.len() / 2);
    for (id, w) in ids.iter().zip(weights) {
        *w *= scales[id_of(*id, scales.len())];
    }
}

/// `out = sum_j w_j x_j` of the ranks of one row.
pub fn mix(x: &[f32], routes: &[f32], out: &mut [f32]) {
    let (_, weights) = routes.split_at(routes.len() / 2);
    for (j, (w, x)) in weights.iter().zip(x.chunks_exact(out.len())).enumerate() {
        for (y, x) in out.iter_mut().zip(x) {
            *y = if j == 0 { w * x } else { w.mul_add(*x, *y) };
        }
    }
}

/// A matrix for each expert, and the rows that go to them.
pub struct ExpertProduct<'a> {
    /// `[n_expert][n_out, n_in]` in its file encoding.
    pub weight: &'a [u8],
    pub ty: &'static QuantType,
    pub n_expert: usize,
    pub n_out: usize,
    /// `[n_expert]`.
    pub scale: Option<&'a [f32]>,
    /// `[n_expert][n_out]`.
    pub bias: Option<&'a [f32]>,
    /// Of the rows, an id and a weight for each rank.
    pub routes: &'a [f32],
    pub ranks: usize,
    /// Whether each rank has a row of x of its own.
    pub ranked: bool,
}

/// Memory that products by experts use again and again.
#[derive(Default)]
pub struct Gathered {
    x: Vec<f32>,
    factors: Vec<f32>,
    out: Vec<f32>,
}

impl Gathered {
    /// Bytes for `rows` rows of `n_in` with `n_out` outputs that all go to one expert.
    pub fn bytes(n_in: usize, n_out: usize, rows: usize) -> u64 {
        let floats = n_in.saturating_add(n_out).saturating_add(1);
        (rows.saturating_mul(floats) as u64).saturating_mul(size_of::<f32>() as u64)
    }
}

impl ExpertProduct<'_> {
    fn of(&self, expert: usize) -> Product<'_> {
        let bytes = self.weight.len() / self.n_expert;
        Product {
            weight: Cow::Borrowed(&self.weight[expert * bytes..][..bytes]),
            ty: self.ty,
            n_out: self.n_out,
            scale: self.scale.map(|s| s[expert]),
            bias: self.bias.map(|b| &b[expert * self.n_out..][..self.n_out]),
            out: BufferId(0),
        }
    }

    /// The row of x of a rank of a row, counted over all rows.
    pub fn row_of_x(&self, pair: usize) -> usize {
        if self.ranked {
            pair
        } else {
            pair / self.ranks
        }
    }

    /// The expert of each rank of each row.
    fn experts(&self) -> impl Iterator<Item = usize> + '_ {
        let rows = self.routes.chunks_exact(2 * self.ranks);
        rows.flat_map(|row| &row[..self.ranks])
            .map(|id| id_of(*id, self.n_expert))
    }

    /// Computes `out`, `[rows][ranks][n_out]`, from `rows`; each expert's matrix is read once for all
    /// that chose it. `absurd` makes the error of a row of x that has no block fixed point.
    ///
    /// # Errors
    /// [`Error::Memory`], what `absurd` makes.
    pub fn run(
        &self,
        level: Level,
        rows: Rows<'_>,
        scratch: &mut Scratch,
        gathered: &mut Gathered,
        out: &mut [f32],
        absurd: impl Fn(usize) -> Error,
    ) -> Result<()> {
        let n_out = self.n_out;
        let mut pairs: Vec<(usize, usize)> = self.experts().zip(0..).collect();
        if !self.ranked && pairs.len() == self.ranks {
            // One row: one parallel region for all of its experts.
            let products: Vec<_> = pairs.iter().map(|(expert, _)| self.of(*expert)).collect();
            scratch.run(level, &products, rows, absurd)?;
            scratch.take(0, 1, out);
            return Ok(());
        }
        pairs.sort_unstable();
        const WHAT: &str = "the rows of an expert";
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let (m, n_in) = (group.len(), rows.n_in);
            reserve(&mut gathered.x, m * n_in, WHAT)?;
            reserve(&mut gathered.factors, m, WHAT)?;
            reserve(&mut gathered.out, m * n_out, WHAT)?;
            gathered.x.clear();
            gathered.factors.clear();
            gathered.out.resize(m * n_out, 0.0);
            for (_, pair) in group {
                let row = self.row_of_x(*pair);
                gathered.x.extend_from_slice(&rows.x[row * n_in..][..n_in]);
                gathered.factors.extend(rows.factors.map(|f| f[row]));
            }
            let of_group = Rows {
                x: &gathered.x,
                n_in,
                factors: rows.factors.map(|_| gathered.factors.as_slice()),
            };
            let absurd = |at: usize| absurd(self.row_of_x(group[at].1));
            scratch.run(level, &[self.of(group[0].0)], of_group, absurd)?;
            scratch.take(0, m, &mut gathered.out[..m * n_out]);
            for ((_, pair), y) in group.iter().zip(gathered.out.chunks_exact(n_out)) {
                out[pair * n_out..][..n_out].copy_from_slice(y);
            }
        }
        Ok(())
    }
}

/// Calls `f` with each row of several buffers, in parallel: `[rows][width]` of each.
pub fn each_pair(
    (a, a_width): (&[f32], usize),
    (b, b_width): (&[f32], usize),
    (out, width): (&mut [f32], usize),
    f: impl Fn(&[f32], &[f32], &mut [f32]) + Sync,
) {
    out.par_chunks_exact_mut(width)
        .zip(a.par_chunks_exact(a_width).zip(b.par_chunks_exact(b_width)))
        .for_each(|(out, (a, b))| f(a, b, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(gating: Gating, bias: Option<&[f32]>, logits: &[f32], k: usize) -> Vec<f32> {
        let mut out = vec![0.0; 2 * k];
        let route = Route {
            bias,
            gating,
            renormalize: true,
            scale: 1.0,
            groups: None,
        };
        route.row(logits, &mut out);
        out
    }

    #[test]
    fn of_groups_the_best_are_compared() {
        // The best two, by their largest and by the sum of two.
        let logits = [5.0, 0.0, 0.1, 3.0, 3.5, 0.0, 0.0, 0.0, 4.0];
        let ids = |bias: Option<&[f32]>, used: usize, k: usize| {
            let mut out = vec![0.0; 2 * k];
            let route = Route {
                bias,
                gating: Gating::SelectedSoftmax,
                renormalize: false,
                scale: 1.0,
                groups: Some(Groups { count: 3, used }),
            };
            route.row(&logits, &mut out);
            out[..k].to_vec()
        };
        assert_eq!(ids(None, 2, 4), [0.0, 8.0, 2.0, 1.0]);
        assert_eq!(ids(Some(&[0.0; 9]), 2, 4), [0.0, 4.0, 3.0, 2.0]);
        assert_eq!(ids(Some(&[0.0; 9]), 1, 3), [4.0, 3.0, 5.0]);
        assert_eq!(ids(None, 3, 4), [0.0, 8.0, 4.0, 3.0]);
    }

    #[test]
    fn equals_go_to_the_lower_id() {
        let logits = [1.0, 3.0, -0.0, 3.0, 0.0, 3.0];
        let ids = |k| chosen(Gating::Softmax, None, &logits, k)[..k].to_vec();
        assert_eq!(ids(2), [1.0, 3.0]);
        assert_eq!(ids(6), [1.0, 3.0, 5.0, 0.0, 2.0, 4.0]);
        assert_eq!(ids(1), [1.0]);
    }

    #[test]
    fn what_is_no_number_is_last_and_its_row_has_no_weights() {
        let logits = [f32::NAN, -1.0, f32::NEG_INFINITY, f32::NAN];
        let out = chosen(Gating::Softmax, None, &logits, 4);
        assert_eq!(out[..4], [1.0, 2.0, 0.0, 3.0]);
        assert!(out[4..].iter().all(|w| w.to_bits() == 0x7fc0_0000));
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            let out = chosen(Gating::Softmax, None, &[infinite; 4], 2);
            assert_eq!(out[..2], [0.0, 1.0]);
            assert!(out[2].is_nan());
        }
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let out = chosen(Gating::Sigmoid, Some(&[0.0, 0.0, 9.0]), &[2.0, 1.0, 0.0], 2);
        assert_eq!(out[..2], [2.0, 0.0]);
        assert!(out[2] < out[3]);
        assert!((out[2] + out[3] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn no_number_stands_for_an_expert_that_is_not_there() {
        for (id, wanted) in [
            (0.0, 0),
            (7.0, 7),
            (8.0, 0),
            (-1.0, 0),
            (f32::NAN, 0),
            (1e30, 0),
        ] {
            assert_eq!(id_of(id, 8), wanted);
        }
    }
}
