//! Prompts that begin alike.
use proptest::prelude::*;

use super::pages::backend;
use super::*;
use crate::backend::{HostMemory, Kind, Prefaulted, Storage, TextPart, Windows};
use crate::pages::{BlockManager, Sequence};

/// As many tokens; two of the same `kind` begin alike for 50 tokens, and go on by `seed`.
pub fn prompt(kind: usize, seed: usize, n: usize) -> Vec<u32> {
    let token = |i: usize| match i {
        0..50 => 65 + (i * 7 + kind * 11) % 26,
        _ => 97 + (i * i + seed * 5) % 26,
    };
    (0..n).map(|i| token(i) as u32).collect()
}

fn asked(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        ..request("", max_tokens, 7)
    }
}

fn cached(piece: &Piece) -> usize {
    piece.finished.as_ref().unwrap().usage.cached
}

/// A model without a prefix cache.
fn forgetful() -> Engine {
    let folder = Folder::new();
    let path = folder.write("tiny.gguf", &model(|_, _| {}));
    let options = Options {
        prefix_cache: false,
        ..options(1)
    };
    Engine::load(path, &options, on).unwrap()
}

#[test]
fn what_is_known_of_a_prompt_is_not_read_again() {
    let (plain, engine) = (forgetful(), engine(2));
    let first = asked(prompt(0, 0, 100), 40);
    let fresh = finish(&submit(&plain, &first)).unwrap();
    let read = finish(&submit(&engine, &first)).unwrap();
    assert_eq!((cached(&fresh), cached(&read)), (0, 0));
    assert!(same(&fresh, &read));
    // All but the last token, whose logits are wanted.
    let again = finish(&submit(&engine, &first)).unwrap();
    assert_eq!(cached(&again), 99);
    assert!(same(&fresh, &again));
    // The answer is known too but for its last token, which was drawn and not fed: the next turn.
    let mut turn = first.prompt.clone();
    turn.extend(&fresh.token_ids);
    turn.extend(prompt(1, 1, 9));
    let turn = asked(turn, 10);
    let next = finish(&submit(&engine, &turn)).unwrap();
    assert_eq!(cached(&next), 139);
    assert!(same(&finish(&submit(&plain, &turn)).unwrap(), &next));
    // An edited message: a page, and a part of the next.
    let mut edited = first.prompt.clone();
    edited[80] += 1;
    let edited = asked(edited, 10);
    let branch = finish(&submit(&engine, &edited)).unwrap();
    assert_eq!(cached(&branch), 80);
    assert!(same(&finish(&submit(&plain, &edited)).unwrap(), &branch));
    // Nothing of another one, and without a cache never anything.
    assert_eq!(
        cached(&finish(&submit(&engine, &asked(prompt(3, 0, 70), 1))).unwrap()),
        0
    );
    assert_eq!(cached(&finish(&submit(&plain, &first)).unwrap()), 0);
}

#[test]
fn a_loaded_prefix_is_counted_while_nothing_runs() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.gguf", &model(|_, _| {}));
    let [engine, other] = [0; 2].map(|_| Engine::load(&tiny, &options(1), on).unwrap());
    let path = folder.0.join("prefix");
    let saving = engine.save_prefix(&prompt(0, 0, 100), Salt::default(), &path, POLL);
    let saving = saving.unwrap().unwrap();
    while saving.next(POLL).unwrap().is_none() {}
    let content = other.read_prefix(&path).unwrap();
    // Long asleep when it comes, the thread sleeps on behind it.
    std::thread::sleep(Duration::from_millis(200));
    let loading = other.load_prefix(&content, Salt::default(), POLL);
    let loading = loading.unwrap().unwrap();
    loading.next(Duration::from_secs(60)).unwrap();
    let late = Instant::now() + Duration::from_secs(30);
    while other.stats().unwrap().pages.prefixes == 0 {
        assert!(Instant::now() < late, "{:?}", other.stats().unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_that_come_together_read_their_beginning_once() {
    let (plain, engine) = (forgetful(), engine(4));
    let requests: Vec<_> = (0..4)
        .map(|i| asked([prompt(0, 0, 64), prompt(1, i, 30)].concat(), 8))
        .collect();
    let tickets: Vec<_> = requests.iter().map(|r| submit(&engine, r)).collect();
    let together: Vec<_> = tickets.iter().map(|t| finish(t).unwrap()).collect();
    let read = together.iter().map(cached).collect::<Vec<_>>();
    assert_eq!(read, [0, 64, 64, 64]);
    for (request, piece) in requests.iter().zip(&together) {
        assert!(same(&finish(&submit(&plain, request)).unwrap(), piece));
    }
}

#[test]
fn what_failed_or_was_cancelled_leaves_only_what_was_computed() {
    let faults = Faults {
        fail_one_at: Some(20),
        ..Faults::default()
    };
    let (plain, engine) = (forgetful(), engine_with(1, faults));
    let first = asked(prompt(0, 0, 70), 60);
    assert!(finish(&submit(&engine, &first)).is_err());
    let again = finish(&submit(&engine, &first)).unwrap();
    // Whole pages of the prompt.
    assert_eq!(cached(&again), 64);
    let fresh = finish(&submit(&plain, &first)).unwrap();
    assert!(same(&fresh, &again));
    let other = asked(prompt(1, 1, 70), 120);
    let ticket = submit(&engine, &other);
    assert!(matches!(
        ticket.next(Duration::from_secs(30)),
        Ok(Wait::Item(_))
    ));
    ticket.cancel();
    let cut = finish(&ticket);
    let again = finish(&submit(&engine, &other)).unwrap();
    assert!(cut.is_ok() && cached(&again) == 69);
    assert!(same(&finish(&submit(&plain, &other)).unwrap(), &again));
}

/// What a page's entries hold, as far as the test has written them.
pub type Held = HashMap<u32, Vec<u32>>;

/// Does what the owner does, without a model: writes the tokens where they belong.
pub struct Writes {
    pub inner: CpuBackend,
    limits: Limits,
    /// By kind, and the tables by slot too.
    pub held: [Held; 2],
    pub tables: [HashMap<usize, Vec<u32>>; 2],
    /// By slot a number for the tokens that it has read.
    pub states: HashMap<usize, u64>,
    /// Bytes of a state.
    pub state_bytes: usize,
    /// Pieces of the host's memory that were taken.
    pub pieces: std::cell::Cell<usize>,
}

/// The state behind one more token.
pub fn read_on(state: u64, token: u32) -> u64 {
    (state ^ u64::from(token))
        .wrapping_mul(0x100_0000_01b3)
        .rotate_left(17)
}

impl Writes {
    pub fn new(n_slots: usize, n_pages: usize, state_bytes: usize) -> Self {
        let inner = backend(n_slots, n_pages);
        Self {
            limits: inner.limits().clone(),
            inner,
            held: Default::default(),
            tables: Default::default(),
            states: HashMap::new(),
            state_bytes,
            pieces: std::cell::Cell::new(0),
        }
    }

    /// The same with layers that see `tokens` tokens, and pages for them for `chunk` at once.
    pub fn seeing(mut self, tokens: usize, chunk: usize) -> Self {
        let mut windows = Windows {
            tokens,
            chunk,
            n_pages: 0,
        };
        let of_slots = self.limits.n_slots * windows.per_slot(self.limits.n_ctx);
        windows.n_pages = 1 + of_slots + chunk.div_ceil(64);
        self.limits.windows = Some(windows);
        self
    }

    pub fn tokens(&self, slot: usize, n: usize) -> Vec<u32> {
        self.held_by(Kind::Whole, slot, 0..n)
    }

    /// What a token at `at` sees before it of its own window.
    pub fn seen(&self, slot: usize, at: usize) -> Vec<u32> {
        let windows = self.limits.windows.unwrap();
        let first = (at + 1).saturating_sub(windows.tokens);
        self.held_by(Kind::Windowed, slot, first..at)
    }

    fn held_by(&self, kind: Kind, slot: usize, tokens: std::ops::Range<usize>) -> Vec<u32> {
        let pages = self.tables[kind as usize].get(&slot);
        let held = |i: usize| {
            let page = pages.map_or(0, |pages| pages[i / 64]);
            assert!(page != 0, "token {i} of slot {slot} has no page, {kind:?}");
            self.held[kind as usize][&page][i % 64]
        };
        tokens.map(held).collect()
    }

    pub fn write(&mut self, slot: usize, at: usize, token: u32) {
        for (held, tables) in self.held.iter_mut().zip(&self.tables) {
            let Some(table) = tables.get(&slot) else {
                continue;
            };
            assert!(table[at / 64] != 0, "token {at} of slot {slot} has no page");
            let page = held.entry(table[at / 64]);
            page.or_insert_with(|| vec![u32::MAX; 64])[at % 64] = token;
        }
        let state = self.states.entry(slot).or_default();
        if at == 0 {
            *state = 0;
        }
        *state = read_on(*state, token);
    }
}

impl Storage for Writes {
    fn layout(&self) -> &'static str {
        "tokens"
    }

    fn page_bytes(&self, kind: Kind) -> usize {
        match (kind, self.limits.windows) {
            (Kind::Windowed, None) => 0,
            _ => 256,
        }
    }

    fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    fn read_page(&mut self, kind: Kind, page: u32, to: &mut [u8]) -> Result<()> {
        let held = self.held[kind as usize]
            .entry(page)
            .or_insert_with(|| vec![u32::MAX; 64]);
        to.copy_from_slice(bytemuck::cast_slice(held));
        Ok(())
    }

    fn write_page(&mut self, kind: Kind, page: u32, from: &[u8]) -> Result<()> {
        let held = &mut self.held[kind as usize];
        held.insert(page, bytemuck::pod_collect_to_vec(from));
        Ok(())
    }

    fn read_state(&mut self, slot: usize, to: &mut [u8]) -> Result<()> {
        to[..8].copy_from_slice(&self.states[&slot].to_le_bytes());
        Ok(())
    }

    fn host_memory(&self, memory: Prefaulted) -> Result<Box<dyn HostMemory>> {
        self.pieces.set(self.pieces.get() + 1);
        Ok(Box::new(memory))
    }

    fn write_state(&mut self, slot: usize, from: &[u8]) -> Result<()> {
        let state = u64::from_le_bytes(from[..8].try_into().unwrap());
        self.states.insert(slot, state);
        Ok(())
    }
}

impl Backend for Writes {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        let table = self.tables[kind as usize].entry(slot).or_default();
        table.resize(table.len().max(first + pages.len()), 0);
        table[first..first + pages.len()].copy_from_slice(pages);
        match kind {
            Kind::Whole => self.inner.map_pages(kind, slot, first, pages),
            Kind::Windowed => Ok(()),
        }
    }

    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        let held = &mut self.held[kind as usize];
        held.insert(to, held[&from].clone());
        self.inner.copy_page(kind, from, to)
    }

    fn storage(&mut self) -> Option<&mut dyn Storage> {
        Some(self)
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        self.inner.start(slot, request)
    }

    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        self.inner.allow(slot, rows)
    }

    fn feed(&mut self, _: &[crate::backend::Part<'_>], _: bool) -> Result<Vec<(usize, Error)>> {
        Ok(Vec::new())
    }

    fn steps_beside_prompts(&self, _: usize) -> bool {
        false
    }

    fn decode(&mut self) -> Result<()> {
        Ok(())
    }

    fn awaits_draw(&self) -> bool {
        self.inner.awaits_draw()
    }

    fn draw(&mut self) -> Result<()> {
        self.inner.draw()
    }

    fn decode_drafted(&mut self, _: &[crate::backend::Draft]) -> Result<()> {
        Ok(())
    }

    fn row_cost(&self) -> f32 {
        1.0
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn drain(&mut self, _: bool) -> Result<Vec<Event>> {
        Ok(Vec::new())
    }

    fn may_queue(&self) -> bool {
        false
    }

    fn set_paused(&mut self, slot: usize, paused: bool) {
        self.inner.set_paused(slot, paused);
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.inner.release(slot)
    }

    fn saturated(&self, slot: usize) -> bool {
        self.inner.saturated(slot)
    }

    fn sampling_time(&self) -> Duration {
        Duration::ZERO
    }

    fn logits(&mut self, _: usize, _: &[u32], _: usize, _: LogitsPath) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }

    fn hidden(&mut self, _: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>> {
        Ok(Vec::new())
    }
}

/// A sequence under way: its tokens, and how many of them are the prompt's.
struct Running {
    sequence: Sequence,
    tokens: Vec<u32>,
    prompt: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Open {
        kind: usize,
        seed: usize,
        n: usize,
        more: usize,
    },
    Feed {
        which: usize,
        rows: usize,
    },
    Close {
        which: usize,
        keeps: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..2usize, 0..2usize, 1..180usize, 0..20usize)
            .prop_map(|(kind, seed, n, more)| Step::Open { kind, seed, n, more }),
        3 => (0..4usize, 1..100usize).prop_map(|(which, rows)| Step::Feed { which, rows }),
        1 => (0..4usize, any::<bool>()).prop_map(|(which, keeps)| Step::Close { which, keeps }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever sequences come, go on and end: what one finds in its pages are its own tokens, nobody
    /// writes what another reads, and in the end every slot and page is there.
    #[test]
    fn pages_hold_what_their_readers_fed(steps in prop::collection::vec(step(), 1..60)) {
        let (n_slots, n_pages) = (3, 8);
        let mut backend = Writes::new(n_slots, n_pages, 0);
        let pool = BlockManager::new(backend.limits(), true, Arc::default());
        let mut running: Vec<Running> = Vec::new();
        for step in steps {
            match step {
                Step::Open { kind, seed, n, more } => {
                    let tokens = prompt(kind, seed, n + more);
                    let opened = pool.open(&mut backend, n + more, &tokens[..n]).unwrap();
                    if let Some(sequence) = opened {
                        prop_assert!(sequence.position < n);
                        running.push(Running { sequence, tokens, prompt: n });
                    }
                }
                Step::Feed { which, rows } if which < running.len() => {
                    let r = &mut running[which];
                    r.sequence.find_prefix(&mut backend, &r.tokens[..r.prompt]).unwrap();
                    let from = r.sequence.position;
                    let slot = r.sequence.slot();
                    prop_assert_eq!(backend.tokens(slot, from), &r.tokens[..from]);
                    let to = r.tokens.len().min(from + rows);
                    for at in from..to {
                        let page = backend.tables[0][&slot][at / 64];
                        let others = running.iter().filter(|o| o.sequence.slot() != slot);
                        for other in others {
                            prop_assert!(!backend.tables[0][&other.sequence.slot()].contains(&page));
                        }
                        let token = running[which].tokens[at];
                        backend.write(slot, at, token);
                    }
                    let r = &mut running[which];
                    r.sequence.position = to;
                    if to >= r.prompt {
                        r.sequence.share(&mut backend, &r.tokens[..r.prompt]).unwrap();
                    }
                    prop_assert_eq!(backend.tokens(slot, to), &r.tokens[..to]);
                }
                Step::Close { which, keeps } if which < running.len() => {
                    let r = running.swap_remove(which);
                    let known = if keeps { r.sequence.position } else { 0 };
                    r.sequence.close(&mut backend, &r.tokens[..known]).unwrap();
                }
                Step::Feed { .. } | Step::Close { .. } => {}
            }
            for r in &running {
                let n = r.sequence.position;
                prop_assert_eq!(backend.tokens(r.sequence.slot(), n), &r.tokens[..n]);
            }
        }
        for r in running {
            let known = &r.tokens[..r.sequence.position];
            r.sequence.close(&mut backend, known).unwrap();
        }
        prop_assert_eq!(available(&pool), (n_slots, n_pages - 1));
        // All of it is given to those that need it.
        let all = [192, 256].map(|tokens| pool.open(&mut backend, tokens, &[]).unwrap());
        prop_assert!(all.iter().all(Option::is_some));
    }
}
