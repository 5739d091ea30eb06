//! Prompts on the card: however they are cut and padded, graph or list, the same bits. Runs where a
//! CUDA driver is found, the simulated one included.

use onegraph::backend::cpu::CpuBackend;
use onegraph::backend::cuda::CudaBackend;
use onegraph::backend::{
    Backend, GpuOptions, GraphMode, Kind, LogitsPath, RunnerOptions, SlotRequest, TextPart,
};
use onegraph::quant;
use onegraph::sampler::Params;

use crate::fixture::Folder;
use crate::{card, card_model};

const SLOTS: usize = 2;

fn backend(folder: &Folder, chunk: usize, capture: bool) -> CudaBackend {
    with_kv(folder, chunk, capture, quant::DEFAULT_KV)
}

fn with_kv(folder: &Folder, chunk: usize, capture: bool, kv_type: &str) -> CudaBackend {
    let (model, plan) = card_model::open(folder, "Q8_0", 32);
    let n_ctx = card_model::N_CTX as usize;
    let options = RunnerOptions {
        n_slots: SLOTS,
        n_ctx,
        n_pages: SLOTS * n_ctx / 64 + 1,
        windows: None,
        kv_type: quant::kv_by_name(kv_type).unwrap(),
        threads: 1,
        gpu: GpuOptions {
            mode: if capture {
                GraphMode::Full
            } else {
                GraphMode::None
            },
            prefill_chunk: chunk,
            ..GpuOptions::default()
        },
    };
    let mut backend = CudaBackend::new(0, plan, &*model, &options, &|_, _, _| Ok(())).unwrap();
    for slot in 0..SLOTS {
        let pages: Vec<u32> = (0..16).map(|p| 1 + (slot * 16 + p) as u32).collect();
        backend.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
        let request = SlotRequest {
            sampling: Params::default(),
            prompt: vec![],
            stop_tokens: vec![],
            max_tokens: 100,
            constrained: false,
        };
        backend.start(slot, &request).unwrap();
    }
    backend
}

fn prompt(n: usize, seed: usize) -> Vec<u32> {
    let token = |i: usize| (i * 7 + i * i % 13 + seed) as u32 % card_model::N_VOCAB as u32;
    (0..n).map(token).collect()
}

/// The bits of the logits after one more token, which reads every key and value of the prompt.
fn after(backend: &mut CudaBackend, slot: usize, n: usize) -> Vec<u32> {
    let logits = backend.logits(slot, &[5], n, LogitsPath::Decode).unwrap();
    assert!(logits.iter().all(|l| l.is_finite()));
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_prompt_gives_the_same_bits_however_it_is_cut_and_padded() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut large = backend(&folder, 512, true);
    let mut small = backend(&folder, 64, false);
    let other = prompt(70, 3);
    large.prefill(1, &other, 0, false).unwrap();
    let neighbour = after(&mut large, 1, 70);
    for n in [1, 7, 8, 9, 63, 64, 65, 100, 129, 400] {
        let tokens = prompt(n, n);
        // Without padding, in passes of up to 64 rows that all give logits.
        large.logits(0, &tokens, 0, LogitsPath::Prefill).unwrap();
        let wanted = after(&mut large, 0, n);
        // Whole chunks and padded ones, as graphs; twice: the second is a replay alone.
        for _ in 0..2 {
            large.prefill(0, &prompt(n, 1), 0, false).unwrap();
            large.prefill(0, &tokens, 0, false).unwrap();
            assert!(wanted == after(&mut large, 0, n), "{n} tokens, graphs");
        }
        // Cut elsewhere.
        for cut in [1, n / 3, n - 1] {
            large.prefill(0, &prompt(n, 1), 0, false).unwrap();
            large.prefill(0, &tokens[..cut], 0, false).unwrap();
            large.prefill(0, &tokens[cut..], cut, false).unwrap();
            assert!(
                wanted == after(&mut large, 0, n),
                "{n} tokens, cut at {cut}"
            );
        }
        small.prefill(0, &tokens, 0, false).unwrap();
        assert!(
            wanted == after(&mut small, 0, n),
            "{n} tokens, chunks of 64"
        );
    }
    assert!(
        neighbour == after(&mut large, 1, 70),
        "another sequence's cache"
    );
    // A token past the vocabulary is refused before anything is queued, and harms nobody.
    let error = large
        .prefill(0, &[1, 64], 0, false)
        .unwrap_err()
        .to_string();
    assert!(error.contains("token = 64"), "{error}");
    assert!(error.contains("the vocabulary has 64 tokens"), "{error}");
    assert!(neighbour == after(&mut large, 1, 70));
}

#[test]
fn so_does_a_cache_of_any_type() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    for ty in quant::kv_types().filter(|t| t.sums_kv_exactly()) {
        let mut backend = with_kv(&folder, 64, true, ty.name);
        for n in [9, 100, 530] {
            let tokens = prompt(n, n);
            backend.logits(0, &tokens, 0, LogitsPath::Prefill).unwrap();
            let wanted = after(&mut backend, 0, n);
            for cut in [n / 3, n] {
                backend.prefill(0, &prompt(n, 1), 0, false).unwrap();
                backend.prefill(0, &tokens[..cut], 0, false).unwrap();
                backend.prefill(0, &tokens[cut..], cut, false).unwrap();
                assert!(
                    wanted == after(&mut backend, 0, n),
                    "{ty:?}, {n} cut at {cut}"
                );
            }
        }
    }
}

#[test]
fn the_first_token_is_drawn_from_the_last_row() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut draws = Vec::new();
    for (chunk, capture) in [(512, true), (64, true), (64, false)] {
        let mut backend = backend(&folder, chunk, capture);
        for (slot, n) in [(0, 100), (1, 9)] {
            backend.prefill(slot, &prompt(n, n), 0, true).unwrap();
            let events = backend.drain(true).unwrap();
            assert_eq!(events.len(), 1);
            draws.push((slot, events[0].token));
        }
    }
    assert_eq!(draws[..2], draws[2..4]);
    assert_eq!(draws[..2], draws[4..]);
}

#[test]
fn hidden_states_have_the_same_bits_on_the_cpu_and_however_a_text_is_cut() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let (model, plan) = card_model::open(&folder, "Q8_0", 32);
    let n_ctx = card_model::N_CTX as usize;
    let options = RunnerOptions {
        n_slots: 1,
        n_ctx,
        n_pages: n_ctx / 64 + 1,
        windows: None,
        kv_type: quant::kv_by_name(quant::DEFAULT_KV).unwrap(),
        threads: 1,
        gpu: GpuOptions::default(),
    };
    let mut cpu = CpuBackend::new(plan, model, &options).unwrap();
    let pages: Vec<u32> = (1..=16).collect();
    cpu.map_pages(Kind::Whole, 0, 0, &pages).unwrap();
    let bits = |states: &[f32]| -> Vec<u32> { states.iter().map(|x| x.to_bits()).collect() };
    fn hidden(on: &mut dyn Backend, tokens: &[u32], start: usize, wanted: usize) -> Vec<f32> {
        let part = TextPart {
            slot: 0,
            tokens,
            start,
            wanted,
            second: usize::MAX,
        };
        on.hidden(&[part]).unwrap().remove(0).unwrap()
    }
    let mut large = backend(&folder, 512, true);
    let mut small = backend(&folder, 64, false);
    for n in [1, 7, 64, 65, 200, 600] {
        let tokens = prompt(n, n);
        let wanted = bits(&hidden(&mut cpu, &tokens, 0, n));
        assert_eq!(wanted.len(), n * 64);
        // The third is a replay.
        for _ in 0..3 {
            let found = bits(&hidden(&mut large, &tokens, 0, n));
            assert!(wanted == found, "{n} tokens, graphs");
        }
        let found = bits(&hidden(&mut small, &tokens, 0, n));
        assert!(wanted == found, "{n} tokens, chunks of 64");
        let cut = n / 3;
        assert!(hidden(&mut large, &tokens[..cut], 0, 0).is_empty());
        let last = bits(&hidden(&mut large, &tokens[cut..], cut, 1));
        assert!(wanted[(n - 1) * 64..] == last, "{n} tokens, the last");
    }
}

#[test]
fn a_prompt_is_offered_in_whole_chunks() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let backend = backend(&folder, 512, true);
    assert_eq!(backend.slice(5000, None, 0), 512);
    assert_eq!(backend.slice(5000, Some(4096), 0), 512);
    assert_eq!(backend.slice(5000, Some(437), 0), 256);
    assert_eq!(backend.slice(400, Some(437), 0), 256);
    assert_eq!(backend.slice(400, Some(600), 0), 400);
    assert_eq!(backend.slice(3, Some(600), 0), 3);
}
