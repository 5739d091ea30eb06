//! Who goes first, for how long, and what the engine says of it.
use super::*;
use crate::backend::PAGE_TOKENS;

const SECOND: Duration = Duration::from_secs(1);
const MS: fn(u64) -> Duration = Duration::from_millis;

/// A prompt of `n` tokens that begins with `first` and has nothing in common with another.
fn long(first: u32, n: usize, max_tokens: usize) -> Request {
    let mut prompt = vec![first; n];
    prompt[n - 1] = 65;
    Request {
        prompt,
        ..request("", max_tokens, 7)
    }
}

fn of_priority(priority: i32, request: Request) -> Request {
    Request {
        priority,
        ..request
    }
}

/// Waits until `log` says enough.
fn until(faults: &Faults, enough: impl Fn(&[Did]) -> bool) {
    let late = Instant::now() + 60 * SECOND;
    while !enough(&faults.log.lock().unwrap()) {
        assert!(Instant::now() < late, "{:?}", faults.log.lock().unwrap());
        std::thread::sleep(MS(1));
    }
}

/// The prompts of a log in the order in which their first rows were fed.
fn order(log: &[Did]) -> Vec<u32> {
    let mut firsts = Vec::new();
    for did in log {
        match did {
            Did::Fed(first, _) if !firsts.contains(first) => firsts.push(*first),
            _ => {}
        }
    }
    firsts
}

fn rows_of(did: &Did) -> usize {
    match did {
        Did::Fed(_, rows) => *rows,
        Did::Step => 0,
    }
}

fn is_step(did: &Did) -> bool {
    *did == Did::Step
}

#[test]
fn a_prompt_keeps_no_running_sequence_waiting_for_more_than_fifty_milliseconds() {
    for steps_beside in [true, false] {
        slices_keep_to_their_time(steps_beside);
    }
}

fn slices_keep_to_their_time(steps_beside: bool) {
    // A row takes a millisecond; a step, and every call, five more. The machine may be slower than
    // that, never faster, so that slices can only be smaller than they have to be.
    let faults = Faults {
        delay: MS(5),
        row_delay: MS(1),
        steps_beside,
        ..Faults::default()
    };
    let engine = engine_with(3, faults.clone());
    // Its one slice is of a pace that is not counted: kernels may be compiled in it.
    let running = submit(&engine, &long(1, 1, 190));
    until(&faults, |log| {
        log.iter().filter(|did| is_step(did)).count() > 3
    });
    let prompts: Vec<_> = (3..=4).map(|i| submit(&engine, &long(i, 150, 1))).collect();
    for ticket in &prompts {
        finish(ticket).unwrap();
    }
    running.cancel();
    let log = faults.log.lock().unwrap().clone();
    let steps = log.iter().position(is_step).unwrap();
    let mut most = 0;
    for between in log[steps..].split(is_step) {
        let rows: Vec<usize> = between.iter().map(rows_of).collect();
        let took = 5 + rows.iter().map(|rows| 5 + rows).sum::<usize>();
        assert!(took <= 50, "a step behind slices of {rows:?} rows");
        most = most.max(rows.iter().sum());
    }
    let first = log[steps..].iter().find(|did| !is_step(did));
    assert!(
        matches!(first, Some(Did::Fed(_, ..=8))),
        "the first slice of an unknown pace: {first:?}"
    );
    assert!(most > 8, "slices of {most} rows: the time is not used");
}

#[test]
fn a_prompt_and_a_step_are_one_pass() {
    let faults = Faults {
        delay: MS(1),
        ..Faults::default()
    };
    let engine = engine_with(3, faults.clone());
    let running = submit(&engine, &long(1, 1, 190));
    until(&faults, |log| {
        log.iter().filter(|did| is_step(did)).count() > 3
    });
    faults.passes.lock().unwrap().clear();
    finish(&submit(&engine, &long(2, 190, 1))).unwrap();
    running.cancel();
    let passes = faults.passes.lock().unwrap().clone();
    assert!(passes.len() > 2, "{passes:?}");
    assert!(passes.iter().all(|pass| *pass == (1, true)), "{passes:?}");
    // Between two parts of the prompt there is that one step.
    let log = faults.log.lock().unwrap().clone();
    let fed = |did: &Did| matches!(did, Did::Fed(2, _));
    let first = log.iter().position(fed).unwrap();
    let last = log.iter().rposition(fed).unwrap();
    let steps = log[first..last].iter().filter(|did| is_step(did)).count();
    assert_eq!(steps, passes.len() - 1, "{log:?}");
}

#[test]
fn short_prompts_share_a_pass() {
    // Alone, and beside one that decodes.
    for beside in [false, true] {
        let gate = Arc::new(Barrier::new(2));
        let faults = Faults {
            delay: MS(2),
            gate: Some(gate.clone()),
            ..Faults::default()
        };
        let engine = engine_with(8, faults.clone());
        // While logits are computed the prompts come.
        let logits = engine.logits(&[1, 2], LogitsPath::Prefill, POLL).unwrap();
        let running = beside.then(|| submit(&engine, &long(1, 1, 190)));
        let short: Vec<_> = (2..8).map(|i| submit(&engine, &long(i, 3, 5))).collect();
        gate.wait();
        let found: Vec<Piece> = short.iter().map(|ticket| finish(ticket).unwrap()).collect();
        drop((logits, running));
        let passes = faults.passes.lock().unwrap().clone();
        let most = passes.iter().map(|(parts, _)| *parts).max();
        assert!(most > Some(2), "{passes:?}");
        for (i, piece) in (2..8).zip(&found) {
            let alone = finish(&submit(&engine, &long(i, 3, 5))).unwrap();
            assert!(same(piece, &alone), "{i}");
        }
    }
}

#[test]
fn short_prompts_share_what_a_step_leaves() {
    let faults = Faults {
        delay: MS(2),
        ..Faults::default()
    };
    let engine = engine_with(8, faults.clone());
    let running = submit(&engine, &long(1, 1, 190));
    let steps = |log: &[Did]| log.iter().filter(|did| is_step(did)).count();
    until(&faults, |log| steps(log) > 3);
    // The first two are of a pace that is not known.
    for i in 2..4 {
        finish(&submit(&engine, &long(i, 3, 1))).unwrap();
    }
    let short: Vec<_> = (4..11).map(|i| submit(&engine, &long(i, 3, 1))).collect();
    for ticket in &short {
        finish(ticket).unwrap();
    }
    running.cancel();
    let log = faults.log.lock().unwrap().clone();
    let most = log.split(is_step).map(<[Did]>::len).max();
    assert!(most > Some(1), "one prompt a step: {log:?}");
}

#[test]
fn prompts_take_turns_so_that_a_short_one_does_not_wait_for_long_ones() {
    let faults = Faults {
        row_delay: MS(2),
        ..Faults::default()
    };
    let engine = engine_with(4, faults.clone());
    let long_ones: Vec<_> = (1..=2).map(|i| submit(&engine, &long(i, 190, 1))).collect();
    until(&faults, |log| !log.is_empty());
    finish(&submit(&engine, &long(3, 20, 1))).unwrap();
    let log = faults.log.lock().unwrap().clone();
    let fed = |prompt| -> usize {
        let rows = log.iter().filter_map(|did| match did {
            Did::Fed(first, rows) if *first == prompt => Some(*rows),
            _ => None,
        });
        rows.sum()
    };
    // Both have gone on, and neither is done.
    for prompt in [1, 2] {
        let rows = fed(prompt);
        assert!((1..190).contains(&rows), "{rows} of prompt {prompt}");
    }
    for ticket in &long_ones {
        finish(ticket).unwrap();
    }
}

#[test]
fn requests_go_by_priority_and_within_one_by_when_they_came() {
    let faults = Faults {
        delay: MS(5),
        ..Faults::default()
    };
    let engine = engine_with(1, faults.clone());
    let running = submit(&engine, &long(1, 5, 100));
    until(&faults, |log| !log.is_empty());
    let waiting: Vec<_> = [(2, 0), (3, -1), (4, 5), (5, 0), (6, 100), (7, 5), (8, -100)]
        .into_iter()
        .map(|(first, priority)| submit(&engine, &of_priority(priority, long(first, 5, 1))))
        .collect();
    // It came long ago, and so is due before those of priority 5, not before that of 100.
    let old = Request {
        asked: Instant::now().checked_sub(51 * SECOND),
        ..long(9, 5, 1)
    };
    let old = submit(&engine, &old);
    assert_eq!(engine.stats().unwrap().queued, 8);
    running.cancel();
    for ticket in waiting.iter().chain([&old]) {
        finish(ticket).unwrap();
    }
    assert_eq!(
        order(&faults.log.lock().unwrap()),
        [1, 6, 9, 4, 7, 2, 5, 3, 8]
    );
}

#[test]
fn of_prompts_that_feed_the_one_of_higher_priority_goes_first() {
    let faults = Faults {
        row_delay: MS(2),
        ..Faults::default()
    };
    let engine = engine_with(3, faults.clone());
    let low = submit(&engine, &long(1, 190, 1));
    until(&faults, |log| !log.is_empty());
    let high = submit(&engine, &of_priority(1, long(2, 190, 1)));
    finish(&high).unwrap();
    let log = faults.log.lock().unwrap().clone();
    let begun = log.iter().position(|did| matches!(did, Did::Fed(2, _)));
    let between = &log[begun.unwrap()..];
    assert!(
        between.iter().all(|did| !matches!(did, Did::Fed(1, _))),
        "{between:?}"
    );
    finish(&low).unwrap();
}

#[test]
fn a_full_queue_lets_a_higher_priority_in() {
    let faults = Faults {
        delay: MS(20),
        ..Faults::default()
    };
    let engine = engine_with(1, faults);
    let mut tickets = Vec::new();
    while let Some(ticket) = engine.submit(&long(1, 1, 150), Duration::ZERO).unwrap() {
        tickets.push(ticket);
    }
    let higher = of_priority(1, long(2, 1, 1));
    let first = engine.submit(&higher, Duration::ZERO).unwrap();
    assert!(first.is_some());
    // A request that has waited as long as a step of priority counts is admitted too.
    let waited = |seconds: u32| Request {
        asked: Instant::now().checked_sub(seconds * SECOND),
        ..long(3, 1, 1)
    };
    assert!(engine
        .submit(&waited(11), Duration::ZERO)
        .unwrap()
        .is_some());
    let text = engine
        .submit(&of_priority(101, long(1, 1, 1)), POLL)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("priority = 101: must be from -100 to 100"),
        "{text}"
    );
}

#[test]
fn a_prompt_that_begins_like_a_long_one_waits_for_what_they_share_alone() {
    let faults = Faults {
        row_delay: MS(3),
        ..Faults::default()
    };
    let engine = engine_with(2, faults.clone());
    let whole = submit(&engine, &long(1, 190, 1));
    until(&faults, |log| !log.is_empty());
    // Alike for a page, and then not.
    let mut alike = long(1, PAGE_TOKENS, 1);
    alike.prompt[PAGE_TOKENS - 1] = 1;
    alike.prompt.extend([9; 10]);
    let piece = finish(&submit(&engine, &alike)).unwrap();
    assert_eq!(piece.finished.unwrap().usage.cached, PAGE_TOKENS);
    let stats = engine.stats().unwrap();
    assert_eq!(
        (stats.running, stats.feeding),
        (1, 1),
        "the long one is not done"
    );
    finish(&whole).unwrap();
}

#[test]
fn the_engine_says_what_goes_on() {
    let faults = Faults {
        delay: MS(5),
        ..Faults::default()
    };
    let engine = engine_with(2, faults.clone());
    let before = engine.stats().unwrap();
    let pages = before.pages;
    assert_eq!(
        (pages.free, pages.sequences, pages.prefixes),
        (pages.total, 0, 0)
    );
    assert_eq!(pages.total, engine.loaded().limits.n_pages - 1);
    assert_eq!((before.slots, before.running, before.queued), (2, 0, 0));
    assert_eq!(before.states, Places::default());
    assert_eq!((before.done, before.graphs), (Done::default(), None));

    let tickets: Vec<_> = (1..=5).map(|i| submit(&engine, &long(i, 70, 60))).collect();
    until(&faults, |log| {
        log.iter().filter(|did| is_step(did)).count() > 3
    });
    let during = engine.stats().unwrap();
    assert_eq!((during.running, during.feeding, during.queued), (2, 0, 3));
    // Each holds the pages of what it has so far, one of which its prompt has filled.
    assert_eq!((during.pages.sequences, during.pages.prefixes), (4, 0));
    assert!(during.done.generated_rate > 0.0 && during.done.prompt_rate > 0.0);
    for ticket in &tickets {
        assert_eq!(finish(ticket).unwrap().token_ids.len(), 60);
    }
    finish(&submit(&engine, &long(5, 70, 60))).unwrap();

    let after = engine.stats().unwrap();
    assert_eq!((after.running, after.feeding, after.queued), (0, 0, 0));
    assert_eq!(after.pages.sequences, 0);
    assert!(after.pages.prefixes > 0);
    assert_eq!(after.pages.free + after.pages.prefixes, pages.total);
    let done = after.done;
    assert_eq!((done.requests, done.prefix_hits), (6, 1));
    assert_eq!((done.prompt_tokens, done.cached_tokens), (351, 69));
    assert_eq!(done.generated_tokens, 360);
    engine.close();
    assert!(matches!(engine.stats(), Err(Error::Closed { .. })));
}
