//! What `ModelInfo` foresees; its numbers are compared with the `gguf` package's in tests/gguf.
use onegraph::engine::Options;
use onegraph::error::Kind;
use onegraph::gguf::Value;
use onegraph::info::ModelInfo;
use onegraph::weights::Model;

use crate::fixture::{tiny, Folder, Writer};
use crate::{message, says};

fn info(w: &Writer, options: &Options) -> onegraph::Result<ModelInfo> {
    let folder = Folder::new();
    let model = Model::open(folder.write("model.gguf", &w.bytes()))?;
    ModelInfo::new(&model, options)
}

#[test]
fn an_untied_head_is_read_and_the_embedding_looked_up() {
    let mut w = tiny("llama");
    let tied = info(&w, &Options::default()).unwrap();
    w.tensor("output.weight", &[8, 6], 1);
    let untied = info(&w, &Options::default()).unwrap();
    let table = 8 * 6 * 2;
    let memory = |i: &ModelInfo| i.memory.clone().unwrap().weights_bytes;
    assert_eq!(memory(&untied), memory(&tied) + table);
    // One row of the table is looked up either way; the whole is multiplied once.
    assert_eq!(untied.decode, tied.decode);
    let read = tied.decode.as_ref().unwrap().weight_bytes;
    assert_eq!(read, memory(&tied) + 8 * 2);
}

#[test]
fn a_cache_beyond_64_bits_is_an_error() {
    let mut w = tiny("llama");
    // 2^11 heads of 2^10 values: 2^24 bytes of float32 keys and values a token.
    let (heads, dim) = (1u64 << 11, 1u64 << 10);
    for (key, n) in [
        ("block_count", 1),
        ("context_length", 1 << 30),
        ("embedding_length", 2),
        ("attention.head_count", heads),
        ("attention.head_count_kv", heads),
        ("attention.key_length", dim),
        ("attention.value_length", dim),
    ] {
        w.set(&format!("llama.{key}"), Value::U64(n));
    }
    w.remove("llama.rope.dimension_count");
    w.tensors.clear();
    w.tensor("token_embd.weight", &[2, 6], 1);
    w.tensor("output_norm.weight", &[2], 0);
    for (name, shape) in [
        ("attn_norm", &[2][..]),
        ("attn_q", &[2, heads * dim]),
        ("attn_k", &[2, heads * dim]),
        ("attn_v", &[2, heads * dim]),
        ("attn_output", &[heads * dim, 2]),
        ("ffn_norm", &[2]),
        ("ffn_gate", &[2, 12]),
        ("ffn_up", &[2, 12]),
        ("ffn_down", &[12, 2]),
    ] {
        w.tensor(&format!("blk.0.{name}.weight"), shape, 1);
    }
    let options = Options {
        n_ctx: Some(1 << 30),
        max_batch: 1024,
        kv_type: "f32".into(),
        ..Options::default()
    };
    let text = message(info(&w, &options), Kind::Argument);
    says(&text, &["n_ctx = 1073741824", "64 bits", "ask for less"]);
    let options = Options {
        max_batch: 1,
        ..options
    };
    let memory = info(&w, &options).unwrap().memory.unwrap();
    assert_eq!(memory.kv_bytes, (((1 << 24) + 1) * 64) << 24);
}
