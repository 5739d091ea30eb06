//! Slots and pages of the real backend.
use super::*;
use crate::pages::BlockManager;

pub fn backend(n_slots: usize, n_pages: usize) -> CpuBackend {
    let folder = Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let model = Arc::new(Model::open(path).unwrap());
    let plan = Arc::new(arch::plan(&model.config().unwrap()).unwrap());
    let runner = RunnerOptions {
        n_slots,
        n_ctx: N_CTX as usize,
        n_pages,
        windows: None,
        kv_type: quant::kv_by_name(quant::DEFAULT_KV).unwrap(),
        threads: 1,
        gpu: crate::backend::GpuOptions::default(),
    };
    CpuBackend::new(plan, model, &runner).unwrap()
}

#[test]
fn pages_have_one_owner_and_come_back() {
    let mut backend = backend(3, 6);
    let pool = BlockManager::new(backend.limits(), true, Arc::default());
    assert_eq!(available(&pool), (3, 5));
    let a = pool.open(&mut backend, 65, &[]).unwrap().unwrap();
    let b = pool.open(&mut backend, 128, &[]).unwrap().unwrap();
    assert_eq!((a.slot(), b.slot(), a.capacity()), (0, 1, 128));
    assert_eq!(available(&pool), (1, 1));
    // Room for one page, not for two: wait.
    assert!(pool.open(&mut backend, 65, &[]).unwrap().is_none());
    let c = pool.open(&mut backend, 1, &[]).unwrap().unwrap();
    // No slot is left.
    assert!(pool.open(&mut backend, 1, &[]).unwrap().is_none());
    drop(b);
    assert_eq!(available(&pool), (1, 2));
    a.close(&mut backend, &[]).unwrap();
    c.close(&mut backend, &[]).unwrap();
    assert_eq!(available(&pool), (3, 5));
    let error = pool.open(&mut backend, 321, &[]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("321 tokens need 6 KV pages, but the cache has 5"),
        "{text}"
    );
}

#[test]
fn a_slot_without_a_page_fails_alone() {
    let mut backend = backend(2, 6);
    let start = |backend: &mut CpuBackend, slot: usize| {
        let r = request("abc", 100, slot as u64);
        let request = SlotRequest {
            sampling: r.sampling,
            prompt: r.prompt.clone(),
            stop_tokens: Vec::new(),
            max_tokens: 100,
            constrained: false,
        };
        backend.start(slot, &request).unwrap();
        backend.prefill(slot, &r.prompt, 0, true).unwrap();
    };
    backend.map_pages(Kind::Whole, 0, 0, &[1, 2]).unwrap();
    backend.map_pages(Kind::Whole, 1, 0, &[3]).unwrap();
    start(&mut backend, 0);
    start(&mut backend, 1);
    let mut tokens = [0; 2];
    let mut failed = None;
    for _ in 0..100 {
        backend.decode().unwrap();
        for event in backend.drain(true).unwrap() {
            match event.finish {
                Some(Finish::Failed(e)) => failed = Some((event.slot, event.index, e)),
                _ => tokens[event.slot] += 1,
            }
        }
    }
    // The first page of slot 1 ends after 64 tokens: 3 of the prompt and 61 of the answer.
    let bounds = Error::KvBounds {
        position: 64,
        slot: 1,
        limit: N_CTX as usize,
    };
    assert_eq!(failed, Some((1, 62, bounds)));
    assert_eq!(tokens, [100, 62]);
}
