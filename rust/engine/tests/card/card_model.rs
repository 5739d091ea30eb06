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

/// 2 layers, 64 wide, 2 heads of `head_dim` over 1, matrices in `ty`.
pub fn write(folder: &Folder, ty: &str, head_dim: u64) -> std::path::PathBuf {
    let mut w = Writer::default();
    w.set("general.architecture", Value::String("llama".into()));
    for (key, n) in [
        ("block_count", 2),
        ("context_length", N_CTX),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", head_dim as u32),
        ("attention.value_length", head_dim as u32),
        ("rope.dimension_count", head_dim as u32),
    ] {
        w.set(&format!("llama.{key}"), Value::U32(n));
    }
    let eps = "llama.attention.layer_norm_rms_epsilon";
    w.set(eps, Value::F32(1e-5));
    w.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    let names: Vec<String> = (0..N_VOCAB).map(|i| format!("t{i}")).collect();
    let tokens = names.iter().map(String::as_str).collect();
    w.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let merges = std::iter::empty::<&str>().collect();
    w.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    w.set("tokenizer.ggml.eos_token_id", Value::U32(0));
    let mut tensors = vec![("token_embd".to_owned(), vec![64, N_VOCAB])];
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_norm", vec![64]),
            ("attn_q", vec![64, 2 * head_dim]),
            ("attn_k", vec![64, head_dim]),
            ("attn_v", vec![64, head_dim]),
            ("attn_output", vec![2 * head_dim, 64]),
            ("ffn_norm", vec![64]),
            ("ffn_gate", vec![64, 96]),
            ("ffn_up", vec![64, 96]),
            ("ffn_down", vec![96, 64]),
        ] {
            tensors.push((format!("blk.{layer}.{name}"), shape));
        }
    }
    tensors.push(("output_norm".into(), vec![64]));
    for (number, (name, shape)) in (0..).zip(tensors) {
        let ty = match shape.len() {
            1 => quant::by_id(0),
            _ => quant::by_name(ty),
        };
        let ty = ty.expect("a type of the table");
        let n: u64 = shape.iter().product();
        let uniform = |i| random::philox4x32_10([i, number, 0, 0], [3, 4])[0] as f32 / 4.3e9 - 0.5;
        let centre = if shape.len() == 1 { 1.0 } else { 0.0 };
        let values: Vec<f32> = (0..n as u32).map(|i| uniform(i) + centre).collect();
        let mut data = vec![0; n as usize / ty.block_elems * ty.block_bytes];
        (ty.quantize.expect("a type to write"))(&values, &mut data);
        w.tensors.push(Tensor {
            name: format!("{name}.weight"),
            shape,
            ty,
            data,
        });
    }
    folder.write("card.gguf", &w.bytes())
}

/// The model, open, and its plan.
pub fn open(folder: &Folder, ty: &str, head_dim: u64) -> (Arc<Model>, Arc<Plan>) {
    let model = Model::open(write(folder, ty, head_dim)).expect("a valid file");
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
