//! Hyper-connections: the streams of a row.

use super::Interpreter;
use crate::backend::cpu::gates::finite_sigmoid;
use crate::backend::cpu::rowwise::{each_row, sum_of_products};
use crate::backend::cpu::simd::{self, Isa, Task};
use crate::error::Result;
use crate::plan::Streams;

/// One row of [`Streams::Mean`].
struct Mean<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    out: &'a mut [f32],
    share: f32,
}

impl Task for Mean<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let width = self.out.len();
        let streams = self.x.chunks_exact(width);
        for (s, (x, gate)) in streams.zip(self.gate.chunks_exact(width)).enumerate() {
            for ((out, x), gate) in self.out.iter_mut().zip(x).zip(gate) {
                let let_through = x * finite_sigmoid(*gate);
                *out = if s == 0 {
                    let_through
                } else {
                    *out + let_through
                };
            }
        }
        self.out.iter_mut().for_each(|out| *out *= self.share);
    }
}

/// One row of [`Streams::Inject`].
struct Inject<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    streams: &'a mut [f32],
    share: f32,
}

impl Task for Inject<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let streams = self.streams.chunks_exact_mut(self.x.len());
        for (stream, gate) in streams.zip(self.gate) {
            let factor = 2.0 * finite_sigmoid(gate * self.share);
            for (s, x) in stream.iter_mut().zip(self.x) {
                *s += x * factor;
            }
        }
    }
}

/// One row of [`Streams::Gate`].
struct Gate<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    out: &'a mut [f32],
    scale: f32,
}

impl Task for Gate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let width = self.value.len();
        let pairs = self.key.chunks_exact(width);
        let pairs = pairs.zip(self.query.chunks_exact(width));
        for (out, (key, query)) in self.out.chunks_exact_mut(width).zip(pairs) {
            let t = sum_of_products(key, query) * self.scale;
            let gate = finite_sigmoid(signed_root(t));
            for (out, v) in out.iter_mut().zip(self.value) {
                *out = v * gate;
            }
        }
    }
}

/// The root of the size of `t`, at least 1e-6, with its sign; 0 of 0.
#[inline(always)]
fn signed_root(t: f32) -> f32 {
    let size = t.abs();
    // Of no number no root.
    let m = if size < 1e-6 { 1e-6 } else { size }.sqrt();
    if t > 0.0 {
        m
    } else if t < 0.0 {
        -m
    } else {
        t
    }
}

impl Interpreter {
    pub(super) fn streams(&mut self, op: &Streams) -> Result<()> {
        let level = self.level;
        let width = |id| self.plan.buffer(id).width;
        match *op {
            Streams::Mean { x, gate, out, n } => {
                let (wide, narrow) = (width(x), width(out));
                let mut mean = self.take(out);
                let (x, gate) = (&self.buffers[x.0], &self.buffers[gate.0]);
                each_row(&mut mean, narrow, |r, out| {
                    let of = r * wide..(r + 1) * wide;
                    let task = Mean {
                        x: &x[of.clone()],
                        gate: &gate[of],
                        out,
                        share: 1.0 / n as f32,
                    };
                    simd::run(level, task);
                });
                self.buffers[out.0] = mean;
            }
            Streams::Inject {
                x,
                gate,
                streams,
                n,
            } => {
                let (wide, narrow) = (width(streams), width(x));
                let mut all = self.take(streams);
                let (x, gate) = (&self.buffers[x.0], &self.buffers[gate.0]);
                each_row(&mut all, wide, |r, streams| {
                    let task = Inject {
                        x: &x[r * narrow..][..narrow],
                        gate: &gate[r * n..][..n],
                        streams,
                        share: 1.0 / n as f32,
                    };
                    simd::run(level, task);
                });
                self.buffers[streams.0] = all;
            }
            Streams::Gate {
                key,
                query,
                value,
                out,
                ..
            } => {
                let (wide, narrow) = (width(out), width(value));
                let mut gated = self.take(out);
                let [key, query, value] = [key, query, value].map(|id| &self.buffers[id.0]);
                each_row(&mut gated, wide, |r, out| {
                    let of = r * wide..(r + 1) * wide;
                    let task = Gate {
                        key: &key[of.clone()],
                        query: &query[of],
                        value: &value[r * narrow..][..narrow],
                        out,
                        scale: (1.0 / (narrow as f64).sqrt()) as f32,
                    };
                    simd::run(level, task);
                });
                self.buffers[out.0] = gated;
            }
        }
        Ok(())
    }
}
