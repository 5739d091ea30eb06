//! A file's bytes, up to the plan.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::gguf::{Array, Gguf, Value};

use super::fixture::{every_type, split, tiny};

/// Parses, range-checks and plans; what is accepted must hold together.
pub fn run(data: &[u8]) {
    let Ok(gguf) = Gguf::parse(data) else { return };
    let mut ranges = Vec::new();
    for info in &gguf.tensors {
        let elems: usize = info.shape.iter().product();
        assert_eq!(
            info.bytes,
            elems / info.ty.block_elems * info.ty.block_bytes
        );
        assert_eq!(info.offset % gguf.alignment, 0);
        ranges.push(info.offset..info.offset + info.bytes);
    }
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
    // A file may end with its header; if not, it holds all of every tensor.
    let end = ranges.last().map_or(0, |range| range.end);
    assert_eq!(gguf.has_data, end <= data.len());
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
        let tables = plan.ropes.iter();
        assert!(tables.flat_map(|t| &t.inv_freq).all(|f| f.is_finite()));
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
    aligned.alignment = 1;
    aligned.set("general.alignment", Value::U32(1));
    aligned.tensor("none", &[4, 0], 0);
    let mut yarn = tiny("qwen3");
    yarn.set("qwen3.rope.scaling.type", Value::String("yarn".into()));
    yarn.set("qwen3.rope.scaling.factor", Value::F32(4.0));
    yarn.set("test.long", Value::Array(Array::U8(vec![7; 300])));
    let mut vocab_only = tiny("llama");
    vocab_only.tensors.clear();
    let header = v2.parts().0;
    let mut seeds: Vec<Vec<u8>> = [v2, aligned, yarn, vocab_only]
        .iter()
        .map(|w| w.bytes())
        .collect();
    seeds.push(header);
    seeds.extend(split(tiny("llama"), 3).iter().map(|w| w.bytes()));
    seeds
}
