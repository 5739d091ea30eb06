//! The scheduling policy: priority with aging, and how long a pass may take.
//!
//! One rule orders the queue and the prompts in progress: the one due first goes first. A request is due
//! when it arrived, or had its last turn, and [`PRIORITY_STEP`] earlier for each step of its priority. So
//! a higher priority goes first, equal priorities are first come, first served (prompts take turns), and
//! none waits forever: a request that arrives later by more than its advantage is due later, whatever its
//! priority.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How much longer a request counts as having waited for each step of its priority.
pub const PRIORITY_STEP: Duration = Duration::from_secs(10);

/// The highest priority; the lowest is as far below 0.
pub const MAX_PRIORITY: i32 = 100;

/// Checks a priority.
///
/// # Errors
/// [`Error::Argument`].
pub fn check_priority(priority: i32) -> Result<()> {
    if (-MAX_PRIORITY..=MAX_PRIORITY).contains(&priority) {
        return Ok(());
    }
    Err(Error::Argument {
        name: "priority",
        value: priority.to_string(),
        reason: format!(
            "must be from -{MAX_PRIORITY} to {MAX_PRIORITY}; 0 is the default, higher goes first"
        ),
    })
}

/// When a request that waits since `came` is due, both in microseconds; the least goes first.
pub fn due_at(came: i64, priority: i32) -> i64 {
    came.saturating_sub(i64::from(priority).saturating_mul(micros(PRIORITY_STEP)))
}

/// [`due_at`] of an instant, from `epoch` on.
pub fn due(epoch: Instant, since: Instant, priority: i32) -> i64 {
    let came = match since.checked_duration_since(epoch) {
        Some(after) => micros(after),
        None => -micros(epoch - since),
    };
    due_at(came, priority)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// How long a running sequence may wait for its next step while a prompt is fed.
pub const SHARED_SLICE: Duration = Duration::from_millis(50);

/// How long a round of slices, one of each prompt, may take where nobody decodes: until a slice ends, a
/// cancel is not seen. A card's whole chunk fits, also of the largest models: in smaller ones it would
/// read their weights more often.
pub const ALONE_SLICE: Duration = Duration::from_millis(500);

/// How long a slice may take where `feeding` prompts are fed and others decode, whose last step took
/// `step`, or nobody does. Of steps that leave no time it takes a quarter as much more: the prompt would
/// otherwise wait for as many of them as it has tokens.
pub fn slice(step: Option<Duration>, feeding: usize) -> Duration {
    match step {
        Some(step) => SHARED_SLICE.saturating_sub(step).max(step / 4),
        None => (ALONE_SLICE / feeding.clamp(1, 1024) as u32).max(SHARED_SLICE),
    }
}

/// How long a pass over prompts may take that is a step too, of sequences whose last step took `step`: what
/// one may wait for its next token, or a quarter more than the step by itself.
pub fn beside(step: Duration) -> Duration {
    SHARED_SLICE.max(step + step / 4)
}

/// Whether a prompt of which nothing was fed does better to wait for another sequence, which has
/// `computed` so many tokens of its own prompt: where that will have a `page` at least that both begin
/// with, beyond the tokens `known` by now, and has not come so far yet.
pub fn worth_waiting(
    own: &[u32],
    known: usize,
    theirs: &[u32],
    computed: usize,
    page: usize,
) -> bool {
    // The last token's logits are wanted, and only whole pages of theirs are shared.
    let most = own.len().saturating_sub(1);
    let whole = theirs.len() / page * page;
    let alike = own.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let gain = alike.min(most).min(whole);
    gain >= known + page && computed < gain.next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_slice_and_a_step_together_take_what_a_sequence_may_wait() {
        for step in 0..=40 {
            assert_eq!(slice(Some(MS(step)), 3) + MS(step), SHARED_SLICE, "{step}");
        }
        // Slow steps: a quarter more.
        assert_eq!(slice(Some(MS(400)), 1), MS(100));
        assert_eq!((beside(MS(3)), beside(MS(400))), (SHARED_SLICE, MS(500)));
        assert_eq!(slice(None, 1), ALONE_SLICE);
        assert_eq!(slice(None, 4), ALONE_SLICE / 4);
        assert_eq!(slice(None, 1000), SHARED_SLICE);
    }

    #[test]
    fn a_priority_out_of_range_is_refused_with_its_numbers() {
        for fine in [-100, 0, 100] {
            assert_eq!(check_priority(fine), Ok(()));
        }
        for wrong in [-101, 101, i32::MIN, i32::MAX] {
            let text = check_priority(wrong).unwrap_err().to_string();
            let said = format!("priority = {wrong}: must be from -100 to 100");
            assert!(
                text.contains(&said) && text.contains("higher goes first"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_prompt_waits_only_for_pages_that_are_being_computed() {
        let own: Vec<u32> = (0..200).collect();
        let waits =
            |theirs: &[u32], known, computed| worth_waiting(&own, known, theirs, computed, 64);
        assert!(waits(&own, 0, 0) && waits(&own, 0, 191));
        assert!(!waits(&own, 0, 192), "all whole pages are there");
        assert!(waits(&own, 128, 0));
        assert!(!waits(&own, 130, 0), "a part of the third page is known");
        let mut other = own.clone();
        other[100] = 7;
        // A page, and of the next one a part.
        assert!(waits(&other, 0, 64) && !waits(&other, 0, 128));
        assert!(!waits(&other, 64, 64));
        assert!(!waits(&own[..63], 0, 0) && waits(&own[..64], 0, 0));
        assert!(!waits(&[9], 0, 0) && !waits(&[], 0, 0));
    }

    proptest! {
        #[test]
        fn nobody_waits_for_ever(came in 0u64..1_000_000, low in -100i32..=100, high in -100i32..=100) {
            let epoch = Instant::now();
            let since = epoch + MS(came);
            let own = due(epoch, since, low);
            // Who came first goes first within one priority.
            prop_assert!(own < due(epoch, since + MS(1), low));
            // A higher priority goes first, of those that come by then; behind that none does.
            let ahead = PRIORITY_STEP * u32::try_from((high - low).max(0)).unwrap();
            let (just, late) = (since + ahead - MS(1).min(ahead), since + ahead + MS(1));
            prop_assert!(high <= low || due(epoch, just, high) < own);
            prop_assert!(due(epoch, late, high) > own);
        }
    }
}
