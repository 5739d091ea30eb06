//! The engine on a tiny random model; faults come from a layer around the real backend.
use std::collections::HashMap;
use std::sync::Barrier;

use super::*;
use crate::arch;
use crate::backend::{Draft, Event, Finish, Kind, SlotRequest};
use crate::gguf::{Array, Value};
use crate::pages::Salt;
use crate::quant;
use crate::sampler::{random, Allowed, Params};

mod constrain;
mod embedding;
mod faulty;
#[path = "../../../tests/host/fixture.rs"]
mod fixture;
mod lines;
mod lookup;
mod pages;
mod preemption;
mod prefixes;
mod schedule;
mod scheduling;
mod solo;
mod tiers;
mod waking;

use faulty::{Did, Faults, Faulty};
use fixture::{Folder, Tensor, Writer};

const N_CTX: u32 = 200;
const EOS: u32 = 256;

/// A model of 2 layers, 32 wide, with a token for each byte and one that ends the text.
fn model(change: impl Fn(&str, &mut Vec<f32>)) -> Vec<u8> {
    let mut w = Writer::default();
    w.set("general.architecture", Value::String("llama".into()));
    for (key, n) in [
        ("block_count", 2),
        ("context_length", N_CTX),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        w.set(&format!("llama.{key}"), Value::U32(n));
    }
    let eps = "llama.attention.layer_norm_rms_epsilon";
    w.set(eps, Value::F32(1e-5));
    w.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    w.set("tokenizer.ggml.pre", Value::String("gpt-2".into()));
    // Byte-level vocabularies spell the bytes that do not print with characters from 256 on.
    let mut others = 256..;
    let spelled = |byte: u32| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from_u32(byte),
        _ => others.next().and_then(char::from_u32),
    };
    let mut tokens: Vec<String> = (0..256).filter_map(spelled).map(String::from).collect();
    tokens.push("<end>".into());
    let kinds = (0..=EOS).map(|id| if id == EOS { 3 } else { 1 }).collect();
    w.set("tokenizer.ggml.tokens", {
        Value::Array(Array::String(tokens.iter().map(String::as_str).collect()))
    });
    w.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    let merges: [&str; 0] = [];
    let merges = Array::String(merges.into_iter().collect());
    w.set("tokenizer.ggml.merges", Value::Array(merges));
    w.set("tokenizer.ggml.eos_token_id", Value::U32(EOS));
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![32, 257])];
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_norm", vec![32]),
            ("attn_q", vec![32, 32]),
            ("attn_k", vec![32, 16]),
            ("attn_v", vec![32, 16]),
            ("attn_output", vec![32, 32]),
            ("ffn_norm", vec![32]),
            ("ffn_gate", vec![32, 48]),
            ("ffn_up", vec![32, 48]),
            ("ffn_down", vec![48, 32]),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), shape));
        }
    }
    tensors.push(("output_norm.weight".into(), vec![32]));
    for (number, (name, shape)) in (0..).zip(tensors) {
        let n: u64 = shape.iter().product();
        let uniform = |i| random::philox4x32_10([i, number, 0, 0], [3, 4])[0] as f32 / 4.3e9 - 0.5;
        let mut values: Vec<f32> = (0..n as u32).map(uniform).collect();
        if shape.len() == 1 {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        change(&name, &mut values);
        w.tensors.push(Tensor {
            name,
            shape,
            ty: quant::by_id(0).unwrap(),
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        });
    }
    w.bytes()
}

fn options(max_batch: usize) -> Options {
    Options {
        device: "cpu".into(),
        max_batch,
        kv_type: "f32".into(),
        threads: Some(1),
        ..Options::default()
    }
}

fn on(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn engine_with(max_batch: usize, faults: Faults) -> Engine {
    engine_as(options(max_batch), faults)
}

fn engine_as(options: Options, faults: Faults) -> Engine {
    let folder = Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let build = move |reporter: &Reporter| {
        let (_, loaded) = load(&path, &options, reporter)?;
        let model = Arc::new(Model::open(&path)?);
        let limits = &loaded.limits;
        let runner = RunnerOptions {
            n_slots: limits.n_slots,
            n_ctx: limits.n_ctx,
            n_pages: limits.n_pages,
            windows: limits.windows,
            kv_type: options.kv_type()?,
            threads: 1,
            gpu: crate::backend::GpuOptions::default(),
        };
        let plan = Arc::new(arch::plan(&model.config()?)?);
        let backend: Box<dyn Backend> = Box::new(Faulty {
            inner: CpuBackend::new(plan, model, &runner)?,
            faults,
            steps: 0,
            tables: Default::default(),
            prompts: HashMap::new(),
            firsts: HashMap::new(),
        });
        drop(folder);
        Ok((backend, loaded))
    };
    Engine::finish(Loading::begin(true, build).unwrap(), on).unwrap()
}

fn engine(max_batch: usize) -> Engine {
    engine_with(max_batch, Faults::default())
}

fn request(text: &str, max_tokens: usize, seed: u64) -> Request {
    Request {
        prompt: text.bytes().map(u32::from).collect(),
        sampling: Params {
            seed,
            temperature: 1.5,
            logprobs: Some(3),
            ..Params::default()
        },
        max_tokens,
        stop: Vec::new(),
        stop_token_ids: Vec::new(),
        shown_token_ids: Vec::new(),
        ignore_eos: true,
        timed_from: 0,
        together: 0,
        salt: Salt::default(),
        priority: 0,
        asked: None,
        prompt_lookup: 0,
        constraint: None,
        thinking: None,
    }
}

fn submit(engine: &Engine, request: &Request) -> Ticket<Piece> {
    let ticket = engine.submit(request, Duration::from_secs(30)).unwrap();
    ticket.expect("room in the queue")
}

fn finish(ticket: &Ticket<Piece>) -> Result<Piece> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut whole = Piece::default();
    while whole.finished.is_none() {
        ticket.collect(&mut whole, POLL)?;
        assert!(Instant::now() < until, "no end, only {whole:?}");
    }
    Ok(whole)
}

fn reason(piece: &Piece) -> FinishReason {
    piece.finished.as_ref().unwrap().reason
}

fn six() -> Vec<Request> {
    let prompts = [
        "a",
        "some longer prompt of a few words",
        "xyz",
        "?",
        &"long ".repeat(15),
        "end",
    ];
    (0..)
        .zip(prompts)
        .map(|(i, text)| request(text, 20 + 7 * i as usize, i))
        .collect()
}

/// Text, tokens and log-probabilities, to the bit.
fn same(a: &Piece, b: &Piece) -> bool {
    let bits = |p: &Piece| -> Vec<_> {
        let all = |l: &crate::sampler::Logprobs| {
            let top: Vec<_> = l.top.iter().map(|(id, l)| (*id, l.to_bits())).collect();
            (l.logprob.to_bits(), top)
        };
        p.logprobs.iter().map(all).collect()
    };
    a.text == b.text && a.token_ids == b.token_ids && bits(a) == bits(b)
}

fn collect_logits(engine: &Engine, ids: &[u32], path: LogitsPath) -> Vec<f32> {
    let ticket = engine
        .logits(ids, path, Duration::from_secs(5))
        .unwrap()
        .unwrap();
    let mut logits = Vec::new();
    while let Wait::Item(rows) = ticket.next(Duration::from_secs(60)).unwrap() {
        logits.extend(rows);
    }
    logits
}

#[test]
fn logits_are_the_same_by_both_ways_and_while_others_decode() {
    let engine = engine(2);
    let ids: Vec<u32> = (0..N_CTX).map(|i| i * 7 % 250).collect();
    let whole = collect_logits(&engine, &ids, LogitsPath::Prefill);
    assert_eq!(whole.len(), ids.len() * 257);
    let other = submit(&engine, &request("go on", 150, 1));
    let steps = collect_logits(&engine, &ids, LogitsPath::Decode);
    assert!(whole
        .iter()
        .zip(&steps)
        .all(|(a, b)| a.to_bits() == b.to_bits()));
    finish(&other).unwrap();
}

#[test]
fn a_panic_reaches_everyone_who_waits_and_nobody_hangs() {
    let faults = Faults {
        panic_at: Some(4),
        delay: Duration::from_millis(5),
        ..Faults::default()
    };
    let engine = engine_with(2, faults);
    let tickets: Vec<_> = six().iter().map(|r| submit(&engine, r)).collect();
    for ticket in &tickets {
        let error = finish(ticket).unwrap_err();
        assert!(
            matches!(&error, Error::Internal(text) if text.contains("planted")),
            "{error}"
        );
        assert_eq!(ticket.next(POLL), Ok(Wait::End));
    }
    let later = engine.submit(&six()[0], POLL).map(|_| ()).unwrap_err();
    assert!(matches!(later, Error::Internal(_)), "{later}");
    engine.close();
}

#[test]
fn what_ails_one_sequence_leaves_the_others_alone() {
    let requests = &six()[..3];
    let sound = engine(3);
    let alone: Vec<_> = requests
        .iter()
        .map(|r| finish(&submit(&sound, r)).unwrap())
        .collect();
    let faults = Faults {
        fail_one_at: Some(5),
        delay: Duration::from_millis(2),
        ..Faults::default()
    };
    let engine = engine_with(3, faults);
    let tickets: Vec<_> = requests.iter().map(|r| submit(&engine, r)).collect();
    let results: Vec<_> = tickets.iter().map(finish).collect();
    assert_eq!(results[0], Err(Error::Internal("one fails".into())));
    assert!(same(results[1].as_ref().unwrap(), &alone[1]));
    assert!(same(results[2].as_ref().unwrap(), &alone[2]));
    assert!(same(
        &finish(&submit(&engine, &requests[0])).unwrap(),
        &alone[0]
    ));
}

#[test]
fn a_failed_step_ends_those_that_decode_and_the_engine_goes_on() {
    let faults = Faults {
        error_at: Some(3),
        ..Faults::default()
    };
    let engine = engine_with(2, faults);
    let error = finish(&submit(&engine, &six()[1])).unwrap_err();
    assert_eq!(error, Error::Internal("a planted error".into()));
    assert_eq!(
        finish(&submit(&engine, &six()[1])).unwrap().token_ids.len(),
        27
    );
}

#[test]
fn cancelling_frees_the_slot_and_says_so() {
    let faults = Faults {
        delay: Duration::from_millis(3),
        ..Faults::default()
    };
    let engine = engine_with(1, faults);
    let running = submit(&engine, &request("running", 180, 1));
    let waiting = submit(&engine, &request("waiting", 180, 2));
    let dropped = submit(&engine, &request("dropped", 180, 3));
    let last = submit(&engine, &request("last", 3, 4));
    let Wait::Item(first) = running.next(Duration::from_secs(10)).unwrap() else {
        panic!("no first piece");
    };
    assert_eq!(first.token_ids.len(), 1);
    waiting.cancel();
    drop(dropped);
    running.cancel();
    let rest = finish(&running).unwrap();
    assert_eq!(reason(&rest), FinishReason::Cancelled);
    let usage = rest.finished.unwrap().usage;
    assert_eq!(usage.completion, 1 + rest.token_ids.len());
    assert!(usage.completion < 180);
    let never = finish(&waiting).unwrap();
    assert_eq!(
        (reason(&never), never.token_ids.len()),
        (FinishReason::Cancelled, 0)
    );
    assert_eq!(reason(&finish(&last).unwrap()), FinishReason::Length);
}

#[test]
fn a_receiver_that_is_gone_frees_the_slot() {
    let engine = engine(1);
    for seed in 0..20 {
        drop(submit(&engine, &request("gone", 150, seed)));
    }
    let alone = finish(&submit(&engine, &request("here", 5, 0))).unwrap();
    assert_eq!(alone.token_ids.len(), 5);
}

#[test]
fn closing_ends_every_request_with_an_error() {
    let faults = Faults {
        delay: Duration::from_millis(5),
        ..Faults::default()
    };
    let engine = engine_with(1, faults);
    let tickets: Vec<_> = six().iter().map(|r| submit(&engine, r)).collect();
    engine.close();
    for ticket in &tickets {
        assert_eq!(finish(ticket), Err(Error::Closed { what: "the model" }));
    }
    let error = engine.submit(&six()[0], POLL).map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("closed; open it again"),
        "{error}"
    );
    let error = engine.logits(&[1], LogitsPath::Decode, POLL).map(|_| ());
    assert!(matches!(error, Err(Error::Closed { .. })));
    engine.close();
}

#[test]
fn a_full_queue_makes_the_caller_wait() {
    let faults = Faults {
        delay: Duration::from_millis(20),
        ..Faults::default()
    };
    let engine = engine_with(1, faults);
    let mut tickets = Vec::new();
    let full = loop {
        match engine
            .submit(&request("x", 100, 0), Duration::ZERO)
            .unwrap()
        {
            Some(ticket) => tickets.push(ticket),
            None => break tickets.len(),
        }
    };
    assert!((256..=257).contains(&full), "{full}");
    tickets.truncate(2);
    // The cancelled ones leave at the next turn.
    assert!(engine
        .submit(&request("x", 1, 0), Duration::from_secs(5))
        .unwrap()
        .is_some());
}

#[test]
fn the_context_can_be_filled_to_the_last_token() {
    let engine = engine(1);
    let n_ctx = N_CTX as usize;
    for (prompt, expected) in [(n_ctx - 1, 1), (n_ctx - 10, 10), (64, n_ctx - 64)] {
        let result = finish(&submit(&engine, &request(&"x".repeat(prompt), 1000, 1))).unwrap();
        assert_eq!(
            (result.token_ids.len(), reason(&result)),
            (expected, FinishReason::Length)
        );
    }
    let error = engine
        .submit(&request(&"x".repeat(n_ctx), 1, 1), POLL)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        error,
        Error::Context {
            prompt: n_ctx,
            at_least: false,
            context: n_ctx,
            trained: engine.loaded().n_ctx_train,
        }
    );
    assert!(
        error
            .to_string()
            .contains("by 1 tokens; the model was trained for 200, the largest possible n_ctx"),
        "{error}"
    );
    let ids = vec![1; n_ctx + 1];
    let error = engine
        .logits(&ids, LogitsPath::Prefill, POLL)
        .map(|_| ())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("201 tokens: the context holds 200"),
        "{error}"
    );
}

#[test]
fn the_end_token_and_stop_strings_end_a_text() {
    let engine = engine(1);
    let mut r = request("abc", 30, 5);
    r.sampling.logit_bias = [(EOS, f32::INFINITY)].into();
    r.ignore_eos = false;
    let ended = finish(&submit(&engine, &r)).unwrap();
    assert_eq!(
        (ended.text.as_str(), reason(&ended)),
        ("", FinishReason::Stop)
    );
    assert_eq!((ended.token_ids.len(), ended.logprobs.len()), (0, 0));
    r.ignore_eos = true;
    let ignored = finish(&submit(&engine, &r)).unwrap();
    assert_eq!(
        (ignored.token_ids, ignored.text.as_str()),
        (vec![EOS; 30], "")
    );

    // The text of tokens 10 to 12 as a stop string.
    let mut r = request("abc", 30, 5);
    let ascii = |id: &u32| (32..127).contains(id);
    r.sampling.logit_bias = (0..257)
        .filter(|id| !ascii(id))
        .map(|id| (id, f32::NEG_INFINITY))
        .collect();
    let free = finish(&submit(&engine, &r)).unwrap();
    assert_eq!(free.text.len(), 30);
    r.stop = vec!["\u{e9}never".into(), free.text[10..13].to_owned()];
    let at = free.text.find(&r.stop[1]).unwrap();
    let stopped = finish(&submit(&engine, &r)).unwrap();
    assert_eq!(
        (stopped.text.as_str(), reason(&stopped)),
        (&free.text[..at], FinishReason::Stop)
    );
    assert_eq!(stopped.token_ids, free.token_ids[..at + 3]);
}

#[test]
fn bad_requests_are_refused_before_they_wait() {
    let engine = engine(1);
    let refused = |change: &dyn Fn(&mut Request)| {
        let mut r = request("abc", 3, 0);
        change(&mut r);
        engine.submit(&r, POLL).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(&|r| r.max_tokens = 0).contains("max_tokens = 0: must be 1 or more"));
    assert!(refused(&|r| r.prompt.clear()).contains("at least one token"));
    assert!(refused(&|r| r.prompt[1] = 257).contains("token 257: the vocabulary has 257 tokens"));
    assert!(refused(&|r| r.sampling.top_p = 2.0).contains("top_p = 2"));
    assert!(refused(&|r| r.stop = vec![String::new()]).contains("stop"));
}

#[test]
fn long_requests_for_logits_take_turns_with_prompts() {
    let faults = Faults {
        gate: Some(Arc::new(Barrier::new(2))),
        ..Faults::default()
    };
    let engine = engine_with(2, faults.clone());
    let ids = vec![7; N_CTX as usize];
    let wait = Duration::from_secs(20);
    let slow = engine.logits(&ids, LogitsPath::Decode, wait);
    let slow = slow.unwrap().unwrap();
    let quick = submit(&engine, &request("quick", 1, 0));
    // From here on both are there.
    if let Some(gate) = &faults.gate {
        gate.wait();
    }
    finish(&quick).unwrap();
    let mut rows = 0;
    while let Wait::Item(some) = slow.next(wait).unwrap() {
        rows += some.len() / 257;
    }
    assert_eq!(rows, ids.len());
    let (before, fed) = *faults.rows_before.lock().unwrap();
    assert!(
        fed && before < ids.len(),
        "{before} of {rows} rows came first"
    );
}

#[test]
fn a_model_whose_numbers_overflow_says_so() {
    let folder = Folder::new();
    let nan_in = |poisoned: &'static str| {
        move |name: &str, values: &mut Vec<f32>| {
            if name == poisoned {
                values[0] = f32::NAN;
            }
        }
    };
    let path = folder.write("norm.gguf", &model(nan_in("output_norm.weight")));
    let refused = Engine::load(path, &options(1), on).map(|_| ());
    assert!(
        matches!(&refused, Err(Error::Tensor { name, .. }) if name == "output_norm.weight"),
        "{refused:?}"
    );
    // The first row of the vocabulary's matrix: the logit of token 0.
    let path = folder.write("nan.gguf", &model(nan_in("token_embd.weight")));
    let engine = Engine::load(path, &options(1), on).unwrap();
    let error = finish(&submit(&engine, &request("a", 3, 0))).unwrap_err();
    assert!(
        matches!(&error, Error::Logits { token: 0, value } if value == "NaN"),
        "{error}"
    );
}

#[test]
fn sequences_whose_keys_are_too_large_for_the_cache_go_on_and_are_counted() {
    let folder = Folder::new();
    let large = |name: &str, values: &mut Vec<f32>| {
        if name == "blk.0.attn_k.weight" {
            values.iter_mut().for_each(|v| *v *= 1e6);
        }
    };
    // Float16, for one.
    let narrow = quant::kv_types().find(|t| t.largest < 1e5).unwrap();
    let half = Options {
        kv_type: narrow.name.into(),
        ..options(2)
    };
    let path = folder.write("large.gguf", &model(large));
    let engine = Engine::load(&path, &half, on).unwrap();
    let count = || engine.loaded().saturated.load(Ordering::Relaxed);
    assert_eq!(
        finish(&submit(&engine, &request("abc", 5, 0)))
            .unwrap()
            .token_ids
            .len(),
        5
    );
    assert_eq!(count(), 1);
    let logits = engine.logits(&[1, 2], LogitsPath::Decode, Duration::from_secs(20));
    let logits = logits.unwrap().unwrap();
    while let Wait::Item(rows) = logits.next(Duration::from_secs(20)).unwrap() {
        assert!(rows.iter().all(|x| x.is_finite()));
    }
    assert_eq!(count(), 2);
    // float32 holds them, and float16 the keys of the model as it was.
    let tiny = folder.write("tiny.gguf", &model(|_, _| {}));
    for (path, options) in [(path, options(2)), (tiny, half)] {
        let engine = Engine::load(path, &options, on).unwrap();
        finish(&submit(&engine, &request("abc", 5, 0))).unwrap();
        assert_eq!(engine.loaded().saturated.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn loading_can_be_broken_off_and_its_errors_come_through() {
    let folder = Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let mut stages = Vec::new();
    let seen = Engine::load(&path, &options(1), |p| {
        stages.push(p.stage.clone());
        ControlFlow::Continue(())
    });
    assert_eq!(seen.unwrap().loaded().limits.n_ctx, N_CTX as usize);
    assert!(stages.iter().any(|s| s == "weights"), "{stages:?}");
    let broken = Engine::load(&path, &options(1), |_| ControlFlow::Break(()));
    assert_eq!(broken.map(|_| ()), Err(Error::Cancelled));

    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = options(1);
        change(&mut options);
        Engine::load(&path, &options, on)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let text = refused(&|o| o.n_ctx = Some(201));
    assert!(
        text.contains("n_ctx = 201") && text.contains("trained for 200"),
        "{text}"
    );
    // Heads of 8 values do not fill a block of 32.
    let mut types = quant::kv_types();
    let is_whole = |t: &&quant::QuantType| t.block_elems == 32 && !t.sums_kv_exactly();
    let name = types.find(is_whole).unwrap().name;
    let text = refused(&|o| o.kv_type = name.to_lowercase());
    let expected = format!("kv_type = {name}: heads of 8 values");
    assert!(text.contains(&expected), "{text}");
    let text = refused(&|o| o.device = "tpu".into());
    assert!(text.contains("device = \"tpu\""), "{text}");
    let missing = Engine::load(folder.0.join("no.gguf"), &options(1), on).map(|_| ());
    assert!(matches!(missing, Err(Error::Io { .. })));
    let loading = Loading::begin(true, |_| panic!("a planted panic")).unwrap();
    let panicked = Engine::finish(loading, on).map(|_| ());
    assert_eq!(panicked, Err(Error::Internal("a planted panic".into())));
}

/// Slots that are free, and pages that are or could be evicted.
fn available(pool: &crate::pages::BlockManager) -> (usize, usize) {
    let budget = pool.budget(usize::MAX);
    (budget.slots, budget.available)
}
