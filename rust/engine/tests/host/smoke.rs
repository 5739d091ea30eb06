//! The targets of tests/fuzz on mutated seeds: what CI runs of them.
use crate::fuzz::{gguf, template, tokenizer, tools};
use crate::mutate::for_each;

fn run(seeds: Vec<Vec<u8>>, cases: u32, target: fn(&[u8])) {
    seeds.iter().for_each(|seed| target(seed));
    let files: Vec<(Vec<u8>, usize)> = seeds.into_iter().map(|s| (s.clone(), s.len())).collect();
    for_each(&files, cases, |data, _| target(data));
}

#[test]
fn gguf_target() {
    run(gguf::seeds(), 20_000, gguf::run);
}

#[test]
fn tokenizer_target() {
    run(tokenizer::seeds(), 20_000, tokenizer::run);
}

#[test]
fn tools_target() {
    run(tools::seeds(), 20_000, tools::run);
}

#[test]
fn template_target() {
    run(template::seeds(), 3000, template::run);
}
