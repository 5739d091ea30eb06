//! Valid files are read as what they are.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::gguf::{Array, Gguf, Strings, Value};

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
    for alignment in [8, 32, 64, 4096] {
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
