//! How many tokens a model drafts in a round: as many as give most tokens a second, which is measured, by
//! the number of sequences and the length of their texts. A round costs more than a step, and what it
//! gives depends on the text; where drafts lose, there are none.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::backend::ROUND_ROWS;

/// What a round counts for those before it.
const FADE: f64 = 0.97;

/// Rounds of a length whose times are not taken: lists of launches are captured in them.
const COLD: u32 = 2;

/// Rounds of a length that tell what it gives, at first.
const TRIED: u32 = 6;

/// Rounds of the best length between two that see whether another one is better by now, and how many while
/// none is.
const EVERY: u32 = 64;
const RAREST: u32 = 1024;

/// Where neither tokens nor time were counted, drafts of this length are tried first.
const FIRST: usize = 3;

/// What rounds of one length gave.
#[derive(Debug, Clone, Copy, Default)]
struct Length {
    rounds: u32,
    tokens: f64,
    seconds: f64,
}

impl Length {
    fn rate(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.tokens / self.seconds,
            false => 0.0,
        }
    }

    fn note(&mut self, tokens: usize, took: Duration) {
        self.rounds += 1;
        if self.rounds > COLD {
            self.tokens = FADE * self.tokens + tokens as f64;
            self.seconds = FADE * self.seconds + took.as_secs_f64();
        }
    }

    fn is_known(&self) -> bool {
        self.rounds >= COLD + TRIED
    }
}

/// Rounds of so many sequences over texts of one length.
#[derive(Debug, Clone)]
struct Place {
    /// By the tokens drafted, from none on.
    lengths: Vec<Length>,
    /// Rounds since another length was tried, and after how many the next is.
    since: u32,
    every: u32,
    /// The length tried last.
    tried: usize,
}

impl Place {
    fn new() -> Self {
        Self {
            lengths: Vec::new(),
            since: 0,
            every: EVERY,
            tried: 0,
        }
    }

    fn best(&self, most: usize) -> usize {
        let rates = self.lengths.iter().map(Length::rate).take(most + 1);
        // Of equals the fewer.
        let best = rates
            .enumerate()
            .rev()
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(0, |(drafted, _)| drafted)
    }

    /// Tokens to draft next, up to `most`.
    fn choose(&mut self, most: usize) -> usize {
        self.lengths
            .resize(self.lengths.len().max(most + 1), Length::default());
        // None is what others are measured by; then from the better one on, as long as that gives more.
        let first = [FIRST.min(most), 0];
        if let Some(drafted) = first.into_iter().find(|n| !self.lengths[*n].is_known()) {
            return drafted;
        }
        let best = self.best(most);
        let near = [best + 1, best.saturating_sub(1)];
        let unknown = |n: &usize| *n <= most && !self.lengths[*n].is_known();
        if let Some(drafted) = near.into_iter().find(unknown) {
            return drafted;
        }
        self.since += 1;
        if self.since < self.every {
            return best;
        }
        self.since = 0;
        let changed = best != self.tried;
        self.every = match changed {
            true => EVERY,
            false => (2 * self.every).min(RAREST),
        };
        self.tried = best;
        // A neighbour, now the longer one, now the shorter.
        match self.every.ilog2() % 2 {
            0 if best < most => best + 1,
            _ => best.saturating_sub(1),
        }
    }
}

/// Where rounds of so many sequences are counted, the longest text of which has so many tokens.
fn place_of(sequences: usize, tokens: usize) -> (u32, u32) {
    (sequences.max(1).ilog2(), (tokens / 1024 + 1).ilog2())
}

/// A round under way.
#[derive(Debug, Clone, Copy)]
struct Queued {
    place: (u32, u32),
    drafted: usize,
}

/// Chooses the length of rounds.
#[derive(Debug)]
pub struct Gate {
    /// Most tokens drafted; 0 of a model that drafts none.
    most: usize,
    /// Set where the caller has chosen.
    fixed: Option<usize>,
    places: HashMap<(u32, u32), Place>,
    queued: VecDeque<Queued>,
    /// From when on the oldest one runs, if nothing else came between.
    last: Option<Instant>,
}

impl Gate {
    /// For drafts of up to `most` tokens; `fixed`: always so many.
    pub fn new(most: usize, fixed: Option<usize>) -> Self {
        Self {
            most,
            fixed: fixed.map(|n| n.min(most)),
            places: HashMap::new(),
            queued: VecDeque::new(),
            last: None,
        }
    }

    /// Whether there is anything to choose.
    pub fn drafts(&self) -> bool {
        self.most > 0
    }

    /// Tokens to draft in a round of so many sequences, the longest text of which has so many tokens.
    pub fn choose(&mut self, sequences: usize, tokens: usize) -> usize {
        let room = (ROUND_ROWS / sequences.max(1)).saturating_sub(1);
        let most = self.most.min(room);
        if let Some(fixed) = self.fixed {
            return fixed.min(most);
        }
        let place = place_of(sequences, tokens);
        let own = self.places.entry(place);
        own.or_insert_with(Place::new).choose(most)
    }

    /// Is told of a round that is queued.
    pub fn queue(&mut self, sequences: usize, tokens: usize, drafted: usize, now: Instant) {
        if self.queued.is_empty() {
            self.last = Some(now);
        }
        let place = place_of(sequences, tokens);
        self.queued.push_back(Queued { place, drafted });
    }

    /// Is told that the oldest `rounds` are over, which gave so many tokens.
    pub fn done(&mut self, rounds: usize, tokens: usize, now: Instant) {
        let done: Vec<Queued> = self.queued.drain(..rounds.min(self.queued.len())).collect();
        let Some((last, first)) = self.last.replace(now).zip(done.first().copied()) else {
            return;
        };
        let alike = |round: &Queued| (round.place, round.drafted) == (first.place, first.drafted);
        if !done.iter().all(alike) {
            return;
        }
        let took = now.duration_since(last) / done.len() as u32;
        let place = self.places.get_mut(&first.place);
        if let Some(length) = place.and_then(|place| place.lengths.get_mut(first.drafted)) {
            for _ in &done {
                length.note(tokens / done.len(), took);
            }
        }
    }

    /// Is told that something else runs: the time until the next round is over is not that round's.
    pub fn interrupt(&mut self) {
        self.last = None;
        self.queued.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds where each token is right with a chance, of a cost a drafted token in steps.
    fn run(right: f64, cost: f64, rounds: usize) -> (f64, Vec<usize>) {
        let mut gate = Gate::new(7, None);
        let mut now = Instant::now();
        let (mut tokens, mut time, mut word) = (0.0, 0.0, 1u64);
        let mut lengths = Vec::new();
        for _ in 0..rounds {
            let drafted = gate.choose(1, 100);
            gate.queue(1, 100, drafted, now);
            let mut gives = 1;
            for _ in 0..drafted {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if (word >> 33) as f64 / f64::from(1u32 << 31) >= right {
                    break;
                }
                gives += 1;
            }
            let took = 1.0 + cost * drafted as f64;
            now += Duration::from_secs_f64(took);
            (tokens, time) = (tokens + f64::from(gives), time + took);
            gate.done(1, gives as usize, now);
            lengths.push(drafted);
        }
        (tokens / time, lengths)
    }

    #[test]
    fn what_gives_most_is_drafted_and_nothing_where_drafts_lose() {
        // Of drafts that cost nothing, all; that are right as often as not and cost half a step, none.
        for (right, cost, least, best) in [(1.0, 0.0, 7, 7), (0.5, 0.6, 0, 0), (0.9, 0.1, 4, 7)] {
            let (_, lengths) = run(right, cost, 4000);
            let last = &lengths[3000..];
            let near = last.iter().filter(|n| (least..=best).contains(*n)).count();
            assert!(near > 950, "{right} {cost}: {:?}", &last[..100]);
        }
        // Less than a fiftieth is lost to trying.
        let (rate, _) = run(0.0, 1.0, 20_000);
        assert!(rate > 0.98, "{rate}");
    }

    #[test]
    fn rounds_that_something_came_between_are_not_timed() {
        let mut gate = Gate::new(3, None);
        let now = Instant::now();
        for i in 0..20 {
            let drafted = gate.choose(1, 1);
            gate.queue(1, 1, drafted, now);
            gate.interrupt();
            gate.done(1, 4, now + Duration::from_secs(i));
        }
        assert!(gate
            .places
            .values()
            .all(|place| place.lengths.iter().all(|n| n.rounds == 0)));
        assert_eq!(gate.choose(1, 1), 3);
    }

    #[test]
    fn a_round_has_room_for_all_its_sequences() {
        let mut gate = Gate::new(7, Some(5));
        assert_eq!(
            [1, 8, 10, 12, 16, 32, 33, 64].map(|n| gate.choose(n, 1)),
            [5, 5, 5, 4, 3, 1, 0, 0]
        );
        assert!(!Gate::new(0, None).drafts());
    }
}
