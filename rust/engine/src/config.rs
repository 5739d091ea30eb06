//! Metadata → [`Config`]: every hyper-parameter, each checked against a range, and the catalogue of
//! tensors. Nothing after this reads metadata again, except the tokenizer and the chat template.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![deny(clippy::arithmetic_side_effects, clippy::panic)]

mod delta;
mod latent;
mod mamba2;
mod streams;
mod window;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::gguf::{shown, Array, Gguf, TensorInfo, Value};
use crate::quant::QuantType;
pub use delta::DeltaConfig;
pub use latent::{ExpertGroups, LatentConfig};
pub use mamba2::Mamba2Config;
pub use streams::{ChoiceConfig, NgramConfig, StreamsConfig};

/// Most experts of a layer: more than any published model has, and few enough that a warp chooses
/// among them.
pub const MOST_EXPERTS: usize = 1024;

/// Shape and type of a tensor in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Fastest-varying dimension first: `[n_in, n_out]` for a matrix.
    pub shape: Vec<usize>,
    pub ty: &'static QuantType,
}

/// How positions beyond the trained context are squeezed into it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RopeScaling {
    None,
    /// All positions divided by `factor`.
    Linear {
        factor: f64,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>): low frequencies interpolated, high ones kept.
    Yarn {
        factor: f64,
        original_ctx: usize,
        attn_factor: f64,
        beta_fast: f64,
        beta_slow: f64,
    },
}

/// A sliding window: in layers that have it, a row sees so many tokens and no more.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// The row's own included.
    pub tokens: usize,
    pub layers: WindowLayers,
}

/// Which layers have a window.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowLayers {
    /// The file does not say.
    Unsaid,
    /// A pattern of so many layers is repeated; which of them have it is the architecture's. 0: all.
    Period(usize),
    /// Each layer's own word.
    Each(Vec<bool>),
}

impl Window {
    /// The tokens that a row of `layer` sees, where not all: of each pattern of layers, which has
    /// `period` where the file does not say, all but the last have the window.
    pub fn of(&self, layer: usize, period: usize) -> Option<usize> {
        self.but_where(layer, layer.wrapping_add(1), period)
    }

    /// The same where all but the first of a pattern have it.
    pub fn of_but_first(&self, layer: usize, period: usize) -> Option<usize> {
        self.but_where(layer, layer, period)
    }

    /// All but those of which `counted` is a multiple of the period.
    fn but_where(&self, layer: usize, counted: usize, period: usize) -> Option<usize> {
        // Of 0 none is.
        let is_none = |period: usize| counted.checked_rem(period) != Some(0);
        let has = match &self.layers {
            WindowLayers::Unsaid => is_none(period),
            WindowLayers::Period(period) => is_none(*period),
            WindowLayers::Each(layers) => layers.get(layer) == Some(&true),
        };
        has.then_some(self.tokens)
    }
}

/// Factors that some families multiply with; `None` where the file has none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Factors {
    /// Of the embedding.
    pub embedding: Option<f32>,
    /// Of what a block adds to the rows.
    pub residual: Option<f32>,
    /// Of the scores of attention, instead of `1 / sqrt(head_dim)`.
    pub attention: Option<f32>,
    /// What the logits are divided by, or multiplied by: the architecture's.
    pub logits: Option<f32>,
}

/// How queries grow with their position: `1 + scale ln(floor(position / every) + 1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TemperatureConfig {
    pub scale: f64,
    /// The context before scaling.
    pub every: u32,
}

/// The mixture of experts that the feed-forward part of layers is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    pub n_expert: usize,
    /// Experts that a row is routed to.
    pub n_used: usize,
    /// Width of one expert.
    pub n_ff: usize,
    /// Width of what experts multiply, where that is not the rows'.
    pub n_latent: Option<usize>,
    /// Width of the expert that every row goes to, where there is one.
    pub n_ff_shared: Option<usize>,
    /// Experts that every row goes to, where a family counts them: as wide as all of them are together.
    pub n_shared: usize,
    /// Whether the file says that the weights of the chosen are divided by their sum.
    pub renormalizes: bool,
    /// What the weights of the chosen are multiplied by; 1 where the file says nothing.
    pub scale: f32,
    /// How logits become weights, as the format numbers it: 1 a softmax over all, 2 sigmoids, 3 a
    /// softmax over those chosen. `None` where the file does not say.
    pub gating: Option<usize>,
    /// Layers before the first that has them.
    pub n_layer_dense: usize,
    /// Neighbours of one number, of which some groups are chosen from.
    pub groups: Option<ExpertGroups>,
    /// Where a family says it: the second of so many layers has them, others none.
    pub every: Option<usize>,
}

/// What layers with a window have of their own, where the file says it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Local {
    /// Width of one attention head.
    pub head_dim: Option<usize>,
    /// Leading dimensions of each head that are rotated.
    pub rope_dim: Option<usize>,
}

/// How the hidden states of a text become its embedding, as the format numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingType {
    /// They do not.
    None = 0,
    Mean = 1,
    /// The state of the first token.
    Cls = 2,
    Last = 3,
    /// A score by a head of its own: the model is a reranker.
    Rank = 4,
}

impl PoolingType {
    /// By number.
    const ALL: [Self; 5] = [Self::None, Self::Mean, Self::Cls, Self::Last, Self::Rank];

    /// Its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Rank => "rank",
        }
    }
}

/// Everything about a model but its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub arch: String,
    /// `general.name`, where given.
    pub name: Option<String>,
    pub n_layer: usize,
    pub n_embd: usize,
    /// Width of a feed-forward part that is no expert's, the most of any layer; 0 where the file has none.
    pub n_ff: usize,
    /// By layer; 0 where it has none.
    pub n_ff_of: Vec<usize>,
    /// The most of any layer, as the next.
    pub n_head: usize,
    pub n_head_kv: usize,
    /// By layer.
    pub n_head_of: Vec<usize>,
    /// By layer; 0 where something else stands in the place of attention.
    pub n_head_kv_of: Vec<usize>,
    /// Width of one attention head (keys and values alike).
    pub head_dim: usize,
    pub n_vocab: usize,
    /// The context the model was trained for.
    pub n_ctx_train: usize,
    /// Of LayerNorm, where the norms are that.
    pub rms_eps: f32,
    /// Whether rows see none behind them, where the file says so.
    pub causal: Option<bool>,
    /// Leading dimensions of each head that are rotated.
    pub rope_dim: usize,
    pub rope_base: f64,
    pub rope_scaling: RopeScaling,
    /// Whether positions have parts (M-RoPE), which are the same in text.
    pub rope_sections: bool,
    /// The context before scaling.
    pub n_ctx_original: usize,
    /// `rope.scaling.attn_factor`, of cosines and sines.
    pub rope_attn_factor: f64,
    /// `rope.scaling.yarn_log_multiplier`, by which some families take back a part of YaRN's factor.
    pub yarn_log_multiplier: f64,
    /// `None` where the file has none.
    pub temperature: Option<TemperatureConfig>,
    /// Layers behind `n_layer` that guess further tokens; no pass runs them.
    pub n_layer_nextn: usize,
    pub delta: Option<DeltaConfig>,
    pub latent: Option<LatentConfig>,
    pub mamba2: Option<Mamba2Config>,
    pub streams: Option<StreamsConfig>,
    pub choice: Option<ChoiceConfig>,
    pub ngrams: Option<NgramConfig>,
    /// Tokens that a short convolution sees.
    pub conv_taps: Option<usize>,
    /// The base in layers with a window, where they have one of their own.
    pub rope_base_window: Option<f64>,
    /// `rope.scaling.finetuned`, by which some families say whether they rotate at all.
    pub rope_finetuned: bool,
    /// `None` where every row sees all before it.
    pub window: Option<Window>,
    pub local: Local,
    /// Layers at the end that read what an earlier one has stored.
    pub n_layer_shared_kv: usize,
    /// Numbers of a token that each layer has for itself; 0 where there are none.
    pub n_embd_layer: usize,
    /// Logits `x` are `c tanh(x / c)`.
    pub logit_cap: Option<f32>,
    pub factors: Factors,
    /// `None` where the file does not say.
    pub pooling: Option<PoolingType>,
    /// Where the file has experts.
    pub experts: Option<Experts>,
    /// Every tensor of the file (of all shards).
    pub tensors: BTreeMap<String, TensorSpec>,
}

/// Reads `arch.key` with a range check.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

fn out_of_range(key: String, value: impl ToString, expected: impl Into<String>) -> Error {
    Error::Metadata {
        key,
        value: value.to_string(),
        expected: expected.into(),
    }
}

impl Keys<'_> {
    fn uint(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let key = format!("{}.{key}", self.arch);
        let Some(n) = self.gguf.get_uint(&key)? else {
            return Ok(None);
        };
        match usize::try_from(n).ok().filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(out_of_range(
                key,
                n,
                format!("{} to {}", range.start(), range.end()),
            )),
        }
    }

    /// A number for each layer, or one for all.
    fn by_layer(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
        n_layer: usize,
    ) -> Result<Option<Vec<usize>>> {
        let name = format!("{}.{key}", self.arch);
        let value = self.gguf.get(&name);
        let numbers: Vec<Option<usize>> = match value {
            Some(Value::Array(Array::U32(each))) => {
                each.iter().map(|n| usize::try_from(*n).ok()).collect()
            }
            Some(Value::Array(Array::I32(each))) => {
                each.iter().map(|n| usize::try_from(*n).ok()).collect()
            }
            _ => return Ok(self.uint(key, range)?.map(|n| vec![n; n_layer])),
        };
        // The layers behind `n_layer` may be counted too.
        let each: Option<Vec<usize>> = numbers.iter().take(n_layer).copied().collect();
        match each.filter(|each| each.len() == n_layer && each.iter().all(|n| range.contains(n))) {
            Some(each) => Ok(Some(each)),
            None => Err(out_of_range(
                name,
                value.map_or_else(String::new, Value::describe),
                format!(
                    "a non-negative integer from {} to {}, or {n_layer} of them, one a layer",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    fn float(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let key = format!("{}.{key}", self.arch);
        let Some(x) = self.gguf.get_float(&key)? else {
            return Ok(None);
        };
        if range.contains(&x) {
            return Ok(Some(x));
        }
        Err(out_of_range(
            key,
            x,
            format!("{} to {}", range.start(), range.end()),
        ))
    }

    /// A factor by which positions are squeezed. Converters write 0 for "none".
    fn factor(&self, key: &str) -> Result<Option<f64>> {
        match self.float(key, 0.0..=1e6)? {
            Some(0.0) => Ok(Some(1.0)),
            Some(f) if f < 0.01 => Err(out_of_range(
                format!("{}.{key}", self.arch),
                f,
                "0 for none, or 0.01 to 1000000",
            )),
            other => Ok(other),
        }
    }

    /// A factor of values, `None` where it is missing. Converters write 0 for "none".
    fn multiplier(&self, key: &str) -> Result<Option<f32>> {
        const RANGE: RangeInclusive<f64> = 1e-9..=1e9;
        match self.float(key, 0.0..=*RANGE.end())? {
            Some(f) if f > 0.0 && !RANGE.contains(&f) => Err(out_of_range(
                format!("{}.{key}", self.arch),
                f,
                "0 for none, or 1e-9 to 1e9",
            )),
            other => Ok(other.filter(|f| *f > 0.0).map(|f| f as f32)),
        }
    }

    /// A key that changes what the model computes in a way not supported: absent, or one value.
    fn only(&self, key: &str, expected: &str, good: impl Fn(&Value) -> bool) -> Result<()> {
        let key = format!("{}.{key}", self.arch);
        match self.gguf.get(&key).filter(|v| !good(v)) {
            Some(v) => Err(out_of_range(key, v.describe(), expected)),
            None => Ok(()),
        }
    }

    fn need<T>(&self, key: &str, value: Option<T>, expected: &str) -> Result<T> {
        value.ok_or_else(|| out_of_range(format!("{}.{key}", self.arch), "missing", expected))
    }
}

impl Config {
    /// `general.architecture`. Ask `arch::find` whether it is supported before reading the rest:
    /// other architectures have other keys.
    ///
    /// # Errors
    /// [`Error::Metadata`] where it is missing or no name.
    pub fn architecture(gguf: &Gguf) -> Result<&str> {
        const KEY: &str = "general.architecture";
        const EXPECTED: &str = "the name of an architecture, 1 to 64 letters, digits, - and _";
        let arch = gguf
            .get_str(KEY)?
            .ok_or_else(|| out_of_range(KEY.into(), "missing", EXPECTED))?;
        let name_like = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if !(1..=64).contains(&arch.len()) || !arch.bytes().all(name_like) {
            let found = format!("\"{}\"", shown(arch));
            return Err(out_of_range(KEY.into(), found, EXPECTED));
        }
        Ok(arch)
    }

    /// Reads the metadata of `gguf` and the tensor records of all shards.
    ///
    /// # Errors
    /// [`Error::Metadata`] names the key, its value and the range; [`Error::Tensor`] where the
    /// embedding is missing.
    pub fn new<'a>(gguf: &Gguf, tensors: impl Iterator<Item = &'a TensorInfo>) -> Result<Self> {
        let arch = Self::architecture(gguf)?;
        let tensors: BTreeMap<_, _> = tensors
            .map(|t| {
                (
                    t.name.clone(),
                    TensorSpec {
                        shape: t.shape.clone(),
                        ty: t.ty,
                    },
                )
            })
            .collect();
        let embedding = tensors
            .get("token_embd.weight")
            .ok_or_else(|| Error::Tensor {
                name: "token_embd.weight".into(),
                found: "nothing".into(),
                expected: "a matrix [n_embd, n_vocab]".into(),
                remedy: "the file holds a vocabulary only, or not all of the model: fetch it again"
                    .into(),
            })?;
        let n_vocab = embedding.shape.get(1).copied().unwrap_or(1);
        if n_vocab == 0 {
            return Err(Error::Tensor {
                name: "token_embd.weight".into(),
                found: format!("the shape {:?}", embedding.shape),
                expected: "a row for each token".into(),
                remedy: "the file is damaged: fetch it again".into(),
            });
        }
        if let Some(tokens) = gguf.get_strings("tokenizer.ggml.tokens")? {
            if tokens.len() != n_vocab {
                return Err(out_of_range(
                    "tokenizer.ggml.tokens".into(),
                    format!("an array of {} strings", tokens.len()),
                    format!("{n_vocab}, the rows of token_embd.weight; fetch the model again"),
                ));
            }
        }

        let keys = Keys { gguf, arch };
        const MOST: usize = 1 << 20;
        macro_rules! need_uint {
            ($key:literal, $range:expr) => {{
                let range: RangeInclusive<usize> = $range;
                let expected = format!("{} to {}", range.start(), range.end());
                keys.need($key, keys.uint($key, range)?, &expected)?
            }};
        }
        let n_block = need_uint!("block_count", 1..=1024);
        // A drafter in a file of its own has no other layers.
        let most = n_block.saturating_sub(usize::from(!arch.ends_with("-assistant")));
        let n_layer_nextn = keys.uint("nextn_predict_layers", 0..=most)?;
        let n_layer_nextn = n_layer_nextn.filter(|n| *n < n_block).unwrap_or(0);
        let n_layer = n_block.saturating_sub(n_layer_nextn);
        let n_embd = need_uint!("embedding_length", 1..=MOST);
        let has_experts = keys.uint("expert_count", 0..=MOST_EXPERTS)? > Some(0)
            && keys.uint("expert_feed_forward_length", 1..=MOST)?.is_some();
        let has_mamba2 = Self::has_mamba2(arch);
        let least = usize::from(!has_mamba2);
        let n_ff_of = match keys.by_layer("feed_forward_length", least..=MOST, n_layer)? {
            None if has_experts => vec![0; n_layer],
            found => keys.need("feed_forward_length", found, &format!("1 to {MOST}"))?,
        };
        let n_ff = n_ff_of.iter().copied().max().unwrap_or(0);
        let n_head_of = keys.by_layer("attention.head_count", 1..=4096, n_layer)?;
        let n_head_of = keys.need("attention.head_count", n_head_of, "1 to 4096")?;
        let n_head = n_head_of.iter().copied().max().unwrap_or(1);
        let conv_taps = keys.uint("shortconv.l_cache", 2..=16)?;
        let least = usize::from(conv_taps.is_none() && !has_mamba2);
        let n_head_kv_of = keys
            .by_layer("attention.head_count_kv", least..=n_head, n_layer)?
            .unwrap_or_else(|| vec![n_head; n_layer]);
        let n_head_kv = n_head_kv_of.iter().copied().max().unwrap_or(n_head);
        if n_head_kv == 0 {
            return Err(out_of_range(
                format!("{arch}.attention.head_count_kv"),
                "0 in every layer",
                "at least one attention layer",
            ));
        }
        let odd = |(n_head, n): &(&usize, &usize)| **n > 0 && n_head.checked_rem(**n) != Some(0);
        if let Some((n_head, n_head_kv)) = n_head_of.iter().zip(&n_head_kv_of).find(odd) {
            return Err(out_of_range(
                format!("{arch}.attention.head_count_kv"),
                n_head_kv,
                format!("a divisor of the {n_head} attention heads"),
            ));
        }
        let n_head_kv = n_head_kv_of.iter().copied().max().unwrap_or(n_head);
        let head_dim = match keys.uint("attention.key_length", 1..=1024)? {
            Some(d) => d,
            None if n_embd.checked_rem(n_head) == Some(0) => {
                n_embd.checked_div(n_head).unwrap_or(0)
            }
            None => {
                return Err(out_of_range(
                    format!("{arch}.attention.head_count"),
                    n_head,
                    format!("a divisor of the embedding length {n_embd}"),
                ))
            }
        };
        if head_dim > 1024 || head_dim.checked_rem(2) != Some(0) {
            return Err(out_of_range(
                format!("{arch}.attention.key_length"),
                format!("{head_dim} ({n_head} heads, embedding length {n_embd})"),
                "an even width of at most 1024",
            ));
        }
        let latent = Self::latent(&keys, head_dim)?;
        let wanted = latent.map_or(head_dim, |latent| latent.rank);
        let value_dim = keys.uint("attention.value_length", 1..=1024)?;
        if let Some(other) = value_dim.filter(|dim| *dim != wanted) {
            return Err(out_of_range(
                format!("{arch}.attention.value_length"),
                other,
                match latent {
                    Some(_) => format!("{wanted}, attention.kv_lora_rank"),
                    None => format!("{wanted}, the width of the keys; others are not supported"),
                },
            ));
        }
        let experts = Self::experts(&keys, n_layer, n_ff)?;
        keys.only(
            "rope.scaling.alpha",
            "0, or no such key: alpha scaling is only supported if the converter applied it to \
             rope.freq_base",
            |v| v.as_float() == Some(0.0),
        )?;
        keys.only(
            "attn_logit_softcapping",
            "0: attention softcapping is not supported",
            |v| v.as_float() == Some(0.0),
        )?;
        let rope_dim = keys
            .uint("rope.dimension_count", 2..=head_dim)?
            .unwrap_or(head_dim);
        if rope_dim.checked_rem(2) != Some(0) {
            return Err(out_of_range(
                format!("{arch}.rope.dimension_count"),
                rope_dim,
                "an even number",
            ));
        }
        let n_ctx_train = need_uint!("context_length", 1..=1 << 30);
        // Zero divides zero by zero on a row of zeros.
        let positive = f64::from(f32::MIN_POSITIVE);
        const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
        let rms_eps = match keys.float(RMS_EPS, positive..=1.0)? {
            None => keys.float("attention.layer_norm_epsilon", positive..=1.0)?,
            found => found,
        };
        let rms_eps = keys.need(RMS_EPS, rms_eps, "a number above 0, up to 1")?;
        let bases = 2.0..=1e12;
        let rope_base = keys.float("rope.freq_base", bases.clone())?;
        let rope_base = rope_base.unwrap_or(10_000.0);
        let finetuned = format!("{arch}.rope.scaling.finetuned");
        let rope_scaling = Self::scaling(&keys, n_ctx_train)?;
        Ok(Self {
            arch: arch.to_owned(),
            name: gguf.get_str("general.name")?.map(str::to_owned),
            n_layer,
            n_embd,
            n_ff,
            n_ff_of,
            n_head,
            n_head_kv,
            n_head_of,
            n_head_kv_of,
            head_dim,
            n_vocab,
            n_ctx_train,
            rms_eps: rms_eps as f32,
            causal: gguf.get_bool(&format!("{arch}.attention.causal"))?,
            rope_dim,
            rope_base,
            rope_scaling,
            rope_sections: Self::has_sections(&keys),
            n_ctx_original: Self::original_context(&keys, n_ctx_train)?,
            rope_attn_factor: keys
                .float("rope.scaling.attn_factor", 0.01..=100.0)?
                .unwrap_or(1.0),
            yarn_log_multiplier: keys
                .float("rope.scaling.yarn_log_multiplier", 0.0..=100.0)?
                .unwrap_or(0.0),
            temperature: Self::temperature(&keys, n_ctx_train)?,
            n_layer_nextn,
            delta: Self::delta(&keys, n_layer)?,
            latent,
            mamba2: Self::mamba2(&keys)?,
            streams: Self::streams(&keys)?,
            choice: Self::choice(&keys, rope_dim)?,
            ngrams: Self::ngrams(&keys, n_layer)?,
            conv_taps,
            rope_base_window: keys.float("rope.freq_base_swa", bases)?,
            rope_finetuned: gguf.get_bool(&finetuned)?.unwrap_or(true),
            window: Self::window(&keys, n_layer)?,
            local: Self::local(&keys)?,
            n_layer_shared_kv: keys
                .uint("attention.shared_kv_layers", 0..=n_layer)?
                .unwrap_or(0),
            n_embd_layer: keys
                .uint("embedding_length_per_layer_input", 0..=MOST)?
                .unwrap_or(0),
            logit_cap: keys.multiplier("final_logit_softcapping")?,
            factors: Factors {
                embedding: keys.multiplier("embedding_scale")?,
                residual: keys.multiplier("residual_scale")?,
                attention: keys.multiplier("attention.scale")?,
                logits: keys.multiplier("logit_scale")?,
            },
            pooling: keys
                .uint("pooling_type", 0..=4)?
                .and_then(|n| PoolingType::ALL.get(n).copied()),
            experts,
            tensors,
        })
    }

    fn experts(keys: &Keys<'_>, n_layer: usize, n_ff: usize) -> Result<Option<Experts>> {
        let n_expert = keys.uint("expert_count", 0..=MOST_EXPERTS)?.unwrap_or(0);
        if n_expert == 0 {
            return Ok(None);
        }
        let used = keys.uint("expert_used_count", 1..=n_expert)?;
        let expected = format!("1 to {n_expert}, the number of experts");
        let n_used = keys.need("expert_used_count", used, &expected)?;
        let n_ff = match keys.uint("expert_feed_forward_length", 1..=1 << 20)? {
            Some(n) => n,
            // Early files: as if one layer's width were shared by those used.
            None => n_ff.checked_div(n_used).unwrap_or(0).max(1),
        };
        let scale = keys.float("expert_weights_scale", 0.0..=1e6)?;
        let shared = keys.uint("expert_shared_feed_forward_length", 0..=1 << 20)?;
        let renormalizes = format!("{}.expert_weights_norm", keys.arch);
        Ok(Some(Experts {
            n_expert,
            n_used,
            n_ff,
            n_latent: keys
                .uint("moe_latent_size", 0..=1 << 20)?
                .filter(|n| *n > 0),
            n_ff_shared: shared.filter(|n| *n > 0),
            n_shared: keys.uint("expert_shared_count", 0..=64)?.unwrap_or(0),
            renormalizes: keys.gguf.get_bool(&renormalizes)?.unwrap_or(false),
            // Converters write 0 for "none".
            scale: scale.filter(|s| *s > 0.0).unwrap_or(1.0) as f32,
            gating: keys.uint("expert_gating_func", 0..=3)?.filter(|n| *n > 0),
            n_layer_dense: keys
                .uint("leading_dense_block_count", 0..=n_layer)?
                .unwrap_or(0),
            groups: Self::groups(keys, n_expert, n_used)?,
            every: keys.uint("moe_every_n_layers", 2..=1024)?,
        }))
    }

    /// Whether the first two of `rope.dimension_sections` have pairs.
    fn has_sections(keys: &Keys<'_>) -> bool {
        let key = format!("{}.rope.dimension_sections", keys.arch);
        match keys.gguf.get(&key) {
            Some(Value::Array(Array::I32(each))) => {
                matches!(each.as_slice(), [a, b, ..] if *a > 0 && *b > 0)
            }
            Some(Value::Array(Array::U32(each))) => {
                matches!(each.as_slice(), [a, b, ..] if *a > 0 && *b > 0)
            }
            _ => false,
        }
    }

    fn temperature(keys: &Keys<'_>, n_ctx_train: usize) -> Result<Option<TemperatureConfig>> {
        let scale = keys.float("attention.temperature_scale", 0.0..=100.0)?;
        let every = Self::original_context(keys, n_ctx_train)?;
        Ok(scale.filter(|s| *s > 0.0).map(|scale| TemperatureConfig {
            scale,
            // At most 2^30.
            every: u32::try_from(every).unwrap_or(u32::MAX),
        }))
    }

    /// The context before scaling.
    fn original_context(keys: &Keys<'_>, n_ctx_train: usize) -> Result<usize> {
        let n = keys.uint("rope.scaling.original_context_length", 1..=1 << 30)?;
        Ok(n.unwrap_or(n_ctx_train))
    }

    fn scaling(keys: &Keys<'_>, n_ctx_train: usize) -> Result<RopeScaling> {
        let key = format!("{}.rope.scaling.type", keys.arch);
        let factor = match keys.factor("rope.scaling.factor")? {
            Some(f) => f,
            // The older spelling.
            None => keys.factor("rope.scale_linear")?.unwrap_or(1.0),
        };
        match keys.gguf.get_str(&key)? {
            Some("none") => Ok(RopeScaling::None),
            None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => Self::yarn(keys, factor, n_ctx_train),
            Some(other) => Err(out_of_range(
                key,
                format!("\"{}\"", shown(other)),
                "none, linear or yarn",
            )),
        }
    }

    fn yarn(keys: &Keys<'_>, factor: f64, n_ctx_train: usize) -> Result<RopeScaling> {
        keys.only(
            "rope.scaling.yarn_ext_factor",
            "1: other extrapolation factors are not supported",
            |v| v.as_float() == Some(1.0),
        )?;
        let scale = 0.01..=100.0;
        // `attn_factor` multiplies YaRN's `1 + 0.1 ln(factor)`; `yarn_attn_factor` replaces it, as
        // `attention_factor` does in transformers, and in older files of OLMo 3 `attn_factor` too.
        let whole = keys.float("rope.scaling.yarn_attn_factor", scale.clone())?;
        let named = keys.float("rope.scaling.attn_factor", scale)?;
        let attn_factor = match whole.or(named.filter(|_| keys.arch == "olmo2")) {
            Some(whole) => whole / (1.0 + 0.1 * factor.max(1.0).ln()),
            None => named.unwrap_or(1.0),
        };
        let rotations = 1e-3..=1e4;
        let beta_fast = keys
            .float("rope.scaling.yarn_beta_fast", rotations.clone())?
            .unwrap_or(32.0);
        let beta_slow = keys
            .float("rope.scaling.yarn_beta_slow", rotations)?
            .unwrap_or(1.0);
        if beta_slow > beta_fast {
            return Err(out_of_range(
                format!("{}.rope.scaling.yarn_beta_slow", keys.arch),
                beta_slow,
                format!("at most yarn_beta_fast, {beta_fast}"),
            ));
        }
        Ok(RopeScaling::Yarn {
            factor,
            original_ctx: Self::original_context(keys, n_ctx_train)?,
            attn_factor,
            beta_fast,
            beta_slow,
        })
    }
}
