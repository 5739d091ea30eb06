//! Random damage, the same on every run: the coverage-guided targets in tests/fuzz roam.
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[derive(Debug, Clone)]
pub enum Mutation {
    Flip {
        at: usize,
        bit: u8,
    },
    Byte {
        at: usize,
        value: u8,
    },
    /// A number that breaks arithmetic, 4 or 8 bytes of it.
    Number {
        at: usize,
        value: u64,
        wide: bool,
    },
    Remove {
        at: usize,
        n: usize,
    },
    Repeat {
        at: usize,
        n: usize,
    },
    /// Bytes from elsewhere in the file.
    Copy {
        from: usize,
        to: usize,
        n: usize,
    },
    Insert {
        at: usize,
        value: u8,
        n: usize,
    },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use Mutation::{Byte, Copy, Flip, Insert, Number, Remove, Repeat};
    let at = || 0..16_384usize;
    let some = || 1..64usize;
    let edge = prop_oneof![
        (0..64u32).prop_map(|shift| 1u64 << shift),
        (0..64u32).prop_map(|shift| u64::MAX >> shift),
        (0..64u32).prop_map(|shift| u64::MAX << shift),
        (0..300u64),
    ];
    prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Flip { at, bit }),
        2 => (at(), any::<u8>()).prop_map(|(at, value)| Byte { at, value }),
        4 => (at(), edge, any::<bool>())
            .prop_map(|(at, value, wide)| Number { at, value, wide }),
        1 => (at(), some()).prop_map(|(at, n)| Remove { at, n }),
        1 => (at(), some()).prop_map(|(at, n)| Repeat { at, n }),
        1 => (at(), at(), some()).prop_map(|(from, to, n)| Copy { from, to, n }),
        1 => (at(), any::<u8>(), some()).prop_map(|(at, value, n)| Insert { at, value, n }),
    ]
}

fn mutate(file: &mut Vec<u8>, mutation: &Mutation, within: usize) {
    // Places are spread over the first `within` bytes.
    let place = |file: &[u8], at: usize| (at % within).min(file.len().saturating_sub(1));
    let part = |file: &[u8], at: usize, n: usize| {
        let at = place(file, at);
        at..(at + n).min(file.len())
    };
    if file.is_empty() {
        return;
    }
    match *mutation {
        Mutation::Flip { at, bit } => {
            let at = place(file, at);
            file[at] ^= 1 << bit;
        }
        Mutation::Byte { at, value } => {
            let at = place(file, at);
            file[at] = value;
        }
        Mutation::Number { at, value, wide } => {
            let range = part(file, at, if wide { 8 } else { 4 });
            let n = range.len();
            file[range].copy_from_slice(&value.to_le_bytes()[..n]);
        }
        Mutation::Remove { at, n } => drop(file.drain(part(file, at, n))),
        Mutation::Repeat { at, n } => {
            let range = part(file, at, n);
            let copy = file[range.clone()].to_vec();
            file.splice(range.start..range.start, copy);
        }
        Mutation::Copy { from, to, n } => {
            let (from, to) = (part(file, from, n), part(file, to, n));
            let copy = file[from].to_vec();
            let n = copy.len().min(to.len());
            file[to][..n].copy_from_slice(&copy[..n]);
        }
        Mutation::Insert { at, value, n } => {
            let at = place(file, at);
            file.splice(at..at, std::iter::repeat_n(value, n));
        }
    }
}

/// Calls `check` with `cases` damaged files, each one of `files` (its bytes, and how many of them
/// from the front are worth damaging) after one to five mutations.
pub fn for_each(files: &[(Vec<u8>, usize)], cases: u32, check: impl Fn(&[u8], &[Mutation])) {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mutations = prop::collection::vec(mutation(), 1..6);
    TestRunner::new_with_rng(config, rng)
        .run(&(0..files.len(), mutations), |(which, mutations)| {
            let (mut file, within) = files[which].clone();
            mutations.iter().for_each(|m| mutate(&mut file, m, within));
            check(&file, &mutations);
            Ok(())
        })
        .unwrap();
}
