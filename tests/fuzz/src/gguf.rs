//! A file's bytes, up to the plan.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::gguf::{Array, Gguf, Value};

use super::fixture::{every_type, split, tiny};

/// Parses, range-checks and plans; what is accepted must hold together.
pub fn run(data: &[u8]) {
    let Ok(gguf) = Gguf::parse(data) else { return };
    let mut end = 0;
    for info in &gguf.tensors {
        let bytes = &data[info.offset..info.offset + info.bytes];
        let elems: usize = info.shape.iter().product();
        assert_eq!(
            bytes.len(),
            elems / info.ty.block_elems * info.ty.block_bytes
        );
        assert_eq!(info.offset % gguf.alignment, 0);
        end = end.max(info.offset + info.bytes);
    }
    assert!(data.len() < end + gguf.alignment || gguf.tensors.is_empty());
    for (key, value) in &gguf.metadata {
        assert!(gguf.get(key).is_some());
        assert!(!value.describe().chars().any(char::is_control));
    }
    let Ok(config) = Config::new(&gguf, gguf.tensors.iter()) else {
        return;
    };
    assert!(config.rms_eps > 0.0 && config.rope_base > 1.0);
    assert_eq!(config.n_head % config.n_head_kv, 0);
    if let Ok(plan) = arch::plan(&config) {
        assert!(plan.rope.inv_freq.iter().all(|f| f.is_finite()));
        assert!(plan.weights.len() <= gguf.tensors.len());
        assert!(!plan.to_string().is_empty());
    }
}

/// Small models with all that the format has.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut v2 = tiny("llama");
    v2.version = 2;
    v2.metadata.extend(every_type());
    let mut aligned = tiny("qwen2");
    aligned.alignment = 8;
    aligned.set("general.alignment", Value::U32(8));
    let mut yarn = tiny("qwen3");
    yarn.set("qwen3.rope.scaling.type", Value::String("yarn".into()));
    yarn.set("qwen3.rope.scaling.factor", Value::F32(4.0));
    yarn.set("test.long", Value::Array(Array::U8(vec![7; 300])));
    let mut vocab_only = tiny("llama");
    vocab_only.tensors.clear();
    let mut seeds: Vec<Vec<u8>> = [v2, aligned, yarn, vocab_only]
        .iter()
        .map(|w| w.bytes())
        .collect();
    seeds.extend(split(tiny("llama"), 3).iter().map(|w| w.bytes()));
    seeds
}
