//! Prompts on the card: chunked prefill. A prompt is fed in chunks of a few sizes, each a list of its own that runs
//! launch by launch at first, which is its warm-up, and is captured then; rows that a chunk does not need are padding, which stores nothing and
//! which nothing reads. The last row alone goes through the head of the model.
//!
//! No bit depends on how a prompt is cut: the order of every sum is fixed by the row.

use super::cache::{Key, Purpose};
use super::decoder::Decoder;
use super::ready::Way;
use super::rows::Rows;
use crate::backend::cuda::driver::spec::Spec;
use crate::backend::cuda::lower::lowering::{Pass, Path};
use crate::backend::parts::{check_tokens, passes, take, Part, Rest};
use crate::backend::{LogitsPath, TextPart, ROUND_ROWS};
use crate::error::{Error, Result};
use crate::plan::{Op, Plan};

/// Rows of the largest chunk where the caller names none: large enough that a chunk's products are
/// bound by arithmetic, and an 8B model's rows then take 0.2 GiB. Eight times as many would take
/// 1.3 GiB, which a cache can use better.
pub const DEFAULT_CHUNK: usize = 512;

/// What the largest chunk may be.
pub const MOST_CHUNK: usize = 4096;

/// What it may be at least.
const LEAST_MOST: usize = 64;

/// Rows of a block of large products.
const FULL_BLOCK: usize = 256;

/// Rows of the smallest chunk.
const LEAST_CHUNK: usize = 8;

/// Rows of steps beside prompts: few, for each goes with chunks of every size.
const STEP_ROWS: [usize; 5] = [8, 32, 64, 128, 256];

/// Rows of one pass where all give logits, which take much memory.
pub const LOGIT_ROWS: usize = ROUND_ROWS;

/// Rows of a pass over a prompt of a model with experts: so many that each expert has some.
const EXPERTS_CHUNK: usize = 2048;

/// Rows of a pass over a prompt of `plan` where nobody says how many.
pub fn chunk_of(plan: &Plan) -> usize {
    match plan.ops.iter().any(|op| matches!(op, Op::Route { .. })) {
        true => EXPERTS_CHUNK,
        false => DEFAULT_CHUNK,
    }
}

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

/// Rows of chunks up to `most`: powers of two, and from 64 on what lies in the middle. Up to there
/// a chunk costs the reading of the weights, whatever its rows; above, at most a third is padding.
fn sizes(most: usize) -> impl DoubleEndedIterator<Item = usize> {
    (3..=12)
        .flat_map(|bits| [1usize << bits, 3 << (bits - 1)])
        .filter(move |rows| rows.is_power_of_two() || *rows > LEAST_MOST)
        .filter(move |rows| *rows <= most)
}

/// Whether nothing of the blocks that multiply a chunk is left over, where it is large. (On an H100 384
/// rows of an 8B model took 42.3 ms, 256 took 26.1 and 512 took 47.5: a time that no other size tells.)
fn is_full(rows: &usize) -> bool {
    *rows <= FULL_BLOCK || rows.is_multiple_of(FULL_BLOCK)
}

/// The next chunk of a prompt of which `rest` tokens are left, of at most `most` rows: how many
/// tokens it takes, and its rows.
fn next_chunk(rest: usize, most: usize) -> (usize, usize) {
    let most = most.max(LEAST_CHUNK);
    let rows = sizes(most).find(|rows| *rows >= rest);
    let rows = rows.or_else(|| sizes(most).last()).unwrap_or(LEAST_CHUNK);
    (rest.min(rows), rows)
}

/// How prompts are cut and run.
#[derive(Debug, Clone, Copy)]
pub struct Chunks {
    /// Rows of the largest one.
    pub most: usize,
    /// As graphs, or launch by launch.
    pub way: Way,
    /// Most rows that draw.
    pub max_out: usize,
}

impl Chunks {
    /// Rows of a pass for a step of so many `sequences` beside prompts, and rows from which so many draw.
    pub fn step_rows(&self, sequences: usize) -> usize {
        match sequences {
            0 => 0,
            n => (STEP_ROWS.into_iter().find(|rows| *rows >= n))
                .map_or(n, |rows| rows.min(self.max_out)),
        }
    }

    /// Whether the largest chunk has room for a step of so many `sequences` and some of a prompt.
    pub fn have_room_beside(&self, sequences: usize) -> bool {
        self.step_rows(sequences) + LEAST_CHUNK <= self.most
    }

    /// How many of prompts' `rest` tokens to feed in one call, beside a step of so many `sequences`, where
    /// the time allows `rows` rows: one chunk.
    pub fn slice(&self, rest: usize, rows: Option<usize>, sequences: usize) -> usize {
        let most = rows.unwrap_or(self.most).min(self.most);
        let steps = self.step_rows(sequences);
        match sizes(most).any(|rows| rows >= rest + steps) {
            true => rest,
            false => {
                let rows = sizes(most).rfind(is_full).unwrap_or(LEAST_CHUNK);
                rows.saturating_sub(steps).max(LEAST_CHUNK).min(rest)
            }
        }
    }

    /// Takes the next chunk's tokens from the front of `rest`, beside `steps` rows; and its rows.
    pub fn next<'a>(&self, rest: &mut Rest<'a>, steps: usize) -> (Vec<Part<'a>>, usize) {
        let all: usize = rest.iter().map(|part| part.tokens.len()).sum();
        let (n, rows) = next_chunk(all + steps, self.most);
        (take(rest, n.saturating_sub(steps)), rows)
    }

    /// Feeds parts of texts; the hidden states of each that are wanted, or its [`Error::Activations`] or
    /// [`Error::KvValues`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a token that is not in the vocabulary, [`Error::Device`].
    pub fn hidden(
        &self,
        decoder: &mut Decoder,
        parts: &[TextPart<'_>],
    ) -> Result<Vec<Result<Vec<f32>>>> {
        let plan = decoder.card.plan();
        let width = plan.hidden().map_or(0, |end| plan.buffer(end.x).width);
        let whole = plan.looks_ahead();
        let mut found = vec![Vec::new(); parts.len()];
        for pass in passes(parts, self.most, whole) {
            let mut all = Rows::default();
            for (_, piece) in &pass {
                check_tokens(piece.tokens, decoder.n_vocab())?;
                all.push_text(piece);
            }
            let (_, rows) = next_chunk(all.len(), self.most);
            all.pad(rows);
            decoder.card.rows.write(&all, &decoder.card.stream)?;
            let any = pass.iter().any(|(_, piece)| piece.wanted > 0);
            decoder.run(Key {
                purpose: match any || whole {
                    true => Purpose::Hidden,
                    false => Purpose::Chunk {
                        wanted: 0,
                        steps: 0,
                    },
                },
                way: self.way,
                rows,
            })?;
            let mut end = 0;
            for (i, piece) in &pass {
                end += piece.tokens.len();
                if piece.wanted > 0 {
                    let (states, n) = (&mut found[*i], piece.wanted);
                    let known = states.len();
                    states.resize(known + n * width, 0.0f32);
                    decoder.read_hidden(end - n, &mut states[known..])?;
                }
            }
        }
        let card = &decoder.card;
        card.settle()?;
        let of = |(part, states): (&TextPart<'_>, Vec<f32>)| {
            let error = card.take_overflow(part.slot, u64::MAX);
            error.map_or(Ok(states), Err)
        };
        Ok(parts.iter().zip(found).map(of).collect())
    }

    /// Every pass over prompts of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// [`Error::Internal`].
    pub fn prompt_specs(&self, decoder: &Decoder, n_ctx: usize) -> Result<Vec<Spec>> {
        let mut specs = Vec::new();
        for rows in self.sizes_for(n_ctx) {
            for out in [0, 1] {
                specs.extend(decoder.card.specs(&chunk(decoder, rows, out))?);
            }
        }
        let beside = STEP_ROWS.map(|rows| rows.min(self.max_out));
        for steps in beside
            .into_iter()
            .filter(|rows| self.have_room_beside(*rows))
        {
            let (_, rows) = next_chunk(steps + LEAST_CHUNK, self.most);
            let path = Path::Prefill { steps };
            for out in [steps, self.step_rows((steps + 1).min(self.max_out))] {
                let pass = chunk(decoder, rows, out);
                specs.extend(decoder.card.specs(&Pass { path, ..pass })?);
            }
        }
        let sizes = self.sizes_for(n_ctx);
        specs.extend(decoder.draft_specs(sizes, self.way)?);
        Ok(specs)
    }

    /// Every pass for the logits, or the hidden states, of prompts of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// [`Error::Internal`].
    pub fn logits_specs(&self, decoder: &Decoder, n_ctx: usize) -> Result<Vec<Spec>> {
        let forced = Pass {
            all: false,
            ..Pass::step(1, decoder.card.rows.inputs())
        };
        let mut specs = decoder.card.specs(&forced)?;
        for rows in sizes(self.most) {
            let out = rows.min(decoder.card.max_out());
            specs.extend(decoder.card.specs(&chunk(decoder, rows, out))?);
        }
        specs.extend(self.hidden_specs(decoder, n_ctx)?);
        Ok(specs)
    }

    /// Every pass for the hidden states of up to `most` tokens, where there are such.
    ///
    /// # Errors
    /// [`Error::Internal`].
    pub fn hidden_specs(&self, decoder: &Decoder, most: usize) -> Result<Vec<Spec>> {
        let mut specs = Vec::new();
        let hidden = decoder.card.plan().hidden();
        for rows in self.sizes_for(most).filter(|_| hidden.is_some()) {
            let hidden = Pass {
                hidden: true,
                ..chunk(decoder, rows, 0)
            };
            specs.extend(decoder.card.specs(&hidden)?);
        }
        Ok(specs)
    }

    /// Rows of the chunks of prompts of up to `n_ctx` tokens.
    fn sizes_for(&self, n_ctx: usize) -> impl Iterator<Item = usize> {
        let (_, most) = next_chunk(n_ctx, self.most);
        sizes(most)
    }
}

/// A pass over a chunk of a prompt, of which the last `out` rows give logits.
fn chunk(decoder: &Decoder, rows: usize, out: usize) -> Pass {
    Pass {
        rows,
        out,
        inputs: decoder.card.rows.inputs(),
        path: Path::Prefill { steps: 0 },
        all: false,
        hidden: false,
    }
}

/// The logits after each of `tokens` of `slot`, the first of them at position `start`.
///
/// # Errors
/// [`Error::Argument`] for a token that is not in the vocabulary, [`Error::Device`].
pub fn logits(
    decoder: &mut Decoder,
    slot: usize,
    tokens: &[u32],
    start: usize,
    path: LogitsPath,
) -> Result<Vec<f32>> {
    let width = decoder.n_vocab();
    let mut logits = vec![0.0f32; tokens.len() * width];
    let rows = match path {
        LogitsPath::Prefill => LOGIT_ROWS,
        LogitsPath::Decode => 1,
    };
    let parts = tokens.chunks(rows).zip(logits.chunks_mut(rows * width));
    for (i, (tokens, logits)) in parts.enumerate() {
        let start = start + i * rows;
        match path {
            LogitsPath::Prefill => logits_pass(decoder, slot, tokens, start)?,
            LogitsPath::Decode => forced_step(decoder, slot, tokens[0], start)?,
        }
        decoder.read_logits(0, logits)?;
        decoder.card.settle()?;
        let failed = decoder.card.take_overflow(slot, u64::MAX);
        failed.map_or(Ok(()), Err)?;
    }
    Ok(logits)
}

/// Queues a pass over `tokens` of `slot` from position `start` on whose logits are all wanted.
///
/// # Errors
/// [`Error::Argument`] for a token that is not in the vocabulary, [`Error::Device`].
pub fn logits_pass(decoder: &mut Decoder, slot: usize, tokens: &[u32], start: usize) -> Result<()> {
    let rows = tokens.len();
    set_rows(decoder, slot, tokens, start, rows, rows)?;
    decoder.run(Key {
        purpose: Purpose::Logits,
        // Of any length, once each: not worth a graph.
        way: Way::Eager,
        rows,
    })
}

/// Queues `token` of `slot` at `position` as a step of one row, which draws nothing.
///
/// # Errors
/// [`Error::Argument`] for a token that is not in the vocabulary, [`Error::Device`].
pub fn forced_step(decoder: &mut Decoder, slot: usize, token: u32, position: usize) -> Result<()> {
    set_rows(decoder, slot, &[token], position, 1, 1)?;
    decoder.run(Key {
        purpose: Purpose::Forced,
        way: Way::Full,
        rows: 1,
    })
}

/// Sets the host's `rows` rows: `tokens` of one slot from position `start` on, then padding;
/// logits of the `wanted` last tokens.
fn set_rows(
    decoder: &Decoder,
    slot: usize,
    tokens: &[u32],
    start: usize,
    rows: usize,
    wanted: usize,
) -> Result<()> {
    check_tokens(tokens, decoder.n_vocab())?;
    let mut all = Rows::default();
    all.push(slot, tokens, start, wanted);
    all.pad(rows);
    decoder.card.rows.write(&all, &decoder.card.stream)
}

#[cfg(test)]
mod tests {
    use super::super::cache::MOST_LISTS;
    use super::*;
    use crate::plan::sketch as s;

    #[test]
    fn passes_are_larger_where_rows_choose_experts() {
        let [acts, routes, downs] = ["acts", "routes", "downs"].map(s::id);
        let of = |choice: Op| {
            let weight = s::weight_id("of_downs");
            let by = s::by_experts(acts, None, routes, weight, downs);
            chunk_of(&s::plan(vec![choice, by]))
        };
        let chosen = of(s::route(s::id("router"), routes));
        let all = of(Op::RouteAll { out: routes });
        assert_eq!([chosen, all], [EXPERTS_CHUNK, DEFAULT_CHUNK]);
    }

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
        assert!(2 * all.len() <= MOST_LISTS);
        assert_eq!(next_chunk(300, 512), (300, 384));
        assert_eq!(next_chunk(1, 512), (1, 8));
        // As many rows as the time allows, in whole chunks.
        assert_eq!(next_chunk(1000, 437), (384, 384));
        assert_eq!(next_chunk(1000, 1), (8, 8));
    }

    #[test]
    fn slices_are_chunks_whose_time_a_line_tells() {
        let chunks = Chunks {
            most: 1024,
            way: Way::Eager,
            max_out: 64,
        };
        let of = |rest, rows| chunks.slice(rest, rows, 0);
        let limited = [1, 40, 100, 300, 400, 511, 800, 5000].map(|rows| of(9000, Some(rows)));
        assert_eq!(limited, [8, 32, 96, 256, 256, 256, 768, 1024]);
        // What is left of a prompt goes at once where it fits.
        assert_eq!([of(300, Some(400)), of(9000, None)], [300, 1024]);
        assert_eq!([of(400, Some(437)), of(3, Some(1))], [256, 3]);
        // Beside a step a chunk is as large, and holds the step's rows too.
        let beside = [(1, 248), (8, 248), (9, 224), (64, 192)];
        for (sequences, tokens) in beside {
            assert_eq!(chunks.slice(9000, Some(300), sequences), tokens);
        }
        assert_eq!(chunks.slice(9000, Some(3), 8), 8);
        assert_eq!(
            [250, 248].map(|rest| chunks.slice(rest, Some(256), 8)),
            [248; 2]
        );
        assert!(chunks.have_room_beside(64));
        let small = Chunks { most: 64, ..chunks };
        assert_eq!(
            [33, 32, 1].map(|n| small.have_room_beside(n)),
            [false, true, true]
        );
        // A row for each that there may be.
        let few = Chunks {
            max_out: 100,
            ..chunks
        };
        assert_eq!(
            [1, 64, 65, 100].map(|n| few.step_rows(n)),
            [8, 64, 100, 100]
        );
    }

    #[test]
    fn a_pass_takes_what_fits_beside_a_step() {
        let chunks = Chunks {
            most: 64,
            way: Way::Eager,
            max_out: 64,
        };
        let tokens = [7; 100];
        let part = |slot, n: usize| Part {
            slot,
            tokens: &tokens[..n],
            start: 0,
            last: true,
            next: None,
        };
        let mut rest: Rest<'_> = [part(0, 10), part(1, 70)].into_iter().collect();
        let of = |parts: Vec<Part<'_>>| -> Vec<(usize, usize, bool)> {
            let parts = parts.into_iter();
            parts
                .map(|part| (part.slot, part.tokens.len(), part.last))
                .collect()
        };
        let (first, rows) = chunks.next(&mut rest, 8);
        assert_eq!((of(first), rows), (vec![(0, 10, true), (1, 46, false)], 64));
        let (second, rows) = chunks.next(&mut rest, 0);
        assert_eq!((of(second), rows), (vec![(1, 24, true)], 32));
        // A step alone.
        let (none, rows) = chunks.next(&mut rest, 32);
        assert_eq!((of(none), rows), (vec![], 32));
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
