//! The kernel sources of this crate, and the parameter structs as the kernels declare them.

use bytemuck::{Pod, Zeroable};

use super::compile::Source;
use crate::error::{Error, Result};
use crate::quant;

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }),*]
    };
}

static SOURCES: &[Source] = sources![
    "attention.cu",
    "attention_blocks.cu",
    "elementwise.cu",
    "embed.cu",
    "kv_scatter.cu",
    "kv_scatter_blocks.cu",
    "matmul.cu",
    "matvec.cu",
    "prompt_attention.cu",
    "read.cu",
    "repack.cu",
    "rms_norm.cu",
    "rope.cu",
    "sample.cu",
    "split.cu",
];

static HEADERS: &[Source] = sources![
    "common.cuh",
    "epilogue.cuh",
    "kv.cuh",
    "kv_blocks.cuh",
    "sample.cuh",
    "state.cuh",
    "unit.cuh"
];

/// A kernel source by its file name.
pub fn source(name: &str) -> Result<Source> {
    SOURCES
        .iter()
        .find(|s| s.name == name)
        .copied()
        .ok_or_else(|| Error::Internal(format!("no kernel source {name}")))
}

/// Every header that a kernel may include, name and text, the quant types' own among them.
pub fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = HEADERS.iter().map(|h| (h.name, h.text));
    own.chain(
        quant::TYPES
            .iter()
            .map(|t| (t.kernel.header, t.kernel.text)),
    )
}

/// `Segment` of epilogue.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Segment {
    pub units: u64,
    pub out: u64,
    pub bias: u64,
    pub tiles: u32,
    pub rows: u32,
}

/// `KvView` of kv.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct KvView {
    pub k: u64,
    pub v: u64,
    pub page_table: u64,
    pub error: u64,
    pub saturated: u64,
    pub pages_per_slot: u32,
    pub n_slots: u32,
    pub n_ctx: u32,
    pub n_pages: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct MatVec {
    pub segment: [Segment; 3],
    pub x: u64,
    pub norm: u64,
    pub eps: f32,
    pub m: u32,
    pub kv: KvView,
    pub turns: u64,
    pub positions: u64,
    pub slots: u64,
    pub located: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct MatMul {
    pub segment: [Segment; 3],
    pub halves: u64,
    pub sums: u64,
    pub unscale: u64,
    pub m: u32,
    pub stride: u32,
    pub kv: KvView,
    pub turns: u64,
    pub positions: u64,
    pub slots: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Split {
    pub x: u64,
    pub norm: u64,
    pub halves: u64,
    pub sums: u64,
    pub unscale: u64,
    pub eps: f32,
    pub stride: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Repack {
    pub rows: u64,
    pub units: u64,
    pub tiles: u32,
    pub n_sb: u32,
    pub n_in: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Read {
    pub from: u64,
    pub sums: u64,
    pub n: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Embed {
    pub units: u64,
    pub out: u64,
    pub tokens: u64,
    pub positions: u64,
    pub slots: u64,
    pub state: u64,
    pub state_slots: u64,
    pub n_rows: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RmsNorm {
    pub x: u64,
    pub out: u64,
    pub weight: u64,
    pub eps: f32,
    pub groups: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Rope {
    pub x: u64,
    pub turns: u64,
    pub positions: u64,
    pub n_ctx: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct KvScatter {
    pub k: u64,
    pub v: u64,
    pub positions: u64,
    pub slots: u64,
    pub kv: KvView,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Attention {
    pub q: u64,
    pub out: u64,
    pub kv: KvView,
    pub positions: u64,
    pub slots: u64,
    pub partial: u64,
    pub tickets: u64,
    pub scale: f32,
    pub alone: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PromptAttention {
    pub q: u64,
    pub out: u64,
    pub kv: KvView,
    pub positions: u64,
    pub slots: u64,
    pub scale: f32,
    pub m: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Add {
    pub x: u64,
    pub out: u64,
    pub n: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SwiGlu {
    pub gate: u64,
    pub up: u64,
    pub out: u64,
    pub n: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SelectRows {
    pub x: u64,
    pub out: u64,
    pub rows: u64,
    pub width: u32,
    pub unused: u32,
}
