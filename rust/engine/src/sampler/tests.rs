use super::*;

/// Numbers for the tests' inputs, from the cipher under another counter.
fn uniform(stream: u32, i: u32) -> f64 {
    let word = random::philox4x32_10([i, 0, stream, 1], [7, 7])[0];
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

fn logits(stream: u32, n: u32) -> Vec<f32> {
    (0..n)
        .map(|i| (uniform(stream, i) * 8.0 - 4.0) as f32)
        .collect()
}

/// No filter, no penalty, temperature 1.
fn plain() -> Params {
    Params {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..Params::default()
    }
}

fn softmax(y: &[f64], temperature: f64) -> Vec<f64> {
    let most = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = y.iter().map(|y| ((y - most) / temperature).exp()).collect();
    let sum: f64 = p.iter().sum();
    p.iter().map(|p| p / sum).collect()
}

/// The filters by sorting, in float64; and how near the top-p sum came to its bound.
fn naive(p: &[f64], params: &Params) -> (Vec<f64>, f64) {
    let mut order: Vec<usize> = (0..p.len()).filter(|i| p[*i] > 0.0).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let mut margin = f64::INFINITY;
    if params.top_p < 1.0 {
        let total: f64 = order.iter().map(|i| p[*i]).sum();
        let mut sum = 0.0;
        let mut n = 0;
        for i in &order {
            n += 1;
            sum += p[*i] / total;
            margin = margin.min((sum - f64::from(params.top_p)).abs());
            if sum >= f64::from(params.top_p) {
                break;
            }
        }
        order.truncate(n);
    }
    if params.min_p > 0.0 {
        let least = f64::from(params.min_p) * p[order[0]];
        for i in &order {
            margin = margin.min((p[*i] / least - 1.0).abs());
        }
        order.retain(|i| p[*i] >= least);
    }
    let kept: f64 = order.iter().map(|i| p[*i]).sum();
    let mut out = vec![0.0; p.len()];
    order.iter().for_each(|i| out[*i] = p[*i] / kept);
    (out, margin)
}

/// Draws often and compares the counts with the exact distribution by Pearson's chi-square.
fn assert_follows(params: &Params, logits: &[f32], prompt: &[u32], before: &[u32], p: &[f64]) {
    const DRAWS: u32 = 60_000;
    let mut start = Sampler::new(params.clone(), logits.len(), prompt).unwrap();
    before.iter().for_each(|id| start.seen.note(*id).unwrap());
    let mut counts = vec![0u32; logits.len()];
    for index in 0..DRAWS {
        counts[start.choose(logits, index, None).unwrap() as usize] += 1;
    }
    let mut chi2 = 0.0;
    let mut cells = 0.0;
    for (count, p) in counts.iter().zip(p) {
        if *p == 0.0 {
            assert_eq!(
                *count, 0,
                "a token without probability was drawn: {counts:?} {p:?}"
            );
            continue;
        }
        let expected = p * f64::from(DRAWS);
        chi2 += (f64::from(*count) - expected).powi(2) / expected;
        cells += 1.0;
    }
    // Mean df, variance 2 df: four standard deviations.
    let df: f64 = cells - 1.0;
    let limit = df + 4.0 * (2.0 * df).sqrt();
    assert!(
        chi2 <= limit,
        "chi2 {chi2} of {df} degrees, {params:?}: {counts:?} {p:?}"
    );
}

fn f64s(l: &[f32]) -> Vec<f64> {
    l.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn temperature_draws_from_the_softmax() {
    let l = logits(1, 12);
    for temperature in [0.3, 0.7, 1.0, 2.5, 100.0] {
        let params = Params {
            temperature,
            ..plain()
        };
        assert_follows(
            &params,
            &l,
            &[],
            &[],
            &softmax(&f64s(&l), temperature.into()),
        );
    }
}

#[test]
fn each_filter_draws_from_its_renormalized_survivors() {
    let l = logits(2, 16);
    let p = softmax(&f64s(&l), 1.0);
    for params in [
        Params {
            top_k: 5,
            ..plain()
        },
        Params {
            top_p: 0.8,
            ..plain()
        },
        Params {
            min_p: 0.1,
            ..plain()
        },
        Params {
            top_k: 9,
            top_p: 0.9,
            min_p: 0.07,
            ..plain()
        },
        Params {
            top_k: 1,
            ..plain()
        },
        Params {
            top_p: 0.0,
            ..plain()
        },
        Params {
            min_p: 1.0,
            ..plain()
        },
    ] {
        assert_follows(&params, &l, &[], &[], &naive(&p, &params).0);
    }
}

#[test]
fn penalties_shift_the_distribution_by_their_formulas() {
    let l = logits(3, 10);
    let (prompt, before) = ([0, 1, 2, 2], [2, 3, 3, 3]);
    let repeat = |y: f64, r: f64| if y > 0.0 { y / r } else { y * r };

    let mut y = f64s(&l);
    (0..4).for_each(|i| y[i] = repeat(y[i], 1.7));
    let params = Params {
        repeat_penalty: 1.7,
        ..plain()
    };
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    let mut y = f64s(&l);
    y[2] -= 0.9;
    y[3] -= 0.9;
    let params = Params {
        presence_penalty: 0.9,
        ..plain()
    };
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    let mut y = f64s(&l);
    y[2] += 0.5;
    y[3] += 0.5 * 3.0;
    let params = Params {
        frequency_penalty: -0.5,
        ..plain()
    };
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    let mut y = f64s(&l);
    (0..4).for_each(|i| y[i] = repeat(y[i], 0.8));
    y[2] -= 1.0 + 0.5;
    y[3] -= 1.0 + 0.5 * 3.0;
    let params = Params {
        repeat_penalty: 0.8,
        presence_penalty: 1.0,
        frequency_penalty: 0.5,
        ..plain()
    };
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    // The prompt's last 2, and 2, 3, 3, 3.
    let params = Params {
        repeat_last_n: Some(5),
        ..params
    };
    let mut y = f64s(&l);
    (2..4).for_each(|i| y[i] = repeat(y[i], 0.8));
    y[2] -= 1.0 + 0.5;
    y[3] -= 1.0 + 0.5 * 3.0;
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    let params = Params {
        repeat_last_n: Some(2),
        ..params
    };
    let mut y = f64s(&l);
    y[3] = repeat(y[3], 0.8) - (1.0 + 0.5 * 2.0);
    assert_follows(&params, &l, &prompt, &before, &softmax(&y, 1.0));

    let params = Params {
        repeat_last_n: Some(0),
        ..params
    };
    assert_follows(&params, &l, &prompt, &before, &softmax(&f64s(&l), 1.0));
}

#[test]
fn a_bias_shifts_bans_and_forces() {
    let l = logits(4, 10);
    let biased = |pairs: &[(u32, f32)]| Params {
        logit_bias: pairs.iter().copied().collect(),
        ..plain()
    };
    let mut y = f64s(&l);
    y[1] += 2.0;
    y[5] = f64::NEG_INFINITY;
    let params = biased(&[(1, 2.0), (5, f32::NEG_INFINITY)]);
    assert_follows(&params, &l, &[], &[], &softmax(&y, 1.0));

    // Two forced tokens share the draw by their own logits; a finite bias beside them says nothing.
    let mut y = vec![f64::NEG_INFINITY; 10];
    y[3] = l[3].into();
    y[8] = l[8].into();
    let params = biased(&[(3, f32::INFINITY), (8, f32::INFINITY), (1, 100.0)]);
    assert_follows(&params, &l, &[], &[], &softmax(&y, 1.0));

    let everything: Vec<_> = (0..10).map(|id| (id, f32::NEG_INFINITY)).collect();
    for temperature in [0.0, 1.0] {
        let params = Params {
            temperature,
            ..biased(&everything)
        };
        let mut sampler = Sampler::new(params, 10, &[]).unwrap();
        let error = sampler.sample(&l, 0).unwrap_err().to_string();
        assert!(
            error.contains("logit_bias") && error.contains("ban fewer"),
            "{error}"
        );
    }
}

#[test]
fn large_vocabularies_are_drawn_from_evenly() {
    let n = 50_000;
    let mut sampler = Sampler::new(plain(), n, &[]).unwrap();
    let flat = vec![0.25; n];
    let mut counts = [0u32; 50];
    for index in 0..5_000 {
        let id = sampler.sample(&flat, index).unwrap();
        counts[id as usize / 1_000] += 1;
    }
    let chi2: f64 = counts
        .iter()
        .map(|c| (f64::from(*c) - 100.0).powi(2) / 100.0)
        .sum();
    assert!(chi2 < 49.0 + 4.0 * 98.0f64.sqrt(), "{chi2}: {counts:?}");
}

#[test]
fn survivors_are_exactly_those_of_a_sort_in_float64() {
    let mut unclear = 0;
    let cases = 600;
    for case in 0..cases {
        let n = 1 + (uniform(5, case) * 300.0) as u32;
        // Coarse steps make ties, which the id must break.
        let step = [0.0, 0.25, 2.0][(case % 3) as usize];
        let l: Vec<f32> = logits(1000 + case, n)
            .iter()
            .map(|x| {
                if step > 0.0 {
                    (x / step).round() * step
                } else {
                    *x
                }
            })
            .collect();
        let pick = |stream| uniform(stream, case) as f32;
        let params = Params {
            temperature: 0.25 * 2.0f32.powi((case % 5) as i32),
            top_k: if case % 2 == 0 {
                0
            } else {
                (pick(6) * 60.0) as usize
            },
            top_p: if case % 7 == 0 { 1.0 } else { pick(7) },
            min_p: if case % 4 == 0 { 0.0 } else { pick(8) * 0.2 },
            ..plain()
        };
        let p = softmax(&f64s(&l), params.temperature.into());
        let (expected, margin) = naive(&p, &params);
        if margin < 1e-5 {
            unclear += 1;
            continue;
        }
        let mut sampler = Sampler::new(params.clone(), l.len(), &[]).unwrap();
        sampler.choose(&l, 0, None).unwrap();
        let threshold = sampler.filter().unwrap();
        let ours: Vec<u32> = sampler.survivors(threshold).collect();
        let expected: Vec<u32> = (0..n).filter(|i| expected[*i as usize] > 0.0).collect();
        assert_eq!(ours, expected, "case {case}: {params:?}");
    }
    assert!(
        unclear < cases / 10,
        "{unclear} of {cases} cases had a sum on the bound"
    );
}

#[test]
fn top_k_keeps_exactly_k_of_equals_and_the_lower_ids() {
    let mut sampler = Sampler::new(
        Params {
            top_k: 3,
            ..plain()
        },
        8,
        &[],
    )
    .unwrap();
    sampler
        .choose(&[1.0, 5.0, 1.0, 5.0, 5.0, 5.0, 5.0, 1.0], 0, None)
        .unwrap();
    let kept: Vec<u32> = sampler.survivors(sampler.filter().unwrap()).collect();
    assert_eq!(kept, [1, 3, 4]);
    // More than there are: all of them.
    sampler.params.top_k = 7;
    sampler.params.logit_bias = [(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)].into();
    sampler.choose(&[1.0; 8], 0, None).unwrap();
    let kept: Vec<u32> = sampler.survivors(sampler.filter().unwrap()).collect();
    assert_eq!(kept, [2, 3, 4, 5, 6, 7]);
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let greedy = Params {
        temperature: 0.0,
        ..plain()
    };
    let mut sampler = Sampler::new(greedy.clone(), 4, &[]).unwrap();
    assert_eq!(sampler.sample(&[-1.0, 2.0, 2.0, 0.0], 0), Ok(1));
    assert_eq!(sampler.sample(&[-3.0, -2.0, -2.0, f32::MIN], 1), Ok(1));
    // -0 and 0 are equal.
    assert_eq!(sampler.sample(&[-0.0, 0.0, -1.0, -1.0], 2), Ok(0));
    let penalized = Params {
        presence_penalty: 1.0,
        ..greedy
    };
    let mut sampler = Sampler::new(penalized, 4, &[]).unwrap();
    let l = [0.0, 2.0, 1.5, 0.0];
    assert_eq!(
        (sampler.sample(&l, 0), sampler.sample(&l, 1)),
        (Ok(1), Ok(2))
    );
    // Both are penalized once now.
    assert_eq!(sampler.sample(&l, 2), Ok(1));
}

#[test]
fn a_low_temperature_does_not_blur_the_draw() {
    // With z = y / temperature two equal logits of 3e5 would be the same to within 0.03, and the
    // lower id would win too often.
    let params = Params {
        temperature: 1e-4,
        ..plain()
    };
    assert_follows(&params, &[30.0, 29.0, 30.0], &[], &[], &[0.5, 0.0, 0.5]);
    let tiny = Params {
        temperature: f32::from_bits(1),
        ..plain()
    };
    assert_follows(&tiny, &[30.0, 29.0, 30.0], &[], &[], &[0.5, 0.0, 0.5]);
}

#[test]
fn a_draw_depends_on_seed_and_index_alone() {
    let l = logits(9, 100);
    let draw = |seed, index| {
        let mut sampler = Sampler::new(Params { seed, ..plain() }, 100, &[]).unwrap();
        sampler.sample(&l, index).unwrap()
    };
    let mut sampler = Sampler::new(Params { seed: 5, ..plain() }, 100, &[]).unwrap();
    let run: Vec<u32> = (0..200).map(|i| sampler.sample(&l, i).unwrap()).collect();
    let apart: Vec<u32> = (0..200).map(|i| draw(5, i)).collect();
    assert_eq!(run, apart);
    let other: Vec<u32> = (0..200).map(|i| draw(5 + (1 << 40), i)).collect();
    let same = run.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(
        same < 50,
        "the seed's upper half changes {same} of 200 draws only"
    );
}

#[test]
fn seeds_are_independent_of_each_other() {
    let p = softmax(&f64s(&logits(10, 8)), 1.0);
    let l = logits(10, 8);
    let mut counts = [0u32; 8];
    for seed in 0..20_000 {
        let mut sampler = Sampler::new(Params { seed, ..plain() }, 8, &[]).unwrap();
        counts[sampler.sample(&l, 0).unwrap() as usize] += 1;
    }
    let chi2: f64 = counts
        .iter()
        .zip(&p)
        .map(|(c, p)| (f64::from(*c) - p * 20_000.0).powi(2) / (p * 20_000.0))
        .sum();
    assert!(
        chi2 < 7.0 + 4.0 * 14.0f64.sqrt(),
        "{chi2}: {counts:?} {p:?}"
    );
}

#[test]
fn logits_without_order_are_an_error_that_names_the_token() {
    let infinite = [(f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")];
    for (bad, shown) in infinite.into_iter().chain([(f32::NAN, "NaN")]) {
        for temperature in [0.0, 1.0] {
            let params = Params {
                temperature,
                ..plain()
            };
            let mut sampler = Sampler::new(params, 4, &[]).unwrap();
            let error = sampler.sample(&[0.0, 1.0, bad, 2.0], 0).unwrap_err();
            let expected = Error::Logits {
                token: 2,
                value: shown.into(),
            };
            assert_eq!(error, expected);
            assert!(
                error.to_string().contains("another quantization"),
                "{error}"
            );
            assert_eq!(logprobs(&[0.0, 1.0, bad, 2.0], 0, 1), Err(expected));
        }
    }
    // An overflow made by the penalty is caught too.
    let params = Params {
        repeat_penalty: 0.01,
        ..plain()
    };
    let mut sampler = Sampler::new(params, 2, &[0]).unwrap();
    assert!(matches!(
        sampler.sample(&[1e38, 0.0], 0),
        Err(Error::Logits { token: 0, .. })
    ));
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let base = plain;
    let bias = |value| Params {
        logit_bias: [(3, value)].into(),
        ..base()
    };
    let cases = [
        (
            "temperature",
            Params {
                temperature: -0.1,
                ..base()
            },
            "0 to 100",
        ),
        (
            "temperature",
            Params {
                temperature: f32::NAN,
                ..base()
            },
            "0 to 100",
        ),
        (
            "temperature",
            Params {
                temperature: f32::INFINITY,
                ..base()
            },
            "0 to 100",
        ),
        (
            "top_p",
            Params {
                top_p: 1.01,
                ..base()
            },
            "0 to 1",
        ),
        (
            "min_p",
            Params {
                min_p: -0.01,
                ..base()
            },
            "0 to 1",
        ),
        (
            "repeat_penalty",
            Params {
                repeat_penalty: 0.0,
                ..base()
            },
            "0.01 to 100",
        ),
        (
            "presence_penalty",
            Params {
                presence_penalty: 2.1,
                ..base()
            },
            "-2 to 2",
        ),
        (
            "frequency_penalty",
            Params {
                frequency_penalty: -2.1,
                ..base()
            },
            "-2 to 2",
        ),
        ("logit_bias", bias(f32::NAN), "-10000 to 10000"),
        ("logit_bias", bias(10_001.0), "-10000 to 10000"),
        (
            "logit_bias",
            Params {
                logit_bias: [(10, 0.0)].into(),
                ..base()
            },
            "has 10 tokens",
        ),
        (
            "logprobs",
            Params {
                logprobs: Some(101),
                ..base()
            },
            "0 to 100",
        ),
    ];
    for (field, params, range) in cases {
        let error = params.validate(10).unwrap_err();
        assert!(
            matches!(&error, Error::Argument { name, .. } if *name == field),
            "{error}"
        );
        assert!(error.to_string().contains(range), "{error}");
    }
    assert_eq!(bias(f32::NEG_INFINITY).validate(10), Ok(()));
    let error = Sampler::new(base(), MAX_VOCAB + 1, &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("8388609") && error.contains("up to 8388608"),
        "{error}"
    );
}

#[test]
fn logprobs_are_the_log_softmax_and_sum_to_one() {
    let l: Vec<f32> = logits(11, 5_000).iter().map(|x| x * 3.0).collect();
    let p = softmax(&f64s(&l), 1.0);
    let found = logprobs(&l, 17, MAX_LOGPROBS).unwrap();
    assert!((f64::from(found.logprob) - p[17].ln()).abs() < 2e-6);
    let mut order: Vec<usize> = (0..l.len()).collect();
    order.sort_by(|a, b| l[*b].total_cmp(&l[*a]).then(a.cmp(b)));
    for ((id, logprob), expected) in found.top.iter().zip(&order) {
        assert_eq!(*id as usize, *expected);
        assert!((f64::from(*logprob) - p[*expected].ln()).abs() < 2e-6);
    }
    assert_eq!(found.top.len(), MAX_LOGPROBS);

    let small = logprobs(&[1.0, 3.0, 3.0], 0, 50).unwrap();
    let sum: f32 = small.top.iter().map(|(_, l)| l.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6);
    assert_eq!(
        small.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [1, 2, 0]
    );
    assert_eq!(logprobs(&[1.0, 3.0], 0, 0).unwrap().top, []);
}
