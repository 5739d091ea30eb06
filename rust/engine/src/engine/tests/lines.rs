//! The queue against a model of it: a list of who waits, searched from its front.
use proptest::prelude::*;

use super::super::queue::Work;
use super::*;

/// What callers and the engine's thread do.
#[derive(Debug, Clone)]
enum Step {
    /// Somebody of this priority asks, who has waited so many seconds already.
    Push(i32, u32),
    /// Of those that wait, one is cancelled.
    Cancel(usize),
    /// The next one is taken.
    Next,
    /// The next one is taken, and there is no room for it.
    PutBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let priority = prop_oneof![Just(0), -2i32..=2, -100i32..=100];
    let push = (priority, prop_oneof![Just(0u32), 0u32..60]);
    let step = prop_oneof![
        6 => push.prop_map(|(priority, waited)| Step::Push(priority, waited)),
        1 => any::<usize>().prop_map(Step::Cancel),
        4 => Just(Step::Next),
        1 => Just(Step::PutBack),
    ];
    prop::collection::vec(step, 1..400)
}

/// A job that waits: what the model knows of it.
#[derive(Debug, Clone)]
struct Waits {
    number: u32,
    /// Milliseconds, the least first.
    due: i64,
    cancelled: Arc<AtomicBool>,
}

fn job(number: u32, priority: i32, submitted: Instant, cancelled: Arc<AtomicBool>) -> Job {
    let (out, _) = mpsc::channel();
    Job {
        cancelled,
        submitted,
        priority,
        tokens: 1,
        work: Work::Logits {
            ids: vec![number],
            path: LogitsPath::Decode,
            out,
        },
    }
}

fn number(job: &Job) -> u32 {
    match &job.work {
        Work::Logits { ids, .. } => ids[0],
        _ => panic!("another kind of work"),
    }
}

fn taken(shared: &Shared) -> Option<Job> {
    match shared.next(false, 0.0) {
        ControlFlow::Continue(job) => job,
        ControlFlow::Break(()) => panic!("it was not closed"),
    }
}

/// The next one of the model: least due, and of equals the first.
fn expected(waiting: &mut Vec<Waits>) -> Option<Waits> {
    waiting.retain(|w| !w.cancelled.load(Ordering::Relaxed));
    let next = (0..waiting.len()).min_by_key(|i| waiting[*i].due)?;
    Some(waiting.remove(next))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn who_is_due_first_is_served_first(steps in steps()) {
        let shared = Shared::new();
        let start = Instant::now();
        let mut waiting: Vec<Waits> = Vec::new();
        for (count, step) in (0u32..).zip(steps) {
            match step {
                Step::Push(priority, waited) => {
                    // A clock of the model's own: one millisecond a step.
                    let at = i64::from(count) - 1000 * i64::from(waited);
                    let submitted = match u64::try_from(at) {
                        Ok(ms) => start + Duration::from_millis(ms),
                        Err(_) => start - Duration::from_millis(at.unsigned_abs()),
                    };
                    let due = at - 10_000 * i64::from(priority);
                    let cancelled = Arc::new(AtomicBool::new(false));
                    let one = job(count, priority, submitted, cancelled.clone());
                    let taken = shared.push(one, Duration::ZERO).unwrap().is_ok();
                    // No more than the limit go before it.
                    let before = waiting.iter().filter(|w| w.due <= due).count();
                    prop_assert_eq!(taken, before < 256);
                    if taken {
                        waiting.push(Waits { number: count, due, cancelled });
                    }
                }
                Step::Cancel(which) if !waiting.is_empty() => {
                    let which = which % waiting.len();
                    waiting[which].cancelled.store(true, Ordering::Relaxed);
                }
                Step::Cancel(_) => {}
                Step::Next => {
                    let next = expected(&mut waiting).map(|w| w.number);
                    prop_assert_eq!(taken(&shared).as_ref().map(number), next);
                }
                Step::PutBack => {
                    let (one, next) = (taken(&shared), expected(&mut waiting));
                    prop_assert_eq!(
                        one.as_ref().map(number),
                        next.as_ref().map(|w| w.number)
                    );
                    if let Some(one) = one {
                        shared.put_back(one);
                    }
                    waiting.splice(0..0, next);
                }
            }
            // Those that were cancelled are counted until they are looked at.
            prop_assert_eq!(shared.waiting(), waiting.len());
        }
        while let Some(next) = expected(&mut waiting) {
            prop_assert_eq!(taken(&shared).as_ref().map(number), Some(next.number));
        }
        prop_assert!(taken(&shared).is_none());
    }
}
