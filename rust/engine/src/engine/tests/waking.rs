//! Waiting for a ticket elsewhere than at it.
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn whoever_waits_elsewhere_is_woken_for_each_piece_and_for_the_end() {
    let engine = engine(1);
    let counter = Arc::new(Counter::default());
    let waker = Some(Waker::from(counter.clone()));
    let submitted = engine.submit_waking(&request("x", 7, 0), waker, Duration::ZERO);
    let ticket = submitted.unwrap().unwrap();
    let mut pieces = 0;
    loop {
        let woken = counter.0.load(Ordering::SeqCst);
        match ticket.next(Duration::ZERO).unwrap() {
            Wait::Item(_) => pieces += 1,
            Wait::End => break,
            Wait::TimedOut => {
                // Nothing was there: whatever comes wakes.
                let until = Instant::now() + Duration::from_secs(60);
                while counter.0.load(Ordering::SeqCst) == woken {
                    assert!(Instant::now() < until, "not woken after {pieces} pieces");
                    std::thread::yield_now();
                }
            }
        }
    }
    assert_eq!(pieces, 7);
    // A request that the engine never came to learns of its end too.
    let counter = Arc::new(Counter::default());
    let waker = Some(Waker::from(counter.clone()));
    let running = submit(&engine, &request("x", 100, 0));
    let waiting = engine.submit_waking(&request("x", 100, 0), waker, Duration::ZERO);
    engine.close();
    assert_eq!(
        waiting.unwrap().unwrap().next(Duration::ZERO),
        Err(queue::CLOSED)
    );
    assert!(counter.0.load(Ordering::SeqCst) > 0);
    drop(running);
}
