//! Which decode steps are replays: the sizes that are captured, the look-up from a number of rows
//! to the smallest of them, and the conditions of a replay.

use std::sync::Arc;

use super::cache::{Key, Purpose};
use super::ready::Way;
use crate::backend::{CapturedStep, GraphMode, SharedStats, ROUND_ROWS};
use crate::error::{Error, Result};

/// Most sizes that are captured: each takes device memory and time.
pub const MOST_SIZES: usize = 64;

/// Batch sizes worth a graph: 1, 2, 4, 8, then in steps of 8 and 16, up to `most`.
pub fn default_sizes(most: usize) -> Vec<usize> {
    let all = [1, 2, 4, 8]
        .into_iter()
        .chain((16..=64).step_by(8))
        .chain((80..=256).step_by(16));
    let mut sizes: Vec<usize> = all.take_while(|s| *s < most).collect();
    sizes.push(most);
    sizes
}

/// Rows of a step that verifies drafts: up to eight cost what one does, and each is captured when it is
/// first needed.
const ROUND_SIZES: [usize; 6] = [2, 4, 8, 16, 32, ROUND_ROWS];

/// The sizes to capture where `wanted` are asked for, ascending, each once.
///
/// # Errors
/// [`Error::Argument`] where there is none, or too many, or one is not from 1 to `most`, which is
/// what `limit` allows.
pub fn chosen_sizes(wanted: &[usize], most: usize, limit: &str) -> Result<Vec<usize>> {
    let refused = |value: String, reason: String| Error::Argument {
        name: "graph.batch_sizes",
        value,
        reason,
    };
    if wanted.is_empty() {
        let reason = "give at least one size, or use mode=\"none\"".into();
        return Err(refused("[]".into(), reason));
    }
    if let Some(size) = wanted.iter().find(|s| !(1..=most).contains(*s)) {
        let reason = format!("must be from 1 to {most}, which {limit} allows");
        return Err(refused(size.to_string(), reason));
    }
    let mut sizes = wanted.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > MOST_SIZES {
        let reason = format!("at most {MOST_SIZES} can be captured; give fewer");
        return Err(refused(format!("{} sizes", sizes.len()), reason));
    }
    Ok(sizes)
}

/// Sizes and, for every number of rows up to the largest, the smallest size that has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeTable {
    sizes: Vec<usize>,
    padding: bool,
    /// By number of rows; `None`: no size fits.
    by_rows: Vec<Option<usize>>,
}

impl SizeTable {
    /// A table of `sizes`, ascending; without `padding`, each size is for its own number of rows
    /// alone.
    pub fn new(sizes: Vec<usize>, padding: bool) -> Self {
        let largest = sizes.last().copied().unwrap_or(0);
        let fits = |rows: usize| {
            let size = sizes.iter().copied().find(|s| *s >= rows);
            size.filter(|s| rows > 0 && (padding || *s == rows))
        };
        Self {
            by_rows: (0..=largest).map(fits).collect(),
            sizes,
            padding,
        }
    }

    /// The sizes, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The smallest size for `rows` rows.
    pub fn find(&self, rows: usize) -> Option<usize> {
        self.by_rows.get(rows).copied().flatten()
    }
}

/// What a replay depends on, in the order in which it is asked.
const CONDITIONS: [(&str, Condition); 4] = [
    ("graphs are on", |d, _| {
        d.full.is_some() || d.pieces.is_some()
    }),
    ("a row decodes", |_, rows| rows > 0),
    ("the batch fits the largest graph", |d, rows| {
        rows <= d.largest()
    }),
    ("a graph of this very size, or padding", |d, rows| {
        d.tables().any(|table| table.find(rows).is_some())
    }),
];

type Condition = fn(&Dispatch, usize) -> bool;

/// Sends each step its way and counts.
#[derive(Debug)]
pub struct Dispatch {
    full: Option<SizeTable>,
    pieces: Option<SizeTable>,
    /// Of steps that verify drafts, and how they are run.
    rounds: SizeTable,
    round_way: Way,
    missed: [u64; CONDITIONS.len()],
    stats: Arc<SharedStats>,
}

impl Dispatch {
    /// Tables for steps of up to `n_slots` rows, of which `sizes` (or the default up to `most`) are
    /// captured. With both kinds of graph the whole step is one up to the largest size, and steps
    /// above it are replayed in pieces.
    pub fn new(
        mode: GraphMode,
        sizes: Option<&[usize]>,
        most: usize,
        n_slots: usize,
        padding: bool,
    ) -> Self {
        let sizes = match sizes {
            Some(sizes) => sizes.to_vec(),
            None => default_sizes(most.clamp(1, n_slots.max(1))),
        };
        let table = |sizes| SizeTable::new(sizes, padding);
        let above = || {
            let mut all = default_sizes(n_slots);
            all.extend(&sizes);
            all.sort_unstable();
            all.dedup();
            all
        };
        let pieces = match mode {
            GraphMode::Piecewise => Some(table(sizes.clone())),
            GraphMode::FullAndPiecewise => Some(table(above())),
            GraphMode::Full | GraphMode::None => None,
        };
        let dispatch = Self {
            full: mode.is_full().then(|| table(sizes)),
            pieces,
            rounds: SizeTable::new(ROUND_SIZES.to_vec(), padding),
            round_way: match mode {
                GraphMode::None => Way::Eager,
                GraphMode::Piecewise => Way::Piecewise,
                GraphMode::Full | GraphMode::FullAndPiecewise => Way::Full,
            },
            missed: [0; CONDITIONS.len()],
            stats: Arc::default(),
        };
        {
            let mut stats = dispatch.stats.lock();
            stats.mode = mode.name();
            stats.batch_sizes = dispatch.sizes();
            stats.missed = dispatch.missed();
        }
        dispatch
    }

    fn tables(&self) -> impl Iterator<Item = &SizeTable> {
        self.full.iter().chain(&self.pieces)
    }

    fn largest(&self) -> usize {
        let last = |table: &SizeTable| table.sizes.last().copied();
        self.tables().filter_map(last).max().unwrap_or(0)
    }

    /// Every size that is captured, ascending.
    pub fn sizes(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.capture_order().iter().map(|key| key.rows).collect();
        all.sort_unstable();
        all
    }

    /// Every step that is captured: those in pieces before whole ones, the largest first, whose
    /// buffers serve the others.
    pub fn capture_order(&self) -> Vec<Key> {
        let keys = |table: &Option<SizeTable>, way| {
            let sizes = table.as_ref().map_or(&[][..], |t| t.sizes());
            let keys = sizes.iter().rev().map(|rows| Key::step(way, *rows));
            keys.collect::<Vec<_>>()
        };
        // Where a size has both, its steps are whole.
        let is_whole = |rows| self.full.as_ref().is_some_and(|t| t.find(rows).is_some());
        let mut order = keys(&self.pieces, Way::Piecewise);
        order.retain(|key| !is_whole(key.rows));
        order.extend(keys(&self.full, Way::Full));
        order
    }

    /// How a step of `rows` rows would be run: as one graph, else in pieces, else eagerly.
    pub fn way(&self, rows: usize) -> Key {
        let found = |table: &Option<SizeTable>, way| {
            let size = table.as_ref().and_then(|t| t.find(rows));
            size.map(|rows| Key::step(way, rows))
        };
        found(&self.full, Way::Full)
            .or_else(|| found(&self.pieces, Way::Piecewise))
            .unwrap_or(Key::step(Way::Eager, rows))
    }

    /// As [`Dispatch::way`], for a step that is run: counts it, and what kept it from being a
    /// replay.
    pub fn choose(&mut self, rows: usize) -> Key {
        let missed = CONDITIONS.iter().position(|(_, holds)| !holds(self, rows));
        if let Some(condition) = missed {
            self.missed[condition] += 1;
        }
        let key = self.way(rows);
        self.count(key);
        key
    }

    /// As [`Dispatch::choose`], for a step of `rows` rows that verifies drafts.
    pub fn choose_round(&mut self, rows: usize) -> Key {
        let size = self.rounds.find(rows);
        let way = match (self.round_way, size) {
            (Way::Eager, _) | (_, None) => Way::Eager,
            (way, Some(_)) => way,
        };
        if way == Way::Eager {
            // Of the conditions: there are no graphs, or none of this size.
            self.missed[if self.round_way == way { 0 } else { 3 }] += 1;
        }
        let key = Key {
            purpose: Purpose::Round,
            way,
            rows: size.filter(|_| way != Way::Eager).unwrap_or(rows),
        };
        self.count(key);
        key
    }

    /// As [`Dispatch::choose`], for a round of so many `sequences` of each of which so many tokens are
    /// drafted by the model, all within [`ROUND_ROWS`].
    pub fn choose_guessed(&mut self, sequences: usize, drafted: usize) -> Key {
        let most = ROUND_ROWS / (1 + drafted);
        let way = self.round_way;
        if way == Way::Eager {
            self.missed[0] += 1;
        }
        let key = Key {
            purpose: Purpose::Guessed { drafted },
            way,
            rows: match self.rounds.padding && way != Way::Eager {
                true => sequences.next_power_of_two().min(most).max(sequences),
                false => sequences,
            },
        };
        self.count(key);
        key
    }

    fn count(&self, key: Key) {
        let mut stats = self.stats.lock();
        match key.way {
            Way::Full => stats.full += 1,
            Way::Piecewise => stats.piecewise += 1,
            Way::Eager => {
                stats.eager += 1;
                stats.missed = self.missed();
            }
        }
    }

    /// Steps to capture at load: all of them, or the one that a lone sequence needs.
    pub fn at_load(&self, warmup: bool) -> Vec<Key> {
        match warmup {
            true => self.capture_order(),
            false => vec![self.way(1)],
        }
    }

    /// Notes a step that was captured.
    pub fn note(&self, captured: CapturedStep) {
        self.stats.lock().captured.push(captured);
    }

    /// What became of steps so far.
    pub fn stats(&self) -> &Arc<SharedStats> {
        &self.stats
    }

    /// Each condition of a replay and how many steps missed it.
    pub fn missed(&self) -> Vec<(&'static str, u64)> {
        let names = CONDITIONS.iter().map(|(name, _)| *name);
        names.zip(self.missed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(rows: usize) -> Key {
        Key::step(Way::Full, rows)
    }

    fn pieces(rows: usize) -> Key {
        Key::step(Way::Piecewise, rows)
    }

    fn eager(rows: usize) -> Key {
        Key::step(Way::Eager, rows)
    }

    #[test]
    fn the_default_sizes_double_and_then_step() {
        assert_eq!(default_sizes(1), [1]);
        assert_eq!(default_sizes(6), [1, 2, 4, 6]);
        assert_eq!(default_sizes(8), [1, 2, 4, 8]);
        assert_eq!(default_sizes(40), [1, 2, 4, 8, 16, 24, 32, 40]);
        let many = default_sizes(300);
        assert_eq!(many[9..13], [56, 64, 80, 96]);
        assert_eq!(many[many.len() - 2..], [256, 300]);
        assert!(default_sizes(1024).len() <= MOST_SIZES);
    }

    #[test]
    fn chosen_sizes_are_sorted_and_nonsense_is_refused_with_its_numbers() {
        assert_eq!(chosen_sizes(&[4, 1, 4], 8, "max_batch = 8"), Ok(vec![1, 4]));
        let refused = |wanted: &[usize], most| {
            let error = chosen_sizes(wanted, most, "graph.max_batch = 6").unwrap_err();
            error.to_string()
        };
        let text = refused(&[], 6);
        assert!(
            text.contains("= []") && text.contains("at least one"),
            "{text}"
        );
        for wrong in [0, 7] {
            let text = refused(&[1, wrong], 6);
            let said = format!("graph.batch_sizes = {wrong}: must be from 1 to 6");
            assert!(
                text.contains(&said) && text.contains("graph.max_batch"),
                "{text}"
            );
        }
        let text = refused(&(1..=65).collect::<Vec<_>>(), 100);
        assert!(
            text.contains("65 sizes") && text.contains("at most 64"),
            "{text}"
        );
    }

    #[test]
    fn the_table_gives_the_smallest_size_with_room() {
        let sizes = vec![1, 2, 4, 8, 16, 24];
        let table = SizeTable::new(sizes.clone(), true);
        for rows in 0..30 {
            let expected = sizes.iter().copied().find(|s| rows > 0 && *s >= rows);
            assert_eq!(table.find(rows), expected, "{rows} rows");
        }
        let exact = SizeTable::new(sizes.clone(), false);
        for rows in 0..30 {
            let expected = sizes.contains(&rows).then_some(rows);
            assert_eq!(exact.find(rows), expected, "{rows} rows");
        }
    }

    #[test]
    fn each_mode_sends_steps_its_way() {
        let new = |mode, sizes: &[usize]| Dispatch::new(mode, Some(sizes), 16, 16, true);
        let of = |mode, rows| new(mode, &[1, 4]).way(rows);
        assert_eq!(of(GraphMode::Full, 1), full(1));
        assert_eq!(of(GraphMode::Full, 3), full(4));
        assert_eq!(of(GraphMode::Full, 5), eager(5));
        assert_eq!(of(GraphMode::Piecewise, 3), pieces(4));
        assert_eq!(of(GraphMode::Piecewise, 5), eager(5));
        assert_eq!(of(GraphMode::FullAndPiecewise, 3), full(4));
        assert_eq!(of(GraphMode::FullAndPiecewise, 5), pieces(8));
        assert_eq!(of(GraphMode::FullAndPiecewise, 17), eager(17));
        assert_eq!(of(GraphMode::None, 1), eager(1));
        assert_eq!(of(GraphMode::Full, 0), eager(0));
        let order = new(GraphMode::FullAndPiecewise, &[1, 4]).capture_order();
        assert_eq!(
            order,
            [pieces(16), pieces(8), full(4), full(1)],
            "pieces first, the largest first"
        );
        assert_eq!(
            new(GraphMode::FullAndPiecewise, &[1, 4]).sizes(),
            [1, 4, 8, 16]
        );
        assert!(new(GraphMode::None, &[1]).capture_order().is_empty());
    }

    #[test]
    fn the_largest_graph_is_at_most_what_was_asked_for() {
        let with = |most| Dispatch::new(GraphMode::Full, None, most, 8, true).sizes();
        assert_eq!(with(8), [1, 2, 4, 8]);
        assert_eq!(with(3), [1, 2, 3]);
        assert_eq!(with(100), [1, 2, 4, 8], "never above the slots");
    }

    #[test]
    fn steps_that_are_no_replay_are_counted_by_the_condition_they_missed() {
        let counts = |mode, padding, steps: &[usize]| {
            let mut dispatch = Dispatch::new(mode, Some(&[2, 4]), 8, 8, padding);
            for rows in steps {
                dispatch.choose(*rows);
            }
            dispatch
                .missed()
                .into_iter()
                .map(|(_, n)| n)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            counts(GraphMode::Full, true, &[1, 2, 3, 4, 5, 0, 8]),
            [0, 1, 2, 0]
        );
        assert_eq!(counts(GraphMode::Full, false, &[1, 2, 3]), [0, 0, 0, 2]);
        assert_eq!(counts(GraphMode::None, true, &[1, 2]), [2, 0, 0, 0]);
        let names = Dispatch::new(GraphMode::None, None, 1, 1, true).missed();
        assert_eq!(names[0].0, "graphs are on");
    }
}
