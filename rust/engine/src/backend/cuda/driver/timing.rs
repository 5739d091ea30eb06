//! How long launches take, by the card's clock.

use super::event::Event;
use super::launch::Launch;
use super::stream::Stream;
use crate::error::Result;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// The median time of `run` in microseconds, `in_a_row` timed together so that the host's part is
/// hidden; `prepare` goes before each row of them, untimed.
pub fn run_us(
    stream: &Stream,
    repeats: usize,
    in_a_row: usize,
    mut prepare: impl FnMut() -> Result<()>,
    mut run: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let context = &stream.context;
    let (begin, end) = (Event::new(context)?, Event::new(context)?);
    let mut times = Vec::new();
    for _ in 0..repeats.max(1) {
        prepare()?;
        stream.record(&begin)?;
        for _ in 0..in_a_row {
            run()?;
        }
        stream.record(&end)?;
        end.synchronize()?;
        times.push(end.micros_since(&begin)? / in_a_row as f64);
    }
    Ok(median(times))
}

/// The median time of each launch in microseconds, from the end of its predecessor; `prepare` goes
/// before each run of the list.
pub fn launch_us(
    stream: &Stream,
    list: &[Launch],
    repeats: usize,
    mut prepare: impl FnMut() -> Result<()>,
) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); list.len()];
    let events: Vec<Event> = (0..=list.len())
        .map(|_| Event::new(&stream.context))
        .collect::<Result<_>>()?;
    for _ in 0..repeats.max(1) {
        prepare()?;
        stream.record(&events[0])?;
        for (launch, event) in list.iter().zip(&events[1..]) {
            launch.run(stream)?;
            stream.record(event)?;
        }
        stream.synchronize()?;
        for (i, times) in times.iter_mut().enumerate() {
            times.push(events[i + 1].micros_since(&events[i])?);
        }
    }
    Ok(times.into_iter().map(median).collect())
}
