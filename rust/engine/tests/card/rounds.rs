//! Steps that verify drafts: whatever is drafted, a sequence's tokens are those of steps of one token, to
//! the bit of their log-probabilities. On the CPU, and where a CUDA driver is found, the simulated one
//! included, on that card too.

use std::sync::Arc;

use onegraph::backend::cpu::CpuBackend;
use onegraph::backend::cuda::CudaBackend;
use onegraph::backend::{
    Backend, Draft, Event, Finish, GpuOptions, GraphMode, Kind, RunnerOptions, SlotRequest,
    Weights, ROUND_ROWS,
};
use onegraph::error::Result;
use onegraph::plan::Plan;
use onegraph::quant;
use onegraph::sampler::{random, Params};
use onegraph::weights::Model;

use crate::fixture::Folder;
use crate::{card, card_model};

const SLOTS: usize = 3;
const N_CTX: usize = 130;
const N_VOCAB: u32 = card_model::N_VOCAB as u32;

fn runner(kv_type: &str, gpu: GpuOptions) -> RunnerOptions {
    card_model::options(SLOTS, N_CTX, kv_type, gpu)
}

fn cpu(model: &Arc<Model>, plan: &Arc<Plan>, kv_type: &str) -> Box<dyn Backend> {
    let options = runner(kv_type, GpuOptions::default());
    Box::new(CpuBackend::new(plan.clone(), model.clone(), &options).unwrap())
}

fn card(
    model: &Arc<Model>,
    plan: &Arc<Plan>,
    kv_type: &str,
    gpu: GpuOptions,
) -> Option<CudaBackend> {
    card::context()?;
    let options = runner(kv_type, gpu);
    quant::check_kv_on_card(options.kv_type).ok()?;
    Some(CudaBackend::new(0, plan.clone(), &**model, &options, &|_, _, _| Ok(())).unwrap())
}

/// Every backend there is, over a cache of each type that its heads have, and of models that keep states.
fn each_backend(test: impl Fn(&str, &mut dyn Backend)) {
    let folder = Folder::new();
    let states = card_model::WITH_STATES.map(|arch| (arch, "i16"));
    let caches = ["i16", "f32", "q8_0"].map(|kv_type| ("llama", kv_type));
    for (arch, kv_type) in caches.into_iter().chain(states) {
        let (model, plan) = card_model::open_arch(&folder, arch, "Q8_0", 32);
        test(
            &format!("cpu, {arch}, {kv_type}"),
            &mut *cpu(&model, &plan, kv_type),
        );
        for mode in [GraphMode::Full, GraphMode::None] {
            let gpu = GpuOptions {
                mode,
                ..GpuOptions::default()
            };
            if let Some(mut card) = card(&model, &plan, kv_type, gpu) {
                test(&format!("card, {arch}, {kv_type}, {mode:?}"), &mut card);
            }
        }
    }
}

/// Requests of every kind that has a say in the next token.
fn asked() -> Vec<SlotRequest> {
    let request = |n: u32, sampling, max_tokens| SlotRequest {
        sampling,
        prompt: (0..n).map(|i| (i * 7 + n) % N_VOCAB).collect(),
        stop_tokens: Vec::new(),
        max_tokens,
        constrained: false,
    };
    let drawn = |seed| Params {
        seed,
        temperature: 1.3,
        logprobs: Some(2),
        ..Params::default()
    };
    let penalized = |window| Params {
        repeat_penalty: 1.6,
        presence_penalty: 0.5,
        frequency_penalty: 0.7,
        repeat_last_n: window,
        ..drawn(5)
    };
    let greedy = Params {
        temperature: 0.0,
        ..penalized(Some(5))
    };
    vec![
        request(3, drawn(1), 40),
        request(70, penalized(None), 50),
        // A window within a draft, one beyond it, and one that the prompt fills.
        request(9, penalized(Some(3)), 40),
        request(30, penalized(Some(40)), 60),
        request(20, greedy, 30),
        // The context ends it.
        request(100, drawn(2), 500),
    ]
}

/// Feeds a sequence's prompt in `slot`.
fn begin(backend: &mut dyn Backend, slot: usize, request: &SlotRequest) {
    let n = N_CTX.div_ceil(64);
    let pages: Vec<u32> = (0..n).map(|page| (1 + slot * n + page) as u32).collect();
    backend.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
    backend.start(slot, request).unwrap();
    backend.prefill(slot, &request.prompt, 0, true).unwrap();
}

/// What becomes of `requests`, each in a slot of its own. `draft` is told a slot and what that drew so
/// far.
fn generate(
    backend: &mut dyn Backend,
    requests: &[SlotRequest],
    draft: impl FnMut(usize, &[Event]) -> Vec<u32>,
) -> Vec<Vec<Event>> {
    generate_seen(backend, requests, draft, |_, _| ())
}

/// The same, where `see` is shown the backend behind every step, and how many tokens slot 0 drew.
fn generate_seen(
    backend: &mut dyn Backend,
    requests: &[SlotRequest],
    mut draft: impl FnMut(usize, &[Event]) -> Vec<u32>,
    mut see: impl FnMut(&mut dyn Backend, usize),
) -> Vec<Vec<Event>> {
    for (slot, request) in requests.iter().enumerate() {
        begin(backend, slot, request);
    }
    let mut events = vec![Vec::<Event>::new(); requests.len()];
    let has_ended = |events: &[Event]| events.last().is_some_and(|e| e.finish.is_some());
    loop {
        for event in backend.drain(true).unwrap() {
            let own = &mut events[event.slot];
            assert_eq!(event.index, own.len(), "{event:?}");
            assert!(!has_ended(own), "{event:?} behind the end");
            assert!(event.row <= event.drafted, "{event:?}");
            // A token is the same whichever row gave it.
            own.push(Event {
                row: 0,
                drafted: 0,
                ..event
            });
        }
        see(backend, events[0].len());
        let live: Vec<usize> = (0..events.len())
            .filter(|s| !has_ended(&events[*s]))
            .collect();
        if live.is_empty() {
            break;
        }
        let drafts = live.into_iter().map(|slot| Draft {
            slot,
            tokens: draft(slot, &events[slot]),
        });
        let drafts: Vec<Draft> = drafts.filter(|draft| !draft.tokens.is_empty()).collect();
        assert!(backend.is_settled());
        match drafts.is_empty() {
            true => backend.decode().unwrap(),
            false => backend.decode_drafted(&drafts).unwrap(),
        }
    }
    (0..events.len()).for_each(|slot| backend.release(slot).unwrap());
    events
}

fn plain(backend: &mut dyn Backend, requests: &[SlotRequest]) -> Vec<Vec<Event>> {
    let alone = |request: &SlotRequest| {
        generate(backend, std::slice::from_ref(request), |_, _| Vec::new()).remove(0)
    };
    let mut all: Vec<Vec<Event>> = requests.iter().map(alone).collect();
    for (slot, events) in all.iter_mut().enumerate() {
        events.iter_mut().for_each(|event| event.slot = slot);
    }
    all
}

/// Of what is to come `right` tokens, then `wrong` other ones, as far as the context has room.
fn forced(
    to_come: &[Event],
    request: &SlotRequest,
    at: usize,
    right: usize,
    wrong: usize,
) -> Vec<u32> {
    let rest = &to_come[at.min(to_come.len())..];
    let right = right.min(rest.len());
    let mut tokens: Vec<u32> = rest[..right].iter().map(|e| e.token).collect();
    let next = rest.get(right).map_or(0, |e| e.token);
    tokens.extend((1..).take(wrong).map(|i| (next + i) % N_VOCAB));
    tokens.truncate((N_CTX - 1).saturating_sub(request.prompt.len() + at));
    tokens
}

fn random_number(round: u32, slot: usize, at: usize) -> usize {
    random::philox4x32_10([round, slot as u32, at as u32, 0], [7, 9])[0] as usize >> 8
}

#[test]
fn whatever_is_drafted_the_tokens_are_those_of_single_steps() {
    each_backend(|name, backend| {
        for requests in asked().chunks(SLOTS) {
            let wanted = plain(backend, requests);
            assert!(wanted.iter().all(|events| events.len() > 10));
            for round in 0..5 {
                let mut steps = 0;
                let found = generate(backend, requests, |slot, drawn| {
                    steps += usize::from(slot == 0);
                    let random = random_number(round, slot, drawn.len());
                    let (right, wrong) = match round {
                        0 => (7, 0),
                        1 => (0, 5),
                        _ => (random % 9, random / 9 % 4),
                    };
                    // Of a batch some draft, others do not.
                    let drafts = round < 2 || random % 640 > 200;
                    let (right, wrong) = if drafts { (right, wrong) } else { (0, 0) };
                    forced(&wanted[slot], &requests[slot], drawn.len(), right, wrong)
                });
                assert_eq!(found, wanted, "{name}, {round}");
                if round == 0 {
                    // A draft that is right makes a token a row.
                    assert_eq!(steps, (wanted[0].len() - 1).div_ceil(8), "{name}");
                }
            }
        }
    });
}

#[test]
fn a_sequence_ends_inside_a_draft_where_it_would_without() {
    each_backend(|name, backend| {
        let request = &asked()[0];
        let whole = plain(backend, std::slice::from_ref(request)).remove(0);
        let all = |at: usize| forced(&whole, request, at, 20, 0);
        for end in 1..12 {
            let mut stopped = request.clone();
            stopped.stop_tokens = vec![whole[end].token];
            let first = whole
                .iter()
                .position(|e| e.token == whole[end].token)
                .unwrap();
            let mut cut = request.clone();
            cut.max_tokens = end;
            for (request, n, finish) in [
                (stopped, first + 1, Finish::Stop),
                (cut, end, Finish::Length),
            ] {
                let one = std::slice::from_ref(&request);
                let found = generate(backend, one, |_, drawn| all(drawn.len())).remove(0);
                let tokens: Vec<u32> = found.iter().map(|e| e.token).collect();
                let wanted: Vec<u32> = whole[..n].iter().map(|e| e.token).collect();
                assert_eq!(tokens, wanted, "{name}, {end}");
                assert_eq!(found[n - 1].finish, Some(finish), "{name}, {end}");
            }
        }
    });
}

/// The bytes of the states of `slot`.
fn states(backend: &mut dyn Backend, slot: usize) -> Vec<u8> {
    let storage = backend.storage().unwrap();
    let mut bytes = vec![0u8; storage.state_bytes()];
    storage.read_state(slot, &mut bytes).unwrap();
    bytes
}

/// The rows of a draft that no steps of one token would have come to make no sequence fail, and the keys
/// of a wrong one are nobody's, nor is what a state would be behind it.
#[test]
fn a_wrong_draft_leaves_nothing_behind() {
    each_backend(|name, backend| {
        let request = &asked()[3];
        let wanted = plain(backend, std::slice::from_ref(request)).remove(0);
        let fed = request.prompt.len() + wanted.len() - 1;
        let page_bytes = backend.storage().unwrap().page_bytes(Kind::Whole);
        let pages = |backend: &mut dyn Backend| {
            let mut bytes = vec![0u8; page_bytes];
            let storage = backend.storage().unwrap();
            storage.read_page(Kind::Whole, 1, &mut bytes).unwrap();
            (bytes, states(backend, 0))
        };
        assert!(fed >= 64, "a whole page");
        let without = pages(backend);
        let one = std::slice::from_ref(request);
        let found = generate(backend, one, |_, drawn| {
            forced(&wanted, request, drawn.len(), 2, 9)
        });
        assert_eq!(found[0], wanted, "{name}");
        assert!(without == pages(backend), "{name}: the page that it fed");
    });
}

/// Behind every round a state is that of steps of the same tokens, whichever of them ended the sequence;
/// and rounds leave the states of other slots as they are.
#[test]
fn a_state_goes_forward_by_the_rows_that_count() {
    each_backend(|name, backend| {
        let request = &asked()[3];
        let mut behind = Vec::new();
        let wanted = generate_seen(backend, std::slice::from_ref(request), |_, _| Vec::new(), {
            |backend, _| behind.push(states(backend, 0))
        });
        if behind[0].is_empty() {
            return;
        }
        assert!(behind.windows(2).all(|two| two[0] != two[1]), "{name}");
        for (right, wrong) in [(0, 1), (1, 6), (2, 2), (3, 0), (9, 1), (4, 20)] {
            let idle: Vec<_> = (1..SLOTS).map(|slot| states(backend, slot)).collect();
            let draft =
                |_: usize, drawn: &[Event]| forced(&wanted[0], request, drawn.len(), right, wrong);
            let found = generate_seen(backend, std::slice::from_ref(request), draft, {
                |backend, drawn| {
                    // Behind a prompt one token is drawn, behind each row that counts another.
                    let same = states(backend, 0) == behind[drawn - 1];
                    assert!(same, "{name}, {right}, {wrong}: behind {drawn} tokens");
                }
            });
            assert_eq!(found, wanted, "{name}, {right}, {wrong}");
            let after: Vec<_> = (1..SLOTS).map(|slot| states(backend, slot)).collect();
            assert!(idle == after, "{name}: states of slots that had no rows");
        }
    });
}

/// A model whose last token's embedding is no numbers.
struct Poisoned {
    model: Arc<Model>,
    table: Vec<u8>,
}

const TABLE: &str = "token_embd.weight";

impl Poisoned {
    fn new(model: &Arc<Model>) -> Self {
        let mut table = model.bytes(TABLE).unwrap().to_vec();
        let ty = quant::by_name("Q8_0").unwrap();
        let last = table.len() - 64 / ty.block_elems * ty.block_bytes;
        for block in table[last..].chunks_exact_mut(ty.block_bytes) {
            // An infinite scale.
            block[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
        }
        let model = model.clone();
        Self { model, table }
    }
}

impl Weights for Poisoned {
    fn bytes(&self, name: &str) -> Result<&[u8]> {
        match name {
            TABLE => Ok(&self.table),
            _ => self.model.bytes(name),
        }
    }
}

/// A draft that cannot be computed is no sequence's fault: what it draws, and its state, are those without.
#[test]
fn a_draft_that_is_no_numbers_is_as_if_there_had_been_none() {
    let folder = Folder::new();
    let mut request = asked().remove(0);
    request.sampling.logit_bias.insert(N_VOCAB - 1, -1e4);
    for arch in card_model::WITH_STATES {
        let (model, plan) = card_model::open_arch(&folder, arch, "Q8_0", 32);
        let weights = Arc::new(Poisoned::new(&model));
        let options = runner("i16", GpuOptions::default());
        let cpu = CpuBackend::new(plan.clone(), weights.clone(), &options).unwrap();
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(cpu)];
        if card::context().is_some() {
            let card = CudaBackend::new(0, plan, &*weights, &options, &|_, _, _| Ok(())).unwrap();
            backends.push(Box::new(card));
        }
        for backend in &mut backends {
            let one = std::slice::from_ref(&request);
            let wanted = generate(&mut **backend, one, |_, _| Vec::new());
            assert!(wanted[0]
                .iter()
                .all(|e| e.finish.is_none() || e.index == 39));
            let behind = states(&mut **backend, 0);
            for right in 0..3 {
                let found = generate(&mut **backend, one, |_, drawn| {
                    let mut draft = forced(&wanted[0], &request, drawn.len(), right, 0);
                    draft.extend([N_VOCAB - 1, 5]);
                    draft
                });
                assert_eq!(found, wanted, "{arch}, {right}");
                assert!(behind == states(&mut **backend, 0), "{arch}, {right}");
            }
        }
    }
}

#[test]
fn drafts_that_no_step_takes_are_refused_and_nothing_is_drawn() {
    each_backend(|name, backend| {
        let request = asked().remove(0);
        begin(backend, 0, &request);
        backend.drain(true).unwrap();
        let mut refused = |tokens: Vec<u32>| {
            let error = backend
                .decode_drafted(&[Draft { slot: 0, tokens }])
                .unwrap_err();
            assert!(backend.drain(false).unwrap().is_empty(), "{name}");
            error.to_string()
        };
        let text = refused(vec![3, N_VOCAB]);
        assert!(text.contains("token 64 of 64 is drafted"), "{text}");
        let text = refused(vec![1; ROUND_ROWS]);
        assert!(text.contains("65 rows"), "{text}");
        // Behind a step whose token is not known.
        backend.decode().unwrap();
        let draft = Draft {
            slot: 0,
            tokens: vec![1],
        };
        let text = backend
            .decode_drafted(std::slice::from_ref(&draft))
            .unwrap_err()
            .to_string();
        assert!(text.contains("2 rows of drafts behind a step"), "{text}");
        assert_eq!(backend.drain(true).unwrap().len(), 1);
        backend.decode_drafted(&[draft]).unwrap();
        assert!(!backend.drain(true).unwrap().is_empty());
        backend.release(0).unwrap();
    });
}

#[test]
fn graphs_of_rounds_are_few_and_as_good_as_their_launches() {
    let folder = Folder::new();
    let (model, plan) = card_model::open(&folder, "Q8_0", 32);
    let Some(mut card) = card(&model, &plan, quant::DEFAULT_KV, GpuOptions::default()) else {
        return;
    };
    let requests = asked();
    let requests = &requests[..SLOTS];
    let wanted = plain(&mut card, requests);
    let before = card.stats().now();
    for round in 0..6 {
        let found = generate(&mut card, requests, |slot, drawn| {
            let rows = random_number(round, slot, drawn.len()) % 21;
            forced(&wanted[slot], &requests[slot], drawn.len(), rows, rows / 3)
        });
        assert_eq!(found, wanted);
    }
    let after = card.stats().now();
    assert_eq!(after.eager, before.eager, "every round is a replay");
    let rounds = after.captured.len() - before.captured.len();
    // 2, 4, 8, 16, 32 and 64 rows, and steps of 1 to 3 sequences.
    assert!((3..=9).contains(&rounds), "{:?}", after.captured);
}
