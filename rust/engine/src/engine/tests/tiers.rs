//! Prefixes that are evicted from the device to the host's memory and to files; and states.
use proptest::prelude::*;

use super::prefixes::{prompt, read_on, Writes};
use super::*;
use crate::backend::{Kind, ROUND_ROWS};
use crate::pages::format::{self, Content, Identity};
use crate::pages::store::{write_whole, Store};
use crate::pages::{BlockManager, Counts, Salt, Sequence, Span};
use crate::plan::ARITHMETIC;

const N_SLOTS: usize = 3;
const N_PAGES: usize = 8;

/// A sequence under way: its tokens, and how many of them are the prompt's.
struct Running {
    sequence: Sequence,
    tokens: Vec<u32>,
    prompt: usize,
    ready: bool,
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
        patient: bool,
    },
    Close {
        which: usize,
        keeps: bool,
        settled: bool,
    },
    Write,
    Restart,
    Damage {
        which: usize,
        at: usize,
        how: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, 0..2usize, 1..180usize, 0..20usize)
            .prop_map(|(kind, seed, n, more)| Step::Open { kind, seed, n, more }),
        8 => (0..4usize, 1..100usize, any::<bool>())
            .prop_map(|(which, rows, patient)| Step::Feed { which, rows, patient }),
        3 => (0..4usize, any::<bool>(), any::<bool>())
            .prop_map(|(which, keeps, settled)| Step::Close { which, keeps, settled }),
        2 => Just(Step::Write),
        1 => Just(Step::Restart),
        1 => (any::<usize>(), any::<usize>(), any::<u8>())
            .prop_map(|(which, at, how)| Step::Damage { which, at, how }),
    ]
}

fn identity(state_bytes: usize) -> Identity {
    Identity {
        arithmetic: ARITHMETIC,
        model: [7; 32],
        kv_type: "i16",
        layout: "tokens",
        page_bytes: 256,
        window_bytes: 256,
        state_bytes,
    }
}

/// The files of a store, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// The pools of one process after another, over the same folder.
struct Machine {
    folder: Option<Folder>,
    host_bytes: usize,
    state_bytes: usize,
    arithmetic: u32,
    counts: Arc<Counts>,
    backend: Writes,
    pool: BlockManager,
}

impl Machine {
    fn new(stores: bool, host_bytes: usize, state_bytes: usize) -> Self {
        Self::of(
            Writes::new(N_SLOTS, N_PAGES, state_bytes),
            stores,
            host_bytes,
        )
    }

    fn of(backend: Writes, stores: bool, host_bytes: usize) -> Self {
        let state_bytes = backend.state_bytes;
        let pool = BlockManager::new(backend.limits(), false, Arc::default());
        let mut machine = Self {
            folder: stores.then(Folder::new),
            host_bytes,
            state_bytes,
            arithmetic: ARITHMETIC,
            counts: Arc::default(),
            backend,
            pool,
        };
        machine.restart();
        machine
    }

    fn restart(&mut self) {
        // The one before goes first: it has files in its hands.
        self.pool = BlockManager::new(self.backend.limits(), true, Arc::default());
        self.backend.held = Default::default();
        self.counts = Arc::default();
        let store = self.folder.as_ref().map(|folder| {
            let identity = Identity {
                arithmetic: self.arithmetic,
                ..identity(self.state_bytes)
            };
            Store::open(&folder.0, 1 << 20, identity, self.counts.clone()).unwrap()
        });
        let pool = BlockManager::new(self.backend.limits(), true, Arc::default());
        let stateful = self.state_bytes > 0;
        self.pool = pool.keeping(stateful, self.host_bytes, store, self.counts.clone());
    }

    fn state(&self, tokens: &[u32]) -> u64 {
        tokens.iter().fold(0, |state, token| read_on(state, *token))
    }

    /// What a sequence that is ready finds is what it would have read itself.
    fn check(&self, r: &Running) {
        let (slot, n) = (r.sequence.slot(), r.sequence.position);
        if r.ready {
            assert_eq!(self.backend.tokens(slot, n), &r.tokens[..n]);
            if self.state_bytes > 0 && n > 0 {
                assert_eq!(self.backend.states[&slot], self.state(&r.tokens[..n]));
            }
            if let Some(windows) = self.backend.limits().windows {
                let first = (n + 1).saturating_sub(windows.tokens);
                assert_eq!(self.backend.seen(slot, n), &r.tokens[first..n]);
            }
        }
    }

    fn feed(&mut self, running: &mut [Running], which: usize, rows: usize, patient: bool) {
        let until = match patient {
            true => Instant::now() + Duration::from_secs(9),
            false => Instant::now(),
        };
        let r = &mut running[which];
        let prompt = &r.tokens[..r.prompt];
        r.ready = r
            .sequence
            .fetch_prefix(&mut self.backend, prompt, until)
            .unwrap();
        self.check(&running[which]);
        if !running[which].ready {
            return;
        }
        let (slot, from) = (
            running[which].sequence.slot(),
            running[which].sequence.position,
        );
        let to_state = match running[which].sequence.until_state(running[which].prompt) {
            0 => usize::MAX,
            n => n,
        };
        // Steps have so many rows at most.
        let to_state = match from < running[which].prompt {
            true => to_state,
            false => ROUND_ROWS,
        };
        let to = running[which].tokens.len().min(from + rows.min(to_state));
        let sequence = &mut running[which].sequence;
        sequence
            .advance_window(&mut self.backend, from, to)
            .unwrap();
        for at in from..to {
            for tables in self.backend.tables.iter().filter(|t| t.contains_key(&slot)) {
                let page = tables[&slot][at / 64];
                for other in running.iter().filter(|o| o.sequence.slot() != slot) {
                    let theirs = tables.get(&other.sequence.slot());
                    let reads = theirs.is_some_and(|theirs| theirs.contains(&page));
                    assert!(!reads, "page {page} is read and written");
                }
            }
            self.backend.write(slot, at, running[which].tokens[at]);
            if self.backend.limits().windows.is_some() {
                let seen = self.backend.seen(slot, at);
                assert!(running[which].tokens[..at].ends_with(&seen));
            }
        }
        let r = &mut running[which];
        r.sequence.position = to;
        if to - from == to_state {
            let fed = &r.tokens[..to];
            r.sequence.keep_state(&mut self.backend, fed).unwrap();
        }
        if to == r.prompt {
            let prompt = &r.tokens[..r.prompt];
            r.sequence.share(&mut self.backend, prompt).unwrap();
        }
        r.sequence
            .advance_window(&mut self.backend, to, to)
            .unwrap();
    }

    fn close(&mut self, mut r: Running, keeps: bool, settled: bool) {
        let known = if keeps && r.ready {
            r.sequence.position
        } else {
            0
        };
        let known = r.tokens[..known].to_vec();
        if settled && !known.is_empty() {
            r.sequence.keep_state(&mut self.backend, &known).unwrap();
        }
        r.sequence.close(&mut self.backend, &known).unwrap();
    }

    /// Reads a prompt under a salt. Gives how many of its tokens were there.
    fn read(&mut self, salt: Salt, tokens: Vec<u32>) -> usize {
        let (pool, n) = (self.pool.under(salt), tokens.len());
        let opened = pool.open(&mut self.backend, n, &tokens).unwrap();
        let mut running = vec![Running {
            sequence: opened.unwrap(),
            tokens,
            prompt: n,
            ready: false,
        }];
        while running[0].sequence.position < n {
            self.feed(&mut running, 0, 200, true);
        }
        let cached = running[0].sequence.cached();
        self.close(running.remove(0), true, false);
        cached
    }

    /// Has all that was read written, and goes on as the next process.
    fn write_and_restart(&mut self) {
        let pool = self.pool.clone();
        while pool.write_behind(&mut self.backend, 1).unwrap() {}
        drop(pool);
        self.restart();
    }

    /// Both. Gives how many of a prompt's tokens were there.
    fn read_and_restart(&mut self, tokens: Vec<u32>) -> usize {
        let cached = self.read(Salt::default(), tokens);
        self.write_and_restart();
        cached
    }

    fn damage(&self, which: usize, at: usize, how: u8) {
        let Some(folder) = &self.folder else { return };
        let files = files(&folder.0);
        if files.is_empty() {
            return;
        }
        let path = &files[which % files.len()];
        // It may be cut to nothing, or gone under this name, once it is written.
        let Ok(mut bytes) = std::fs::read(path) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        let at = at % bytes.len();
        match how % 3 {
            0 => bytes[at] ^= how | 1,
            1 => bytes.truncate(at),
            _ => bytes.extend([0; 3]),
        }
        drop(std::fs::write(path, bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever sequences come and end, whatever is evicted, written, damaged and read by the next
    /// process: what one finds in its pages and its state is what it would have read itself, nobody
    /// writes what another reads, and in the end all of it is there.
    #[test]
    fn what_gave_way_comes_back_as_it_was(
        stores in any::<bool>(),
        has_states in any::<bool>(),
        window in prop::option::of(1..150usize),
        host_pages in 0..12usize,
        steps in prop::collection::vec(step(), 1..70),
    ) {
        let writes = Writes::new(N_SLOTS, N_PAGES, if has_states { 256 } else { 0 });
        let writes = match window {
            Some(tokens) => writes.seeing(tokens, 64),
            None => writes,
        };
        let mut machine = Machine::of(writes, stores, host_pages * 256);
        let mut running: Vec<Running> = Vec::new();
        for step in steps {
            match step {
                Step::Open { kind, seed, n, more } => {
                    let tokens = prompt(kind, seed, n + more);
                    let pool = machine.pool.clone();
                    let opened = pool.open(&mut machine.backend, n + more, &tokens[..n]).unwrap();
                    if let Some(sequence) = opened {
                        prop_assert!(sequence.position < n);
                        running.push(Running { sequence, tokens, prompt: n, ready: false });
                    }
                }
                Step::Feed { which, rows, patient } if which < running.len() => {
                    machine.feed(&mut running, which, rows, patient);
                }
                Step::Close { which, keeps, settled } if which < running.len() => {
                    machine.close(running.swap_remove(which), keeps, settled);
                }
                Step::Write => {
                    machine.pool.write_behind(&mut machine.backend, 3).unwrap();
                }
                Step::Restart => {
                    running.drain(..).for_each(|r| machine.close(r, true, true));
                    machine.restart();
                }
                Step::Damage { which, at, how } => machine.damage(which, at, how),
                Step::Feed { .. } | Step::Close { .. } => {}
            }
            running.iter().for_each(|r| machine.check(r));
            let taken = machine.counts.host_bytes.load(Ordering::Relaxed);
            prop_assert!(taken <= machine.host_bytes, "{taken} bytes of the host");
        }
        running.drain(..).for_each(|r| machine.close(r, true, true));
        prop_assert_eq!(available(&machine.pool), (N_SLOTS, N_PAGES - 1));
        let windowed = machine.pool.windowed_places();
        prop_assert_eq!(windowed.free + windowed.prefixes, windowed.total);
        let all = [192, 256].map(|n| machine.pool.open(&mut machine.backend, n, &[]).unwrap());
        prop_assert!(all.iter().all(Option::is_some));
    }

    /// A file of any content that is cut, changed or lengthened anywhere is refused.
    #[test]
    fn a_damaged_file_is_never_read(
        tokens in prop::collection::vec(any::<u32>(), 1..130),
        has_states in any::<bool>(),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let identity = identity(if has_states { 24 } else { 0 });
        let content = Content {
            key: [3; 32],
            saturated: tokens[0] % 2 == 0,
            pages: (0..tokens.len().div_ceil(64) * 256).map(|i| i as u8).collect(),
            windows: vec![7; tokens.len() % 2 * 256],
            state_ends: if has_states { vec![1, tokens.len() as u32] } else { Vec::new() },
            states: if has_states { vec![9; 48] } else { Vec::new() },
            tokens,
        };
        let mut bytes = Vec::new();
        format::write(&mut bytes, &identity, &content).unwrap();
        let folder = Folder::new();
        let path = folder.write("whole", &bytes);
        prop_assert_eq!(format::read(&path, &identity, 200).unwrap(), content);
        let at = at.index(bytes.len());
        let cut = folder.write("cut", &bytes[..at]);
        prop_assert!(format::read(&cut, &identity, 200).is_err());
        bytes[at] ^= flip;
        let flipped = folder.write("flipped", &bytes);
        prop_assert!(format::read(&flipped, &identity, 200).is_err(), "byte {}", at);
        bytes[at] ^= flip;
        bytes.push(0);
        let longer = folder.write("longer", &bytes);
        prop_assert!(format::read(&longer, &identity, 200).is_err());
    }
}

/// On the device, in the host's memory, and in the files of the process before.
#[test]
fn what_was_read_under_a_salt_is_found_under_the_same_alone() {
    let salt = |word| Salt::new(word).unwrap();
    let salts = [None, Some("own"), Some("another")].map(salt);
    let tokens = prompt(0, 0, 130);
    for (own, state_bytes) in salts.into_iter().flat_map(|salt| [(salt, 0), (salt, 256)]) {
        for (gives_way, restarts) in [(false, false), (true, false), (false, true)] {
            let mut machine = Machine::new(true, 1 << 14, state_bytes);
            assert_eq!(machine.read(own, tokens.clone()), 0);
            if gives_way {
                // Two that take more than all of the device's pages.
                assert_eq!(machine.read(own, prompt(1, 1, 256)), 0);
                assert_eq!(machine.read(own, prompt(2, 1, 256)), 0);
            }
            if restarts {
                machine.write_and_restart();
            }
            for other in salts.into_iter().filter(|other| *other != own) {
                assert_eq!(machine.read(other, tokens.clone()), 0, "{own:?} {other:?}");
            }
            assert!(machine.read(own, tokens.clone()) >= 128);
            // Whatever was evicted meanwhile, each finds its own.
            for each in salts {
                assert!(machine.read(each, tokens.clone()) >= 128);
            }
        }
    }
}

#[test]
fn who_finds_the_state_gone_gives_up_the_pages_that_others_read() {
    // Room for one state, which the last to be kept takes.
    let mut machine = Machine::new(false, 256, 256);
    let mut running: Vec<Running> = Vec::new();
    let open = |machine: &mut Machine, running: &mut Vec<Running>, kind, n| {
        let tokens = prompt(kind, 0, n);
        let pool = machine.pool.clone();
        let opened = pool.open(&mut machine.backend, n, &tokens).unwrap();
        running.push(Running {
            sequence: opened.unwrap(),
            tokens,
            prompt: n,
            ready: false,
        });
    };
    let read = |machine: &mut Machine, running: &mut Vec<Running>, which: usize| {
        while running[which].sequence.position < running[which].prompt {
            machine.feed(running, which, 200, true);
        }
    };
    open(&mut machine, &mut running, 0, 130);
    read(&mut machine, &mut running, 0);
    machine.close(running.remove(0), true, false);
    // Two that begin alike, whose first pages are there with the state behind them.
    open(&mut machine, &mut running, 0, 130);
    open(&mut machine, &mut running, 0, 130);
    // All pages are promised: a sequence may lose what it shares.
    open(&mut machine, &mut running, 1, 64);
    let pages =
        |machine: &Machine, r: &Running| machine.backend.tables[0][&r.sequence.slot()].clone();
    let (first, second) = (pages(&machine, &running[0]), pages(&machine, &running[1]));
    assert_eq!(first[..2], second[..2]);
    read(&mut machine, &mut running, 2);
    machine.close(running.remove(2), true, false);
    read(&mut machine, &mut running, 0);
    assert_eq!(running[0].sequence.cached(), 0);
    running.iter().for_each(|r| machine.check(r));
    read(&mut machine, &mut running, 1);
    running
        .drain(..)
        .for_each(|r| machine.close(r, true, false));
    assert_eq!(available(&machine.pool), (N_SLOTS, N_PAGES - 1));
}

#[test]
fn a_page_in_a_file_is_that_of_all_tokens_before_it() {
    let mut machine = Machine::new(true, 4096, 256);
    let text = |parts: &[(u32, usize)]| -> Vec<u32> {
        let part = |(token, n): &(u32, usize)| vec![*token; *n];
        parts.iter().flat_map(part).collect()
    };
    let mut read = |tokens| machine.read_and_restart(tokens);
    assert_eq!(read(text(&[(1, 64), (3, 64), (9, 2)])), 0);
    assert_eq!(read(text(&[(2, 64), (9, 2)])), 0);
    assert_eq!(read(text(&[(2, 64), (3, 64), (9, 2)])), 64);
    assert_eq!(read(text(&[(1, 64), (3, 64), (9, 2)])), 128);
}

#[test]
fn what_another_arithmetic_computed_is_not_read() {
    let mut machine = Machine::new(true, 4096, 256);
    let tokens = prompt(0, 0, 130);
    assert_eq!(machine.read_and_restart(tokens.clone()), 0);
    machine.arithmetic -= 1;
    machine.restart();
    assert_eq!(machine.read_and_restart(tokens.clone()), 0);
    // Nor is it taken away.
    for arithmetic in [ARITHMETIC - 1, ARITHMETIC] {
        machine.arithmetic = arithmetic;
        machine.restart();
        assert_eq!(machine.read_and_restart(tokens.clone()), 128);
    }
}

#[test]
fn who_finds_its_window_gone_begins_anew() {
    // A window of one page: behind two pages it is in the second and the third.
    let writes = Writes::new(N_SLOTS, N_PAGES, 0).seeing(64, 64);
    let mut machine = Machine::of(writes, true, 0);
    let folder = machine.folder.as_ref().unwrap().0.clone();
    let windows = || {
        let of_windows = |path: &PathBuf| path.extension().is_some_and(|e| e == "window");
        files(&folder).into_iter().filter(of_windows).collect()
    };
    assert_eq!(machine.read_and_restart(prompt(0, 0, 65)), 0);
    let first: Vec<PathBuf> = windows();
    assert_eq!(machine.read_and_restart(prompt(0, 0, 130)), 64);
    assert_eq!(machine.read_and_restart(prompt(0, 0, 130)), 128);
    // The first page's is known to be gone, the second's turns out to be damaged.
    std::fs::remove_file(&first[0]).unwrap();
    machine.restart();
    let second: Vec<PathBuf> = windows();
    std::fs::write(&second[0], b"damaged").unwrap();
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(machine.read_and_restart(prompt(0, 0, 130)), 0);
    assert_eq!(machine.read_and_restart(prompt(0, 0, 130)), 128);
}

#[test]
fn a_file_that_does_not_fit_says_what_does_not() {
    let folder = Folder::new();
    let path = folder.0.join("prefix");
    let ours = identity(0);
    let content = Content {
        tokens: vec![1; 70],
        pages: vec![0; 512],
        ..Content::default()
    };
    write_whole(&path, &ours, &content).unwrap();
    let refused = |identity: &Identity, most| {
        let refusal = format::read(&path, identity, most).unwrap_err();
        format!("{}; {}", refusal.reason, refusal.remedy)
    };
    let text = refused(
        &Identity {
            arithmetic: ARITHMETIC + 1,
            ..ours.clone()
        },
        100,
    );
    assert!(
        text.contains(&format!("arithmetic {ARITHMETIC}, but this")),
        "{text}"
    );
    let text = refused(
        &Identity {
            kv_type: "f32",
            ..ours.clone()
        },
        100,
    );
    assert!(
        text.contains("are i16, but those of the loaded model are f32"),
        "{text}"
    );
    let text = refused(
        &Identity {
            layout: "cuda",
            ..ours.clone()
        },
        100,
    );
    assert!(
        text.contains("saved on device \"tokens\"") && text.contains("\"cuda\""),
        "{text}"
    );
    let text = refused(
        &Identity {
            model: [8; 32],
            ..ours.clone()
        },
        100,
    );
    assert!(text.contains("another model file"), "{text}");
    let text = refused(&ours, 69);
    assert!(
        text.contains("70 tokens, but the context has room for 69"),
        "{text}"
    );
    let text = refused(
        &Identity {
            page_bytes: 128,
            ..ours.clone()
        },
        100,
    );
    assert!(text.contains("its header says"), "{text}");
    let directory = format::read(&folder.0, &ours, 100).unwrap_err();
    assert_eq!(directory.reason, "it is not a file");
    let missing = format::read(&folder.0.join("none"), &ours, 100).unwrap_err();
    assert!(missing.reason.contains("No such file"), "{missing:?}");
    let other = folder.write("other", &[b'x'; 500]);
    let other = format::read(&other, &ours, 100).unwrap_err();
    assert_eq!(other.reason, "it is not a saved prefix");
}

#[test]
fn files_beyond_the_budget_give_way_the_oldest_first() {
    let folder = Folder::new();
    let counts: Arc<Counts> = Arc::default();
    let open = |budget| Store::open(&folder.0, budget, identity(0), counts.clone()).unwrap();
    let keys: Vec<[u8; 32]> = (0..6).map(|i| [i; 32]).collect();
    let mut store = open(1 << 20);
    for key in &keys {
        while !store.is_ready() {
            std::thread::sleep(Duration::from_millis(1));
        }
        store.write_page(Kind::Whole, *key, &[5; 64], false, vec![key[0]; 256]);
    }
    drop(store);
    let one = std::fs::metadata(&files(&folder.0)[0]).unwrap().len();
    assert_eq!(counts.stored_bytes.load(Ordering::Relaxed), 6 * one);
    let past = |i: usize| std::time::SystemTime::now() - Duration::from_secs(100 - i as u64);
    for (i, path) in files(&folder.0).iter().enumerate() {
        let file = std::fs::File::options().append(true).open(path).unwrap();
        file.set_modified(past(i)).unwrap();
    }
    let mut store = open(4 * one);
    let there: Vec<bool> = keys
        .iter()
        .map(|key| store.has_page(Kind::Whole, key))
        .collect();
    assert_eq!(there, [false, false, true, true, true, true]);
    let page = store.read_page(Kind::Whole, &keys[2], &[5; 64], 256);
    assert_eq!(page, Some((false, vec![2; 256])));
    // Of other tokens or another length it is not that page.
    assert_eq!(store.read_page(Kind::Whole, &keys[3], &[6; 64], 256), None);
    assert!(!store.has_page(Kind::Whole, &keys[3]) && files(&folder.0).len() == 3);
}

/// Where nobody waits, and never for more than there is to move or may be taken.
#[test]
fn memory_of_the_host_is_taken_before_a_prefix_gives_way() {
    for (budget, most) in [(1 << 20, 2), (256, 1), (0, 0)] {
        let mut backend = Writes::new(2, 7, 0);
        let pool = BlockManager::new(backend.limits(), true, Arc::default());
        let pool = pool.keeping(false, budget, None, Arc::default());
        let tokens: Vec<u32> = (0..256).collect();
        assert!(!pool.prepare(&mut backend), "nothing is kept");
        let mut sequence = pool.open(&mut backend, 256, &tokens).unwrap().unwrap();
        for (at, token) in tokens.iter().enumerate() {
            backend.write(sequence.slot(), at, *token);
        }
        sequence.position = tokens.len();
        sequence.close(&mut backend, &tokens).unwrap();
        // Of six pages four are kept: two have to go where all are wanted.
        let mut prepared = 0;
        while pool.prepare(&mut backend) {
            prepared += 1;
        }
        assert_eq!((prepared, backend.pieces.get()), (most, most));
        let other: Vec<u32> = (1000..1256).collect();
        let sequence = pool.open(&mut backend, 256, &other).unwrap().unwrap();
        assert_eq!(backend.pieces.get(), most, "an evicted prefix waited");
        drop(sequence);
    }
}

#[test]
fn a_folder_that_takes_no_files_is_said_once_and_harms_nobody() {
    let folder = Folder::new();
    let counts: Arc<Counts> = Arc::default();
    let mut store = Store::open(&folder.0, 1 << 20, identity(0), counts.clone()).unwrap();
    std::fs::remove_dir_all(&folder.0).unwrap();
    store.write_page(Kind::Whole, [1; 32], &[5; 64], false, vec![0; 256]);
    while store.writes() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!store.has_page(Kind::Whole, &[1; 32]) && !store.is_ready());
    drop(store);
    let why = counts.why_not_stored().unwrap();
    assert!(why.contains(".page: No such file"), "{why}");
    let file = Folder::new();
    let path = file.write("a-file", b"");
    let error = Store::open(&path, 1, identity(0), counts)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot create the folder") && error.contains("cache_dir"),
        "{error}"
    );
}

#[test]
fn a_sequence_goes_on_where_a_text_or_its_prompt_has_ended() {
    // All that are kept do not fit the pages of layers that see a window.
    let writes = Writes::new(N_SLOTS, 40, 0).seeing(65, 64);
    let mut machine = Machine::of(writes, false, 64 * 256);
    let mut cached = |tokens: &[u32], n: usize| {
        let pool = machine.pool.clone();
        let opened = pool.open(&mut machine.backend, tokens.len(), &tokens[..n]);
        let mut running = vec![Running {
            sequence: opened.unwrap().unwrap(),
            tokens: tokens.to_vec(),
            prompt: n,
            ready: false,
        }];
        while running[0].sequence.position < tokens.len() {
            machine.feed(&mut running, 0, 200, true);
            if running[0].sequence.position == n {
                running[0].sequence.end_prompt();
            }
        }
        let cached = running[0].sequence.cached();
        machine.close(running.remove(0), true, false);
        cached
    };
    let text = prompt(0, 0, 190);
    assert_eq!(cached(&text[..90], 70), 0);
    // The next turn.
    assert_eq!(cached(&text, 180), 90);
    for kind in 1..5 {
        assert_eq!(cached(&prompt(kind, kind, 190), 185), 0);
    }
    // A turn back, another answer, and behind what is no end.
    for (from, known) in [(90, 90), (70, 70)] {
        let mut branch = text[..from].to_vec();
        branch.extend([from as u32 % 26 + 65; 9]);
        assert_eq!(cached(&branch, from + 5), known);
    }
}

#[test]
fn what_gives_way_to_a_prompt_does_so_page_by_page_where_others_wait() {
    let mut machine = Machine::new(false, 64 * 256, 0);
    let mut running = Vec::new();
    let read = |machine: &mut Machine, running: &mut Vec<Running>, kind: usize| {
        let tokens = prompt(kind, kind, 190);
        let pool = machine.pool.clone();
        let opened = pool.open(&mut machine.backend, 190, &tokens).unwrap();
        running.push(Running {
            sequence: opened.unwrap(),
            tokens,
            prompt: 190,
            ready: false,
        });
        while running[0].sequence.position < 190 {
            machine.feed(running, 0, 200, true);
        }
        machine.close(running.remove(0), true, false);
    };
    // Of seven pages six are kept.
    (0..2).for_each(|kind| read(&mut machine, &mut running, kind));
    assert_eq!(machine.pool.places().free, 1);
    let tokens = prompt(2, 2, 190);
    let pool = machine.pool.clone();
    let mut asked = |until| {
        let span = Span::whole(190);
        pool.admit(&mut machine.backend, span, &tokens, 0, until)
            .unwrap()
    };
    let now = Some(Instant::now());
    assert!(asked(now).is_none(), "two have to be evicted");
    let sequence = asked(now).expect("one of them has");
    drop(sequence);
    assert_eq!(machine.pool.places().free, 3);
}
