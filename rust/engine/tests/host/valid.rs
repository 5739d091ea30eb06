//! Valid files are read as what they are.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::gguf::{Array, Gguf, Strings, Value};
use onegraph::plan::Op;

use crate::fixture::{every_type, tiny};

#[test]
fn every_metadata_type_comes_back_as_written() {
    for version in [2, 3] {
        let mut w = tiny("llama");
        w.version = version;
        w.metadata.extend(every_type());
        let gguf = Gguf::parse(&w.bytes()).unwrap();
        assert_eq!(gguf.version, version);
        assert_eq!(gguf.metadata, w.metadata);
        for (key, value) in &w.metadata {
            assert_eq!(gguf.get(key), Some(value));
        }
    }
}

#[test]
fn tensors_are_where_they_were_written() {
    for alignment in [1, 2, 4, 8, 32, 64, 4096] {
        let mut w = tiny("llama");
        w.alignment = alignment;
        w.set("general.alignment", Value::U32(alignment as u32));
        let bytes = w.bytes();
        let gguf = Gguf::parse(&bytes).unwrap();
        assert_eq!(gguf.alignment, alignment);
        assert_eq!(gguf.tensors.len(), w.tensors.len());
        for (info, written) in gguf.tensors.iter().zip(&w.tensors) {
            assert_eq!(info.name, written.name);
            assert_eq!(info.offset % alignment, 0);
            assert_eq!(&bytes[info.offset..info.offset + info.bytes], written.data);
        }
    }
}

#[test]
fn padding_after_the_last_tensor_is_optional() {
    let mut w = tiny("llama");
    w.tensor("last", &[3], 1);
    let mut bytes = w.bytes();
    let padding = 32 - 6;
    for _ in 0..=padding {
        Gguf::parse(&bytes).unwrap();
        bytes.pop();
    }
    assert!(
        Gguf::parse(&bytes).is_err(),
        "one byte of the tensor is gone"
    );
}

#[test]
fn what_follows_the_last_tensor_is_nobodys() {
    for alignment in [1, 32] {
        let mut w = tiny("llama");
        w.alignment = alignment;
        w.set("general.alignment", Value::U32(alignment as u32));
        let mut file = w.bytes();
        let expected = Gguf::parse(&file).unwrap();
        for tail in [1, 31, 1000] {
            file.resize(file.len() + tail, 0xff);
            assert_eq!(Gguf::parse(&file).unwrap(), expected);
        }
    }
    let mut vocabulary = tiny("llama");
    vocabulary.tensors.clear();
    let mut file = vocabulary.bytes();
    file.push(0);
    assert!(Gguf::parse(&file).unwrap().has_data);
}

#[test]
fn tensors_without_numbers_and_single_numbers_are_there() {
    let mut w = tiny("llama");
    w.tensor("none", &[0], 0);
    w.tensor("rows of none", &[0, 5], 8);
    w.tensor("no rows", &[32, 0, 7], 8);
    w.tensor("one", &[], 0);
    let gguf = Gguf::parse(&w.bytes()).unwrap();
    let of = |name: &str| gguf.tensors.iter().find(|t| t.name == name).unwrap();
    for (name, shape, bytes) in [
        ("none", &[0][..], 0),
        ("rows of none", &[0, 5], 0),
        ("no rows", &[32, 0, 7], 0),
        ("one", &[], 4),
    ] {
        assert_eq!(
            (&of(name).shape[..], of(name).bytes),
            (shape, bytes),
            "{name}"
        );
    }
    // Alone, and so without a byte of padding behind the header.
    let mut w = tiny("llama");
    w.tensors.clear();
    w.tensor("none", &[0], 0);
    assert!(Gguf::parse(&w.parts().0).unwrap().has_data);
}

#[test]
fn a_file_may_end_with_its_header() {
    let w = tiny("llama");
    let (header, _) = w.parts();
    let whole = Gguf::parse(&w.bytes()).unwrap();
    let gguf = Gguf::parse(&header).unwrap();
    assert!(whole.has_data && !gguf.has_data);
    assert_eq!(
        (gguf.tensors, gguf.metadata),
        (whole.tensors, whole.metadata)
    );
}

#[test]
fn text_that_nobody_reads_may_be_anything() {
    let find = |file: &[u8], name: &[u8]| file.windows(name.len()).position(|w| w == name).unwrap();
    let mut w = tiny("llama");
    w.set("test.text", Value::String("latin".into()));
    let list = ["ok", "caf_", ""].into_iter().collect();
    w.set("test.list", Value::Array(Array::String(list)));
    w.set("test.key", Value::U8(7));
    let mut file = w.bytes();
    for (name, at) in [("latin", 4), ("caf_", 3), ("test.key", 7)] {
        let place = find(&file, name.as_bytes()) + at;
        file[place] = 0xe9;
    }
    let gguf = Gguf::parse(&file).unwrap();
    arch::plan(&Config::new(&gguf, gguf.tensors.iter()).unwrap()).unwrap();
    assert_eq!(gguf.metadata.len(), w.metadata.len() - 1);
    for (key, found) in [
        ("test.text", "text of 5 bytes that is not UTF-8 at byte 4"),
        (
            "test.list",
            "an array of 3 strings, number 1 of which is text of 4 bytes that is not UTF-8 at byte 3",
        ),
    ] {
        let asked = gguf.get_str(key).map(drop).and(gguf.get_strings(key).map(drop));
        let error = asked.unwrap_err();
        assert!(error.to_string().contains(&format!("{key} is {found}")), "{error}");
    }
}

#[test]
fn tensors_may_lie_in_any_order() {
    // Exchange the names of two records of one size, and so their places.
    let mut file = tiny("llama").bytes();
    let find = |file: &[u8], name: &[u8]| file.windows(name.len()).position(|w| w == name).unwrap();
    let a = find(&file, b"blk.0.attn_norm.weight");
    let b = find(&file, b"blk.1.attn_norm.weight");
    file[a + 4] = b'1';
    file[b + 4] = b'0';
    let gguf = Gguf::parse(&file).unwrap();
    let of = |name: &str| gguf.tensors.iter().find(|t| t.name == name).unwrap();
    assert!(of("blk.0.attn_norm.weight").offset > of("blk.1.attn_norm.weight").offset);
}

#[test]
fn every_architecture_plans_its_tiny_model() {
    for arch in arch::ARCHITECTURES {
        let gguf = Gguf::parse(&tiny(arch.name).bytes()).unwrap();
        let config = Config::new(&gguf, gguf.tensors.iter()).unwrap();
        let plan = arch::plan(&config).unwrap();
        assert_eq!(plan.weights.len(), gguf.tensors.len(), "{}", arch.name);
    }
}

/// So that a backend has no rows to normalize and keep between the products.
#[test]
fn norms_of_rows_are_part_of_the_products() {
    for arch in arch::ARCHITECTURES {
        let gguf = Gguf::parse(&tiny(arch.name).bytes()).unwrap();
        let config = Config::new(&gguf, gguf.tensors.iter()).unwrap();
        let plan = arch::plan(&config).unwrap();
        // An encoder's stand behind its blocks, and are none of these.
        if plan.looks_ahead() {
            continue;
        }
        // Each of its layers is one block: see mamba2.rs; or streams are normalized: see streams.rs.
        if arch.name.starts_with("nemotron_h") || arch.name == "qwen4exp" {
            continue;
        }
        let name = |id| plan.weight(id).name.trim_start_matches("blk.1.");
        let (mut products, mut alone) = (Vec::new(), Vec::new());
        for op in &plan.ops {
            match op {
                Op::MatVec { norm, weight, .. } | Op::ExpertMatVec { norm, weight, .. } => {
                    products.push((norm.map(|n| name(n.weight)), name(*weight)));
                }
                Op::RmsNorm { weight, .. } => alone.extend(weight.map(name)),
                _ => {}
            }
        }
        let (attn, ffn) = match arch.name {
            "gpt-oss" | "qwen35" | "qwen35moe" | "qwen3next" | "seed_oss" | "glm4moe" => {
                (Some("attn_norm.weight"), Some("post_attention_norm.weight"))
            }
            // Norms stand behind its blocks alone.
            "olmo2" | "exaone4" => (None, None),
            // Whose mean is taken away, in one for both blocks.
            "cohere2" | "command-r" => (None, None),
            _ => (Some("attn_norm.weight"), Some("ffn_norm.weight")),
        };
        let dense = [
            (ffn, "ffn_gate.weight"),
            (ffn, "ffn_up.weight"),
            (None, "ffn_down.weight"),
        ];
        let experts = [
            (ffn, "ffn_gate_inp.weight"),
            (ffn, "ffn_gate_exps.weight"),
            (ffn, "ffn_up_exps.weight"),
            (None, "ffn_down_exps.weight"),
        ];
        let is_shared = matches!(
            arch.name,
            "qwen35moe" | "qwen3next" | "glm4moe" | "laguna" | "deepseek2"
        );
        let shared: &[_] = &[
            (ffn, "ffn_gate_shexp.weight"),
            (ffn, "ffn_up_shexp.weight"),
            // Beside the router, of which it is one more row.
            (ffn, "ffn_gate_inp_shexp.weight"),
        ];
        // Which not all have.
        let shared = if matches!(arch.name, "glm4moe" | "laguna" | "deepseek2") {
            &shared[..2]
        } else {
            shared
        };
        let shared_down: &[_] = &[(None, "ffn_down_shexp.weight")];
        let feed_forward = match (config.experts.is_some(), is_shared) {
            (true, true) => [shared, &experts, shared_down].concat(),
            (true, false) => experts.to_vec(),
            // Of the gate and of up in one.
            (false, _) if matches!(arch.name, "glm4" | "phi3") => dense[1..].to_vec(),
            (false, _) => dense.to_vec(),
        };
        let mut attention = vec![
            (attn, "attn_q.weight"),
            (attn, "attn_k.weight"),
            (attn, "attn_v.weight"),
            (attn, "attn_gate.weight"),
            (None, "attn_output.weight"),
        ];
        let is_gated = matches!(arch.name, "muse-glimmer" | "laguna");
        attention.retain(|(_, name)| is_gated || *name != "attn_gate.weight");
        if arch.name == "phi3" {
            attention.splice(..3, [(attn, "attn_qkv.weight")]);
        }
        if arch.name == "deepseek2" {
            let of_queries = Some("attn_q_a_norm.weight");
            attention = vec![
                (attn, "attn_kv_a_mqa.weight"),
                (attn, "attn_q_a.weight"),
                (of_queries, "attn_q_b.weight"),
                (None, "attn_k_b.weight"),
                (None, "attn_v_b.weight"),
                (None, "attn_output.weight"),
            ];
        }
        // Its values are its keys.
        attention.retain(|(_, name)| arch.name != "gemma4" || *name != "attn_v.weight");
        let convolves = arch.name.starts_with("lfm2");
        let last = match convolves {
            true => "token_embd_norm.weight",
            false => "output_norm.weight",
        };
        let last = Some(last).filter(|_| !matches!(arch.name, "cohere2" | "command-r"));
        let head = [(last, "token_embd.weight")];
        let wanted = [&attention, &feed_forward[..], &head].concat();
        // The last layer and what follows it.
        assert!(products.ends_with(&wanted), "{products:?}");
        // Those of heads, and those behind blocks, which are joined with the sum.
        let mut others = vec!["attn_q_norm.weight", "attn_k_norm.weight"];
        others.push("attn_kv_a_norm.weight");
        others.extend(["post_attention_norm.weight", "post_ffw_norm.weight"]);
        others.retain(|name| Some(*name) != ffn);
        others.retain(|name| plan.weights.iter().any(|w| w.name.ends_with(name)));
        assert!(alone.ends_with(&others), "{alone:?}");
        // The other layer of a delta rule or of Mamba-2 has one norm, of what that gives; one of a
        // convolution none.
        let first = match arch.name {
            "qwen35" | "qwen35moe" | "qwen3next" | "granitehybrid" => 1,
            _ if convolves => 0,
            _ => others.len(),
        };
        assert_eq!(alone.len(), first + others.len());
    }
}

#[test]
fn strings_give_back_what_they_were_made_of() {
    let strings: Strings = ["", "a", "", "ünï", ""].into_iter().collect();
    assert_eq!(strings.len(), 5);
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "a", "", "ünï", ""]);
    assert_eq!(strings.get(3), Some("ünï"));
    assert_eq!(strings.get(5), None);
    assert_eq!(strings.get(usize::MAX), None);
    assert!(Strings::default().is_empty());
    assert_eq!(Array::String(strings).len(), 5);
}
