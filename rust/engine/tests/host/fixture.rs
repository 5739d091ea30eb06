//! A GGUF writer and the small models the tests damage. Written against the format's description,
//! not against the parser, so that the two check each other.
#![allow(dead_code)]

use onegraph::gguf::{Array, Value};
use onegraph::quant::{self, QuantType};

/// One tensor to write.
pub struct Tensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub ty: &'static QuantType,
    pub data: Vec<u8>,
}

/// A file to write; every field may be made wrong.
pub struct Writer {
    pub version: u32,
    pub alignment: usize,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

macro_rules! numbers {
    ($out:ident, $id:literal, $a:ident) => {{
        $out.extend(u32::to_le_bytes($id));
        $out.extend(($a.len() as u64).to_le_bytes());
        $a.iter().for_each(|x| $out.extend(x.to_le_bytes()));
    }};
}

fn array(out: &mut Vec<u8>, a: &Array) {
    match a {
        Array::U8(a) => numbers!(out, 0, a),
        Array::I8(a) => numbers!(out, 1, a),
        Array::U16(a) => numbers!(out, 2, a),
        Array::I16(a) => numbers!(out, 3, a),
        Array::U32(a) => numbers!(out, 4, a),
        Array::I32(a) => numbers!(out, 5, a),
        Array::F32(a) => numbers!(out, 6, a),
        Array::Bool(a) => {
            let bytes: Vec<u8> = a.iter().map(|b| u8::from(*b)).collect();
            numbers!(out, 7, bytes);
        }
        Array::String(a) => {
            out.extend(8u32.to_le_bytes());
            out.extend((a.len() as u64).to_le_bytes());
            a.iter().for_each(|s| string(out, s));
        }
        Array::Array(a) => {
            out.extend(9u32.to_le_bytes());
            out.extend((a.len() as u64).to_le_bytes());
            a.iter().for_each(|inner| array(out, inner));
        }
        Array::U64(a) => numbers!(out, 10, a),
        Array::I64(a) => numbers!(out, 11, a),
        Array::F64(a) => numbers!(out, 12, a),
        Array::NotUtf8 { .. } => panic!("its bytes are not known"),
    }
}

fn value(out: &mut Vec<u8>, v: &Value) {
    macro_rules! number {
        ($id:literal, $x:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend($x.to_le_bytes());
        }};
    }
    match v {
        Value::U8(x) => number!(0, x),
        Value::I8(x) => number!(1, x),
        Value::U16(x) => number!(2, x),
        Value::I16(x) => number!(3, x),
        Value::U32(x) => number!(4, x),
        Value::I32(x) => number!(5, x),
        Value::F32(x) => number!(6, x),
        Value::Bool(x) => number!(7, u8::from(*x)),
        Value::String(s) => {
            out.extend(8u32.to_le_bytes());
            string(out, s);
        }
        Value::Array(a) => {
            out.extend(9u32.to_le_bytes());
            array(out, a);
        }
        Value::U64(x) => number!(10, x),
        Value::I64(x) => number!(11, x),
        Value::F64(x) => number!(12, x),
        Value::NotUtf8(_) => panic!("its bytes are not known"),
    }
}

impl Writer {
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.into(), value)),
        }
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// A tensor of type number `ty`, its bytes counted up from 1.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: u32) -> &mut Self {
        let ty = quant::by_id(ty).unwrap();
        let elems: u64 = shape.iter().product();
        let bytes = elems as usize / ty.block_elems * ty.block_bytes;
        self.tensors.push(Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            ty,
            data: (0..bytes).map(|i| (i % 100 + 1) as u8).collect(),
        });
        self
    }

    /// All before the tensors' bytes, and the bytes.
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let mut header = b"GGUF".to_vec();
        header.extend(self.version.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (k, v) in &self.metadata {
            string(&mut header, k);
            value(&mut header, v);
        }
        let mut data = Vec::new();
        for t in &self.tensors {
            string(&mut header, &t.name);
            header.extend((t.shape.len() as u32).to_le_bytes());
            t.shape.iter().for_each(|n| header.extend(n.to_le_bytes()));
            header.extend(t.ty.id.to_le_bytes());
            header.extend((data.len() as u64).to_le_bytes());
            data.extend(&t.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        (header, data)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut file, data) = self.parts();
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(data);
        file
    }
}

/// A whole model of architecture `arch`: 2 layers, 8 wide, 2 heads over 1, vocabulary of 6.
pub fn tiny(arch: &str) -> Writer {
    const F32: u32 = 0;
    const F16: u32 = 1;
    let mut w = Writer::default();
    w.set("general.architecture", Value::String(arch.into()));
    w.set("general.name", Value::String("tiny".into()));
    for (key, n) in [
        ("block_count", 2),
        ("context_length", 32),
        ("embedding_length", 8),
        ("feed_forward_length", 12),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("rope.dimension_count", 4),
    ] {
        w.set(&format!("{arch}.{key}"), Value::U32(n));
    }
    let has_delta = arch.starts_with("qwen35") || matches!(arch, "qwen3next" | "qwen4exp");
    let has_shared = matches!(arch, "qwen35moe" | "qwen3next" | "qwen4exp");
    let has_experts = arch.ends_with("moe") || matches!(arch, "gpt-oss" | "laguna") || has_shared;
    let is_latent = arch == "deepseek2";
    let has_experts = has_experts || is_latent;
    if has_experts {
        for (key, n) in [("count", 3), ("used_count", 2), ("feed_forward_length", 6)] {
            w.set(&format!("{arch}.expert_{key}"), Value::U32(n));
        }
    }
    let is_cohere = matches!(arch, "cohere2" | "command-r");
    let norm = if is_cohere {
        "layer_norm"
    } else {
        "layer_norm_rms"
    };
    let eps = format!("{arch}.attention.{norm}_epsilon");
    w.set(&eps, Value::F32(1e-5));
    if is_cohere {
        w.set(&format!("{arch}.logit_scale"), Value::F32(0.25));
        let scaling = format!("{arch}.rope.scaling.type");
        w.set(&scaling, Value::String("none".into()));
    }
    w.set(&format!("{arch}.rope.freq_base"), Value::F32(10_000.0));
    let is_laguna = arch == "laguna";
    if is_laguna {
        // The layer that sees a window has more heads.
        let heads = Value::Array(Array::I32(vec![2, 3]));
        w.set("laguna.attention.head_count", heads);
        w.set("laguna.attention.key_length", Value::U32(4));
        w.set("laguna.rope.dimension_count_swa", Value::U32(2));
        w.set("laguna.rope.freq_base_swa", Value::F32(500.0));
    }
    if is_latent {
        for (key, n) in [
            ("attention.key_length", 10),
            ("attention.value_length", 6),
            ("attention.kv_lora_rank", 6),
            ("attention.q_lora_rank", 5),
            ("attention.key_length_mla", 7),
            ("attention.value_length_mla", 5),
            ("expert_shared_count", 1),
        ] {
            w.set(&format!("{arch}.{key}"), Value::U32(n));
        }
    }
    if has_shared || is_laguna {
        let key = format!("{arch}.expert_shared_feed_forward_length");
        w.set(&key, Value::U32(10));
    }
    if matches!(arch, "gemma3" | "gemma-embedding") {
        w.set(&format!("{arch}.attention.sliding_window"), Value::U32(4));
    }
    if arch == "gemma4" {
        w.set("gemma4.attention.sliding_window", Value::U32(4));
        let layers = Value::Array(Array::Bool(vec![true, false]));
        w.set("gemma4.attention.sliding_window_pattern", layers);
        // Their factors leave half of a head as it is.
        w.tensor("rope_freqs.weight", &[2], F32);
    }
    if arch == "muse-glimmer" {
        w.set("muse-glimmer.logit_scale", Value::F32(0.5));
        let cap = "muse-glimmer.final_logit_softcapping";
        w.set(cap, Value::F32(30.0));
    }
    if matches!(
        arch,
        "muse-glimmer" | "olmo2" | "exaone4" | "cohere2" | "laguna"
    ) {
        let window = format!("{arch}.attention.sliding_window");
        w.set(&window, Value::U32(4));
    }
    if arch == "phi3" {
        w.set("phi3.rope.scaling.attn_factor", Value::F32(1.25));
        w.set("phi3.rope.scaling.original_context_length", Value::U32(16));
        w.tensor("rope_factors_short.weight", &[2], F32);
        w.tensor("rope_factors_long.weight", &[2], F32);
    }
    if arch == "granite" {
        w.set("granite.logit_scale", Value::F32(8.0));
    }
    if has_delta {
        for (key, n) in [
            ("ssm.conv_kernel", 3),
            ("ssm.state_size", 16),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 2),
            ("ssm.inner_size", 32),
            ("full_attention_interval", 2),
        ] {
            w.set(&format!("{arch}.{key}"), Value::U32(n));
        }
    }
    let convolves = arch.starts_with("lfm2");
    if convolves {
        w.set(&format!("{arch}.shortconv.l_cache"), Value::U32(3));
        let heads = Value::Array(Array::I32(vec![0, 1]));
        w.set(&format!("{arch}.attention.head_count_kv"), heads);
    }
    let has_bias = matches!(arch, "lfm2moe" | "glm4moe" | "laguna" | "deepseek2");
    if has_bias {
        let dense = format!("{arch}.leading_dense_block_count");
        w.set(&dense, Value::U32(1));
        w.set(&format!("{arch}.expert_gating_func"), Value::U32(2));
    }
    if arch == "glm4moe" {
        w.set("glm4moe.expert_shared_count", Value::U32(1));
        w.set("glm4moe.expert_weights_norm", Value::Bool(true));
    }
    w.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    let tokens = ["a", "b", "ab", "Ġ", "é", "<s>"].into_iter().collect();
    w.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    let kinds = Array::I32(vec![1, 1, 1, 1, 1, 3]);
    w.set("tokenizer.ggml.token_type", Value::Array(kinds));
    let merges = ["a b"].into_iter().collect();
    w.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    w.set("tokenizer.ggml.eos_token_id", Value::U32(5));
    w.tensor("token_embd.weight", &[8, 6], F16);
    if arch.contains("bert") {
        encoder(&mut w, arch);
        return w;
    }
    if arch.starts_with("nemotron_h") || arch == "granitehybrid" {
        scanned(&mut w, arch);
        return w;
    }
    if arch == "qwen4exp" {
        streamed(&mut w);
        return w;
    }
    for layer in 0..2 {
        let recurs = has_delta && layer == 0;
        if recurs {
            for name in ["ssm_a", "ssm_dt.bias"] {
                w.tensor(&format!("blk.{layer}.{name}"), &[2], F32);
            }
        }
        let mut t = |name: &str, shape: &[u64], ty| {
            w.tensor(&format!("blk.{layer}.{name}.weight"), shape, ty);
        };
        if !matches!(arch, "olmo2" | "exaone4") {
            t("attn_norm", &[8], F32);
        }
        if recurs {
            t("attn_qkv", &[8, 64], F16);
            t("attn_gate", &[8, 32], F16);
            t("ssm_conv1d", &[3, 64], F32);
            if arch == "qwen3next" {
                t("ssm_ba", &[8, 4], F16);
            } else {
                t("ssm_alpha", &[8, 2], F16);
                t("ssm_beta", &[8, 2], F16);
            }
            t("ssm_norm", &[16], F32);
            t("ssm_out", &[32, 8], F16);
        } else if convolves && layer == 0 {
            t("shortconv.in_proj", &[8, 24], F16);
            t("shortconv.conv", &[3, 8], F32);
            t("shortconv.out_proj", &[8, 8], F16);
        } else if is_latent {
            t("attn_q_a", &[8, 5], F16);
            t("attn_q_a_norm", &[5], F32);
            t("attn_q_b", &[5, 14], F16);
            t("attn_kv_a_mqa", &[8, 10], F16);
            t("attn_kv_a_norm", &[6], F32);
            t("attn_k_b", &[3, 6, 2], F16);
            t("attn_v_b", &[6, 5, 2], F16);
            t("attn_output", &[10, 8], F16);
        } else if arch == "phi3" {
            t("attn_qkv", &[8, 16], F16);
            t("attn_output", &[8, 8], F16);
        } else {
            // Queries with a gate each are twice as wide.
            let heads = if is_laguna && layer == 1 { 3 } else { 2 };
            t("attn_q", &[8, if has_delta { 16 } else { 4 * heads }], F16);
            t("attn_k", &[8, 4], F16);
            if arch != "gemma4" {
                t("attn_v", &[8, 4], F16);
            }
            t("attn_output", &[4 * heads, 8], F16);
            if arch == "muse-glimmer" {
                t("attn_gate", &[8, 8], F16);
            }
            if is_laguna {
                t("attn_gate", &[8, heads], F16);
            }
        }
        match arch {
            "gpt-oss" => {
                t("attn_sinks", &[2], F32);
                t("post_attention_norm", &[8], F32);
            }
            "olmo2" | "exaone4" | "cohere2" | "command-r" => {}
            "seed_oss" | "glm4moe" => t("post_attention_norm", &[8], F32),
            _ if has_delta => t("post_attention_norm", &[8], F32),
            _ => t("ffn_norm", &[8], F32),
        }
        if has_experts && !(has_bias && layer == 0) {
            t("ffn_gate_inp", &[8, 3], F32);
            t("ffn_gate_exps", &[8, 6, 3], F16);
            t("ffn_up_exps", &[8, 6, 3], F16);
            t("ffn_down_exps", &[6, 8, 3], F16);
            if matches!(arch, "glm4moe" | "deepseek2") {
                t("ffn_gate_shexp", &[8, 6], F16);
                t("ffn_up_shexp", &[8, 6], F16);
                t("ffn_down_shexp", &[6, 8], F16);
            }
            if has_shared || is_laguna {
                if has_shared {
                    t("ffn_gate_inp_shexp", &[8], F32);
                }
                t("ffn_gate_shexp", &[8, 10], F16);
                t("ffn_up_shexp", &[8, 10], F16);
                t("ffn_down_shexp", &[10, 8], F16);
            }
        } else {
            let fused = matches!(arch, "glm4" | "phi3");
            if !fused {
                t("ffn_gate", &[8, 12], F16);
            }
            t("ffn_up", &[8, if fused { 24 } else { 12 }], F16);
            t("ffn_down", &[12, 8], F16);
        }
        if arch.starts_with("gemma")
            || matches!(arch, "muse-glimmer" | "olmo2" | "glm4" | "exaone4")
        {
            t("post_attention_norm", &[8], F32);
            t("post_ffw_norm", &[8], F32);
        }
        let norms_heads = arch.starts_with("qwen3") || convolves && layer == 1;
        let always = arch.starts_with("gemma")
            || matches!(
                arch,
                "muse-glimmer" | "hunyuan-dense" | "exaone4" | "laguna"
            );
        if norms_heads && !recurs || always {
            t("attn_q_norm", &[4], F32);
            t("attn_k_norm", &[4], F32);
        }
        if arch == "olmo2" {
            t("attn_q_norm", &[8], F32);
            t("attn_k_norm", &[4], F32);
        }
        if has_bias && layer == 1 {
            w.tensor(&format!("blk.{layer}.exp_probs_b.bias"), &[3], F32);
        }
    }
    let last = if convolves {
        "token_embd_norm"
    } else {
        "output_norm"
    };
    w.tensor(&format!("{last}.weight"), &[8], F32);
    w
}

/// What an encoder has behind its embedding.
fn encoder(w: &mut Writer, arch: &str) {
    const F32: u32 = 0;
    const F16: u32 = 1;
    w.set(&format!("{arch}.attention.causal"), Value::Bool(false));
    let learned = arch == "bert";
    let has_experts = arch == "nomic-bert-moe";
    if has_experts {
        w.set("nomic-bert-moe.moe_every_n_layers", Value::U32(2));
    }
    if learned {
        w.tensor("position_embd.weight", &[8, 32], F32);
    }
    let mut norms = vec!["token_embd_norm".to_owned()];
    for layer in 0..2 {
        let mut matrices = vec![("attn_output", [8, 8])];
        if has_experts && layer == 1 {
            matrices.push(("ffn_gate_inp", [8, 3]));
            for (name, shape) in [("ffn_up_exps", [8, 12, 3]), ("ffn_down_exps", [12, 8, 3])] {
                w.tensor(&format!("blk.1.{name}.weight"), &shape, F16);
            }
        } else {
            matrices.extend([("ffn_up", [8, 12]), ("ffn_down", [12, 8])]);
        }
        matrices.extend(match learned {
            true => vec![("attn_q", [8, 8]), ("attn_k", [8, 4]), ("attn_v", [8, 4])],
            false => vec![("attn_qkv", [8, 16])],
        });
        if arch == "nomic-bert" {
            matrices.push(("ffn_gate", [8, 12]));
        }
        for (name, shape) in matrices {
            w.tensor(&format!("blk.{layer}.{name}.weight"), &shape, F16);
        }
        norms.extend(["attn_output_norm", "layer_output_norm"].map(|n| format!("blk.{layer}.{n}")));
    }
    for norm in norms {
        w.tensor(&format!("{norm}.weight"), &[8], F32);
        w.tensor(&format!("{norm}.bias"), &[8], F32);
    }
}

/// What a model with a layer of Mamba-2 and one that attends has behind its embedding; of Nemotron-H a third
/// is the feed-forward part, of Granite each of the two has one.
fn scanned(w: &mut Writer, arch: &str) {
    const F32: u32 = 0;
    const F16: u32 = 1;
    let is_granite = arch == "granitehybrid";
    let mut heads = vec![0, 1];
    if is_granite {
        w.set("granitehybrid.logit_scale", Value::F32(8.0));
    } else {
        heads.push(0);
        let widths = Value::Array(Array::I32(vec![0, 0, 12]));
        w.set(&format!("{arch}.feed_forward_length"), widths);
        w.set(&format!("{arch}.block_count"), Value::U32(3));
    }
    let heads = Value::Array(Array::I32(heads));
    w.set(&format!("{arch}.attention.head_count_kv"), heads);
    for (key, n) in [
        ("conv_kernel", 3),
        ("state_size", 4),
        ("group_count", 2),
        ("time_step_rank", 2),
        ("inner_size", 32),
    ] {
        w.set(&format!("{arch}.ssm.{key}"), Value::U32(n));
    }
    for name in ["ssm_a", "ssm_d"] {
        w.tensor(&format!("blk.0.{name}"), &[1, 2], F32);
    }
    w.tensor("blk.0.ssm_dt.bias", &[2], F32);
    w.tensor("blk.0.ssm_conv1d.bias", &[48], F32);
    let mut list = vec![
        ("blk.0.ssm_conv1d", vec![3, 48], F32),
        ("blk.0.ssm_norm", vec![16, 2], F32),
        ("blk.0.ssm_in", vec![8, 82], F16),
        ("blk.0.ssm_out", vec![32, 8], F16),
        ("blk.1.attn_q", vec![8, 8], F16),
        ("blk.1.attn_k", vec![8, 4], F16),
        ("blk.1.attn_v", vec![8, 4], F16),
        ("blk.1.attn_output", vec![8, 8], F16),
        ("blk.0.attn_norm", vec![8], F32),
        ("blk.1.attn_norm", vec![8], F32),
        ("output_norm", vec![8], F32),
    ];
    if is_granite {
        list.extend([
            ("blk.0.ffn_norm", vec![8], F32),
            ("blk.1.ffn_norm", vec![8], F32),
            ("blk.0.ffn_gate", vec![8, 12], F16),
            ("blk.1.ffn_gate", vec![8, 12], F16),
            ("blk.0.ffn_up", vec![8, 12], F16),
            ("blk.1.ffn_up", vec![8, 12], F16),
            ("blk.0.ffn_down", vec![12, 8], F16),
            ("blk.1.ffn_down", vec![12, 8], F16),
        ]);
    } else {
        list.push(("blk.2.attn_norm", vec![8], F32));
    }
    match arch {
        "nemotron_h" => list.extend([
            ("blk.2.ffn_up", vec![8, 12], F16),
            ("blk.2.ffn_down", vec![12, 8], F16),
        ]),
        "nemotron_h_moe" => {
            let shared = format!("{arch}.expert_shared_feed_forward_length");
            w.set(&shared, Value::U32(10));
            w.set(&format!("{arch}.moe_latent_size"), Value::U32(5));
            w.set(&format!("{arch}.expert_weights_norm"), Value::Bool(true));
            w.tensor("blk.2.exp_probs_b.bias", &[3], F32);
            list.extend([
                ("blk.2.ffn_gate_inp", vec![8, 3], F32),
                ("blk.2.ffn_latent_down", vec![8, 5], F16),
                ("blk.2.ffn_latent_up", vec![5, 8], F16),
                ("blk.2.ffn_up_exps", vec![5, 6, 3], F16),
                ("blk.2.ffn_down_exps", vec![6, 5, 3], F16),
                ("blk.2.ffn_up_shexp", vec![8, 10], F16),
                ("blk.2.ffn_down_shexp", vec![10, 8], F16),
            ]);
        }
        _ => {}
    }
    for (name, shape, ty) in list {
        w.tensor(&format!("{name}.weight"), &shape, ty);
    }
}

/// What a model of two streams has behind its embedding: a layer of the delta rule, which adds embeddings of
/// n-grams, and one that attends.
fn streamed(w: &mut Writer) {
    const F32: u32 = 0;
    const F16: u32 = 1;
    let key = |name: &str| format!("qwen4exp.{name}");
    for (name, n) in [
        ("attention.key_length", 4),
        ("hyper_connection.count", 2),
        ("hyper_connection.low_rank", 3),
        ("attention.indexer.top_k", 16),
        ("attention.indexer.head_count", 2),
        ("attention.indexer.key_length", 6),
        ("ple.ngram_size", 3),
        ("ple.heads_per_ngram", 1),
        ("ple.conv_kernel", 2),
        ("ple.eos_token_id", 5),
        ("embedding_length_per_layer_input", 4),
    ] {
        w.set(&key(name), Value::U32(n));
    }
    let ratios = Value::Array(Array::I32(vec![0, 4]));
    w.set(&key("attention.compress_ratios"), ratios);
    w.set(&key("ple.layers"), Value::Array(Array::I32(vec![0])));
    for (name, list) in [
        ("layer_multipliers", vec![7, 11, 13]),
        ("head_offsets", vec![0, 3]),
        ("head_vocab_sizes", vec![3, 5]),
    ] {
        w.set(&key(&format!("ple.{name}")), Value::Array(Array::U64(list)));
    }
    for name in ["ssm_a", "ssm_dt.bias"] {
        w.tensor(&format!("blk.0.{name}"), &[2], F32);
    }
    let mut list: Vec<(String, Vec<u64>, u32)> = Vec::new();
    for (name, shape, ty) in [
        ("per_layer_token_embd", vec![4, 8], F16),
        ("output_hc_norm", vec![16], F32),
        ("output_hc_down", vec![16, 3], F16),
        ("output_hc_up", vec![3, 16], F16),
        ("blk.0.ple_key", vec![8, 16], F16),
        ("blk.0.ple_value", vec![8, 8], F16),
        ("blk.0.ple_norm_key", vec![16], F32),
        ("blk.0.ple_norm_query", vec![16], F32),
        ("blk.0.ple_norm_conv", vec![16], F32),
        ("blk.0.ple_conv1d", vec![2, 16], F32),
        ("blk.0.attn_qkv", vec![8, 64], F16),
        ("blk.0.attn_gate", vec![8, 32], F16),
        ("blk.0.ssm_conv1d", vec![3, 64], F32),
        ("blk.0.ssm_alpha", vec![8, 2], F16),
        ("blk.0.ssm_beta", vec![8, 2], F16),
        ("blk.0.ssm_norm", vec![16], F32),
        ("blk.0.ssm_out", vec![32, 8], F16),
        ("blk.1.attn_q", vec![8, 16], F16),
        ("blk.1.attn_k", vec![8, 4], F16),
        ("blk.1.attn_v", vec![8, 4], F16),
        ("blk.1.attn_output", vec![8, 8], F16),
        ("blk.1.attn_q_norm", vec![4], F32),
        ("blk.1.attn_k_norm", vec![4], F32),
        ("blk.1.indexer.q_proj", vec![8, 12], F16),
        ("blk.1.indexer.k_proj", vec![8, 6], F16),
        ("blk.1.indexer.q_norm", vec![6], F32),
        ("blk.1.indexer.k_norm", vec![6], F32),
    ] {
        list.push((name.into(), shape, ty));
    }
    for layer in 0..2 {
        for part in ["attn", "ffn"] {
            for (name, shape, ty) in [
                ("norm", vec![16], F32),
                ("down", vec![16, 3], F16),
                ("up", vec![3, 16], F16),
                ("inject", vec![16, 2], F16),
            ] {
                list.push((format!("blk.{layer}.hc_{part}_{name}"), shape, ty));
            }
        }
        for (name, shape, ty) in [
            ("gate_inp", vec![8, 3], F32),
            ("gate_exps", vec![8, 6, 3], F16),
            ("up_exps", vec![8, 6, 3], F16),
            ("down_exps", vec![6, 8, 3], F16),
            ("gate_inp_shexp", vec![8], F32),
            ("gate_shexp", vec![8, 10], F16),
            ("up_shexp", vec![8, 10], F16),
            ("down_shexp", vec![10, 8], F16),
        ] {
            list.push((format!("blk.{layer}.ffn_{name}"), shape, ty));
        }
    }
    for (name, shape, ty) in list {
        w.tensor(&format!("{name}.weight"), &shape, ty);
    }
}

/// A metadata value of every type, arrays of every type, arrays in arrays.
pub fn every_type() -> Vec<(String, Value)> {
    let arrays = [
        Array::U8(vec![0, 255]),
        Array::I8(vec![-128, 127]),
        Array::U16(vec![0, 65_535]),
        Array::I16(vec![i16::MIN, i16::MAX]),
        Array::U32(vec![0, u32::MAX]),
        Array::I32(vec![i32::MIN, i32::MAX]),
        Array::F32(vec![-0.5, f32::MAX]),
        Array::Bool(vec![true, false, true]),
        Array::String(["", "x", "ünï"].into_iter().collect()),
        Array::Array(vec![
            Array::U8(vec![]),
            Array::Array(vec![Array::String(["deep"].into_iter().collect())]),
        ]),
        Array::U64(vec![0, u64::MAX]),
        Array::I64(vec![i64::MIN, i64::MAX]),
        Array::F64(vec![f64::MIN_POSITIVE]),
    ];
    let scalars = [
        Value::U8(200),
        Value::I8(-100),
        Value::U16(60_000),
        Value::I16(-30_000),
        Value::U32(4_000_000_000),
        Value::I32(-2_000_000_000),
        Value::F32(0.25),
        Value::Bool(true),
        Value::String("text".into()),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(-0.125),
    ];
    let values = scalars
        .into_iter()
        .chain(arrays.into_iter().map(Value::Array));
    values
        .enumerate()
        .map(|(i, v)| (format!("test.value.{i}"), v))
        .collect()
}

/// The files of a model split in `count`: metadata in the first, tensors dealt out in order.
pub fn split(mut whole: Writer, count: usize) -> Vec<Writer> {
    let tensors = std::mem::take(&mut whole.tensors);
    let n_tensors = tensors.len();
    let mut shards: Vec<Writer> = (0..count).map(|_| Writer::default()).collect();
    shards[0] = whole;
    for (i, shard) in shards.iter_mut().enumerate() {
        shard.set("split.no", Value::U16(i as u16));
        shard.set("split.count", Value::U16(count as u16));
        shard.set("split.tensors.count", Value::I32(n_tensors as i32));
    }
    for (i, t) in tensors.into_iter().enumerate() {
        shards[i * count / n_tensors].tensors.push(t);
    }
    shards
}

/// A new, empty folder, removed on drop.
pub struct Folder(pub std::path::PathBuf);

impl Folder {
    pub fn new() -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("onegraph-test-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes the shards under their proper names; the path of the first.
    pub fn write_split(&self, shards: &[Writer]) -> std::path::PathBuf {
        for (i, shard) in shards.iter().enumerate() {
            self.write(&shard_name(i + 1, shards.len()), &shard.bytes());
        }
        self.0.join(shard_name(1, shards.len()))
    }
}

pub fn shard_name(number: usize, count: usize) -> String {
    format!("tiny-{number:05}-of-{count:05}.gguf")
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
