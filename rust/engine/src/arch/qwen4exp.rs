//! Qwen3.8-Flash-Next: Qwen3.5's layers with experts between hyper-connections, which have all norms of
//! rows; the delta rule's output has a logistic gate; one layer adds embeddings of n-grams. Attention sees blocks of
//! tokens that it chooses by heads of their own.
//!
//! After `transformers` 5.24 (`models/qwen4_exp`) and SGLang's module of the n-gram embeddings; names and
//! keys of files are llama.cpp's.

use super::build::{Builder, Router, Streamed};
use super::delta::Mixer;
use crate::config::{Config, NgramConfig};
use crate::error::{Error, Result};
use crate::plan::{BufferId, Gating, Ngram, NgramHead, NgramTable, Op, Plan, Streams};

pub fn plan(config: &Config) -> Result<Plan> {
    let streams = config.streams.as_ref().ok_or_else(|| Error::Metadata {
        key: format!("{}.hyper_connection.count", config.arch),
        value: "missing".into(),
        expected: "2, 4 or 8".into(),
    })?;
    let mut b = Builder::new(config);
    let router = Router {
        norm: None,
        activation: |[gate, up, out]| Op::SwiGlu { gate, up, out },
        experts: b.experts_of_file()?,
        gating: Gating::Softmax,
        renormalize: true,
    };
    let mixer = Mixer::new(&mut b, false)?.between_streams();
    let x = b.embed_streams(streams)?;
    for layer in 0..config.n_layer {
        if let Some(ngrams) = config.ngrams.as_ref().filter(|of| of.layer == layer) {
            add_ngrams(&mut b, ngrams, &x)?;
        }
        let read = b.mix(&format!("blk.{layer}.hc_attn"), &x)?;
        let delta = mixer.mix(&mut b, layer, read.x)?;
        b.inject(&x, read, delta);
        let read = b.mix(&format!("blk.{layer}.hc_ffn"), &x)?;
        let shared = b.shared_expert(layer, read.x, &router, true)?;
        let delta = b.experts(layer, read.x, &router)?;
        let other = b.gate_shared_into(layer, shared, "delta_shexp")?;
        b.add(other, delta);
        b.inject(&x, read, delta);
    }
    b.logits_of_streams(&x)
}

/// Adds to each stream the value of a row's n-grams as far as their key and the stream let it through, and
/// a convolution of that.
fn add_ngrams(b: &mut Builder<'_>, of: &NgramConfig, x: &Streamed) -> Result<()> {
    let (layer, n_embd) = (of.layer, b.config.n_embd);
    let (wide, n_rows) = (x.n * n_embd, of.heads.len() * of.width);
    let rows = recent_rows(b, of, n_rows)?;
    let name = |part: &str| format!("blk.{layer}.ple_{part}");
    let [key, query, gated, normed, convolved] = [
        "ngram_key",
        "ngram_query",
        "ngram_gated",
        "ngram_normed",
        "ngram_convolved",
    ]
    .map(|name| b.buffer(name, wide));
    let value = b.buffer("ngram_value", n_embd);
    b.stream_product(&name("key"), rows, &[n_rows, wide], key)?;
    b.stream_product(&name("value"), rows, &[n_rows, n_embd], value)?;
    for (from, part, out) in [(key, "norm_key", key), (x.x, "norm_query", query)] {
        let norm = b.streams_norm(&name(part), x.n)?;
        b.normalize(from, norm, out, n_embd);
    }
    b.push(Op::Streams(Streams::Gate {
        key,
        query,
        value,
        out: gated,
        n: x.n,
    }));
    let norm = b.streams_norm(&name("norm_conv"), x.n)?;
    b.normalize(gated, norm, normed, n_embd);
    let (taps, dilation) = (of.conv_kernel, of.size);
    let weight = b.table(&format!("{}.weight", name("conv1d")), &[taps, wide])?;
    let state = b.state(
        &format!("ngram_conv[{layer}]"),
        (taps - 1) * dilation * wide,
    );
    b.push(Op::ShortConv {
        x: normed,
        weight,
        bias: None,
        state,
        out: convolved,
        taps,
        silu: true,
        part: None,
        dilation,
    });
    b.add(gated, convolved);
    b.add(convolved, x.x);
    Ok(())
}

/// The rows that the n-grams that end with a token choose of the table, one after another.
fn recent_rows(b: &mut Builder<'_>, of: &NgramConfig, n_rows: usize) -> Result<BufferId> {
    // Numbers of tokens are exact below it, and one more than these.
    const MOST: usize = (1 << 24) - 1;
    if b.config.n_vocab > MOST {
        return Err(Error::Tensor {
            name: "token_embd.weight".into(),
            found: format!("{} tokens", b.config.n_vocab),
            expected: format!("at most {MOST} in a model with a table of n-grams"),
            remedy: "use another model".into(),
        });
    }
    let table = NgramTable {
        width: of.width,
        eos: of.eos,
        multipliers: of.multipliers.clone(),
        heads: of
            .heads
            .iter()
            .map(|(offset, size)| NgramHead {
                offset: *offset,
                size: *size,
            })
            .collect(),
    };
    let weight = b.table_of_rows("per_layer_token_embd.weight", of.width, table.rows())?;
    let (tokens, recent, rows) = (
        b.buffer("tokens", 1),
        b.buffer("recent", of.size),
        b.buffer("ngram_rows", n_rows),
    );
    let state = b.state(&format!("tokens[{}]", of.layer), of.size - 1);
    b.push(Op::Ngram(Ngram::Tokens { out: tokens }));
    b.push(Op::Ngram(Ngram::Recent {
        x: tokens,
        state,
        out: recent,
        n: of.size,
    }));
    b.push(Op::Ngram(Ngram::Rows {
        recent,
        weight,
        out: rows,
        table,
    }));
    Ok(rows)
}
