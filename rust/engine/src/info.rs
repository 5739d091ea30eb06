//! A model file in numbers: for `onegraph info` and for anyone who asks before loading.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use crate::arch;
use crate::backend::{Kind, KvPages, Needs, Windows, PAGE_TOKENS};
use crate::config::{Config, PoolingType, RopeScaling};
use crate::engine::device::{self, Device};
use crate::engine::{self, memory, Options};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Strings};
use crate::plan::signature::Role;
use crate::plan::{Op, Plan, RopeStyle, Weight, WeightId, ARITHMETIC};
use crate::tokenizer::Tokenizer;
use crate::weights::Model;

/// Everything known about a model without running it. Text of the file has its control characters
/// escaped, so that it may be printed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The file, or the first shard.
    pub path: String,
    /// One entry a shard.
    pub files: Vec<FileInfo>,
    /// Of all files.
    pub file_bytes: u64,
    pub gguf_version: u32,
    /// [`ARITHMETIC`] of this onegraph, whatever the model.
    pub arithmetic: u32,
    pub architecture: Option<String>,
    pub name: Option<String>,
    /// Why this model does not run here; the rest is what is known all the same.
    pub error: Option<String>,
    pub n_tensors: usize,
    pub n_params: u64,
    pub tensor_bytes: u64,
    pub bits_per_weight: Option<f64>,
    /// The type with the most bytes first.
    pub quant_mix: Vec<QuantShare>,
    pub shape: Shape,
    /// Layers by kind, in the order of the first of each; empty where the model cannot run.
    pub layers: Vec<LayersInfo>,
    /// How hidden states become an embedding, where the file says so: `none`, `mean`, `cls`, `last`
    /// or `rank`. Known where the metadata is valid.
    pub pooling: Option<&'static str>,
    /// Whether it is an encoder, which sees a whole text at once and generates nothing; false where the
    /// model cannot run.
    pub looks_ahead: bool,
    /// Known where the metadata is valid.
    pub rope: Option<RopeInfo>,
    pub tokenizer: Option<TokenizerInfo>,
    pub chat_template: Option<ChatTemplateInfo>,
    /// Known where the model can run.
    pub memory: Option<MemoryInfo>,
    /// Known where the model can run.
    pub decode: Option<DecodeInfo>,
    /// Tensors of the file that the plan does not read.
    pub unused_tensors: Vec<String>,
}

/// One file of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileInfo {
    pub path: String,
    pub bytes: u64,
}

/// What one quantization type holds of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantShare {
    #[serde(rename = "type")]
    pub ty: &'static str,
    pub tensors: usize,
    pub params: u64,
    pub bytes: u64,
}

/// Hyper-parameters; for an architecture that is not supported, those it has under the usual names.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Shape {
    pub n_ctx_train: Option<u64>,
    pub n_layer: Option<u64>,
    pub n_embd: Option<u64>,
    pub n_ff: Option<u64>,
    pub n_head: Option<u64>,
    pub n_head_kv: Option<u64>,
    pub head_dim: Option<u64>,
    pub n_vocab: Option<u64>,
    /// Experts of a layer, and those of them that a token is routed to; none where there are none.
    pub n_expert: Option<u64>,
    pub n_expert_used: Option<u64>,
    pub n_ff_exp: Option<u64>,
    /// Width of the expert that every token goes to; none where there is none.
    pub n_ff_shared: Option<u64>,
    pub rms_eps: Option<f32>,
}

/// Layers that attend alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayersInfo {
    pub n_layer: usize,
    /// Tokens that a row sees, where not all.
    pub window: Option<usize>,
}

/// The rotary embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeInfo {
    /// Leading dimensions of each head that are rotated.
    pub dim: usize,
    pub base: f64,
    pub style: Option<RopeStyle>,
    pub scaling: RopeScaling,
    /// Whether the file divides each frequency by a factor of its own (llama3 scaling, LongRoPE).
    pub frequency_factors: bool,
}

/// The vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenizerInfo {
    pub model: Option<String>,
    pub pre: Option<String>,
    pub n_vocab: usize,
    pub bos: Option<TokenInfo>,
    pub eos: Option<TokenInfo>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    /// Why it cannot be used.
    pub error: Option<String>,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenInfo {
    pub id: u32,
    pub text: String,
}

/// The chat template.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatTemplateInfo {
    pub bytes: usize,
    pub first_line: String,
}

/// Memory that running needs, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryInfo {
    /// What it is foreseen for, as a load with these options chooses it: `cpu` or `cuda:N`.
    pub device: String,
    /// Tokens a sequence may have.
    pub n_ctx: usize,
    /// Sequences at a time.
    pub max_batch: usize,
    pub kv_type: &'static str,
    /// On a card, as kernels read them.
    pub weights_bytes: u64,
    /// Pages of [`PAGE_TOKENS`] tokens, the reserved page included.
    pub kv_pages: u64,
    pub kv_bytes: u64,
    /// Of one sequence of `n_ctx` tokens.
    pub kv_bytes_per_sequence: u64,
    /// Layers that see a window, where others see all.
    pub windows: Option<WindowInfo>,
    /// What one sequence keeps beside its pages, however long it is.
    pub state_bytes_per_sequence: u64,
    /// All else: what a prompt and a step work on, and on a card what loading takes for a while,
    /// kernels and graphs.
    pub scratch_bytes: u64,
    pub total_bytes: u64,
}

/// Keys and values of layers that see a window: a sequence has pages for what its next tokens see.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowInfo {
    pub n_layer: usize,
    /// Tokens that the one sees which sees most.
    pub tokens: usize,
    /// The reserved page included.
    pub pages: u64,
    /// Of these pages: a part of [`MemoryInfo::kv_bytes`].
    pub bytes: u64,
    /// What these would be for one sequence alone, and what one token is of them.
    pub bytes_alone: u64,
    pub bytes_per_position: u64,
    /// What [`MemoryInfo::kv_bytes`] would be if these layers had pages for all tokens too.
    pub kv_bytes_without: u64,
}

/// Bytes that one decoded token reads: `weight_bytes + kv_bytes_per_position * position`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeInfo {
    pub weight_bytes: u64,
    /// Parameters that these are: without the experts that a token is not routed to.
    pub active_params: u64,
    /// Keys and values of one token in all layers.
    pub kv_bytes_per_position: u64,
}

/// `text` with control characters escaped, cut to `most` characters.
fn printable(text: &str, most: usize) -> String {
    let mut out = String::new();
    for c in text.chars().take(most) {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    if text.chars().nth(most).is_some() {
        out.push('…');
    }
    out
}

impl ModelInfo {
    /// Describes an open model, with the memory it needs when loaded with `options`. What cannot
    /// run is described too: see [`ModelInfo::error`].
    ///
    /// # Errors
    /// [`Error::Argument`] where an option is out of range, the keys and values of a head do not
    /// fit `kv_type`, or the sizes overflow.
    pub fn new(model: &Model, options: &Options) -> Result<Self> {
        options.validate()?;
        let gguf = &model.gguf;
        let mut info = Self::described(model);
        let (config, plan) = match Self::planned(model) {
            (Some(config), Ok(plan)) => (config, plan),
            (config, result) => {
                info.error = result.err().map(|e| e.to_string());
                match config {
                    Some(config) => info.configured(&config),
                    None => info.shape = Shape::guessed(gguf),
                }
                return Ok(info);
            }
        };
        info.configured(&config);
        if let Some(rope) = &mut info.rope {
            rope.style = plan
                .ops
                .iter()
                .find_map(|op| op.signature().rotation.map(|rotation| rotation.style));
        }
        info.rope = info.rope.filter(|_| !plan.ropes.is_empty());
        info.looks_ahead = plan.looks_ahead();
        info.layers = layers(&plan);
        let used: HashSet<&str> = plan.weights.iter().map(|w| w.name.as_str()).collect();
        info.unused_tensors = model
            .tensors()
            .filter(|t| !used.contains(t.name.as_str()))
            .map(|t| printable(&t.name, 80))
            .collect();
        let n_ctx = options.context(config.n_ctx_train)?;
        let runner = engine::runner(options, &plan, n_ctx)?;
        let pages = KvPages::new(&plan, &runner)?;
        info.decode = Some(DecodeInfo {
            weight_bytes: per_token(&plan, |w| w.expert_bytes(), |w| w.ty.row_bytes(w.n_in)),
            active_params: per_token(&plan, |w| w.n_in.checked_mul(w.n_out), |w| Some(w.n_in)),
            kv_bytes_per_position: pages.token_bytes(),
        });
        let plan = Arc::new(plan);
        let foreseen = device::resolve(&options.device).and_then(|device| {
            let needs = memory::needs(&device, &plan, model, &runner)?;
            Ok((device, needs))
        });
        match foreseen {
            Ok((device, needs)) => {
                info.memory = Some(MemoryInfo::new(device, &needs, &pages, &plan)?)
            }
            // What a load would say of the device: the model does not run there.
            Err(e) => info.error = Some(e.to_string()),
        }
        Ok(info)
    }

    /// The config, where the metadata gives one, and the plan or why there is none.
    fn planned(model: &Model) -> (Option<Config>, Result<Plan>) {
        let known = Config::architecture(&model.gguf).and_then(arch::find);
        match known.and_then(|_| model.config()) {
            Ok(config) => {
                let plan = arch::plan(&config);
                let plan = plan.and_then(|plan| arch::with_drafter(&config, plan));
                (Some(config), plan)
            }
            Err(e) => (None, Err(e)),
        }
    }

    /// What needs no understanding of the model.
    fn described(model: &Model) -> Self {
        let gguf = &model.gguf;
        let text = |key| Some(printable(gguf.get_str(key).ok()??, 120));
        let files: Vec<FileInfo> = model
            .files()
            .map(|(path, bytes)| FileInfo {
                path: path.display().to_string(),
                bytes,
            })
            .collect();
        let quant_mix = quant_mix(model);
        // A file without data may claim tensors of any size.
        let total = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0, u64::saturating_add);
        let n_params = total(&mut quant_mix.iter().map(|q| q.params));
        let tensor_bytes = total(&mut quant_mix.iter().map(|q| q.bytes));
        Self {
            path: model.path().display().to_string(),
            file_bytes: files.iter().map(|f| f.bytes).sum(),
            files,
            gguf_version: gguf.version,
            arithmetic: ARITHMETIC,
            architecture: text("general.architecture"),
            name: text("general.name"),
            error: None,
            n_tensors: model.tensors().count(),
            n_params,
            tensor_bytes,
            bits_per_weight: (n_params > 0).then(|| tensor_bytes as f64 * 8.0 / n_params as f64),
            quant_mix,
            shape: Shape::default(),
            layers: Vec::new(),
            pooling: None,
            looks_ahead: false,
            rope: None,
            tokenizer: TokenizerInfo::new(gguf),
            chat_template: ChatTemplateInfo::new(gguf),
            memory: None,
            decode: None,
            unused_tensors: Vec::new(),
        }
    }

    fn configured(&mut self, config: &Config) {
        self.shape = Shape::of(config);
        self.pooling = config.pooling.map(PoolingType::name);
        self.rope = Some(RopeInfo {
            dim: config.rope_dim,
            base: config.rope_base,
            style: None,
            scaling: config.rope_scaling.clone(),
            frequency_factors: ["rope_freqs.weight", "rope_factors_short.weight"]
                .iter()
                .any(|name| config.tensors.contains_key(*name)),
        });
    }
}

fn layers(plan: &Plan) -> Vec<LayersInfo> {
    let mut kinds: Vec<LayersInfo> = Vec::new();
    let ops = plan.ops.iter().map(Op::signature);
    for op in ops.filter(|op| op.attends().is_some()) {
        match kinds.iter_mut().find(|kind| kind.window == op.window) {
            Some(kind) => kind.n_layer += 1,
            None => kinds.push(LayersInfo {
                n_layer: 1,
                window: op.window,
            }),
        }
    }
    kinds
}

fn quant_mix(model: &Model) -> Vec<QuantShare> {
    let mut mix: Vec<QuantShare> = Vec::new();
    for t in model.tensors() {
        let params: u64 = t.shape.iter().map(|n| *n as u64).product();
        let place = mix.iter().position(|q| q.ty == t.ty.name);
        let place = place.unwrap_or_else(|| {
            mix.push(QuantShare {
                ty: t.ty.name,
                tensors: 0,
                params: 0,
                bytes: 0,
            });
            mix.len() - 1
        });
        mix[place].tensors += 1;
        mix[place].params = mix[place].params.saturating_add(params);
        mix[place].bytes = mix[place].bytes.saturating_add(t.bytes as u64);
    }
    mix.sort_by_key(|q| std::cmp::Reverse(q.bytes));
    mix
}

impl Shape {
    fn of(config: &Config) -> Self {
        let n = |n: usize| Some(n as u64);
        Self {
            n_ctx_train: n(config.n_ctx_train),
            n_layer: n(config.n_layer),
            n_embd: n(config.n_embd),
            n_ff: n(config.n_ff).filter(|n| *n > 0),
            n_head: n(config.n_head),
            n_head_kv: n(config.n_head_kv),
            head_dim: n(config.head_dim),
            n_vocab: n(config.n_vocab),
            n_expert: config.experts.map(|e| e.n_expert as u64),
            n_expert_used: config.experts.map(|e| e.n_used as u64),
            n_ff_exp: config.experts.map(|e| e.n_ff as u64),
            n_ff_shared: config.experts.and_then(|e| e.n_ff_shared).map(|n| n as u64),
            rms_eps: Some(config.rms_eps),
        }
    }

    /// For a model that does not run here: whatever stands under the usual keys.
    fn guessed(gguf: &Gguf) -> Self {
        let Ok(Some(arch)) = gguf.get_str("general.architecture") else {
            return Self::default();
        };
        let uint = |key: &str| gguf.get_uint(&format!("{arch}.{key}")).ok()?;
        let tokens = gguf.get_strings("tokenizer.ggml.tokens").ok().flatten();
        Self {
            n_ctx_train: uint("context_length"),
            n_layer: uint("block_count"),
            n_embd: uint("embedding_length"),
            n_ff: uint("feed_forward_length"),
            n_head: uint("attention.head_count"),
            n_head_kv: uint("attention.head_count_kv"),
            head_dim: uint("attention.key_length"),
            n_vocab: tokens.map(|t| t.len() as u64).or(uint("vocab_size")),
            n_expert: uint("expert_count").filter(|n| *n > 0),
            n_expert_used: uint("expert_used_count").filter(|n| *n > 0),
            n_ff_exp: uint("expert_feed_forward_length"),
            n_ff_shared: uint("expert_shared_feed_forward_length").filter(|n| *n > 0),
            rms_eps: gguf
                .get_float(&format!("{arch}.attention.layer_norm_rms_epsilon"))
                .ok()
                .flatten()
                .map(|eps| eps as f32),
        }
    }
}

impl TokenizerInfo {
    fn new(gguf: &Gguf) -> Option<Self> {
        let text = |key| Some(printable(gguf.get_str(key).ok()??, 80));
        let tokens = gguf.get_strings("tokenizer.ggml.tokens").ok().flatten();
        let model = text("tokenizer.ggml.model");
        if tokens.is_none() && model.is_none() {
            return None;
        }
        let mut info = Self {
            model,
            pre: text("tokenizer.ggml.pre"),
            n_vocab: tokens.map_or(0, Strings::len),
            bos: None,
            eos: None,
            add_bos: None,
            add_eos: None,
            add_space_prefix: None,
            error: None,
        };
        match Tokenizer::from_gguf(gguf) {
            Ok(t) => {
                let token = |id: Option<u32>| {
                    id.map(|id| TokenInfo {
                        id,
                        text: printable(t.vocab().text(id), 80),
                    })
                };
                info.bos = token(t.vocab().bos);
                info.eos = token(t.vocab().eos);
                info.add_bos = Some(t.add_bos());
                info.add_eos = Some(t.add_eos());
                info.add_space_prefix = Some(t.add_space_prefix());
            }
            Err(e) => info.error = Some(e.to_string()),
        }
        Some(info)
    }
}

impl ChatTemplateInfo {
    fn new(gguf: &Gguf) -> Option<Self> {
        let text = gguf.get_str("tokenizer.chat_template").ok()??;
        Some(Self {
            bytes: text.len(),
            first_line: printable(text.trim().lines().next().unwrap_or(""), 120),
        })
    }
}

fn too_large(what: &'static str, value: impl ToString) -> Error {
    Error::Argument {
        name: what,
        value: value.to_string(),
        reason: "the memory it takes does not fit 64 bits; ask for less".into(),
    }
}

/// A decoded token reads every weight once, but of an embedding that is not the LM head too only
/// one row, and of experts only those that it is routed to.
///
/// Summed up in what `whole` gives of a matrix, of one expert's where it has some, and `row` of a row.
fn per_token(
    plan: &Plan,
    whole: impl Fn(&Weight) -> Option<usize>,
    row: impl Fn(&Weight) -> Option<usize>,
) -> u64 {
    let (mut looked_up, mut multiplied) = (HashSet::new(), HashSet::new());
    // By weight, the experts that a row goes to.
    let mut routed = HashMap::new();
    for op in plan.ops.iter().map(Op::signature) {
        for used in &op.weights {
            match used.role {
                Role::Lookup | Role::Hashed { .. } => {
                    looked_up.insert(used.id);
                }
                Role::Matrix => {
                    multiplied.insert(used.id);
                }
                Role::Experts | Role::ExpertBias => {
                    routed.insert(used.id, op.ranks(plan).unwrap_or(0));
                }
                // Without ranks, of one matrix.
                Role::ProductScale => {
                    routed.insert(used.id, op.ranks(plan).unwrap_or(1));
                }
                Role::Scale
                | Role::Bias
                | Role::Shift
                | Role::Rows
                | Role::Sink
                | Role::Selection
                | Role::Taps(_)
                | Role::PerHead
                | Role::OfHead
                | Role::Factor
                | Role::PerExpert => {}
            }
        }
    }
    let read = |id: WeightId| {
        let w = plan.weight(id);
        let experts = routed.get(&id).map_or(w.n_expert, |k| w.n_expert.min(*k));
        whole(w).unwrap_or(0).saturating_mul(experts) as u64
    };
    let all = (0..plan.weights.len())
        .map(WeightId)
        .filter(|id| !looked_up.contains(id) || multiplied.contains(id))
        .map(read);
    let rows = looked_up.iter().map(|id| {
        let w = plan.weight(*id);
        row(w).unwrap_or(0) as u64
    });
    all.chain(rows).fold(0, u64::saturating_add)
}

impl WindowInfo {
    fn new(windows: &Windows, pages: &KvPages, plan: &Plan) -> Self {
        let page = pages.page_bytes(Kind::Windowed) as u64;
        let alone = Windows::of(plan, 1, pages.n_ctx, windows.chunk);
        let cached = pages.of_kind(Kind::Windowed).map(|(_, layer)| layer.shape);
        let all = (pages.n_pages * PAGE_TOKENS) as u64;
        Self {
            n_layer: cached.filter(|shape| shape.n_head_kv > 0).count(),
            tokens: windows.tokens,
            pages: windows.n_pages as u64,
            bytes: pages.bytes_of_kind(Kind::Windowed) as u64,
            bytes_alone: alone.map_or(0, |alone| alone.n_pages as u64) * page,
            bytes_per_position: page / PAGE_TOKENS as u64,
            kv_bytes_without: all.saturating_mul(pages.token_bytes()),
        }
    }
}

impl MemoryInfo {
    fn new(device: Device, needs: &Needs, pages: &KvPages, plan: &Plan) -> Result<Self> {
        // Sums that do not fit end there.
        let total_bytes = needs.total();
        if total_bytes == u64::MAX {
            return Err(too_large("n_ctx", pages.n_ctx));
        }
        Ok(Self {
            device: device.name(),
            n_ctx: pages.n_ctx,
            max_batch: pages.n_slots,
            kv_type: pages.ty.name,
            weights_bytes: needs.weights,
            kv_pages: pages.n_pages as u64,
            kv_bytes: needs.kv,
            kv_bytes_per_sequence: pages.sequence_bytes(),
            windows: pages
                .windows
                .map(|windows| WindowInfo::new(&windows, pages, plan)),
            state_bytes_per_sequence: plan.state_bytes() as u64,
            scratch_bytes: needs.working(),
            total_bytes,
        })
    }
}
