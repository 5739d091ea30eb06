//! Prompts on the card. A prompt is fed in chunks of a few sizes, each a graph of its own that is
//! captured at first need; rows that a chunk does not need are padding, which stores nothing and
//! which nothing reads. The last row alone goes through the head of the model.
//!
//! No bit depends on how a prompt is cut: the order of every sum is fixed by the row.

use std::collections::HashMap;

use super::backend::CudaBackend;
use super::graph::Graph;
use super::launch::{run_all, Launch, Spec};
use super::model::Path;
use super::steps::capture;
use crate::error::{Error, Result};

/// Rows of the largest chunk where the caller names none: large enough that a chunk's products are
/// bound by arithmetic, and an 8B model's rows then take 0.2 GiB. Eight times as many would take
/// 1.3 GiB, which a cache can use better.
pub const DEFAULT_CHUNK: usize = 512;

/// What the largest chunk may be.
pub const MOST_CHUNK: usize = 4096;

/// What it may be at least.
const LEAST_MOST: usize = 64;

/// Rows of the smallest chunk.
const LEAST_CHUNK: usize = 8;

/// Slot of rows that only fill a chunk up; `PADDING_SLOT` of kv.cuh.
const PADDING_SLOT: u32 = u32::MAX;

/// Passes that are kept: eager ones of any number of rows and those that depend on the span too.
const MOST_PASSES: usize = 64;

/// Checks the option `prefill_chunk`.
///
/// # Errors
/// [`Error::Argument`].
pub fn check_chunk(rows: usize) -> Result<()> {
    if rows.is_power_of_two() && (LEAST_MOST..=MOST_CHUNK).contains(&rows) {
        return Ok(());
    }
    Err(Error::Argument {
        name: "prefill_chunk",
        value: rows.to_string(),
        reason: format!("must be a power of two from {LEAST_MOST} to {MOST_CHUNK}"),
    })
}

/// Rows of chunks up to `most`: powers of two, and from 64 on what lies in the middle. Up to there a
/// chunk costs the reading of the weights, whatever its rows; above, at most a third is padding.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    (3..=12)
        .flat_map(|bits| [1usize << bits, 3 << (bits - 1)])
        .filter(|rows| rows.is_power_of_two() || *rows > LEAST_MOST)
        .take_while(move |rows| *rows <= most)
}

/// The next chunk of a prompt of which `rest` tokens are left, of at most `most` rows: how many
/// tokens it takes, and its rows.
fn next_chunk(rest: usize, most: usize) -> (usize, usize) {
    let most = most.max(LEAST_CHUNK);
    let rows = sizes(most).find(|rows| *rows >= rest);
    let rows = rows.or_else(|| sizes(most).last()).unwrap_or(LEAST_CHUNK);
    (rest.min(rows), rows)
}

/// A pass over the host's rows.
enum Pass {
    Graph(Graph),
    List(Vec<Launch>),
}

/// What a pass was made for: rows, those of them that give logits, what its attention spans.
type Key = (usize, usize, usize);

/// The passes over prompts that were needed so far.
pub(super) struct Passes {
    // Graphs use what the backend's model owns: this goes before it.
    known: HashMap<Key, Pass>,
    chunk: usize,
    capture: bool,
}

impl Passes {
    /// None yet; chunks have up to `chunk` rows.
    pub(super) fn new(chunk: usize, capture: bool) -> Self {
        Self {
            known: HashMap::new(),
            chunk,
            capture,
        }
    }

    /// How many of a prompt's `rest` tokens to feed in one call, where the time allows `rows` rows:
    /// one chunk.
    pub(super) fn slice(&self, rest: usize, rows: Option<usize>) -> usize {
        next_chunk(rest, rows.unwrap_or(self.chunk).min(self.chunk)).0
    }
}

impl CudaBackend {
    /// Feeds `tokens` of `slot` from position `start` on, a chunk after another; with `sample` the
    /// slot is live from then on, and its first token is drawn in the last chunk's pass.
    pub(super) fn feed(
        &mut self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        sample: bool,
    ) -> Result<()> {
        let mut fed = 0;
        while fed < tokens.len() {
            let (n, rows) = next_chunk(tokens.len() - fed, self.passes.chunk);
            let last = sample && fed + n == tokens.len();
            let wanted = usize::from(last);
            let begin = start + fed;
            self.set_rows(slot, &tokens[fed..fed + n], begin, rows, wanted)?;
            if last {
                // Before the pass, which reads none of it: behind it the card would wait.
                let stream = &self.model.stream;
                self.sampling.arm(slot, begin + n - 1, stream)?;
                let state_slots = &self.model.rows.state_slots;
                state_slots.write(0, &[slot as u32], stream)?;
            }
            self.pass(rows, wanted, begin + n, true)?;
            fed += n;
        }
        Ok(())
    }

    /// Queues a pass over `tokens` whose logits are all wanted.
    pub(super) fn logits_pass(&mut self, slot: usize, tokens: &[u32], start: usize) -> Result<()> {
        let n = tokens.len();
        self.set_rows(slot, tokens, start, n, n)?;
        // Of any length, once each: not worth a graph.
        self.pass(n, n, start + n, false)
    }

    /// Sets the host's `rows` rows: `tokens` of one slot from position `start` on, then padding;
    /// logits of the `wanted` last tokens.
    pub(super) fn set_rows(
        &self,
        slot: usize,
        tokens: &[u32],
        start: usize,
        rows: usize,
        wanted: usize,
    ) -> Result<()> {
        let n = tokens.len() as u32;
        let n_vocab = self.limits.n_vocab;
        if let Some(token) = tokens.iter().find(|t| **t as usize >= n_vocab) {
            return Err(Error::Argument {
                name: "token",
                value: token.to_string(),
                reason: format!("the vocabulary has {n_vocab} tokens"),
            });
        }
        let padded = |live: Vec<u32>, padding: u32| {
            let mut values = live;
            values.resize(rows, padding);
            values
        };
        let (inputs, stream) = (&self.model.rows, &self.model.stream);
        let positions = (0..n).map(|i| start as u32 + i).collect();
        let slots = vec![slot as u32; tokens.len()];
        let out_rows: Vec<u32> = (n - wanted as u32..n).collect();
        inputs
            .tokens
            .write(0, &padded(tokens.to_vec(), 0), stream)?;
        inputs.positions.write(0, &padded(positions, 0), stream)?;
        inputs
            .slots
            .write(0, &padded(slots, PADDING_SLOT), stream)?;
        inputs.out_rows.write(0, &out_rows, stream)
    }

    /// Every pass over prompts that may be needed, and those that give the logits of all their rows.
    pub(super) fn prompt_specs(&self) -> Result<Vec<Spec>> {
        let inputs = self.model.rows.inputs();
        let prefill = Path::Prefill {
            span: self.limits.n_ctx,
        };
        let mut specs = self
            .model
            .specs(1, 1, &inputs, Path::Decode { bucket: 1 })?;
        for rows in sizes(self.passes.chunk) {
            for wanted in [0, 1, rows.min(LEAST_CHUNK)] {
                specs.extend(self.model.specs(rows, wanted, &inputs, prefill)?);
            }
        }
        Ok(specs)
    }

    /// Queues one pass over the host's rows, whose positions end before `end`; that of a chunk whose
    /// last row is wanted draws from it.
    fn pass(&mut self, rows: usize, wanted: usize, end: usize, is_chunk: bool) -> Result<()> {
        let span = self.model.prompt_span(end);
        let key = (rows, wanted, span);
        if !self.passes.known.contains_key(&key) {
            let inputs = self.model.rows.inputs();
            let mut specs = self
                .model
                .specs(rows, wanted, &inputs, Path::Prefill { span })?;
            if is_chunk && wanted > 0 {
                specs.extend(self.draw_specs(1, inputs.state_slots));
            }
            let list = self.model.compile(specs)?;
            let what = format!("a prompt's chunk of {rows} rows");
            let pass = match is_chunk && self.passes.capture {
                true => Pass::Graph(capture(&self.model.stream, &list, &what)?),
                false => Pass::List(list),
            };
            if self.passes.known.len() >= MOST_PASSES {
                // None is in flight: every prompt's call waits for its own.
                self.passes.known.clear();
            }
            self.passes.known.insert(key, pass);
        }
        match self.passes.known.get(&key) {
            Some(Pass::Graph(graph)) => graph.replay(&self.model.stream),
            Some(Pass::List(list)) => run_all(list, &self.model.stream),
            None => Err(Error::Internal(format!("no pass for {key:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_sizes_and_mostly_live() {
        let mut used = std::collections::BTreeSet::new();
        for most in [8, 64, 512, 4096] {
            for prompt in 1..5000 {
                let mut rest = prompt;
                while rest > 0 {
                    let (n, rows) = next_chunk(rest, most);
                    assert!(
                        n > 0 && n <= rest && n <= rows && rows <= most,
                        "{rest} {most}"
                    );
                    assert!(rows <= 64 || 3 * n >= 2 * rows, "{n} of {rows}");
                    // Never two where one holds all.
                    assert!(rest > most || n == rest, "{rest}");
                    used.insert(rows);
                    rest -= n;
                }
            }
        }
        let all: Vec<usize> = sizes(4096).collect();
        assert_eq!(all[..10], [8, 16, 32, 64, 96, 128, 192, 256, 384, 512]);
        assert_eq!(used.into_iter().collect::<Vec<_>>(), all);
        // With logits and without, all of them may be kept.
        assert!(2 * all.len() <= MOST_PASSES);
        assert_eq!(next_chunk(300, 512), (300, 384));
        assert_eq!(next_chunk(1, 512), (1, 8));
        // As many rows as the time allows, in whole chunks.
        assert_eq!(next_chunk(1000, 437), (384, 384));
        assert_eq!(next_chunk(1000, 1), (8, 8));
    }

    #[test]
    fn the_largest_chunk_is_checked() {
        for rows in [64, 128, 512, 4096] {
            assert_eq!(check_chunk(rows), Ok(()));
        }
        for rows in [0, 8, 32, 100, 1000, 8192] {
            let text = check_chunk(rows).unwrap_err().to_string();
            assert!(text.contains(&format!("prefill_chunk = {rows}")), "{text}");
            assert!(text.contains("a power of two from 64 to 4096"), "{text}");
        }
    }
}
