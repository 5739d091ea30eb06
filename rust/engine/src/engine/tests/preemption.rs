//! More sequences than there are pages for: some are preempted, none changes a bit.
use proptest::prelude::*;

use super::prefixes::{prompt, Writes};
use super::solo::{each_equals_its_solo_run, is_empty, requests};
use super::*;
use crate::pages::{BlockManager, Sequence, Span};

/// Pages of a whole context.
const CONTEXT_PAGES: usize = 4;

/// Keys and values of 64 tokens in 2 layers of 2 heads of 8 numbers.
const PAGE_BYTES: usize = 64 * 2 * 2 * 2 * 8 * size_of::<f32>();

/// A pool of `pages` pages, and room for `host_pages` more in the host's memory.
fn tight(max_batch: usize, pages: usize, host_pages: usize, faults: Faults) -> Engine {
    let options = Options {
        kv_tokens: Some(pages * 64),
        kv_host_bytes: Some(host_pages * PAGE_BYTES),
        ..options(max_batch)
    };
    engine_as(options, faults)
}

/// A request that begins with no other's tokens.
fn one(first: u32, n: usize, max_tokens: usize, priority: i32) -> Request {
    let mut prompt: Vec<u32> = (0..n as u32).map(|i| 30 + (i * first) % 200).collect();
    prompt[0] = first;
    Request {
        prompt,
        priority,
        ..request("", max_tokens, u64::from(first))
    }
}

fn preemptions(engine: &Engine) -> u64 {
    engine.stats().unwrap().done.preemptions
}

fn until(engine: &Engine, enough: impl Fn(&Stats) -> bool) {
    let late = Instant::now() + Duration::from_secs(60);
    while !enough(&engine.stats().unwrap()) {
        assert!(Instant::now() < late, "{:?}", engine.stats().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn preempted_sequences_equal_their_solo_runs() {
    let engines = [
        tight(3, CONTEXT_PAGES, 99, Faults::default()),
        tight(8, CONTEXT_PAGES + 2, 99, Faults::default()),
        // The host holds little: fewer are let in.
        tight(8, CONTEXT_PAGES, 5, Faults::default()),
    ];
    let config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 30,
        ..ProptestConfig::with_cases(48)
    };
    let longer = (requests(), 60usize..150).prop_map(|(mut asked, more)| {
        asked.request.max_tokens += more;
        asked
    });
    let all = (0..3usize, prop::collection::vec(longer, 4..12));
    proptest!(config, |((which, asked) in all)| {
        each_equals_its_solo_run(&engines[which], &asked);
    });
    let counts: Vec<u64> = engines.iter().map(preemptions).collect();
    assert!(counts.iter().all(|n| *n > 0), "{counts:?} were preempted");
}

fn ended(ticket: &Ticket<Piece>) -> Instant {
    finish(ticket).unwrap();
    Instant::now()
}

#[test]
fn the_last_in_line_or_of_the_lower_priority_is_preempted() {
    // Each takes three pages in the end, and there are four.
    for (priority, first_ends_first) in [(0, true), (-3, true), (3, false)] {
        let engine = tight(2, CONTEXT_PAGES, 9, Faults::default());
        let first = submit(&engine, &one(7, 60, 130, 0));
        let second = submit(&engine, &one(11, 60, 130, priority));
        let ends = std::thread::scope(|scope| {
            let other = scope.spawn(|| ended(&second));
            (ended(&first), other.join().unwrap())
        });
        assert_eq!(ends.0 < ends.1, first_ends_first, "priority {priority}");
        assert_eq!(preemptions(&engine), 1);
    }
}

#[test]
fn cancelling_or_closing_a_preempted_sequence_leaves_nothing() {
    let faults = Faults {
        delay: Duration::from_millis(2),
        ..Faults::default()
    };
    let engine = tight(2, CONTEXT_PAGES, 9, faults.clone());
    for by_dropping in [false, true] {
        let first = submit(&engine, &one(7, 60, 130, 0));
        let second = submit(&engine, &one(11, 60, 130, 0));
        until(&engine, |now| now.pages_swapped_out > 0);
        match by_dropping {
            true => drop(second),
            false => {
                second.cancel();
                assert_eq!(reason(&finish(&second).unwrap()), FinishReason::Cancelled);
            }
        }
        finish(&first).unwrap();
        until(&engine, |_| is_empty(&engine));
    }
    let tickets = [7, 11].map(|first| submit(&engine, &one(first, 60, 130, 0)));
    until(&engine, |now| now.pages_swapped_out > 0);
    engine.close();
    for ticket in tickets {
        let error = finish(&ticket).unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error}");
    }
}

#[test]
fn a_step_that_fails_spares_preempted_sequences() {
    let faults = Faults {
        error_at: Some(100),
        ..Faults::default()
    };
    let engine = tight(2, CONTEXT_PAGES, 9, faults);
    let first = submit(&engine, &one(7, 60, 130, 0));
    let second = submit(&engine, &one(11, 60, 130, 0));
    let error = finish(&first).unwrap_err().to_string();
    assert!(error.contains("a planted error"), "{error}");
    let whole = finish(&second).unwrap();
    let alone = finish(&submit(&engine, &one(11, 60, 130, 0))).unwrap();
    assert!(same(&whole, &alone));
    until(&engine, |_| is_empty(&engine));
}

#[test]
fn without_host_memory_no_request_is_admitted_that_might_be_preempted() {
    let engine = tight(8, CONTEXT_PAGES, 0, Faults::default());
    let tickets: Vec<_> = (3..11)
        .map(|first| submit(&engine, &one(first * 2 + 1, 60, 130, 0)))
        .collect();
    for ticket in &tickets {
        assert_eq!(finish(ticket).unwrap().token_ids.len(), 130);
    }
    assert_eq!(preemptions(&engine), 0);
}

#[test]
fn a_pool_that_does_not_hold_one_context_is_refused_with_its_numbers() {
    let folder = Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let load = |n_ctx, kv_tokens| {
        let options = Options {
            n_ctx,
            kv_tokens: Some(kv_tokens),
            ..options(2)
        };
        let limits = |engine: Engine| engine.loaded().limits.clone();
        Engine::load(&path, &options, on).map(limits)
    };
    let text = load(Some(200), 199).unwrap_err().to_string();
    let said = "kv_tokens = 199: must be at least n_ctx = 200";
    assert!(text.contains(said), "{text}");
    let text = load(None, 1).unwrap_err().to_string();
    assert!(text.contains("kv_tokens = 1: must be from 2"), "{text}");
    // With no context asked for, the one that there is room for.
    let limits = load(None, 100).unwrap();
    assert_eq!((limits.n_ctx, limits.n_pages), (100, 3));
    let limits = load(None, 1000).unwrap();
    assert_eq!((limits.n_ctx, limits.n_pages), (200, 17));
}

/// A sequence under way, its tokens, and how many of them were written.
struct Running {
    sequence: Sequence,
    tokens: Vec<u32>,
    fed: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Open { kind: usize, n: usize, more: usize },
    Feed { which: usize, rows: usize },
    SwapOut { which: usize },
    SwapIn { which: usize },
    Close { which: usize, keeps: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, 1..120usize, 0..130usize)
            .prop_map(|(kind, n, more)| Step::Open { kind, n, more }),
        9 => (0..4usize, 1..90usize).prop_map(|(which, rows)| Step::Feed { which, rows }),
        6 => (0..4usize).prop_map(|which| Step::SwapOut { which }),
        4 => (0..4usize).prop_map(|which| Step::SwapIn { which }),
        2 => (0..4usize, any::<bool>()).prop_map(|(which, keeps)| Step::Close { which, keeps }),
    ]
}

/// Writes up to `rows` tokens of a sequence that has all its pages, as far as it may grow.
fn feed(backend: &mut Writes, running: &mut [Running], which: usize, rows: usize) {
    let r = &mut running[which];
    let to = r.tokens.len().min(r.fed + rows);
    if r.sequence.n_swapped() > 0 || !r.sequence.grow(backend, to).unwrap() {
        return;
    }
    let slot = r.sequence.slot();
    for at in running[which].fed..to {
        let page = backend.tables[0][&slot][at / 64];
        for other in running.iter().filter(|o| o.sequence.slot() != slot) {
            let theirs = &backend.tables[0][&other.sequence.slot()];
            let theirs = &theirs[..other.sequence.n_pages()];
            assert!(!theirs.contains(&page), "page {page} is read and written");
        }
        backend.write(slot, at, running[which].tokens[at]);
    }
    running[which].fed = to;
}

fn check(backend: &Writes, r: &Running) {
    let there = r.fed.min(r.sequence.capacity());
    assert_eq!(backend.tokens(r.sequence.slot(), there), &r.tokens[..there]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whichever pages are swapped out and in, in any order: each sequence reads what it wrote,
    /// nobody writes what another reads, and in the end everything is free.
    #[test]
    fn pages_come_back_as_they_were(steps in prop::collection::vec(step(), 1..80)) {
        let (n_slots, n_pages) = (4, 8);
        let mut backend = Writes::new(n_slots, n_pages, 0);
        let pool = BlockManager::new(backend.limits(), true, Arc::default()).with_swap_space(99);
        prop_assert!(pool.budget(0).tight);
        let mut running: Vec<Running> = Vec::new();
        for step in steps {
            match step {
                Step::Open { kind, n, more } => {
                    let most = (n + more).min(N_CTX as usize);
                    let tokens = prompt(kind, running.len(), most);
                    let span = Span { now: n, most };
                    let opened = pool.admit(&mut backend, span, &tokens[..n], 0, None).unwrap();
                    if let Some(sequence) = opened {
                        let fed = sequence.position;
                        running.push(Running { sequence, tokens, fed });
                    }
                }
                Step::Feed { which, rows } if which < running.len() => {
                    feed(&mut backend, &mut running, which, rows);
                }
                Step::SwapOut { which } if which < running.len() => {
                    let r = &mut running[which];
                    r.sequence.swap_out(&mut backend, r.fed).unwrap();
                }
                Step::SwapIn { which } if which < running.len() => {
                    let r = &mut running[which];
                    let had = r.sequence.n_swapped();
                    let back = r.sequence.swap_in(&mut backend).unwrap();
                    let left = had.saturating_sub(usize::from(back));
                    prop_assert_eq!(r.sequence.n_swapped(), left);
                }
                Step::Close { which, keeps } if which < running.len() => {
                    let r = running.swap_remove(which);
                    let known = if keeps { r.fed } else { 0 };
                    r.sequence.close(&mut backend, &r.tokens[..known]).unwrap();
                }
                _ => {}
            }
            running.iter().for_each(|r| check(&backend, r));
        }
        for mut r in running.drain(..) {
            // All of it is there once others have gone.
            while r.sequence.n_swapped() > 0 && r.sequence.swap_in(&mut backend).unwrap() {}
            check(&backend, &r);
            r.sequence.close(&mut backend, &r.tokens[..r.fed]).unwrap();
        }
        prop_assert_eq!(available(&pool), (n_slots, n_pages - 1));
        prop_assert_eq!(pool.swapped(), 0);
        let all = [192, 256].map(|n| pool.open(&mut backend, n, &[]).unwrap());
        prop_assert!(all.iter().all(Option::is_some));
    }
}
