//! Waiting for a ticket elsewhere than at it.
use super::bell::Together;
use super::*;

/// Notes whom each ring was for.
#[derive(Default)]
struct Rings(Mutex<Vec<Vec<u64>>>);

impl Bell for Rings {
    fn ring(&self, numbers: &[u64]) {
        self.0.lock().unwrap().push(numbers.to_vec());
    }
}

impl Rings {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn caller(self: &Arc<Self>, number: u64, at_end: bool) -> Option<Caller> {
        let bell = self.clone();
        Some(Caller {
            bell,
            number,
            at_end,
        })
    }
}

#[test]
fn a_waiting_thread_is_woken_for_each_piece_and_for_the_end() {
    let engine = engine(1);
    let rings = Arc::new(Rings::default());
    let caller = rings.caller(1, false);
    let submitted = engine.submit_waking(&request("x", 7, 0), caller, Duration::ZERO);
    let ticket = submitted.unwrap().unwrap();
    let mut pieces = 0;
    loop {
        let woken = rings.count();
        match ticket.next(Duration::ZERO).unwrap() {
            Wait::Item(_) => pieces += 1,
            Wait::End => break,
            Wait::TimedOut => {
                // Nothing was there: whatever comes wakes.
                let until = Instant::now() + Duration::from_secs(60);
                while rings.count() == woken {
                    assert!(Instant::now() < until, "not woken after {pieces} pieces");
                    std::thread::yield_now();
                }
            }
        }
    }
    assert_eq!(pieces, 7);
    // A request that the engine never came to learns of its end too.
    let rings = Arc::new(Rings::default());
    let caller = rings.caller(1, false);
    let running = submit(&engine, &request("x", 100, 0));
    let waiting = engine.submit_waking(&request("x", 100, 0), caller, Duration::ZERO);
    engine.close();
    assert_eq!(
        waiting.unwrap().unwrap().next(Duration::ZERO),
        Err(queue::CLOSED)
    );
    assert!(rings.count() > 0);
    drop(running);
}

#[test]
fn what_one_step_gives_eight_sequences_rings_once() {
    const TOKENS: usize = 60;
    let engine = engine(8);
    let rings = Arc::new(Rings::default());
    let tickets: Vec<_> = (0..8)
        .map(|i| {
            let asked = request("x", TOKENS, i);
            let submitted = engine.submit_waking(&asked, rings.caller(i, false), Duration::ZERO);
            submitted.unwrap().unwrap()
        })
        .collect();
    for ticket in &tickets {
        let mut whole = Piece::default();
        ticket.collect(&mut whole, Duration::from_secs(60)).unwrap();
        assert_eq!(whole.token_ids.len(), TOKENS);
    }
    engine.close();
    let rings = rings.0.lock().unwrap();
    let told: usize = rings.iter().map(Vec::len).sum();
    // Each piece, and the end of each sequence beside its last piece.
    assert_eq!(told, 8 * (TOKENS + 1));
    let runs = |i: u64| {
        let of = |ring: &Vec<u64>| ring.contains(&i);
        rings.iter().position(of).unwrap()..=rings.iter().rposition(of).unwrap()
    };
    let runs: Vec<_> = (0..8).map(|i| (i, runs(i))).collect();
    let lacks = |at: usize, ring: &[u64]| {
        let mut running = runs.iter().filter(|(_, runs)| runs.contains(&at));
        running.any(|(i, _)| !ring.contains(i))
    };
    // One that comes while others run has its first token, and that alone, out before their step.
    let partial = rings.iter().enumerate().filter(|(at, r)| lacks(*at, r));
    let partial = partial.count();
    assert!(
        partial <= 16,
        "{partial} of {} rings: {rings:?}",
        rings.len()
    );
}

#[test]
fn who_waits_for_the_end_is_called_once() {
    let engine = engine(1);
    let rings = Arc::new(Rings::default());
    let submitted =
        engine.submit_waking(&request("x", 7, 0), rings.caller(3, true), Duration::ZERO);
    let ticket = submitted.unwrap().unwrap();
    let mut whole = Piece::default();
    ticket.collect(&mut whole, Duration::from_secs(60)).unwrap();
    engine.close();
    assert_eq!(*rings.0.lock().unwrap(), [[3]]);
}

#[test]
fn bells_that_wait_ring_once_each_and_at_the_outer_end() {
    let (a, b) = (Arc::new(Rings::default()), Arc::new(Rings::default()));
    let outer = Together::begin();
    for number in [1, 2] {
        let _inner = Together::begin();
        a.caller(number, false).unwrap().news();
        b.caller(10 * number, false).unwrap().news();
    }
    assert_eq!((a.count(), b.count()), (0, 0));
    drop(outer);
    assert_eq!(*a.0.lock().unwrap(), [[1, 2]]);
    assert_eq!(*b.0.lock().unwrap(), [[10, 20]]);
    a.caller(3, false).unwrap().news();
    assert_eq!(a.count(), 2);
}
