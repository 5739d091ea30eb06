//! The memory that a file can make us take: at most 64 MiB and four times its length, the map of
//! the file itself included; and what running it on the CPU takes, which is known before. Measured
//! by an allocator that counts.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onegraph::backend::cpu::{self, CpuBackend};
use onegraph::backend::{pool_pages, Backend, GpuOptions, Kind, RunnerOptions, SlotRequest};
use onegraph::gguf::{Array, Gguf, Value};
use onegraph::tokenizer::Tokenizer;
use onegraph::{quant, sampler, Result};

#[path = "card/card_model.rs"]
mod card_model;
#[path = "host/fixture.rs"]
mod fixture;
#[path = "host/load.rs"]
mod load;

use fixture::{tiny, Folder, Writer};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// What an allocation of `n` bytes takes from a common allocator: a header, and whole units.
fn taken(n: usize) -> usize {
    (n + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(taken(layout.size()), Ordering::Relaxed) + taken(layout.size());
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(taken(layout.size()), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: Mutex<()> = Mutex::new(());

/// One measurement at a time.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `load` says of the file, after checking what it took beside the file's own bytes.
fn check<T>(what: &str, bytes: &[u8], load: impl Fn(&[u8]) -> Result<T>) -> Option<String> {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = load(bytes);
    let peak = PEAK.load(Ordering::Relaxed) - before;
    let limit = (64 << 20) + 3 * bytes.len();
    assert!(
        peak <= limit,
        "{what}: {peak} bytes for a file of {}, {limit} allowed beside the file itself",
        bytes.len()
    );
    result.err().map(|e| e.to_string())
}

fn good(what: &str, bytes: &[u8]) {
    assert_eq!(check(what, bytes, load::load), None, "{what}");
}

#[track_caller]
fn bad(what: &str, bytes: &[u8], part: &str) {
    let error = check(what, bytes, load::load).expect(what);
    assert!(error.contains(part), "{what}: {part:?} is not in {error}");
}

fn tokenizer(bytes: &[u8]) -> Result<Tokenizer> {
    Tokenizer::from_gguf(&Gguf::parse(bytes)?)
}

fn with(key: &str, value: Value) -> Vec<u8> {
    let mut w = tiny("llama");
    w.set(key, value);
    w.bytes()
}

#[test]
fn the_allocator_counts() {
    let _turn = turn();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    // Twice what is looked for: the harness frees a little on its own threads meanwhile.
    drop(std::hint::black_box(vec![0u8; 2 << 20]));
    assert!(PEAK.load(Ordering::Relaxed) - before >= 1 << 20);
}

#[test]
fn arrays_cost_what_they_are() {
    let _turn = turn();
    const N: usize = 4 << 20;
    let nested = |inner: Array, n: usize| Array::Array(vec![inner; n]);
    let strings = |s: &str, n: usize| Array::String((0..n).map(|_| s).collect());
    for (what, array) in [
        ("bytes", Array::U8(vec![1; 8 * N])),
        ("bools", Array::Bool(vec![true; 8 * N])),
        ("doubles", Array::F64(vec![1.0; N])),
        ("empty strings", strings("", N)),
        ("short strings", strings("a", N)),
        ("long strings", strings(&"a".repeat(1 << 20), 32)),
        ("empty arrays", nested(Array::U8(vec![]), 1 << 17)),
        ("short arrays", nested(Array::U8(vec![1]), 1 << 17)),
        (
            "arrays of arrays",
            nested(nested(Array::U8(vec![]), 8), 1 << 13),
        ),
    ] {
        good(what, &with("test.array", Value::Array(array)));
    }
    let many = Value::Array(nested(Array::U8(vec![]), N));
    bad(
        "too many arrays",
        &with("test.array", many),
        "more than 131072 arrays",
    );
}

#[test]
fn vocabularies_cost_what_they_are() {
    let _turn = turn();
    for (n, pre, bound) in [
        (1usize << 18, "llama-bpe", None),
        ((1 << 19) + 1, "gpt-2", Some("1 to 524288 tokens")),
        (1 << 22, "gpt-2", Some("1 to 524288 tokens")),
    ] {
        let says = |what: &str, w: &Writer| {
            let error = check(&format!("{what}, {n} tokens"), &w.bytes(), tokenizer);
            match bound {
                Some(part) => assert!(error.unwrap().contains(part)),
                None => assert_eq!(error, None),
            }
        };
        let tokens = (0..n).map(|i| format!("{i:x}")).collect();
        let mut w = tiny("llama");
        w.set("tokenizer.ggml.bos_token_id", Value::U32(1));
        w.set("tokenizer.ggml.pre", Value::String(pre.into()));
        w.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        w.set(
            "tokenizer.ggml.token_type",
            Value::Array(Array::I32(vec![1; n])),
        );
        let merges = (16..n)
            .map(|i| format!("{:x} {:x}", i / 16, i % 16))
            .collect();
        w.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
        says("BPE", &w);

        w.remove("tokenizer.ggml.merges");
        w.set("tokenizer.ggml.model", Value::String("llama".into()));
        w.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
        w.set(
            "tokenizer.ggml.scores",
            Value::Array(Array::F32(vec![0.0; n])),
        );
        says("SentencePiece", &w);
    }
}

#[test]
fn special_tokens_cost_what_they_are() {
    let _turn = turn();
    for kind in [3, 4] {
        for (n, length, error) in [
            (1usize << 17, 8, None),
            (256, 4096, None),
            // 17 times 32 MiB, were it taken.
            (1 << 13, 4096, Some("need an index of 544.0 MiB")),
        ] {
            let token = |i| format!("{i:08x}{}", "x".repeat(length - 8));
            let tokens = Array::String((0..n).map(token).collect());
            let mut w = tiny("llama");
            w.set("tokenizer.ggml.bos_token_id", Value::U32(1));
            w.set("tokenizer.ggml.tokens", Value::Array(tokens));
            let types = Array::I32(vec![kind; n]);
            w.set("tokenizer.ggml.token_type", Value::Array(types));
            let none = Array::String(std::iter::empty::<&str>().collect());
            w.set("tokenizer.ggml.merges", Value::Array(none));
            let what = format!("{n} special tokens of {length} bytes");
            let found = check(&what, &w.bytes(), tokenizer);
            match error {
                Some(part) => assert!(found.unwrap().contains(part), "{what}"),
                None => assert_eq!(found, None, "{what}"),
            }
        }
    }
}

#[test]
fn merges_cost_what_they_are() {
    let _turn = turn();
    let with_merges = |merges| with("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    let empty = (0..1 << 22).map(|_| "").collect();
    bad("empty", &with_merges(empty), "at most 1048576 merges");
    good(
        "one pair",
        &with_merges((0..1 << 20).map(|_| "a b").collect()),
    );
    let unknown = (0..1 << 20).map(|i| format!("{i:x} {:x}", i * 7)).collect();
    let part = "at most 65536 texts that are no token";
    bad("no tokens", &with_merges(unknown), part);
}

#[test]
fn text_costs_what_it_is() {
    let _turn = turn();
    let long = || Value::String("x".repeat(32 << 20));
    good("name", &with("general.name", long()));
    good("template", &with("tokenizer.chat_template", long()));
    for key in [
        "general.architecture",
        "llama.rope.scaling.type",
        "tokenizer.ggml.model",
    ] {
        bad(key, &with(key, long()), "xxxxxxxx");
    }
}

#[test]
fn keys_and_tensors_are_bounded() {
    let _turn = turn();
    let mut w = tiny("llama");
    for i in w.metadata.len()..65_536 {
        w.metadata.push((format!("{i:x}"), Value::U8(0)));
    }
    good("keys", &w.bytes());

    let mut w = tiny("llama");
    w.alignment = 8;
    w.set("general.alignment", Value::U32(8));
    for i in w.tensors.len()..32_768 {
        w.tensor(&format!("{i:x}"), &[1, 1, 1, 1], 0);
    }
    bad("tensors", &w.bytes(), "no such tensor in a llama model");
}

#[test]
fn counts_that_lie_cost_nothing() {
    let _turn = turn();
    // 32 MiB of tail make counts up to that plausible.
    let tail = vec![0u8; 32 << 20];
    for ty in 0..13u32 {
        for n in [1u64 << 20, 1 << 22, 1 << 25, 1 << 40, u64::MAX] {
            let mut w = Writer::default();
            w.set("test.array", Value::U8(0));
            let (mut file, _) = w.parts();
            file.truncate(file.len() - 5);
            file.extend(9u32.to_le_bytes());
            file.extend(ty.to_le_bytes());
            file.extend(n.to_le_bytes());
            file.extend(&tail);
            bad(&format!("{n} of type {ty}"), &file, "");
        }
    }
    for at in [8, 16] {
        for n in [1u64 << 15, 1 << 16, 1 << 20, u64::MAX] {
            let mut file = tiny("llama").bytes();
            file.extend(&tail);
            file[at..at + 8].copy_from_slice(&n.to_le_bytes());
            bad(&format!("{n} at {at}"), &file, "");
        }
    }
}

#[test]
fn what_a_model_takes_on_the_cpu_is_known_before() {
    let _turn = turn();
    let folder = Folder::new();
    for (arch, n_slots, n_ctx, kv_type) in [
        ("llama", 1, 1024, "f32"),
        ("llama", 8, 1024, "f16"),
        ("llama", 300, 64, "q8_0"),
        ("llama", 3, 1024, "i16"),
        ("qwen35", 3, 1024, "i16"),
        ("lfm2", 3, 1024, "i16"),
    ] {
        let (model, plan) = card_model::open_arch(&folder, arch, "Q4_0", 32);
        let options = RunnerOptions {
            n_slots,
            n_ctx,
            n_pages: pool_pages(n_slots, n_ctx),
            windows: None,
            kv_type: quant::kv_by_name(kv_type).unwrap(),
            threads: 2,
            gpu: GpuOptions::default(),
        };
        let needs = cpu::needs(&plan, &options).unwrap();
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let mut backend = CpuBackend::new(plan.clone(), model, &options).unwrap();
        let loaded = NOW.load(Ordering::Relaxed) - before;
        let prompt: Vec<u32> = (0..n_ctx as u32 - 2).map(|i| i % 60).collect();
        let mut next = 1;
        for slot in 0..n_slots {
            let pages: Vec<u32> = (next..).take(n_ctx.div_ceil(64)).collect();
            next += pages.len() as u32;
            backend.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
            let request = SlotRequest {
                sampling: sampler::Params {
                    repeat_penalty: 1.1,
                    repeat_last_n: Some(n_ctx),
                    ..sampler::Params::default()
                },
                prompt: prompt.clone(),
                stop_tokens: vec![],
                max_tokens: 2,
                constrained: false,
            };
            backend.start(slot, &request).unwrap();
            backend.prefill(slot, &prompt, 0, true).unwrap();
        }
        backend.decode().unwrap();
        let peak = PEAK.load(Ordering::Relaxed) - before;
        // Handles of threads and weights; of each sequence its prompt and what it draws by.
        let handles = (64 << 10) + (n_slots as u64) * 512;
        let at_load = needs.kv + needs.activations;
        let near = |taken: usize, foreseen: u64| (taken as u64).abs_diff(foreseen) < handles;
        assert!(near(loaded, at_load), "{kv_type}: {loaded}, {needs:?}");
        // Each thread has scratch of its own; small products may all fall to one of them.
        let options = RunnerOptions {
            threads: 1,
            ..options
        };
        let least = needs.kv + cpu::needs(&plan, &options).unwrap().working();
        let most = needs.kv + needs.working();
        let taken = peak as u64;
        assert!(
            taken + handles > least && taken < most + handles,
            "{kv_type}: {peak} of {least} to {most}, {needs:?}"
        );
        assert_eq!(backend.drain(true).unwrap().len(), 2 * n_slots);
    }
}
