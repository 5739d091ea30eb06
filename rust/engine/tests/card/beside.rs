//! Prompts beside steps: however parts of prompts and steps share passes, a sequence's tokens are those that
//! it draws alone, to the bit of their log-probabilities. On the CPU, and where a CUDA driver is found, the
//! simulated one included, on that card too.

use onegraph::backend::cpu::CpuBackend;
use onegraph::backend::cuda::CudaBackend;
use onegraph::backend::{Backend, Event, GpuOptions, GraphMode, Kind, Part, SlotRequest};
use onegraph::quant;
use onegraph::sampler::{random, Params};

use crate::fixture::Folder;
use crate::{card, card_model};

const SLOTS: usize = 4;
const N_CTX: usize = 200;
const N_VOCAB: u32 = card_model::N_VOCAB as u32;

/// Every backend there is, over a cache of each of these types.
fn each_backend(kv_types: &[&str], test: impl Fn(&str, &mut dyn Backend)) {
    let folder = Folder::new();
    let (model, plan) = card_model::open(&folder, "Q8_0", 32);
    for kv_type in kv_types {
        let options = |mode| {
            let gpu = GpuOptions {
                mode,
                prefill_chunk: 64,
                ..GpuOptions::default()
            };
            card_model::options(SLOTS, N_CTX, kv_type, gpu)
        };
        let full = options(GraphMode::Full);
        let mut cpu = CpuBackend::new(plan.clone(), model.clone(), &full).unwrap();
        test(&format!("cpu, {kv_type}"), &mut cpu);
        if card::context().is_none() || quant::check_kv_on_card(full.kv_type).is_err() {
            continue;
        }
        for mode in [GraphMode::Full, GraphMode::None] {
            let own = options(mode);
            let card = CudaBackend::new(0, plan.clone(), &*model, &own, &|_, _, _| Ok(()));
            test(&format!("card, {kv_type}, {mode:?}"), &mut card.unwrap());
        }
    }
}

fn random_number(seed: u32, i: u32) -> usize {
    random::philox4x32_10([seed, i, 0, 0], [11, 5])[0] as usize >> 8
}

fn request(n: usize, number: u32) -> SlotRequest {
    SlotRequest {
        sampling: Params {
            seed: u64::from(number),
            temperature: 1.2,
            logprobs: Some(2),
            repeat_penalty: 1.3,
            repeat_last_n: Some(20),
            ..Params::default()
        },
        prompt: (0..n as u32).map(|i| (i * 7 + number) % N_VOCAB).collect(),
        stop_tokens: vec![number % N_VOCAB],
        max_tokens: 3 + number as usize % 23,
        constrained: false,
    }
}

fn begin(backend: &mut dyn Backend, slot: usize, request: &SlotRequest) {
    let n = N_CTX.div_ceil(64);
    let pages: Vec<u32> = (0..n).map(|page| (1 + slot * n + page) as u32).collect();
    backend.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
    backend.start(slot, request).unwrap();
}

fn has_ended(events: &[Event]) -> bool {
    events.last().is_some_and(|event| event.finish.is_some())
}

/// What a request alone gives.
fn alone(backend: &mut dyn Backend, request: &SlotRequest) -> Vec<Event> {
    begin(backend, 0, request);
    backend.prefill(0, &request.prompt, 0, true).unwrap();
    let mut events = backend.drain(true).unwrap();
    while !has_ended(&events) {
        backend.decode().unwrap();
        events.extend(backend.drain(true).unwrap());
    }
    backend.release(0).unwrap();
    events
}

/// A request in a slot, and how far it is.
struct Running {
    number: usize,
    fed: usize,
    events: Vec<Event>,
}

/// What each of `requests` gives where they come as slots are free, and parts of their prompts, as long as
/// chance wills, are fed together, beside steps or between them.
fn together(backend: &mut dyn Backend, requests: &[SlotRequest], seed: u32) -> Vec<Vec<Event>> {
    let mut slots: Vec<Option<Running>> = (0..SLOTS).map(|_| None).collect();
    let mut done: Vec<Vec<Event>> = vec![Vec::new(); requests.len()];
    let mut waiting = 0..requests.len();
    let mut draws = 0;
    let mut chance = || {
        draws += 1;
        random_number(seed, draws)
    };
    let (mut beside, mut shared) = (0, 0);
    loop {
        for (slot, place) in slots.iter_mut().enumerate() {
            if place.is_none() {
                *place = waiting.next().map(|number| Running {
                    number,
                    fed: 0,
                    events: Vec::new(),
                });
                if let Some(running) = place {
                    begin(backend, slot, &requests[running.number]);
                }
            }
        }
        if slots.iter().all(Option::is_none) {
            break;
        }
        let mut parts = Vec::new();
        let mut decoding = 0;
        for (slot, running) in slots.iter_mut().enumerate() {
            let Some(running) = running else { continue };
            let prompt = &requests[running.number].prompt;
            let rest = &prompt[running.fed..];
            decoding += usize::from(rest.is_empty());
            if rest.is_empty() || chance() % 3 == 0 {
                continue;
            }
            let n = rest.len().min(1 + chance() % 40);
            parts.push(Part {
                slot,
                tokens: &rest[..n],
                start: running.fed,
                last: n == rest.len(),
                next: None,
            });
            running.fed += n;
        }
        let step = chance() % 3 > 0 && backend.steps_beside_prompts(decoding);
        if !parts.is_empty() {
            beside += usize::from(step && decoding > 0);
            shared += usize::from(parts.len() > 1);
            assert_eq!(backend.feed(&parts, step).unwrap(), []);
        } else {
            backend.decode().unwrap();
        }
        loop {
            let events = backend.drain(true).unwrap();
            for event in events {
                let own = slots[event.slot].as_mut().unwrap();
                assert_eq!(event.index, own.events.len(), "{event:?}");
                own.events.push(event);
            }
            if backend.is_settled() {
                break;
            }
        }
        for (slot, place) in slots.iter_mut().enumerate() {
            if let Some(running) = place.take_if(|running| has_ended(&running.events)) {
                done[running.number] = running.events;
                backend.release(slot).unwrap();
            }
        }
    }
    assert!(shared > 3, "{shared} passes of several prompts");
    assert!(beside > 3, "{beside} steps beside prompts");
    done
}

#[test]
fn however_prompts_and_steps_share_passes_each_sequence_has_its_own_tokens() {
    each_backend(&["i16", "q8_0", "f32"], |name, backend| {
        let lengths = [1, 3, 170, 64, 20, 65, 9, 130, 2, 40, 128, 7];
        let requests: Vec<SlotRequest> = (1..).zip(lengths).map(|(i, n)| request(n, i)).collect();
        let wanted: Vec<Vec<Event>> = requests.iter().map(|r| alone(backend, r)).collect();
        for seed in 0..3 {
            let found = together(backend, &requests, seed);
            for (number, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let strip = |events: &[Event]| -> Vec<Event> {
                    let events = events.iter().cloned();
                    events.map(|event| Event { slot: 0, ..event }).collect()
                };
                assert_eq!(
                    strip(found),
                    strip(wanted),
                    "{name}, request {number}, {seed}"
                );
            }
        }
    });
}

#[test]
fn what_ails_one_prompt_ails_no_other_and_no_step() {
    each_backend(&["i16"], |name, backend| {
        let requests = [request(5, 22), request(9, 23), request(30, 24)];
        let wanted: Vec<Vec<Event>> = requests.iter().map(|r| alone(backend, r)).collect();
        begin(backend, 0, &requests[0]);
        backend.prefill(0, &requests[0].prompt, 0, true).unwrap();
        let first = backend.drain(true).unwrap();
        (1..3).for_each(|slot| begin(backend, slot, &requests[slot]));
        let wrong = [1, 2, N_VOCAB];
        let part = |slot: usize, tokens| Part {
            slot,
            tokens,
            start: 0,
            last: true,
            next: None,
        };
        let failed = backend
            .feed(&[part(1, &wrong), part(2, &requests[2].prompt)], true)
            .unwrap();
        assert_eq!(failed.len(), 1, "{name}");
        assert_eq!(failed[0].0, 1, "{name}");
        let text = failed[0].1.to_string();
        assert!(text.contains("token = 64"), "{name}: {text}");
        let mut events = backend.drain(true).unwrap();
        events.sort_by_key(|event| event.slot);
        let found: Vec<u32> = first.iter().chain(&events).map(|e| e.token).collect();
        let tokens = [&wanted[0][0], &wanted[0][1], &wanted[2][0]].map(|e| e.token);
        assert_eq!(found, tokens, "{name}");
        // A step beside a prompt is of tokens that are known.
        backend.decode().unwrap();
        let prompt = &requests[1].prompt;
        let error = backend.feed(&[part(1, prompt)], true).unwrap_err();
        assert!(
            error.to_string().contains("beside prompts"),
            "{name}: {error}"
        );
        (0..3).for_each(|slot| backend.release(slot).unwrap());
    });
}
