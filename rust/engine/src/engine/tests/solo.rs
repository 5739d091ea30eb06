//! Whatever comes and goes: each sequence equals its solo run, and nothing of it stays.
use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

/// A request, and what becomes of it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub request: Request,
    /// Milliseconds after the one before.
    after: u64,
    /// Pieces after which it is cancelled, by its ticket or by dropping that.
    cancelled: Option<(usize, bool)>,
}

/// Prompts of which many begin alike, of up to three pages.
fn prompts() -> impl Strategy<Value = Vec<u32>> {
    let token = |i: u32, kind: u32| 32 + (i * 7 + kind * 11) % 90;
    (0u32..3, 1u32..150, 0u32..4).prop_map(move |(kind, n, tail)| {
        let own = (0..tail * 5).map(|i| 40 + (i * i + tail) % 80);
        (0..n).map(|i| token(i, kind)).chain(own).collect()
    })
}

fn samplings() -> impl Strategy<Value = Params> {
    let temperature = prop_oneof![Just(0.0f32), 0.2f32..3.0];
    let penalty = prop_oneof![Just(1.0f32), 1.0f32..1.5];
    let bias = prop_oneof![3 => Just(BTreeMap::new()), 1 => Just(lookup::few())];
    let filters = (0usize..40, 0.3f32..=1.0);
    (any::<u64>(), temperature, filters, penalty, bias).prop_map(
        |(seed, temperature, (top_k, top_p), repeat_penalty, logit_bias)| Params {
            seed,
            temperature,
            top_k,
            top_p,
            repeat_penalty,
            logit_bias,
            logprobs: seed.is_multiple_of(3).then_some(2),
            ..Params::default()
        },
    )
}

pub fn requests() -> impl Strategy<Value = Asked> {
    let stop = prop_oneof![
        3 => Just(Vec::new()),
        // Many a text of bytes has one of these.
        1 => Just(vec!["e".to_owned(), "~~".to_owned()]),
    ];
    let cancelled = prop_oneof![4 => Just(None), 1 => (0usize..20, any::<bool>()).prop_map(Some)];
    let ends = (1usize..40, any::<bool>(), 0u32..300);
    let place = (
        -100i32..=100,
        0u64..4,
        prop_oneof![Just(0usize), 1usize..=31],
        prop_oneof![2 => Just(None), 1 => constrain::constraints().prop_map(Some)],
    );
    (prompts(), samplings(), stop, ends, cancelled, place).prop_map(
        |(prompt, sampling, stop, (max_tokens, ignore_eos, stop_token), cancelled, place)| {
            // A bias may leave none of the tokens that are allowed.
            let constraint = place
                .3
                .filter(|_| !ignore_eos && sampling.logit_bias.is_empty());
            Asked {
                request: Request {
                    prompt,
                    sampling,
                    max_tokens,
                    stop,
                    stop_token_ids: (stop_token < EOS)
                        .then_some(stop_token)
                        .into_iter()
                        .collect(),
                    shown_token_ids: Vec::new(),
                    ignore_eos,
                    timed_from: 0,
                    together: 0,
                    salt: Salt::default(),
                    priority: place.0,
                    asked: None,
                    prompt_lookup: place.2,
                    constraint,
                    thinking: None,
                },
                after: place.1,
                cancelled,
            }
        },
    )
}

/// What comes of it, and after how many pieces it was cut.
fn follow(ticket: Ticket<Piece>, cancelled: Option<(usize, bool)>) -> Option<Piece> {
    let Some((pieces, by_dropping)) = cancelled else {
        return Some(finish(&ticket).unwrap());
    };
    let mut whole = Piece::default();
    for _ in 0..pieces {
        match ticket.next(Duration::from_secs(60)).unwrap() {
            Wait::Item(piece) => whole.extend(piece),
            Wait::TimedOut => panic!("no piece in a minute"),
            Wait::End => panic!("no last piece"),
        }
        if whole.finished.is_some() {
            return Some(whole);
        }
    }
    if by_dropping {
        return None;
    }
    ticket.cancel();
    while whole.finished.is_none() {
        ticket.collect(&mut whole, POLL).unwrap();
    }
    Some(whole)
}

/// One at a time, without what others left.
fn solo() -> &'static Engine {
    static SOLO: OnceLock<Engine> = OnceLock::new();
    SOLO.get_or_init(|| {
        let folder = Folder::new();
        let path = folder.write("tiny.gguf", &model(|_, _| {}));
        let options = Options {
            prefix_cache: false,
            ..options(1)
        };
        Engine::load(path, &options, on).unwrap()
    })
}

#[test]
fn a_sequence_in_a_batch_equals_its_solo_run() {
    let engine = engine(3);
    let alone: Vec<Piece> = six()
        .iter()
        .map(|r| finish(&submit(&engine, r)).unwrap())
        .collect();
    let tickets: Vec<_> = six().iter().map(|r| submit(&engine, r)).collect();
    for (ticket, alone) in tickets.iter().zip(&alone) {
        let together = finish(ticket).unwrap();
        assert!(same(&together, alone), "{together:?} {alone:?}");
        let end = together.finished.unwrap();
        assert_eq!(end.reason, FinishReason::Length);
        assert_eq!(end.usage.completion, together.token_ids.len());
        assert_eq!(end.timings.decoded, together.token_ids.len() - 1);
        assert!(end.timings.sampling <= end.timings.decode && end.timings.load > 0.0);
    }
    // Different seeds, different texts: the comparison above compared something.
    assert_ne!(alone[0].token_ids[..20], alone[2].token_ids[..20]);
}

/// Nothing runs, waits or is held.
pub fn is_empty(engine: &Engine) -> bool {
    let Stats {
        queued,
        running,
        feeding,
        preempted,
        pages_swapped_out,
        pages,
        ..
    } = engine.stats().unwrap();
    (queued, running, feeding, pages.sequences) == (0, 0, 0, 0)
        && (preempted, pages_swapped_out) == (0, 0)
        && pages.free + pages.prefixes == pages.total
}

pub fn each_equals_its_solo_run(engine: &Engine, asked: &[Asked]) {
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for one in asked {
            std::thread::sleep(Duration::from_millis(one.after));
            let ticket = submit(engine, &one.request);
            running.push((one, scope.spawn(|| follow(ticket, one.cancelled))));
        }
        for (one, found) in running {
            let Some(found) = found.join().unwrap() else {
                continue;
            };
            let plain = Request {
                prompt_lookup: 0,
                ..one.request.clone()
            };
            let alone = finish(&submit(solo(), &plain)).unwrap();
            let (end, fresh) = (
                found.finished.clone().unwrap(),
                alone.finished.clone().unwrap(),
            );
            if end.reason == FinishReason::Cancelled {
                let n = found.token_ids.len();
                assert_eq!(found.token_ids, alone.token_ids[..n], "{one:?}");
                assert_eq!(end.usage.completion, n);
            } else {
                assert!(same(&found, &alone), "{one:?}: {found:?} {alone:?}");
                assert_eq!(
                    (end.reason, end.length_reason),
                    (fresh.reason, fresh.length_reason)
                );
                assert_eq!(end.stopped_by, fresh.stopped_by);
            }
        }
    });
    let late = Instant::now() + Duration::from_secs(5);
    while !is_empty(engine) {
        assert!(Instant::now() < late, "{:?}", engine.stats().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn random_requests_equal_their_solo_runs_and_leave_nothing() {
    let engines = [engine(3), engine(8)];
    let config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 30,
        ..ProptestConfig::with_cases(24)
    };
    let all = (any::<bool>(), prop::collection::vec(requests(), 1..14));
    proptest!(config, |((wide, asked) in all)| {
        each_equals_its_solo_run(&engines[usize::from(wide)], &asked);
    });
    let [narrow, wide] = engines.map(|engine| engine.stats().unwrap().done);
    assert!(narrow.requests + wide.requests > 50 && narrow.prefix_hits + wide.prefix_hits > 10);
    let (drafted, accepted) = (
        narrow.drafted_tokens + wide.drafted_tokens,
        narrow.accepted_tokens + wide.accepted_tokens,
    );
    assert!(
        drafted > accepted && accepted > 10,
        "{accepted} of {drafted}"
    );
}
