//! What a captured decode step consists of, and how long its parts take.

use super::{endless, stamps};
use crate::backend::cuda::driver::bandwidth::read_peak;
use crate::backend::cuda::driver::graph::{Graph, GraphShape};
use crate::backend::cuda::driver::launch::run_all;
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::driver::timing::{launch_us, run_us};
use crate::backend::cuda::lower::rowwise::nothing;
use crate::backend::cuda::run::backend::CudaBackend;
use crate::backend::cuda::run::cache::Key;
use crate::backend::cuda::run::decoder::Decoder;
use crate::backend::cuda::run::ready::Way;
use crate::backend::{GraphKernel, GraphProfile, GraphQuestion};
use crate::error::{Error, Result};

/// See [`crate::backend::Inspect::profile_graph`].
pub fn profile(
    backend: &mut CudaBackend,
    slots: &[usize],
    question: &GraphQuestion,
) -> Result<GraphProfile> {
    backend.finish_queued()?;
    let key = backend.dispatch.way(question.batch_size);
    if key.way == Way::Eager {
        let stats = backend.stats().now();
        return Err(Error::Argument {
            name: "batch_size",
            value: question.batch_size.to_string(),
            reason: format!(
                "with graph.mode = \"{}\" steps of {:?} rows are captured; choose one of them, or \
                 load with graph.batch_sizes that have it",
                stats.mode, stats.batch_sizes
            ),
        });
    }
    backend.prepare(key)?;
    let decoder = &mut backend.decoder;
    let slots = &slots[..slots.len().min(question.batch_size)];
    endless::start(decoder, slots)?;
    let row_slots = slots.iter().map(|slot| *slot as u32).collect();
    decoder.set_row_slots(row_slots, key.rows)?;
    let profile = measure(decoder, key, slots, question);
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

fn measure(
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
    let graphs = step.graphs();
    let shape = shape(&graphs, question)?;
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
    let nothing = card.launches(vec![nothing(); 2])?;
    let boundary_us = launch_us(stream, &nothing, repeats, || Ok(()))?;
    card.kv.take_error().map_or(Ok(()), Err)?;
    let way = key.way;
    let mut rewound = |_: &Stream| rewind(in_a_row);
    let stamped = match question.stamps {
        true => stamps::stamps(card, &list, way, repeats, in_a_row, &mut rewound)?,
        false => Vec::new(),
    };
    let mut stamped = stamped.into_iter();
    let info = &card.context.info;
    let (peak, _) = read_peak(info.ordinal, card.nvrtc_folders(), None, repeats)?;
    // A row of padding attends to one token, its own.
    let padding = key.rows - slots.len();
    let tokens = (slots.len() * (question.position + 1) + padding) as u64;
    let kernels = list.iter().zip(times).map(|(launch, us)| GraphKernel {
        kernel: launch.spec.entry,
        label: launch.spec.label.clone(),
        us,
        bytes: launch.spec.traffic.weights,
        moved: launch.spec.traffic.total(tokens),
        grid: launch.spec.grid,
        block: launch.spec.block,
        shared: launch.spec.shared,
        stamps: stamped.next(),
    });
    Ok(GraphProfile {
        device: info.device(),
        kind: key.way.name(),
        batch_size: key.rows,
        position: question.position,
        graphs: graphs.len(),
        nodes: shape.nodes,
        edges: shape.edges,
        programmatic_edges: shape.programmatic_edges,
        launches: list.len(),
        replay_us,
        eager_us,
        boundary_us: boundary_us.last().copied().unwrap_or(0.0),
        read_peak_gb_s: peak / 1e9,
        kernels: kernels.collect(),
    })
}
