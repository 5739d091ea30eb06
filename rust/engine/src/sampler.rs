//! Logits and a seed → a token. This file is the specification that every backend's sampler
//! follows bit for bit: all arithmetic is float32, rounded to nearest, in the order written here;
//! `fma` stands where `mul_add` stands; `ln` and `exp` are those of [`math`].
//!
//! For the generated token number `index` of a request with logits `l`:
//!
//! 1. **Bias.** `y = l + bias` where a token has one. A bias of -inf bans a token; biases of +inf
//!    ban all tokens but theirs, which keep `y = l`. Then `y = -inf` for every token that the draw may
//!    not choose, where it is given a set of those that it may ([`Allowed`]).
//! 2. **Penalties**, for tokens in the window: the last `repeat_last_n` tokens of the sequence, which
//!    is the prompt and the tokens generated before this one; without that number, all of it. Repeat
//!    (Keskar et al. 2019, section 4.1; tokens of the prompt and generated ones are alike):
//!    `y = y > 0 ? y / repeat : y * repeat`. Then, for a token generated `c > 0` times in the window,
//!    `y = fma(-frequency, c, y) - presence`; those of the prompt do not count here.
//! 3. **Greedy.** With temperature 0 the token is the argmax of `y`. Here and below the lower id
//!    wins a tie.
//! 4. **Temperature.** `z = (y - max y) / temperature + 0`: taking the maximum off first keeps the
//!    digits where they matter, adding zero makes -0 into 0. Tokens with `z = -inf` are out.
//! 5. **Filters**, in this order. All order tokens by `(z descending, id ascending)` and keep the
//!    front, so each is one threshold on `z` and, among the tokens equal to it, one on the id.
//!    - *top-k*: the first `k`.
//!    - *top-p*: the shortest front of what top-k left that has at least `p` of its mass. A
//!      token's mass is the integer `floor(exp(z) * 2^40)`, 0 for `z < -28`; the front's must be at
//!      least `ceil(total * round(p * 2^32) / 2^32)`, and 1. Sums of integers have no order, so any
//!      number of threads gets the same total.
//!    - *min-p*: those with `z >= ln(min_p)`. The most probable token survives top-k and top-p and
//!      has `z = 0`; normalization cancels.
//! 6. **Draw** by Gumbel-max: the argmax over the survivors of `z + gumbel(word)`, `word` number
//!    `id % 4` of Philox4x32-10 with the key `seed` and the counter `(id / 4, index, 0, 0)`. This
//!    draws from the softmax of the survivors without summing it, and depends on
//!    `(seed, index)` alone.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
pub use allowed::Allowed;
use seen::Seen;

mod allowed;
pub mod math;
pub mod random;
pub(crate) mod seen;
#[cfg(test)]
mod tests;

/// Most alternatives that [`Params::logprobs`] may ask for.
pub const MAX_LOGPROBS: usize = 100;

/// Most tokens a vocabulary may have: the sum of their masses stays below 2^63.
pub const MAX_VOCAB: usize = 1 << 23;

/// Largest finite value of a logit bias, either sign: far above any logit, and no sum with one
/// overflows.
pub const MAX_BIAS: f32 = 1e4;

/// How to choose the next token.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Divides the logits; 0 is greedy. 0 to 100.
    pub temperature: f32,
    /// Keep the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most probable tokens that together have this probability; 1 keeps all. 0 to 1.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as probable as the best; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 is
    /// off. 0.01 to 100.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens generated before. -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token was generated. -2 to 2.
    pub frequency_penalty: f32,
    /// The penalties look at the last so many tokens of prompt and output; `None`: at all of them,
    /// 0: at none.
    pub repeat_last_n: Option<usize>,
    /// Added to the logits of single tokens: up to [`MAX_BIAS`], or ±inf.
    pub logit_bias: BTreeMap<u32, f32>,
    /// With the index of the generated token, all that a draw depends on.
    pub seed: u64,
    /// Give log-probabilities of each token and of this many best ones.
    pub logprobs: Option<usize>,
}

impl Default for Params {
    /// The defaults of the whole product.
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: None,
            logit_bias: BTreeMap::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

fn in_range(name: &'static str, value: f32, low: f32, high: f32) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::Argument {
        name,
        value: value.to_string(),
        reason: format!("must be from {low} to {high}"),
    })
}

impl Params {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`Error::Argument`] names the field, its value and the range.
    pub fn validate(&self, n_vocab: usize) -> Result<()> {
        in_range("temperature", self.temperature, 0.0, 100.0)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("repeat_penalty", self.repeat_penalty, 0.01, 100.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        for (id, bias) in &self.logit_bias {
            if *id as usize >= n_vocab {
                return Err(Error::Argument {
                    name: "logit_bias",
                    value: format!("{bias} for token {id}"),
                    reason: format!("the vocabulary has {n_vocab} tokens"),
                });
            }
            if bias.is_nan() || (bias.is_finite() && bias.abs() > MAX_BIAS) {
                return Err(Error::Argument {
                    name: "logit_bias",
                    value: format!("{bias} for token {id}"),
                    reason: format!("must be from -{MAX_BIAS} to {MAX_BIAS}, or -inf or inf"),
                });
            }
        }
        match self.logprobs {
            Some(n) if n > MAX_LOGPROBS => Err(Error::Argument {
                name: "logprobs",
                value: n.to_string(),
                reason: format!("must be from 0 to {MAX_LOGPROBS}"),
            }),
            _ => Ok(()),
        }
    }

    /// Whether it matters which tokens came before.
    pub(crate) fn penalizes(&self) -> bool {
        let any = self.repeat_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0;
        any && self.repeat_last_n != Some(0)
    }
}

/// Log-probabilities of a drawn token and its rivals.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the drawn token's probability under the unmodified logits.
    pub logprob: f32,
    /// The most probable tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// The place in the order `(z descending, id ascending)` behind which tokens are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Threshold {
    /// [`key`] of the last survivor.
    key: u32,
    /// Its id.
    id: u32,
}

impl Threshold {
    fn keeps(&self, key: u32, id: u32) -> bool {
        key > self.key || (key == self.key && id <= self.id)
    }
}

/// An unsigned integer that orders as the floats do.
#[inline(always)]
pub(crate) fn key(x: f32) -> u32 {
    let bits = x.to_bits();
    bits ^ (((bits as i32) >> 31) as u32 | 0x8000_0000)
}

/// The mass of a token in units of 2^-40 of the most probable one's.
#[inline(always)]
fn mass(z: f32) -> u64 {
    if z < -28.0 {
        0
    } else {
        (math::exp(z) * 1_099_511_627_776.0) as u64
    }
}

/// Finds the shortest front of `candidates` (ascending ids), in the order of the specification,
/// whose weights sum to `target` at least; `None` where all of them do not.
///
/// A radix search: histograms of the weights by the leading digits of the key, then only within the
/// digit where the target falls, so nothing is sorted.
fn shortest_front(
    values: &[f32],
    mut candidates: Vec<u32>,
    target: u64,
    weight: impl Fn(f32) -> u64,
) -> Option<Threshold> {
    let mut before = 0;
    for shift in [21, 10, 0] {
        let digit = |id: &u32| (key(values[*id as usize]) >> shift & 0x7ff) as usize;
        let mut histogram = vec![0u64; 1 << 11];
        for id in &candidates {
            histogram[digit(id)] += weight(values[*id as usize]);
        }
        let reached = histogram.iter().rposition(|sum| {
            before += sum;
            before >= target
        })?;
        before -= histogram[reached];
        candidates.retain(|id| digit(id) == reached);
    }
    for id in candidates {
        let value = values[id as usize];
        before += weight(value);
        if before >= target {
            return Some(Threshold {
                key: key(value),
                id,
            });
        }
    }
    None
}

/// An empty list with room for `n`: the file decides how many tokens there are.
fn room<T>(n: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(n).map_err(|_| no_room::<T>(n))?;
    Ok(list)
}

/// There is no memory for `n` values.
fn no_room<T>(n: usize) -> Error {
    Error::no_room("the choice of a token", n.saturating_mul(size_of::<T>()))
}

/// Chooses the tokens of one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: Params,
    /// What penalties look at; nothing where nothing penalizes.
    seen: Seen,
    /// Logits under way, `[n_vocab]`.
    z: Vec<f32>,
}

impl Sampler {
    /// A sampler for a model of `n_vocab` tokens; the sequence begins with `prompt`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a parameter out of range, [`Error::Memory`].
    pub fn new(params: Params, n_vocab: usize, prompt: &[u32]) -> Result<Self> {
        params.validate(n_vocab)?;
        if n_vocab > MAX_VOCAB {
            return Err(Error::Unsupported {
                what: "vocabulary size",
                name: n_vocab.to_string(),
                supported: format!("up to {MAX_VOCAB} tokens"),
            });
        }
        let seen = match params.penalizes() {
            true => Seen::new(params.repeat_last_n, n_vocab, prompt)?,
            false => Seen::default(),
        };
        Ok(Self {
            params,
            seen,
            z: Vec::new(),
        })
    }

    /// Draws generated token number `index` from its logits, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::Logits`] where a logit is infinite or NaN, [`Error::Argument`] where the bias leaves no
    /// token, [`Error::Memory`].
    #[inline(always)]
    pub fn sample(&mut self, logits: &[f32], index: u32) -> Result<u32> {
        self.sample_among(logits, index, None)
    }

    /// [`Sampler::sample`] among the tokens `allowed` alone.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    #[inline(always)]
    pub fn sample_among(
        &mut self,
        logits: &[f32],
        index: u32,
        allowed: Option<&Allowed>,
    ) -> Result<u32> {
        let id = self.choose(logits, index, allowed)?;
        self.seen.note(id)?;
        Ok(id)
    }

    #[inline(always)]
    fn choose(&mut self, logits: &[f32], index: u32, allowed: Option<&Allowed>) -> Result<u32> {
        check(logits)?;
        if self.params.temperature == 0.0
            && allowed.is_none()
            && self.params.logit_bias.is_empty()
            && self.seen.is_empty()
        {
            return best(logits).ok_or_else(nothing_left);
        }
        if self.z.capacity() < logits.len() {
            self.z = room(logits.len())?;
        }
        self.adjust(logits, allowed);
        check_adjusted(&self.z)?;
        let most = best(&self.z).ok_or_else(nothing_left)?;
        let temperature = self.params.temperature;
        if temperature == 0.0 {
            return Ok(most);
        }
        let most = self.z[most as usize];
        for z in &mut self.z {
            *z = (*z - most) / temperature + 0.0;
        }
        let threshold = self.filter()?;
        Ok(self.draw(threshold, index))
    }

    /// Steps 1 and 2: `self.z = y`.
    #[inline(always)]
    fn adjust(&mut self, logits: &[f32], allowed: Option<&Allowed>) {
        let Self { params, seen, z } = self;
        z.clear();
        if params.logit_bias.values().any(|b| *b == f32::INFINITY) {
            z.resize(logits.len(), f32::NEG_INFINITY);
            for (id, bias) in &params.logit_bias {
                if *bias == f32::INFINITY {
                    z[*id as usize] = logits[*id as usize];
                }
            }
        } else {
            z.extend_from_slice(logits);
            for (id, bias) in &params.logit_bias {
                z[*id as usize] += bias;
            }
        }
        if let Some(allowed) = allowed {
            for (id, y) in (0u32..).zip(z.iter_mut()) {
                if !allowed.contains(id) {
                    *y = f32::NEG_INFINITY;
                }
            }
        }
        for (id, count) in seen.iter() {
            let y = &mut z[id as usize];
            if *y > 0.0 {
                *y /= params.repeat_penalty;
            } else {
                *y *= params.repeat_penalty;
            }
            if count > 0 {
                *y =
                    (-params.frequency_penalty).mul_add(count as f32, *y) - params.presence_penalty;
            }
        }
    }

    fn survivors(&self, threshold: Option<Threshold>) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.z).filter_map(move |(id, z)| {
            let alive = *z != f32::NEG_INFINITY
                && threshold.is_none_or(|threshold| threshold.keeps(key(*z), id));
            alive.then_some(id)
        })
    }

    fn candidates(&self, threshold: Option<Threshold>) -> Result<Vec<u32>> {
        let mut ids = room(self.z.len())?;
        ids.extend(self.survivors(threshold));
        Ok(ids)
    }

    /// Step 5: what survives all filters.
    #[inline(always)]
    fn filter(&self) -> Result<Option<Threshold>> {
        let Params {
            top_k,
            top_p,
            min_p,
            ..
        } = self.params;
        let mut threshold = None;
        if (1..self.z.len()).contains(&top_k) {
            threshold = shortest_front(&self.z, self.candidates(threshold)?, top_k as u64, |_| 1);
        }
        if top_p < 1.0 {
            let candidates = self.candidates(threshold)?;
            let total: u64 = candidates.iter().map(|id| mass(self.z[*id as usize])).sum();
            let share = (f64::from(top_p) * 4_294_967_296.0).round() as u128;
            let target = (u128::from(total) * share).div_ceil(1 << 32).max(1) as u64;
            threshold = shortest_front(&self.z, candidates, target, mass).or(threshold);
        }
        if min_p >= f32::MIN_POSITIVE {
            let least = Threshold {
                key: key(math::ln(min_p)),
                id: u32::MAX,
            };
            // Of two fronts of the same order the shorter lies within the other.
            let shorter =
                |threshold: Threshold| (threshold.key, !threshold.id).max((least.key, !least.id));
            let (key, id) = threshold.map_or((least.key, !least.id), shorter);
            threshold = Some(Threshold { key, id: !id });
        }
        Ok(threshold)
    }

    /// Step 6.
    #[inline(always)]
    fn draw(&self, threshold: Option<Threshold>, index: u32) -> u32 {
        let (mut best, mut best_score) = (0, f32::NEG_INFINITY);
        let (mut group, mut words) = (u32::MAX, [0; 4]);
        for id in self.survivors(threshold) {
            if id / 4 != group {
                group = id / 4;
                words = random::words(self.params.seed, index, group);
            }
            let score = self.z[id as usize] + random::gumbel(words[(id % 4) as usize]);
            if score > best_score {
                (best, best_score) = (id, score);
            }
        }
        best
    }
}

/// The argmax; `None` where all are -inf.
#[inline(always)]
pub fn best(values: &[f32]) -> Option<u32> {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = values.iter().position(|v| *v == most)?;
    (most != f32::NEG_INFINITY).then_some(at as u32)
}

/// Refuses rows of logits that a model made of numbers that overflowed.
///
/// # Errors
/// [`Error::Logits`] where one is infinite or NaN.
pub fn check_rows(logits: &[f32], n_vocab: usize) -> Result<()> {
    logits.chunks(n_vocab.max(1)).try_for_each(check)
}

/// Of a row.
#[inline(always)]
fn check(logits: &[f32]) -> Result<()> {
    check_all(logits, |l| l.abs() < f32::INFINITY)
}

/// Refuses what no sampler can order: what a bias bans is -inf.
#[inline(always)]
fn check_adjusted(logits: &[f32]) -> Result<()> {
    check_all(logits, |l| l < f32::INFINITY)
}

/// `holds` is false for NaN.
#[inline(always)]
fn check_all(logits: &[f32], holds: impl Fn(f32) -> bool) -> Result<()> {
    // No early exit, so that this is a few wide compares.
    if logits.iter().fold(true, |ok, l| ok & holds(*l)) {
        return Ok(());
    }
    let bad = (0u32..).zip(logits).find(|(_, l)| !holds(**l));
    let (token, value) = bad.map_or((0, 0.0), |(token, l)| (token, *l));
    Err(Error::Logits {
        token,
        value: value.to_string(),
    })
}

pub(crate) fn nothing_left() -> Error {
    Error::Argument {
        name: "logit_bias",
        value: "-inf for every token that had a chance".into(),
        reason: "no token is left to draw; ban fewer".into(),
    }
}

/// Log-probabilities under the unmodified `logits`: `(l - max) - ln(total / 2^40)`, with the total
/// of the integer masses of `l - max`; and the `n` most probable tokens.
///
/// # Errors
/// [`Error::Logits`] where a logit is infinite or NaN, [`Error::Memory`].
#[inline(always)]
pub fn logprobs(logits: &[f32], token: u32, n: usize) -> Result<Logprobs> {
    check(logits)?;
    let most = best(logits).ok_or_else(nothing_left)?;
    let most = logits[most as usize];
    let mut z = room(logits.len())?;
    z.extend(logits.iter().map(|l| l - most + 0.0));
    let total: u64 = z.iter().map(|z| mass(*z)).sum();
    let ln_total = math::ln(total as f32 / 1_099_511_627_776.0);
    let of = |id: u32| z[id as usize] - ln_total;
    let n = n.min(z.len());
    let ids = || 0..z.len() as u32;
    let mut top = Vec::new();
    if n > 0 {
        let mut all = room(z.len())?;
        all.extend(ids());
        let threshold = shortest_front(&z, all, n as u64, |_| 1);
        top.extend(ids().filter(|id| threshold.is_none_or(|c| c.keeps(key(z[*id as usize]), *id))));
        // The sort is stable: equal tokens stay in the order of their ids.
        top.sort_by_key(|id| !key(z[*id as usize]));
    }
    Ok(Logprobs {
        logprob: of(token),
        top: top.into_iter().map(|id| (id, of(id))).collect(),
    })
}
