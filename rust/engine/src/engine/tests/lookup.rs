//! Sequences that are drafted from their own text.
use super::*;

/// A prompt that repeats itself, and a text that does: of three letters the most probable one is taken.
fn repeating(n: usize, max_tokens: usize, prompt_lookup: usize) -> Request {
    let text = "let total = total + values[i]; ".repeat(3);
    let mut request = request(&text[..n], max_tokens, 0);
    request.sampling.temperature = 0.0;
    request.sampling.logit_bias = few();
    request.prompt_lookup = prompt_lookup;
    request
}

/// No other letters than these.
pub fn few() -> std::collections::BTreeMap<u32, f32> {
    b"abc"
        .map(|letter| (u32::from(letter), f32::INFINITY))
        .into()
}

fn without(request: &Request) -> Request {
    Request {
        prompt_lookup: 0,
        ..request.clone()
    }
}

fn usage(piece: &Piece) -> Usage {
    piece.finished.as_ref().unwrap().usage
}

fn steps(faults: &Faults) -> usize {
    let log = faults.log.lock().unwrap();
    log.iter().filter(|did| **did == Did::Step).count()
}

#[test]
fn lookups_save_steps_and_change_nothing_else() {
    let faults = Faults::default();
    let engine = engine_with(1, faults.clone());
    let asked = repeating(60, 120, 7);
    let plain = finish(&submit(&engine, &without(&asked))).unwrap();
    let plain_steps = steps(&faults);
    assert_eq!((usage(&plain).drafted, usage(&plain).accepted), (0, 0));
    let drafted = finish(&submit(&engine, &asked)).unwrap();
    assert!(same(&drafted, &plain), "{drafted:?} {plain:?}");
    let Usage {
        drafted, accepted, ..
    } = usage(&drafted);
    assert!(
        accepted > 40 && drafted >= accepted,
        "{accepted} of {drafted}"
    );
    // Each token that was accepted is a step less.
    assert_eq!(steps(&faults) - plain_steps, plain_steps - accepted);
    let done = engine.stats().unwrap().done;
    let counted = (done.drafted_tokens, done.accepted_tokens);
    assert_eq!(counted, (drafted as u64, accepted as u64));
}

#[test]
fn sequences_with_and_without_lookups_run_together() {
    for max_batch in [3, 8] {
        let engine = engine(max_batch);
        let mut asked: Vec<Request> = (0..8).map(|i| repeating(20 + 5 * i, 60 + i, 31)).collect();
        asked
            .iter_mut()
            .step_by(3)
            .for_each(|r| r.prompt_lookup = 0);
        asked.extend(six());
        let alone: Vec<Piece> = asked
            .iter()
            .map(|r| finish(&submit(&engine, &without(r))).unwrap())
            .collect();
        let tickets: Vec<_> = asked.iter().map(|r| submit(&engine, r)).collect();
        let mut accepted = 0;
        for (ticket, alone) in tickets.iter().zip(&alone) {
            let together = finish(ticket).unwrap();
            assert!(same(&together, alone), "{together:?} {alone:?}");
            accepted += usage(&together).accepted;
        }
        assert!(accepted > 50, "{accepted}");
    }
}

#[test]
fn a_text_that_stops_it_inside_a_draft_is_the_end() {
    let engine = engine(1);
    let whole = finish(&submit(&engine, &repeating(60, 100, 0))).unwrap();
    for n in [2, 9, 30, 41] {
        // Whole characters of the text before the n-th token's end.
        let mut asked = repeating(60, 100, 15);
        let stop: String = whole.text.chars().skip(n).take(2).collect();
        asked.stop = vec![stop.clone()];
        let plain = finish(&submit(&engine, &without(&asked))).unwrap();
        let drafted = finish(&submit(&engine, &asked)).unwrap();
        assert!(same(&drafted, &plain), "{stop:?}: {drafted:?} {plain:?}");
        let by = drafted.finished.unwrap().stopped_by;
        assert_eq!(by, Some(StoppedBy::Text(stop)));
    }
}

#[test]
fn what_a_drafted_sequence_leaves_is_read_by_the_next_turn() {
    let (engine, fresh) = (engine(1), engine(1));
    let first = repeating(60, 90, 7);
    let answer = finish(&submit(&engine, &first)).unwrap();
    assert!(usage(&answer).accepted > 20);
    let mut turn = repeating(60, 30, 7);
    turn.prompt.extend(&answer.token_ids);
    turn.prompt.extend([33, 34]);
    let again = finish(&submit(&engine, &turn)).unwrap();
    // All but the token drawn last, which nobody read.
    assert_eq!(usage(&again).cached, 60 + 89);
    let wanted = finish(&submit(&fresh, &without(&turn))).unwrap();
    assert!(same(&again, &wanted), "{again:?} {wanted:?}");
}

#[test]
fn a_cancel_while_drafts_are_verified_leaves_nothing() {
    let faults = Faults {
        delay: Duration::from_millis(2),
        ..Faults::default()
    };
    let engine = engine_with(2, faults);
    let plain = finish(&submit(&engine, &repeating(50, 140, 0))).unwrap();
    for pieces in [0, 1, 8] {
        let ticket = submit(&engine, &repeating(50, 140, 7));
        for _ in 0..pieces {
            ticket.next(Duration::from_secs(30)).unwrap();
        }
        ticket.cancel();
        let mut cut = Piece::default();
        while cut.finished.is_none() {
            ticket.collect(&mut cut, POLL).unwrap();
        }
        assert_eq!(reason(&cut), FinishReason::Cancelled);
    }
    let late = Instant::now() + Duration::from_secs(30);
    while engine.stats().unwrap().pages.sequences > 0 {
        assert!(Instant::now() < late);
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = finish(&submit(&engine, &repeating(50, 140, 7))).unwrap();
    assert!(same(&after, &plain));
}

#[test]
fn the_context_ends_a_drafted_sequence_where_it_ends_a_plain_one() {
    let engine = engine(1);
    for n in 88..=92 {
        let asked = repeating(n, 500, 31);
        let plain = finish(&submit(&engine, &without(&asked))).unwrap();
        let drafted = finish(&submit(&engine, &asked)).unwrap();
        assert!(same(&drafted, &plain));
        assert_eq!(drafted.token_ids.len(), N_CTX as usize - n);
        assert_eq!(
            drafted.finished.unwrap().length_reason,
            Some(LengthReason::Context)
        );
    }
}

#[test]
fn lookups_out_of_range_are_refused() {
    let asked = repeating(20, 4, MOST_DRAFTED + 1);
    let refused = engine(1).submit(&asked, Duration::ZERO).map(|_| ());
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("prompt_lookup_num_tokens = 32: must be from 0 to 31"),
        "{text}"
    );
}
