//! Small copies to the card, which nobody waits for, however many are on their way. Runs where a CUDA
//! driver is found, the simulated one included: that one does nothing before somebody waits.

use crate::card;
use onegraph::backend::cuda::driver::buffer::DeviceBuffer;
use onegraph::backend::cuda::driver::stream::Stream;

#[test]
fn what_is_queued_arrives_as_it_was_written() {
    // Of the simulator, which is told once a process: work runs when it is waited for.
    let lazily = [("KSIM_LAZY", "1"), ("KSIM_LAZY_MS", "0")];
    if std::env::var_os(lazily[0].0).is_none() {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        process.args([
            "--exact",
            "uploads::what_is_queued_arrives_as_it_was_written",
        ]);
        assert!(process.envs(lazily).status().unwrap().success());
        return;
    }
    let Some(context) = card::context() else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let room = 300_000;
    let buffer = DeviceBuffer::new(&context, 4 * room).unwrap();
    buffer.fill(0, &stream).unwrap();
    let mut wanted = vec![0u32; room];
    let mut next = 7u32;
    let mut random = |below: usize| {
        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (next >> 8) as usize % below
    };
    // Several times around, now and then what is too large for it, one over the other.
    for i in 0..900u32 {
        let n = match i % 300 {
            299 => 70_000 + random(9_000),
            _ => 1 + random(4_000),
        };
        let at = random(room - n);
        let words: Vec<u32> = (0..n as u32).map(|word| i << 20 | word).collect();
        buffer.write(4 * at, &words, &stream).unwrap();
        wanted[at..at + n].copy_from_slice(&words);
    }
    let mut found = vec![0u32; room];
    buffer.read(0, &mut found, &stream).unwrap();
    assert!(found == wanted);
}
