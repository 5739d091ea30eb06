//! What a captured decode step, or the passes of a prompt, consist of, and how long their parts take.

use super::{endless, stamps};
use crate::backend::cuda::driver::graph::{Graph, GraphShape};
use crate::backend::cuda::driver::launch::{run_all, Launch};
use crate::backend::cuda::driver::peaks::{multiply_peak, read_peak};
use crate::backend::cuda::driver::spec::Reach;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::driver::timing::{launch_us, run_us};
use crate::backend::cuda::lower::rowwise::nothing;
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::cuda::run::cache::{Key, Purpose};
use crate::backend::cuda::run::card::Card;
use crate::backend::cuda::run::decoder::Decoder;
use crate::backend::cuda::run::ready::{Ready, Way};
use crate::backend::cuda::run::ring::Ring;
use crate::backend::cuda::run::rows::Rows;
use crate::backend::cuda::run::sampling::Sampling;
use crate::backend::parts::{Part, Rest};
use crate::backend::{GraphKernel, GraphProfile, GraphQuestion, KernelStamps, Profiled};
use crate::error::{Error, Result};

/// See [`crate::backend::Inspect::profile_graph`].
pub fn profile(
    backend: &mut CudaBackend,
    slots: &[usize],
    question: &GraphQuestion,
) -> Result<GraphProfile> {
    backend.finish_queued()?;
    match question.what {
        Profiled::Step { batch_size } => step(backend, slots, batch_size, question),
        Profiled::Prompt { tokens } => prompt(backend, slots, tokens, question),
    }
}

/// Times of launches, and what became of them.
#[derive(Default)]
struct Measured {
    replay_us: f64,
    eager_us: f64,
    kernels: Vec<GraphKernel>,
}

impl Measured {
    /// Adds the launches of a pass that reaches so far, and their times.
    fn add(&mut self, list: &[Launch], times: Vec<f64>, reach: &Reach, stamps: Vec<KernelStamps>) {
        let mut stamps = stamps.into_iter();
        let kernels = list.iter().zip(times).map(|(launch, us)| GraphKernel {
            kernel: launch.spec.entry,
            label: launch.spec.label.clone(),
            us,
            bytes: launch.spec.traffic.weights,
            moved: launch.spec.traffic.bytes(reach),
            operations: launch.spec.traffic.operations(reach),
            grid: launch.spec.grid,
            block: launch.spec.block,
            shared: launch.spec.shared,
            stamps: stamps.next(),
        });
        self.kernels.extend(kernels);
    }

    fn report(
        self,
        card: &Card,
        (way, batch_size): (Way, usize),
        graphs: &[&Graph],
        question: &GraphQuestion,
    ) -> Result<GraphProfile> {
        let shape = shape(graphs, question)?;
        let (info, repeats) = (&card.context.info, question.repeats);
        let nothing = card.launches(vec![nothing(); 2])?;
        let boundary_us = launch_us(&card.stream, &nothing, repeats, || Ok(()))?;
        card.kv.take_error().map_or(Ok(()), Err)?;
        let (read, _) = read_peak(info.ordinal, card.nvrtc_folders(), None, repeats)?;
        let multiply = multiply_peak(info.ordinal, card.nvrtc_folders(), repeats)?;
        let prompt = match question.what {
            Profiled::Step { .. } => 0,
            Profiled::Prompt { tokens } => tokens,
        };
        Ok(GraphProfile {
            device: info.device(),
            kind: way.name(),
            batch_size,
            prompt,
            position: question.position,
            graphs: graphs.len(),
            nodes: shape.nodes,
            edges: shape.edges,
            programmatic_edges: shape.programmatic_edges,
            launches: self.kernels.len(),
            replay_us: self.replay_us,
            eager_us: self.eager_us,
            boundary_us: boundary_us.last().copied().unwrap_or(0.0),
            read_peak_gb_s: read / 1e9,
            multiply_peak_tflop_s: multiply / 1e12,
            kernels: self.kernels,
        })
    }
}

fn step(
    backend: &mut CudaBackend,
    slots: &[usize],
    batch_size: usize,
    question: &GraphQuestion,
) -> Result<GraphProfile> {
    let key = backend.dispatch.way(batch_size);
    if key.way == Way::Eager {
        let stats = backend.stats().now();
        return Err(Error::Argument {
            name: "batch_size",
            value: batch_size.to_string(),
            reason: format!(
                "with graph.mode = \"{}\" only steps of {:?} rows are captured; use one of them, \
                 or load with graph.batch_sizes that include it",
                stats.mode, stats.batch_sizes
            ),
        });
    }
    backend.prepare(key)?;
    let decoder = &mut backend.decoder;
    let slots = &slots[..slots.len().min(batch_size)];
    endless::start(decoder, slots)?;
    let row_slots = slots.iter().map(|slot| *slot as u32).collect();
    decoder.set_row_slots(row_slots, key.rows)?;
    let profile = measure_step(decoder, key, slots, question);
    endless::stop(decoder, slots, profile)
}

/// What `graphs` consist of together; each is written to a file where one is asked for.
fn shape(graphs: &[&Graph], question: &GraphQuestion) -> Result<GraphShape> {
    let mut whole = GraphShape::default();
    for (i, graph) in graphs.iter().enumerate() {
        let one = graph.shape()?;
        whole.nodes += one.nodes;
        whole.edges += one.edges;
        whole.programmatic_edges += one.programmatic_edges;
        if let Some(path) = &question.dot {
            // A step in pieces is as many files.
            graph.write_dot(&match graphs.len() {
                1 => path.clone(),
                _ => path.with_extension(format!("{i}.dot")),
            })?;
        }
    }
    Ok(whole)
}

fn measure_step(
    decoder: &mut Decoder,
    key: Key,
    slots: &[usize],
    question: &GraphQuestion,
) -> Result<GraphProfile> {
    let Decoder {
        card,
        sampling,
        lists,
        ring,
        ..
    } = decoder;
    let stream = &card.stream;
    let Some(step) = lists.get(key) else {
        return Err(Error::Internal(format!("{} is not ready", key.name())));
    };
    let list = step.launches();
    let (repeats, in_a_row) = (question.repeats, GraphQuestion::IN_A_ROW);
    // Every run advances its sequences: each row of runs begins where the first did.
    let mut rewind = |runs: usize| {
        ring.pass_over(runs);
        slots
            .iter()
            .try_for_each(|slot| sampling.force(*slot, 0, question.position, stream))
    };
    let replay_us = run_us(
        stream,
        repeats,
        in_a_row,
        || rewind(in_a_row),
        || step.run(stream),
    )?;
    let eager_us = run_us(
        stream,
        repeats,
        in_a_row,
        || rewind(in_a_row),
        || run_all(&list, stream),
    )?;
    let times = launch_us(stream, &list, repeats, || rewind(1))?;
    let way = key.way;
    let mut rewound = |_: &Stream| rewind(in_a_row);
    let stamped = match question.stamps {
        true => stamps::stamps(card, &list, way, repeats, in_a_row, &mut rewound)?,
        false => Vec::new(),
    };
    let reach = Reach {
        sequences: slots.len(),
        rows: 1,
        position: question.position,
    };
    let mut measured = Measured {
        replay_us,
        eager_us,
        ..Measured::default()
    };
    measured.add(&list, times, &reach, stamped);
    measured.report(card, (way, key.rows), &step.graphs(), question)
}

/// Token ids that are as far apart as a text's: experts are chosen, and rows embedded, as of one.
fn ids(n: usize, n_vocab: usize) -> Vec<u32> {
    let scattered = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % n_vocab;
    (1..=n as u64).map(|i| scattered(i) as u32).collect()
}

/// The passes of a prompt of so many `tokens`, each measured where those before it have left keys, values
/// and states.
fn prompt(
    backend: &mut CudaBackend,
    slots: &[usize],
    tokens: usize,
    question: &GraphQuestion,
) -> Result<GraphProfile> {
    let Some(&slot) = slots.first() else {
        return Err(Error::Internal("a prompt of no slot".into()));
    };
    let chunks = backend.chunks;
    let decoder = &mut backend.decoder;
    let all = ids(question.position + tokens, decoder.n_vocab());
    let (before, asked) = all.split_at(question.position);
    let part = |tokens, start, last| Part {
        slot,
        tokens,
        start,
        last,
        next: None,
    };
    endless::start(decoder, &[slot])?;
    let mut measure = || {
        let mut rest: Rest<'_> = [part(before, 0, false)].into_iter().collect();
        rest.retain(|part| !part.tokens.is_empty());
        while !rest.is_empty() {
            let (parts, rows) = chunks.next(&mut rest, 0);
            for part in parts {
                let pass = PromptPass::new(part, rows, chunks.way);
                pass.set(&decoder.card, &mut decoder.sampling, &mut decoder.ring)?;
                decoder.run(pass.key)?;
            }
        }
        let mut rest: Rest<'_> = [part(asked, before.len(), true)].into_iter().collect();
        let (mut measured, mut lists) = (Measured::default(), Vec::new());
        while !rest.is_empty() {
            let (parts, rows) = chunks.next(&mut rest, 0);
            for part in parts {
                let pass = PromptPass::new(part, rows, chunks.way);
                lists.push(pass.measure(decoder, &mut measured, question)?);
            }
        }
        let graphs: Vec<&Graph> = lists.iter().flat_map(Ready::graphs).collect();
        measured.report(&decoder.card, (chunks.way, 1), &graphs, question)
    };
    let profile = measure();
    endless::stop(decoder, &[slot], profile)
}

/// A pass over a part of a prompt.
struct PromptPass<'a> {
    part: Part<'a>,
    rows: Rows,
    key: Key,
}

impl<'a> PromptPass<'a> {
    fn new(part: Part<'a>, rows: usize, way: Way) -> Self {
        let wanted = usize::from(part.last);
        let mut all = Rows::default();
        all.push(part.slot, part.tokens, part.start, wanted);
        all.pad(rows);
        let purpose = Purpose::Chunk { wanted, steps: 0 };
        Self {
            part,
            rows: all,
            key: Key { purpose, way, rows },
        }
    }

    /// Says what its rows are, and that the sequence draws behind the last ones.
    fn set(&self, card: &Card, sampling: &mut Sampling, ring: &mut Ring) -> Result<()> {
        let Part {
            slot,
            tokens,
            start,
            ..
        } = self.part;
        card.rows.write(&self.rows, &card.stream)?;
        let state_slots = &card.rows.state_slots;
        state_slots.write(0, &[slot as u32], &card.stream)?;
        // What is drawn is nobody's.
        ring.pass_over(usize::from(self.part.last));
        sampling.force(slot, 0, start + tokens.len() - 1, &card.stream)
    }

    /// Adds its launches and times to `measured`; the list that was timed.
    fn measure(
        &self,
        decoder: &mut Decoder,
        measured: &mut Measured,
        question: &GraphQuestion,
    ) -> Result<Ready> {
        let list = decoder.card.launches(decoder.specs(self.key)?)?;
        let Decoder {
            card,
            sampling,
            ring,
            ..
        } = decoder;
        let (stream, repeats) = (&card.stream, question.repeats);
        let mut set = || self.set(card, sampling, ring);
        measured.eager_us += run_us(stream, repeats, 1, &mut set, || run_all(&list, stream))?;
        let times = launch_us(stream, &list, repeats, &mut set)?;
        let ready = Ready::new(self.key.way, list.clone(), stream)?;
        measured.replay_us += run_us(stream, repeats, 1, &mut set, || ready.run(stream))?;
        let reach = Reach {
            sequences: 1,
            rows: self.part.tokens.len(),
            position: self.part.start,
        };
        measured.add(&list, times, &reach, Vec::new());
        Ok(ready)
    }
}
