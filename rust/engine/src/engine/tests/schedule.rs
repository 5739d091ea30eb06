//! The scheduler alone, without a backend, threads or a clock: random traces of requests, in which a tiny
//! simulation does what each step says.
use proptest::prelude::*;

use crate::backend::{pages_of, STEPS_AHEAD};
use crate::engine::policy::{due_at, PRIORITY_STEP};
use crate::engine::scheduler::{
    schedule, Fetch, Limits, Phase, Reason, Seq, Stage, State, Step, Waiting,
};
use crate::pages::{Budget, Demand, Salt};

/// Rows of a pass over prompts.
const CHUNK: usize = 16;

/// Of the simulated clock, what a forward pass takes.
const PASS: i64 = 1_000_000;

const PRIORITIES: std::ops::RangeInclusive<i32> = -1..=1;

/// Passes by which the highest priority goes before the lowest.
const AHEAD: usize = 2 * PRIORITY_STEP.as_secs() as usize;

/// What is asked for, at pass number `at`, and cancelled so many passes later.
#[derive(Debug, Clone)]
struct Asked {
    at: usize,
    priority: i32,
    prompt: usize,
    answer: usize,
    cancel: Option<usize>,
}

impl Asked {
    fn due(&self) -> i64 {
        due_at(self.at as i64 * PASS, self.priority)
    }

    fn demand(&self) -> Demand {
        let most = pages_of(self.prompt + self.answer);
        let own = pages_of((self.prompt + STEPS_AHEAD).min(self.prompt + self.answer));
        Demand {
            own,
            most,
            owed: most - own,
        }
    }

    /// Passes that it takes by itself.
    fn passes(&self) -> usize {
        self.prompt.div_ceil(CHUNK) + self.answer
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let cancel = prop::option::weighted(0.2, 0..150usize);
    (0..120usize, PRIORITIES, 1..150usize, 1..100usize, cancel).prop_map(
        |(at, priority, prompt, answer, cancel)| Asked {
            at,
            priority,
            prompt,
            answer,
            cancel,
        },
    )
}

/// How large the simulated engine is, and how it behaves.
#[derive(Debug, Clone, Copy)]
struct Machine {
    slots: usize,
    pages: usize,
    host: usize,
    /// Whether a pass over prompts may be a decode step too, and steps are queued ahead.
    beside: bool,
    queues: bool,
    /// Whether a prefix takes two goes to fetch.
    slow_fetch: bool,
}

fn machine() -> impl Strategy<Value = Machine> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    // One whole sequence fits.
    (1..8usize, 4..10usize, 0..24usize, flags).prop_map(
        |(slots, pages, host, (beside, queues, slow_fetch))| Machine {
            slots,
            pages,
            host,
            beside,
            queues,
            slow_fetch,
        },
    )
}

/// A request in a slot.
struct Running {
    id: usize,
    slot: usize,
    number: u64,
    turn: i64,
    position: usize,
    drawn: usize,
    pages: usize,
    swapped: usize,
    preempted: bool,
    fetches: usize,
    /// Passes over prompts that it has waited for its next chunk.
    waited: usize,
}

/// An engine that computes nothing.
struct World {
    machine: Machine,
    asked: Vec<Asked>,
    passes: usize,
    /// Requests that have come and wait.
    queue: Vec<usize>,
    running: Vec<Running>,
    admitted: u64,
    settled: bool,
    stage: Stage,
    fed: bool,
    stalled: Option<usize>,
    /// By request at which pass it ended, and how many passes it has seen.
    ended: Vec<Option<usize>>,
}

impl World {
    fn new(machine: Machine, asked: Vec<Asked>) -> Self {
        Self {
            machine,
            passes: 0,
            queue: Vec::new(),
            running: Vec::new(),
            admitted: 0,
            settled: true,
            stage: Stage::Admit,
            fed: false,
            stalled: None,
            ended: vec![None; asked.len()],
            asked,
        }
    }

    fn budget(&self) -> Budget {
        let most = |r: &Running| self.asked[r.id].demand().most;
        let used: usize = self.running.iter().map(|r| r.pages).sum();
        let promised: usize = self.running.iter().map(most).sum();
        Budget {
            slots: self.machine.slots - self.running.len(),
            total: self.machine.pages,
            available: self.machine.pages - used,
            promised,
            owed: promised - used,
            host: self.machine.host,
            tight: true,
            ..Budget::default()
        }
    }

    fn seq(&self, r: &Running) -> Seq<'static> {
        let Asked {
            prompt,
            answer,
            priority,
            ..
        } = self.asked[r.id];
        let decodes = r.position == prompt;
        let next = if decodes {
            prompt + r.drawn + STEPS_AHEAD
        } else {
            0
        };
        let had = if r.preempted { r.pages + r.swapped } else { 0 };
        let wanted = pages_of(next).min(pages_of(prompt + answer)).max(had);
        Seq {
            slot: r.slot,
            place: (self.asked[r.id].due(), r.number),
            turn: due_at(r.turn, priority),
            phase: if decodes {
                Phase::Decode
            } else {
                Phase::Prefill
            },
            cancelled: self.is_cancelled(r.id),
            preempted: r.preempted,
            gang: 0,
            begun: r.fetches > 0,
            ready: r.fetches > usize::from(self.machine.slow_fetch),
            prompt: &[],
            salt: Salt::default(),
            position: r.position,
            rest: prompt - r.position,
            most: prompt - r.position,
            pages: r.pages,
            own_pages: r.pages,
            swapped_pages: r.swapped,
            lacks: wanted.saturating_sub(r.pages),
            short: 0,
        }
    }

    fn is_cancelled(&self, id: usize) -> bool {
        let Asked { at, cancel, .. } = self.asked[id];
        cancel.is_some_and(|after| at + after <= self.passes)
    }

    fn plan(&self, waiting: Option<usize>) -> Step {
        let waiting = waiting.map(|id| Waiting {
            due: self.asked[id].due(),
            demand: self.asked[id].demand(),
            gang: 0,
            refused: false,
        });
        let state = State {
            stage: self.stage,
            waiting,
            sequences: self.running.iter().map(|r| self.seq(r)).collect(),
            budget: self.budget(),
            settled: self.settled,
            fed: self.fed,
            time_left: false,
            stalled: self.stalled,
        };
        let limits = Limits {
            slots: self.machine.slots,
            chunk: &|_, wanted, _| wanted.min(CHUNK),
            beside: &|_| self.machine.beside,
            draft_rows: 32,
        };
        schedule(&state, &limits)
    }

    fn end(&mut self, id: usize) {
        assert_eq!(self.ended[id], None, "request {id} ends twice");
        self.ended[id] = Some(self.passes);
        self.running.retain(|r| r.id != id);
        self.queue.retain(|other| *other != id);
    }

    fn at(&mut self, slot: usize) -> &mut Running {
        let mut found = self.running.iter_mut().filter(|r| r.slot == slot);
        found.next().expect("a step names a slot that is taken")
    }

    fn arrive(&mut self) {
        for id in 0..self.asked.len() {
            let waits = self.ended[id].is_none() && !self.running.iter().any(|r| r.id == id);
            if waits && self.asked[id].at <= self.passes && !self.queue.contains(&id) {
                self.queue.push(id);
            }
        }
        let cancelled = self.queue.iter().filter(|id| self.is_cancelled(**id));
        let cancelled: Vec<usize> = cancelled.copied().collect();
        cancelled.into_iter().for_each(|id| self.end(id));
        self.queue.sort_by_key(|id| self.asked[*id].due());
    }

    /// One round, as an executor goes through it.
    fn round(&mut self) {
        (self.stage, self.fed) = (Stage::Admit, false);
        self.arrive();
        while let Some(id) = self.queue.first().copied() {
            if self.plan(Some(id)).admit.is_none() {
                break;
            }
            self.queue.remove(0);
            let due = self.asked[id].due();
            let behind = |r: &Running| r.preempted && self.asked[r.id].due() <= due;
            assert!(!self.running.iter().any(behind), "admitted before its turn");
            let taken = |slot: &usize| self.running.iter().any(|r| r.slot == *slot);
            let slot = (0..self.machine.slots).find(|slot| !taken(slot));
            self.running.push(Running {
                id,
                slot: slot.expect("admitted without a slot"),
                number: self.admitted,
                turn: self.asked[id].at as i64 * PASS,
                position: 0,
                drawn: 0,
                pages: self.asked[id].demand().own,
                swapped: 0,
                preempted: false,
                fetches: 0,
                waited: 0,
            });
            self.admitted += 1;
            self.check();
        }
        self.stage = Stage::SwapIn;
        let running = self.running.iter().map(|r| r.id);
        let cancelled: Vec<usize> = running.filter(|id| self.is_cancelled(*id)).collect();
        let (mut steps, mut prefills, mut fetched) = (0, 0, Vec::new());
        loop {
            let step = self.plan(None);
            self.stage = step.stage;
            if step.is_empty() {
                break;
            }
            steps += 1;
            assert!(steps < 100, "a round without an end: {step:?}");
            prefills += usize::from(!step.prefill.is_empty());
            assert!(prefills < 2, "those that decode wait for two passes");
            if let Some(fetch) = step.fetch {
                assert!(!fetched.contains(&fetch.slot), "a pass waits for a fetch");
                fetched.push(fetch.slot);
            }
            let over = !step.decode.is_empty();
            self.execute(step);
            self.check();
            if over {
                break;
            }
        }
        let ended = |id: &usize| self.ended[*id].is_some();
        assert!(cancelled.iter().all(ended), "{cancelled:?} go on");
        let work = !self.running.is_empty() || !self.queue.is_empty();
        assert!(steps > 0 || !work, "work, and an empty step");
        if !work {
            self.passes += 1;
        }
    }

    /// Pages and slots are within the budget, and what was swapped out fits the host's memory.
    fn check(&self) {
        let sum = |of: fn(&Running) -> usize| self.running.iter().map(of).sum::<usize>();
        assert!(sum(|r| r.pages) <= self.machine.pages, "pages");
        assert!(sum(|r| r.swapped) <= self.machine.host, "the host's pages");
        assert!(self.running.len() <= self.machine.slots, "slots");
    }

    fn execute(&mut self, step: Step) {
        for (slot, reason) in step.finish {
            assert_eq!(reason, Reason::Cancelled);
            let id = self.at(slot).id;
            self.end(id);
        }
        self.settled |= step.drain;
        for slot in step.preempt {
            assert!(self.settled, "a step may still use the pages");
            let place = |r: &Running| (self.asked[r.id].due(), r.number);
            let first = self.running.iter().min_by_key(|r| place(r));
            assert!(first.is_some_and(|r| r.slot != slot), "the first in line");
            self.at(slot).preempted = true;
        }
        for (slot, n) in step.swap_out {
            let r = self.at(slot);
            assert!(r.preempted && n <= r.pages && n > 0);
            (r.pages, r.swapped) = (r.pages - n, r.swapped + n);
        }
        for (slot, n) in step.swap_in {
            let r = self.at(slot);
            (r.pages, r.swapped) = (r.pages + n, r.swapped - n);
        }
        if let Some(slot) = step.resume {
            assert_eq!(self.at(slot).swapped, 0);
            self.at(slot).preempted = false;
        }
        for (slot, n) in step.grow {
            self.at(slot).pages += n;
        }
        if let Some(Fetch { slot, first, .. }) = step.fetch {
            self.at(slot).fetches += 1;
            let r = self.running.iter().find(|r| r.slot == slot);
            let ready = r.is_some_and(|r| self.seq(r).ready);
            self.fed |= first && !ready;
            self.stalled = (!first && !ready).then_some(slot);
        }
        if step.prefill.is_empty() && step.decode.is_empty() {
            return;
        }
        self.passes += 1;
        let rows: usize = step.prefill.iter().map(|chunk| chunk.rows).sum();
        assert!(rows <= CHUNK, "{rows} rows of prompts in a pass");
        let decoding = |r: &&Running| !r.preempted && r.position == self.asked[r.id].prompt;
        let decoding = self.running.iter().filter(decoding).count();
        let steps = !step.decode.is_empty();
        assert!(!steps || step.decode.len() == decoding, "one is left out");
        let feeds = usize::from(rows > 0);
        self.running.iter_mut().for_each(|r| r.waited += feeds);
        let mut drew = step.decode;
        let now = self.passes as i64 * PASS;
        for chunk in step.prefill {
            let id = self.at(chunk.slot).id;
            let prompt = self.asked[id].prompt;
            let r = self.at(chunk.slot);
            assert!(!r.preempted && chunk.rows > 0 && r.position + chunk.rows <= prompt);
            r.position += chunk.rows;
            (r.turn, r.waited) = (now, 0);
            assert_eq!(chunk.last, r.position == prompt);
            drew.extend(chunk.last.then_some(chunk.slot));
            (self.fed, self.stalled) = (true, None);
        }
        let most = self.machine.slots + AHEAD + self.asked.len();
        for r in &mut self.running {
            if r.preempted || r.position == self.asked[r.id].prompt {
                r.waited = 0;
            }
            assert!(r.waited <= most, "a prompt waits for {most} passes");
        }
        self.settled &= !self.machine.queues;
        for slot in drew {
            let id = self.at(slot).id;
            let Asked { prompt, answer, .. } = self.asked[id];
            let r = self.at(slot);
            r.drawn += 1;
            assert!(!r.preempted && r.position == prompt);
            assert!(prompt + r.drawn <= r.pages * 64, "a token without a page");
            if r.drawn == answer {
                self.end(id);
            }
        }
    }

    /// Passes within which a request ends: those of all that go before it, or had a slot when it came. A
    /// chunk of theirs may wait for one of each slot, and for those of a higher priority that have come
    /// since, until it counts as having waited for longer. A token may wait for a pass over prompts.
    fn bound(&self, id: usize) -> usize {
        let r = &self.asked[id];
        let before = self.asked.iter().enumerate().filter(|(other, q)| {
            let ran = q.at <= r.at && self.ended[*other].is_none_or(|end| end >= r.at);
            q.due() <= r.due() || ran
        });
        before
            .map(|(_, q)| {
                let chunks = q.prompt.div_ceil(CHUNK) + usize::from(self.machine.slow_fetch);
                chunks * (self.machine.slots + AHEAD) + 2 * q.passes()
            })
            .sum()
    }

    fn run(&mut self) {
        let work: usize = self.asked.iter().map(|q| q.at + 4 * q.passes() + 400).sum();
        let mut rounds = 0;
        while self.ended.iter().any(Option::is_none) {
            self.round();
            rounds += 1;
            assert!(rounds < 10 * work, "requests are lost: {:?}", self.ended);
        }
        for (id, end) in self.ended.iter().enumerate() {
            let took = end.unwrap() - self.asked[id].at;
            assert!(took <= self.bound(id), "request {id} took {took} passes");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever comes, is cancelled and fits: each request ends once and within its bound, the budgets of
    /// pages, rows and slots are held in every step, and where there is work no round is empty.
    #[test]
    fn every_request_ends_once_and_in_time_within_the_budgets(
        machine in machine(),
        asked in prop::collection::vec(asked(), 1..14),
    ) {
        World::new(machine, asked).run();
    }
}

#[test]
fn a_flood_of_a_higher_priority_starves_nobody() {
    let one = |at, priority| Asked {
        at,
        priority,
        prompt: 100,
        answer: 10,
        cancel: None,
    };
    // Those of the higher priority alone are more than there are slots for, all the time.
    let flood = (0..200).map(|i| one(i * 5, 1));
    let asked: Vec<Asked> = std::iter::once(one(1, -1)).chain(flood).collect();
    for slots in [1, 2] {
        let machine = Machine {
            slots,
            pages: 4,
            host: 4,
            beside: true,
            queues: false,
            slow_fetch: false,
        };
        let mut world = World::new(machine, asked.clone());
        world.run();
        let last = world.ended.iter().max().unwrap().unwrap();
        let low = world.ended[0].unwrap();
        assert!(low < last / 4, "it ends at {low} of {last} passes");
    }
}
