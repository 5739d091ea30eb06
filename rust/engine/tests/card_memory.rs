//! What a load takes of a card is known before, to the byte; what does not fit is refused with what
//! would. Runs where a CUDA driver is found, the simulated one included.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onegraph::backend::cuda::driver::info::DeviceInfo;
use onegraph::backend::cuda::study::fit::{fit, needs};
use onegraph::backend::cuda::CudaBackend;
use onegraph::backend::{GpuOptions, RunnerOptions, Weights};
use onegraph::plan::{KvShape, Plan};
use onegraph::{quant, Error, Result};

#[path = "card/card.rs"]
mod card;
#[path = "card/card_model.rs"]
mod card_model;
#[path = "host/fixture.rs"]
mod fixture;

use fixture::Folder;

static TURN: Mutex<()> = Mutex::new(());

/// One test at a time: they look at the memory of the whole card.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(n_slots: usize, n_ctx: usize, kv_type: &str) -> RunnerOptions {
    RunnerOptions {
        n_slots,
        n_ctx,
        n_pages: n_slots * n_ctx.div_ceil(64) + 1,
        windows: None,
        kv_type: quant::kv_by_name(kv_type).unwrap(),
        threads: 1,
        gpu: GpuOptions {
            prefill_chunk: 64,
            ..GpuOptions::default()
        },
    }
}

/// Bytes that the simulated driver has given out: now, and at most so far; `None` on a real one.
fn given_out() -> Option<(u64, u64)> {
    // SAFETY: the driver is loaded already; this is one more handle of it.
    let driver = unsafe { libloading::Library::new("libcuda.so") }.ok()?;
    let mut values = [0u64; 32];
    // SAFETY: the simulator's own signature; it writes as many bytes as it says, which fit.
    unsafe {
        let stats = driver
            .get::<unsafe extern "C" fn(*mut u64, usize) -> usize>(b"ksimStats\0")
            .ok()?;
        assert!(stats(values.as_mut_ptr(), size_of_val(&values)) <= size_of_val(&values));
    }
    Some((values[1], values[2]))
}

#[test]
fn what_a_load_takes_is_known_before_to_the_byte() {
    let _turn = turn();
    let Some(card) = card::context() else { return };
    let folder = Folder::new();
    let before = given_out().map_or(0, |g| g.0);
    for (arch, ty, n_slots, n_ctx) in [
        ("llama", "Q8_0", 2, 256),
        ("llama", "Q4_1", 5, 1000),
        ("llama", "F16", 1, 64),
        ("qwen35", "Q8_0", 2, 256),
        ("lfm2", "Q8_0", 3, 64),
    ] {
        let (model, plan) = card_model::open_arch(&folder, arch, ty, 32);
        // A head in each layer that attends.
        let heads: usize = plan.kv.iter().map(|kv| kv.n_head_kv).sum();
        let options = options(n_slots, n_ctx, "i16");
        let needs = needs(&card.info, &plan, &*model, &options).unwrap();
        let described = CudaBackend::described(card.info.clone(), plan.clone(), &*model, &options);
        let foreseen = described.unwrap().taken().1 as u64;
        let backend = CudaBackend::new(0, plan, &*model, &options, &|_, _, _| Ok(())).unwrap();
        let (now, most) = backend.taken();
        assert_eq!(foreseen, most as u64, "{ty}");
        if let Some((given_now, given_most)) = given_out() {
            assert_eq!(given_now - before, now as u64, "{ty}");
            // Of this load and those before.
            assert!(
                given_most - before >= foreseen,
                "{ty}: {given_most}, {needs:?}"
            );
        }
        assert_eq!(backend.needs(), needs, "{ty}");
        let pages = n_slots * n_ctx.div_ceil(64) + 1;
        // Heads of 32 integers of two bytes, and a unit.
        let kv_bytes = 2 * heads * pages * 64 * (32 * 2 + 2);
        assert_eq!(needs.kv, kv_bytes as u64, "{ty}");
        assert!(needs.weights > 0 && needs.total() > foreseen);
    }
    assert_eq!(
        given_out().map_or(0, |g| g.0),
        before,
        "a load left something"
    );
}

/// A plan alone: no byte of a weight is read before the memory is there.
struct NoWeights;

impl Weights for NoWeights {
    fn bytes(&self, name: &str) -> Result<&[u8]> {
        Err(Error::Internal(format!("{name} was read")))
    }
}

/// As [`card_model`]'s, with keys and values of a larger model: 128 KiB a token.
fn wide() -> Arc<Plan> {
    let folder = Folder::new();
    let (_, plan) = card_model::open(&folder, "Q8_0", 32);
    let mut plan = Plan::clone(&plan);
    plan.kv = vec![KvShape::new(8, 128); 32];
    Arc::new(plan)
}

fn fitted(n_slots: usize, n_ctx: usize, may_shrink: bool, free_mib: u64) -> Result<RunnerOptions> {
    let info = DeviceInfo::of_arch("sm_90", 132)?;
    let options = RunnerOptions {
        gpu: GpuOptions {
            // Singly: the plan's q, k and v are not of the cache's shape.
            fuse: false,
            ..GpuOptions::default()
        },
        ..options(n_slots, n_ctx, "i16")
    };
    fit(
        &info,
        &wide(),
        &NoWeights,
        &options,
        may_shrink,
        free_mib << 20,
    )
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    // 8 sequences of 4096 tokens: 4 GiB, and a page of 8 MiB.
    assert_eq!(fitted(8, 4096, false, 5000).unwrap().n_ctx, 4096);
    let error = fitted(8, 4096, false, 3000).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }));
    let text = error.to_string();
    for part in [
        "needs 4.",
        "(weights 0.0, KV 4.0, scratch 0.",
        "2.9 free on sm_90",
        "would fit (n_ctx=",
        "max_batch=5 would fit",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // What it says would fit does, and a page more does not.
    let context = text
        .split("n_ctx=")
        .nth(1)
        .and_then(|t| t.split(')').next());
    let context: usize = context.unwrap().parse().unwrap();
    assert!(
        (2000..3000).contains(&context) && context.is_multiple_of(64),
        "{text}"
    );
    assert!(
        text.contains(&format!("context {},{}", context / 1000, context % 1000)),
        "{text}"
    );
    assert!(fitted(8, context, false, 3000).is_ok());
    assert!(fitted(8, context + 64, false, 3000).is_err());
    assert!(fitted(5, 4096, false, 3000).is_ok());
    assert!(fitted(6, 4096, false, 3000).is_err());

    // A caller who asked for no context gets the largest.
    let shrunk = fitted(8, 4096, true, 3000).unwrap();
    assert_eq!((shrunk.n_ctx, shrunk.n_slots), (context, 8));
    assert_eq!(shrunk.n_pages, 8 * context / 64 + 1);
    // But not one that is of no use: then it is said what would do.
    let text = fitted(64, 4096, true, 1200).unwrap_err().to_string();
    assert!(text.contains("context 128 would fit (n_ctx=128)"), "{text}");
    let text = fitted(64, 4096, false, 400).unwrap_err().to_string();
    assert!(text.contains("with max_batch=1 would fit"), "{text}");
    let text = fitted(1, 64, true, 10).unwrap_err().to_string();
    assert!(
        text.contains("free memory on the card, or use a smaller model"),
        "{text}"
    );
}
