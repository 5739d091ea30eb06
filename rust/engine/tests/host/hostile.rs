//! One hostile file for each rule of the parser: what is refused, and in which words.
use onegraph::error::Kind;
use onegraph::gguf::{Array, Gguf, Value};

use crate::fixture::{tiny, Writer};
use crate::load::load;
use crate::{message, says};

/// Where `needle` stands in `bytes`.
fn find(bytes: &[u8], needle: &str) -> usize {
    let at = bytes
        .windows(needle.len())
        .position(|w| w == needle.as_bytes());
    at.unwrap_or_else(|| panic!("{needle} is not in the file"))
}

fn put(bytes: &mut [u8], at: usize, value: impl AsRef<[u8]>) {
    let value = value.as_ref();
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn refused(bytes: &[u8], parts: &[&str]) {
    let text = message(Gguf::parse(bytes), Kind::Model);
    says(&text, parts);
    assert!(text.len() < 600, "{} bytes: {text}", text.len());
}

/// The tiny model with `bytes` written `skip` bytes behind the name of a tensor or key.
fn patched(name: &str, skip: usize, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut file = tiny("llama").bytes();
    let at = find(&file, name) + name.len() + skip;
    put(&mut file, at, value);
    file
}

fn with(key: &str, value: Value) -> Vec<u8> {
    let mut w = tiny("llama");
    w.set(key, value);
    w.bytes()
}

// Behind the name of a tensor of two dimensions: count of dimensions, the two, type, offset.
const DIMS: usize = 0;
const DIM_0: usize = 4;
const DIM_1: usize = 12;
const TYPE: usize = 20;
const OFFSET: usize = 24;
const Q: &str = "blk.0.attn_q.weight";

#[test]
fn versions_but_2_and_3() {
    for version in [0u32, 1, 4, u32::MAX] {
        let mut file = tiny("llama").bytes();
        put(&mut file, 4, version.to_le_bytes());
        refused(&file, &["version", &version.to_string(), "convert"]);
    }
}

#[test]
fn counts_that_the_file_cannot_hold() {
    for count in [1u64 << 20, 1 << 32, 1 << 61, u64::MAX] {
        let n = count.to_string();
        let mut file = tiny("llama").bytes();
        put(&mut file, 8, count.to_le_bytes());
        refused(&file, &["tensor count", &n, "fit"]);

        let mut file = tiny("llama").bytes();
        put(&mut file, 16, count.to_le_bytes());
        refused(&file, &["metadata count", &n, "fit"]);

        // The length of a string, of an array, of a key.
        refused(
            &patched("general.name", 4, count.to_le_bytes()),
            &["general.name", &n, "fit"],
        );
        refused(
            &patched("tokenizer.ggml.token_type", 8, count.to_le_bytes()),
            &["tokenizer.ggml.token_type", &n, "fit"],
        );
        refused(
            &patched("tokenizer.ggml.tokens", 8, count.to_le_bytes()),
            &["tokenizer.ggml.tokens", &n, "fit"],
        );
        let mut file = tiny("llama").bytes();
        put(&mut file, 24, count.to_le_bytes());
        refused(&file, &["metadata key 0", &n, "fit"]);
    }
}

#[test]
fn more_keys_or_tensors_than_any_model_has() {
    let mut file = tiny("llama").bytes();
    file.resize(4 << 20, 0);
    put(&mut file, 8, 32_769u64.to_le_bytes());
    refused(&file, &["tensor count", "32769", "at most 32768"]);
    put(&mut file, 8, 1u64.to_le_bytes());
    put(&mut file, 16, 65_537u64.to_le_bytes());
    refused(&file, &["metadata count", "65537", "at most 65536"]);
}

#[test]
fn unknown_types() {
    refused(
        &patched("general.name", 0, 13u32.to_le_bytes()),
        &["type of general.name", "13", "0 to 12"],
    );
    refused(
        &patched("tokenizer.ggml.tokens", 4, 99u32.to_le_bytes()),
        &["element type of tokenizer.ggml.tokens", "99", "0 to 12"],
    );
    refused(
        &patched(Q, TYPE, 4u32.to_le_bytes()),
        &["number 4", Q, "supported: F32, F16"],
    );
}

#[test]
fn bools_that_are_neither() {
    let file = with("test.flag", Value::Bool(true));
    let at = find(&file, "test.flag") + 9 + 4;
    let mut file = file;
    file[at] = 2;
    refused(&file, &["test.flag", "bool 2", "0 or 1"]);
    let mut file = with("test.flags", Value::Array(Array::Bool(vec![true])));
    let at = find(&file, "test.flags") + 10 + 4 + 4 + 8;
    file[at] = 255;
    refused(&file, &["test.flags", "bool 255", "0 or 1"]);
}

#[test]
fn text_that_is_read_and_is_not_utf_8() {
    let damaged = |name: &str| {
        let mut file = tiny("llama").bytes();
        let at = find(&file, name);
        file[at + 1] = 0xff;
        file
    };
    refused(
        &damaged("blk.1.ffn_up.weight"),
        &["name of tensor", "not UTF-8 at byte 1", "fetch it again"],
    );
    for (text, key) in [
        ("tiny", "general.name"),
        ("ab", "tokenizer.ggml.tokens"),
        ("gpt2", "tokenizer.ggml.model"),
        ("a b", "tokenizer.ggml.merges"),
    ] {
        let text = message(load(&damaged(text)), Kind::Model);
        says(&text, &[key, "not UTF-8 at byte 1", "expected"]);
    }
    let text = message(load(&damaged("general.architecture")), Kind::Model);
    says(&text, &["general.architecture is missing"]);
}

#[test]
fn names_that_are_empty_too_long_or_there_twice() {
    let mut w = tiny("llama");
    w.metadata.push((String::new(), Value::U8(0)));
    refused(
        &w.bytes(),
        &["metadata key 16", "0 bytes long", "1 to 65535"],
    );

    let mut w = tiny("llama");
    w.metadata.push(("k".repeat(65_536), Value::U8(0)));
    refused(&w.bytes(), &["65536 bytes long", "1 to 65535"]);

    let mut w = tiny("llama");
    w.metadata.push(("general.name".into(), Value::U8(0)));
    refused(&w.bytes(), &["metadata key", "general.name, twice"]);

    let mut w = tiny("llama");
    w.tensor("", &[1], 0);
    refused(
        &w.bytes(),
        &["name of tensor 20", "0 bytes long", "1 to 1024"],
    );

    let mut w = tiny("llama");
    w.tensor(&"t".repeat(1025), &[1], 0);
    refused(&w.bytes(), &["1025 bytes long", "1 to 1024"]);

    let mut w = tiny("llama");
    w.tensor("output_norm.weight", &[1], 0);
    refused(&w.bytes(), &["tensor name", "output_norm.weight, twice"]);
}

#[test]
fn control_codes_do_not_reach_the_terminal() {
    let mut w = tiny("llama");
    w.tensor("\x1b[2Jevil\n", &[3], 0);
    let mut file = w.bytes();
    let at = find(&file, "evil") + 5 + 4 + 8 + 4;
    put(&mut file, at, 8u64.to_le_bytes());
    refused(&file, &["\\u{1b}[2Jevil\\n", "alignment"]);

    let text = message(
        load(&with(
            "general.architecture",
            Value::String("\x1b[31m".into()),
        )),
        Kind::Model,
    );
    says(&text, &["\\u{1b}[31m", "1 to 64 letters"]);
}

#[test]
fn messages_stay_short() {
    let long = "x".repeat(1 << 16);
    let key = format!("k.{}", &long[..60_000]);
    let mut file = with(&key, Value::Bool(true));
    let at = find(&file, &key) + key.len() + 4;
    file[at] = 7;
    refused(&file, &["xxxx…", "bool 7"]);
    let text = message(
        load(&with("general.architecture", Value::String(long))),
        Kind::Model,
    );
    says(&text, &["xxxx…", "1 to 64"]);
    assert!(text.len() < 600);
}

#[test]
fn arrays_nested_without_end() {
    let mut deep = Array::U8(vec![1]);
    for _ in 0..4 {
        deep = Array::Array(vec![deep]);
    }
    refused(
        &with("test.deep", Value::Array(deep)),
        &["test.deep", "nested more than 2", "hostile"],
    );
    let many = Array::Array(vec![Array::U8(vec![]); (1 << 17) + 1]);
    refused(
        &with("test.many", Value::Array(many)),
        &["test.many", "more than 131072 arrays", "hostile"],
    );
    // A depth that would overflow the stack of a recursive reader.
    let mut w = Writer::default();
    w.set("test.abyss", Value::U32(9));
    let mut file = w.bytes();
    let at = find(&file, "test.abyss") + 10;
    file.truncate(at);
    file.extend(9u32.to_le_bytes());
    for _ in 0..1_000_000 {
        file.extend(9u32.to_le_bytes());
        file.extend(1u64.to_le_bytes());
    }
    refused(&file, &["test.abyss", "nested more than 2"]);
}

#[test]
fn dimensions_that_are_too_many() {
    for dims in [5u32, u32::MAX] {
        refused(
            &patched(Q, DIMS, dims.to_le_bytes()),
            &[Q, "dimensions", &dims.to_string(), "0 to 4"],
        );
    }
}

#[test]
fn tensors_of_zero_that_are_used() {
    for name in [
        "token_embd.weight",
        "blk.0.attn_q.weight",
        "output_norm.weight",
    ] {
        let mut w = tiny("llama");
        let tensor = w.tensors.iter_mut().find(|t| t.name == name).unwrap();
        *tensor.shape.last_mut().unwrap() = 0;
        tensor.data.clear();
        Gguf::parse(&w.bytes()).unwrap();
        w.remove("tokenizer.ggml.tokens");
        let text = message(load(&w.bytes()), Kind::Model);
        says(&text, &[name, "the shape [", "0]"]);
    }
}

#[test]
fn sizes_that_overflow() {
    // 8 x 2^61 elements, 2^64 bytes; 8 x 2^60, 2^63 elements; 2^62 F16 bytes; all of it.
    for (n, parts) in [
        (1u64 << 61, ["dimension 1", "below 2^63"]),
        (1 << 60, ["dimension 1", "below 2^63"]),
        (1 << 59, ["offset", "end past the file"]),
        (u64::MAX, ["dimension 1", "below 2^63"]),
    ] {
        refused(
            &patched(Q, DIM_1, n.to_le_bytes()),
            &[&[Q][..], &parts].concat(),
        );
    }
    // Two factors of 2^32, whose product is zero in 64 bits.
    let both = [(1u64 << 32).to_le_bytes(), (1u64 << 32).to_le_bytes()].concat();
    refused(&patched(Q, DIM_0, both), &[Q, "below 2^63"]);
    for offset in [u64::MAX, u64::MAX - 31, 1 << 63, 1 << 40] {
        refused(
            &patched(Q, OFFSET, offset.to_le_bytes()),
            &[Q, "offset", &offset.to_string(), "past the file"],
        );
    }
}

#[test]
fn tensors_that_are_not_aligned_overlap_or_leave_gaps() {
    let gguf = Gguf::parse(&tiny("llama").bytes()).unwrap();
    let first = gguf.tensors.iter().map(|t| t.offset).min().unwrap();
    let q = gguf.tensors.iter().find(|t| t.name == Q).unwrap();
    let offset = (q.offset - first) as u64;
    refused(
        &patched(Q, OFFSET, (offset + 4).to_le_bytes()),
        &[Q, "not a multiple of the alignment 32"],
    );
    refused(
        &patched(Q, OFFSET, (offset - 32).to_le_bytes()),
        &["offset", "without gaps or overlaps"],
    );
    refused(
        &patched(Q, OFFSET, 0u64.to_le_bytes()),
        &["offset", "without gaps or overlaps"],
    );
    // A gap: the last tensor one step further on, in a file long enough.
    let last = gguf.tensors.iter().max_by_key(|t| t.offset).unwrap();
    assert_eq!(last.shape.len(), 1);
    let further = (last.offset - first) as u64 + 32;
    let mut file = patched(&last.name, OFFSET - 8, further.to_le_bytes());
    file.resize(file.len() + 32, 0);
    refused(&file, &[&last.name, "without gaps or overlaps"]);
}

#[test]
fn sizes_that_are_not_shape_times_type() {
    // Fewer rows than the next tensor's offset says: a gap; more: an overlap.
    refused(
        &patched(Q, DIM_1, 1u64.to_le_bytes()),
        &["without gaps or overlaps"],
    );
    refused(
        &patched(Q, DIM_1, 40u64.to_le_bytes()),
        &["without gaps or overlaps"],
    );
    // Twice the bytes an element.
    refused(
        &patched(Q, TYPE, 0u32.to_le_bytes()),
        &["without gaps or overlaps"],
    );
    // Rows that are no whole number of blocks.
    let blocks = onegraph::quant::TYPES.iter().filter(|t| t.block_elems > 8);
    for ty in blocks {
        refused(
            &patched(Q, TYPE, ty.id.to_le_bytes()),
            &[
                Q,
                "row length",
                "is 8",
                ty.name,
                &ty.block_elems.to_string(),
            ],
        );
    }
}

#[test]
fn a_tail_that_is_cut() {
    let file = tiny("llama").bytes();
    let cut = &file[..file.len() - 1];
    refused(
        cut,
        &["output_norm.weight", "past the file", "fetch it again"],
    );
    // One byte of all the tensors is there.
    let start = Gguf::parse(&file).unwrap().tensors[0].offset;
    refused(&file[..=start], &["past the file", "fetch it again"]);
}

#[test]
fn alignments_that_are_no_small_power_of_two() {
    for n in [0u32, 3, 33, 1 << 21, u32::MAX] {
        refused(
            &with("general.alignment", Value::U32(n)),
            &["general.alignment", &n.to_string(), "power of two from 1"],
        );
    }
    refused(
        &with("general.alignment", Value::String("32".into())),
        &["general.alignment", "\"32\"", "integer"],
    );
}
