//! A random model that every kernel of a card's path takes, small enough to simulate.
#![allow(dead_code)]

use std::sync::Arc;

use onegraph::arch;
use onegraph::backend::{pool_pages, GpuOptions, RunnerOptions};
use onegraph::gguf::{Array, Value};
use onegraph::plan::Plan;
use onegraph::quant;
use onegraph::sampler::random;
use onegraph::weights::Model;

use super::fixture::{Folder, Tensor, Writer};

pub const N_VOCAB: u64 = 64;
pub const N_CTX: u32 = 1024;

/// Architectures whose first layer keeps a state; their heads are not tied to the embedding.
pub const WITH_STATES: [&str; 2] = ["qwen35", "lfm2"];

/// 2 layers, 64 wide, 2 heads of `head_dim` over 1, matrices in `ty`.
pub fn write(folder: &Folder, arch: &str, ty: &str, head_dim: u64) -> std::path::PathBuf {
    let mut w = Writer::default();
    w.set("general.architecture", Value::String(arch.into()));
    let mut keys = vec![
        ("block_count", 2),
        ("context_length", N_CTX),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", head_dim as u32),
        ("attention.value_length", head_dim as u32),
        ("rope.dimension_count", head_dim as u32),
    ];
    match arch {
        "qwen35" => keys.extend([
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 16),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 2),
            ("ssm.inner_size", 32),
            ("full_attention_interval", 2),
        ]),
        "lfm2" => keys.push(("shortconv.l_cache", 3)),
        _ => {}
    }
    for (key, n) in keys {
        w.set(&format!("{arch}.{key}"), Value::U32(n));
    }
    if arch == "lfm2" {
        let heads = Value::Array(Array::I32(vec![0, 1]));
        w.set("lfm2.attention.head_count_kv", heads);
    }
    let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
    w.set(&eps, Value::F32(1e-5));
    w.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    let names: Vec<String> = (0..N_VOCAB).map(|i| format!("t{i}")).collect();
    let tokens = names.iter().map(String::as_str).collect();
    w.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let merges = std::iter::empty::<&str>().collect();
    w.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    w.set("tokenizer.ggml.eos_token_id", Value::U32(0));
    let mut tensors = vec![("token_embd".to_owned(), vec![64, N_VOCAB])];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[u64]| {
            tensors.push((format!("blk.{layer}.{name}"), shape.to_vec()));
        };
        add("attn_norm", &[64]);
        match (arch, layer) {
            ("qwen35", 0) => {
                add("ssm_a", &[2]);
                add("ssm_dt.bias", &[2]);
                add("attn_qkv", &[64, 64]);
                add("attn_gate", &[64, 32]);
                add("ssm_conv1d", &[4, 64]);
                add("ssm_alpha", &[64, 2]);
                add("ssm_beta", &[64, 2]);
                add("ssm_norm", &[16]);
                add("ssm_out", &[32, 64]);
            }
            ("lfm2", 0) => {
                add("shortconv.in_proj", &[64, 192]);
                add("shortconv.conv", &[3, 64]);
                add("shortconv.out_proj", &[64, 64]);
            }
            _ => {
                // Queries with a gate each are twice as wide.
                let gates = if arch == "qwen35" { 2 } else { 1 };
                add("attn_q", &[64, 2 * gates * head_dim]);
                add("attn_k", &[64, head_dim]);
                add("attn_v", &[64, head_dim]);
                add("attn_output", &[2 * head_dim, 64]);
                if arch != "llama" {
                    add("attn_q_norm", &[head_dim]);
                    add("attn_k_norm", &[head_dim]);
                }
            }
        }
        match arch {
            "qwen35" => add("post_attention_norm", &[64]),
            _ => add("ffn_norm", &[64]),
        }
        add("ffn_gate", &[64, 96]);
        add("ffn_up", &[64, 96]);
        add("ffn_down", &[96, 64]);
    }
    let last = match arch {
        "lfm2" => "token_embd_norm",
        _ => "output_norm",
    };
    tensors.push((last.into(), vec![64]));
    if WITH_STATES.contains(&arch) {
        tensors.push(("output".into(), vec![64, N_VOCAB]));
    }
    for (number, (name, shape)) in (0..).zip(tensors) {
        let ty = match (shape.len(), shape[0]) {
            (1, _) | (_, 3 | 4) => quant::by_id(0),
            _ => quant::by_name(ty),
        };
        let ty = ty.expect("a type of the table");
        let n: u64 = shape.iter().product();
        let uniform = |i| random::philox4x32_10([i, number, 0, 0], [3, 4])[0] as f32 / 4.3e9 - 0.5;
        let centre = match shape.len() {
            1 if name.ends_with("ssm_a") => -1.0,
            1 => 1.0,
            _ => 0.0,
        };
        let values: Vec<f32> = (0..n as u32).map(|i| uniform(i) + centre).collect();
        let mut data = vec![0; n as usize / ty.block_elems * ty.block_bytes];
        (ty.quantize.expect("a type to write"))(&values, &mut data);
        let is_whole = name.ends_with("ssm_a") || name.ends_with("bias");
        w.tensors.push(Tensor {
            name: match is_whole {
                true => name,
                false => format!("{name}.weight"),
            },
            shape,
            ty,
            data,
        });
    }
    folder.write("card.gguf", &w.bytes())
}

/// The model, open, and its plan.
pub fn open(folder: &Folder, ty: &str, head_dim: u64) -> (Arc<Model>, Arc<Plan>) {
    open_arch(folder, "llama", ty, head_dim)
}

/// The same of another architecture.
pub fn open_arch(folder: &Folder, arch: &str, ty: &str, head_dim: u64) -> (Arc<Model>, Arc<Plan>) {
    let model = Model::open(write(folder, arch, ty, head_dim)).expect("a valid file");
    let config = model.config().expect("a valid model");
    let plan = arch::plan(&config).expect("a plan");
    (Arc::new(model), Arc::new(plan))
}

/// Options of a runner on one CPU thread, with pages for all its slots.
pub fn options(n_slots: usize, n_ctx: usize, kv_type: &str, gpu: GpuOptions) -> RunnerOptions {
    RunnerOptions {
        n_slots,
        n_ctx,
        n_pages: pool_pages(n_slots, n_ctx),
        windows: None,
        kv_type: quant::kv_by_name(kv_type).unwrap(),
        threads: 1,
        gpu,
    }
}
