//! Time stamps of the blocks of a step's kernels, by the card's clock: where the time between kernels
//! goes, which timing each kernel by itself does not show.

use std::collections::HashMap;

use crate::backend::cuda::driver::buffer::DeviceBuffer;
use crate::backend::cuda::driver::launch::Launch;
use crate::backend::cuda::driver::stamps::{MOMENTS, WORDS};
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::cuda::run::card::Card;
use crate::backend::cuda::run::ready::{Ready, Way};
use crate::backend::{KernelStamps, Moment};
use crate::error::Result;

/// The moments of the kernels of `list`, run as `way`: medians of `repeats` steps, each the last of
/// `in_a_row`; `rewind` goes before each row of steps.
pub fn stamps(
    card: &Card,
    list: &[Launch],
    way: Way,
    repeats: usize,
    in_a_row: usize,
    mut rewind: impl FnMut(&Stream) -> Result<()>,
) -> Result<Vec<KernelStamps>> {
    let bytes: usize = list.iter().map(|launch| launch.spec.stamp_bytes()).sum();
    let buffer = DeviceBuffer::new(&card.context, bytes)?;
    let mut specs = Vec::with_capacity(list.len());
    let mut at = buffer.address();
    for launch in list {
        specs.push(launch.spec.clone().stamped(at));
        at += launch.spec.stamp_bytes() as u64;
    }
    let stream = &card.stream;
    let step = Ready::new(way, card.launches(specs)?, stream)?;
    let mut runs = Vec::with_capacity(repeats);
    let mut words = vec![0u64; bytes / size_of::<u64>()];
    for _ in 0..repeats.max(1) {
        rewind(stream)?;
        for _ in 0..in_a_row.max(2) - 1 {
            step.run(stream)?;
        }
        buffer.fill(0, stream)?;
        step.run(stream)?;
        buffer.read(0, &mut words, stream)?;
        runs.push(one_run(list, &words));
    }
    Ok((0..list.len())
        .map(|kernel| median_of(&runs, kernel))
        .collect())
}

/// The middle one; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The stamps of one run, microseconds from the first of all.
fn one_run(list: &[Launch], words: &[u64]) -> Vec<KernelStamps> {
    let times = words.chunks_exact(WORDS).flat_map(|block| &block[1..]);
    let start = times.copied().filter(|t| *t != 0).min().unwrap_or(0);
    let mut rest = words;
    let mut kernels = Vec::with_capacity(list.len());
    for launch in list {
        let count = launch.spec.stamp_bytes() / size_of::<u64>();
        let (own, behind) = rest.split_at(count.min(rest.len()));
        rest = behind;
        let blocks: Vec<&[u64]> = own.chunks_exact(WORDS).collect();
        let mut on: HashMap<u64, usize> = HashMap::new();
        for block in blocks.iter().filter(|block| block[1] != 0) {
            *on.entry(block[0]).or_default() += 1;
        }
        let moments = MOMENTS.iter().enumerate().filter_map(|(i, name)| {
            let stamped = blocks.iter().map(|block| block[i + 1]).filter(|t| *t != 0);
            let us: Vec<f64> = stamped.map(|t| (t - start) as f64 / 1e3).collect();
            (!us.is_empty()).then(|| Moment {
                name,
                first: us.iter().copied().fold(f64::INFINITY, f64::min),
                last: us.iter().copied().fold(0.0, f64::max),
                median: median(us),
            })
        });
        kernels.push(KernelStamps {
            sms: on.len(),
            crowded: on.values().filter(|blocks| **blocks > 1).count(),
            moments: moments.collect(),
        });
    }
    kernels
}

/// The medians over runs of one kernel, whose moments are the same in each.
fn median_of(runs: &[Vec<KernelStamps>], kernel: usize) -> KernelStamps {
    let its: Vec<&KernelStamps> = runs.iter().map(|run| &run[kernel]).collect();
    let over = |of: &dyn Fn(&KernelStamps) -> Option<f64>| {
        median(its.iter().filter_map(|stamps| of(stamps)).collect())
    };
    let moments = its.first().map_or(&[][..], |first| &first.moments);
    let at = |i: usize, of: fn(&Moment) -> f64| over(&move |s| s.moments.get(i).map(of));
    let moment = |(i, moment): (usize, &Moment)| Moment {
        name: moment.name,
        first: at(i, |m| m.first),
        median: at(i, |m| m.median),
        last: at(i, |m| m.last),
    };
    KernelStamps {
        sms: over(&|s| Some(s.sms as f64)) as usize,
        crowded: over(&|s| Some(s.crowded as f64)) as usize,
        moments: moments.iter().enumerate().map(moment).collect(),
    }
}
