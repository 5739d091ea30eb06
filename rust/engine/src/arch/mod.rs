//! THE TABLE of architectures: `Config` → `Plan`. One architecture is one file and one row.

use std::collections::HashSet;

use crate::config::{self, Config, PoolingType, TensorSpec};
use crate::error::{Error, Result};
use crate::plan::{signature, Op, Plan};

mod bert;
mod build;
mod cohere2;
mod deepseek2;
mod delta;
mod draft;
mod exaone4;
mod fused;
mod gemma3;
mod gemma4;
mod gemma4_assistant;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod hunyuan_dense;
mod laguna;
mod lfm2;
mod lfm2moe;
mod llama;
mod mamba2;
mod mistral3;
mod muse_glimmer;
mod nemotron_h;
mod nextn;
mod nomic_bert;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen4exp;
mod seed_oss;
mod smollm3;

/// The head of a reranker.
const HEAD: [&str; 4] = [
    "cls.weight",
    "cls.bias",
    "cls.output.weight",
    "cls.output.bias",
];

/// Layers behind the pooling of embeddings.
const DENSE: [&str; 4] = [
    "dense_2.weight",
    "dense_2.bias",
    "dense_3.weight",
    "dense_3.bias",
];

pub use draft::DRAFT;
pub use nextn::with_drafter;

const _: () = assert!(config::MOST_EXPERTS <= signature::MOST_EXPERTS);

/// One row of the table.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Whether its layers may have experts.
    pub experts: bool,
    /// Writes the plan; checks that every tensor is there with the right shape.
    pub plan: fn(&Config) -> Result<Plan>,
}

/// Every architecture this build knows.
pub static ARCHITECTURES: &[Architecture] = &[
    // Mistral, SmolLM2 and many others call themselves llama too.
    Architecture {
        name: "llama",
        experts: false,
        plan: llama::plan,
    },
    Architecture {
        name: "qwen2",
        experts: false,
        plan: qwen2::plan,
    },
    Architecture {
        name: "qwen3",
        experts: false,
        plan: qwen3::plan,
    },
    Architecture {
        name: "qwen3moe",
        experts: true,
        plan: qwen3moe::plan,
    },
    Architecture {
        name: "gpt-oss",
        experts: true,
        plan: gpt_oss::plan,
    },
    // Qwen3.6 and Qwen3.8 call themselves so too.
    Architecture {
        name: "qwen35",
        experts: false,
        plan: qwen35::plan,
    },
    Architecture {
        name: "qwen35moe",
        experts: true,
        plan: qwen35moe::plan,
    },
    // Qwen3-Coder-Next calls itself so too.
    Architecture {
        name: "qwen3next",
        experts: true,
        plan: qwen3next::plan,
    },
    Architecture {
        name: "gemma3",
        experts: false,
        plan: gemma3::plan,
    },
    Architecture {
        name: "gemma4",
        experts: true,
        plan: gemma4::plan,
    },
    Architecture {
        name: "granite",
        experts: false,
        plan: granite::plan,
    },
    Architecture {
        name: "lfm2",
        experts: false,
        plan: lfm2::plan,
    },
    Architecture {
        name: "lfm2moe",
        experts: true,
        plan: lfm2moe::plan,
    },
    Architecture {
        name: "mistral3",
        experts: true,
        plan: mistral3::plan,
    },
    Architecture {
        name: "muse-glimmer",
        experts: false,
        plan: muse_glimmer::plan,
    },
    // OLMo 3 calls itself so too.
    Architecture {
        name: "olmo2",
        experts: false,
        plan: olmo2::plan,
    },
    Architecture {
        name: "smollm3",
        experts: false,
        plan: smollm3::plan,
    },
    // Its dense models: those with experts have a name of their own.
    Architecture {
        name: "ernie4_5",
        experts: false,
        plan: llama::plan,
    },
    Architecture {
        name: "seed_oss",
        experts: false,
        plan: seed_oss::plan,
    },
    Architecture {
        name: "hunyuan-dense",
        experts: false,
        plan: hunyuan_dense::plan,
    },
    Architecture {
        name: "glm4",
        experts: false,
        plan: glm4::plan,
    },
    Architecture {
        name: "exaone4",
        experts: false,
        plan: exaone4::plan,
    },
    Architecture {
        name: "glm4moe",
        experts: true,
        plan: glm4moe::plan,
    },
    // Phi-3.5 and Phi-4 call themselves so too.
    Architecture {
        name: "phi3",
        experts: false,
        plan: phi3::plan,
    },
    // Command R7B and Command A.
    Architecture {
        name: "cohere2",
        experts: false,
        plan: cohere2::plan,
    },
    // Aya calls itself so too.
    Architecture {
        name: "command-r",
        experts: false,
        plan: cohere2::plan_without_windows,
    },
    Architecture {
        name: "laguna",
        experts: true,
        plan: laguna::plan,
    },
    // Nemotron Nano 9B and 12B v2 call themselves so too.
    Architecture {
        name: "nemotron_h",
        experts: false,
        plan: nemotron_h::plan,
    },
    Architecture {
        name: "nemotron_h_moe",
        experts: true,
        plan: nemotron_h::plan,
    },
    // Granite 4 H.
    Architecture {
        name: "granitehybrid",
        experts: true,
        plan: granite_hybrid::plan,
    },
    // GLM-4.7-Flash, DeepSeek-R1 and others call themselves so too.
    Architecture {
        name: "deepseek2",
        experts: true,
        plan: deepseek2::plan,
    },
    // Qwen3.8-Flash-Next.
    Architecture {
        name: "qwen4exp",
        experts: true,
        plan: qwen4exp::plan,
    },
    Architecture {
        name: "bert",
        experts: false,
        plan: bert::plan,
    },
    Architecture {
        name: "nomic-bert",
        experts: false,
        plan: nomic_bert::plan,
    },
    Architecture {
        name: "nomic-bert-moe",
        experts: true,
        plan: nomic_bert::plan_with_experts,
    },
    Architecture {
        name: "gemma-embedding",
        experts: false,
        plan: gemma_embedding::plan,
    },
];

/// The row of an architecture.
///
/// # Errors
/// [`Error::Unsupported`] lists the architectures there are.
pub fn find(name: &str) -> Result<&'static Architecture> {
    let row = ARCHITECTURES.iter().find(|a| a.name == name);
    row.ok_or_else(|| Error::Unsupported {
        what: "architecture",
        name: name.to_owned(),
        supported: ARCHITECTURES
            .iter()
            .map(|a| a.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// Looks for the architecture of what drafts from a file of its own.
///
/// # Errors
/// As [`find`].
pub fn find_draft(name: &str) -> Result<()> {
    match name {
        gemma4_assistant::NAME => Ok(()),
        _ => find(name).map(drop),
    }
}

/// The plan with what drafts for it from a file of its own, of this config.
///
/// # Errors
/// As [`plan`]; [`Error::Argument`] where it cannot draft for the model.
pub fn with_draft(plan: Plan, config: &Config) -> Result<Plan> {
    match config.arch.as_str() {
        gemma4_assistant::NAME => gemma4_assistant::with_assistant(plan, config),
        _ => draft::with_model(plan, config),
    }
}

/// The plan of a model.
///
/// # Errors
/// [`Error::Unsupported`] lists the architectures; [`Error::Metadata`] for experts where it has none;
/// [`Error::Tensor`] names a tensor that is
/// missing, of the wrong shape, or unknown to the architecture: a model with more tensors is another
/// model.
pub fn plan(config: &Config) -> Result<Plan> {
    let row = find(&config.arch)?;
    if let Some(experts) = config.experts.filter(|_| !row.experts) {
        return Err(Error::Metadata {
            key: format!("{}.expert_count", config.arch),
            value: experts.n_expert.to_string(),
            expected: "0: mixtures of experts are not supported in this architecture".into(),
        });
    }
    let plan = (row.plan)(config)?;
    let causal = !plan.looks_ahead();
    if let Some(said) = config.causal.filter(|said| *said != causal) {
        let why = match causal {
            true => "true: bidirectional models of this architecture are not supported",
            false => "false: models of this architecture are bidirectional",
        };
        return Err(Error::Metadata {
            key: format!("{}.attention.causal", config.arch),
            value: said.to_string(),
            expected: why.into(),
        });
    }
    let ignores = |op: &Op| matches!(op, Op::Route { groups: None, .. });
    let groups = config.experts.and_then(|experts| experts.groups);
    if let Some(of) = groups.filter(|_| plan.ops.iter().any(ignores)) {
        return Err(Error::Metadata {
            key: format!("{}.expert_group_count", config.arch),
            value: of.count.to_string(),
            expected: "0 or 1: groups are not supported in this architecture".into(),
        });
    }
    let caps = |op: &Op| matches!(op, Op::SoftCap { .. });
    if let Some(cap) = config.logit_cap.filter(|_| !plan.ops.iter().any(caps)) {
        return Err(Error::Metadata {
            key: format!("{}.final_logit_softcapping", config.arch),
            value: cap.to_string(),
            expected: "0: logit softcapping is not supported in this architecture".into(),
        });
    }
    let used: HashSet<&str> = plan.weights.iter().map(|w| w.name.as_str()).collect();
    // Early converters stored the rotation's frequencies in every layer. A scale of a product's input is
    // for those that round it to four bits. What has no numbers changes none.
    let extra = |(name, spec): &(&String, &TensorSpec)| {
        !used.contains(name.as_str())
            && !name.ends_with(".attn_rot_embd.weight")
            && !guesses_ahead(config, name)
            && !is_of_head(config, name)
            && !is_replaced(config, name)
            && !name.ends_with(".input_scale")
            && !spec.shape.contains(&0)
    };
    match config.tensors.iter().find(extra) {
        None => Ok(plan),
        Some((name, _)) => Err(Error::Tensor {
            name: name.escape_debug().to_string(),
            found: "it in the file".into(),
            expected: format!("no such tensor in a {} model", config.arch),
            remedy: "this is a variant of the architecture that is not supported: use another \
                     model"
                .into(),
        }),
    }
}

/// Whether a tensor is of a layer that guesses further tokens, which no pass runs.
fn guesses_ahead(config: &Config, name: &str) -> bool {
    let behind = config.n_layer..config.n_layer.saturating_add(config.n_layer_nextn);
    layer_of(name).is_some_and(|(layer, _)| behind.contains(&layer))
}

/// Whether a tensor makes keys or values in a layer that reads those of an earlier one: converters keep
/// them.
fn is_replaced(config: &Config, name: &str) -> bool {
    const PARTS: [&str; 3] = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];
    let first = config.n_layer.saturating_sub(config.n_layer_shared_kv);
    layer_of(name).is_some_and(|(layer, part)| layer >= first && PARTS.contains(&part))
}

/// Whether a tensor is of what stands behind the pooling, which the engine computes: a reranker's head, or
/// dense layers.
fn is_of_head(config: &Config, name: &str) -> bool {
    config.pooling == Some(PoolingType::Rank) && HEAD.contains(&name)
        || config.arch == "gemma-embedding" && DENSE.contains(&name)
}

/// The layer of a tensor, and its name there.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}
