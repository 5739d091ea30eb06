//! Hyper-connections: parallel streams in the place of a model's rows and norms.

use super::{Builder, EMBEDDING};
use crate::config::StreamsConfig;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Norm, Op, Plan, Rows, Streams, WeightId};

/// The streams of a model's rows, side by side.
#[derive(Clone, Copy)]
pub struct Streamed {
    pub x: BufferId,
    pub n: usize,
    rank: usize,
}

/// What a block reads of the streams, and a number a stream by which they take up what it gives.
#[derive(Clone, Copy)]
pub struct Mixed {
    pub x: BufferId,
    inject: BufferId,
}

impl Builder<'_> {
    /// The embedding of the tokens in each of the streams, a power of two of them.
    pub fn embed_streams(&mut self, of: &StreamsConfig) -> Result<Streamed> {
        let mut x = self.embed(1.0)?;
        let mut n = 1;
        while n < of.count {
            n *= 2;
            let out = self.buffer("streams", n * self.config.n_embd);
            self.push(Op::Concat { x, y: x, out });
            x = out;
        }
        Ok(Streamed {
            x,
            n,
            rank: of.rank,
        })
    }

    /// A weight for each value of all streams.
    pub fn streams_norm(&mut self, name: &str, n: usize) -> Result<Norm> {
        self.norm(&format!("{name}.weight"), n * self.config.n_embd)
    }

    /// What the block of these tensors reads: the mean of the streams, each normalized by itself, through a
    /// gate of low rank that all of them make together.
    pub fn mix(&mut self, name: &str, of: &Streamed) -> Result<Mixed> {
        let (normed, x) = self.mixed(name, of, of.x, Rows::Batch)?;
        let inject = self.buffer("inject", of.n);
        let shape = [of.n * self.config.n_embd, of.n];
        self.stream_product(&format!("{name}_inject"), normed, &shape, inject)?;
        Ok(Mixed { x, inject })
    }

    fn mixed(
        &mut self,
        name: &str,
        of: &Streamed,
        streams: BufferId,
        rows: Rows,
    ) -> Result<(BufferId, BufferId)> {
        let n_embd = self.config.n_embd;
        let wide = of.n * n_embd;
        let norm = self.streams_norm(&format!("{name}_norm"), of.n)?;
        let [normed, low, active, gate, out] = [
            ("streams_normed", wide),
            ("gate_low", of.rank),
            ("gate_active", of.rank),
            ("streams_gate", wide),
            ("mixed", n_embd),
        ]
        .map(|(name, width)| self.buffer_over(name, width, rows));
        self.normalize(streams, norm, normed, n_embd);
        self.stream_product(&format!("{name}_down"), normed, &[wide, of.rank], low)?;
        self.scale(low, 1.0 / of.n as f32);
        // Times its own logistic function.
        self.push(Op::SigmoidMul {
            x: low,
            gate: low,
            out: active,
        });
        self.stream_product(&format!("{name}_up"), active, &[of.rank, wide], gate)?;
        self.push(Op::Streams(Streams::Mean {
            x: normed,
            gate,
            out,
            n: of.n,
        }));
        Ok((normed, out))
    }

    /// Adds what a block gives to the streams.
    pub fn inject(&mut self, of: &Streamed, by: Mixed, delta: BufferId) {
        self.push(Op::Streams(Streams::Inject {
            x: delta,
            gate: by.inject,
            streams: of.x,
            n: of.n,
        }));
    }

    /// The end of the model: of the rows that are wanted what a block of `output_hc` would read, and its
    /// product with `output`, or with the embedding where that is missing.
    pub fn logits_of_streams(mut self, of: &Streamed) -> Result<Plan> {
        let c = self.config;
        let last = self.buffer_over("last", of.n * c.n_embd, Rows::Out);
        self.push(Op::SelectRows { x: of.x, out: last });
        let (_, x) = self.mixed("output_hc", of, last, Rows::Out)?;
        let logits = self.buffer_over("logits", c.n_vocab, Rows::Out);
        let shape = [c.n_embd, c.n_vocab];
        let (weight, scale) = match self.optional("output.weight", &shape)? {
            Some(head) => (head, self.factor("output.scale", 1)?),
            None => (self.weight(EMBEDDING, &shape)?, None),
        };
        self.multiply(x, (weight, scale), logits);
        self.plan.logits = logits;
        Ok(self.plan)
    }

    /// `<name>.weight` times `x`, with the scale where the file has one.
    pub fn stream_product(
        &mut self,
        name: &str,
        x: BufferId,
        shape: &[usize; 2],
        out: BufferId,
    ) -> Result<()> {
        let weight = self.weight(&format!("{name}.weight"), shape)?;
        let scale = self.factor(&format!("{name}.scale"), 1)?;
        self.multiply(x, (weight, scale), out);
        Ok(())
    }

    fn multiply(
        &mut self,
        x: BufferId,
        (weight, scale): (WeightId, Option<WeightId>),
        out: BufferId,
    ) {
        self.push(Op::MatVec {
            x,
            norm: None,
            weight,
            scale,
            bias: None,
            out,
        });
    }

    /// A table of at least so many rows of `width` values, of which backends pad those that are no whole
    /// superblocks: as many as fill some are one row where there are no others.
    pub fn table_of_rows(&mut self, name: &str, width: usize, rows: u64) -> Result<WeightId> {
        const SUPERBLOCK: usize = 256;
        let found = self.config.tensors.get(name);
        let n = match found.map(|spec| spec.shape.as_slice()) {
            Some(&[n_in, n]) if n_in == width && n as u64 >= rows => n,
            found => {
                return Err(Error::Tensor {
                    name: name.to_owned(),
                    found: found.map_or("nothing".into(), |shape| format!("the shape {shape:?}")),
                    expected: format!("[{width}, {rows}], or more rows"),
                    remedy: "the metadata and the tensors disagree, or the file does not hold the \
                             whole model: convert or fetch it again"
                        .into(),
                })
            }
        };
        let id = self.weight(name, &[width, n])?;
        let each = (1..=SUPERBLOCK).find(|each| (each * width).is_multiple_of(SUPERBLOCK));
        // One row would be a vector.
        let each = each.filter(|each| n > *each && n.is_multiple_of(*each));
        let each = each.unwrap_or(1);
        let weight = &mut self.plan.weights[id.0];
        (weight.n_in, weight.n_out) = (each * width, n / each);
        Ok(id)
    }
}
