//! Decode steps on the card: every way of running them draws the same, whatever joins, ends and
//! shrinks; and a graph becomes that of other launches. Runs where a CUDA driver is found, the
//! simulated one included.

use onegraph::backend::cuda::driver::buffer::DeviceBuffer;
use onegraph::backend::cuda::driver::compile::Compiler;
use onegraph::backend::cuda::driver::graph::Graph;
use onegraph::backend::cuda::driver::launch::Launch;
use onegraph::backend::cuda::driver::module::{Function, Module};
use onegraph::backend::cuda::driver::spec::Spec;
use onegraph::backend::cuda::driver::stream::Stream;
use onegraph::backend::cuda::lower::params::Add;
use onegraph::backend::cuda::lower::rowwise::elementwise;
use onegraph::backend::cuda::CudaBackend;
use onegraph::backend::{Backend, GpuOptions, GraphMode, Kind, RunnerOptions, SlotRequest};
use onegraph::quant;
use onegraph::sampler::{random, Params};

use crate::fixture::Folder;
use crate::{card, card_model};

const SLOTS: usize = 4;

fn backend(folder: &Folder, gpu: GpuOptions) -> CudaBackend {
    let (model, plan) = card_model::open(folder, "Q8_0", 32);
    let n_ctx = 128;
    let options = RunnerOptions {
        n_slots: SLOTS,
        n_ctx,
        n_pages: SLOTS * n_ctx / 64 + 1,
        windows: None,
        kv_type: quant::kv_by_name(quant::DEFAULT_KV).unwrap(),
        threads: 1,
        gpu,
    };
    CudaBackend::new(0, plan, &*model, &options, &|_, _, _| Ok(())).unwrap()
}

/// When the sequence of each slot begins, and how long it is; length 0: there is none.
type Schedule = [(usize, usize); SLOTS];

/// Tokens of each slot.
fn generate(backend: &mut CudaBackend, schedule: Schedule) -> Vec<Vec<u32>> {
    let mut tokens = vec![Vec::new(); SLOTS];
    let end = schedule.iter().map(|(begin, length)| begin + length).max();
    for step in 0..end.unwrap_or(0) + 4 {
        for (slot, (begin, length)) in schedule.into_iter().enumerate() {
            if begin != step || length == 0 {
                continue;
            }
            let pages: Vec<u32> = (0..2).map(|p| 1 + (slot * 2 + p) as u32).collect();
            backend.map_pages(Kind::Whole, slot, 0, &pages).unwrap();
            let request = SlotRequest {
                sampling: Params {
                    seed: slot as u64,
                    ..Params::default()
                },
                prompt: vec![],
                stop_tokens: vec![],
                max_tokens: length,
                constrained: false,
            };
            backend.start(slot, &request).unwrap();
            let prompt = [3 + slot as u32, 9, 4];
            backend.prefill(slot, &prompt, 0, true).unwrap();
        }
        backend.decode().unwrap();
        for event in backend.drain(true).unwrap() {
            assert_eq!(event.index, tokens[event.slot].len());
            tokens[event.slot].push(event.token);
            if event.finish.is_some() {
                backend.release(event.slot).unwrap();
            }
        }
    }
    let lengths = schedule.map(|(_, length)| length);
    assert_eq!(tokens.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    tokens
}

/// Every slot's sequence on its own.
fn solo(backend: &mut CudaBackend, schedule: Schedule) -> Vec<Vec<u32>> {
    let alone = |slot: usize| {
        let mut one = [(0, 0); SLOTS];
        one[slot].1 = schedule[slot].1;
        generate(backend, one).swap_remove(slot)
    };
    (0..SLOTS).map(alone).collect()
}

#[test]
fn every_way_of_running_steps_draws_the_same() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let with = |mode, sizes: Option<&[usize]>, max_batch, warmup| GpuOptions {
        mode,
        batch_sizes: sizes.map(<[usize]>::to_vec),
        max_batch,
        warmup,
        ..GpuOptions::default()
    };
    let mut eager = backend(&folder, with(GraphMode::None, None, None, false));
    let joining = [(0, 9), (2, 3), (3, 6), (3, 2)];
    let wanted = solo(&mut eager, joining);
    assert_eq!(wanted, generate(&mut eager, joining), "a slot is like new");
    let stats = eager.stats().now();
    assert_eq!((stats.full, stats.piecewise), (0, 0));
    assert!(stats.eager > 0 && stats.captured.is_empty());

    // Sizes change on every join and every end. Builds with debug assertions hold each replay's
    // addresses to those of its capture.
    for (mode, sizes, max_batch) in [
        (GraphMode::Full, None, None),
        (GraphMode::Full, Some(&[1, 3][..]), None),
        (GraphMode::FullAndPiecewise, None, Some(1)),
    ] {
        let mut graphs = backend(&folder, with(mode, sizes, max_batch, true));
        let at_load = graphs.stats().now();
        assert_eq!(wanted, generate(&mut graphs, joining), "{mode:?} {sizes:?}");
        let stats = graphs.stats().now();
        assert_eq!(stats.captured, at_load.captured, "nothing more is captured");
        let captured = stats.captured.iter().map(|s| s.batch_size).max();
        assert_eq!(captured, sizes.map_or(Some(SLOTS), |s| s.last().copied()));
        assert!(stats.full > 0);
        assert_eq!(stats.piecewise > 0, mode == GraphMode::FullAndPiecewise);
        assert_eq!(stats.eager > 0, sizes.is_some());
        let missed: u64 = stats.missed.iter().map(|(_, n)| n).sum();
        assert_eq!(missed, stats.eager);
    }
}

#[test]
fn a_sequence_is_what_it_is_alone_whatever_joins_and_ends() {
    if card::context().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut graphs = backend(&folder, GpuOptions::default());
    // Longest sequences first: a shorter one is the beginning of it.
    let longest = solo(&mut graphs, [(0, 12); SLOTS]);
    for round in 0..8u32 {
        let drawn = random::philox4x32_10([round, 0, 0, 0], [11, 13]);
        let also = random::philox4x32_10([round, 1, 0, 0], [11, 13]);
        let one = |slot: usize| (drawn[slot] as usize % 8, also[slot] as usize % 13);
        let schedule = [one(0), one(1), one(2), one(3)];
        let found = generate(&mut graphs, schedule);
        for (slot, (found, longest)) in found.iter().zip(&longest).enumerate() {
            let wanted = &longest[..found.len()];
            assert_eq!(found, wanted, "slot {slot} of {schedule:?}");
        }
    }
}

struct Adder {
    function: Function,
}

impl Adder {
    /// out += x, in float32.
    fn launch(&self, x: &DeviceBuffer, out: &DeviceBuffer, pdl: bool) -> Launch {
        let params = Add {
            x: x.address(),
            out: out.address(),
            n: out.bytes() as u64 / 4,
        };
        Launch {
            spec: Spec::new(elementwise(), "add", [1, 1, 1], 32, &params),
            function: self.function.clone(),
            pdl,
        }
    }
}

#[test]
fn a_graph_becomes_that_of_other_launches() {
    let Some(context) = card::context() else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let compiler = Compiler::new(context.info.number(), &[]);
    let image = compiler.image(&elementwise()).unwrap();
    let module = Module::new(&context, &image).unwrap();
    let add = Adder {
        function: module.function("add", 0).unwrap(),
    };
    let buffer = |value: f32| {
        let buffer = DeviceBuffer::new(&context, 8).unwrap();
        buffer.write(0, &[value, 10.0 * value], &stream).unwrap();
        buffer
    };
    let (one, five, out) = (buffer(1.0), buffer(5.0), buffer(0.0));
    let read = || {
        let mut values = [0.0f32; 2];
        out.read(0, &mut values, &stream).unwrap();
        out.write(0, &[0.0f32; 2], &stream).unwrap();
        values
    };
    let of = |x: &DeviceBuffer, n: usize| -> Vec<Launch> {
        (0..n).map(|_| add.launch(x, &out, false)).collect()
    };
    let mut graph = Graph::capture(&stream, &of(&one, 3)).unwrap();
    graph.replay(&stream).unwrap();
    assert_eq!(read(), [3.0, 30.0]);
    // The same shape: in place.
    assert_eq!(graph.update(&stream, &of(&five, 3)), Ok(true));
    assert_eq!(
        graph.launches()[2].spec,
        add.launch(&five, &out, false).spec
    );
    graph.replay(&stream).unwrap();
    assert_eq!(read(), [15.0, 150.0]);
    // Another number of kernels: a new instance.
    assert_eq!(graph.update(&stream, &of(&one, 4)), Ok(false));
    assert_eq!(graph.shape().unwrap().nodes, 4);
    graph.replay(&stream).unwrap();
    graph.replay(&stream).unwrap();
    assert_eq!(read(), [8.0, 80.0]);
    // In place again, and what it was before is gone without a trace.
    assert_eq!(graph.update(&stream, &of(&five, 4)), Ok(true));
    graph.replay(&stream).unwrap();
    assert_eq!(read(), [20.0, 200.0]);
    // Other edges: whether in place is the driver's business.
    if context.info.has_pdl() {
        let early: Vec<Launch> = (0..4).map(|i| add.launch(&one, &out, i > 0)).collect();
        graph.update(&stream, &early).unwrap();
        assert_eq!(graph.shape().unwrap().programmatic_edges, 3);
        graph.replay(&stream).unwrap();
        assert_eq!(read(), [4.0, 40.0]);
    }
    drop((graph, add, module));
    assert_eq!(read(), [0.0, 0.0]);
}
