//! The card's sampler draws what the reference draws: `Sampler` is the specification, token for
//! token. Runs where a CUDA driver is found, the simulated one included.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::card;
use onegraph::backend::cuda::driver::buffer::DeviceBuffer;
use onegraph::backend::cuda::driver::compile::Compiler;
use onegraph::backend::cuda::driver::context::Context;
use onegraph::backend::cuda::driver::graph::Graph;
use onegraph::backend::cuda::driver::host::HostBuffer;
use onegraph::backend::cuda::driver::launch::Launch;
use onegraph::backend::cuda::driver::module::Module;
use onegraph::backend::cuda::driver::stream::Stream;
use onegraph::backend::cuda::lower::sample::{Draw, Record, SampleShape, RING_STEPS};
use onegraph::backend::cuda::run::sampling::Sampling;
use onegraph::backend::{Finish, SlotRequest};
use onegraph::sampler::{Allowed, Params, Sampler, MAX_VOCAB};
use onegraph::Error;

const INF: f32 = f32::INFINITY;

/// Steps of numbers without a pattern (Steele et al. 2014, SplitMix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Rows of logits of every kind that has broken a sampler.
fn logits(kind: usize, n: usize, noise: &mut Noise) -> Vec<f32> {
    let lone = noise.below(n);
    (0..n)
        .map(|i| match kind % 9 {
            0 => 3.0 * noise.normal(),
            // Many ties, as half precision gives.
            1 => (4.0 * noise.normal()).round() / 4.0,
            2 => 1.5,
            // A few among the impossible.
            3 if noise.below(20) > 0 => -3e38,
            4 if i != lone => -3e38,
            // Differences overflow.
            5 => 3e38 * noise.pick(&[-1.0, 1.0, 0.5, -0.3]),
            // One token has nearly all mass, most have none.
            6 if i == lone => 20.0,
            6 => -40.0 + 10.0 * noise.uniform(),
            7 => 1e-3 * noise.normal(),
            8 => noise.pick(&[0.0, -0.0]),
            _ => 2.0 * noise.normal(),
        })
        .collect()
}

fn params(case: usize, n: usize, noise: &mut Noise) -> Params {
    let mut p = Params {
        temperature: noise.pick(&[0.0, 0.8, 1.0, 0.1, 1e-3, 2.5, 100.0, 1e-40]),
        top_k: noise.pick(&[0, 1, 2, 40, 40, 3000, n - 1, n, n + 7]),
        top_p: noise.pick(&[0.0, 1e-6, 0.5, 0.95, 0.999_999_9, 1.0, 1.0]),
        min_p: noise.pick(&[0.0, 0.0, 0.05, 1.0, 1e-20, 1e-42]),
        seed: noise.next(),
        ..Params::default()
    };
    match case % 4 {
        1 => p.repeat_penalty = noise.pick(&[1.3, 0.7, 0.01, 100.0]),
        2 => {
            p.presence_penalty = noise.pick(&[0.0, 1.5, -2.0]);
            p.frequency_penalty = noise.pick(&[0.7, -0.3]);
            p.repeat_penalty = noise.pick(&[1.0, 1.1]);
        }
        _ => {}
    }
    p.repeat_last_n = noise.pick(&[None, None, Some(0), Some(1), Some(8), Some(10), Some(n)]);
    match case % 5 {
        1 => p.logit_bias = some_bias(n, 20, &[-INF, 3.0, -2.5, 1e4, 0.0], noise),
        2 => p.logit_bias = some_bias(n, 8, &[-INF, INF, INF, 4.0], noise),
        3 if case.is_multiple_of(2) => p.logit_bias = some_bias(n, n, &[-1.0, 2.0, 0.25], noise),
        _ => {}
    }
    p
}

fn some_bias(n: usize, count: usize, values: &[f32], noise: &mut Noise) -> BTreeMap<u32, f32> {
    let one = |_| (noise.below(n) as u32, noise.pick(values));
    (0..count).map(one).collect()
}

/// A card with a sampler for `rows` slots and as many rows, and one row that pads.
struct Card {
    // The graph goes first: it uses what the rest owns.
    graph: Graph,
    sampling: Sampling,
    logits: DeviceBuffer,
    slots: DeviceBuffer,
    ring: HostBuffer,
    _step: DeviceBuffer,
    stream: Stream,
    n_vocab: usize,
    rows: usize,
    steps: usize,
}

fn shape(n_vocab: usize, n_ctx: usize, max_rows: usize) -> SampleShape {
    SampleShape {
        n_vocab,
        n_ctx,
        max_rows,
    }
}

impl Card {
    fn new(context: &Arc<Context>, n_vocab: usize, n_ctx: usize, rows: usize) -> Self {
        let stream = Stream::new(context).unwrap();
        let compiler = Compiler::new(context.info.number(), &[]);
        let shape = shape(n_vocab, n_ctx, rows + 1);
        let sampling = Sampling::new(context, &stream, rows, shape).unwrap();
        let logits = DeviceBuffer::new(context, (rows + 1) * n_vocab * 4).unwrap();
        let slots = DeviceBuffer::new(context, (rows + 1) * 4).unwrap();
        let ids: Vec<u32> = (0..=rows as u32).collect();
        slots.write(0, &ids, &stream).unwrap();
        let ring = HostBuffer::new(context, RING_STEPS * (rows + 1) * 8).unwrap();
        let step = DeviceBuffer::new(context, 4).unwrap();
        step.write(0, &[0u32], &stream).unwrap();
        let specs = sampling.specs(&Draw {
            rows: rows + 1,
            logits: logits.address(),
            slots: slots.address(),
            ring: ring.address(),
            step: step.address(),
            drafts: None,
        });
        let image = compiler.image(&specs[0].variant).unwrap();
        let module = Module::new(context, &image).unwrap();
        let launches: Vec<Launch> = specs
            .into_iter()
            .map(|spec| Launch {
                function: module.function(spec.entry, spec.shared).unwrap(),
                pdl: context.info.has_pdl(),
                spec,
            })
            .collect();
        let graph = Graph::capture(&stream, &launches).unwrap();
        Self {
            graph,
            sampling,
            logits,
            slots,
            ring,
            _step: step,
            stream,
            n_vocab,
            rows,
            steps: 0,
        }
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) {
        self.sampling.start(slot, request, &self.stream).unwrap();
        let last = request.prompt.len() - 1;
        self.sampling.arm(slot, last, &self.stream).unwrap();
    }

    fn write(&self, row: usize, logits: &[f32]) {
        let at = row * self.n_vocab * 4;
        self.logits.write(at, logits, &self.stream).unwrap();
    }

    /// One step: each row's record, the last of them the padding row's.
    fn step(&mut self) -> Vec<Record> {
        self.graph.replay(&self.stream).unwrap();
        self.stream.synchronize().unwrap();
        self.steps += 1;
        let width = self.rows + 1;
        let words = &self.ring.words()[self.steps % RING_STEPS * width..][..width];
        let read = |w: &std::sync::atomic::AtomicU64| Record::new(w.load(Ordering::Acquire));
        let records: Vec<Record> = words.iter().map(read).collect();
        assert!(records.iter().all(|r| r.step as usize == self.steps));
        assert!(!records[self.rows].live, "the padding row is never live");
        records
    }
}

fn request(sampling: Params, prompt: Vec<u32>) -> SlotRequest {
    SlotRequest {
        sampling,
        prompt,
        stop_tokens: Vec::new(),
        max_tokens: usize::MAX,
        constrained: false,
    }
}

/// Tokens that a draw may choose: from one to all but a few.
fn some(n_vocab: usize, noise: &mut Noise) -> Allowed {
    let mut allowed = Allowed::from_words(vec![0; Allowed::words_of(n_vocab)]);
    let one_of = [1, 2, 50, n_vocab][noise.below(4)];
    allowed.insert(noise.below(n_vocab) as u32);
    for id in 0..n_vocab as u32 {
        if noise.below(one_of) == 0 {
            allowed.insert(id);
        }
    }
    allowed
}

/// Draws `steps` tokens of `cases` cases, `rows` side by side, and compares each with the reference.
fn compare(n_vocab: usize, rows: usize, cases: usize, steps: usize, seed: u64) {
    let Some(context) = card::context() else {
        return;
    };
    let mut card = Card::new(&context, n_vocab, 1 << 20, rows);
    let mut noise = Noise(seed);
    let (mut drawn, mut failed) = (0, 0);
    for group in 0..cases.div_ceil(rows) {
        let mut references = Vec::new();
        for slot in 0..rows {
            let params = params(group * rows + slot, n_vocab, &mut noise);
            let prompt = (0..9).map(|_| noise.below(n_vocab) as u32).collect();
            let request = SlotRequest {
                constrained: noise.below(3) == 0,
                ..request(params.clone(), prompt)
            };
            card.start(slot, &request);
            let reference = Sampler::new(params, n_vocab, &request.prompt).unwrap();
            references.push((request, Some(reference)));
        }
        for index in 0..steps {
            let kinds: Vec<usize> = (0..rows).map(|_| noise.below(9)).collect();
            let constrained: Vec<bool> = references.iter().map(|(r, _)| r.constrained).collect();
            let expected: Vec<_> = references
                .iter_mut()
                .enumerate()
                .map(|(row, (_, reference))| {
                    let logits = logits(kinds[row], n_vocab, &mut noise);
                    card.write(row, &logits);
                    let allowed = constrained[row].then(|| some(n_vocab, &mut noise));
                    if let Some(allowed) = &allowed {
                        card.sampling.allow(row, allowed).unwrap();
                    }
                    let reference = reference.as_mut();
                    reference.map(|r| r.sample_among(&logits, index as u32, allowed.as_ref()))
                })
                .collect();
            for (row, (record, expected)) in card.step().iter().zip(expected).enumerate() {
                let case = || format!("kind {}, {:?}", kinds[row], references[row].0.sampling);
                match expected {
                    None => assert!(!record.live, "{}", case()),
                    Some(Ok(token)) => {
                        assert_eq!((record.live, record.token), (true, token), "{}", case());
                        assert_eq!(record.finish, None);
                        drawn += 1;
                    }
                    Some(Err(error)) => {
                        let same = match (&record.finish, &error) {
                            (
                                Some(Finish::Failed(Error::Logits { token, .. })),
                                Error::Logits {
                                    token: expected, ..
                                },
                            ) => token == expected,
                            (Some(Finish::Failed(found)), expected) => found == expected,
                            _ => false,
                        };
                        assert!(same, "{record:?} for {error:?}: {}", case());
                        references[row].1 = None;
                        failed += 1;
                    }
                }
            }
        }
    }
    eprintln!("{n_vocab} tokens: {drawn} draws equal, {failed} failures equal");
    assert!(drawn > cases && failed > 0);
}

#[test]
fn draws_equal_the_reference_for_a_tiny_vocabulary() {
    compare(5, 8, 400, 4, 1);
}

#[test]
fn draws_equal_the_reference_for_a_small_vocabulary() {
    compare(1000, 8, 160, 3, 2);
}

#[test]
fn draws_equal_the_reference_for_a_common_vocabulary() {
    compare(32_003, 4, 48, 2, 3);
}

/// More equal or nearly equal tokens than one block sorts.
#[test]
fn filters_may_end_among_any_number_of_ties() {
    let Some(context) = card::context() else {
        return;
    };
    let n = 20_001;
    let mut card = Card::new(&context, n, 1 << 20, 4);
    let mut noise = Noise(6);
    let equal = vec![-3.25; n];
    let halves: Vec<f32> = (0..n).map(|_| noise.pick(&[1.0, 0.5])).collect();
    let close: Vec<f32> = (0..n).map(|_| 1e-4 * noise.normal()).collect();
    let far: Vec<f32> = (0..n)
        .map(|i| if i == 9 { 99.0 } else { noise.normal() })
        .collect();
    for (top_k, top_p) in [
        (0, 0.3),
        (0, 0.999_99),
        (5000, 1.0),
        (12_345, 0.77),
        (n - 1, 0.0),
    ] {
        let mut references = Vec::new();
        let rows = [&equal, &halves, &close, &far];
        for (slot, row) in rows.iter().enumerate() {
            let params = Params {
                temperature: 1.0,
                top_k,
                top_p,
                min_p: 0.0,
                seed: noise.next(),
                ..Params::default()
            };
            card.start(slot, &request(params.clone(), vec![0]));
            card.write(slot, row);
            references.push(Sampler::new(params, n, &[0]).unwrap());
        }
        for index in 0..6 {
            let drawn: Vec<u32> = card.step().iter().take(4).map(|r| r.token).collect();
            let expected = references.iter_mut().zip(rows);
            let expected: Vec<u32> = expected
                .map(|(reference, row)| reference.sample(row, index).unwrap())
                .collect();
            assert_eq!(
                drawn, expected,
                "top_k {top_k}, top_p {top_p}, index {index}"
            );
        }
    }
}

#[test]
fn a_logit_that_is_no_number_fails_its_own_row_only() {
    let Some(context) = card::context() else {
        return;
    };
    for bad in [f32::NAN, -f32::NAN, INF, -INF] {
        let mut card = Card::new(&context, 3000, 100, 3);
        let mut good = vec![0.0f32; 3000];
        good[77] = 5.0;
        let mut worse = good.clone();
        (worse[2500], worse[1234]) = (bad, bad);
        for slot in 0..3 {
            let temperature = [0.0, 0.8, 0.0][slot];
            let sampling = Params {
                temperature,
                ..Params::default()
            };
            card.start(slot, &request(sampling, vec![1]));
        }
        card.write(0, &worse);
        card.write(1, &worse);
        card.write(2, &good);
        let records = card.step();
        for record in &records[..2] {
            let Some(Finish::Failed(Error::Logits { token, .. })) = &record.finish else {
                panic!("{record:?}");
            };
            assert_eq!((*token, record.live, record.token), (1234, true, 0));
        }
        assert_eq!((records[2].token, &records[2].finish), (77, &None));
        let records = card.step();
        assert_eq!(
            records.iter().map(|r| r.live).collect::<Vec<_>>(),
            [false, false, true, false]
        );
    }
}

#[test]
fn a_bias_that_bans_all_tokens_is_said() {
    let Some(context) = card::context() else {
        return;
    };
    let mut card = Card::new(&context, 5, 100, 1);
    let sampling = Params {
        logit_bias: (0..5).map(|id| (id, -INF)).collect(),
        ..Params::default()
    };
    card.start(0, &request(sampling, vec![1]));
    card.write(0, &[1.0, 2.0, 3.0, 2.0, 1.0]);
    let Some(Finish::Failed(Error::Argument { name, value, .. })) = &card.step()[0].finish else {
        panic!("drew a token");
    };
    assert_eq!(*name, "logit_bias");
    assert!(value.contains("-inf for every token"));
}

#[test]
fn sequences_end_as_the_request_says() {
    let Some(context) = card::context() else {
        return;
    };
    let mut card = Card::new(&context, 1000, 64, 5);
    let greedy = Params {
        temperature: 0.0,
        ..Params::default()
    };
    let plain = |prompt: usize| request(greedy.clone(), vec![3; prompt]);
    let many: Vec<u32> = (0..700).map(|i| 999 - i).rev().chain([303]).collect();
    let requests = [
        // More stop tokens than threads; stops at 303.
        SlotRequest {
            stop_tokens: many,
            ..plain(2)
        },
        SlotRequest {
            max_tokens: 2,
            ..plain(2)
        },
        // Positions 0 to 60 are the prompt's: 61, 62 and 63 are left.
        plain(61),
        // Stop wins over length.
        SlotRequest {
            max_tokens: 1,
            stop_tokens: vec![300],
            ..plain(2)
        },
        plain(2),
    ];
    for (slot, request) in requests.iter().enumerate() {
        card.start(slot, request);
    }
    let mut ended = vec![None; 5];
    for step in 0..5 {
        for row in 0..5 {
            let mut logits = vec![0.0; 1000];
            let base = if row == 0 { 200 } else { 300 };
            // The stop tokens of slot 0 begin at 300.
            logits[if row == 0 && step == 3 {
                303
            } else {
                base + step
            }] = 1.0;
            card.write(row, &logits);
        }
        if step == 4 {
            card.sampling.stop(4, &card.stream).unwrap();
        }
        for (row, record) in card.step().into_iter().take(5).enumerate() {
            match &ended[row] {
                Some(_) => assert!(!record.live, "slot {row} ended"),
                None if row == 4 && step == 4 => assert!(!record.live),
                None => assert!(record.live),
            }
            if let Some(finish) = record.finish {
                ended[row] = Some((step, record.token, finish));
            }
        }
    }
    let expected = [
        Some((3, 303, Finish::Stop)),
        Some((1, 301, Finish::Length)),
        Some((2, 302, Finish::Length)),
        Some((0, 300, Finish::Stop)),
        None,
    ];
    assert_eq!(ended, expected);
}

#[test]
fn a_slot_serves_one_request_after_another() {
    let Some(context) = card::context() else {
        return;
    };
    let mut card = Card::new(&context, 3000, 1 << 20, 2);
    let mut noise = Noise(9);
    // Longer and shorter lists of bias and stop tokens, counts that must not linger.
    for n in [2, 900, 5, 2500, 0] {
        let params = Params {
            temperature: 1.5,
            repeat_penalty: 5.0,
            frequency_penalty: 2.0,
            logit_bias: some_bias(3000, n, &[1.0, -INF, 2.0], &mut noise),
            seed: n as u64,
            ..Params::default()
        };
        let prompt: Vec<u32> = (0..=n as u32).collect();
        let mut reference = Sampler::new(params.clone(), 3000, &prompt).unwrap();
        card.start(1, &request(params, prompt));
        for index in 0..6 {
            let logits = logits(0, 3000, &mut noise);
            card.write(1, &logits);
            let record = card.step().swap_remove(1);
            let expected = reference.sample(&logits, index).unwrap();
            assert_eq!(
                (record.token, record.finish),
                (expected, None),
                "{n} biases"
            );
        }
    }
}

/// Few tokens, so that one leaves a window while others of its kind stay there; windows that end
/// among the prompt, behind it and never; slots that begin while others go on.
#[test]
fn each_slot_has_a_window_of_its_own() {
    let Some(context) = card::context() else {
        return;
    };
    const N: usize = 7;
    let mut card = Card::new(&context, N, 400, 6);
    let mut noise = Noise(12);
    let windows = [
        None,
        Some(0),
        Some(1),
        Some(5),
        Some(64),
        Some(399),
        Some(400),
    ];
    let mut references: Vec<Option<(Sampler, u32)>> = (0..6).map(|_| None).collect();
    let mut drawn = [0; 7];
    for step in 0..140 {
        for (slot, reference) in references.iter_mut().enumerate() {
            if step % 70 != 10 * slot {
                continue;
            }
            let params = Params {
                temperature: [0.0, 1.0][slot % 2],
                repeat_penalty: 1.7,
                presence_penalty: 0.25,
                frequency_penalty: 0.125,
                repeat_last_n: windows[(slot + step / 70) % 7],
                seed: noise.next(),
                ..Params::default()
            };
            let prompt = (0..1 + noise.below(90)).map(|_| noise.below(N) as u32);
            let request = request(params.clone(), prompt.collect());
            card.start(slot, &request);
            let sampler = Sampler::new(params, N, &request.prompt).unwrap();
            *reference = Some((sampler, 0));
        }
        let mut expected = [None; 6];
        for (slot, reference) in references.iter_mut().enumerate() {
            let Some((sampler, index)) = reference else {
                continue;
            };
            let logits = logits(0, N, &mut noise);
            card.write(slot, &logits);
            expected[slot] = Some(sampler.sample(&logits, *index).unwrap());
            drawn[(slot + step / 70) % 7] += 1;
            *index += 1;
        }
        let records = card.step();
        let found = records[..6].iter().map(|r| r.live.then_some(r.token));
        assert_eq!(found.collect::<Vec<_>>(), expected, "step {step}");
    }
    assert!(drawn.iter().all(|n| *n > 60), "{drawn:?}");
}

#[test]
fn a_row_is_drawn_alike_alone_and_in_a_batch() {
    let Some(context) = card::context() else {
        return;
    };
    let mut noise = Noise(4);
    let rows: Vec<Vec<f32>> = (0..6).map(|k| logits(k, 9000, &mut noise)).collect();
    let params = Params {
        seed: 5,
        ..Params::default()
    };
    let draw = |card: &mut Card, first: usize, n: usize| -> Vec<u32> {
        for row in 0..n {
            card.start(row, &request(params.clone(), vec![1, 2]));
            card.write(row, &rows[first + row]);
        }
        card.step().iter().take(n).map(|r| r.token).collect()
    };
    let together = draw(&mut Card::new(&context, 9000, 100, 6), 0, 6);
    let mut card = Card::new(&context, 9000, 100, 1);
    let alone: Vec<u32> = (0..6).flat_map(|row| draw(&mut card, row, 1)).collect();
    assert_eq!(together, alone);
    // Which rows a launch has may be any order of slots.
    card.slots.write(0, &[1u32, 0], &card.stream).unwrap();
    card.start(0, &request(params.clone(), vec![1, 2]));
    card.write(1, &rows[3]);
    let words = {
        card.graph.replay(&card.stream).unwrap();
        card.stream.synchronize().unwrap();
        card.steps += 1;
        let at = card.steps % RING_STEPS * 2;
        [0, 1].map(|i| Record::new(card.ring.words()[at + i].load(Ordering::Acquire)))
    };
    assert!(!words[0].live);
    assert_eq!((words[1].live, words[1].token), (true, together[3]));
}

#[test]
fn what_no_slot_can_draw_by_is_refused() {
    let Some(context) = card::context() else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let error = Sampling::new(&context, &stream, 1, shape(MAX_VOCAB + 1, 64, 1)).unwrap_err();
    let Error::Unsupported {
        name, supported, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (name.as_str(), supported.as_str()),
        ("8388609", "up to 8388608 tokens")
    );
    let mut sampling = Sampling::new(&context, &stream, 2, shape(100, 64, 1)).unwrap();
    let wide = Params {
        top_p: 1.5,
        ..Params::default()
    };
    let error = sampling.start(0, &request(wide, vec![1]), &stream);
    let Err(Error::Argument {
        name,
        value,
        reason,
    }) = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (*name, value.as_str(), reason.as_str()),
        ("top_p", "1.5", "must be from 0 to 1")
    );
    let error = sampling.start(2, &request(Params::default(), vec![1]), &stream);
    assert_eq!(error, Err(Error::Internal("slot 2 of 2".into())));
    let padding = sampling.arm(2, 0, &stream);
    assert_eq!(padding, Err(Error::Internal("slot 2 of 2".into())));
    for position in [63, 1 << 32, usize::MAX] {
        let expected = Error::Internal(format!("position {position} of slot 0"));
        assert_eq!(sampling.arm(0, position, &stream), Err(expected));
    }
}
